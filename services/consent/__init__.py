"""Consent: asks a session's owner about literal steps, and redeems the answer exactly once.

- consumes `turnkeeper.consent`: IssueAction, CancelAction, SupersedeActions, DecideByText
- publishes to the session: ActionAsked, ActionNotAsked, ActionClosed, DecisionRefused, and the doorbell
  InputAccepted of a decision; to applications: Notice with topic `question`
- owns in Redis, in the partition of the session: action, actions, open, expiry, grant, refused; appends decisions to
  number, inbox and outcome; in the shard of the user: standing, standings
- answers over HTTP: the actions of a session, and the decision of its approver; a user's standing approvals

Read in this order: `handlers` (or `edge` for HTTP) → `domain` and `render` → `store` → `lua/`.
"""

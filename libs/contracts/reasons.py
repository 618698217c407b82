"""Closed vocabularies that appear in messages, answers, logs and metric labels. One name per thing."""

from typing import Literal

EventOutcome = Literal[
    "acted",
    "noticed",
    "duplicate",
    "quarantined",
    "held_expired",
    "rejected",
    "stale",
    "superseded",
    "failed",
]
"""What became of an accepted event; each ends in exactly one (G1)."""

OperationState = Literal[
    "pending", "committed", "refused", "failed", "unknown", "conflict", "withdrawn", "expired", "in_progress",
    "precondition_failed", "needs_consent",
]  # fmt: skip
"""What the door says of an operation. `pending` is stored only; it is never an answer. `needs_consent` answers a step
that was offered to the door and that no standing approval covers: it never ran under this key, and never will."""

ActionState = Literal["pending", "accepted", "declined", "expired", "superseded", "cancelled"]

DecisionOutcome = Literal[
    "accepted",
    "declined",
    "repeated",
    "wrong_person",
    "expired",
    "superseded",
    "wrong_question",
    "decided_otherwise",
    "cancelled",
    "no_such_action",
]

IngressOutcome = Literal[
    "accepted",
    "duplicate",
    "quarantined",
    "held",
    "rejected_signature",
    "rejected_time",
    "rejected_malformed",
    "unrouted",
    "throttled",
]

TurnOutcome = Literal["done", "asked", "failed", "cancelled", "restarted"]

TimelineKind = Literal[
    "input",
    "input.persisted",
    "input.dropped",
    "input.rejected",
    "input.quarantined",
    "input.held",
    "input.stale",
    "input.queued",
    "input.merged",
    "input.superseded",
    "input.dead",
    "turn.start",
    "turn.plan",
    "turn.ask",
    "turn.paused",
    "turn.resumed",
    "turn.restarted",
    "turn.cancelled",
    "turn.done",
    "turn.failed",
    "tool.sent",
    "tool.committed",
    "tool.refused",
    "tool.failed",
    "tool.unknown",
    "tool.replayed",
    "tool.conflict",
    "tool.withdrawn",
    "tool.expired",
    "effect.gone",
    "action.asked",
    "action.accepted",
    "action.declined",
    "action.expired",
    "action.superseded",
    "action.cancelled",
    "action.lapsed",
    "action.refused",
    "timer.set",
    "timer.skipped",
    "notice",
    "reply",
    "world",
]
"""What a line of a timeline tells of. `input.persisted` is reserved and never written: an input is stored before its
session sees it, so its line `input` says that too."""

TimerOutcome = Literal["set", "fired", "skipped", "stopped", "refused", "too_many", "forged", "superseded"]
"""What became of a timer or one of its instants, as counted by ingress. `too_many`: refused, for its session has
`caps.timers` pending; `refused`: for any other reason."""

TimerSkip = Literal[
    "missed",
    "too_late",
    "too_many_missed",
    "too_many_timers",
    "too_far",
    "too_large",
    "never_due",
    "bad_timer",
]
"""Why instants of a timer did not fire. The first three: nothing ran when they were due, and its `misfire` is `skip`;
they are older than its `lateness`; more were missed than may run late. The others: the timer was refused, or ended,
since the session has as many as it may, it is due after the session may be gone, its data is too large, its rule has
no instant, its rule or another field cannot be read."""

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
    "pending", "committed", "refused", "failed", "unknown", "conflict", "withdrawn", "expired", "in_progress"
]
"""What the door says of an operation. `pending` is stored only; it is never an answer."""

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

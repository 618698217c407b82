"""What the session service owns: plans' steps as they are stored and shown, and notices to applications."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from libs.contracts.canonical import JSON
from libs.contracts.envelope import Destination, Message
from libs.contracts.ids import Slug
from libs.contracts.reasons import TimelineKind


class Step(BaseModel):
    """One tool call of a plan: tool and literal arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: Slug
    args: dict[str, JSON]


class TimelineLine(BaseModel):
    """One line of a session's timeline (names of `turnkeeper timeline --json`). `at` is in milliseconds (Unix)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int
    at: int
    kind: TimelineKind
    text: str = ""
    turn: str = ""
    origin: str = ""
    event: str = ""
    action: str = ""
    operation: str = ""
    cause: str = ""


class PlanRequested(Message):
    """A plan is wanted for a turn, from a planner that may be slow. `token` is good for one answer, until `deadline`
    (milliseconds, Unix)."""

    TO: ClassVar[Destination] = "planner"

    turn: Slug
    plan: int
    """The number of the request in its session; with the turn it is what an answer belongs to."""
    token: str
    deadline: int
    view: dict[str, JSON]
    """What the planner is shown: see `docs/planners.md`."""


class PlanMade(Message):
    """The planner's answer. Ignored, and recorded, where (turn, plan) is not what is waited for."""

    TO: ClassVar[Destination] = "session"

    turn: Slug
    plan: int
    token: str
    steps: tuple[Step, ...] = ()
    reply: str = ""
    note: str = ""
    relation: Literal["", "adds", "independent", "revises", "unclear"] = ""
    """What an input that came while the turn ran is to that turn."""
    fault: str = ""
    """Why there is no plan, for the operator."""


class Notice(Message):
    """What applications subscribe to: routing key `<session>.<topic>`."""

    TO: ClassVar[Destination] = "notices"

    topic: Literal["question", "notice", "reply", "turn", "operation", "evidence"]
    text: str
    data: dict[str, JSON] = Field(default_factory=dict)

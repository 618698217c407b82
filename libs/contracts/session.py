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


class Notice(Message):
    """What applications subscribe to: routing key `<session>.<topic>`."""

    TO: ClassVar[Destination] = "notices"

    topic: Literal["question", "notice", "reply", "turn", "operation"]
    text: str
    data: dict[str, JSON] = Field(default_factory=dict)

"""The envelope around every message between services, and the base of the messages themselves."""

import re
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Destination = Literal["session", "consent", "tools", "ingress", "planner", "notices", "archive"]
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class Message(BaseModel):
    """A message that crosses a process. Frozen; an unknown field or enumeration value is refused.

    `VERSION` rises when a reader of the old form could no longer read the new one. `TO` says who handles it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    VERSION: ClassVar[int] = 1
    TO: ClassVar[Destination]

    @classmethod
    @cache
    def wire_type(cls) -> str:
        """`<owner>.<snake_name>.v<major>`, derived from module and class so that it cannot drift."""
        owner = cls.__module__.rpartition(".")[2]
        return f"{owner}.{_WORD.sub('_', cls.__name__).lower()}.v{cls.VERSION}"


class Envelope(BaseModel):
    """What the courier knows of a message. Ids are derived, so that a repeat is recognised at every hop (G2)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    """Stable across attempts: see `ids.derive_id`."""
    type: str
    session: str
    """The session it belongs to, which is also its lane: messages of one session are handled one by one."""
    cause: str = ""
    """Id of the message or input that led to this one."""
    correlation: str = ""
    """Id of the input from outside that all this began with."""
    depth: int = 0
    """Causation depth: how many turns led here, each caused by the one before (G5, loops)."""
    trace: str = ""
    """W3C traceparent."""
    epoch: int = 0
    """Store epoch that the sender saw (design §5)."""
    at: int = 0
    """When it was made, milliseconds (Unix)."""
    body: dict[str, Any]

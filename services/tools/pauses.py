"""What is paused, as pure values, and what of it this replica knows (design §3.4: `turnkeeper pause`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from services.tools.ports import Stopped

Kind = Literal["all", "source", "session", "tool"]
MOST_PAUSES = 500


@dataclass(frozen=True)
class Pause:
    """A stop of sends: of all, or of one source's turns, of one session, of one tool. `at` in milliseconds (Unix)."""

    kind: Kind
    name: str = ""
    by: str = ""
    note: str = ""
    at: int = 0

    @property
    def field(self) -> str:
        """What it is called in the store and in answers, such as `tool:book`; `all:` for all."""
        return f"{self.kind}:{self.name}"

    def covers(self, tool: str, session: str, origin: str) -> bool:
        """Whether it stops a send. `origin` is kind, source and principal of the turn, "" where there is no turn."""
        return self.field in fields_of(tool, session, origin)


def fields_of(tool: str, session: str, origin: str) -> tuple[str, ...]:
    """The pauses that would stop such a send, as `paused_by` in Lua has them."""
    _, source, *_ = (*origin.split(" "), "", "")
    return ("all:", f"tool:{tool}", f"session:{session}", f"source:{source}")


def shown(field: str) -> str:
    """A pause for people: `all`, or its kind and name."""
    kind, _, name = field.partition(":")
    return f"{kind} {name}" if name else kind


@dataclass(frozen=True)
class Holding:
    """An operation that was claimed before a pause. Times in milliseconds (Unix)."""

    session: str
    key: str
    operation: str
    tool: str
    origin: str
    replica: str
    """Of its holder; "" where nobody holds it any more."""
    incarnation: str
    lease_until: int


@dataclass(frozen=True)
class Seen:
    """What a replica of the door has said last: its process, and the version of the pauses that it obeys."""

    incarnation: str
    version: int


LEASE_MARGIN_MS = 1_000
"""Beyond a lease, for clocks that differ: a holder begins no send when its lease is over."""


def may_still_send(held: Holding, seen: Mapping[str, Seen], version: int, now: int) -> bool:
    """Whether the holder of a claimed operation may begin its send although that is paused as of `version`.

    Not if nobody holds it, if its replica obeys the version, if another process has that replica's name by now, or if
    its lease is over (all holders stop there by themselves).
    """
    if not held.replica or held.lease_until + LEASE_MARGIN_MS < now:
        return False
    said = seen.get(held.replica)
    return said is None or (said.incarnation == held.incarnation and said.version < version)


class Stops:
    """The pauses that this replica obeys, in memory: looked at right before each send, without a round trip."""

    def __init__(self, pauses: Iterable[Pause] = (), version: int = 0) -> None:
        self.pauses = tuple(pauses)
        self.version = version
        self._fields = frozenset(pause.field for pause in self.pauses)

    def take(self, pauses: Iterable[Pause], version: int) -> None:
        """Obey these from now on."""
        self.pauses, self.version = tuple(pauses), version
        self._fields = frozenset(pause.field for pause in self.pauses)

    def check(self, tool: str, session: str, origin: str = "") -> None:
        """Raises Stopped where such a send is paused."""
        if not self._fields:
            return
        for field in fields_of(tool, session, origin):
            if field in self._fields:
                raise Stopped(f"paused: {shown(field)}", tool)

"""What handlers and edge need from the outside, no wider."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from libs.contracts.consent import Verdict
from libs.contracts.envelope import Message
from libs.contracts.ingress import Input
from libs.runtime.publisher import Outgoing
from services.consent.domain import Asking, Record

ClosedAs = Literal["expired", "superseded", "cancelled", "lapsed"]


class Emit(Protocol):
    """Makes a message of this session ready to be committed; the same id parts give the same id (G2)."""

    def __call__(self, message: Message, *id_parts: object) -> Outgoing: ...


@dataclass(frozen=True)
class Issue:
    """One attempt to open a question. `question` is None when it may not be asked, for `refused_because`."""

    session: str
    action: str
    fingerprint: str
    attempt: str
    now: int
    source: str
    cap: int
    question: Asking | None
    refused_because: str = ""
    depth: int = 0
    trace: str = ""
    correlation: str = ""
    places: "tuple[Place, ...]" = ()


@dataclass(frozen=True)
class Place:
    """A question that another takes the place of: `closed` tells the session so, for `reason`; `refused` that it was
    accepted meanwhile and the other is not opened, for the reason `stands`."""

    action: str
    reason: str
    stands: str
    closed: Outgoing
    refused: Outgoing


@dataclass(frozen=True)
class Redemption:
    """One attempt to decide. `typed` is the number of the input that held the text, 0 over HTTP."""

    session: str
    action: str
    by: str
    question_digest: str
    verdict: Verdict
    attempt: str
    typed: int
    receipt: bytes
    lapses_at: int
    input: Input


@dataclass(frozen=True)
class Glance:
    """What is read before deciding: the action, the next number of the session's inbox, the store's time (ms)."""

    record: Record | None
    next_number: int
    now: int


@dataclass(frozen=True)
class Answer:
    """What the store says: its tag, and what belongs to it."""

    tag: str
    receipt: bytes = b""
    number: int = 0
    reason: str = ""
    asked_at: int = 0
    closed: tuple[str, ...] = ()
    """Questions that gave way to the one that was asked."""


class Actions(Protocol):
    """The actions of all sessions. Each method may raise StoreAway: what became of the call is then unknown."""

    async def owner(self, session: str) -> str | None:
        """The owner of a session, or None when there is no such session."""
        ...

    async def now(self) -> int:
        """Store time: the larger of Redis TIME and our clock, milliseconds."""
        ...

    async def glance(self, session: str, action: str) -> Glance: ...

    async def of_session(self, session: str) -> Sequence[Record]:
        """The newest actions of a session that were asked, oldest first."""
        ...

    async def issue(self, issue: Issue, asked: Sequence[Outgoing], refused: Sequence[Outgoing]) -> Answer:
        """Tags: asked (with what gave way), not_asked (with the reason), repeated, other, closed."""
        ...

    async def redeem(self, redemption: Redemption, messages: Sequence[Outgoing]) -> Answer:
        """Tags: those of `lua/redeem_action.lua`."""
        ...

    async def close(
        self, session: str, action: str, to: ClosedAs, *, attempt: str, reason: str, messages: Sequence[Outgoing]
    ) -> Answer:
        """Tags: closed, repeated, early, withdrawn, spent, stands (with the state as reason), absent."""
        ...

    async def refuse(self, session: str, mark: Sequence[str], *, attempt: str, messages: Sequence[Outgoing]) -> Answer:
        """Tags: told, repeated."""
        ...

    async def overdue(self, which: Literal["expiry", "grant"], now: int) -> Sequence[tuple[str, str]]:
        """(session, action) whose question or grant is past its time, up to 200 of each partition."""
        ...

    async def pending(self) -> int:
        """Open questions in the whole store."""
        ...

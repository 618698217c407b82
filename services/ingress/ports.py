"""What ingress's handlers need of the store, as values and Protocols."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from libs.runtime.publisher import Outgoing
from services.ingress.domain import Event, Misfit
from services.ingress.misfire import Move, Timer

POINTER = ">"
"""Begins the dedupe entry of an unsigned id, which only points to the identity that the body gave."""


@dataclass(frozen=True)
class Limits:
    """Bounds and lifetimes, from the settings."""

    session_ttl_ms: int
    subject_ttl_ms: int
    held: int
    """Most events that wait for one subject or session."""
    outbox_limit: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Stored now, by this very attempt."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A copy of `first`, which is stored but not yet in its session."""

    first: Event


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A copy of one that is done."""


@dataclass(frozen=True, slots=True)
class Other:
    """The identity is known with another mark. `pending` is the first one where it is not yet in its session."""

    first_mark: str
    pending: Event | None


Admission = Accepted | Pending | Duplicate | Other


@dataclass(frozen=True, slots=True)
class Appended:
    """In the inbox as `number`; `new` by this call. Number 0 means that it had expired before."""

    number: int
    new: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The session's next number is another."""

    next: int


class HeldFull(Exception):
    """As many events wait for one subject or session as may: this one was not let in, and nothing was written."""


class Refused(StrEnum):
    """Why it was not placed."""

    ABSENT = "absent"
    """There is no such session."""
    BEHIND = "behind"
    """Earlier events wait for the session and go first."""
    FULL = "full"
    """As many wait for the subject or session as may."""
    MOVED = "moved"
    """The timer is at another instant, or has ended: somebody else was faster."""


Placement = Appended | Waiting | Refused


@dataclass(frozen=True, slots=True)
class Held:
    """It waits for its subject or session, or has waited in vain."""

    expired: bool


@dataclass(frozen=True, slots=True)
class Created:
    """The session is this owner's; `waiting` events are due for release."""

    new: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The subject is this session's; `held` events are due for release."""

    new: bool
    held: int


@dataclass(frozen=True, slots=True)
class Taken:
    """It is another's."""

    by: str


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an event. `outcome` is "-" until its session knows."""

    mark: str
    status: str
    session: str = "-"
    number: int = 0
    outcome: str = "-"


class TimerSet(StrEnum):
    """What became of a timer that was to be set."""

    SET = "set"
    KNOWN = "known"
    """It was set, stopped or refused before; nothing changed."""
    REFUSED = "refused"
    """Its session is told."""
    ABSENT = "absent"
    """There is no such session."""


class TimerEnd(StrEnum):
    """How a timer ended before its time."""

    STOPPED = "stopped"
    """Through the door."""
    SUPERSEDED = "superseded"
    """Its subject is moot, says its session."""
    UNREADABLE = "unreadable"
    """What is stored of it cannot be read."""


Append = Callable[[Event, str, bytes, int, Outgoing, int], Awaitable[Placement]]
"""What gives an event a number in an inbox, in one write: event, session, sealed input, number, doorbell, now (ms)."""


class EventStore(Protocol):
    """What admission needs. Every method may raise StoreAway."""

    def admit(self, event: Event, token: str, now: int) -> Awaitable[Admission]:
        """Claim the identity and store the event, in one write."""
        ...

    def point(self, event: Event, now: int) -> Awaitable[None]:
        """Let an unsigned id lead to the identity that the body gave."""
        ...

    def quarantine(self, misfit: Misfit, first: str, body: bytes, now: int) -> Awaitable[str]:
        """Keep a body that must not be acted on."""
        ...

    def owner(self, session: str) -> Awaitable[str | None]:
        """Whose session it is."""
        ...

    def session_of(self, subject: str) -> Awaitable[str | None]:
        """The session of a subject."""
        ...

    def has_room(self, event: Event, session: str, now: int) -> Awaitable[bool]:
        """Whether the event may be held for its subject, or for `session` where that is not empty."""
        ...

    def route_or_hold(self, event: Event) -> Awaitable[str | Held | Refused]:
        """The session of the event's subject, or that it is held or may not be."""
        ...

    def append(
        self, event: Event, session: str, packed: bytes, number: int, doorbell: Outgoing, now: int
    ) -> Awaitable[Placement]:
        """Give the event this number in the session's inbox."""
        ...

    def hold_for_session(self, event: Event, session: str) -> Awaitable[Held | Refused | None]:
        """Hold the event for its session; None when nothing is in its way any more, FULL when too many wait."""
        ...

    def write_outcome(self, event: Event, outcome: str) -> Awaitable[None]:
        """What became of an event that is in no inbox."""
        ...


class Clock(Protocol):
    """What tells the time."""

    def now_ms(self) -> int:
        """Milliseconds (Unix)."""
        ...


class Poster(Protocol):
    """What sends committed messages in the background."""

    def post(self, session: str, messages: Any) -> None:
        """Send them; the relay sends what is left after a crash."""
        ...


class Subjects(Protocol):
    """What registers subjects."""

    def register(self, subject: str, session: str, operation: str) -> Awaitable[Registered | Taken]:
        """Register a subject, once."""
        ...


class Teller(Protocol):
    """What commits messages that follow from no other change."""

    def tell(self, session: str, messages: list[Outgoing], now: int) -> Awaitable[None]:
        """Commit and send them."""
        ...


class Queues(Protocol):
    """What sweepers look through. Every method may raise StoreAway."""

    @property
    def session_ttl_ms(self) -> int:
        """How long a session lives without an input."""
        ...

    def admitted_before(self, at: int, limit: int, offset: int = 0) -> Awaitable[tuple[list[Event], bool]]:
        """Admitted before `at` (ms) and not yet forgotten, `limit` a shard; and whether there are more."""
        ...

    def owner(self, session: str) -> Awaitable[str | None]:
        """Whose session it is."""
        ...

    def session_of(self, subject: str) -> Awaitable[str | None]:
        """The session of a subject."""
        ...

    def held(self, subject: str) -> Awaitable[tuple[list[Event], list[Event]]]:
        """(waiting in order, expired without an outcome)."""
        ...

    def held_subjects(self, until: int | str) -> Awaitable[list[str]]:
        """Subjects with a deadline up to `until`."""
        ...

    def waiting_sessions(self, until: int | str) -> Awaitable[list[str]]:
        """Sessions that events wait for, with a deadline up to `until`."""
        ...

    def waiting(self, session: str) -> Awaitable[list[Event]]:
        """What waits for a session, in order."""
        ...

    def release_held(self, subject: str, event: Event) -> Awaitable[None]:
        """It is in an inbox."""
        ...

    def expire_held(self, event: Event, subject: str, now: int) -> Awaitable[bool]:
        """Let it expire if it may."""
        ...

    def drop_held(self, event: Event, subject: str) -> Awaitable[None]:
        """Its outcome is written."""
        ...

    def expire_waiting(self, event: Event, session: str, now: int) -> Awaitable[bool]:
        """Let it expire if it may, with its outcome."""
        ...

    def write_outcome(self, event: Event, outcome: str) -> Awaitable[None]:
        """What became of an event that is in no inbox."""
        ...

    def trim_quarantine(self, oldest: int) -> Awaitable[None]:
        """Keep the newest."""
        ...

    def trim_sessions(self, oldest: int) -> Awaitable[None]:
        """Forget sessions whose keys have expired."""
        ...


class Office(Queues, Subjects, Protocol):
    """What operators' calls need. Every method may raise StoreAway."""

    def create_session(
        self, session: str, owner: str, now: int, trial: str = ""
    ) -> Awaitable[Created | Taken | Literal["real"]]:
        """Write the owner, once, and for tests the mark of a trial. "real": it exists and is none."""
        ...

    def record(self, source: str, identity: str, now: int, window_ms: int) -> Awaitable[Record | None]:
        """Where an event stands."""
        ...

    def quarantined(self) -> Awaitable[list[dict[str, Any]]]:
        """All that is in quarantine, newest first."""
        ...

    def quarantine_entry(self, id: str) -> Awaitable[dict[str, Any] | None]:
        """One entry."""
        ...

    def drop_quarantined(self, id: str) -> Awaitable[None]:
        """It was let in."""
        ...


class Timers(Protocol):
    """What timers need. Every method may raise StoreAway."""

    @property
    def horizon_ms(self) -> int:
        """How long a session lives after its last input."""
        ...

    def set(self, timer: Timer, refusal: Outgoing, cap: int, now: int) -> Awaitable[TimerSet]:
        """Set it, once; with `next` 0, or with `cap` timers pending, it is refused and its session told."""
        ...

    def stop(self, session: str, timer: str, end: TimerEnd) -> Awaitable[bool]:
        """End it, also before it is set. False when it had ended before."""
        ...

    def skip(self, timer: Timer, move: Move, told: Outgoing, now: int) -> Awaitable[bool]:
        """Pass over the instants of a move. False when somebody else was faster."""
        ...

    def fire(
        self,
        timer: Timer,
        move: Move,
        event: Event,
        session: str,
        packed: bytes,
        number: int,
        doorbell: Outgoing,
        now: int,
    ) -> Awaitable[Placement]:
        """Give an instant this number in its session's inbox and move the timer on, in one write."""
        ...

    def due(self, partition: int, until: int, limit: int) -> Awaitable[list[tuple[str, str]]]:
        """(session, timer) of those due up to `until` (ms), the longest due first, of one partition."""
        ...

    def load(self, session: str, timer: str) -> Awaitable[Timer | None]:
        """A pending timer, or None."""
        ...

    def of_session(self, session: str) -> Awaitable[list[Timer]]:
        """The pending timers of a session, the next to fire first."""
        ...

    def pending(self) -> Awaitable[int]:
        """How many timers are pending in all."""
        ...

    def partitions(self) -> Sequence[int]:
        """The numbers of all partitions."""
        ...

"""What the handlers need from outside, no wider."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from libs.contracts.canonical import JSON
from libs.contracts.principals import AGENT
from libs.contracts.reasons import OperationState
from libs.contracts.tools import RunStep
from libs.runtime.publisher import Outgoing
from services.tools.domain import Action, Admitted, Outcome


@dataclass(frozen=True)
class Work:
    """A claimed operation, complete enough to be run and told of by whoever holds it."""

    session: str
    key: str
    operation: str
    tool: str
    args: Mapping[str, JSON]
    attempt: int
    owner: str
    context: "Told"
    keyed_from: int
    """When its key may first have been sent: of the claim, or of an earlier one that a look-up told of."""
    now: int
    """Store time of the claim, milliseconds (Unix)."""
    origin: str = ""
    """Kind, source and principal of the turn."""
    again: bool = False
    """An earlier attempt may have been sent with its key, of which a look-up found nothing: it may still arrive."""
    send_by: float = field(default=0.0, compare=False)
    """Monotonic time, in seconds, by which a send has to begin: after it the lease may be over, and another may hold
    the operation."""

    @property
    def member(self) -> str:
        """Its name within its partition."""
        return f"{self.session}:{self.key}"


@dataclass(frozen=True)
class Told:
    """What an answer needs of the message that it answers."""

    call: str = ""
    """Id of the message."""
    correlation: str = ""
    depth: int = 0
    trace: str = ""
    lab: bool = False
    observed: bool = False
    standing: str = ""
    """The standing approval that it runs under."""


@dataclass(frozen=True)
class Held:
    """Somebody else holds the key. `lease_until` and `now` in milliseconds (Unix), store time."""

    owner: str
    lease_until: int
    now: int
    call: str = ""


@dataclass(frozen=True)
class Delayed:
    """A pending operation whose holder is gone, and whose sends are paused. Times in milliseconds (Unix); `keyed_from`
    as of Work."""

    tool: str
    keyed_from: int
    now: int


@dataclass(frozen=True)
class Known:
    """The key has an answer: `state`, from the call `call` as `operation`."""

    state: OperationState
    result: JSON
    reason: str
    call: str
    operation: str
    attempt: int
    tool: str
    spent: bool = False
    """It failed, and its key is not released: it is never run again under it."""


@dataclass(frozen=True)
class Turned:
    """Not claimed, and nothing stored: `expired`, `conflict`, or `refused` by binding, cap or grant."""

    state: OperationState
    reason: str = ""
    code: str = field(default="", compare=False)
    """Which check said so (`door.CHECKS`)."""


@dataclass(frozen=True)
class Paused:
    """Not claimed, and nothing stored: `pause`, such as `tool:book`, stops its sends."""

    pause: str


class Stopped(Exception):
    """Nothing was sent, and nothing may be now: `reason` says why, `tool` what was to be called, `held` the operation
    where one was claimed for it, `wait` for how many seconds it is not worth a try."""

    def __init__(self, reason: str, tool: str = "", *, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tool = tool
        self.wait = wait
        self.held: Work | None = None


def _always() -> None:
    """Nothing stops it."""


@dataclass(frozen=True)
class Call:
    """What a connector is told. `key` is the destination's idempotency key, `timeout` in seconds."""

    session: str
    operation: str
    tool: str
    args: Mapping[str, JSON]
    key: str
    timeout: float
    own_key: str = ""
    """The operation's key within its session."""
    actor: str = AGENT
    """Who acts, from the sealed origin: what a destination is told in `Turnkeeper-Actor`."""
    repeat: bool = False
    """It may have been sent before with this key, and may have had its effect then."""
    before_send: Callable[[], None] = field(default=_always, compare=False, repr=False)
    """To be called right before whatever may reach the destination, and before each further try. Raises Stopped where
    sends are paused: what was sent nothing of passes it on, what was sent anything of never calls it again."""


class Connector(Protocol):
    """A way to the world. It never raises for what the world did; a cancelled or cut call is `Unknown`."""

    async def run(self, call: Call) -> Outcome:
        """Do it once."""
        ...


class Ledger(Protocol):
    """The operations in the store. Every method raises StoreAway when no answer came."""

    async def action(self, session: str, action: str) -> Action | None:
        """The action's record, or None."""
        ...

    async def owner(self, session: str) -> str:
        """The session's owner, "" for none."""
        ...

    async def claim(
        self, call: RunStep, step: Admitted, session: str, told: Told, *, lease_ms: int, now: int
    ) -> Work | Held | Known | Turned | Paused:
        """Claim the key, or say what is known of it, or what stops it."""
        ...

    async def take_over(
        self, session: str, key: str, *, gone: str, lease_ms: int, now: int, unsent: bool = False
    ) -> Work | Held | OperationState | Delayed:
        """Take a pending operation whose lease has ended, or whose holder is `gone`. While its sends are paused only
        where nothing will be sent (`unsent`)."""
        ...

    async def hand_back(self, work: Work, now: int, *, wait_ms: int = 0) -> None:
        """Give back what may have been sent before and must not be sent now: taken over later, after `wait_ms`."""
        ...

    async def record(
        self, work: Work, state: OperationState, result: JSON, reason: str, messages: Sequence[Outgoing], now: int,
        *, asked: bool = False,
    ) -> OperationState | None:  # fmt: skip
        """Store an outcome with its messages. None when it counts, else the state that stands instead."""
        ...

    async def begin_lookup(
        self, session: str, key: str, *, ask_ms: int, at_once: bool, now: int, asks: str = ""
    ) -> Work | int | OperationState:
        """Take the next look-up of an unknown operation, or when it is due, or the state of one that is known."""
        ...

    async def settle_lookup(
        self, work: Work, state: OperationState, result: JSON, reason: str, messages: Sequence[Outgoing], *,
        silent_ms: int, now: int, released_until: int = 0,
    ) -> str | None:  # fmt: skip
        """Store what the destination said. None when it counts, else the state that stands instead, or "early"."""
        ...

    async def read(self, session: str, key: str) -> dict[str, str]:
        """The fields of an operation as they are stored; none if it is absent."""
        ...

    async def withdraw(
        self, session: str, key: str, operation: str, not_after: int, call: str, messages: Sequence[Outgoing], now: int
    ) -> Known | None:
        """Leave a tombstone under an absent key. None when withdrawn, else what is known of it."""
        ...

    async def close(
        self, call: RunStep, step: Admitted, session: str, told: Told, state: OperationState, result: JSON, reason: str,
        messages: Sequence[Outgoing], now: int,
    ) -> bool:  # fmt: skip
        """Leave a tombstone under an absent key: it is never run. False where the key is known, and nothing changed."""
        ...

    async def answer(self, session: str, messages: Sequence[Outgoing], now: int, told: bytes = b"") -> None:
        """Queue messages that change no operation; `told` is the line of evidence of it."""
        ...

    def is_former_self(self, owner: str) -> bool:
        """Whether an owner token is of an earlier process of this very replica, which is gone."""
        ...


class Parking(Protocol):
    """Where calls wait for the end of a pause. Every method raises StoreAway when no answer came."""

    async def look(self) -> None:
        """Obey what is paused now."""
        ...

    async def stops(self, work: Work) -> bool:
        """Whether a claimed operation that was just stopped is stopped still, by what the store says now."""
        ...

    async def park(
        self, call: Outgoing, step: Admitted, session: str, messages: Sequence[Outgoing], now: int
    ) -> Literal["parked", "go", "full"]:
        """Keep a call until its pause ends, and tell that it waits. "go": it is paused no more."""
        ...

    async def release(
        self, work: Work, call: Outgoing, step: Admitted, messages: Sequence[Outgoing], now: int
    ) -> str | None:
        """Undo a claim of which nothing was sent, and keep its call. None when done, else the state that stands."""
        ...

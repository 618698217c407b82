"""What the handlers need from outside, no wider."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.contracts.canonical import JSON
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
    claimed_at: int
    now: int
    """Store time of the claim, milliseconds (Unix)."""
    origin: str = ""
    """Kind, source and principal of the turn."""

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


@dataclass(frozen=True)
class Held:
    """Somebody else holds the key. `lease_until` and `now` in milliseconds (Unix), store time."""

    owner: str
    lease_until: int
    now: int
    call: str = ""


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


@dataclass(frozen=True)
class Turned:
    """Not claimed, and nothing stored: `expired`, `conflict`, or `refused` by binding, cap or grant."""

    state: OperationState
    reason: str = ""


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
    ) -> Work | Held | Known | Turned:
        """Claim the key, or say what is known of it."""
        ...

    async def take_over(
        self, session: str, key: str, *, gone: str, lease_ms: int, now: int
    ) -> Work | Held | OperationState:
        """Take a pending operation whose lease has ended, or whose holder is `gone`."""
        ...

    async def record(
        self, work: Work, state: OperationState, result: JSON, reason: str, messages: Sequence[Outgoing], now: int,
        *, asked: bool = False,
    ) -> OperationState | None:  # fmt: skip
        """Store an outcome with its messages. None when it counts, else the state that stands instead."""
        ...

    async def begin_lookup(
        self, session: str, key: str, *, ask_ms: int, at_once: bool, now: int
    ) -> Work | int | OperationState:
        """Take the next look-up of an unknown operation, or when it is due, or the state of one that is known."""
        ...

    async def settle_lookup(
        self, work: Work, state: OperationState, result: JSON, reason: str, messages: Sequence[Outgoing], *,
        silent_ms: int, now: int,
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

    async def answer(self, session: str, messages: Sequence[Outgoing], now: int, told: bytes = b"") -> None:
        """Queue messages that change no operation; `told` is the line of evidence of it."""
        ...

    def is_former_self(self, owner: str) -> bool:
        """Whether an owner token is of an earlier process of this very replica, which is gone."""
        ...

"""Faults for tests: what may go wrong on purpose in a session that is marked as a trial, and at which call (§3.4).

Never part of a production configuration: a service that finds `faults:` does not start without TURNKEEPER_TRIALS=1.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from libs.contracts.canonical import JSON, canonical, digest
from libs.contracts.errors import ContractError
from libs.contracts.ids import Slug
from libs.contracts.principals import AGENT

FaultMode = Literal["timeout_before_commit", "timeout_after_commit", "error", "slow"]
"""`timeout_before_commit`: nothing is sent, the caller hears of a timeout. `timeout_after_commit`: it is done, and its
answer is lost: the caller hears the same. `error`: nothing is sent, the caller hears of a failure. `slow`: it is done,
and its answer comes late, beyond the tool's timeout as unknown."""
INJECTED = "injected"
"""What the reason of an injected fault begins with, wherever it is told."""
TIMEOUT = f"{INJECTED}: tool_upstream_timeout"
"""What a caller hears of a timeout: alike whether it was before or after the commit, as with a real one."""
ERROR = f"{INJECTED}: tool_upstream_error"


class Fault(BaseModel):
    """One fault, once: at the `on_call`-th call of an action. Which calls count, `args` may narrow down."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: str = Field(min_length=1, max_length=128)
    """Canonical: `collection.verb` for a tool that acts in the sandbox, else the tool's name; that is good for both."""
    args: dict[str, Any] = {}
    """Calls whose arguments have at least these: a text may hold `*` and `?`, anything else is compared as it is."""
    on_call: int = Field(1, ge=1, le=1_000_000)
    mode: FaultMode
    actor: Slug = AGENT
    """Whose calls count."""
    delay_seconds: float = Field(1.0, gt=0, le=600)
    """Of `slow`: so late the answer comes."""

    @field_validator("args")
    @classmethod
    def _is_json(cls, args: dict[str, Any]) -> dict[str, Any]:
        try:
            canonical(args)
        except ContractError as error:
            raise ValueError(f"not JSON: {error}") from error
        return args

    @property
    def selector(self) -> str:
        """What its calls are counted under: faults of the same calls share a counter."""
        return digest([self.actor, self.action, self.args])[:32]

    def selects(self, actions: Sequence[str], args: Mapping[str, JSON], actor: str) -> bool:
        """Whether such a call counts. `actions` are the names of what is called."""
        return self.action in actions and self.actor == actor and _has(args, self.args)


class Trial(BaseModel):
    """The mark of a trial: its faults, none too. The version changes with them, and calls count from one again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: tuple[Fault, ...] = Field((), max_length=100)
    version: str = ""

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> "Trial":
        """The mark for these faults."""
        return cls(faults=tuple(faults), version=digest([fault.model_dump() for fault in faults]))


def due(faults: Sequence[Fault], numbers: Mapping[str, int]) -> Fault | None:
    """The first fault whose call this is. `numbers`: selector → which call of it this one is."""
    return next((fault for fault in faults if numbers.get(fault.selector) == fault.on_call), None)


def _has(value: JSON, pattern: Any) -> bool:
    if isinstance(pattern, dict):
        return isinstance(value, Mapping) and all(name in value and _has(value[name], p) for name, p in pattern.items())
    if isinstance(pattern, str) and isinstance(value, str):
        return fnmatchcase(value, pattern)
    return canonical(value) == canonical(pattern)

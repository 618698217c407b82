"""When a tool is called at all, and when again: a circuit breaker and a budget of retries, as values of their time.

Times are seconds of any clock that does not go back.
"""

from dataclasses import dataclass
from typing import Literal

from libs.contracts.application import Breaker, Retries

Change = Literal["opened", "closed"]


@dataclass(frozen=True)
class Pass:
    """Leave to call. `probe`: the one call after a pause, on which it depends."""

    generation: int
    probe: bool = False


class Circuit:
    """Closed while calls go well. `failures` bad ones in a row open it for `pause` seconds; then one is let through,
    and closes it or opens it again.

    What a call that was begun before says afterwards counts no more once it has changed.
    """

    def __init__(self, configured: Breaker) -> None:
        self._most = configured.failures
        self._pause = configured.pause
        self._bad = 0
        self._generation = 0
        self._until: float | None = None
        self._probing = False
        self.why = ""
        """What the call said that opened it."""

    @property
    def is_open(self) -> bool:
        """Whether calls are turned away, or all but one."""
        return self._until is not None

    def enter(self, now: float) -> Pass | float:
        """Leave to call, or in how many seconds to try again (0: when the probe that is under way ends)."""
        if self._until is None:
            return Pass(self._generation)
        if now < self._until:
            return self._until - now
        if self._probing:
            return 0.0
        self._probing = True
        return Pass(self._generation, probe=True)

    def leave(self, given: Pass, *, bad: bool, why: str, now: float) -> Change | None:
        """What a call came to; whether that opened or closed the circuit."""
        if given.generation != self._generation:
            return None
        if not bad:
            self._bad = 0
            return self._change(None, "closed") if given.probe else None
        self._bad += 1
        if not given.probe and self._bad < self._most:
            return None
        self.why = why
        return self._change(now + self._pause, "opened")

    def give_back(self, given: Pass) -> None:
        """Nothing was called with it."""
        if given.probe and given.generation == self._generation:
            self._probing = False

    def _change(self, until: float | None, change: Change) -> Change:
        self._until, self._probing, self._bad = until, False, 0
        self._generation += 1
        return change


class Budget:
    """A token bucket: at most `budget` at once, and as many in each `per` seconds over the long run."""

    def __init__(self, configured: Retries, now: float) -> None:
        self._most = float(configured.budget)
        self._rate = configured.budget / configured.per
        self._tokens = self._most
        self._at = now

    def take(self, now: float) -> bool:
        """Whether there was a token; it is spent."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

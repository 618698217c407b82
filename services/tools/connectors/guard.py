"""Around any connector: its tool's circuit breaker, and retries of what provably was not sent."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from libs.contracts.application import Application, Tool
from services.tools.circuit import Budget, Change, Circuit, Pass
from services.tools.domain import Failed, NotSent, Outcome, Unknown, of_repeat
from services.tools.metrics import ToolMetrics
from services.tools.ports import Call, Connector, Stopped

log = structlog.get_logger(__name__)

PROBED_AGAIN_SECONDS = 1.0
"""While one call tries a destination, the others of its tool that must be sent again wait so long."""
_LEAST_SHARE = 0.1
"""Of a call's time: with less left it is not tried again."""


class Teller(Protocol):
    """Tells operators that a tool's circuit opened or closed."""

    async def __call__(self, call: Call, change: Change, reason: str) -> None:
        """May fail: the outcome of the call does not wait for it."""
        ...


class Guard:
    """One tool's connector in its guard. Each replica keeps its own: it knows what it saw."""

    def __init__(
        self,
        name: str,
        tool: Tool,
        connector: Connector,
        metrics: ToolMetrics,
        tell: Teller,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._tool = tool
        self._connector = connector
        self._metrics = metrics
        self._tell = tell
        self._now = now
        self._circuit = Circuit(tool.breaker) if tool.breaker else None
        self._budget = Budget(tool.retries, now()) if tool.retries else None
        self._telling: set[asyncio.Task[None]] = set()

    async def run(self, call: Call) -> Outcome:
        """Do it once, unless the tool is given a pause: then it failed, not sent. Raises Stopped then for what may have
        been sent before."""
        outcome = await self._run(call)
        return of_repeat(outcome) if call.repeat else outcome

    async def _run(self, call: Call) -> Outcome:
        if self._circuit is None:
            return await self._tried(call)
        entered = self._circuit.enter(self._now())
        if not isinstance(entered, Pass):
            paused = self._paused(self._circuit, entered)
            if call.repeat:
                # Failed would be told as unknown, to which a person has to look; sent again later, it has an end.
                raise Stopped(paused, call.tool, wait=entered or PROBED_AGAIN_SECONDS)
            return Failed(paused)
        try:
            outcome = await self._tried(call)
        except Stopped:
            self._circuit.give_back(entered)
            raise
        except BaseException as ended:
            # Cancelled by its time-out, or broken: whoever runs it will say unknown.
            self._leave(self._circuit, entered, call, bad=True, why=f"it ended with {type(ended).__name__}")
            raise
        bad = isinstance(outcome, Failed | Unknown)
        self._leave(self._circuit, entered, call, bad=bad, why=outcome.reason if bad else "")  # type: ignore[union-attr]
        return outcome

    async def _tried(self, call: Call) -> Outcome:
        """Call, and call again while nothing was sent and there is time and budget."""
        until = self._now() + call.timeout
        retries = self._tool.retries
        outcome = await self._connector.run(call)
        for attempt in range(retries.times if retries else 0):
            if not isinstance(outcome, NotSent):
                return outcome
            wait = retries.wait * 2**attempt * random.uniform(0.5, 1.0)  # type: ignore[union-attr]  # noqa: S311 - jitter
            left = until - self._now() - wait
            if left < call.timeout * _LEAST_SHARE:
                return outcome
            if self._budget is None or not self._budget.take(self._now()):
                self._metrics.retried(self._name, "budget_spent")
                return NotSent(f"{outcome.reason}; the tool's budget of retries is spent")
            self._metrics.retried(self._name, "retried")
            await asyncio.sleep(wait)
            outcome = await self._connector.run(replace(call, timeout=left))
        return outcome

    def _paused(self, circuit: Circuit, wait: float) -> str:
        when = f"in {wait:.3g} s" if wait else "when the call that tries it has ended"
        return f"not sent: {self._name} has a pause after failures in a row (last: {circuit.why}); tried again {when}"

    def _leave(self, circuit: Circuit, entered: Pass, call: Call, *, bad: bool, why: str) -> None:
        change = circuit.leave(entered, bad=bad, why=why, now=self._now())
        if change is None:
            return
        self._metrics.circuit(self._name, is_open=circuit.is_open)
        log.warning("circuit.changed", tool=self._name, change=change, reason=why)
        telling = asyncio.create_task(self._told(call, change, why))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _told(self, call: Call, change: Change, why: str) -> None:
        try:
            await self._tell(call, change, why)
        except Exception as error:
            log.warning("circuit.not_told", tool=self._name, change=change, error=repr(error)[:300])


def guarded(
    application: Application, connectors: Mapping[str, Connector], metrics: ToolMetrics, tell: Teller
) -> dict[str, Connector]:
    """Every connector in its tool's guard. The runtime's own timers need none."""
    return {
        name: connector
        if application.tools[name].connector.timer is not None
        else Guard(name, application.tools[name], connector, metrics, tell)
        for name, connector in connectors.items()
    }

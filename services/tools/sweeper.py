"""What happens without a message: leases that ended are taken over, unknown operations asked about and
counted, old ones trimmed."""

import asyncio

import structlog

from libs.runtime.clock import Clock
from services.tools.execution import Executor
from services.tools.lookups import Reconciler
from services.tools.metrics import ToolMetrics
from services.tools.store import RedisLedger

log = structlog.get_logger(__name__)

LIMIT = 64
_AT_ONCE = 32


class Sweeper:
    """Runs in every replica: each move is one script that only one of them can win."""

    def __init__(
        self, ledger: RedisLedger, executor: Executor, reconciler: Reconciler, metrics: ToolMetrics, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._executor = executor
        self._reconciler = reconciler
        self._metrics = metrics
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def take_over_ended(self) -> None:
        """Finish what a holder that is gone left pending. What this process is at work on is left to it. One that
        fails does not stop the others."""
        due = await self._ledger.due("lease", self._clock.now_ms(), LIMIT)
        mine = self._executor.holding
        others = [member for member in due if f"{member[0]}:{member[1]}" not in mine]
        done = await asyncio.gather(*(self._take_over(*member) for member in others), return_exceptions=True)
        for failed in done:
            if isinstance(failed, Exception):
                log.warning("lease.postponed", error=repr(failed)[:300])

    async def reconcile(self) -> None:
        """Ask about what is unknown and due. One that fails does not stop the others."""
        due = await self._ledger.due("lookup", self._clock.now_ms(), LIMIT)
        done = await asyncio.gather(*(self._reconciler.reconcile(*member) for member in due), return_exceptions=True)
        for failed in done:
            if isinstance(failed, Exception):
                log.warning("lookup.postponed", error=repr(failed)[:300])

    async def ask_about_all(self) -> None:
        """Have every unknown operation asked about that can be: also one from before its tool had a look-up."""
        now = self._clock.now_ms()
        for session, key in await self._ledger.members("unknown"):
            if self._reconciler.can_ask((await self._ledger.read(session, key)).get("tool", "")):
                await self._ledger.ask_again(session, key, now)

    async def trim(self) -> None:
        """Leave tombstones of operations whose `not_after` is past."""
        now = self._clock.now_ms()
        await asyncio.gather(
            *(self._ledger.trim(*member, now) for member in await self._ledger.due("trim", now, LIMIT))
        )

    async def count_unknown(self) -> None:
        """Set the gauge to page on, from the store."""
        self._metrics.unknown.set(await self._ledger.unknown_count())

    async def _take_over(self, session: str, key: str) -> None:
        tool = (await self._ledger.read(session, key)).get("tool", "")
        async with self._slots:
            state = await self._executor.take_over(session, key, tool=tool)
        log.info("lease.ended", session=session, key=key, state=state)

"""What happens to an action when nobody does anything: its question expires, its grant lapses."""

import asyncio
from collections.abc import Callable
from typing import Literal

import structlog

from libs.contracts.consent import ActionClosed
from services.consent.domain import Record
from services.consent.metrics import ConsentMetrics
from services.consent.ports import Actions, Emit

log = structlog.get_logger(__name__)

_BECOMES: dict[str, Literal["expired", "lapsed"]] = {"expiry": "expired", "grant": "lapsed"}
_WHY = {"expired": "nobody decided in time", "lapsed": "the grant was not used up in time"}


class Sweeper:
    """Every replica sweeps every partition: the scripts let each action be closed once, whoever comes first."""

    def __init__(
        self,
        actions: Actions,
        metrics: ConsentMetrics,
        emit_for: Callable[[str, Record | None], Emit],
        nonce: Callable[[], str],
    ) -> None:
        self._actions = actions
        self._metrics = metrics
        self._emit_for = emit_for
        self._nonce = nonce

    async def sweep(self) -> None:
        """Close what is past its time. Telling the truth does not depend on it: redeeming checks the time itself."""
        now = await self._actions.now()
        for which in ("expiry", "grant"):
            due = await self._actions.overdue(which, now)
            await asyncio.gather(*(self._close(session, action, _BECOMES[which]) for session, action in due))

    async def _close(self, session: str, action: str, to: Literal["expired", "lapsed"]) -> None:
        glance = await self._actions.glance(session, action)
        closed = ActionClosed(action=action, state=to, reason=_WHY[to])
        message = self._emit_for(session, glance.record)(closed, action, to)
        answer = await self._actions.close(
            session, action, to, attempt=self._nonce(), reason=_WHY[to], messages=[message]
        )
        if answer.tag == "closed":
            if to == "expired":
                self._metrics.actions.labels("expired").inc()
            log.info("action.closed", session=session, action=action, state=to)

    async def measure(self) -> None:
        """Set the gauge of open questions from the store."""
        self._metrics.pending.set(await self._actions.pending())

"""Timers: set and stopped by messages, fired when they are due. Every replica looks for due ones; the store decides."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import structlog

from libs.contracts.canonical import digest
from libs.contracts.errors import StoreAway
from libs.contracts.ingress import SetTimer, StopTimer, TimerSkipped
from libs.contracts.origin import SealKeys, attestation_is_valid
from libs.runtime.composer import Composer
from libs.runtime.consumer import Context
from libs.runtime.settle import Outcome
from services.ingress.inbox import Inbox
from services.ingress.metrics import IngressMetrics
from services.ingress.misfire import Move, Timer, fired_event, first_instant, next_move
from services.ingress.ports import Appended, Refused, TimerEnd, Timers, TimerSet

log = structlog.get_logger(__name__)

PAGE = 256
"""So many due timers of a partition are read at once."""
MOST_PAGES = 16
MOST_MOVES = 64
"""So many steps of one timer in one round; the rest is due in the next."""
Now = Callable[[], Awaitable[int]]
"""The time in milliseconds (Unix). The store's, since a replica's own clock may be ahead or behind."""


class TimerHandler:
    """Takes the door's word about timers, and the session's that one of its own is moot."""

    def __init__(self, store: Timers, now: Now, seal_keys: SealKeys, metrics: IngressMetrics, *, cap: int) -> None:
        """`cap`: most timers that a session may have pending."""
        self._store = store
        self._now = now
        self._seal_keys = seal_keys
        self._metrics = metrics
        self._cap = cap

    async def on_set_timer(self, message: SetTimer, ctx: Context) -> Outcome:
        """Set a timer, once. One that cannot be set is told to its session and counted."""
        session = ctx.envelope.session
        fields = message.attested(session)
        # The session service may write to this queue too and must not be able to set a timer (G3).
        if not attestation_is_valid(self._seal_keys, message.attestation, *fields):
            return self._forged(message.timer, session)
        now = await self._now()
        # What a timer fires was caused by the turn that set it: a timer that sets a timer is a loop like any other.
        timer = Timer.of(message, session, digest=digest(list(fields)), depth=ctx.envelope.depth + 1, now=now)
        first = first_instant(timer, now=now, horizon_ms=self._store.horizon_ms)
        reason = first if isinstance(first, str) else "too_many_timers"
        told = TimerSkipped(timer=timer.timer, instant=first if isinstance(first, int) else timer.due, reason=reason)
        refusal = ctx.emit(told, timer.timer, "refused")
        timer = replace(timer, next=first) if isinstance(first, int) else timer
        done = await self._store.set(timer, refusal, self._cap, now)
        return self._set(done, timer, reason)

    def _set(self, done: TimerSet, timer: Timer, reason: str) -> Outcome:
        match done:
            case TimerSet.SET:
                self._metrics.timers("set")
                return Outcome.HANDLED
            case TimerSet.KNOWN:
                return Outcome.REPEATED
            case _:
                why = "no_session" if done is TimerSet.ABSENT else reason
                self._metrics.timers("too_many" if why == "too_many_timers" else "refused")
                log.warning("timer.refused", session=timer.session, timer=timer.timer, reason=why)
                return Outcome.REFUSED

    async def on_stop_timer(self, message: StopTimer, ctx: Context) -> Outcome:
        """End a timer. Without an attestation it is the session's word, which is good for its own timers alone: the
        timer is looked for in the envelope's session."""
        session = ctx.envelope.session
        attested = bool(message.attestation)
        if attested and not attestation_is_valid(self._seal_keys, message.attestation, *message.attested(session)):
            return self._forged(message.timer, session)
        end = TimerEnd.STOPPED if attested else TimerEnd.SUPERSEDED
        if not await self._store.stop(session, message.timer, end):
            return Outcome.REPEATED
        self._metrics.timers("stopped" if attested else "superseded")
        log.info("timer.stopped", session=session, timer=message.timer, how=str(end), reason=message.reason)
        return Outcome.HANDLED

    def _forged(self, timer: str, session: str) -> Outcome:
        self._metrics.timers("forged")
        log.error("timer.forged", session=session, timer=timer)
        return Outcome.REFUSED


class TimerSweep:
    """Fires what is due. Each is one round, called again and again; several replicas may do the same at once."""

    def __init__(
        self, store: Timers, now: Now, inbox: Inbox, composer: Composer, metrics: IngressMetrics, *, grace_ms: int
    ) -> None:
        """`grace_ms`: an instant that is later than this counts as missed."""
        self._store = store
        self._now = now
        self._inbox = inbox
        self._composer = composer
        self._metrics = metrics
        self._grace_ms = grace_ms

    async def sweep(self) -> None:
        """Every due timer, by its misfire rule. Raises StoreAway; what one partition has lost does not stop others."""
        now = await self._now()
        await asyncio.gather(*(self._partition(number, now) for number in self._store.partitions()))
        self._metrics.timers_pending.set(await self._store.pending())

    async def _partition(self, partition: int, now: int) -> None:
        for _ in range(MOST_PAGES):
            try:
                names = await self._store.due(partition, now, PAGE)
            except StoreAway as away:
                log.warning("timers.postponed", partition=partition, error=str(away))
                return
            sessions: dict[str, list[str]] = {}
            for session, timer in names:
                sessions.setdefault(session, []).append(timer)
            # One after another in a session, in the order in which they are due; sessions side by side.
            moved = await asyncio.gather(*(self._session(session, own, now) for session, own in sessions.items()))
            if len(names) < PAGE or not any(moved):
                return

    async def _session(self, session: str, timers: list[str], now: int) -> bool:
        """Whether any of them moved."""
        moved = False
        for name in timers:
            try:
                moved = await self._timer(session, name, now) or moved
            except StoreAway as away:
                log.warning("timer.postponed", session=session, timer=name, error=str(away))
                return moved
            except Exception:
                log.exception("timer.passed_over", session=session, timer=name)
        return moved

    async def _timer(self, session: str, name: str, now: int) -> bool:
        """Do all that is due of one timer. Whether it moved, so that it is not found again at the same instant."""
        try:
            timer = await self._store.load(session, name)
        except (ValueError, TypeError):
            log.exception("timer.unreadable", session=session, timer=name)
            return await self._store.stop(session, name, TimerEnd.UNREADABLE)
        moved = timer is None
        for _ in range(MOST_MOVES):
            move = next_move(timer, now=now, grace_ms=self._grace_ms) if timer is not None else None
            if timer is None or move is None:
                break
            if not await (self._skip(timer, move, now) if move.reason else self._fire(timer, move, now)):
                return moved
            moved = True
            timer = replace(timer, next=move.next) if move.next is not None else None
        return moved

    async def _fire(self, timer: Timer, move: Move, now: int) -> bool:
        """Append the instant and move the timer on, in one write. False when somebody else was faster."""
        event = fired_event(timer, move, now=now)
        placed = await self._inbox.append(event, timer.session, partial(self._store.fire, timer, move))
        if isinstance(placed, Appended):
            self._metrics.timers("fired")
            log.info("timer.fired", session=timer.session, timer=timer.timer, input=event.id, late=now - move.last)
            return True
        if placed is Refused.ABSENT:
            self._metrics.timers("refused")
            log.warning("timer.refused", session=timer.session, timer=timer.timer, reason="no_session")
        return False

    async def _skip(self, timer: Timer, move: Move, now: int) -> bool:
        """Pass over instants and tell the session, in one write. False when somebody else was faster."""
        told = TimerSkipped(timer=timer.timer, instant=move.first, reason=move.reason, count=move.count)
        message = self._composer.compose(
            told, session=timer.session, id_parts=(timer.timer, move.first, move.reason), depth=timer.depth
        )
        if not await self._store.skip(timer, move, message, now):
            return False
        self._metrics.timers("skipped", move.count)
        log.warning("timer.skipped", session=timer.session, timer=timer.timer, reason=move.reason, count=move.count)
        return True

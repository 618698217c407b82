"""Timers in Redis: every script about them as a typed call. All of it lies in the partition of the timer's session."""

import asyncio
from collections.abc import Sequence

import structlog

from libs.contracts.errors import StoreAway
from libs.contracts.keys import DAY_MS, Keys
from libs.runtime.batch import Arg, Store
from libs.runtime.evidence import evidence_args, evidence_keys
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script
from services.ingress import evidence
from services.ingress.domain import Event
from services.ingress.misfire import Move, Timer
from services.ingress.ports import Appended, Limits, Placement, Refused, TimerEnd, TimerSet, Waiting

log = structlog.get_logger(__name__)

_PACKAGE = "services.ingress"
_SET = load_script(_PACKAGE, "set_timer")
_STOP = load_script(_PACKAGE, "stop_timer")
_SKIP = load_script(_PACKAGE, "skip_instants")
_FIRE = load_script(_PACKAGE, "fire_timer")
TOMBSTONE_MS = 7 * DAY_MS
"""So long an ended timer is remembered: a copy of what set it that comes later would set it again."""


class TimerStore:
    """All that ingress reads and writes of timers. Every method may raise StoreAway."""

    def __init__(self, store: Store, keys: Keys, outbox: Outbox, limits: Limits) -> None:
        self._store = store
        self._keys = keys
        self._outbox = outbox
        self._limits = limits

    @property
    def horizon_ms(self) -> int:
        """How long a session lives after its last input."""
        return self._limits.session_ttl_ms

    async def time(self) -> int:
        """The store's time in milliseconds (Unix): the one clock that all replicas share."""
        seconds, micros = await self._store.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def set(self, timer: Timer, refusal: Outgoing, cap: int, now: int) -> TimerSet:
        """Set it, once; with `next` 0, or with `cap` timers pending, it is refused and its session told."""
        keys = self._keys
        reply = await self._store.run(
            _SET,
            [
                *self._timer(timer.session, timer.timer),
                keys.of_session("owner", timer.session),
                *self._outbox.keys(timer.session),
            ],
            [
                now,
                timer.session,
                timer.timer,
                timer.pack(),
                timer.next or "",
                cap,
                self._life(timer.next, now),
                TOMBSTONE_MS,
                *self._outbox.args([refusal]),
            ],
        )
        if reply.tag == "refused":
            self._outbox.post(timer.session, [refusal])
        return TimerSet(reply.tag)

    async def stop(self, session: str, timer: str, end: TimerEnd) -> bool:
        """End it, also before it is set. False when it had ended before."""
        reply = await self._store.run(_STOP, self._timer(session, timer), [session, timer, end, TOMBSTONE_MS])
        return reply.tag != "known"

    async def skip(self, timer: Timer, move: Move, told: Outgoing, now: int) -> bool:
        """Pass over the instants of a move. False when somebody else was faster."""
        args: list[Arg] = [now, timer.session, timer.timer, timer.next, _text(move.next), move.count]
        reply = await self._store.run(
            _SKIP,
            [*self._timer(timer.session, timer.timer), *self._outbox.keys(timer.session)],
            [
                *args,
                self._life(move.next or 0, now),
                TOMBSTONE_MS,
                self._limits.outbox_limit,
                *self._outbox.args([told]),
            ],
        )
        if reply.tag == "full":
            raise StoreAway("the outbox is above its bound", retry_after=2.0)
        if reply.tag == "skipped":
            self._outbox.post(timer.session, [told])
        return reply.tag == "skipped"

    async def fire(
        self,
        timer: Timer,
        move: Move,
        event: Event,
        session: str,
        packed: bytes,
        number: int,
        doorbell: Outgoing,
        now: int,
    ) -> Placement:
        """Give an instant this number in its session's inbox and move the timer on, in one write."""
        keys = self._keys
        reply = await self._store.run(
            _FIRE,
            [
                *self._timer(session, timer.timer),
                keys.of_session("owner", session),
                keys.of_session("number", session),
                keys.of_session("inbox", session),
                keys.outcome_bucket(session, event.id, event.accepted_at),
                keys.of_session_partition("sessions", session),
                *self._outbox.keys(session),
                keys.of_session("waiting", session),
                *evidence_keys(keys, session),
            ],
            [
                now,
                session,
                timer.timer,
                timer.next,
                _text(move.next),
                self._life(move.next or 0, now),
                TOMBSTONE_MS,
                event.id,
                packed,
                number,
                self._limits.session_ttl_ms,
                event.window_ms + 2 * DAY_MS,
                self._limits.outbox_limit,
                *self._outbox.args([doorbell]),
                *evidence_args(session, evidence.appended(packed, event.mark)),
            ],
        )
        match reply.tag:
            case "appended" | "already":
                return Appended(reply.int(0), new=reply.tag == "appended")
            case "number":
                return Waiting(reply.int(0))
            case "full":
                raise StoreAway("the outbox is above its bound", retry_after=2.0)
            case tag:
                return Refused(tag)

    async def due(self, partition: int, until: int, limit: int) -> list[tuple[str, str]]:
        """(session, timer) of those due up to `until` (ms), the longest due first, of one partition."""
        index = self._keys.in_partition("timers", partition)
        names = await self._store.command("ZRANGEBYSCORE", index, "-inf", until, "LIMIT", 0, limit)
        return [_pair(name) for name in names]

    async def load(self, session: str, timer: str) -> Timer | None:
        """A pending timer, or None. One whose facts have expired, with its session, is taken out of the indexes."""
        found = await self._store.command("HMGET", self._timer(session, timer)[0], "state", "def", "next", *_COUNTS)
        state, packed, instant, *counts = found
        if state is None:
            await self._unlist(session, timer)
        if state != b"pending":
            return None
        fired, skipped = (int(count or 0) for count in counts)
        return Timer.unpack(packed, next=int(instant), fired=fired, skipped=skipped)

    async def of_session(self, session: str) -> list[Timer]:
        """The pending timers of a session, the next to fire first."""
        names = await self._store.command("ZRANGE", self._keys.of_session("pendingtimers", session), 0, -1)
        found = await asyncio.gather(*(self.load(session, name.decode()) for name in names))
        return [timer for timer in found if timer is not None]

    async def pending(self) -> int:
        """How many timers are pending in all."""
        indexes = [self._keys.in_partition("timers", number) for number in self.partitions()]
        return sum(await asyncio.gather(*(self._store.command("ZCARD", index) for index in indexes)))

    def partitions(self) -> Sequence[int]:
        """The numbers of all partitions."""
        return range(self._keys.partitions)

    async def _unlist(self, session: str, timer: str) -> None:
        _, due, pending = self._timer(session, timer)
        await asyncio.gather(
            self._store.command("ZREM", due, f"{session} {timer}"), self._store.command("ZREM", pending, timer)
        )

    def _timer(self, session: str, timer: str) -> list[str]:
        """The three keys of a timer: its hash, the partition's index, its session's."""
        keys = self._keys
        return [
            keys.of_session("timer", session, timer),
            keys.of_session_partition("timers", session),
            keys.of_session("pendingtimers", session),
        ]

    def _life(self, instant: int, now: int) -> int:
        """Beyond its next instant as long as a session lives: what comes late is still found."""
        return max(instant - now, 0) + self._limits.session_ttl_ms


_COUNTS = ("fired", "skipped")


def _text(instant: int | None) -> Arg:
    return "" if instant is None else instant


def _pair(name: bytes) -> tuple[str, str]:
    session, _, timer = name.decode().partition(" ")
    return session, timer

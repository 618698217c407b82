"""What was committed leaves: sent at once, forgotten after its confirm, sent again by the relay after a crash (G8)."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import structlog

from libs.contracts.errors import BrokerAway, StoreAway
from libs.contracts.keys import Keys
from libs.runtime.batch import Arg, Store
from libs.runtime.clock import Clock
from libs.runtime.metrics import RuntimeMetrics
from libs.runtime.publisher import Outgoing, Publisher

log = structlog.get_logger(__name__)

FORGET_SECONDS = 0.5
"""So long confirms are collected: forgetting must not cost the store a round trip of its own for each message."""
RELAY_AFTER_MS = 2_000
RELAY_BATCH = 256


class Outbox:
    """One service's outbox: a hash of messages and their times in each partition."""

    def __init__(
        self, service: str, store: Store, publisher: Publisher, keys: Keys, clock: Clock, metrics: RuntimeMetrics
    ) -> None:
        self._service = service
        self._store = store
        self._publisher = publisher
        self._keys = keys
        self._clock = clock
        self._metrics = metrics
        self._in_flight: set[str] = set()
        self._confirmed: dict[int, list[str]] = defaultdict(list)
        self._failed: dict[int, list[str]] = defaultdict(list)
        self._lying_since: dict[tuple[int, str], float] = {}
        """When what was moved back came into the outbox, as far as known: for the metric alone."""
        self._forget = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def keys(self, session: str) -> list[str]:
        """The two keys that a script needs for `outbox_add`."""
        return list(self._keys.outbox(self._service, self._keys.partition(session)))

    @staticmethod
    def args(messages: Sequence[Outgoing]) -> list[Arg]:
        """The arguments for `outbox_add`: a count, then pairs. They go at the end of ARGV."""
        flat: list[Arg] = [len(messages)]
        for message in messages:
            flat += (message.id, message.pack())
        return flat

    def post(self, session: str, messages: Sequence[Outgoing]) -> None:
        """Send committed messages in the background. Call it only after their commit was confirmed (G8)."""
        self._post(self._keys.partition(session), messages)

    def _post(self, partition: int, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            if message.id in self._in_flight:
                continue
            self._in_flight.add(message.id)
            self._idle.clear()
            self._publisher.send(message).add_done_callback(
                lambda sent, id=message.id: self._sent(partition, id, sent)  # type: ignore[misc]
            )

    def _sent(self, partition: int, id: str, sent: "asyncio.Future[None]") -> None:
        if sent.cancelled() or sent.exception() is not None:
            self._failed[partition].append(id)
            self._forget.set()
            return
        self._confirmed[partition].append(id)
        self._forget.set()

    def _done(self, id: str) -> None:
        self._in_flight.discard(id)
        if not self._in_flight:
            self._idle.set()

    async def serve(self) -> None:
        """Forget what was confirmed and move back what failed, many at once, until cancelled."""
        while True:
            await self._forget.wait()
            await asyncio.sleep(FORGET_SECONDS)
            self._forget.clear()
            confirmed, self._confirmed = self._confirmed, defaultdict(list)
            failed, self._failed = self._failed, defaultdict(list)
            await asyncio.gather(
                *(self._forget_in(partition, ids) for partition, ids in confirmed.items()),
                *(self._move_back(partition, ids) for partition, ids in failed.items()),
            )

    async def _move_back(self, partition: int, ids: list[str]) -> None:
        """Behind all others: the relay looks at the oldest ones, and those that fail must not hide the rest."""
        _, due = self._keys.outbox(self._service, partition)
        now = self._clock.now_ms()
        try:
            await self._store.command("ZADD", due, "XX", *(part for id in ids for part in (now, id)))
        except StoreAway:
            log.warning("outbox.not_moved_back", count=len(ids))  # it stays where it is, and is sent again
        except Exception:
            log.exception("outbox.not_moved_back", count=len(ids))
        for id in ids:
            self._lying_since.setdefault((partition, id), now)
            self._done(id)

    async def _forget_in(self, partition: int, ids: list[str]) -> None:
        messages, due = self._keys.outbox(self._service, partition)
        try:
            # The body first: a time without a body is cleared by the relay, a body without a time by nobody.
            await asyncio.gather(self._store.command("HDEL", messages, *ids), self._store.command("ZREM", due, *ids))
        except StoreAway:
            log.warning("outbox.not_forgotten", count=len(ids))  # the relay sends them again: receivers know them
        except Exception:
            log.exception("outbox.not_forgotten", count=len(ids))
        for id in ids:
            self._lying_since.pop((partition, id), None)
            self._done(id)

    async def relay(self) -> None:
        """One round: send what lies longer than two seconds, and measure what lies at all."""
        try:
            rows = await asyncio.gather(*(self._relay_in(number) for number in range(self._keys.partitions)))
        except (StoreAway, BrokerAway):
            return
        self._metrics.outbox_pending.labels(self._service).set(sum(pending for pending, _ in rows))
        oldest = min((at for _, at in rows if at is not None), default=None)
        if (moved := await self._oldest_moved()) is not None:
            oldest = moved if oldest is None else min(oldest, moved)
        age = 0.0 if oldest is None else max(0.0, (self._clock.now_ms() - oldest) / 1000)
        self._metrics.outbox_oldest.labels(self._service).set(age)

    async def _oldest_moved(self) -> float | None:
        """The time of the oldest message that was moved back and still lies; another replica may have sent it."""
        while self._lying_since:
            (partition, id), at = min(self._lying_since.items(), key=lambda item: item[1])
            _, due = self._keys.outbox(self._service, partition)
            try:
                score = await self._store.command("ZSCORE", due, id)
            except StoreAway:
                return at
            if score is not None:
                return at
            self._lying_since.pop((partition, id), None)
        return None

    async def _relay_in(self, partition: int) -> tuple[int, float | None]:
        _, due = self._keys.outbox(self._service, partition)
        head = await self._store.command("ZRANGE", due, 0, RELAY_BATCH - 1, "WITHSCORES")
        if not head:
            return 0, None
        pending = int(await self._store.command("ZCARD", due))
        times = [(id.decode(), float(at)) for id, at in _pairs(head)]
        late = self._clock.now_ms() - RELAY_AFTER_MS
        again = [(id, at) for id, at in times if at <= late and id not in self._in_flight]
        for id, at in again:
            self._lying_since.setdefault((partition, id), at)
        await self._resend(partition, [id for id, _ in again])
        return pending, times[0][1]

    async def _resend(self, partition: int, ids: list[str]) -> None:
        if not ids:
            return
        messages, due = self._keys.outbox(self._service, partition)
        bodies = await self._store.command("HMGET", messages, *ids)
        gone = [id for id, body in zip(ids, bodies, strict=True) if body is None]
        if gone:
            await self._store.command("ZREM", due, *gone)
        for id in gone:
            self._lying_since.pop((partition, id), None)
        left = [Outgoing.unpack(id, body) for id, body in zip(ids, bodies, strict=True) if body is not None]
        if left:
            log.info("outbox.relayed", partition=partition, count=len(left))
            self._post(partition, left)

    async def drained(self) -> None:
        """Return when nothing that this process sent is without an answer."""
        await self._idle.wait()


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))

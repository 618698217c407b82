"""What goes on by itself: the relay of what was admitted and not appended, releases, and expiry."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import structlog

from libs.contracts.errors import StoreAway
from services.ingress.admission import Admissions
from services.ingress.deliveries import Log
from services.ingress.domain import Event
from services.ingress.ports import Clock, Queues

log = structlog.get_logger(__name__)

RELAY_AFTER_MS = 2_000
RELAY_BATCH = 64
RELAY_PAGES = 16
"""So many batches of each shard in one round."""
QUARANTINE_KEPT_MS = 30 * 86_400_000


class _Faults:
    """Lets a sweep go on over what raises, and tells of it once a round. StoreAway goes through: all would raise it."""

    def __init__(self, sweep: str) -> None:
        self._sweep = sweep
        self._first: tuple[str, Exception] | None = None
        self._count = 0

    def __enter__(self) -> "_Faults":
        return self

    def __exit__(self, *_: object) -> None:
        if self._first is not None:
            name, fault = self._first
            log.error("sweep.passed_over", sweep=self._sweep, count=self._count, first=name, exc_info=fault)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is done for one of them."""
        try:
            yield
        except StoreAway:
            raise
        except Exception as fault:
            self._count += 1
            self._first = self._first or (name, fault)


class Releases:
    """Brings what was held to its session, in the order in which it came."""

    def __init__(self, store: Queues, admissions: Admissions) -> None:
        self._store = store
        self._admissions = admissions

    async def subject(self, subject: str, session: str) -> int:
        """Append all that is held for a registered subject; how many. Raises StoreAway."""
        count = 0
        while events := (await self._store.held(subject))[0]:
            for event in events:
                # In the inbox first: a crash in between appends it again, which changes nothing.
                if (await self._admissions.into_session(event, session)).where == "full":
                    return count  # the session is gone and enough wait for it: this one keeps its place
                await self._store.release_held(subject, event)
            count += len(events)
        if count:
            log.info("held.released", session=session, count=count)
        return count

    async def session(self, session: str) -> int:
        """Append all that waits for a session that was made; how many. Raises StoreAway."""
        count = 0
        while events := await self._store.waiting(session):
            for event in events:
                if (await self._admissions.into_session(event, session)).where in ("held", "full"):
                    return count  # the session is gone again; what waits keeps its deadline
            count += len(events)
        if count:
            log.info("waiting.released", session=session, count=count)
        return count


class Sweepers:
    """Each is one round, called again and again; several replicas may do the same at once."""

    def __init__(self, store: Queues, admissions: Admissions, releases: Releases, ring: Log, clock: Clock) -> None:
        self._store = store
        self._admissions = admissions
        self._releases = releases
        self._ring = ring
        self._clock = clock
        self._relayed = 0
        """How many of each shard the relay has passed by."""

    async def relay(self) -> None:
        """Finish what was admitted and not appended: its process died, or the store was away in between (G1).

        What cannot be finished now is passed by, so that it keeps nobody behind it from being found.
        """
        postponed: list[str] = []
        with _Faults("relay") as faults:
            before, offset = self._clock.now_ms() - RELAY_AFTER_MS, 0
            for _ in range(RELAY_PAGES):
                events, more = await self._store.admitted_before(before, RELAY_BATCH, self._relayed + offset)
                for event in sorted(events, key=lambda event: event.accepted_at):
                    with faults.of(event.id):
                        if not await self._relay(event):
                            postponed.append(event.id)
                offset += RELAY_BATCH
                if not more:
                    break
            # The next round goes on where this one ended, and begins anew once it has seen all.
            self._relayed = self._relayed + offset if more else 0
        if postponed:
            log.warning("admitted.postponed", count=len(postponed), first=postponed[0])

    async def _relay(self, event: Event) -> bool:
        """Whether this one is finished."""
        now = self._clock.now_ms()
        try:
            placed = await self._admissions.place(event)
            if placed.where == "full":
                if event.deadline > now:
                    return False
                await self._admissions.expire(event)
                self._tell(event, event.where, now)
                return True
        except StoreAway:
            return False  # one partition above its bound must not stop the others
        log.info("admitted.relayed", input=event.id, source=event.source, where=placed.where)
        return True

    async def held(self) -> None:
        """Subjects that are due: release what was registered meanwhile, let the rest expire."""
        with _Faults("held") as faults:
            for subject in await self._store.held_subjects(self._clock.now_ms()):
                with faults.of(subject):
                    session = await self._store.session_of(subject)
                    if session is not None:
                        await self._each(self._releases.subject(subject, session))
                    await self._expire_held(subject)

    async def _expire_held(self, subject: str) -> None:
        now = self._clock.now_ms()
        live, expired = await self._store.held(subject)
        for event in [*expired, *(event for event in live if event.deadline <= now)]:
            if await self._store.expire_held(event, subject, now):
                await self._store.write_outcome(event, "held_expired")
                await self._store.drop_held(event, subject)
                self._tell(event, subject, now)

    async def waiting(self) -> None:
        """Sessions that are due: release what was made meanwhile, let the rest expire."""
        now = self._clock.now_ms()
        with _Faults("waiting") as faults:
            for session in await self._store.waiting_sessions(now):
                with faults.of(session):
                    if await self._store.owner(session) is not None:
                        await self._each(self._releases.session(session))
                        continue
                    for event in await self._store.waiting(session):
                        if event.deadline <= now and await self._store.expire_waiting(event, session, now):
                            self._tell(event, session, now)

    async def trim(self) -> None:
        """Keep the indexes as short as what they lead to."""
        now = self._clock.now_ms()
        with _Faults("trim") as faults:
            with faults.of("quarantine"):
                await self._store.trim_quarantine(now - QUARANTINE_KEPT_MS)
            with faults.of("sessions"):
                await self._store.trim_sessions(now - self._store.session_ttl_ms)

    async def _each(self, release: Awaitable[int]) -> None:
        """One subject or session that cannot be released now must not stop the others."""
        try:
            await release
        except StoreAway as error:
            log.warning("release.postponed", error=str(error))

    def _tell(self, event: Event, where: str, now: int) -> None:
        text = f"{event.source} {event.event}: nothing came for {where} in time"
        self._ring.add(
            now, "input.dropped", event.source, text, event=event.event, input=event.id, outcome="held_expired"
        )
        log.info("held.expired", input=event.id, source=event.source, event_id=event.event)

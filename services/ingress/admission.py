"""The one way in, for HTTP and AMQP alike: admit → append → answer. What stops between is finished by a copy or the
relay."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, assert_never

import structlog

from libs.contracts.errors import StoreAway
from services.ingress.domain import Event, Misfit
from services.ingress.inbox import Inbox
from services.ingress.ports import (
    Accepted,
    Appended,
    Clock,
    Duplicate,
    EventStore,
    Held,
    HeldFull,
    Other,
    Pending,
    Refused,
)

log = structlog.get_logger(__name__)

REMEMBERED = 50_000
NEAR_ITS_END_MS = 2_000
"""Within so long of its deadline an event may expire while it is on its way, or by the clock of another replica."""
Status = Literal["accepted", "duplicate", "quarantined", "held", "unrouted"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a delivery. `id` is the input's; `reason` is a short code where there is more to say."""

    status: Status
    id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an admitted event went."""

    where: Literal["inbox", "held", "expired", "nowhere", "full"]
    """`full`: as many wait as may. It stays admitted, where the relay finds it again until its deadline."""
    number: int = 0


class Known:
    """Facts that are written once and so may be remembered: owners of sessions, sessions of subjects. Bounded."""

    def __init__(self) -> None:
        self._facts: OrderedDict[str, str] = OrderedDict()

    def get(self, name: str) -> str | None:
        """What is remembered, or None."""
        return self._facts.get(name)

    def put(self, name: str, value: str) -> None:
        """Remember; the oldest is forgotten above the bound."""
        self._facts[name] = value
        if len(self._facts) > REMEMBERED:
            self._facts.popitem(last=False)

    def drop(self, name: str) -> None:
        """The store says otherwise."""
        self._facts.pop(name, None)


class Admissions:
    """Lets verified events in."""

    def __init__(self, store: EventStore, inbox: Inbox, clock: Clock, done: Callable[[str], None]) -> None:
        """`done` is told the id of each event that is in an inbox or held, so that its first copy can be forgotten."""
        self._store = store
        self._inbox = inbox
        self._clock = clock
        self._done = done
        self._owners = Known()
        self._subjects = Known()
        self._present = Known()

    async def admit(self, event: Event, token: str, body: bytes) -> Answer:
        """Let an event in, once. `token` names this attempt, also when it is tried again after a lost reply.

        Raises StoreAway: what became of it is unknown, and the sender or the broker will deliver it again. Raises
        HeldFull: too many wait for the same, and nothing was written.
        """
        if event.hold_ms and not await self._has_room(event):
            raise HeldFull
        if event.hold_ms == 0 and not await self._has_session(event):
            return Answer("unrouted", event.id)
        admission = await self._store.admit(event, token, self._clock.now_ms())
        match admission:
            case Accepted():
                return await self._first(event)
            case Pending(first):
                # "Duplicate" promises that the first is safe: so it is brought to its session now (C070).
                await self.place(first)
                return Answer("duplicate", event.id)
            case Duplicate():
                return Answer("duplicate", event.id)
            case Other(mark, pending):
                return await self._other(event, mark, pending, body)
            case _:
                assert_never(admission)

    async def _first(self, event: Event) -> Answer:
        if event.by_body:
            placed, _ = await asyncio.gather(self.place(event), self._store.point(event, self._clock.now_ms()))
        else:
            placed = await self.place(event)
        match placed.where:
            case "inbox":
                return Answer("accepted", event.id)
            case "held" | "expired" | "full":
                # Full although there was room: others were faster. It is stored, and the relay holds it or ends it.
                return Answer("held", event.id)
            case _:
                return Answer("unrouted", event.id)

    async def _other(self, event: Event, mark: str, pending: Event | None, body: bytes) -> Answer:
        """Known identity, other mark: both are kept, and the second is never taken for the first (C076)."""
        if pending is not None:
            await self.place(pending)
        reason = "same_body" if event.by_body else "other_body"
        await self._store.quarantine(Misfit(reason, event), mark, body, self._clock.now_ms())
        return Answer("duplicate" if event.by_body else "quarantined", event.id, reason)

    async def quarantine(self, misfit: Misfit, body: bytes) -> Answer:
        """Keep a misfit for an operator. Its identity is not claimed: a true one may still come."""
        await self._store.quarantine(misfit, "", body, self._clock.now_ms())
        return Answer("quarantined", misfit.event.id, misfit.reason)

    async def place(self, event: Event) -> Placed:
        """Bring an admitted event to its session, or hold it. Repeating changes nothing. Raises StoreAway."""
        placed = await self._by_subject(event) if event.route_subject else await self.into_session(event, event.session)
        if placed.where != "full":
            self._done(event.id)
        return placed

    async def expire(self, event: Event) -> None:
        """End an admitted event that found no room until its deadline. Raises StoreAway."""
        await self._store.write_outcome(event, "held_expired")
        self._done(event.id)

    async def _by_subject(self, event: Event) -> Placed:
        session = self._subjects.get(event.route_subject) if self._cannot_have_expired(event) else None
        if session is None:
            found = await self._store.route_or_hold(event)
            if isinstance(found, Held):
                return Placed("expired" if found.expired else "held")
            if found is Refused.FULL:
                return Placed("full")
            if isinstance(found, Refused):
                return await self._nowhere(event)
            # Nothing is held for it any more, and nothing will be: so the next need not ask.
            session = found
            self._subjects.put(event.route_subject, session)
        return await self.into_session(event, session)

    def _cannot_have_expired(self, event: Event) -> bool:
        """Else its queue has to be asked: it may have expired there before its subject was registered (G1)."""
        return event.hold_ms == 0 or event.deadline - self._clock.now_ms() > NEAR_ITS_END_MS

    async def into_session(self, event: Event, session: str) -> Placed:
        """Append to a session, or wait for it to be made."""
        while True:
            placed = await self._inbox.append(event, session)
            if isinstance(placed, Appended):
                if placed.new:
                    self._present.put(session, "1")
                return Placed("inbox" if placed.number else "expired", placed.number)
            if placed is Refused.ABSENT:
                self._owners.drop(session)
                self._present.drop(session)
                if event.hold_ms == 0:
                    return await self._nowhere(event)
            held = await self._store.hold_for_session(event, session)
            if isinstance(held, Refused):
                return Placed("full")
            if held is not None:
                return Placed("expired" if held.expired else "held")

    async def _nowhere(self, event: Event) -> Placed:
        """It was let in for a session that is gone, and its source does not hold: told, not lost."""
        await self._store.write_outcome(event, "rejected")
        return Placed("nowhere")

    async def _has_room(self, event: Event) -> bool:
        """Whether it may be held, should it have to be. Nothing is asked for a session that took an event before."""
        session = self._subjects.get(event.route_subject) or "" if event.route_subject else event.session
        if session and self._present.get(session):
            return True
        return await self._store.has_room(event, session, self._clock.now_ms())

    async def _has_session(self, event: Event) -> bool:
        """Whether an event whose source does not hold has somewhere to go. Nothing is written (422)."""
        session = event.session or await self._session_of(event.route_subject)
        return session is not None and await self.owner(session) is not None

    async def _session_of(self, subject: str) -> str | None:
        return self._subjects.get(subject) or await self._store.session_of(subject)

    async def owner(self, session: str) -> str | None:
        """Whose session it is, or None. Remembered, since it is written once."""
        if known := self._owners.get(session):
            return known
        owner = await self._store.owner(session)
        if owner is not None:
            self._owners.put(session, owner)
        return owner


class Forgetting:
    """Collects events whose first copy is needed no more, and forgets them many at once, off the hot path."""

    def __init__(self, forget: Callable[[list[str]], Awaitable[None]]) -> None:
        self._forget = forget
        self._ids: list[str] = []

    def add(self, id: str) -> None:
        """It is in an inbox or held."""
        self._ids.append(id)

    async def flush(self) -> None:
        """Forget what was collected. What is not forgotten is found by the relay, which changes nothing by it."""
        ids, self._ids = self._ids, []
        if not ids:
            return
        try:
            await self._forget(ids)
        except StoreAway:
            log.warning("admitted.not_forgotten", count=len(ids))

"""Numbers and seals: an admitted event becomes an input of its session.

The seal covers the number, so the number is proposed before it is given. The next one of each session is remembered
here, and many appends may be on their way at once; where another replica was faster, the store says which number is
next and the event is sealed again.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from libs.contracts.codec import to_json
from libs.contracts.errors import StoreAway
from libs.contracts.ingress import Input, InputAccepted
from libs.contracts.origin import SealKeys, make_seal
from libs.runtime.composer import Composer
from services.ingress.domain import Event, sealed_kind
from services.ingress.ports import Append, Appended, Clock, EventStore, Placement, Poster, Refused, Waiting

MAX_TRIES = 64
TRIES_SIDE_BY_SIDE = 8
"""After so many, appends of one session go one by one in this process, so that only replicas contend."""
REMEMBERED = 50_000


@dataclass(eq=False)
class _Numbers:
    """What this process believes of one session. `round` counts corrections, so that each is taken over once."""

    next: int = 1
    round: int = 0
    lane: asyncio.Lock = field(default_factory=asyncio.Lock)


class Inbox:
    """Appends events to their sessions."""

    def __init__(
        self, store: EventStore, outbox: Poster, composer: Composer, seal_keys: SealKeys, clock: Clock
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._composer = composer
        self._seal_keys = seal_keys
        self._clock = clock
        self._sessions: OrderedDict[str, _Numbers] = OrderedDict()

    async def append(self, event: Event, session: str, commit: Append | None = None) -> Appended | Refused:
        """Put the event into the session's inbox, once, and ring the doorbell. `commit` is the write, where it changes
        more than the inbox. Raises StoreAway."""
        numbers = self._numbers(session)
        commit = commit or self._store.append
        for tries in range(MAX_TRIES):
            if tries < TRIES_SIDE_BY_SIDE:
                placed = await self._propose(event, session, numbers, commit)
            else:
                async with numbers.lane:
                    placed = await self._propose(event, session, numbers, commit)
            if not isinstance(placed, Waiting):
                return placed
        raise StoreAway("the session's numbers are contended", retry_after=1.0)

    async def _propose(self, event: Event, session: str, numbers: _Numbers, commit: Append) -> Placement:
        seen, number = numbers.round, numbers.next
        numbers.next += 1
        sealed = self._sealed(event, session, number)
        doorbell = self._composer.compose(
            InputAccepted.model_construct(input=sealed),
            session=session,
            id_parts=(event.id,),
            correlation=event.id,
            depth=sealed.depth,
        )
        try:
            placed = await commit(event, session, to_json(sealed), number, doorbell, self._clock.now_ms())
        except StoreAway:
            self._sessions.pop(session, None)  # whether the number was given is unknown
            raise
        if placed == Appended(number, new=True):
            self._outbox.post(session, [doorbell])
        elif numbers.round == seen:
            # The number was not used up. Everybody in flight guessed from it: correct once, for all of them.
            numbers.round += 1
            numbers.next = placed.next if isinstance(placed, Waiting) else number
        return placed

    def _sealed(self, event: Event, session: str, number: int) -> Input:
        origin = event.origin
        seal = make_seal(
            self._seal_keys,
            input_id=event.id,
            session=session,
            number=number,
            origin=origin,
            digest=event.digest,
            accepted_at=event.accepted_at,
            kind=sealed_kind(event),
        )
        # Every field was validated on its way in; validating again would cost as much as the seal.
        return Input.model_construct(
            id=event.id,
            kind=event.kind,
            session=session,
            number=number,
            source=event.source,
            event=event.event,
            type=event.type,
            subject=event.subject,
            data=event.data,
            origin=origin,
            seal=seal,
            accepted_at=event.accepted_at,
            depth=event.depth,
            sequence=event.sequence,
            stream=event.stream,
        )

    def _numbers(self, session: str) -> _Numbers:
        numbers = self._sessions.get(session)
        if numbers is None:
            numbers = self._sessions[session] = _Numbers()
            if len(self._sessions) > REMEMBERED:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(session)
        return numbers

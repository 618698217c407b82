"""Ingress's parts on a real Redis, without its process: for tests of scripts and of admission."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from libs.contracts.keys import Keys
from libs.contracts.origin import SealKeys
from libs.contracts.topology import Topology
from libs.runtime.batch import Store
from libs.runtime.composer import Composer
from libs.runtime.connections import connect_redis
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from services.ingress.admission import Admissions, Forgetting
from services.ingress.deliveries import Log
from services.ingress.domain import Event
from services.ingress.inbox import Inbox
from services.ingress.ports import Limits
from services.ingress.store import IngressStore
from services.ingress.sweepers import Releases, Sweepers

HOUR_MS = 3_600_000
NOW = 1_800_000_000_000
SEAL_KEYS = SealKeys((("k1", b"s" * 32),))
SEAL_KEYS_TEXT = "k1:" + base64.b64encode(b"s" * 32).decode()


@dataclass
class MovableClock:
    """Time that a test moves."""

    now: int = NOW

    def now_ms(self) -> int:
        return self.now


class Posted:
    """Stands for the outbox's sending half: remembers what was posted."""

    def __init__(self, service: str, keys: Keys) -> None:
        self._service = service
        self._keys = keys
        self.posted: list[tuple[str, Outgoing]] = []

    def keys(self, session: str) -> list[str]:
        return list(self._keys.outbox(self._service, self._keys.partition(session)))

    args = staticmethod(Outbox.args)

    def post(self, session: str, messages: Sequence[Outgoing]) -> None:
        self.posted += [(session, message) for message in messages]


@dataclass
class Replica:
    """One ingress without its edges."""

    store: IngressStore
    raw: Store
    keys: Keys
    outbox: Posted
    clock: MovableClock
    admissions: Admissions
    releases: Releases
    sweepers: Sweepers
    ring: Log
    forgetting: Forgetting
    limits: Limits = field(repr=False)

    async def ask(self, *command: Any) -> Any:
        return await self.raw.command(*command)

    async def inbox(self, session: str) -> list[bytes]:
        """The inputs of a session in the order of their numbers."""
        numbered = await self.ask("HGETALL", self.keys.of_session("inbox", session))
        return [value for _, value in sorted(numbered.items(), key=lambda pair: int(pair[0]))]


@asynccontextmanager
async def ingress_replica(
    redis_url: str, namespace: str, *, clock: MovableClock | None = None, **limits: int
) -> AsyncIterator[Replica]:
    """One replica's parts, connected to a real Redis."""
    clock = clock or MovableClock()
    redis = connect_redis(redis_url, "test-ingress")
    raw = Store(redis)
    serving = asyncio.create_task(raw.serve())
    keys = Keys(namespace, 4)
    outbox = Posted("ingress", keys)
    bounds = replace(Limits(24 * HOUR_MS, 24 * HOUR_MS, 1_000, 50_000), **limits)
    store = IngressStore(raw, keys, outbox, bounds)  # type: ignore[arg-type]
    forgetting = Forgetting(store.forget)
    inbox = Inbox(store, outbox, Composer(Topology(namespace, 4), clock), SEAL_KEYS, clock)
    admissions = Admissions(store, inbox, clock, forgetting.add)
    releases = Releases(store, admissions)
    ring = Log(100)
    try:
        yield Replica(
            store,
            raw,
            keys,
            outbox,
            clock,
            admissions,
            releases,
            Sweepers(store, admissions, releases, ring, clock),
            ring,
            forgetting,
            bounds,
        )
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await redis.aclose()


def an_event(id: str = "e1", **fields: Any) -> Event:
    """An admitted webhook of session `s1`, or whatever `fields` say."""
    given: dict[str, Any] = {
        "id": f"identity-of-{id}",
        "kind": "event",
        "source": "restaurant",
        "event": id,
        "type": "table.gone",
        "subject": "reservation:r1",
        "data": {"reservation": "r1"},
        "origin_kind": "webhook",
        "principal": "restaurant",
        "verified": "standard-webhooks",
        "digest": "d" * 64,
        "mark": "d" * 32,
        "session": "s1",
        "route_subject": "",
        "hold_ms": 600_000,
        "window_ms": 96 * HOUR_MS,
        "accepted_at": NOW,
    }
    return Event(**(given | fields))

"""Ingress's parts on a real Redis, without its process: for tests of scripts and of admission."""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from libs.contracts.envelope import Envelope, Message
from libs.contracts.ingress import SetTimer, StopTimer
from libs.contracts.keys import Keys
from libs.contracts.origin import SealKeys, attest
from libs.contracts.topology import Topology
from libs.runtime.batch import Store
from libs.runtime.composer import Composer
from libs.runtime.connections import connect_redis
from libs.runtime.consumer import Context
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from services.ingress.admission import Admissions, Forgetting
from services.ingress.deliveries import Log
from services.ingress.domain import Event
from services.ingress.inbox import Inbox
from services.ingress.metrics import IngressMetrics
from services.ingress.ports import Limits
from services.ingress.store import IngressStore
from services.ingress.sweepers import Releases, Sweepers
from services.ingress.timer_store import TimerStore
from services.ingress.timers import Now, TimerHandler, TimerSweep

HOUR_MS = 3_600_000
NOW = 1_800_000_000_000
GRACE_MS = 5_000
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
    timers: TimerStore
    handler: TimerHandler
    firing: TimerSweep
    composer: Composer
    registry: CollectorRegistry = field(repr=False)

    def context(self, message: Message, session: str = "s1", depth: int = 0) -> Context:
        """What a handler is told of a message that came to this replica."""
        envelope = Envelope(
            id=f"of-{message.wire_type()}", type=message.wire_type(), session=session, depth=depth, body={}
        )
        return Context(envelope, self.clock.now_ms(), self.composer)

    def timers_counted(self) -> dict[str, float]:
        """Timers by outcome, those that are not zero."""
        (family,) = (found for found in self.registry.collect() if found.name == "turnkeeper_ingress_timers")
        totals = {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}
        return {outcome: value for outcome, value in totals.items() if value}

    async def ask(self, *command: Any) -> Any:
        return await self.raw.command(*command)

    async def inbox(self, session: str) -> list[bytes]:
        """The inputs of a session in the order of their numbers."""
        numbered = await self.ask("HGETALL", self.keys.of_session("inbox", session))
        return [value for _, value in sorted(numbered.items(), key=lambda pair: int(pair[0]))]


@asynccontextmanager
async def ingress_replica(
    redis_url: str,
    namespace: str,
    *,
    clock: MovableClock | None = None,
    store_time: bool = False,
    cap: int = 100,
    **limits: int,
) -> AsyncIterator[Replica]:
    """One replica's parts, connected to a real Redis. Timers go by its clock, or by the store's time."""
    clock = clock or MovableClock()
    redis = connect_redis(redis_url, "test-ingress")
    raw = Store(redis)
    serving = asyncio.create_task(raw.serve())
    keys = Keys(namespace, 4)
    outbox = Posted("ingress", keys)
    bounds = replace(Limits(24 * HOUR_MS, 24 * HOUR_MS, 1_000, 50_000), **limits)
    store = IngressStore(raw, keys, outbox, bounds)  # type: ignore[arg-type]
    forgetting = Forgetting(store.forget)
    composer = Composer(Topology(namespace, 4), clock)
    inbox = Inbox(store, outbox, composer, SEAL_KEYS, clock)
    admissions = Admissions(store, inbox, clock, forgetting.add)
    releases = Releases(store, admissions)
    ring = Log(100)
    registry = CollectorRegistry()
    metrics = IngressMetrics(registry, [])
    timers = TimerStore(raw, keys, outbox, bounds)  # type: ignore[arg-type]

    async def movable() -> int:
        return clock.now_ms()

    now: Now = timers.time if store_time else movable
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
            timers,
            TimerHandler(timers, now, SEAL_KEYS, metrics, cap=cap),
            TimerSweep(timers, now, inbox, composer, metrics, grace_ms=GRACE_MS),
            composer,
            registry,
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


def a_timer(id: str = "tm1", session: str = "s1", **fields: Any) -> SetTimer:
    """What the door says to set a timer, with its attestation unless `fields` give another."""
    given: dict[str, Any] = {
        "timer": id,
        "operation": "O1",
        "setter": "user app ana",
        "due": NOW + 60_000,
        "data": {"text": "pick up Ana"},
        "attestation": "",
    }
    message = SetTimer(**(given | fields))
    if "attestation" in fields:
        return message
    return message.model_copy(update={"attestation": attest(SEAL_KEYS, *message.attested(session))})


def a_stop(id: str = "tm1", session: str = "s1", *, attested: bool = True) -> StopTimer:
    """The end of a timer: by the door, or by the session when it is not attested."""
    message = StopTimer(timer=id, reason="cancelled")
    if not attested:
        return message
    return message.model_copy(update={"attestation": attest(SEAL_KEYS, *message.attested(session))})

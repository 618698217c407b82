"""The courier alone: one consumer with a handler of the test's own, on real Redis and RabbitMQ, in this process."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aio_pika
import orjson
from prometheus_client import CollectorRegistry

from libs.contracts.codec import BUNDLE_TYPE, encode, join
from libs.contracts.envelope import Envelope, Message
from libs.contracts.ids import derive_id
from libs.contracts.keys import Keys
from libs.contracts.session import Notice
from libs.contracts.tools import StepFinished
from libs.contracts.topology import Topology
from libs.runtime.batch import Store
from libs.runtime.clock import SystemClock
from libs.runtime.composer import Composer
from libs.runtime.connections import Broker, connect_redis
from libs.runtime.consumer import Consumer, Context
from libs.runtime.intake import Intake
from libs.runtime.metrics import RuntimeMetrics
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Publisher
from libs.runtime.scripts import Script, load_script
from libs.runtime.settle import Outcome
from libs.runtime.topology import declare

_BODY = """
if redis.call('HSETNX', KEYS[1], ARGV[1], 1) == 0 then return {'repeated'} end
redis.call('RPUSH', KEYS[2], ARGV[2])
outbox_add(KEYS[3], KEYS[4], tonumber(ARGV[3]), 4)
return {'handled'}
"""
_TEXT = load_script("libs.runtime", "outbox").text + _BODY
HANDLE = Script("handle", _TEXT, hashlib.sha1(_TEXT.encode()).hexdigest())
PARTITIONS = 2

Before = Callable[[StepFinished, Context], Awaitable[None]]


async def nothing(_: StepFinished, __: Context) -> None:
    """Before a commit nothing happens."""


def step(session: str, name: str, **fields: Any) -> tuple[str, StepFinished]:
    """A message of a session."""
    return session, StepFinished(operation=name, key="k", state="committed", **fields)


def envelope(session: str, message: Message, **fields: Any) -> Envelope:
    """A message in its envelope; the same message has the same id."""
    id = derive_id(session, message.model_dump_json())
    return Envelope(id=id, type=message.wire_type(), session=session, body=message.model_dump(), **fields)


@dataclass
class Courier:
    """One process: what it handled is in Redis, each message of a session in its order, with one notice each."""

    redis_url: str
    amqp_url: str
    namespace: str
    before: Before = nothing
    tried: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)

    async def start(self, *, relay_only: bool = False) -> None:
        """Connect and consume."""
        self.keys, self.topology = Keys(self.namespace, PARTITIONS), Topology(self.namespace, PARTITIONS)
        self.store = Store(connect_redis(self.redis_url, "test-courier"))
        self.broker = Broker(self.amqp_url, "test-courier")
        self.registry = CollectorRegistry()
        clock = SystemClock()
        metrics = RuntimeMetrics(self.registry, "session")
        self.publisher = Publisher(self.broker, self.topology)
        self.outbox = Outbox("session", self.store, self.publisher, self.keys, clock, metrics)
        self.consumer = Consumer(
            "session", {StepFinished: self.handle}, store=self.store, outbox=self.outbox, keys=self.keys,
            topology=self.topology, composer=Composer(self.topology, clock), clock=clock, metrics=metrics,
        )  # fmt: skip
        queues = [] if relay_only else [self.topology.partition_queue(n) for n in range(PARTITIONS)]
        self.intakes = [Intake(self.broker, queue, self.consumer.start, prefetch=32) for queue in queues]
        work = [self.store.serve(), self.publisher.serve(), self.outbox.serve(), *(i.serve() for i in self.intakes)]
        self.tasks = [asyncio.create_task(item) for item in work]

    async def handle(self, message: StepFinished, ctx: Context) -> Outcome:
        """Commit the message once, with a notice; then send the notice."""
        self.tried.append(message.operation)
        await self.before(message, ctx)
        session = ctx.envelope.session
        told = [ctx.emit(Notice(topic="operation", text=message.operation), message.operation)]
        names = [self.marks(session), self.log(session), *self.outbox.keys(session)]
        args = [ctx.envelope.id, message.operation, ctx.now, *self.outbox.args(told)]
        reply = await self.store.run(HANDLE, names, args)
        outcome = Outcome(reply.tag)
        if outcome is Outcome.HANDLED:
            self.outbox.post(session, told)
        self.outcomes.append(f"{message.operation} {outcome}")
        return outcome

    def marks(self, session: str) -> str:
        return self.keys.of_session("state", session, "marks")

    def log(self, session: str) -> str:
        return self.keys.of_session("timeline", session)

    async def handled(self, session: str) -> list[str]:
        """What was committed of a session, in order."""
        async with fresh_redis(self.redis_url) as redis:
            return [raw.decode() for raw in await redis.lrange(self.log(session), 0, -1)]

    async def lying(self) -> int:
        """Messages that lie in the outbox."""
        async with fresh_redis(self.redis_url) as redis:
            names = [self.keys.outbox("session", n)[0] for n in range(PARTITIONS)]
            return sum([await redis.hlen(name) for name in names])

    def counted(self, outcome: str) -> float:
        labels = {"service": "session", "type": StepFinished.wire_type(), "outcome": outcome}
        return self.registry.get_sample_value("turnkeeper_messages_total", labels) or 0.0

    async def crash(self) -> None:
        """Die at once: nothing more is committed, settled or sent."""
        for task in self.tasks:
            task.cancel()
        self.consumer.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.broker.close()
        await self.store.redis.aclose()

    async def drain(self) -> None:
        """Stop as on SIGTERM: take no more, finish what was taken, close the channels."""
        for intake in self.intakes:
            intake.stop_taking()
        await self.consumer.drained()
        await self.outbox.drained()
        for intake in self.intakes:
            await intake.stop()
        await asyncio.sleep(0)
        await self.crash()


@contextlib.asynccontextmanager
async def fresh_redis(url: str) -> AsyncIterator[Any]:
    """A client of the test's own."""
    redis = connect_redis(url, "test")
    try:
        yield redis
    finally:
        await redis.aclose()


@contextlib.asynccontextmanager
async def courier(redis_url: str, amqp_url: str, namespace: str, before: Before = nothing) -> AsyncIterator[Courier]:
    """A courier that consumes; the topology is declared."""
    await declare(amqp_url, Topology(namespace, PARTITIONS))
    made = Courier(redis_url, amqp_url, namespace, before)
    await made.start()
    try:
        yield made
    finally:
        await made.crash()


class Outside:
    """What a test publishes and reads, over a connection of its own."""

    def __init__(self, channel: Any, namespace: str) -> None:
        self._channel = channel
        self.topology = Topology(namespace, PARTITIONS)

    async def publish(self, *members: tuple[str, Message]) -> None:
        """One bundle; all of its sessions must be of one partition."""
        await self.raw(join(encode(envelope(session, message)) for session, message in members), members[0][0])

    async def raw(self, body: bytes, session: str = "s1", content_type: str = BUNDLE_TYPE) -> None:
        """Any bytes into the queue of a session's partition."""
        exchange = await self._channel.get_exchange(self.topology.sessions, ensure=False)
        message = aio_pika.Message(body, content_type=content_type, delivery_mode=2, priority=0)
        await exchange.publish(message, f"p{Keys('', PARTITIONS).partition(session):02}", timeout=10)

    async def subscribe(self) -> Any:
        """A queue of an application on the notices."""
        queue = await self._channel.declare_queue(exclusive=True)
        await queue.bind(self.topology.notices, "#")
        return queue

    async def dead(self, count: int, within: float = 10.0) -> list[dict[str, Any]]:
        """The first letters of the dead queue."""
        queue = await self._channel.get_queue(self.topology.dead, ensure=False)
        return [orjson.loads(m.body) for m in await take(queue, count, within)]

    async def ready(self, queue: str) -> int:
        """Messages that wait in a queue."""
        declared = await self._channel.declare_queue(queue, passive=True)
        return int(declared.declaration_result.message_count)


async def take(queue: Any, count: int, within: float = 10.0) -> Sequence[Any]:
    """Get messages from a queue until there are so many. Raises TimeoutError."""
    found: list[Any] = []
    async with asyncio.timeout(within):
        while len(found) < count:
            message = await queue.get(no_ack=True, fail=False)
            if message is None:
                await asyncio.sleep(0.02)
            else:
                found.append(message)
    return found


@contextlib.asynccontextmanager
async def outside(amqp_url: str, namespace: str) -> AsyncIterator[Outside]:
    """Publish and read over a connection of the test's own."""
    connection = await aio_pika.connect(amqp_url, timeout=10)
    async with connection, connection.channel() as channel:
        yield Outside(channel, namespace)


def sessions_of(partition: int, count: int) -> list[str]:
    """Names of sessions that live in one partition."""
    keys, found, number = Keys("", PARTITIONS), [], 0
    while len(found) < count:
        if keys.partition(f"s{number}") == partition:
            found.append(f"s{number}")
        number += 1
    return found

"""The yardstick: a bare bundled chain of the same hops, by hand on aiormq and redis-py, with nothing of ours.

    publisher ──▶ ingress ──▶ session ──▶ tools ──▶ session ──▶ done
                  admit,      commit      claim,    commit
                  append                  record

One process a hop, quorum queues, persistent messages, confirms, one Redis with `appendfsync always`. Each hop takes
all that waits, writes it in one pipeline a step, packs it into bundles of at most 64 members for the same queue, and
acknowledges the prefix with one frame once the bundles are confirmed; meanwhile it already writes the next batch.
No signatures, no validation, no outbox, no error handling: a fault ends the process, and the run does not count.
"""

import argparse
import asyncio
import hashlib
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import aiormq
import orjson
import uvloop
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from redis.asyncio import Redis

from bench.app.ledger import write_entry
from bench.load import open_channel
from libs.contracts.ids import partition_of

ROLES = ("ingress", "session", "tools")
MAX_BUNDLE = 64
MAX_BATCH = 512
PREFETCH = {"ingress": 512, "session": 64, "tools": 256}
"""Messages without acknowledgement on one channel, as the services have it."""
CONFIRM_SECONDS = 10

Member = dict[str, Any]
Outgoing = tuple[str, str, Member]
"""Exchange, routing key, member."""
Work = Callable[[Sequence[Member]], Awaitable[list[Outgoing]]]

APPEND = """
local n = redis.call('INCR', KEYS[1])
redis.call('HSET', KEYS[2], n, ARGV[1])
return n
"""
COMMIT = """
if tonumber(redis.call('HGET', KEYS[1], 'v') or '0') ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'v', ARGV[1] + 1, 'd', ARGV[2])
if ARGV[3] ~= '' then redis.call('HDEL', KEYS[2], ARGV[3]) end
return 1
"""


@dataclass(frozen=True)
class Names:
    """Queues, exchanges and keys of one chain."""

    prefix: str
    partitions: int

    @property
    def events(self) -> str:
        """The exchange for publishers, and the queue behind it."""
        return f"{self.prefix}.events"

    @property
    def done(self) -> str:
        """The exchange that tells of finished turns."""
        return f"{self.prefix}.done"

    @property
    def tools(self) -> str:
        """The queue of the tools hop."""
        return f"{self.prefix}.tools"

    @property
    def partition_queues(self) -> list[str]:
        """The queues of the session hop."""
        return [f"{self.prefix}.session.{number:02}" for number in range(self.partitions)]

    def of_session(self, session: str) -> str:
        """The queue that a session's messages go to."""
        return self.partition_queues[partition_of(session, self.partitions)]

    def key(self, family: str, name: str) -> str:
        """A Redis key."""
        return f"{self.prefix}:{family}:{name}"

    def inputs(self, role: str) -> list[str]:
        """The queues that a hop consumes."""
        return {"ingress": [self.events], "session": self.partition_queues, "tools": [self.tools]}[role]


async def declare(amqp_url: str, names: Names) -> None:
    """Declare the chain's exchanges and queues."""
    connection = await aiormq.connect(amqp_url)
    channel = await connection.channel()
    for exchange in (names.events, names.done):
        await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
    quorum: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
    for queue in (names.events, names.tools):
        await channel.queue_declare(queue, durable=True, arguments=quorum)
    for queue in names.partition_queues:
        await channel.queue_declare(queue, durable=True, arguments={**quorum, "x-single-active-consumer": True})
    await channel.queue_bind(names.events, names.events, "#")
    await connection.close()


async def drop(amqp_url: str, redis_url: str, names: Names) -> None:
    """Remove what the chain left on both servers."""
    connection = await aiormq.connect(amqp_url)
    channel = await connection.channel()
    for queue in (names.events, names.tools, *names.partition_queues):
        await channel.queue_delete(queue)
    for exchange in (names.events, names.done):
        await channel.exchange_delete(exchange)
    await connection.close()
    async with Redis.from_url(redis_url) as redis:
        found: list[bytes] = []
        async for key in redis.scan_iter(match=f"{names.prefix}:*", count=1000):
            found.append(key)
            if len(found) == 1000:
                await redis.unlink(*found)
                found.clear()
        if found:
            await redis.unlink(*found)


@dataclass(frozen=True)
class Delivery:
    """One message from a queue: a bundle, or an event of the publisher."""

    channel: aiormq.Channel
    tag: int
    body: bytes

    @property
    def members(self) -> list[Member]:
        """What it holds."""
        parsed = orjson.loads(self.body)
        return parsed if isinstance(parsed, list) else [parsed]


class Hop:
    """Takes all that waits, lets it be written, sends what follows, acknowledges."""

    def __init__(self, publishing: aiormq.Channel) -> None:
        self._publishing = publishing
        self._waiting: list[Delivery] = []
        self._wake = asyncio.Event()

    async def consume(self, connection: aiormq.abc.AbstractConnection, queue: str, prefetch: int) -> None:
        """Take a queue's messages, on a channel of its own."""
        channel = await open_channel(connection, confirms=False)
        await channel.basic_qos(prefetch_count=prefetch)

        async def take(message: DeliveredMessage) -> None:
            self._waiting.append(Delivery(channel, cast(int, message.delivery_tag), message.body))
            self._wake.set()

        await channel.basic_consume(queue, take)

    async def serve(self, work: Work) -> None:
        """Work until cancelled. While one batch waits for its confirms the next one is written."""
        sending: asyncio.Task[None] | None = None
        while True:
            await self._wake.wait()
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            if not self._waiting:
                self._wake.clear()
            outgoing = await work([member for delivery in batch for member in delivery.members])
            if sending is not None:
                await sending
            sending = asyncio.create_task(self._send(batch, outgoing))

    async def _send(self, batch: Sequence[Delivery], outgoing: Sequence[Outgoing]) -> None:
        bundles: dict[tuple[str, str], list[Member]] = defaultdict(list)
        for exchange, routing_key, member in outgoing:
            bundles[exchange, routing_key].append(member)
        await asyncio.gather(
            *(
                self._publish(exchange, routing_key, members[start : start + MAX_BUNDLE])
                for (exchange, routing_key), members in bundles.items()
                for start in range(0, len(members), MAX_BUNDLE)
            )
        )
        last = {delivery.channel: delivery.tag for delivery in batch}
        for channel, tag in last.items():
            await channel.basic_ack(tag, multiple=True, wait=False)

    async def _publish(self, exchange: str, routing_key: str, bundle: list[Member]) -> None:
        await self._publishing.basic_publish(
            orjson.dumps(bundle),
            exchange=exchange,
            routing_key=routing_key,
            properties=Basic.Properties(delivery_mode=2, priority=0),
            timeout=CONFIRM_SECONDS,
            wait=False,
        )


class Ingress:
    """Two writes: the event with its identity, then its number in its session's inbox."""

    def __init__(self, redis: Redis, names: Names) -> None:
        self._redis = redis
        self._names = names
        self._append = _sha(APPEND)

    async def __call__(self, events: Sequence[Member]) -> list[Outgoing]:
        """From events to numbered inputs."""
        key = self._names.key
        admit = self._redis.pipeline(transaction=False)
        for event in events:
            admit.set(key("event", event["data"]["entry"]), orjson.dumps(event), nx=True)
        new = [event["data"] for event, fresh in zip(events, await admit.execute(), strict=True) if fresh]
        append = self._redis.pipeline(transaction=False)
        for data in new:
            append.evalsha(
                self._append, 2, key("number", data["session"]), key("inbox", data["session"]), orjson.dumps(data)
            )
        numbers = await append.execute()
        return [
            ("", self._names.of_session(data["session"]), {"kind": "input", "number": number, **data})
            for data, number in zip(new, numbers, strict=True)
        ]


class Session:
    """One versioned commit a message. The state is cached; the version check makes that safe."""

    def __init__(self, redis: Redis, names: Names) -> None:
        self._redis = redis
        self._names = names
        self._commit = _sha(COMMIT)
        self._versions: dict[str, int] = {}

    async def __call__(self, messages: Sequence[Member]) -> list[Outgoing]:
        """From inputs to steps, and from results to finished turns."""
        await self._load({message["session"] for message in messages} - self._versions.keys())
        key = self._names.key
        commit = self._redis.pipeline(transaction=False)
        for message in messages:
            session = message["session"]
            version = self._versions[session]
            self._versions[session] = version + 1
            ended = message["number"] if message["kind"] == "result" else ""
            commit.evalsha(
                self._commit, 2, key("state", session), key("inbox", session), version, orjson.dumps(message), ended
            )
        if not all(await commit.execute()):
            raise RuntimeError("somebody else committed to a session of ours")
        return [self._next(message) for message in messages]

    def _next(self, message: Member) -> Outgoing:
        if message["kind"] == "input":
            return "", self._names.tools, {**message, "kind": "step"}
        return self._names.done, message["session"], {"session": message["session"]}

    async def _load(self, unknown: set[str]) -> None:
        if unknown:
            read = self._redis.pipeline(transaction=False)
            for session in unknown:
                read.hget(self._names.key("state", session), "v")
            self._versions |= {s: int(v or 0) for s, v in zip(unknown, await read.execute(), strict=True)}


class Tools:
    """Two writes: the claim of the operation's key, then its result."""

    def __init__(self, redis: Redis, names: Names) -> None:
        self._redis = redis
        self._names = names

    async def __call__(self, steps: Sequence[Member]) -> list[Outgoing]:
        """From steps to results."""
        claim = self._redis.pipeline(transaction=False)
        for step in steps:
            claim.set(self._names.key("operation", step["entry"]), b"pending", nx=True)
        claimed = [step for step, fresh in zip(steps, await claim.execute(), strict=True) if fresh]
        record = self._redis.pipeline(transaction=False)
        for step in claimed:
            write_entry(step["entry"], step["entry"])
            result = {**step, "kind": "result"}
            record.set(self._names.key("operation", step["entry"]), orjson.dumps(result))
        await record.execute()
        return [("", self._names.of_session(step["session"]), {**step, "kind": "result"}) for step in claimed]


def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


async def live(role: str, amqp_url: str, redis_url: str, names: Names) -> None:
    """One process of the chain; ends when its standard input does, so that it never outlives its parent."""
    publishing, consuming = await aiormq.connect(amqp_url), await aiormq.connect(amqp_url)
    async with Redis.from_url(redis_url, protocol=2) as redis:
        makers: dict[str, Callable[[Redis, Names], Work]] = {"ingress": Ingress, "session": Session, "tools": Tools}
        work = makers[role](redis, names)
        for script in (APPEND, COMMIT):
            await redis.script_load(script)
        hop = Hop(await open_channel(publishing, confirms=True))
        for queue in names.inputs(role):
            await hop.consume(consuming, queue, PREFETCH[role])
        print("ready", flush=True)
        serving = asyncio.create_task(hop.serve(work))
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        done, _ = await asyncio.wait({serving, asyncio.ensure_future(ended)}, return_when=asyncio.FIRST_COMPLETED)
        if serving in done:
            serving.result()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
    await asyncio.gather(publishing.close(), consuming.close())


def main() -> None:
    """`python -m bench.bare ROLE …`: one hop."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--amqp", required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    given = parser.parse_args()
    uvloop.run(live(given.role, given.amqp, given.redis, Names(given.prefix, given.partitions)))


if __name__ == "__main__":
    main()

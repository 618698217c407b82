"""Two replicas of the door before a destination with a ledger of its own, and the test in the session's place."""

import asyncio
import base64
import contextlib
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import aio_pika
import yaml
from redis.asyncio import Redis

from libs.contracts.codec import BUNDLE_TYPE, decode, join, split
from libs.contracts.keys import Keys
from libs.contracts.tools import RunStep, StepFinished, WithdrawOperation
from libs.contracts.topology import Topology
from libs.runtime.clock import SystemClock
from libs.runtime.composer import Composer
from libs.runtime.topology import declare
from tests.support.crossing import Crossing
from tests.support.destination_process import DestinationProcess
from tests.support.door import SEAL_KEYS, seal
from tests.support.eventually import eventually
from tests.support.service_process import PARTITIONS, ServiceProcess, environment

SEALS = ",".join(f"{name}:{base64.b64encode(key).decode()}" for name, key in SEAL_KEYS.keys)
TIMEOUT_SECONDS, GRACE_SECONDS = 1.5, 0.75
MODES = ("keyed", "brief", "asked", "both", "plain")
"""Tools by what their destination offers: a key for a day, one that is over before a lease is, a look-up, a key and a
look-up, nothing."""
_ARGS = {"type": "object", "required": ["n", "how"]}
_HOUR_MS = 3_600_000


def application() -> dict[str, Any]:
    """The application: one tool a mode, and what asks after an operation. No breakers: so many fail here in a row that
    hardly a call would be made."""
    tools: dict[str, Any] = {}
    for mode in MODES:
        put = {"sandbox": {"collection": mode, "verb": "put", "timeout": f"{TIMEOUT_SECONDS}s"}}
        tools[mode] = {"consent": "never", "args": _ARGS, "connector": put, "breaker": False}
    for mode in ("asked", "both"):
        find = {"sandbox": {"collection": mode, "verb": "find", "timeout": f"{TIMEOUT_SECONDS}s"}}
        tools[f"find_{mode}"] = {"effect": "read", "connector": find, "breaker": False}
        tools[mode]["lookup"] = {
            "tool": f"find_{mode}", "args": {"key": "{{ key }}"}, "result": "{{ found.records[0] }}",
        }  # fmt: skip
    for mode, span in (("keyed", "24h"), ("both", "24h"), ("brief", "1s")):
        tools[mode]["keyed"] = {"for": span}
    return {
        "sources": {"app": {"verify": {"scheme": "user-token"}}},
        "tools": tools,
        "planner": {"scripted": {"rules": "rules.yaml"}},
        "sandbox": {mode: {"prefix": "x"} for mode in MODES},
    }


class DoorReplica(ServiceProcess):
    """One process of the door."""

    SERVICE: ClassVar[str] = "tools"


@dataclass(frozen=True)
class Operation:
    """One intended effect. Each is of a session of its own, so that many are in flight at once."""

    session: str
    mode: str
    how: str
    late: str

    @property
    def args(self) -> dict[str, Any]:
        return {"n": self.session, "how": self.how, "late": self.late}


@dataclass
class Stored:
    """An operation as the ledger has it: `state` is `absent` for one that is not there."""

    state: str
    owner: str = ""
    attempt: int = 0
    resolved_by: str = ""

    @property
    def replica(self) -> str:
        return self.owner.partition("/")[0]


@dataclass
class Doors:
    """The stage of a test."""

    destination: DestinationProcess
    replicas: list[DoorReplica]
    crossings: list[Crossing]
    """By replica, between it and Redis."""
    brokers: list[Crossing]
    """By replica, between it and RabbitMQ."""
    redis: Redis
    keys: Keys
    composer: Composer
    channel: Any
    told: dict[str, list[StepFinished]] = field(default_factory=lambda: defaultdict(list))
    """By session, what it was told, in order."""

    def call(
        self, operation: Operation, *, name: str = "O1", args: Any = None, not_after: int | None = None
    ) -> RunStep:
        """A call of the operation. Under another `name` it is another call."""
        now = SystemClock().now_ms()
        return RunStep(
            operation=name, key="k", turn="T1", root="T1", tool=operation.mode,
            args=operation.args if args is None else args,
            seals=(seal(session=operation.session, name=f"in-{operation.session}", at=now),),
            not_after=now + _HOUR_MS if not_after is None else not_after,
        )  # fmt: skip

    async def send(self, calls: Sequence[tuple[Operation, RunStep | WithdrawOperation]]) -> None:
        """Publish them as one bundle, which one replica takes. The same operation and name have the same id again."""
        parts = [(one.session, call.wire_type(), call.operation) for one, call in calls]
        made = [
            self.composer.compose(call, session=one.session, id_parts=part)
            for (one, call), part in zip(calls, parts, strict=True)
        ]
        exchange = await self.channel.get_exchange(made[0].exchange)
        body = join([outgoing.body for outgoing in made])
        message = aio_pika.Message(body, content_type=BUNDLE_TYPE, delivery_mode=2, priority=0)
        await exchange.publish(message, made[0].routing_key)

    async def heard(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        """Take what the door tells a session."""
        for member in split(message.body):
            envelope, answer = decode(member)
            if isinstance(answer, StepFinished):
                self.told[envelope.session].append(answer)

    async def stored(self, operations: Sequence[Operation]) -> dict[str, Stored]:
        """By session, what the ledger says now."""
        pipeline = self.redis.pipeline(transaction=False)
        for one in operations:
            key = self.keys.of_session("operation", one.session, "k")
            pipeline.hmget(key, "state", "owner", "attempt", "resolved_by")
        found = await pipeline.execute()
        return {
            one.session: Stored(
                (state or b"absent").decode(), (owner or b"").decode(), int(attempt or 0), (by or b"").decode()
            )
            for one, (state, owner, attempt, by) in zip(operations, found, strict=True)
        }

    async def ready(self) -> None:
        """Have all replicas up that are not."""
        for replica in self.replicas:
            if replica.process is None or replica.process.poll() is not None:
                replica.start()
        await asyncio.gather(*(replica.ready() for replica in self.replicas))

    def kill(self, number: int) -> None:
        """`kill -9`: what stood on its way never arrives."""
        self.replicas[number].stop(signal.SIGKILL)
        for crossing in (self.crossings[number], self.brokers[number]):
            crossing.clear()
            crossing.cut()

    async def settled(self, operations: Sequence[Operation], *, within: float = 30.0) -> dict[str, Stored]:
        """Wait until none is absent or pending, and each has been told so; what the ledger says then."""

        async def over() -> dict[str, Stored] | None:
            found = await self.stored(operations)
            open_ = {name: one.state for name, one in found.items() if one.state in ("absent", "pending")}
            assert not open_, open_
            untold = [name for name, one in found.items() if one.state not in {t.state for t in self.told[name]}]
            assert not untold, untold
            return found

        found = await eventually(over, within=within)
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def two_doors(redis_url: str, amqp_url: str, namespace: str, folder: Path) -> AsyncIterator[Doors]:
    """Both replicas ready, the destination too."""
    (folder / "turnkeeper.yaml").write_text(yaml.safe_dump(application()))
    (folder / "rules.yaml").write_text("rules: []\n")
    topology = Topology(namespace, PARTITIONS)
    await declare(amqp_url, topology)
    destination = DestinationProcess(folder / "destination.jsonl")
    await asyncio.to_thread(destination.start)
    crossings, brokers = ([Crossing(url) for _ in range(2)] for url in (redis_url, amqp_url))
    replicas = [
        DoorReplica(
            environment(
                crossing.url, brokers[number].url, namespace, folder / "turnkeeper.yaml",
                TURNKEEPER_REPLICA=str(number), TURNKEEPER_SEAL_KEYS=SEALS, TURNKEEPER_SANDBOX_URL=destination.url,
                TURNKEEPER_TOOLS_LEASE_GRACE_SECONDS=str(GRACE_SECONDS), TURNKEEPER_TOOLS_SWEEP_SECONDS="0.25",
            ),
            folder / f"tools-{number}.log",
        )
        for number, crossing in enumerate(crossings)
    ]  # fmt: skip
    async with contextlib.AsyncExitStack() as open_:
        open_.callback(destination.end)
        for crossing in (*crossings, *brokers):
            open_.callback(crossing.close)
        redis = await open_.enter_async_context(Redis.from_url(redis_url))
        connection = await open_.enter_async_context(await aio_pika.connect(amqp_url))
        channel = await connection.channel()
        composer = Composer(topology, SystemClock())
        keys = Keys(namespace, PARTITIONS)
        doors = Doors(destination, replicas, crossings, brokers, redis, keys, composer, channel)
        for number in range(PARTITIONS):
            queue = await channel.get_queue(topology.partition_queue(number))
            await queue.consume(doors.heard, no_ack=True)
        for replica in replicas:
            open_.callback(_end, replica)
        await doors.ready()
        yield doors


def _end(replica: DoorReplica) -> None:
    if replica.process is not None:
        replica.process.send_signal(signal.SIGCONT)
        replica.stop(signal.SIGKILL)

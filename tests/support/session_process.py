"""The whole session service as a process, on the run's servers, between fake neighbours."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import jwt
import orjson
import yaml

from libs.contracts.codec import BUNDLE_TYPE, encode, join
from libs.contracts.ingress import Input, InputAccepted
from libs.contracts.keys import Keys
from libs.contracts.tools import RunStep, StepFinished
from libs.contracts.topology import Topology
from libs.runtime.connections import connect_redis
from libs.runtime.topology import declare
from tests.support.courier import envelope, outside, take
from tests.support.eventually import eventually
from tests.support.service_process import PARTITIONS, USER_SECRET, ServiceProcess
from tests.support.service_process import environment as environment  # what it is told is what every service is
from tests.support.session import ANA, RESTAURANT, make_input

CONNECTOR = {"python": {"function": "builtins:dict"}}
APPLICATION: dict[str, Any] = {
    "sources": {
        "app": {"verify": {"scheme": "user-token"}},
        "restaurant": {
            "verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]},
            "route": {"session": "{{ data.session }}"},
        },
    },
    "tools": {"book": {"connector": CONNECTOR}, "mail": {"connector": CONNECTOR}},
    "planner": {"scripted": {"rules": "rules.yaml"}},
}
RULES: dict[str, Any] = {
    "rules": [
        {
            "when": {"origin": "user", "text": "book (?P<n>\\d+)"},
            "steps": [{"tool": "book", "args": {"n": "{{ m.n }}"}}],
        },
        {"when": {"origin": "user"}, "reply": "you said {{ text }}"},
        {"when": {"source": "restaurant"}, "steps": [{"tool": "book", "args": {"n": "{{ data.n }}"}}]},
        {"when": {"after": "book", "state": "committed"}, "reply": "booked {{ results[-1].args.n }}"},
    ]
}


def write_application(folder: Path, application: Any = None) -> Path:
    """The application file with its rules beside it."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(RULES))
    config = folder / "turnkeeper.yaml"
    config.write_text(yaml.safe_dump(application or APPLICATION))
    return config


class Replica(ServiceProcess):
    """One process of the session service."""

    SERVICE = "session"

    @property
    def base(self) -> str:
        """Where it answers."""
        return self.url

    async def get(self, path: str, user: str = "") -> httpx2.Response:
        """Ask it over HTTP, as a user if one is named."""
        token = jwt.encode({"sub": user, "exp": 2_000_000_000}, USER_SECRET, "HS256") if user else ""
        async with httpx2.AsyncClient(timeout=5) as client:
            return await client.get(self.base + path, headers={"authorization": f"Bearer {token}"} if token else {})

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it by a signal; its exit status."""
        return self.stop(number)


def start(environ: dict[str, str], folder: Path, replica: str = "0") -> Replica:
    """Start one replica."""
    return Replica({**environ, "TURNKEEPER_REPLICA": replica}, folder / f"session-{replica}.log").start()


class Neighbours:
    """Ingress, the door and an application, as far as the session service sees them."""

    def __init__(self, redis: Any, out: Any, namespace: str) -> None:
        self.redis, self.out = redis, out
        self.keys, self.topology = Keys(namespace, PARTITIONS), Topology(namespace, PARTITIONS)
        self.numbers: dict[str, int] = {}

    async def append(self, session: str, kind: Any, data: Any, **fields: Any) -> Input:
        """Store an input with its number, as `append` does, without ringing."""
        number = self.numbers[session] = self.numbers.get(session, 0) + 1
        origin = RESTAURANT if kind == "event" else ANA
        fields.setdefault("event", f"{session}-e{number}")  # ids are of a source, not of a session
        made = make_input(number, kind, origin, data, session=session, **fields)
        of = self.keys.of_session
        pipeline = self.redis.pipeline(transaction=True)
        pipeline.set(of("owner", session), "ana")
        pipeline.set(of("number", session), number)
        pipeline.hset(of("inbox", session), number, made.model_dump_json())
        pipeline.hset(self.bucket(made), made.id, f"{session} {number} -")
        await pipeline.execute()
        return made

    async def ring(self, *inputs: Input) -> None:
        """Doorbells, each to its partition."""
        for made in inputs:
            message = InputAccepted(input=made)
            await self.send(self.topology.sessions, message, made.session)

    async def say(self, session: str, text: str) -> Input:
        """A user's message, stored and rung."""
        made = await self.append(session, "message", {"text": text})
        await self.ring(made)
        return made

    async def answer(self, session: str, run: RunStep, state: Any = "committed") -> None:
        """The door's answer."""
        message = StepFinished(operation=run.operation, key=run.key, state=state, result={"id": run.operation})
        await self.send(self.topology.sessions, message, session)

    async def send(self, exchange: str, message: Any, session: str) -> None:
        route = self.topology.route(message, session)
        target = await self.out._channel.get_exchange(exchange, ensure=False)
        await target.publish(_bundle(encode(envelope(session, message))), route.routing_key, timeout=10)

    async def work(self, count: int, service: str = "tools", within: float = 20.0) -> list[tuple[str, Any]]:
        """(session, body) of commands in a service's queue, until there are so many members."""
        queue = await self.out._channel.get_queue(self.topology.work_queue(service), ensure=False)
        found: list[tuple[str, Any]] = []
        async with asyncio.timeout(within):
            while len(found) < count:
                for message in await take(queue, 1, within):
                    body = orjson.loads(message.body)
                    members = body if isinstance(body, list) else [body]
                    found += [(member["session"], member["body"]) for member in members]
        return found

    async def runs(self, count: int) -> list[tuple[str, RunStep]]:
        """The door's next calls."""
        return [(session, RunStep.model_validate(body)) for session, body in await self.work(count)]

    def bucket(self, made: Input) -> str:
        return self.keys.outcome_bucket(made.session, made.id, made.accepted_at)

    async def outcome(self, made: Input) -> str:
        """What became of an input."""
        raw = await self.redis.hget(self.bucket(made), made.id)
        return str(raw.decode().split()[2])

    async def all_became(self, inputs: Iterable[Input], outcome: str = "acted", within: float = 20.0) -> None:
        """Wait until each input ended so."""

        async def ended() -> bool:
            assert {await self.outcome(made) for made in inputs} == {outcome}
            return True

        await eventually(ended, within=within)

    async def lines(self, session: str) -> list[dict[str, Any]]:
        """The stored timeline."""
        raw = await self.redis.lrange(self.keys.of_session("timeline", session), 0, -1)
        return [orjson.loads(line) for line in raw]


def _bundle(member: bytes) -> Any:
    return aio_pika.Message(join([member]), content_type=BUNDLE_TYPE, delivery_mode=2, priority=0)


@contextlib.asynccontextmanager
async def neighbours(redis_url: str, amqp_url: str, namespace: str) -> AsyncIterator[Neighbours]:
    """The neighbours, with the topology declared."""
    await declare(amqp_url, Topology(namespace, PARTITIONS))
    redis = connect_redis(redis_url, "test-neighbours")
    try:
        async with outside(amqp_url, namespace) as out:
            yield Neighbours(redis, out, namespace)
    finally:
        await redis.aclose()

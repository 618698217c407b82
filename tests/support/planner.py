"""A planner's server that behaves as a test wants, and the worker that asks it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from libs.contracts.application import Application, parse_application
from libs.contracts.codec import MESSAGE_TYPE, decode, encode
from libs.contracts.envelope import Envelope
from libs.contracts.ids import derive_id
from libs.contracts.session import PlanMade, PlanRequested
from libs.contracts.topology import Topology
from libs.runtime.clock import SystemClock
from libs.runtime.composer import Composer
from libs.runtime.lifecycle import Runtime
from libs.runtime.metrics import RuntimeMetrics
from libs.runtime.publisher import Outgoing
from libs.runtime.topology import declare
from services.session.main import take_plans
from services.session.planners.build import build_remote
from services.session.planners.worker import Plans, PlansIn, PlanWorker
from services.session.settings import SessionSettings
from tests.support.eventually import eventually

PARTITIONS = 4
TOKEN = "an-invented-one-time-token"
KEY = "sk-invented-0123456789"
BOOK = {
    "name": "book",
    "description": "Book a table.",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
ASKED: dict[str, Any] = {"source": "app", "type": "", "event": "e1", "kind": "message"}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You plan."},
    {"role": "user", "content": "book a table for 4"},
]


def view(**changed: Any) -> dict[str, Any]:
    """What a planner is shown of a turn in which the owner wants a table."""
    shown: dict[str, Any] = {
        "session": "s1", "turn": "T1", "input": ASKED, "data": {"text": "book a table for 4"}, "results": [],
        "running": None, "failing": "", "action": "", "messages": CHAT, "tools": [BOOK],
    }  # fmt: skip
    return {**shown, **changed}


def request(session: str = "s1", plan: int = 1, seconds: float = 10.0, **changed: Any) -> PlanRequested:
    """A request that may be answered for so long."""
    deadline = SystemClock().now_ms() + round(seconds * 1000)
    return PlanRequested(turn="T1", plan=plan, token=TOKEN, deadline=deadline, view=view(session=session, **changed))


def wrapped(message: Any, session: str = "s1") -> bytes:
    """A message in its envelope, as it travels alone."""
    id = derive_id(message.wire_type(), session, message.turn, message.plan)
    return encode(
        Envelope(id=id, type=message.wire_type(), session=session, correlation="root", depth=2, body={}), message
    )


def application(planner: dict[str, Any], **tools: Any) -> Application:
    """An application with this planner."""
    connector = {"python": {"function": "builtins:dict"}}
    made = {name: {"connector": connector, **tool} for name, tool in {"book": {}, **tools}.items()}
    sources = {"app": {"verify": {"scheme": "user-token"}}}
    return parse_application({"sources": sources, "tools": made, "planner": planner}, "test")


@dataclass
class Asked:
    """One request that the server got."""

    head: str
    body: Any

    def header(self, name: str) -> str | None:
        """The value of a header."""
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


Behave = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A server of raw bytes: it may answer anything, or nothing."""

    url: str
    behave: Behave
    asked: list[Asked] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                asked = Asked(head, None)
                asked.body = orjson.loads(await reader.readexactly(int(asked.header("content-length") or 0)))
                self.asked.append(asked)
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                try:
                    await self.behave(asked, writer)
                    await writer.drain()
                finally:
                    self.open -= 1
                if writer.is_closing():
                    return
        writer.close()


@contextlib.asynccontextmanager
async def server(behave: Behave) -> AsyncIterator[Server]:
    """A server on a free port."""
    made = Server("", behave)
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0, backlog=4096)
    host, port = listening.sockets[0].getsockname()[:2]
    made.url = f"http://{host}:{port}"
    try:
        yield made
    finally:
        listening.close()


def raw(answer: bytes, *, close: bool = False) -> Behave:
    """Answer with these bytes."""

    async def behave(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if close:
            await writer.drain()
            writer.close()

    return behave


def http(body: bytes, status: int = 200, **headers: str) -> bytes:
    """A whole HTTP answer. Underscores of header names stand for hyphens."""
    told = {"content_type": "application/json", "content_length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


def answering(body: Any, status: int = 200, **headers: str) -> Behave:
    """Answer with JSON."""
    return raw(http(body if isinstance(body, bytes) else orjson.dumps(body), status, **headers))


@dataclass
class Delivered:
    """A delivery without a broker."""

    body: bytes
    content_type: str | None = MESSAGE_TYPE
    user_id: str | None = None
    stale: bool = False


class Confirmed:
    """A publisher whose broker confirms at once."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []

    def send(self, message: Outgoing) -> "asyncio.Future[None]":
        self.sent.append(message)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def plans(self) -> list[tuple[Envelope, PlanMade]]:
        """The plans that were published."""
        return [decode(orjson.loads(message.body)) for message in self.sent]  # type: ignore[misc]


class Work:
    """The worker and the intake of answers, without a broker."""

    def __init__(self) -> None:
        self.publisher = Confirmed()
        self.topology = Topology("", PARTITIONS)
        self.registry = CollectorRegistry()
        self.clock = SystemClock()
        self.metrics = RuntimeMetrics(self.registry, "session")
        self.plans = Plans(Composer(self.topology, self.clock), self.publisher)
        self.plans_in = PlansIn(self.plans, self.metrics)

    async def ask(
        self, planner: dict[str, Any], asked: PlanRequested, environ: dict[str, str] | None = None
    ) -> PlanMade:
        """The plan that becomes of a request."""
        remote = build_remote(application(planner), environ or {}, self.clock, 1_000)
        assert remote is not None
        try:
            worker = PlanWorker(remote[0], self.plans, self.topology, self.clock, self.metrics)
            await worker.on_delivery(Delivered(wrapped(asked)))  # type: ignore[arg-type]
        finally:
            await remote[1].close()
        (_, made) = self.publisher.plans()[-1]
        return made

    def counted(self, outcome: str, type_: str = PlanRequested.wire_type()) -> float:
        """Messages of a type with an outcome."""
        labels = {"service": "session", "type": type_, "outcome": outcome}
        return self.registry.get_sample_value("turnkeeper_messages_total", labels) or 0.0


@contextlib.asynccontextmanager
async def replica(
    redis_url: str, amqp_url: str, namespace: str, planner: dict[str, Any], calls: int = 1_000
) -> AsyncIterator[Runtime[SessionSettings]]:
    """The part of a session replica that deals with planners outside, as `main` wires it, on real servers."""
    await declare(amqp_url, Topology(namespace, PARTITIONS))
    settings = SessionSettings(
        redis_url=redis_url, amqp_url=amqp_url, namespace=namespace, partitions=PARTITIONS, session_planner_calls=calls,
        config=Path("turnkeeper.yaml"), replica="0", http_port=1,
    )  # fmt: skip
    rt = Runtime(settings, "session")
    take_plans(rt, application(planner))
    tasks = [asyncio.create_task(work) for work in (rt.store.serve(), rt.publisher.serve())]
    tasks += [asyncio.create_task(intake.serve()) for intake in rt._intakes]
    try:
        await eventually(lambda: all(intake.consuming for intake in rt._intakes))
        yield rt
    finally:
        await stopped(rt)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await rt.broker.close()
        for close in rt._closers:
            await close()
        await rt.store.redis.aclose()


async def stopped(rt: Runtime[SessionSettings]) -> None:
    """Drain, as on SIGTERM."""
    for intake in rt._intakes:
        intake.stop_taking()
    await rt._hand_on(asyncio.get_running_loop().time() + 10)


async def send_requests(rt: Runtime[SessionSettings], *requests: tuple[str, PlanRequested]) -> None:
    """Publish requests as the outbox does; done once the broker has confirmed them."""
    made = [rt.composer.compose(message, session=s, id_parts=(message.turn, message.plan)) for s, message in requests]
    await asyncio.gather(*(rt.publisher.send(outgoing) for outgoing in made))


class Partitions:
    """Reads what comes into the partitions, as the session's consumer would."""

    def __init__(self, channel: Any, topology: Topology) -> None:
        self._channel = channel
        self._topology = topology
        self.made: list[tuple[str, PlanMade]] = []

    async def start(self) -> "Partitions":
        """Listen to all of them."""
        for number in range(PARTITIONS):
            queue = await self._channel.get_queue(self._topology.partition_queue(number), ensure=False)
            await queue.consume(self._take, no_ack=True)
        return self

    async def _take(self, message: Any) -> None:
        for member in orjson.loads(message.body):
            envelope, made = decode(member)
            assert isinstance(made, PlanMade)
            assert message.routing_key == self._topology.route(made, envelope.session).routing_key
            self.made.append((envelope.session, made))

    async def plans(self, count: int, within: float = 20.0) -> list[tuple[str, PlanMade]]:
        """The first plans."""
        await eventually(lambda: len(self.made) >= count, within=within)
        return self.made

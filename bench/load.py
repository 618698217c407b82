"""The load of both chains: events published by AMQP, and the word that their turns are done."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import aiormq
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

STALL_SECONDS = 20
"""So long may nothing be done before the run is given up."""
CONFIRM_SECONDS = 10


async def open_channel(connection: aiormq.abc.AbstractConnection, *, confirms: bool) -> aiormq.Channel:
    """A channel of the driver's own class, which can publish without waiting for the socket to drain."""
    return cast(aiormq.Channel, await connection.channel(publisher_confirms=confirms))


class LoadError(Exception):
    """A run that does not count: something was lost, doubled, or did not come to an end."""


@dataclass(frozen=True)
class Event:
    """One event, signed before the clock starts."""

    entry: str
    session: str
    body: bytes
    headers: dict[str, Any]


@dataclass(frozen=True)
class Route:
    """Where events go in, and where it is told that a turn is done."""

    amqp_url: str
    exchange: str
    routing_key: str
    done_exchange: str
    done_pattern: str
    finished: Callable[[str, bytes], Iterable[str]]
    """From routing key and body of a message to the session of each finished turn in it."""


@dataclass
class Run:
    """What one run took. Times in seconds."""

    events: int
    seconds: float = 0.0
    published: dict[str, int] = field(default_factory=dict)
    """When each entry was published, nanoseconds (Unix)."""
    done: list[float] = field(default_factory=list)
    """From the publishing of an event to the word that its turn is done."""

    @property
    def rate(self) -> float:
        """Turns a second."""
        return self.events / self.seconds


class Load:
    """Publishes and listens. Turns of one session are done in the order of its events, so each answers the oldest."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._open: dict[str, deque[float]] = defaultdict(deque)
        self._in_flight = 0
        self._change = asyncio.Event()
        self._publishing: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None

    async def window(self, events: Sequence[Event], size: int) -> Run:
        """Publish with at most `size` events in flight; the time from the first to the end of the last."""

        async def pace(_: int) -> None:
            while self._in_flight >= size:
                await self._changed()

        return await self._run(events, pace)

    async def steady(self, events: Sequence[Event], rate: float) -> Run:
        """Publish `rate` events a second, whatever comes back (open loop)."""
        started = time.perf_counter()

        async def pace(number: int) -> None:
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))

        return await self._run(events, pace)

    async def _run(self, events: Sequence[Event], pace: Callable[[int], Any]) -> Run:
        run = Run(len(events))
        connection = await aiormq.connect(self._route.amqp_url)
        try:
            publishing = await open_channel(connection, confirms=True)
            await self._listen(await open_channel(connection, confirms=False), run)
            started = time.perf_counter()
            for number, event in enumerate(events):
                await pace(number)
                self._publish(publishing, event, run)
            while self._in_flight:
                await self._changed()
            run.seconds = time.perf_counter() - started
        finally:
            await connection.close()
        return run

    async def _changed(self) -> None:
        self._change.clear()
        try:
            await asyncio.wait_for(self._change.wait(), STALL_SECONDS)
        except TimeoutError:
            raise LoadError(f"{self._in_flight} turns did not end; nothing came for {STALL_SECONDS} s") from None
        if self._fault is not None:
            raise LoadError(f"an event was not taken: {self._fault}") from self._fault

    async def _listen(self, channel: aiormq.Channel, run: Run) -> None:
        declared = await channel.queue_declare(exclusive=True, auto_delete=True)
        queue = declared.queue or ""
        await channel.queue_bind(queue, self._route.done_exchange, self._route.done_pattern)

        async def take(message: DeliveredMessage) -> None:
            now = time.perf_counter()
            for session in self._route.finished(message.routing_key or "", message.body):
                if self._open[session]:
                    run.done.append(now - self._open[session].popleft())
                    self._in_flight -= 1
            self._change.set()

        await channel.basic_consume(queue, take, no_ack=True)

    def _publish(self, channel: aiormq.Channel, event: Event, run: Run) -> None:
        self._in_flight += 1
        self._open[event.session].append(time.perf_counter())
        run.published[event.entry] = time.time_ns()
        task = asyncio.create_task(self._send(channel, event))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def _send(self, channel: aiormq.Channel, event: Event) -> None:
        try:
            await channel.basic_publish(
                event.body,
                exchange=self._route.exchange,
                routing_key=self._route.routing_key,
                mandatory=True,
                properties=Basic.Properties(
                    content_type="application/json", delivery_mode=2, priority=0, headers=event.headers
                ),
                timeout=CONFIRM_SECONDS,
                wait=False,
            )
        except Exception as error:
            self._fault = error
            self._change.set()


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

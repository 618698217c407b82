"""One queue, one channel: deliveries in, prefix acknowledgements out.

A cumulative acknowledgement spans its whole channel, so each queue has a channel of its own, and only the prefix
of deliveries that are all done is acknowledged, with one frame (design §3). Where work is slow and needs no order, each
delivery is acknowledged by itself instead: one that takes half a minute must not hold back a thousand others.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import aiormq
import structlog
from aio_pika.exceptions import AMQPError
from aiormq.exceptions import AMQPError as DriverError

from libs.runtime.connections import Broker
from libs.runtime.tasks import cancelling

log = structlog.get_logger(__name__)

WATCH_SECONDS = 1.0
REOPEN_SECONDS = 1.0
ANSWER_SECONDS = 10.0
"""A broker that does not answer so long on a channel is asked anew on another: waiting for it would never end."""


@dataclass(eq=False)
class Delivery:
    """One message from a queue. `done` says that all of it is durable; then its turn to be acknowledged comes."""

    body: bytes
    routing_key: str
    redelivered: bool
    headers: Mapping[str, Any]
    content_type: str | None
    message_id: str | None
    user_id: str | None
    tag: int
    _channel: "_Channel" = field(repr=False)
    finished: bool = False

    def done(self) -> None:
        """All members of this delivery are committed."""
        self.finished = True
        self._channel.finish(self)

    @property
    def stale(self) -> bool:
        """Whether its channel is closed: the broker has given the message to somebody else, or will."""
        return self._channel.closed

    def give_back(self) -> None:
        """Close the channel, which returns everything unacknowledged in its order. Never a single reject."""
        self._channel.close_soon()


class _Channel:
    """The deliveries of one opened channel, in order, and the acknowledgement of their finished prefix."""

    def __init__(self, underlay: aiormq.Channel, *, singly: bool) -> None:
        self.underlay = underlay
        self._singly = singly
        self.open: deque[Delivery] = deque()
        self.broken = asyncio.Event()
        self._scheduled = False
        self._finished: list[int] = []
        """Tags to acknowledge, in order; of a prefix the last one is enough."""
        self._sending: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        return bool(self.underlay.is_closed) or self.broken.is_set()

    def close_soon(self) -> None:
        self.broken.set()

    def receive(self, delivery: Delivery) -> None:
        if not self._singly:
            self.open.append(delivery)

    def finish(self, delivery: Delivery) -> None:
        if self._singly:
            self._finished.append(delivery.tag)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._scheduled = False
        last = None
        while self.open and self.open[0].finished:
            last = self.open.popleft()
        if last is not None:
            self._finished = [last.tag]
        if self._finished and self._sending is None and not self.closed:
            # One after another: the driver's queue of frames is short and, when full, lets a later one overtake. The
            # broker closes a channel that acknowledges a prefix after a longer one.
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            while self._finished:
                tags, self._finished = self._finished, []
                for tag in tags:
                    await self.underlay.basic_ack(tag, multiple=not self._singly, wait=False)
        except (AMQPError, DriverError, OSError, RuntimeError):
            self.broken.set()  # the broker delivers again, and the marks recognise it
        finally:
            self._sending = None

    async def settled(self) -> None:
        """Wait for acknowledgements that are being written."""
        await asyncio.sleep(0)
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)


class Intake:
    """Consumes one queue for as long as the process lives, over whatever the connection does."""

    def __init__(
        self,
        broker: Broker,
        queue: str,
        start: Callable[[Delivery], None],
        *,
        prefetch: int,
        priority: int | None = None,
        singly: bool = False,
    ) -> None:
        self.queue = queue
        self._singly = singly
        self._broker = broker
        self._start = start
        self._prefetch = prefetch
        self._priority = priority
        self._stopping = asyncio.Event()
        self.consuming = False

    async def serve(self) -> None:
        """Consume until `stop` or until cancelled, opening the channel again whenever it was lost."""
        while self._goes_on():
            try:
                await self._consume()
            except asyncio.CancelledError:
                # The driver cancels what waits on a connection that breaks; only our own cancelling ends us.
                if cancelling():
                    raise
                log.warning("intake.lost", queue=self.queue, error="CancelledError")
            except Exception as error:
                log.warning("intake.lost", queue=self.queue, error=type(error).__name__)
            finally:
                self.consuming = False
            if self._goes_on():
                await self._pause(REOPEN_SECONDS)

    def _goes_on(self) -> bool:
        return not self._stopping.is_set() and not cancelling()

    async def _consume(self) -> None:
        channel = await self._broker.consuming.channel(confirms=False)
        underlay = cast(aiormq.Channel, await channel.get_underlay_channel())
        mine = _Channel(underlay, singly=self._singly)
        try:
            await underlay.basic_qos(prefetch_count=self._prefetch, timeout=ANSWER_SECONDS)
            arguments: dict[str, Any] = {} if self._priority is None else {"x-priority": self._priority}

            async def on_message(message: aiormq.abc.DeliveredMessage) -> None:
                self._receive(mine, message)

            consuming = await underlay.basic_consume(
                self.queue, on_message, arguments=arguments, timeout=ANSWER_SECONDS
            )
            self.consuming = True
            while self._goes_on() and not mine.closed:
                if consuming.consumer_tag not in underlay.consumers:
                    log.warning("intake.cancelled_by_broker", queue=self.queue)
                    break
                await self._wait_any(mine)
            await mine.settled()
        finally:
            mine.broken.set()
            await asyncio.wait_for(channel.close(), ANSWER_SECONDS)

    async def _wait_any(self, mine: _Channel) -> None:
        """Until the channel breaks, we stop, or it is time to look at the consumer."""
        waits = [asyncio.ensure_future(mine.broken.wait()), asyncio.ensure_future(self._stopping.wait())]
        try:
            await asyncio.wait(waits, timeout=WATCH_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _receive(self, mine: _Channel, message: aiormq.abc.DeliveredMessage) -> None:
        if self._stopping.is_set() or mine.closed:
            return
        properties = message.header.properties
        delivery = Delivery(
            body=message.body,
            routing_key=message.routing_key or "",
            redelivered=bool(message.redelivered),
            headers=properties.headers or {},
            content_type=properties.content_type,
            message_id=properties.message_id,
            user_id=properties.user_id,
            tag=message.delivery_tag or 0,
            _channel=mine,
        )
        mine.receive(delivery)
        self._start(delivery)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def stop_taking(self) -> None:
        """Take no more; what was taken may still finish and be acknowledged until `stop`."""
        self._start = _ignore

    async def stop(self) -> None:
        """Close the channel, which hands the rest on in order. Never `basic.cancel` (5-facts)."""
        self._stopping.set()


def _ignore(_: Delivery) -> None:
    """A delivery that came while stopping stays unacknowledged; the closing channel returns it."""

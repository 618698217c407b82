"""Publish and wait for the confirm. Messages for one queue that wait together travel as one bundle."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any

import aiormq
import structlog
from aio_pika.exceptions import AMQPError, DeliveryError
from aiormq.exceptions import AMQPError as DriverError
from aiormq.exceptions import ChannelClosed
from pamqp.commands import Basic

from libs.contracts.codec import BUNDLE_TYPE, MAX_BUNDLE_BYTES, MAX_BUNDLE_MEMBERS, MESSAGE_TYPE, join
from libs.contracts.errors import BrokerAway
from libs.contracts.topology import Topology
from libs.runtime.connections import Broker

log = structlog.get_logger(__name__)

CONFIRM_SECONDS = 10.0
MAX_BATCH = 1_024
LARGE_BYTES = 1024 * 1024
"""Larger messages have a channel of their own: the broker closes the channel of one that is above its limit
(max_message_size), and with it all that waits there for its confirm."""


@dataclass(frozen=True)
class Outgoing:
    """One message as it leaves: its stable id, where it goes, and its encoded envelope."""

    id: str
    exchange: str
    routing_key: str
    body: bytes

    def pack(self) -> bytes:
        """As it lies in the outbox."""
        return f"{self.exchange}\n{self.routing_key}\n".encode() + self.body

    @classmethod
    def unpack(cls, id: str, packed: bytes) -> "Outgoing":
        """From the outbox."""
        exchange, routing_key, body = packed.split(b"\n", 2)
        return cls(id, exchange.decode(), routing_key.decode(), body)


@dataclass
class _Waiting:
    message: Outgoing
    confirmed: "asyncio.Future[None]"


class Publisher:
    """Sends what is given to it, in bundles, and tells each giver of its confirm.

    A lost connection or a time-out raises BrokerAway: the message may be in the queue. Sending it again is safe,
    since the next hop knows its id (5-facts, trap 1).
    """

    def __init__(self, broker: Broker, topology: Topology) -> None:
        self._broker = broker
        self._topology = topology
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._channels: dict[bool, Any] = {}
        self._opening = asyncio.Lock()
        self._attempts = itertools.count()
        self._flushes: set[asyncio.Task[None]] = set()

    def send(self, message: Outgoing) -> "asyncio.Future[None]":
        """Queue a message; the future is done with its confirm. Raises BrokerAway through the future."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(message, confirmed))
        self._wake.set()
        return confirmed

    async def serve(self) -> None:
        """Send until cancelled. Two flushes may be under way, so that a slow confirm does not stop the next."""
        slots = asyncio.Semaphore(2)
        try:
            while True:
                await self._wake.wait()
                await slots.acquire()
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                if not self._waiting:
                    self._wake.clear()
                task = asyncio.create_task(self._flush(batch))
                self._flushes.add(task)
                task.add_done_callback(self._flushes.discard)
                task.add_done_callback(lambda _: slots.release())
        finally:
            _fail([*self._waiting], BrokerAway("the process is stopping"))

    async def _flush(self, batch: list[_Waiting]) -> None:
        try:
            await asyncio.gather(*(self._publish(bundle) for bundle in self._bundles(batch)))
        finally:
            # Whatever ends a flush, each giver hears of it: a future that stays open is never sent again (G8).
            _fail(batch, BrokerAway("no confirm"))

    async def _open(self, *, large: bool) -> aiormq.Channel:
        async with self._opening:
            channel: Any = self._channels.get(large)
            if channel is None or channel.is_closed:
                channel = self._channels[large] = await self._broker.publishing.channel(confirms=True)
            underlay: aiormq.Channel = await channel.get_underlay_channel()
            return underlay

    def _bundles(self, batch: list[_Waiting]) -> list[list[_Waiting]]:
        """Pack by destination: at most 64 members and 256 KiB, a larger member alone (design §7)."""
        bundles: list[list[_Waiting]] = []
        open_: dict[tuple[str, str], tuple[list[_Waiting], int]] = {}
        for waiting in batch:
            message = waiting.message
            where = (message.exchange, message.routing_key)
            bundle, size = open_.get(where, ([], 0))
            fits = len(bundle) < MAX_BUNDLE_MEMBERS and size + len(message.body) <= MAX_BUNDLE_BYTES
            if not bundle or not fits or not self._topology.bundled(message.exchange):
                bundle, size = [], 0
                bundles.append(bundle)
            bundle.append(waiting)
            open_[where] = (bundle, size + len(message.body))
        return bundles

    async def _publish(self, bundle: list[_Waiting]) -> None:
        """Send one bundle. It never raises: a bundle that fails must not stop the others of its batch."""
        first = bundle[0].message
        try:
            await self._send_bundle([waiting.message for waiting in bundle])
        except DeliveryError as error:
            log.error("message.unroutable", exchange=first.exchange, routing_key=first.routing_key)
            _fail(bundle, BrokerAway(f"unroutable: {type(error).__name__}"))
        except ChannelClosed as error:
            # The broker closed it because of a message: too large, an exchange that is missing, a right we lack.
            log.error(
                "message.refused_by_broker",
                exchange=first.exchange,
                routing_key=first.routing_key,
                id=first.id,
                members=len(bundle),
                bytes=sum(len(waiting.message.body) for waiting in bundle),
                error=str(error)[:300],
            )
            _fail(bundle, BrokerAway(f"refused: {type(error).__name__}"))
        except (TimeoutError, AMQPError, DriverError, OSError, RuntimeError) as error:
            _fail(bundle, BrokerAway(f"no confirm: {type(error).__name__}"))
        except asyncio.CancelledError:
            # The driver cancels what waits on a channel that breaks; only our own cancelling ends us.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            _fail(bundle, BrokerAway("no confirm: the channel broke"))
        except Exception as error:
            log.exception("message.not_sent", exchange=first.exchange, id=first.id)
            _fail(bundle, BrokerAway(f"not sent: {type(error).__name__}"))
        else:
            for waiting in bundle:
                if not waiting.confirmed.done():
                    waiting.confirmed.set_result(None)

    async def _send_bundle(self, members: list[Outgoing]) -> None:
        first = members[0]
        bundled = self._topology.bundled(first.exchange)
        body = join(member.body for member in members) if bundled else first.body
        channel = await self._open(large=len(body) > LARGE_BYTES)
        await channel.basic_publish(
            body,
            exchange=first.exchange,
            routing_key=first.routing_key,
            mandatory=self._topology.mandatory(first.exchange),
            # Unique per attempt: two in flight with one message_id would be paired wrongly (5-facts, trap 2).
            properties=Basic.Properties(
                content_type=BUNDLE_TYPE if bundled else MESSAGE_TYPE,
                delivery_mode=2,
                priority=0,
                message_id=str(next(self._attempts)),
            ),
            timeout=CONFIRM_SECONDS,
            wait=False,
        )


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.confirmed.done():
            waiting.confirmed.set_exception(error)

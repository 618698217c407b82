"""Publish and wait for the confirm. Messages for one queue that wait together travel as one bundle."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import aiormq
import orjson
import structlog
from aio_pika.exceptions import DeliveryError
from aiormq.exceptions import ChannelClosed
from pamqp.commands import Basic

from libs.contracts.cloudevents import notice_attributes
from libs.contracts.codec import BUNDLE_TYPE, MAX_BUNDLE_BYTES, MAX_BUNDLE_MEMBERS, MESSAGE_TYPE, join
from libs.contracts.errors import BrokerAway
from libs.contracts.topology import Topology
from libs.runtime.confirms import ConfirmChannel, Sent
from libs.runtime.connections import Broker
from libs.runtime.tasks import cancelling

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
        self._channels: dict[bool, ConfirmChannel] = {}
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
            bundles = [(bundle, self._packed(bundle)) for bundle in self._bundles(batch)]
            large = [(bundle, body) for bundle, body in bundles if len(body) > LARGE_BYTES]
            small = [(bundle, body) for bundle, body in bundles if len(body) <= LARGE_BYTES]
            await asyncio.gather(*(self._publish(some, large=some is large) for some in (small, large) if some))
        finally:
            # Whatever ends a flush, each giver hears of it: a future that stays open is never sent again (G8).
            _fail(batch, BrokerAway("no confirm"))

    def _packed(self, bundle: list[_Waiting]) -> bytes:
        first = bundle[0].message
        return (
            join(waiting.message.body for waiting in bundle)
            if self._topology.bundled(first.exchange, first.routing_key)
            else first.body
        )

    async def _open(self, *, large: bool) -> ConfirmChannel:
        async with self._opening:
            channel = self._channels.get(large)
            if channel is None or channel.closed:
                opened = await self._broker.publishing.channel(confirms=True)
                channel = self._channels[large] = ConfirmChannel(
                    cast(aiormq.Channel, await opened.get_underlay_channel())
                )
            return channel

    def _bundles(self, batch: list[_Waiting]) -> list[list[_Waiting]]:
        """Pack by destination: at most 64 members and 256 KiB, a larger member alone (design §7)."""
        bundles: list[list[_Waiting]] = []
        open_: dict[tuple[str, str], tuple[list[_Waiting], int]] = {}
        for waiting in batch:
            message = waiting.message
            where = (message.exchange, message.routing_key)
            bundle, size = open_.get(where, ([], 0))
            fits = len(bundle) < MAX_BUNDLE_MEMBERS and size + len(message.body) <= MAX_BUNDLE_BYTES
            if not bundle or not fits or not self._topology.bundled(*where):
                bundle, size = [], 0
                bundles.append(bundle)
            bundle.append(waiting)
            open_[where] = (bundle, size + len(message.body))
        return bundles

    async def _publish(self, bundles: Sequence[tuple[list[_Waiting], bytes]], *, large: bool) -> None:
        """Send bundles in one write. It never raises, and one that fails does not stop the others."""
        sent: list[tuple[list[_Waiting], Sent]] = []
        try:
            channel = await self._open(large=large)
            for bundle, body in bundles:
                try:
                    sent.append((bundle, self._pack(channel, bundle[0].message, body)))
                except Exception as error:
                    log.exception("message.not_sent", exchange=bundle[0].message.exchange, id=bundle[0].message.id)
                    _fail(bundle, BrokerAway(f"not sent: {type(error).__name__}"))
            if sent:
                await channel.send([one for _, one in sent], seconds=CONFIRM_SECONDS)
        except asyncio.CancelledError:
            # The driver cancels what waits on a channel that breaks; only our own cancelling ends us.
            if cancelling():
                raise
        except Exception as error:
            for bundle, _ in bundles:
                _fail(bundle, BrokerAway(f"no confirm: {type(error).__name__}"))
        for bundle, one in sent:
            _settle(bundle, one.confirmed)

    def _pack(self, channel: ConfirmChannel, first: Outgoing, body: bytes) -> Sent:
        return channel.pack(
            body,
            exchange=first.exchange,
            routing_key=first.routing_key,
            mandatory=self._topology.mandatory(first.exchange),
            # Unique per attempt: two in flight with one message_id would be paired wrongly (5-facts, trap 2).
            properties=Basic.Properties(
                content_type=(
                    BUNDLE_TYPE if self._topology.bundled(first.exchange, first.routing_key) else MESSAGE_TYPE
                ),
                headers=self._headers(first),
                delivery_mode=2,
                priority=0,
                message_id=str(next(self._attempts)),
            ),
        )

    def _headers(self, message: Outgoing) -> dict[str, Any] | None:
        """A notice leaves as a CloudEvent in binary mode: subscribers elsewhere know it, and drop copies, by that."""
        if message.exchange != self._topology.notices:
            return None
        topic = message.routing_key.rpartition(".")[2]
        attributes = notice_attributes(orjson.loads(message.body), topic, self._topology.namespace)
        return {f"ce-{name}": value for name, value in attributes.items()}


def _settle(bundle: list[_Waiting], confirmed: "asyncio.Future[Any]") -> None:
    """Tell the givers what became of their bundle."""
    first = bundle[0].message
    if not confirmed.done() or confirmed.cancelled():
        _fail(bundle, BrokerAway("no confirm in time"))
        return
    match confirmed.exception():
        case None:
            for waiting in bundle:
                if not waiting.confirmed.done():
                    waiting.confirmed.set_result(None)
        case DeliveryError() as error:
            log.error("message.unroutable", exchange=first.exchange, routing_key=first.routing_key)
            _fail(bundle, BrokerAway(f"unroutable: {type(error).__name__}"))
        case ChannelClosed() as error:
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
        case error:
            _fail(bundle, BrokerAway(f"no confirm: {type(error).__name__}"))


def _fail(batch: list[_Waiting], error: Exception) -> None:
    for waiting in batch:
        if not waiting.confirmed.done():
            waiting.confirmed.set_exception(error)

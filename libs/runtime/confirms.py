"""Publishing with confirms where many messages leave in one write.

The driver's own publish takes a lock, a timer, a task and four futures for each message: about 100 microseconds,
which is a tenth of a turn. Here the frames of a whole batch are put together, and its confirms share one timer.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiormq
from aiormq.abc import ChannelFrame
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.commands import Basic
from pamqp.header import ContentHeader


@dataclass(eq=False)
class Sent:
    """A message on its way. `confirmed` raises DeliveryError when it was returned or refused, ChannelClosed when the
    broker closed the channel because of a message, AMQPConnectionError when the connection is lost."""

    message_id: str
    frames: list[bytes]
    confirmed: "asyncio.Future[Any]"


class ConfirmChannel:
    """A channel in confirm mode that nobody else publishes on. The driver still reads it and tells of its confirms."""

    def __init__(self, channel: aiormq.Channel) -> None:
        self._channel = channel
        self._open: set[asyncio.Future[Any]] = set()
        channel.closing.add_done_callback(self._closed)

    @property
    def closed(self) -> bool:
        """Whether the channel is of no more use."""
        return bool(self._channel.is_closed)

    def pack(
        self, body: bytes, *, exchange: str, routing_key: str, mandatory: bool, properties: Basic.Properties
    ) -> Sent:
        """A message in frames, for `send`. Raises what the encoder raises; nothing is sent yet.

        `properties.message_id` must differ from that of every message in flight: a return names nothing else.
        """
        publish = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        header = ContentHeader(properties=properties, body_size=len(body))
        parts: list[Any] = [publish, header, *self._channel._split_body(body)]
        frames = [frame.marshal(part, self._channel.number) for part in parts]
        return Sent(str(properties.message_id), frames, asyncio.get_running_loop().create_future())

    async def send(self, batch: Sequence[Sent], *, seconds: float) -> None:
        """Write all in their order, and wait until each is confirmed, or cancelled because it took too long."""
        waiting = [sent.confirmed for sent in batch]
        self._open.update(waiting)
        try:
            async with asyncio.timeout(seconds):
                await self._write(batch)
                await asyncio.wait(waiting)
        except TimeoutError:
            return
        finally:
            for sent in batch:
                self._open.discard(sent.confirmed)
                self._channel.message_id_delivery_tag.pop(sent.message_id, None)
                sent.confirmed.cancel()

    async def _write(self, batch: Sequence[Sent]) -> None:
        """The broker counts what arrives: numbers are given in the order of writing, and taken back if none is."""
        channel = self._channel
        async with channel.lock:
            before = channel.delivery_tag
            for sent in batch:
                channel.delivery_tag += 1
                channel.confirmations[channel.delivery_tag] = sent.confirmed
                channel.message_id_delivery_tag[sent.message_id] = channel.delivery_tag
            payload = b"".join(part for sent in batch for part in sent.frames)
            try:
                await channel.write_queue.put(ChannelFrame(payload=payload, should_close=False))
            except BaseException:
                for tag in range(before + 1, channel.delivery_tag + 1):
                    del channel.confirmations[tag]
                channel.delivery_tag = before
                raise

    def _closed(self, closing: "asyncio.Future[Any]") -> None:
        """Nothing more will be confirmed."""
        error = None if closing.cancelled() else closing.exception()
        for confirmed in self._open:
            if not confirmed.done():
                confirmed.set_exception(error or AMQPConnectionError("the channel is closed"))

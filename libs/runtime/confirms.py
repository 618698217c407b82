"""Publishing with confirms where many messages leave in one write.

The driver's own publish takes a lock, a timer, a task and four futures for each message: about 100 microseconds,
which is a tenth of a turn. Here the frames of a whole batch are put together, and its confirms share one timer.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiormq
from aiormq.abc import ChannelFrame
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from pamqp.commands import Basic
from pamqp.header import ContentHeader


class ConfirmChannel:
    """A channel in confirm mode that nobody else publishes on. The driver still reads it and tells of its confirms."""

    def __init__(self, channel: aiormq.Channel) -> None:
        self._channel = channel
        self._frames: list[bytes] = []
        self._open: dict[asyncio.Future[Any], str] = {}
        channel.closing.add_done_callback(self._closed)

    @property
    def closed(self) -> bool:
        """Whether the channel is of no more use."""
        return bool(self._channel.is_closed)

    def add(
        self, body: bytes, *, exchange: str, routing_key: str, mandatory: bool, properties: Basic.Properties
    ) -> "asyncio.Future[Any]":
        """Put a message into the next write; the future is done with its confirm.

        It raises DeliveryError when the message was returned or refused, ChannelClosed when the broker closed the
        channel because of a message, AMQPConnectionError when the connection is lost.
        `properties.message_id` must differ from that of every message in flight: a return names nothing else.
        """
        channel = self._channel
        publish = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        header = ContentHeader(properties=properties, body_size=len(body))
        parts: list[Any] = [publish, header, *channel._split_body(body)]
        frames = [frame.marshal(part, channel.number) for part in parts]  # before it has a number: this may fail
        confirmed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.delivery_tag += 1
        channel.confirmations[channel.delivery_tag] = confirmed
        message_id = str(properties.message_id)
        channel.message_id_delivery_tag[message_id] = channel.delivery_tag
        self._open[confirmed] = message_id
        self._frames += frames
        return confirmed

    async def confirmed(self, sent: Sequence["asyncio.Future[Any]"], *, seconds: float) -> None:
        """Write what was added and wait until each is done, or cancelled because it took longer than `seconds`."""
        payload, self._frames = b"".join(self._frames), []
        try:
            if not self.closed:
                # Whole or not at all: the driver's queue takes one entry, so that numbers and messages never part.
                await self._channel.write_queue.put(ChannelFrame(payload=payload, should_close=False))
                await asyncio.wait(sent, timeout=seconds)
        finally:
            for confirmed in sent:
                confirmed.cancel()
                self._channel.message_id_delivery_tag.pop(self._open.pop(confirmed), None)

    def _closed(self, closing: "asyncio.Future[Any]") -> None:
        """Nothing more will be confirmed."""
        error = None if closing.cancelled() else closing.exception()
        for confirmed in self._open:
            if not confirmed.done():
                confirmed.set_exception(error or AMQPConnectionError("the channel is closed"))

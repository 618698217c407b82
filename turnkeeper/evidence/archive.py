"""Reading the archive: a RabbitMQ stream, over AMQP 0.9.1, from its first message to its last. Nothing is taken off."""

import asyncio

import aio_pika
import orjson
from aio_pika.abc import AbstractIncomingMessage
from pydantic import ValidationError

from libs.contracts.evidence import Block
from libs.contracts.tools import EvidenceSealed
from turnkeeper.client import over_amqp
from turnkeeper.target import Target

CONNECT_SECONDS = 10.0
QUIET_SECONDS = 2.0
"""A stream has no end that a reader is told of: after so long without a message there is no further one."""
PREFETCH = 200


def blocks(target: Target, session: str) -> list[Block]:
    """What the archive holds of a session, oldest first, each block once. Raises Unreachable, TargetError."""
    found: dict[tuple[int, int, str], Block] = {}
    for block in over_amqp(target, _read(target, session)):
        found.setdefault((block.first, block.head.number, block.head.hash), block)
    return [found[name] for name in sorted(found)]


async def _read(target: Target, session: str) -> list[Block]:
    name = target.topology().archive
    found: list[Block] = []
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: AbstractIncomingMessage) -> None:
        arrived.put_nowait(message.body)
        await message.ack()

    connection = await aio_pika.connect(target.amqp_url(), timeout=CONNECT_SECONDS)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(name, ensure=False)
        await queue.consume(on_message, arguments={"x-stream-offset": "first"}, timeout=CONNECT_SECONDS)
        while True:
            try:
                body = await asyncio.wait_for(arrived.get(), QUIET_SECONDS)
            except TimeoutError:
                return found
            if (block := _block(body, session)) is not None:
                found.append(block)


def _block(raw: bytes, session: str) -> Block | None:
    try:
        envelope = orjson.loads(raw)
        if envelope.get("session") != session or envelope.get("type") != EvidenceSealed.wire_type():
            return None
        return EvidenceSealed.model_validate(envelope["body"]).block
    except (orjson.JSONDecodeError, AttributeError, KeyError, ValidationError):
        return None  # nobody of ours wrote it

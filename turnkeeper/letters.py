"""Dead letters over AMQP: look without taking, send again to where they came from, or drop.

A look takes the letters off the queue for as long as its channel is open; closing the channel returns them all, in
their places, so that a command that dies loses nothing.
"""

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aio_pika
import orjson
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from libs.contracts.codec import BUNDLE_TYPE, join
from libs.contracts.ids import derive_id
from turnkeeper.client import Client, ClientError, Refused, over_amqp
from turnkeeper.target import Target

CONNECT_SECONDS = 10.0
MOST_LETTERS = 10_000
_HAPPENED = frozenset({"committed", "unknown", "pending"})
"""States in which an operation had its effect, or may have had it."""
T = TypeVar("T")


@dataclass(frozen=True)
class Letter:
    """One dead letter. `message` is the envelope that could not be handled, as it was."""

    id: str
    service: str
    reason: str
    detail: str
    exchange: str
    routing_key: str
    session: str
    at: int
    """When it was given up, milliseconds (Unix)."""
    message: Mapping[str, Any]

    @property
    def type(self) -> str:
        """Wire type of the message, `unreadable` where it has none."""
        return "event" if self.raw is not None else str(self.message.get("type", "unreadable"))

    @property
    def raw(self) -> str | None:
        """An event's body in base64, where the letter is of a delivery of the events exchange."""
        raw = self.message.get("raw_base64")
        return raw if isinstance(raw, str) else None


@dataclass(frozen=True)
class _Taken:
    letter: Letter
    delivery: AbstractIncomingMessage


def letters(target: Target) -> list[Letter]:
    """All dead letters, oldest first; nothing is taken. Raises Unreachable."""
    return over_amqp(target, _look(target))


def count(target: Target) -> int:
    """How many there are. Raises Unreachable."""
    return over_amqp(target, _count(target))


def find(target: Target, id: str) -> Letter:
    """One letter by its id or the beginning of it. Raises ClientError."""
    return _pick(letters(target), id, lambda letter: letter)


def replay(client: Client, id: str) -> Letter:
    """Send a letter's message again to where it came from, then drop the letter.

    Raises ClientError for what had its effect, or can have none: then the letter stays.
    """
    letter = find(client.target, id)
    if fault := replay_fault(client, letter):
        raise ClientError(f"{letter.id} is not replayed: {fault}")
    return over_amqp(client.target, _take(client.target, letter.id, send=True))


def drop(target: Target, id: str) -> Letter:
    """Take a letter off the queue for good. Raises ClientError."""
    letter = find(target, id)
    return over_amqp(target, _take(target, letter.id, send=False))


def replay_fault(client: Client, letter: Letter) -> str | None:
    """Why a message must not be sent again, or cannot work, with what to do instead; None when it may."""
    if letter.exchange and letter.raw is not None:
        return _event_fault(letter)
    body = letter.message.get("body")
    if not letter.exchange or not isinstance(body, dict) or "type" not in letter.message:
        return f"it cannot be read; look at it (turnkeeper dead show {letter.id}) and drop it"
    match letter.type:
        case "tools.run_step.v1":
            return _operation_fault(client, letter, str(body.get("key", "")))
        case "ingress.input_accepted.v1":
            return _input_fault(client, letter, body.get("input"))
        case _:
            return None


def _event_fault(letter: Letter) -> str | None:
    if letter.message.get("cut"):
        size = letter.message.get("size")
        return f"only the beginning of its {size} bytes was kept: let its publisher publish it again"
    if user := letter.message.get("user_id"):
        return f"the broker vouched for {user} as its publisher, which we are not: let {user} publish it again"
    return None


def _operation_fault(client: Client, letter: Letter, key: str) -> str | None:
    try:
        operation = client.operation(letter.session, key)
    except Refused as refused:
        if refused.status == 404:
            return None  # never claimed: nothing was done
        raise
    if operation["state"] in _HAPPENED:
        return f"operation {operation['operation']} is {operation['state']}: it had, or may have had, its effect"
    return None


def _input_fault(client: Client, letter: Letter, input: Any) -> str | None:
    number = input.get("number") if isinstance(input, dict) else None
    if not isinstance(number, int):
        return f"it names no input; look at it (turnkeeper dead show {letter.id}) and drop it"
    applied = client.session(letter.session)["applied"]
    if number <= applied:
        return (
            f"input {number} of {letter.session} was folded in or passed over already (it is at {applied}): "
            "if its wish still stands, send it anew under another id"
        )
    return None


async def _look(target: Target) -> list[Letter]:
    async with _channel(target) as channel:
        return [taken.letter async for taken in _all(target, channel)]


async def _count(target: Target) -> int:
    async with _channel(target) as channel:
        queue = await channel.declare_queue(target.topology().dead, passive=True)
        return int(queue.declaration_result.message_count or 0)


async def _take(target: Target, id: str, *, send: bool) -> Letter:
    async with _channel(target) as channel:
        found = [taken async for taken in _all(target, channel)]
        taken = _pick(found, id, lambda one: one.letter)
        if send:
            await _send_again(channel, taken.letter)
        await taken.delivery.ack()
        return taken.letter


async def _send_again(channel: AbstractChannel, letter: Letter) -> None:
    """First to its queue, confirmed, and only then off this one: a crash between leaves a letter too many, not one
    too few, and the next hop knows its id."""
    exchange = await channel.get_exchange(letter.exchange, ensure=False)
    await exchange.publish(_message(letter), letter.routing_key, mandatory=True, timeout=CONNECT_SECONDS)


def _message(letter: Letter) -> aio_pika.Message:
    """The message as it came: an event's own bytes and headers, since its signature covers them, else the envelope."""
    if letter.raw is not None:
        return aio_pika.Message(
            base64.b64decode(letter.raw),
            headers=dict(letter.message.get("headers") or {}),
            content_type=letter.message.get("content_type") or None,
            message_id=letter.message.get("message_id") or None,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
    return aio_pika.Message(
        join([orjson.dumps(dict(letter.message))]),
        content_type=BUNDLE_TYPE,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
    )


@asynccontextmanager
async def _channel(target: Target) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(target.amqp_url(), timeout=CONNECT_SECONDS)
    async with connection:
        yield await connection.channel(publisher_confirms=True, on_return_raises=True)


async def _all(target: Target, channel: AbstractChannel) -> AsyncIterator[_Taken]:
    queue = await channel.get_queue(target.topology().dead, ensure=False)
    for _ in range(MOST_LETTERS):
        delivery = await queue.get(no_ack=False, fail=False, timeout=CONNECT_SECONDS)
        if delivery is None:
            return
        yield _Taken(_read(delivery.body), delivery)


def _read(raw: bytes) -> Letter:
    try:
        envelope = orjson.loads(raw)
        body = envelope["body"]
        return Letter(
            id=envelope["id"],
            service=body["service"],
            reason=body["reason"],
            detail=body.get("detail", ""),
            exchange=body.get("exchange", ""),
            routing_key=body.get("routing_key", ""),
            session=envelope.get("session", ""),
            at=envelope.get("at", 0),
            message=body["message"] if isinstance(body.get("message"), dict) else {"unreadable": body.get("message")},
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = raw.decode("utf-8", "replace")[:4096]
        return Letter(_nameless(raw), "unknown", "unreadable", "", "", "", "", 0, {"unreadable": text})


def _nameless(raw: bytes) -> str:
    # Only so that it can be named on the command line: a letter that nobody of ours wrote.
    return derive_id("letter", raw.decode("latin-1"))


def _pick(found: list[T], id: str, letter_of: Callable[[T], Letter]) -> T:
    fitting = [one for one in found if letter_of(one).id.startswith(id)]
    if len(fitting) != 1:
        many = "no letter begins" if not fitting else f"{len(fitting)} letters begin"
        raise ClientError(f"{many} with {id!r}: see turnkeeper dead list")
    return fitting[0]

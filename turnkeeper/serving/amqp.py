"""A planner that takes its requests from RabbitMQ, as the planner `amqp` gives them (docs/planners.md)."""

import asyncio
import contextlib
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage

from libs.contracts.topology import PLANNER, Topology
from turnkeeper.serving.planners import Planner
from turnkeeper.target import DEFAULT_STATE, find_target

PARTITIONS = 1
"""A planner's names do not depend on how many there are."""
CONFIRM_SECONDS = 10.0


def work(planner: Planner, url: str | None, namespace: str | None, at_once: int) -> None:
    """Answer requests until interrupted: see `Planner.work`. Raises TargetError."""
    if url is None:
        target = find_target(Path(os.environ.get("TURNKEEPER_STATE") or DEFAULT_STATE))
        url, namespace = target.amqp_url(), target.namespace if namespace is None else namespace
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_until_stopped(planner, url, namespace or "", at_once))


async def _until_stopped(planner: Planner, url: str, namespace: str, at_once: int) -> None:
    async with working(planner, url, namespace, at_once):
        print(f"{planner.name} takes requests", flush=True)
        await asyncio.Future()


@contextlib.asynccontextmanager
async def working(planner: Planner, url: str, namespace: str, at_once: int = 20) -> AsyncIterator[None]:
    """Answer requests within the block, over a connection that is made again when it is lost."""
    topology = Topology(namespace, PARTITIONS)
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=at_once)
        plans = await channel.get_exchange(topology.plans, ensure=False)
        queue = await channel.get_queue(topology.work_queue(PLANNER), ensure=False)

        async def answer(message: AbstractIncomingMessage) -> None:
            await _answer(planner, message, plans)

        tag = await queue.consume(answer)
        try:
            yield
        finally:
            with contextlib.suppress(aio_pika.exceptions.AMQPError, ConnectionError):
                await queue.cancel(tag)


async def _answer(planner: Planner, message: AbstractIncomingMessage, plans: AbstractExchange) -> None:
    """Answer what a message asks, then acknowledge it: should this process end before, another one gets it."""
    try:
        for envelope in _envelopes(message.body):
            made = json.dumps(await _planned(planner, envelope)).encode()
            await plans.publish(aio_pika.Message(made, content_type="application/json"), "", timeout=CONFIRM_SECONDS)
    except (ValueError, LookupError, TypeError):
        _tell(planner)  # no request: it would be none for the next one either
    except (aio_pika.exceptions.AMQPError, OSError, TimeoutError):
        with contextlib.suppress(aio_pika.exceptions.AMQPError, OSError):
            await message.nack()
        return
    await message.ack()


def _envelopes(body: bytes) -> list[dict[str, Any]]:
    value = json.loads(body)
    return list(value) if isinstance(value, list) else [value]


async def _planned(planner: Planner, envelope: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request. Where the function raises it is no plan, which ends the turn at once and says why.

    Raises ValueError, LookupError or TypeError for what is no request.
    """
    request = envelope["body"]
    named = {"session": envelope["session"], **{name: request[name] for name in ("turn", "plan", "token")}}
    view = {**request["view"], "plan": request["plan"], "deadline": request["deadline"]}
    try:
        return {**named, **(await planner.answer(view)).model_dump(mode="json")}
    except Exception as error:
        _tell(planner)
        return {**named, f"raised {type(error).__name__}": True}


def _tell(planner: Planner) -> None:
    """What was raised, for whoever watches the process."""
    print(f"{planner.name} raised:\n{traceback.format_exc()}", file=sys.stderr, flush=True)

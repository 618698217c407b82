"""What a throw-away stack leaves on servers that somebody else runs, and how it is taken away again."""

import asyncio
import contextlib

import aio_pika
import redis

from libs.contracts.keys import Keys
from libs.contracts.topology import Topology

_SECONDS = 10.0
_SCAN = 1_000


def remove(redis_url: str, amqp_url: str, topology: Topology) -> None:
    """Delete the queues, exchanges and keys of one namespace, which must not be empty: nobody else's are touched.

    What is there already gone, or cannot be reached, is left: the stack is stopped, and nothing waits for it.
    """
    if not topology.namespace:
        raise ValueError("without a namespace everything on these servers would be meant")
    with contextlib.suppress(TimeoutError, OSError, aio_pika.exceptions.AMQPError):
        asyncio.run(asyncio.wait_for(_remove_topology(amqp_url, topology), _SECONDS))
    with contextlib.suppress(redis.RedisError, OSError):
        _remove_keys(redis_url, topology.namespace)


async def _remove_topology(url: str, topology: Topology) -> None:
    async with await aio_pika.connect(url, timeout=_SECONDS) as connection:
        channel = await connection.channel()
        for queue in topology.queues():
            await channel.queue_delete(queue.name)
        for exchange in topology.exchanges():
            await channel.exchange_delete(exchange.name)


def _remove_keys(url: str, namespace: str) -> None:
    with redis.Redis.from_url(url, socket_timeout=_SECONDS) as client:
        for key in client.scan_iter(match=Keys(namespace).everything, count=_SCAN):
            client.unlink(key)

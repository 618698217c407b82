"""Declare a topology on a broker: what the engines do for `turnkeeper up`. In a deployment RabbitMQ imports
`definitions.json` instead, and no service may configure anything."""

import asyncio

import aio_pika

from libs.contracts.topology import Topology

RECOVERING = "is down or inaccessible"
"""RabbitMQ says so (404) of a queue that it has and that did not come up yet: a stream takes longer than the node."""
POLL_SECONDS = 0.25


async def declare(amqp_url: str, topology: Topology, patience: float = 0.0) -> None:
    """Declare exchanges, queues and bindings; all durable, so that doing it again changes nothing.

    `patience` in seconds is for a broker that has just started: so long it is asked again while a queue recovers.
    Raises what aio-pika raises when the broker is away or holds one of them with other arguments.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while True:
        try:
            return await _declare(amqp_url, topology)
        except aio_pika.exceptions.ChannelNotFoundEntity as error:
            if RECOVERING not in str(error) or loop.time() >= end:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _declare(amqp_url: str, topology: Topology) -> None:
    connection = await aio_pika.connect(amqp_url, timeout=10)
    async with connection, connection.channel() as channel:
        exchanges = {}
        for exchange in topology.exchanges():
            exchanges[exchange.name] = await channel.declare_exchange(exchange.name, exchange.type, durable=True)
        queues = {}
        for queue in topology.queues():
            queues[queue.name] = await channel.declare_queue(queue.name, durable=True, arguments=dict(queue.arguments))
        for binding in topology.bindings():
            await queues[binding.queue].bind(exchanges[binding.exchange], binding.routing_key)

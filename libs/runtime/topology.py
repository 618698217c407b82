"""Declare a topology on a broker: what the engines do for `turnkeeper up`. In a deployment RabbitMQ imports
`definitions.json` instead, and no service may configure anything."""

import aio_pika

from libs.contracts.topology import Topology


async def declare(amqp_url: str, topology: Topology) -> None:
    """Declare exchanges, queues and bindings; all durable, so that doing it again changes nothing.

    Raises what aio-pika raises when the broker is away or holds one of them with other arguments.
    """
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

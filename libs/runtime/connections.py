"""Connections to RabbitMQ and Redis that come back by themselves.

RabbitMQ gets two connections a process: a blocked publisher must not hold up acknowledgements (5-facts).
"""

import asyncio
import random
from urllib.parse import quote, urlsplit, urlunsplit

import aio_pika
import structlog
from aio_pika.abc import AbstractChannel, AbstractConnection
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from libs.contracts.errors import BrokerAway

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 5
"""A silent owner's partitions are given away after about 15 s; with 20 it would be 60 (5-facts)."""
CONNECT_SECONDS = 10


def with_password(url: str, password: str | None, user: str | None = None) -> str:
    """The URL with a password that came apart from it, as from a secret file."""
    if not password:
        return url
    parts = urlsplit(url)
    name = quote(parts.username or user or "", safe="")
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:{quote(password, safe='')}@{host}"))


def connect_redis(url: str, client_name: str) -> Redis:
    """A client for state changes: no retries, since an error means that the outcome is unknown (5-facts)."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=50,
        timeout=2,
        socket_timeout=2,
        socket_connect_timeout=2,
        health_check_interval=15,
        retry=Retry(NoBackoff(), 0),
        client_name=client_name,
        protocol=2,
    )
    return Redis.from_pool(pool)


class Link:
    """One AMQP connection, opened on demand and again after it was lost."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: AbstractConnection | None = None
        self._lock = asyncio.Lock()
        self._closing = False

    @property
    def connected(self) -> bool:
        """Whether the connection stands."""
        # `is_closed` tells only of a close that we asked for; `connected` is cleared when the peer is gone.
        return self._connection is not None and not self._connection.is_closed and self._connection.connected.is_set()

    async def get(self) -> AbstractConnection:
        """The connection; waits, with jittered backoff, until there is one."""
        delay = 0.2
        async with self._lock:
            while self._connection is None or not self.connected:
                if self._closing:
                    raise BrokerAway("the process is stopping")
                try:
                    self._connection = await aio_pika.connect(
                        self._url,
                        heartbeat=HEARTBEAT_SECONDS,
                        timeout=CONNECT_SECONDS,
                        client_properties={"connection_name": self._name},
                    )
                    log.info("broker.connected", connection=self._name)
                except (TimeoutError, OSError, aio_pika.exceptions.AMQPError) as error:
                    log.warning("broker.away", connection=self._name, error=type(error).__name__)
                    await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
                    delay = min(delay * 2, 2.0)
        return self._connection

    async def channel(self, *, confirms: bool) -> AbstractChannel:
        """A new channel. Raises what aio-pika raises when the connection is lost meanwhile."""
        connection = await self.get()
        channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
        await channel.initialize(timeout=CONNECT_SECONDS)
        return channel

    async def blocked(self) -> bool:
        """Whether RabbitMQ has blocked this connection (memory or disk alarm)."""
        transport = self._connection.transport if self._connection else None
        if transport is None:
            return True
        try:
            await asyncio.wait_for(transport.connection.ready(), 0.05)
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Close for good."""
        self._closing = True
        if self._connection is not None:
            try:
                await asyncio.wait_for(self._connection.close(), 3)
            except Exception as error:  # closing a lost connection may raise anything; it is gone either way
                log.debug("broker.close_failed", error=type(error).__name__)


class Broker:
    """The two connections of a process."""

    def __init__(self, url: str, name: str) -> None:
        self.publishing = Link(url, f"{name}-publish")
        self.consuming = Link(url, f"{name}-consume")

    async def ready(self) -> str | None:
        """None when both connections stand and publishing is not blocked, else what is wrong."""
        if not (self.publishing.connected and self.consuming.connected):
            return "RabbitMQ is not connected"
        if await self.publishing.blocked():
            return "RabbitMQ has blocked publishing (memory or disk alarm)"
        return None

    async def keep(self) -> None:
        """Open the publishing connection again where it was lost, so that readiness does not wait for a message."""
        await self.publishing.get()

    async def close(self) -> None:
        """Close both."""
        await asyncio.gather(self.publishing.close(), self.consuming.close())

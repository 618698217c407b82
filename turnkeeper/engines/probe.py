"""Whether Redis and RabbitMQ answer, asked in their own protocols and without an Erlang VM."""

import re
import socket
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_TIMEOUT_SECONDS = 2.0
_POLL_SECONDS = 0.1
_CONNECTION_START = b"\x00\x0a\x00\x0a"
_VERSION = re.compile(rb"\x07versionS....(\d+(?:\.\d+)*)", re.DOTALL)


def redis_fault(url: str) -> str | None:
    """Why Redis does not serve at this URL, without its password; None when it does."""
    client = redis.Redis.from_url(
        url,
        socket_timeout=_TIMEOUT_SECONDS,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return f"Redis at {place(url)} does not answer: {error}"
    finally:
        client.close()
    return None


def rabbitmq_fault(url: str) -> str | None:
    """Why RabbitMQ does not serve at this URL, without its password; None when it does.

    RabbitMQ opens its listener at the very end of its boot, so its first frame means that it is ready. A port that
    only accepts a connection may be the container engine's, in front of a server that still boots.
    """
    try:
        frame = _first_frame(url)
    except OSError as error:
        return f"RabbitMQ at {place(url)} does not answer: {error}"
    if _CONNECTION_START not in frame[:16]:
        return f"RabbitMQ at {place(url)} does not answer: what listens there does not speak AMQP 0-9-1"
    return None


def rabbitmq_version(url: str) -> tuple[int, ...]:
    """The broker's version, as it tells every client before login. Raises OSError if it does not answer."""
    found = _VERSION.search(_first_frame(url))
    if found is None:
        raise OSError(f"RabbitMQ at {place(url)} told no version")
    return tuple(int(part) for part in found[1].split(b"."))


def wait_for(fault: Callable[[], str | None], seconds: float, alive: Callable[[], bool]) -> str | None:
    """Ask until there is no fault (None), `seconds` are over, or `alive` says that waiting is vain."""
    deadline = time.monotonic() + seconds
    while (found := fault()) is not None and time.monotonic() < deadline and alive():
        time.sleep(_POLL_SECONDS)
    return found


def place(url: str) -> str:
    """Host and port of a URL, without user and password."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _first_frame(url: str) -> bytes:
    parts = urlsplit(url)
    secure = parts.scheme == "amqps"
    address = (parts.hostname or "localhost", parts.port or (5671 if secure else 5672))
    with socket.create_connection(address, timeout=_TIMEOUT_SECONDS) as plain:
        plain.settimeout(_TIMEOUT_SECONDS)
        if not secure:
            return _hello(plain)
        with ssl.create_default_context().wrap_socket(plain, server_hostname=address[0]) as wrapped:
            return _hello(wrapped)


def _hello(connection: socket.socket) -> bytes:
    connection.sendall(b"AMQP\x00\x00\x09\x01")
    head = _exactly(connection, 7)
    return head + _exactly(connection, min(int.from_bytes(head[3:7], "big"), 65536))


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionResetError("connection closed before the first frame")
        received += part
    return received

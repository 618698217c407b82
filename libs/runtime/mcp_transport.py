"""Bounded ways to an MCP server: streamable HTTP and stdio. The SDK speaks the protocol; here are the limits of what a
hostile server can make us hold, and what is known of a request that got no answer.

Imported only where an MCP server is used: the SDK costs about a second of start-up.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
import httpx2
import mcp_types
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from libs.contracts.mcp import plain

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5.0
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER")
"""All that a server's process gets of our environment: the rest holds our secrets."""
_STDIN_CLOSED_SECONDS = 2.0
_TERMINATED_SECONDS = 2.0
_FAREWELL_SECONDS = 1.0
_DRAIN_SECONDS = 0.5
_STDERR_LINES = 5


class TooLong(Exception):
    """The server sent more than it may."""


@dataclass
class Attempt:
    """What is known of one request over HTTP, written while it is under way."""

    unsent: bool = False
    """Proved: no connection came about."""
    status: int = 0
    """The status of its answer, 0 for none."""
    fault: str = ""
    """Why there is no usable answer."""

    @property
    def said(self) -> str:
        """What went wrong with it, "" where nothing is known."""
        return self.fault or (f"the server answered with status {self.status}" if self.status >= 400 else "")


ATTEMPT: ContextVar[Attempt | None] = ContextVar("mcp_attempt", default=None)
"""The request of the task that sends it: the SDK posts each in its sender's context."""


@contextlib.contextmanager
def noted() -> Iterator[Attempt]:
    """What becomes known of the requests that this task sends meanwhile. Over stdio nothing does."""
    attempt = Attempt()
    token = ATTEMPT.set(attempt)
    try:
        yield attempt
    finally:
        ATTEMPT.reset(token)


class _Body(httpx2.AsyncByteStream):
    """An answer's body, cut off by a fault of its own kind once it is too long. The SDK answers a StreamError by
    failing that one request, and any other error by ending the session and every request in flight."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, attempt: Attempt) -> None:
        self._stream = stream
        self._limit = limit
        self._attempt = attempt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        try:
            async for chunk in self._stream:
                length += len(chunk)
                if length > self._limit:
                    self._attempt.fault = f"the server's answer is longer than {self._limit} bytes"
                    raise httpx2.StreamError(self._attempt.fault)
                yield chunk
        except httpx2.TransportError as error:
            self._attempt.fault = f"the connection was cut: {type(error).__name__}"
            raise httpx2.StreamError(self._attempt.fault) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Bounded(httpx2.AsyncBaseTransport):
    """Requests to one server. What goes wrong with a POST becomes an answer that fails it alone."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, limit: int) -> None:
        self._inner = inner
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        posted = request.method == "POST"
        attempt = (ATTEMPT.get() if posted else None) or Attempt()
        # The farewell to a server that hangs is not waited for.
        until = asyncio.timeout(_FAREWELL_SECONDS if request.method == "DELETE" else None)
        try:
            async with until:
                response = await self._inner.handle_async_request(request)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("no answer", request=request) from error
        except httpx2.TransportError as error:
            if not posted:
                raise
            attempt.unsent = isinstance(error, _NOT_SENT)
            attempt.fault = ("not connected: " if attempt.unsent else "the connection was cut: ") + type(error).__name__
            return httpx2.Response(502, request=request)
        attempt.status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            # Not asked for: a few bytes of it may unfold to any number.
            await response.aclose()
            attempt.fault = "the server compressed its answer, which was not asked for"
            return httpx2.Response(502, request=request)
        if posted and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Body(response.stream, self._limit, attempt)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


@contextlib.asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], limit: int) -> AsyncIterator[TransportStreams]:
    """Streams to a server at a URL; messages of at most `limit` bytes. The SDK follows no redirect to another origin.

    The read timeout is the caller's: a call may be answered late over a stream that is silent meanwhile.
    """
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=2.0)
    transport = _Bounded(httpx2.AsyncHTTPTransport(limits=limits, trust_env=False), limit)
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
    async with (
        httpx2.AsyncClient(
            transport=transport, headers={**headers, "Accept-Encoding": "identity"}, timeout=timeout, trust_env=False
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=limit) as streams,
    ):
        yield streams


@dataclass
class _Process:
    """A server's process, in a session of its own so that all it started ends with it."""

    process: asyncio.subprocess.Process
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=_STDERR_LINES))

    async def end(self) -> None:
        """Close its input, wait, terminate, kill: the order that MCP names for stdio."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        for seconds, number in ((_STDIN_CLOSED_SECONDS, signal.SIGTERM), (_TERMINATED_SECONDS, signal.SIGKILL)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), seconds)
                break
            self._signal(number)
        self._signal(signal.SIGKILL)  # what it left behind
        await self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    async def keep_stderr(self) -> None:
        """Read what it complains of, so that it never blocks on it; the last lines are kept."""
        stream = self.process.stderr
        while stream is not None and (chunk := await stream.read(4_096)):
            self.stderr.extend(line for line in chunk.decode(errors="replace").splitlines() if line.strip())


@contextlib.asynccontextmanager
async def over_stdio(
    command: tuple[str, ...], env: Mapping[str, str], limit: int, ended: Callable[[str], None]
) -> AsyncIterator[TransportStreams]:
    """Streams to a server that is started here; messages of at most `limit` bytes. `ended` is told, once, why there
    will be no more messages. Raises OSError where it cannot be started.

    The SDK's own stdio transport keeps a line of any length, so the pipes are read here.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    process = _Process(
        await asyncio.create_subprocess_exec(
            *command, env={**inherited, **env}, limit=limit, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
    )  # fmt: skip
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(process, to_session, ended))
    tasks = [
        reading,
        asyncio.create_task(_give_up(process, reading)),
        asyncio.create_task(_write(process, from_session)),
        asyncio.create_task(process.keep_stderr()),
    ]
    try:
        yield from_server, to_server
    finally:
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()
        ending = asyncio.create_task(_end(process, tasks))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending  # no process of ours is left behind, also when we are told to stop at once
            raise


async def _end(process: _Process, tasks: "list[asyncio.Task[None]]") -> None:
    await process.end()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    process: _Process, to_session: MemoryObjectSendStream[SessionMessage | Exception], ended: Callable[[str], None]
) -> None:
    stdout = process.process.stdout
    why = "the server's process ended its output"
    try:
        with to_session:
            while stdout is not None and (line := await stdout.readline()):
                if line.strip():
                    await to_session.send(_message(line))
    except ValueError:
        why = "the server sent a message that is too long"
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        why = "the session was closed"
    finally:
        ended(why + (f"; it said: {plain(' | '.join(process.stderr))}" if process.stderr else ""))


async def _give_up(process: _Process, reading: "asyncio.Task[None]") -> None:
    """Stop reading once the process is gone: a child of its may hold the pipe open."""
    await process.process.wait()
    await asyncio.wait([reading], timeout=_DRAIN_SECONDS)
    reading.cancel()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return ValueError("a line that is no message of JSON-RPC")


async def _write(process: _Process, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    stdin = process.process.stdin
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        async with from_session:
            async for message in from_session:
                if stdin is None:
                    return
                stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()

"""One MCP server as a destination: a session that is kept open, and opened again when it is lost.

A server may hang, die, flood or lie; whoever calls hears of it in time and in words, and nothing else stops.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from libs.contracts.errors import ContractError
from libs.contracts.mcp import Hints, plain, schema_digest

if TYPE_CHECKING:  # costs about a second, so it is imported when the first session is opened
    from mcp.client import Client, ClientSession
    from mcp.client._transport import TransportStreams

log = structlog.get_logger(__name__)

OPEN_SECONDS = 20.0
"""For starting a server and for the handshake."""
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 30.0
_STEADY_SECONDS = 5.0
"""A session that lived shorter did not work: one that is opened only to be lost is opened ever more seldom."""
_MOST_PAGES = 100
_MOST_TOOLS = 10_000


class ServerFault(Exception):
    """The server cannot be used now; nothing of a call was sent. Its text may be shown."""


@dataclass(frozen=True)
class Address:
    """Which server, and how: a URL with headers, or a command with its environment. Equal ones share a session."""

    url: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    limit: int = 1_000_000
    """Bytes of the longest message."""

    @property
    def name(self) -> str:
        """For logs and faults: without a query, which may hold a token, and without arguments."""
        return plain(self.url.partition("?")[0] if self.url else self.command[0], 120)


@dataclass(frozen=True)
class Listed:
    """A tool as its server lists it now. Texts are the server's: data, whoever is shown them."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    hints: Hints

    @property
    def digest(self) -> str:
        """Of its schemas; raises ContractError for what is not JSON."""
        return schema_digest(self.input_schema, self.output_schema)


@dataclass
class Session:
    """One open session. `lost` is set when it is of no more use; it is closed when nobody uses it."""

    client: "ClientSession"
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    users: int = 0
    why: str = ""

    def lose(self, why: str) -> None:
        """Open another one instead. What is under way in this one may still be answered."""
        if not self.lost.is_set():
            self.why = why
            self.lost.set()

    async def tools(self) -> list[Listed]:
        """All tools that the server lists now. Raises ServerFault where it does not."""
        from mcp_types import PaginatedRequestParams

        from libs.runtime.mcp_transport import noted

        found: list[Listed] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            with noted() as attempt:
                try:
                    params = PaginatedRequestParams(cursor=cursor) if cursor else None
                    page = await self.client.list_tools(params=params)
                except Exception as error:
                    raise ServerFault(f"it does not list its tools: {attempt.said or _words(error)}") from error
            found += [_listed(tool) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return found
            if len(found) > _MOST_TOOLS:
                break
        raise ServerFault("its list of tools has no end")


def _listed(tool: Any) -> Listed:
    said = tool.annotations
    hints = Hints(said.read_only_hint, said.destructive_hint, said.idempotent_hint) if said else Hints()
    return Listed(tool.name, tool.description or "", tool.input_schema, tool.output_schema, hints)


class McpServer:
    """A server whose session `serve` keeps open. `first_wait` is the pause after a failure, in seconds; it doubles up
    to half a minute, with jitter."""

    def __init__(self, address: Address, *, first_wait: float = _FIRST_WAIT_SECONDS) -> None:
        self.address = address
        self._first_wait = first_wait
        self._current: Session | None = None
        self._changed = asyncio.Event()
        self._why = "its session is not open yet"
        self._keepers: set[asyncio.Task[None]] = set()
        self._watchers: list[Callable[[Sequence[Listed]], None]] = []

    def watch(self, told: Callable[[Sequence[Listed]], None]) -> None:
        """Tell of the server's tools each time that a session is opened."""
        self._watchers.append(told)

    async def serve(self) -> None:
        """Open a session whenever there is none, until cancelled; then close it."""
        wait = self._first_wait
        try:
            while True:
                session = await self._opened()
                if session is not None:
                    opened = asyncio.get_running_loop().time()
                    await session.lost.wait()
                    self._is_lost(session.why)
                    if asyncio.get_running_loop().time() - opened > _STEADY_SECONDS:
                        wait = self._first_wait
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
        finally:
            for keeper in self._keepers:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def session(self, within: float) -> AsyncIterator[Session]:
        """The open session, waited for at most so many seconds. Raises ServerFault where there is none by then."""
        session = await self._await_session(within)
        session.users += 1
        session.idle.clear()
        try:
            yield session
        finally:
            session.users -= 1
            if not session.users:
                session.idle.set()

    async def _await_session(self, within: float) -> Session:
        try:
            async with asyncio.timeout(within):
                while self._current is None or self._current.lost.is_set():
                    self._changed.clear()
                    await self._changed.wait()
                return self._current
        except TimeoutError:
            raise ServerFault(self._why) from None

    async def _opened(self) -> Session | None:
        """A new session, or None where it cannot be opened. It lives in a task of its own, since what the SDK opens
        has to be closed by the task that opened it."""
        ready: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        keeper = asyncio.create_task(self._keep(ready), name=f"mcp {self.address.name}")
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                session = await ready
                tools = await session.tools()
        except Exception as error:
            keeper.cancel()
            self._is_lost("it does not answer" if isinstance(error, TimeoutError) else _words(error))
            return None
        for told in self._watchers:
            told(tools)
        self._current = session
        self._changed.set()
        log.info("mcp.opened", server=self.address.name)
        return session

    async def _keep(self, ready: "asyncio.Future[Session]") -> None:
        session: Session | None = None
        ended: list[str] = []

        def on_end(why: str) -> None:
            ended.append(why)
            if session is not None:
                session.lose(why)

        try:
            async with _open(self.address, on_end) as client:
                session = Session(client.session)
                session.idle.set()
                for why in ended:
                    session.lose(why)
                if not ready.done():
                    ready.set_result(session)
                await session.lost.wait()
                await session.idle.wait()
        except Exception as error:
            why = ended[0] if ended else _words(error)
            if not ready.done():
                ready.set_exception(ServerFault(why))
        finally:
            if session is not None:
                session.lose("it was closed")

    def _is_lost(self, why: str) -> None:
        self._current = None
        if why != self._why:
            log.warning("mcp.not_open", server=self.address.name, reason=why)
        self._why = why


@contextlib.asynccontextmanager
async def open_session(address: Address) -> AsyncIterator[Session]:
    """One session for a short use, as of a command line. Raises ServerFault where it cannot be opened in time."""
    ended: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                client = await stack.enter_async_context(_open(address, ended.append))
        except TimeoutError:
            raise ServerFault("it does not answer") from None
        except Exception as error:
            raise ServerFault(ended[0] if ended else _words(error)) from error
        yield Session(client.session)


@contextlib.asynccontextmanager
async def _open(address: Address, ended: Any) -> "AsyncIterator[Client]":
    # The SDK's import takes long enough to hold up a loop, and the wheels of other sessions turn on it.
    await asyncio.to_thread(__import__, "libs.runtime.mcp_transport")
    from mcp.client import Client
    from mcp_types import Implementation

    from libs.runtime.mcp_transport import noted

    made = Client(_streams(address, ended), cache=None, client_info=Implementation(name="turnkeeper", version="1"))
    async with contextlib.AsyncExitStack() as stack:
        with noted() as attempt:
            try:
                client = await stack.enter_async_context(made)
            except Exception as error:
                raise ServerFault(attempt.said or _words(error)) from error
        yield client


def _streams(address: Address, ended: Any) -> "contextlib.AbstractAsyncContextManager[TransportStreams]":
    from libs.runtime.mcp_transport import over_http, over_stdio

    if address.url:
        return over_http(address.url, dict(address.headers), address.limit)
    return over_stdio(address.command, dict(address.env), address.limit, ended)


def _words(error: BaseException) -> str:
    """A fault in words: the server's are made plain, and of a group the first counts."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ContractError | ServerFault):
        return plain(str(error))
    if isinstance(error, OSError) and error.strerror:
        return plain(error.strerror)
    return (
        f"{type(error).__name__}: {plain(str(error))}" if type(error).__name__ == "MCPError" else type(error).__name__
    )

"""Group commit: the scripts that handlers call at the same time travel in one pipeline.

While one pipeline is under way the next one fills, so that the size of a batch follows the load by itself, and
one fsync of the append-only file serves all of it. A handler is written for one message (design §7).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    DataError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from libs.contracts.errors import StoreAway
from libs.runtime.pipe import Pipe
from libs.runtime.scripts import Reply, Script, parse_reply
from libs.runtime.tasks import cancelling

log = structlog.get_logger(__name__)

Arg = str | bytes | int
MAX_BATCH = 512
MAX_WAITING = 20_000
"""Calls that may wait; above, callers are told that the store is away instead of filling memory."""
_AWAY = ("MISCONF", "LOADING", "READONLY", "MASTERDOWN", "OOM", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED", "BUSY ")


class _Call:
    __slots__ = ("command", "done", "script")

    def __init__(self, command: Sequence[Arg], script: Script | None, done: "asyncio.Future[Any]") -> None:
        self.command = command
        self.script = script
        self.done = done


class Store:
    """Redis as handlers see it: scripts and plain commands, each awaited alone and sent together.

    A lost connection raises StoreAway: whether the command ran is unknown, and nothing is sent again here, since
    only the caller knows what a repeat would mean.
    """

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self._pipe = Pipe(redis)
        self._waiting: list[_Call] = []
        self._wake = asyncio.Event()
        self._available = True
        self._probe: asyncio.Task[None] | None = None

    @property
    def available(self) -> bool:
        """Whether the last contact succeeded."""
        return self._available

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Reply:
        """Run a script with the next batch. Raises StoreAway when no answer came."""
        raw = await self._enqueue(("EVALSHA", script.sha, len(keys), *keys, *args), script)
        return parse_reply(script, raw)

    async def command(self, *command: Arg) -> Any:
        """Run one plain command with the next batch; the reply as RESP2 has it, HGETALL as a dict."""
        reply = await self._enqueue(command, None)
        return dict(zip(reply[::2], reply[1::2], strict=True)) if command[0] == "HGETALL" else reply

    def _enqueue(self, command: Sequence[Arg], script: Script | None) -> "asyncio.Future[Any]":
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= MAX_WAITING:
            done.set_exception(StoreAway("too many calls wait for the store", retry_after=1.0))
            return done
        self._waiting.append(_Call(command, script, done))
        self._wake.set()
        return done

    async def serve(self) -> None:
        """Send batches until cancelled."""
        while not cancelling():
            await self._wake.wait()
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            if not self._waiting:
                self._wake.clear()
            try:
                await self._flush(batch)
            except asyncio.CancelledError:
                _fail(batch, StoreAway("the process is stopping"))
                raise

    async def _flush(self, batch: list[_Call]) -> None:
        replies = await self._send(batch)
        if missing := [call for call, reply in zip(batch, replies, strict=True) if isinstance(reply, NoScriptError)]:
            await self._load({call.script for call in missing if call.script})
            again = iter(await self._send(missing))
            replies = [next(again) if isinstance(reply, NoScriptError) else reply for reply in replies]
        for call, reply in zip(batch, replies, strict=True):
            if not call.done.done():
                _settle(call, reply)

    async def _send(self, batch: list[_Call]) -> list[Any]:
        try:
            replies = await self._pipe.exchange([call.command for call in batch])
        except DataError as error:
            # An argument that is no text or number, found before anything was sent: only its giver shall hear of it.
            if len(batch) == 1:
                return [error]
            return [(await self._send([call]))[0] for call in batch]
        except (RedisError, OSError) as error:
            self._lost(error)
            return [StoreAway(f"Redis gave no answer: {type(error).__name__}")] * len(batch)
        self._available = True
        return replies

    async def _load(self, scripts: set[Script]) -> None:
        try:
            for script in scripts:
                await self.redis.script_load(script.text)
        except RedisError as error:
            self._lost(error)

    def _lost(self, error: Exception) -> None:
        if self._available:
            log.warning("store.lost", error=type(error).__name__)
        self._available = False

    async def wait_back(self) -> None:
        """Return once Redis answers again. Many may wait; one asks."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ping_until_back())
        await asyncio.shield(self._probe)

    async def _ping_until_back(self) -> None:
        delay = 0.05
        while True:
            try:
                await self.redis.ping()
            except (RedisError, OSError) as error:
                self._lost(error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)
            else:
                if not self._available:
                    log.info("store.back")
                self._available = True
                return


def _settle(call: _Call, reply: Any) -> None:
    match reply:
        case StoreAway():
            call.done.set_exception(reply)
        case OutOfMemoryError():
            call.done.set_exception(StoreAway("Redis is out of memory", retry_after=5.0))
        case ReadOnlyError() | BusyLoadingError() | NoScriptError():
            call.done.set_exception(StoreAway(f"Redis cannot serve: {type(reply).__name__}"))
        case ResponseError() if str(reply).startswith(_AWAY):
            call.done.set_exception(StoreAway(f"Redis cannot serve: {str(reply).split(' ', 1)[0]}"))
        case Exception():
            call.done.set_exception(reply)
        case _:
            call.done.set_result(reply)


def _fail(batch: list[_Call], error: Exception) -> None:
    for call in batch:
        if not call.done.done():
            call.done.set_exception(error)

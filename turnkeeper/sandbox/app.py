"""The sandbox over HTTP: effects with an Idempotency-Key, the world as it is, and the raw log."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from libs.contracts.application import World as Collection
from turnkeeper.sandbox.holds import Holds
from turnkeeper.sandbox.log import DurableLog, LogError
from turnkeeper.sandbox.world import Entry, Request, World


def _answer(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


def _problem(status: int, title: str, detail: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """An error after RFC 9457."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return Response(orjson.dumps(body), status, headers, "application/problem+json")


class Sandbox:
    """The handlers. Nothing is answered before it is on disk, reads of what is still on its way included."""

    def __init__(self, world: World, log: DurableLog, now_ms: Callable[[], int]) -> None:
        self._world = world
        self._log = log
        self._now_ms = now_ms
        self._holds = Holds()

    async def effect(self, http: HttpRequest) -> Response:
        """`POST /v1/{collection}/put|change|find`. A key again: the stored answer; with another body: 422."""
        collection, verb = http.path_params["collection"], http.path_params["verb"]
        if collection not in self._world.collections:
            return _problem(404, "no such collection", collection)
        try:
            body = orjson.loads(await http.body() or b"{}")
        except orjson.JSONDecodeError:
            return _problem(400, "the body is not JSON")
        if not isinstance(body, dict):
            return _problem(400, "the body is not a JSON object")
        if verb == "find":
            return await self._find(collection, body)
        try:
            request = Request(collection=collection, verb=verb, body=body, at=self._now_ms(), **_told(http.headers))
        except ValidationError:
            return _problem(404, "no such verb", verb)
        await self._holds.passed(collection)
        return await self._commit(request)

    async def holds(self, http: HttpRequest) -> Response:
        """`POST /v1/holds/{collection}`: its effects wait; `DELETE …[?calls=N]`: the oldest N go on, or all and it is
        held no more; `GET /v1/holds`: how many wait. Reads are never held. For demos and tests of slow destinations."""
        collection = http.path_params.get("collection")
        if collection is not None and collection not in self._world.collections:
            return _problem(404, "no such collection", collection)
        calls = http.query_params.get("calls")
        if calls is not None and not (calls.isascii() and calls.isdecimal()):
            return _problem(400, "calls is a number")
        if collection is not None and http.method == "POST":
            self._holds.hold(collection)
        elif collection is not None:
            self._holds.release(collection, None if calls is None else int(calls))
        return _answer(200, {"waiting": self._holds.waiting()})

    async def world(self, http: HttpRequest) -> Response:
        """`GET /v1/world`: all records, and lines for people."""
        await self._log.settled()
        collections: dict[str, dict[str, Any]] = {
            name: {"heading": c.heading or name, "records": self._world.records(name), "lines": self._world.lines(name)}
            for name, c in self._world.collections.items()
        }
        return _answer(200, {"collections": collections, "lines": [_line(c) for c in collections.values()]})

    async def log(self, http: HttpRequest) -> Response:
        """`GET /v1/log`: every effect and refusal, in order; `?after=SEQ` leaves out the first ones."""
        after = http.query_params.get("after", "0")
        if not after.isascii() or not after.isdecimal():
            return _problem(400, "after is a number")
        await self._log.settled()
        return _answer(200, {"entries": [entry.model_dump() for entry in self._world.entries[int(after) :]]})

    async def ready(self, http: HttpRequest) -> Response:
        """`GET /readyz`: whether effects can be made durable."""
        if self._log.fault:
            return _problem(503, "not ready", self._log.fault)
        return _answer(200, {"status": "ready", "entries": len(self._world.entries)})

    async def _find(self, collection: str, body: dict[str, Any]) -> Response:
        where = body.get("where", body.get("args", {}))
        if not isinstance(where, dict):
            return _problem(400, "where is a JSON object")
        found = self._world.find(collection, where)
        await self._log.settled()
        return _answer(200, {"result": {"records": found}})

    async def _commit(self, request: Request) -> Response:
        known = self._world.known(request.key)
        if known is None:
            entry = self._world.judge(request)
            self._world.apply(entry)
            self._log.append(entry.model_dump())
        else:
            entry = known
        await self._log.settled()
        if entry.fingerprint != request.fingerprint():
            return _problem(422, "this Idempotency-Key was used for something else")
        return _outcome(entry, replayed=known is not None)


def _line(shown: Mapping[str, Any]) -> str:
    return f"{shown['heading']}: {'; '.join(shown['lines']) or 'nothing'}"


def _outcome(entry: Entry, *, replayed: bool) -> Response:
    headers = {"Idempotent-Replayed": "true"} if replayed else None
    if entry.outcome == "refused":
        return _problem(409, "refused", entry.reason, headers)
    return _answer(200, {"result": entry.answer()}, headers)


def _told(headers: Mapping[str, str]) -> dict[str, str]:
    """Who says to act, and for what. The key may be quoted (Idempotency-Key draft 07) or bare."""
    return {
        "key": headers.get("idempotency-key", "").strip('"'),
        "actor": headers.get("turnkeeper-actor", ""),
        "session": headers.get("turnkeeper-session", ""),
        "operation": headers.get("turnkeeper-operation", ""),
    }


def build(collections: Mapping[str, Collection], path: Path) -> Starlette:
    """The application over the log at `path`, its world rebuilt. Raises LogError for a log that cannot be used."""
    world, log = World(collections), DurableLog(path)
    for line in log.open():
        try:
            world.apply(Entry.model_validate(line))
        except ValueError as error:
            raise LogError(f"{path}: not a log of this world: {str(error).splitlines()[0]}") from error
    sandbox = Sandbox(world, log, lambda: time.time_ns() // 1_000_000)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        writer = asyncio.create_task(log.run(), name="sandbox log")
        yield
        with contextlib.suppress(LogError):
            await log.settled()
        writer.cancel()
        log.close()

    async def away(http: HttpRequest, error: Exception) -> Response:
        return _problem(503, "the log cannot be written", str(error))

    routes = [
        Route("/v1/world", sandbox.world),
        Route("/v1/log", sandbox.log),
        Route("/v1/holds", sandbox.holds),
        Route("/v1/holds/{collection}", sandbox.holds, methods=["POST", "DELETE"]),
        Route("/v1/{collection}/{verb}", sandbox.effect, methods=["POST"]),
        Route("/readyz", sandbox.ready),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={LogError: away})

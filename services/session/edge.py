"""Reading a session over HTTP: its state, its timeline as a page or as server-sent events, and what an event would do.
Any replica serves any session, since all is read from the store."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from libs.contracts.ids import is_slug
from libs.contracts.strict_json import Malformed, parse
from libs.runtime.apidocs import docs_routes
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.clock import Clock
from libs.runtime.problems import Problem, problem_handlers
from services.session.domain.explain import NotAnEvent, explain
from services.session.domain.rules import Rules
from services.session.domain.state import SessionState
from services.session.domain.view import messages
from services.session.openapi import DOCUMENT
from services.session.store import RedisSessions

POLL_SECONDS = 0.25
KEEP_ALIVE_ROUNDS = 60
MOST_SESSIONS = 1_000
MOST_BODY = 262_144
"""Bytes of an event to explain."""


class Edge:
    """The routes."""

    def __init__(
        self,
        sessions: RedisSessions,
        tokens: UserTokens,
        operators: Operators,
        clock: Clock,
        rules: Rules,
        *,
        stopping: asyncio.Event,
        most_streams: int,
    ) -> None:
        self._sessions = sessions
        self._tokens = tokens
        self._operators = operators
        self._clock = clock
        self._rules = rules
        self._stopping = stopping
        self._most_streams = most_streams
        self._streams = 0

    async def list(self, request: Request) -> Response:
        """Known sessions, newest first (operator)."""
        self._operators.check(request.headers.get("authorization"), "read")
        return JSONResponse({"sessions": await self._sessions.names(MOST_SESSIONS)})

    async def show(self, request: Request) -> Response:
        """One session's state, for its owner or an operator."""
        session, _ = await self._allowed(request)
        snapshot = await self._sessions.read(session)
        return JSONResponse(_shown(snapshot.state, snapshot.version, await self._sessions.owner(session) or ""))

    async def timeline(self, request: Request) -> Response:
        """Lines after a number, in order; as a stream where the client accepts `text/event-stream`."""
        session, until = await self._allowed(request)
        after = _after(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return self._stream(session, after, until)
        lines = await self._sessions.timeline(session, after)
        return JSONResponse({"lines": [line.model_dump() for line in lines]})

    async def history(self, request: Request) -> Response:
        """What the planner is shown of the past, as the chat messages that it would get now (operator)."""
        self._operators.check(request.headers.get("authorization"), "read")
        session, _ = await self._allowed(request)
        snapshot = await self._sessions.read(session)
        return JSONResponse({"messages": list(messages(snapshot.history))})

    async def record(self, request: Request) -> Response:
        """What each of the newest commits was decided from, and what came of it (operator): see `turnkeeper replay`."""
        self._operators.check(request.headers.get("authorization"), "read")
        session, _ = await self._allowed(request)
        return Response(await self._sessions.record(session), media_type="application/json")

    async def explain(self, request: Request) -> Response:
        """What would become of an event or a message, and by which rule; changes nothing (owner or operator). The body
        is `{"source", "type", "data"}`, `{"text", "as"}`, `{"cancel", "as"}`, `{"decision", "action", "as"}` or
        `{"timer", "data"}`."""
        session, _ = await self._allowed(request)
        event = await _body(request)
        snapshot = await self._sessions.read(session)
        owner = await self._sessions.owner(session) or ""
        try:
            found = explain(snapshot.state, event, self._rules, self._clock.now_ms(), owner=owner)
        except NotAnEvent as error:
            raise Problem(400, "malformed", "This is no event", str(error)) from None
        return JSONResponse({"session": session, "findings": [asdict(finding) for finding in found]})

    def _stream(self, session: str, after: int, until: float) -> Response:
        """Each stream asks the store four times a second for as long as it is open, so a replica has only so many."""
        if self._streams >= self._most_streams:
            raise Problem(
                503,
                "too-many-streams",
                "This replica follows as many timelines as it may",
                headers={"Retry-After": "5"},
            )
        self._streams += 1
        return _Events(self._events(session, after, until), self._stream_ended)

    def _stream_ended(self) -> None:
        self._streams -= 1

    async def _events(self, session: str, after: int, until: float) -> AsyncIterator[bytes]:
        """Lines until the service stops or the token that opened the stream ends (`until`, Unix seconds)."""
        quiet, seen = 0, -1
        while not self._stopping.is_set() and self._clock.now_ms() < until * 1000:
            version = await self._sessions.version(session)
            # The version first: a line that is committed meanwhile is read twice rather than never.
            for line in await self._sessions.timeline(session, after) if version != seen else ():
                after, quiet = line.seq, 0
                yield b"id: %d\nevent: line\ndata: %s\n\n" % (line.seq, orjson.dumps(line.model_dump()))
            seen = version
            quiet += 1
            if quiet % KEEP_ALIVE_ROUNDS == 0:
                yield b": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)

    async def _allowed(self, request: Request) -> tuple[str, float]:
        """The session's name once its owner or an operator asks, and how long that holds (Unix seconds). 404 where
        there is no such session."""
        session = str(request.path_params["session"])
        authorization = request.headers.get("authorization")
        owner = await self._sessions.owner(session) if is_slug(session) else None
        until = math.inf
        if self._operators.knows(authorization):
            self._operators.check(authorization, "read")
        else:
            user, until = await self._tokens.user_until(authorization)
            if owner is not None and user != owner:
                raise Problem(403, "not-the-owner", "This session belongs to somebody else")
        if owner is None:
            raise Problem(404, "no-such-session", "There is no such session")
        return session, until


class _Events(StreamingResponse):
    """Server-sent events that tell of their end, however it comes: a client that leaves, a fault, a stop."""

    def __init__(self, content: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _body(request: Request) -> dict[str, Any]:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MOST_BODY:
            raise Problem(413, "too-large", f"The body is over {MOST_BODY:,} bytes")
    try:
        body = parse(raw)
    except Malformed as error:
        raise Problem(400, "malformed", "The body is not acceptable", str(error)) from None
    if not isinstance(body, dict):
        raise Problem(400, "malformed", "The body is not acceptable", "it is an object")
    return body


def _after(request: Request) -> int:
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        title = "`after` and Last-Event-ID are whole numbers of timeline lines, of at most 18 digits"
        raise Problem(400, "bad-number", title)
    return int(text)


def _shown(state: SessionState, version: int, owner: str) -> dict[str, Any]:
    turn = state.turn
    return {
        "session": state.session,
        "owner": owner,
        "version": version,
        "applied": state.applied,
        "turn": {"id": turn.id, "origin": turn.origin.kind, "status": turn.status} if turn else None,
        "queued": len(state.queue),
        "open_actions": [action.id for action in state.actions.values() if action.asked],
        "operations": [
            operation.model_dump(include={"id", "tool", "state", "subject", "gone"})
            for operation in state.operations.values()
        ],
    }


def make_app(
    sessions: RedisSessions,
    tokens: UserTokens,
    operators: Operators,
    clock: Clock,
    rules: Rules,
    *,
    stopping: asyncio.Event,
    most_streams: int,
) -> Starlette:
    """The service's HTTP application. Its streams end once `stopping` is set."""
    edge = Edge(sessions, tokens, operators, clock, rules, stopping=stopping, most_streams=most_streams)
    routes = [
        Route("/v1/sessions", edge.list),
        Route("/v1/sessions/{session}", edge.show),
        Route("/v1/sessions/{session}/timeline", edge.timeline),
        Route("/v1/sessions/{session}/history", edge.history),
        Route("/v1/sessions/{session}/record", edge.record),
        Route("/v1/sessions/{session}/explain", edge.explain, methods=["POST"]),
    ]
    return Starlette(routes=[*routes, *docs_routes(DOCUMENT)], exception_handlers=problem_handlers)

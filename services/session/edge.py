"""Reading a session over HTTP: its state, and its timeline as a page or as server-sent events. Any replica serves any
session, since both are read from the store."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from libs.contracts.ids import is_slug
from libs.runtime.apidocs import docs_routes
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.problems import Problem, problem_handlers
from services.session.domain.state import SessionState
from services.session.domain.view import messages
from services.session.store import RedisSessions

POLL_SECONDS = 0.25
KEEP_ALIVE_ROUNDS = 60
MOST_SESSIONS = 1_000


class Edge:
    """The routes."""

    def __init__(self, sessions: RedisSessions, tokens: UserTokens, operators: Operators) -> None:
        self._sessions = sessions
        self._tokens = tokens
        self._operators = operators

    async def list(self, request: Request) -> Response:
        """Known sessions, newest first (operator)."""
        self._operators.check(request.headers.get("authorization"), "read")
        return JSONResponse({"sessions": await self._sessions.names(MOST_SESSIONS)})

    async def show(self, request: Request) -> Response:
        """One session's state, for its owner or an operator."""
        session = await self._allowed(request)
        snapshot = await self._sessions.read(session)
        return JSONResponse(_shown(snapshot.state, snapshot.version, await self._sessions.owner(session) or ""))

    async def timeline(self, request: Request) -> Response:
        """Lines after a number, in order; as a stream where the client accepts `text/event-stream`."""
        session = await self._allowed(request)
        after = _after(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return StreamingResponse(self._events(session, after), media_type="text/event-stream")
        lines = await self._sessions.timeline(session, after)
        return JSONResponse({"lines": [line.model_dump() for line in lines]})

    async def history(self, request: Request) -> Response:
        """What the planner is shown of the past, as the chat messages that it would get now (operator)."""
        self._operators.check(request.headers.get("authorization"), "read")
        session = await self._allowed(request)
        snapshot = await self._sessions.read(session)
        return JSONResponse({"messages": list(messages(snapshot.history))})

    async def _events(self, session: str, after: int) -> AsyncIterator[bytes]:
        quiet = 0
        while True:
            for line in await self._sessions.timeline(session, after):
                after, quiet = line.seq, 0
                yield b"id: %d\nevent: line\ndata: %s\n\n" % (line.seq, orjson.dumps(line.model_dump()))
            quiet += 1
            if quiet % KEEP_ALIVE_ROUNDS == 0:
                yield b": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)

    async def _allowed(self, request: Request) -> str:
        """The session's name, once its owner or an operator asks. 404 where there is none."""
        session = str(request.path_params["session"])
        authorization = request.headers.get("authorization")
        owner = await self._sessions.owner(session) if is_slug(session) else None
        if self._operators.knows(authorization):
            self._operators.check(authorization, "read")
        else:
            user = await self._tokens.user(authorization)
            if owner is not None and user != owner:
                raise Problem(403, "not-the-owner", "This session belongs to somebody else")
        if owner is None:
            raise Problem(404, "no-such-session", "There is no such session")
        return session


def _after(request: Request) -> int:
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not text.isascii() or not text.isdigit():
        raise Problem(400, "bad-number", "`after` and Last-Event-ID are whole numbers of timeline lines")
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


def make_app(sessions: RedisSessions, tokens: UserTokens, operators: Operators) -> Starlette:
    """The service's HTTP application."""
    edge = Edge(sessions, tokens, operators)
    routes = [
        Route("/v1/sessions", edge.list),
        Route("/v1/sessions/{session}", edge.show),
        Route("/v1/sessions/{session}/timeline", edge.timeline),
        Route("/v1/sessions/{session}/history", edge.history),
    ]
    return Starlette(routes=[*routes, *docs_routes("session", routes)], exception_handlers=problem_handlers)

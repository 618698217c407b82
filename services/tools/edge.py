"""The door over HTTP: its tools, the ledger for operators, and their word on what is unknown."""

from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI, Header, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from libs.contracts.ids import Slug
from libs.contracts.reasons import OperationState
from libs.runtime.auth import Operators
from libs.runtime.clock import Clock
from libs.runtime.problems import Problem, problem_handlers
from libs.runtime.strict_route import StrictRoute
from services.tools.answers import Answers
from services.tools.domain import Catalogue
from services.tools.store import RedisLedger, told_of

Authorization = Annotated[str | None, Header()]


class Resolution(BaseModel):
    """An operator's word. `note` says how they know."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["committed", "failed"]
    note: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=400)]


class Edge:
    """The routes' functions."""

    def __init__(
        self, catalogue: Catalogue, ledger: RedisLedger, answers: Answers, operators: Operators, clock: Clock
    ) -> None:
        self._catalogue = catalogue
        self._ledger = ledger
        self._answers = answers
        self._operators = operators
        self._clock = clock

    async def tools(self) -> dict[str, Any]:
        """The application's tools: what each does, when it asks, and its arguments' schema."""
        return {
            "tools": [
                {
                    "name": name,
                    "effect": tool.effect,
                    "consent": tool.gate,
                    "caused_by": list(tool.caused_by) if tool.caused_by is not None else None,
                    "standing": tool.standing,
                    "precondition": tool.precondition.tool if tool.precondition else None,
                    "keyed_seconds": tool.keyed.for_ if tool.keyed else None,
                    "args": tool.args,
                    "units": tool.units,
                    "identity": sorted(tool.identity),
                }
                for name, tool in {**self._catalogue.application.tools, **self._catalogue.raised}.items()
            ]
        }

    async def operations(
        self,
        session: Annotated[Slug | None, Query()] = None,
        state: Annotated[OperationState | None, Query()] = None,
        authorization: Authorization = None,
    ) -> dict[str, Any]:
        """Operations of a session, newest 500; without a session those that are unknown or pending."""
        self._operators.check(authorization, "read")
        if session is not None:
            members = [(session, key) for _, key in await self._ledger.of_session(session)]
        elif state in ("unknown", "pending"):
            members = await self._ledger.members("unknown" if state == "unknown" else "lease")
        else:
            raise Problem(400, "session-missing", "Say which session", "Or ask for state unknown or pending.")
        shown = [_shown(*member, await self._ledger.read(*member)) for member in members]
        return {"operations": [one for one in shown if one["state"] and state in (None, one["state"])]}

    async def operation(self, session: Slug, operation: str, authorization: Authorization = None) -> dict[str, Any]:
        """One operation, by what people call it (`O3`) or by its key."""
        self._operators.check(authorization, "read")
        key, fields = await self._found(session, operation)
        return _shown(session, key, fields)

    async def resolve(
        self, session: Slug, operation: str, word: Resolution, authorization: Authorization = None
    ) -> dict[str, Any]:
        """Say what became of an operation whose outcome is unknown. The same word again changes nothing."""
        operator = self._operators.check(authorization, "resolve")
        key, fields = await self._found(session, operation)
        now = self._clock.now_ms()
        note = f"resolved by {operator}: {word.note}"
        messages = self._answers.resolved(session, key, fields, word.state, note, told_of(fields), now)
        stands = await self._ledger.resolve(session, key, word.state, note, operator, messages, now)
        if stands is not None:
            raise Problem(409, "operation-not-unknown", "Its outcome is known", f"It is {stands}.")
        return _shown(session, key, await self._ledger.read(session, key))

    async def _found(self, session: str, operation: str) -> tuple[str, dict[str, str]]:
        key = await self._ledger.find(session, operation) or operation
        fields = await self._ledger.read(session, key)
        if not fields:
            raise Problem(404, "no-such-operation", "There is no such operation", f"{session} has no {operation}.")
        return key, fields


def _shown(session: str, key: str, fields: dict[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"session": session, "key": key, "operation": fields.get("id", "")}
    for name in ("state", "tool", "turn", "root", "action", "step", "reason", "resolved_by", "fault"):
        shown[name] = fields.get(name, "")
    for name in ("claimed_at", "finished_at", "not_after", "lease_until", "attempt", "looked_up", "call_number"):
        shown[name] = int(fields[name]) if fields.get(name) else None
    shown["standing"] = told_of(fields).standing
    for name in ("args", "result"):
        shown[name] = orjson.loads(fields[name]) if fields.get(name) else None
    return shown


async def _malformed(_: Request, error: Exception) -> Response:
    """400, with each fault by its place and without what was sent (RFC 9457, section 3)."""
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    errors = [{"at": ".".join(str(part) for part in fault["loc"]), "detail": fault["msg"]} for fault in faults]
    return Problem(400, "malformed", "The request cannot be read", errors=errors).response()


def create_app(edge: Edge) -> FastAPI:
    """The application, with its documentation under /docs."""
    handlers = {**problem_handlers, RequestValidationError: _malformed}
    app = FastAPI(title="Turnkeeper tools", description=__doc__, exception_handlers=handlers, redoc_url=None)
    app.router.route_class = StrictRoute
    app.get("/v1/tools")(edge.tools)
    app.get("/v1/operations")(edge.operations)
    app.get("/v1/operations/{session}/{operation}")(edge.operation)
    app.post("/v1/sessions/{session}/operations/{operation}/resolve")(edge.resolve)
    return app

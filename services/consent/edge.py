"""Consent over HTTP: what was asked, and the approver's decision. A GET never changes anything."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Path
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from libs.contracts.errors import TransientError
from libs.contracts.ids import SLUG_PATTERN
from libs.contracts.reasons import DecisionOutcome
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.problems import Problem, problem_handlers
from libs.runtime.strict_route import StrictRoute
from services.consent import domain
from services.consent.decisions import Decisions, Wish
from services.consent.domain import Record, Rules
from services.consent.ports import Actions, Emit

MAX_BODY = 16_384
Id = Annotated[str, Path(pattern=SLUG_PATTERN)]
Bearer = Annotated[str | None, Header()]
REFUSED: dict[str, tuple[int, str, str]] = {
    "wrong_person": (403, "not-the-approver", "Somebody else is asked"),
    "no_such_action": (404, "no-such-action", "There is no such action"),
    "superseded": (409, "superseded", "A newer question took its place"),
    "cancelled": (409, "cancelled", "The agent no longer asks"),
    "decided_otherwise": (409, "decided-otherwise", "It was decided otherwise before"),
    "expired": (410, "expired", "The time to decide is over"),
    "wrong_question": (412, "wrong-question", "This is not the question that is open"),
}


class Decision(BaseModel):
    """A decision names the action by its path and the question by its digest; it carries no arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Literal["accept", "decline", "cancel"]
    question_digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 (hex) of the question that was shown")


class Edge:
    """The routes and what they need."""

    def __init__(
        self,
        actions: Actions,
        decisions: Decisions,
        rules: Rules,
        users: UserTokens,
        operators: Operators,
        emit_for: Callable[[str, Record | None], Emit],
        nonce: Callable[[], str],
    ) -> None:
        self._actions = actions
        self._decisions = decisions
        self._rules = rules
        self._users = users
        self._operators = operators
        self._emit_for = emit_for
        self._nonce = nonce

    def app(self) -> FastAPI:
        """The ASGI application."""
        handlers = {**problem_handlers, RequestValidationError: _malformed, TransientError: _busy}
        app = FastAPI(title="Turnkeeper consent", version="1", redoc_url=None, exception_handlers=handlers)
        app.router.route_class = StrictRoute
        app.add_middleware(_SmallBodies)
        head = "/v1/sessions/{session}/actions"
        app.get(head, summary="The actions of a session, oldest first")(self.index)
        app.get(head + "/{action}", summary="One action", responses=_problems(401, 403, 404))(self.show)
        app.post(
            head + "/{action}/decision",
            summary="Accept, decline or cancel; a repeat by the same person gets the same receipt",
            responses=_problems(400, 401, 403, 404, 409, 410, 412, 503),
        )(self.decide)
        return app

    async def index(self, session: Id, authorization: Bearer = None) -> dict[str, Any]:
        """For the session's owner or an operator with the scope `read`."""
        await self._reader(session, authorization)
        now = await self._actions.now()
        return {"actions": [domain.view(record, now) for record in await self._actions.of_session(session)]}

    async def show(self, session: Id, action: Id, authorization: Bearer = None) -> dict[str, Any]:
        """For the session's owner or an operator with the scope `read`."""
        await self._reader(session, authorization)
        glance = await self._actions.glance(session, action)
        if glance.record is None:
            raise refusal("no_such_action")
        return domain.view(glance.record, glance.now)

    async def decide(self, session: Id, action: Id, decision: Decision, authorization: Bearer = None) -> Response:
        """The approver's own bearer token decides; an operator's never does."""
        user = await self._users.user(authorization)
        nonce = self._nonce()
        wish = Wish(
            session=session,
            action=action,
            verdict=decision.decision,
            origin=domain.decider(self._rules.application, user),
            question_digest=decision.question_digest,
            carrier=nonce,
            nonce=nonce,
        )
        decided = await self._decisions.decide(wish, lambda record: self._emit_for(session, record))
        if not decided.receipt:
            raise refusal(decided.outcome)
        return Response(decided.receipt, media_type="application/json")

    async def _reader(self, session: str, authorization: str | None) -> None:
        user = await self._user_or_operator(authorization)
        owner = await self._actions.owner(session)
        if owner is None:
            raise Problem(404, "no-such-session", "There is no such session")
        if user is not None and user != owner:
            raise Problem(403, "not-the-owner", "The session belongs to somebody else")

    async def _user_or_operator(self, authorization: str | None) -> str | None:
        """The user, or None for an operator who may read."""
        try:
            return await self._users.user(authorization)
        except Problem as problem:
            if problem.status != 401:
                raise
        self._operators.check(authorization, "read")
        return None


def refusal(outcome: DecisionOutcome) -> Problem:
    """The answer to a decision that was not taken (2-interface, HTTP)."""
    status, code, title = REFUSED[outcome]
    return Problem(status, code, title, outcome=outcome)


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": "application/problem+json", "content": {}} for status in statuses}


async def _malformed(_: Request, error: Exception) -> Response:
    """400, with each fault by its place and without what was sent (RFC 9457, section 3)."""
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    errors = [{"at": ".".join(str(part) for part in fault["loc"]), "detail": fault["msg"]} for fault in faults]
    return Problem(400, "malformed", "The request cannot be read", errors=errors).response()


async def _busy(_: Request, error: Exception) -> Response:
    after = getattr(error, "retry_after", None) or 1
    headers = {"Retry-After": str(max(1, round(after)))}
    return Problem(503, "busy", "Nothing was decided; send it again", str(error), headers).response()


class _SmallBodies:
    """Refuses bodies that no decision needs before they are read."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                # FastAPI passes on this exception alone from the reading of a body.
                raise HTTPException(413, f"The request is too large: at most {MAX_BODY} bytes")
            return message

        await self._app(scope, counted, send)

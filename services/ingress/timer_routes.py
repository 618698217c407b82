"""What is pending in a session's calendar, for its owner and for operators."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from libs.contracts.ids import is_slug
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.problems import Problem
from services.ingress.admission import Admissions
from services.ingress.edge import no_session
from services.ingress.misfire import Timer
from services.ingress.ports import Timers


class TimerRoutes:
    """One route, to be read by the session's owner or by an operator with the scope `read`."""

    def __init__(self, store: Timers, admissions: Admissions, users: UserTokens, operators: Operators) -> None:
        self._store = store
        self._admissions = admissions
        self._users = users
        self._operators = operators

    def routes(self) -> list[Route]:
        """To be mounted by the composition root."""
        return [Route("/v1/sessions/{session}/timers", self.get_timers, methods=["GET"])]

    async def get_timers(self, request: Request) -> Response:
        """`GET /v1/sessions/{session}/timers`: the pending ones, the next to fire first."""
        session = request.path_params["session"]
        await self._may_read(request.headers.get("authorization"), session)
        return JSONResponse({"timers": [_shown(timer) for timer in await self._store.of_session(session)]})

    async def _may_read(self, authorization: str | None, session: str) -> None:
        user = None
        if self._operators.knows(authorization):
            self._operators.check(authorization, "read")
        else:
            user = await self._users.user(authorization)
        owner = await self._admissions.owner(session) if is_slug(session) else None
        if owner is None:
            raise no_session()
        if user is not None and user != owner:
            raise Problem(403, "not-the-owner", "This session belongs to another user")


def _shown(timer: Timer) -> dict[str, Any]:
    return {
        "timer": timer.timer,
        "next": timer.next,
        "rule": timer.rule,
        "zone": timer.zone,
        "due": timer.due,
        "misfire": timer.misfire,
        "lateness": timer.lateness,
        "subject": timer.subject,
        "data": timer.data,
        "setter": timer.setter,
        "operation": timer.operation,
        "set_at": timer.set_at,
        "fired": timer.fired,
        "skipped": timer.skipped,
    }

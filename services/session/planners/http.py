"""The planner `http`: the view goes to one URL as JSON, and a plan comes back."""

import orjson

from libs.contracts.session import PlanRequested
from services.session.planners.answers import Answer, read_answer, strictly
from services.session.planners.calls import Endpoint


class HttpPlanner:
    """Asks one URL. See `docs/planners.md` for both bodies."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def ask(self, request: PlanRequested, session: str) -> Answer:
        """The answer to a request. Raises PlannerFault."""
        named = {"session": session, "turn": request.turn, "plan": request.plan, "deadline": request.deadline}
        body = orjson.dumps({**request.view, **named})
        return read_answer(strictly(await self._endpoint.ask(body, request.deadline)))

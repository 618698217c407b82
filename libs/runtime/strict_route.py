"""FastAPI routes whose bodies are read strictly."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from libs.contracts.canonical import JSON
from libs.contracts.strict_json import Malformed, parse


class _StrictRequest(Request):
    async def json(self) -> JSON:
        try:
            return parse(await self.body())
        except Malformed as error:
            # FastAPI makes a RequestValidationError of this exception alone.
            raise json.JSONDecodeError(str(error), "", 0) from None


class StrictRoute(APIRoute):
    """Refuses, as a RequestValidationError, a body that two readers could take differently (`strict_json.parse`)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route, given a request that reads strictly."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly

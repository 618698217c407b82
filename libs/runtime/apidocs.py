"""`/docs` for people and `/openapi.json` for machines, both from a service's document (`libs/runtime/openapi.py`)."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from libs.runtime.openapi import page

POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def docs_routes(document: Mapping[str, Any]) -> list[Route]:
    """The two routes, for services on plain Starlette."""

    async def docs(_: Request) -> Response:
        return HTMLResponse(page(document), headers=POLICY)

    async def openapi(_: Request) -> Response:
        return JSONResponse(document)

    return [Route("/docs", docs), Route("/openapi.json", openapi)]

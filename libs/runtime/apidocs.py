"""`/docs` for services on plain Starlette: what each route does, from the docstrings of its handlers."""

import html
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route


def docs_routes(service: str, routes: Sequence[Route]) -> list[Route]:
    """`/docs` for people and `/openapi.json` for machines, made from the routes given."""
    operations = [
        (method, route.path, (route.endpoint.__doc__ or "").strip())
        for route in routes
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]

    async def docs(_: Request) -> Response:
        rows = "".join(
            f"<tr><td><code>{method}</code></td><td><code>{html.escape(path)}</code></td><td>{html.escape(text)}</td></tr>"
            for method, path, text in operations
        )
        page = f"<!doctype html><title>Turnkeeper {service}</title><h1>Turnkeeper: {service}</h1><table>{rows}</table>"
        return HTMLResponse(page, headers={"Content-Security-Policy": "default-src 'none'"})

    async def openapi(_: Request) -> Response:
        paths: dict[str, dict[str, object]] = {}
        for method, path, text in operations:
            paths.setdefault(path, {})[method.lower()] = {
                "summary": text.partition("\n")[0],
                "responses": {"default": {"description": "See docs/problems.md for refusals"}},
            }
        info = {"title": f"Turnkeeper {service}", "version": "1"}
        return JSONResponse({"openapi": "3.1.0", "info": info, "paths": paths})

    return [Route("/docs", docs), Route("/openapi.json", openapi)]

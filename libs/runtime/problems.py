"""Errors over HTTP as `application/problem+json` (RFC 9457)."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from libs.contracts.errors import StoreAway

TYPE_BASE = "https://turnkeeper.dev/problems/"


class Problem(Exception):
    """A refusal over HTTP. `code` is the last part of its type, and a heading of `docs/problems.md`."""

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        detail: str = "",
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra

    def response(self) -> Response:
        """The answer."""
        body = {"type": TYPE_BASE + self.code, "title": self.title, "status": self.status}
        if self.detail:
            body["detail"] = self.detail
        return JSONResponse(
            {**body, **self.extra}, self.status, headers=self.headers, media_type="application/problem+json"
        )


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - Starlette calls us with the type that we registered
    return error.response()


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    return Problem(error.status_code, "http", error.detail or "Error", headers=error.headers).response()


async def _away(request: Request, error: Exception) -> Response:
    seconds = getattr(error, "retry_after", None) or 1
    # The store may have taken a write whose answer alone was lost.
    asked = request.method in ("GET", "HEAD")
    again = "Try again." if asked else "It may have been accepted; send it again with the same id."
    return Problem(
        503,
        "store-away",
        "The store is away",
        again,
        {"Retry-After": str(max(1, round(seconds)))},
    ).response()


async def _bug(_: Request, __: Exception) -> Response:
    return Problem(500, "internal", "Internal error", "It was logged; nothing is known to have happened.").response()


problem_handlers: dict[Any, Any] = {Problem: _problem, HTTPException: _http, StoreAway: _away, Exception: _bug}
"""For `exception_handlers=` of Starlette and FastAPI."""

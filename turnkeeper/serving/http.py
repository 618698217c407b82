"""Planners and tools over HTTP, as the planner `http` and the connector `http` ask them.

Whoever reaches a tool's address can act, so it is the door's alone: by default it listens on loopback, and elsewhere
only with an `authorization` that callers must send. A page in a browser on the same machine is no such caller: it is
turned away by its content type, which it may not choose without asking, and by the name of the host.
"""

import hmac
import ipaddress
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from libs.contracts.canonical import canonical
from libs.contracts.errors import ContractError
from libs.contracts.refusals import NotDone, Refusal
from libs.contracts.strict_json import Malformed, parse
from libs.runtime.problems import Problem, problem_handlers
from turnkeeper.serving.planners import Planner
from turnkeeper.serving.tools import Tool, key_of

MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request: a view holds a history, arguments are far smaller."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
Handler = Callable[[Request, bytes], Awaitable[Response]]


def asgi(*served: Planner | Tool[Any, Any], authorization: str | None = None) -> Starlette:
    """An ASGI application with each at `/NAME`, for a server of one's own.

    `authorization` is the whole value of the header that callers must send, such as "Bearer …"; without it only calls
    to a loopback name are answered. Raises ValueError for two of one name, or an `authorization` that is empty.
    """
    names = [one.name for one in served]
    if not served or len(set(names)) != len(names):
        raise ValueError(f"name each planner and tool once: {', '.join(names) or 'none was given'}")
    if authorization is not None and not authorization.strip():
        raise ValueError("authorization is empty: leave it out, or give what callers must send")
    routes = [Route(f"/{one.name}", _guarded(_handler(one), authorization), methods=["POST"]) for one in served]
    return Starlette(routes=routes, exception_handlers=problem_handlers)


def serve(
    *served: Planner | Tool[Any, Any], port: int, host: str = "127.0.0.1", authorization: str | None = None
) -> None:
    """Serve planners and tools, each at `http://HOST:PORT/NAME`, until interrupted; port 0 takes a free one.

    `authorization` is what callers must send, with `headers: {authorization: env:NAME}` in the application file. Raises
    ValueError for an address beyond this machine without it: whoever reached it could act. Raises OSError where the
    port is taken.
    """
    if authorization is None and not _is_loopback(host):
        raise ValueError(f"{host} can be reached by others: give an authorization that callers must send")
    app = asgi(*served, authorization=authorization)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        shown = f"[{host}]" if ":" in host else host
        for one in served:
            print(f"serving {one.name} at http://{shown}:{listening.getsockname()[1]}/{one.name}", flush=True)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(config).run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _guarded(handler: Handler, authorization: str | None) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        _check_caller(request, authorization)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Problem(415, "media-type", "Send application/json")
        return await handler(request, await _body(request))

    return answer


def _check_caller(request: Request, authorization: str | None) -> None:
    """Raises Problem for whoever may not call."""
    if authorization is not None:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), authorization.encode()):
            raise Problem(401, "not-authorized", "The call does not carry what it must")
        return
    # A page of the web whose name was made to lead here (DNS rebinding) still sends its own name.
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in _LOOPBACK:
        raise Problem(421, "other-host", "This address is for callers on the same machine")


async def _body(request: Request) -> bytes:
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_BODY:
            raise Problem(413, "too-large", f"At most {MAX_BODY:,} bytes")
    try:
        value = parse(bytes(raw))
    except Malformed as error:
        raise Problem(400, "malformed", "The body cannot be read", str(error)) from None
    if not isinstance(value, dict):
        raise Problem(400, "malformed", "The body cannot be read", "it is an object")
    return bytes(raw)


def _handler(served: Planner | Tool[Any, Any]) -> Handler:
    return _plans(served) if isinstance(served, Planner) else _acts(served)


def _plans(planner: Planner) -> Handler:
    async def answer(_: Request, body: bytes) -> Response:
        try:
            plan = await planner.answer(parse(body))
        except ValidationError as error:
            # It would be no plan again: told at once, where 500 would have the question asked again.
            fault = error.errors(include_input=False, include_url=False)[0]
            at = ".".join(str(part) for part in fault["loc"])
            raise Problem(422, "no-plan", "The function returned no plan", f"{at}: {fault['msg']}") from None
        except Exception as error:
            _tell(planner.name)
            # What it asks may be away for a moment: 500 has it asked again, within the deadline.
            raise Problem(500, "raised", "The function raised an exception", type(error).__name__) from None
        return Response(plan.model_dump_json(), media_type="application/json")

    return answer


def _acts(tool: Tool[Any, Any]) -> Handler:
    async def answer(request: Request, body: bytes) -> Response:
        key = key_of(request.headers.get("idempotency-key", ""))
        if tool.wants_key and not key:
            raise Problem(400, "no-key", "Send an Idempotency-Key")
        try:
            result = await tool.run(body, key)
        except Refusal as refusal:
            raise Problem(422, "refused", "It was refused, and nothing was done", str(refusal)) from None
        except NotDone as failed:
            raise Problem(503, "not-done", "It was not done", str(failed)) from None
        except Exception as error:
            _tell(tool.name)
            raise Problem(500, "raised", "It is not known what was done", type(error).__name__) from None
        return Response(_json(result, tool.name), media_type="application/json")

    return answer


def _json(result: Any, name: str) -> bytes:
    try:
        return canonical(result)
    except ContractError as error:
        # It ran: only its answer cannot be told.
        print(f"{name}: the result is left out: {error}", file=sys.stderr, flush=True)
        return b"null"


def _tell(name: str) -> None:
    """An exception of somebody's function, for whoever watches the process."""
    print(f"{name} raised:\n{traceback.format_exc()}", file=sys.stderr, flush=True)

"""A tool that acts in the sandbox world, over HTTP with an Idempotency-Key."""

import asyncio
from typing import Any

import httpx2
import orjson

from libs.contracts.application import SandboxConnector as Configured
from libs.contracts.canonical import JSON
from libs.contracts.principals import ACTOR_HEADER
from libs.contracts.templates import TemplateError, fill
from services.tools.domain import Committed, Failed, Outcome, Refused, Unknown
from services.tools.ports import Call

_RETRY_AFTER_SECONDS = (0.05, 0.2, 0.5)
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def sandbox_client(url: str) -> httpx2.AsyncClient:
    """A client for all tools in the sandbox. Idle connections are given up before the server gives them up, since a
    request that crosses with its closing would be unknown."""
    limits = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=2.0)
    return httpx2.AsyncClient(base_url=url, limits=limits, timeout=None, trust_env=False)


class SandboxConnector:
    """One verb of one collection. `loses_answers` is the lab switch `lose_answer`: the world acts, and its answer is
    cut off on the way back."""

    def __init__(self, client: httpx2.AsyncClient, configured: Configured, *, loses_answers: bool = False) -> None:
        self._client = client
        self._loses_answers = loses_answers
        self._configured = configured
        self._path = f"/v1/{configured.collection}/{configured.verb}"

    async def run(self, call: Call) -> Outcome:
        """Act once. A connection that is refused sends nothing, so it is tried again while there is time."""
        try:
            content = orjson.dumps(self._body(call.args))
        except TemplateError as error:
            return Failed(f"the connector's where or set: {error}")
        for delay in (*_RETRY_AFTER_SECONDS, None):
            call.before_send()
            try:
                return await self._send(content, call)
            except _NOT_SENT as error:
                if delay is None:
                    return Failed(f"the sandbox cannot be reached: {type(error).__name__}")
                await asyncio.sleep(delay)
            except httpx2.HTTPError as error:
                lab = "lab: " if self._loses_answers else ""
                return Unknown(f"{lab}the connection was cut: {type(error).__name__}")
        raise AssertionError("unreachable")

    async def _send(self, content: bytes, call: Call) -> Outcome:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": f'"{call.key}"',
            ACTOR_HEADER: call.actor,
            "Turnkeeper-Session": call.session,
            "Turnkeeper-Operation": call.operation,
        }
        # Less than the call's whole time for connecting: what could not connect was provably not sent.
        timeout = httpx2.Timeout(call.timeout, connect=call.timeout / 3, pool=call.timeout / 3)
        answer = await self._client.post(self._path, content=content, headers=headers, timeout=timeout)
        if self._loses_answers:
            raise httpx2.ReadError("the answer was lost on its way")
        return _outcome(answer.status_code, answer.content)

    def _body(self, args: Any) -> dict[str, JSON]:
        configured, context = self._configured, {**args, "args": dict(args)}
        match configured.verb:
            case "put":
                return {"record": dict(args)}
            case "change":
                return {"where": fill(configured.where, context), "set": fill(configured.set, context)}
            case "find":
                return {"where": fill(configured.where, context) if configured.where else dict(args)}


def _outcome(status: int, content: bytes) -> Outcome:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return Unknown(f"an answer that is not JSON, status {status}")
    if status == 200:
        return Committed(body.get("result"))
    if status == 409:
        return Refused(str(body.get("detail") or "refused"))
    if 400 <= status < 500:
        # The request itself was turned away, so nothing was done; that is our fault, not the world's rule.
        return Failed(f"the sandbox turned the request away: {body.get('title', status)}")
    return Unknown(f"the sandbox answered {status}")

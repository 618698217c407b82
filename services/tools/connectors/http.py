"""A tool that is a request to an HTTP API (docs/connectors.md).

The destination gets the operation's key and who acts. What its answer means, the table of statuses says; what cannot be
read is unknown, with what was seen of it.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import httpx2
import orjson

from libs.contracts.application import HttpConnector as Configured
from libs.contracts.application import resolve_secret
from libs.contracts.canonical import JSON, canonical
from libs.contracts.errors import ContractError
from libs.contracts.http_call import (
    HEADER_VALUE,
    Unfit,
    fill_path,
    fill_query,
    is_reference,
    meaning_of,
    scalar,
    split_url,
)
from libs.contracts.strict_json import Malformed, parse
from libs.contracts.templates import TemplateError, fill
from services.tools.domain import Committed, Failed, NotSent, Outcome, Refused, Unknown
from services.tools.ports import Call

CONNECTIONS = 256
"""As many as the door handles at once: a call never waits for another one's answer."""
IDLE_SECONDS = 2.0
"""Idle connections are given up before the server gives them up: a request that crosses with that is unknown."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_SHARE_TO_CONNECT = 0.25
"""Of the time, for each of: a place in the pool, TCP, TLS. So that what timed out while connecting was not sent."""
_SHARE_IN_ALL = 0.95
"""Before whoever runs the connector gives it up, so that it can say what it saw."""
_EXPLAINED_BYTES = 64 * 1024
"""Of an answer whose status says all; only its beginning is told."""
_SHOWN = 200
_TOKEN = re.compile(r"\S{8,}")


class AnswerFault(Exception):
    """An answer that proves nothing. The text says what was seen."""


@dataclass
class Answer:
    """What came back, as far as it was read. Status 0: nothing came."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""


def http_client(trusted: ssl.SSLContext | None = None) -> httpx2.AsyncClient:
    """A client for one tool. It follows no redirect, keeps no cookie (one user's would go with another's call), and
    reads neither proxies nor passwords from the environment."""
    limits = httpx2.Limits(
        max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE_SECONDS
    )
    return httpx2.AsyncClient(
        limits=limits, timeout=None, trust_env=False, follow_redirects=False, verify=trusted or True,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )  # fmt: skip


def header_values(configured: Configured, environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The connector's secrets by header, and what is wrong with them, each as `headers.NAME: what`, without a value."""
    values, faults = {}, []
    for name, reference in configured.headers.items():
        if not is_reference(reference):
            continue
        try:
            value = resolve_secret(reference, environment)
            if not HEADER_VALUE.fullmatch(value):
                raise ValueError(
                    f"what {reference} holds cannot stand in a header: printable ASCII without outer spaces"
                )
            values[name] = value
        except ValueError as error:
            faults.append(f"headers.{name}: {error}")
    return values, faults


class HttpConnector:
    """One request of one API. `secrets`: values by header, resolved at start."""

    def __init__(self, client: httpx2.AsyncClient, configured: Configured, secrets: Mapping[str, str]) -> None:
        self._client = client
        self._configured = configured
        self._base, self._segments = split_url(configured.url)
        self._secrets = dict(secrets)
        # A value such as "Bearer abc" may come back in part.
        parts = {part for value in secrets.values() for part in (value, *_TOKEN.findall(value))}
        self._hidden = sorted(parts, key=len, reverse=True)

    async def run(self, call: Call) -> Outcome:
        """Send it once."""
        try:
            request = self._request(call)
        except (Unfit, TemplateError) as error:
            # The same arguments never fit: nothing was sent, and nothing is wrong with the destination.
            return Refused(f"the arguments do not fit the request: {self._told(str(error))}")
        call.before_send()
        answer = Answer()
        try:
            async with asyncio.timeout(call.timeout * _SHARE_IN_ALL):
                await self._send(request, call, answer)
                return self._outcome(answer, call)
        except _NOT_SENT as error:
            return NotSent(f"the destination cannot be reached: {type(error).__name__}")
        except TimeoutError:
            return Unknown(f"no whole answer within {call.timeout * _SHARE_IN_ALL:.3g} s{self._so_far(answer)}")
        except httpx2.HTTPError as error:
            return Unknown(f"the connection was cut: {type(error).__name__}{self._so_far(answer)}")
        except AnswerFault as fault:
            return Unknown(str(fault))

    def _request(self, call: Call) -> httpx2.Request:
        """Raises Unfit and TemplateError."""
        configured, context = self._configured, _context(call)
        path = fill_path(self._segments, context)
        query = fill_query(configured.query or {}, context)
        target = f"{path}?{query}" if query else path
        url = httpx2.URL(self._base + target)
        if url.raw_path != target.encode() or url.host != httpx2.URL(self._base).host:
            raise Unfit("the URL would not be sent as it is written")
        body = self._body(call, context)
        headers = self._headers(call, context, has_body=body is not None)
        return httpx2.Request(configured.method, url, headers=headers, content=body)

    def _body(self, call: Call, context: Mapping[str, Any]) -> bytes | None:
        configured = self._configured
        if not configured.sends_body:
            return None
        value = fill(configured.body, context) if configured.chose_body else dict(call.args)
        if value is None:
            return None
        try:
            return canonical(value)
        except ContractError as error:
            raise Unfit(f"the body: {error}") from None

    def _headers(self, call: Call, context: Mapping[str, Any], *, has_body: bool) -> dict[str, str]:
        sent = {"accept": "application/json", "user-agent": f"turnkeeper/{version('turnkeeper')}"}
        if has_body:
            sent["content-type"] = "application/json"
        for name, value in self._configured.headers.items():
            if name.lower() == "content-type" and not has_body:
                continue
            text = self._secrets[name] if name in self._secrets else _filled(name, value, context)
            if text is not None:
                sent[name.lower()] = text
        sent[self._configured.idempotency_header.lower()] = f'"{call.key}"'
        return {
            **sent,
            # What is packed could unpack to any size.
            "accept-encoding": "identity",
            "turnkeeper-actor": call.actor,
            "turnkeeper-session": call.session,
            "turnkeeper-operation": call.operation,
        }

    async def _send(self, request: httpx2.Request, call: Call, answer: Answer) -> None:
        """Send, and read into `answer`: what is read of it is known also where the rest never comes."""
        share = call.timeout * _SHARE_TO_CONNECT
        request.extensions["timeout"] = {"connect": share, "pool": share, "read": None, "write": None}
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            answer.status = response.status_code
            answer.headers = {name.lower(): value for name, value in response.headers.items()}
            await self._read(response, answer)
        finally:
            await response.aclose()

    async def _read(self, response: httpx2.Response, answer: Answer) -> None:
        """Raises AnswerFault where content is needed and too large, or packed."""
        committed = meaning_of(answer.status, self._configured.answers) == "committed"
        needed = committed and self._configured.reads != "nothing"
        most = self._configured.max_answer if needed else min(self._configured.max_answer, _EXPLAINED_BYTES)
        if answer.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            if needed:
                raise AnswerFault(f"an answer that is packed, which was not asked for, status {answer.status}")
            return
        read = bytearray()
        async for part in response.aiter_raw():
            read += part
            answer.content = bytes(read[:most])  # also where the rest never comes
            if len(read) > most and needed:
                told = self._seen(answer.content)
                raise AnswerFault(f"an answer of more than {most} bytes, status {answer.status}{told}")
            if len(read) > most:
                return

    def _outcome(self, answer: Answer, call: Call) -> Outcome:
        meaning = meaning_of(answer.status, self._configured.answers)
        if meaning == "committed":
            return Committed(self._result(answer, call))
        told = f"{answer.status}{self._place(answer)}{self._explained(answer)}"
        if meaning == "unknown":
            return Unknown(f"the destination answered {told}")
        if call.repeat:
            # Who turns away a repeat may not have looked whether the first was done.
            return Unknown(f"it may have been sent before, and the repeat was answered {told}")
        if meaning == "refused":
            return Refused(self._detail(answer) or f"the destination answered {told}")
        return Failed(f"the destination turned the request away: {told}")

    def _result(self, answer: Answer, call: Call) -> JSON:
        """Raises AnswerFault for content that is not what the file says it is."""
        value = self._value(answer)
        template = self._configured.result
        context = {**_context(call), "answer": value, "status": answer.status, "headers": answer.headers}
        try:
            result = value if template is None else fill(template, context)
            canonical(result)
        except (TemplateError, ContractError) as error:
            seen = self._seen(answer.content)
            raise AnswerFault(
                f"an answer that `result` does not fit ({self._told(str(error))}), status {answer.status}{seen}"
            ) from None
        return result

    def _value(self, answer: Answer) -> JSON:
        if self._configured.reads == "nothing" or not answer.content:
            return None
        try:
            if self._configured.reads == "text":
                return answer.content.decode()
            return parse(answer.content)
        except (Malformed, UnicodeDecodeError) as error:
            why = "that is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"that cannot be read ({error})"
            raise AnswerFault(f"an answer {why}, status {answer.status}{self._seen(answer.content)}") from None

    def _place(self, answer: Answer) -> str:
        """Where a redirect points: without its query, which may hold a secret. It is not followed."""
        if not 300 <= answer.status < 400:
            return ""
        try:
            parts = urlsplit(answer.headers.get("location", ""))
        except ValueError:
            return ", a redirect, which is not followed"
        there = f"{parts.scheme}://{parts.hostname}{parts.path}" if parts.hostname else parts.path
        return f", a redirect to {self._told(there)}, which is not followed"

    def _explained(self, answer: Answer) -> str:
        detail = self._detail(answer)
        return f": {detail}" if detail else self._seen(answer.content)

    def _detail(self, answer: Answer) -> str:
        """What the destination says of it (RFC 9457, or a common form), "" where it says nothing readable."""
        try:
            body = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return ""
        return self._told(_sentence(body))

    def _seen(self, content: bytes) -> str:
        """How an answer begins, for whoever has to find out what became of it."""
        if not content:
            return ", without content"
        return f", which began {self._told(content[: 4 * _SHOWN].decode(errors='replace'))!r}"

    def _so_far(self, answer: Answer) -> str:
        return f", after status {answer.status}{self._seen(answer.content)}" if answer.status else ""

    def _told(self, text: str) -> str:
        """Text of others as it may be told: without our secrets, visible, and short."""
        for secret in self._hidden:
            text = text.replace(secret, "…")
        shown = "".join(char if char.isprintable() else f"\\u{{{ord(char):X}}}" for char in text[: 2 * _SHOWN])
        return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"


def _context(call: Call) -> dict[str, Any]:
    return {**call.args, "args": dict(call.args)}


def _filled(name: str, value: str, context: Mapping[str, Any]) -> str | None:
    """A header's value from its template; None, which is not sent, where that is null."""
    found = fill(value, context)
    if found is None:
        return None
    text = scalar(found, f"the header {name}")
    if not HEADER_VALUE.fullmatch(text):
        raise Unfit(f"the header {name} takes printable ASCII without spaces around it")
    return text


def _sentence(body: JSON) -> str:
    if not isinstance(body, dict):
        return ""
    inner = body.get("error")
    for place in (body, inner if isinstance(inner, dict) else {}):
        for name in ("detail", "message", "error_description", "title"):
            if isinstance(place.get(name), str) and place[name].strip():
                return str(place[name]).strip()
    return inner if isinstance(inner, str) else ""

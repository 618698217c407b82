"""Asking an HTTP server again and again, many times at once, and never past a deadline."""

import asyncio
import email.utils
import itertools
import random
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

import httpx2

from libs.contracts.canonical import JSON
from libs.runtime.clock import Clock
from services.session.planners.answers import MAX_ANSWER_BYTES, PlannerFault, strictly

CONNECTIONS_A_POOL = 128
"""A pool looks at all its connections for each request, so that one of thousands costs more than the calls."""
IDLE_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.5
MOST_PAUSE_SECONDS = 20.0
MAX_FAULT_BYTES = 16 * 1024
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,40}/[\w.+-]{1,60}")


class Again(Exception):
    """An attempt that failed and may work later. `after` is in seconds, where the server said so."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


@dataclass(frozen=True)
class Patience:
    """How long one attempt may take (seconds), and how many follow the first."""

    timeout: float
    retries: int


class Endpoint:
    """One URL that takes a POST of JSON. `most` is how many calls there are at once."""

    def __init__(self, url: str, headers: Mapping[str, str], patience: Patience, most: int, clock: Clock) -> None:
        self._url = url
        self._patience = patience
        self._clock = clock
        sent = {
            "accept": "application/json",
            # What is packed could unpack to any size.
            "accept-encoding": "identity",
            "user-agent": f"turnkeeper/{version('turnkeeper')}",
            **{name.lower(): value for name, value in headers.items()},
            "content-type": "application/json",
        }
        pools = -(-most // CONNECTIONS_A_POOL)
        trusted = httpx2.create_ssl_context()
        self._clients = [_client(sent, -(-most // pools), trusted) for _ in range(pools)]
        self._next = itertools.cycle(self._clients)

    async def ask(self, body: bytes, deadline: int) -> bytes:
        """The body of a 200. `deadline` in milliseconds (Unix). Raises PlannerFault."""
        for attempt in itertools.count(1):
            left = (deadline - self._clock.now_ms()) / 1000
            if left <= 0:
                raise PlannerFault("there was no time left to ask the planner")
            try:
                async with asyncio.timeout(min(self._patience.timeout, left)):
                    return await self._attempt(body)
            except TimeoutError:
                failed = Again(f"no answer within {min(self._patience.timeout, left):.3g} s")
            except httpx2.TransportError as error:
                failed = Again(f"the connection failed ({type(error).__name__})")
            except Again as again:
                failed = again
            await self._pause(failed, attempt, deadline)
        raise AssertionError("counting never ends")

    async def _pause(self, failed: Again, attempt: int, deadline: int) -> None:
        """Wait before the next attempt, or raise PlannerFault where there is none."""
        tried = f"{failed} ({attempt} attempt{'s' if attempt > 1 else ''})"
        if attempt > self._patience.retries:
            raise PlannerFault(f"the planner did not answer: {tried}")
        most = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), MOST_PAUSE_SECONDS)
        pause = most * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        pause = max(pause, failed.after or 0.0)
        if self._clock.now_ms() + pause * 1000 >= deadline:
            raise PlannerFault(f"the planner did not answer: {tried}; the next would be after the deadline")
        await asyncio.sleep(pause)

    async def _attempt(self, body: bytes) -> bytes:
        async with next(self._next).stream("POST", self._url, content=body) as response:
            await _check_status(response)
            if response.headers.get("content-encoding", "identity") != "identity":
                raise PlannerFault("the planner's answer is packed, which was not asked for")
            return await _read(response, MAX_ANSWER_BYTES)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients))


def media_type(response: httpx2.Response) -> str:
    """The media type that an answer claims to have, where it is one."""
    found = _MEDIA_TYPE.match(response.headers.get("content-type", ""))
    return found[0] if found else "no media type"


def _client(headers: Mapping[str, str], most: int, trusted: ssl.SSLContext) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers=dict(headers),
        limits=httpx2.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=IDLE_SECONDS),
        timeout=None,
        follow_redirects=False,
        verify=trusted,
    )


async def _check_status(response: httpx2.Response) -> None:
    status = response.status_code
    if status == 200:
        if media_type(response) == "text/html":
            raise PlannerFault("the planner answered with a page of HTML; check its url")
        return
    if status in (408, 425, 429) or status >= 500:
        raise Again(f"it answered {status}", _retry_after(response))
    if 300 <= status < 400:
        raise PlannerFault(f"the planner answered with a redirect ({status}), which is not followed; check its url")
    raise PlannerFault(f"the planner answered {status}{await _code_of(response)}")


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds of `Retry-After` (RFC 9110 §10.2.3), as a number or as a date."""
    said = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", said):
        return float(said)
    try:
        at = email.utils.parsedate_to_datetime(said)
    except ValueError:
        return None
    return max(0.0, at.timestamp() - _date_of(response, at.timestamp()))


def _date_of(response: httpx2.Response, otherwise: float) -> float:
    """The server's own clock, so that ours need not agree with it."""
    try:
        return email.utils.parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except ValueError:
        return otherwise


async def _code_of(response: httpx2.Response) -> str:
    """The short code of an error, where the body has one. Its text may repeat a part of the key: it is not told."""
    try:
        value = strictly(await _read(response, MAX_FAULT_BYTES))
    except PlannerFault:
        return ""
    error: JSON = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return f" ({code})" if isinstance(code, str) and _CODE.fullmatch(code) else ""


async def _read(response: httpx2.Response, most: int) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > most:
            raise PlannerFault(f"the planner's answer is larger than {most // 1024} KiB")
    return b"".join(parts)

"""The front door over HTTP: senders' events and users' messages. Operators' calls are in `operators.py`.

An event passes in this order: size → source known → content encoding → signature and time over the raw bytes →
parse → route → admit → append → answer. Nothing is parsed, and nothing is written, before the signature is valid.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from libs.contracts.canonical import JSON
from libs.contracts.errors import StoreAway
from libs.contracts.ids import is_slug, is_text_id
from libs.contracts.ingress import InputKind
from libs.contracts.reasons import IngressOutcome
from libs.runtime.auth import UserTokens
from libs.runtime.problems import Problem
from services.ingress.admission import Admissions, Answer
from services.ingress.cloudevents import read_content
from services.ingress.deliveries import Configured, Deliveries, Sources
from services.ingress.domain import Event, Misfit, claims_of, interpret, user_input
from services.ingress.ports import Clock, HeldFull
from services.ingress.rates import Rates
from services.ingress.schemes import Headers, Refusal, Verified, check, header_pairs
from services.ingress.schemes.base import single
from services.ingress.strict_json import Malformed, parse

RETRY_WITHIN_SECONDS = 0.5
"""A store that fails this fast may only have lost one connection: the same attempt is tried once more."""
HELD_RETRY_SECONDS = 30
"""When there may be room again for a subject or session with as many waiting events as may be."""
DISCARDED = 4
"""A body of up to so many times the bound is read and thrown away: a sender whose connection is closed while it sends
never sees the answer."""
_STATUS: Mapping[str, int] = {"accepted": 202, "duplicate": 200, "quarantined": 202, "held": 202}


class Edge:
    """Routes for senders and users."""

    def __init__(
        self,
        sources: Sources,
        user_source: Configured | None,
        admissions: Admissions,
        deliveries: Deliveries,
        users: UserTokens,
        rates: Rates,
        clock: Clock,
        *,
        max_body: int,
        body_seconds: float,
        incarnation: str,
    ) -> None:
        self._sources = sources
        self._user_source = user_source
        self._admissions = admissions
        self._deliveries = deliveries
        self._users = users
        self._rates = rates
        self._clock = clock
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._tokens = (f"{incarnation}.h{number}" for number in itertools.count())

    def routes(self) -> list[Route]:
        """To be mounted by the composition root."""
        return [
            Route("/v1/events/{source}", self.post_event, methods=["POST"]),
            Route("/v1/sessions/{session}/messages", self.post_message, methods=["POST"]),
            Route("/v1/sessions/{session}/cancel", self.post_cancel, methods=["POST"]),
        ]

    async def post_event(self, request: Request) -> Response:
        """`POST /v1/events/{source}`: a sender's event."""
        started, now = time.perf_counter(), self._clock.now_ms()
        body = await read_body(request, self._max_body, self._body_seconds)
        configured = self._known(request.path_params["source"])
        refuse_encoding(request)
        name = configured.name
        event: Event | None = None
        try:
            headers = header_pairs(request.scope["headers"])
            verified = self._verified(configured, headers, body, now)
            self._within_rate(name)
            event, misfit = _interpreted(configured, verified, headers, body, now)
            answer = await (self._admissions.quarantine(misfit, body) if misfit else self._admit(event, body, started))
        except _Refused as refused:
            self._deliveries.settled(
                name, refused.outcome, via="http", at=now, started=started, event=event, reason=refused.reason
            )
            raise refused.problem from None
        self._deliveries.settled(
            name, answer.status, via="http", at=now, started=started, event=event, reason=answer.reason
        )
        return _answered(answer)

    async def post_message(self, request: Request) -> Response:
        """`POST /v1/sessions/{session}/messages` `{"text"}`: the owner speaks."""
        return await self._from_user(request, "message")

    async def post_cancel(self, request: Request) -> Response:
        """`POST /v1/sessions/{session}/cancel`: the owner stops the running turn."""
        return await self._from_user(request, "cancel")

    async def _from_user(self, request: Request, kind: InputKind) -> Response:
        started, now = time.perf_counter(), self._clock.now_ms()
        body = await read_body(request, self._max_body, self._body_seconds)
        refuse_encoding(request)
        configured, session = self._user_source, request.path_params["session"]
        if configured is None:
            raise Problem(404, "no-users", "No source of this application speaks for users")
        user = await self._users.user(request.headers.get("authorization"))
        await self._owned(session, user)
        key = idempotency_key(request)
        try:
            data = _message(body) if kind == "message" else {}
            self._within_rate(configured.name)
        except _Refused as refused:
            self._deliveries.settled(configured.name, refused.outcome, via="http", at=now, started=started)
            raise refused.problem from None
        event = user_input(
            kind,
            configured.name,
            user,
            session,
            key,
            data,
            now=now,
            window_ms=int(configured.source.dedupe.window * 1000),
        )
        answer = await self._admit(event, body, started)
        outcome: IngressOutcome = answer.status
        self._deliveries.settled(
            configured.name, outcome, via="http", at=now, started=started, event=event, reason=answer.reason
        )
        if answer.status == "unrouted":
            raise no_session()
        return _answered(answer)

    async def _owned(self, session: str, user: str) -> None:
        owner = await self._admissions.owner(session) if is_slug(session) else None
        if owner is None:
            raise no_session()
        if owner != user:
            raise Problem(403, "not-the-owner", "This session belongs to another user")

    def _known(self, name: str) -> Configured:
        configured = self._sources.get(name)
        if configured is None or configured.verifier is None or configured.source.verify.scheme == "broker-user":
            raise Problem(404, "unknown-source", "There is no source of this name that sends over HTTP")
        return configured

    def _verified(self, configured: Configured, headers: Headers, body: bytes, now: int) -> Verified:
        assert configured.verifier is not None  # noqa: S101 - _known looked
        verdict = check(
            configured.verifier,
            headers,
            body,
            now_ms=now,
            tolerance_seconds=configured.tolerance,
        )
        match verdict:
            case Refusal.SIGNATURE:
                raise _Refused("rejected_signature", _not_verified(), "signature")
            case Refusal.TIME:
                raise _Refused("rejected_time", _not_verified(), "time")
            case _:
                return verdict

    def _within_rate(self, source: str) -> None:
        wait = self._rates.wait_seconds(source)
        if wait:
            retry = {"Retry-After": str(max(1, math.ceil(wait)))}
            raise _Refused(
                "throttled", Problem(429, "throttled", "Too many deliveries from this source", headers=retry)
            )

    async def _admit(self, event: Event, body: bytes, started: float) -> Answer:
        try:
            answer = await self._twice(event, body, next(self._tokens), started)
        except HeldFull:
            raise _Refused("throttled", held_full(), "held_full") from None
        if answer.status == "unrouted" and event.kind == "event":
            raise _Refused("unrouted", Problem(422, "no-session", "This event names no session", id=event.id))
        return answer

    async def _twice(self, event: Event, body: bytes, token: str, started: float) -> Answer:
        try:
            return await self._admissions.admit(event, token, body)
        except StoreAway as away:
            if time.perf_counter() - started > RETRY_WITHIN_SECONDS or away.retry_after is not None:
                raise
            # The same token: if the first attempt was stored and only its answer lost, it is ours, not a copy (C073).
            return await self._admissions.admit(event, token, body)


class _Refused(Exception):
    """A delivery that is answered with a problem and counted under `outcome`."""

    def __init__(self, outcome: IngressOutcome, problem: Problem, reason: str = "") -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.problem = problem
        self.reason = reason


def _not_verified() -> Problem:
    """One body for every reason: what was wrong would help only a forger."""
    return Problem(401, "not-verified", "The delivery could not be verified")


def _interpreted(
    configured: Configured, verified: Verified, headers: Headers, body: bytes, now: int
) -> tuple[Event, Misfit | None]:
    try:
        media = (single(headers, b"content-type") or b"").decode("latin-1")
        content = read_content(configured.source.verify, headers, body, media, percent=True)
        claims = claims_of(content.headers)
        found = interpret(
            configured.name, configured.source, verified, content.body, claims, now=now, cloud=content.event
        )
    except Malformed as malformed:
        problem = Problem(400, "malformed", "The body cannot be read", str(malformed))
        raise _Refused("rejected_malformed", problem, str(malformed)) from None
    return (found.event, found) if isinstance(found, Misfit) else (found, None)


def _message(body: bytes) -> JSON:
    try:
        value = parse(body)
    except Malformed as malformed:
        raise _Refused("rejected_malformed", Problem(400, "malformed", "Not a message", str(malformed))) from None
    text = value.get("text") if isinstance(value, dict) and set(value) == {"text"} else None
    if not isinstance(text, str) or not text.strip():
        detail = 'A message is {"text": "…"} and nothing else.'
        raise _Refused("rejected_malformed", Problem(400, "malformed", "Not a message", detail))
    return {"text": text}


def no_session() -> Problem:
    """There is no session of this name, or it is not told."""
    return Problem(404, "no-such-session", "There is no such session")


def idempotency_key(request: Request) -> str:
    """The `Idempotency-Key`, quoted as in the draft or bare. Raises Problem 400 without one."""
    given = request.headers.getlist("idempotency-key")
    key = given[0].strip() if len(given) == 1 else ""
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not is_text_id(key):
        detail = "Send one Idempotency-Key of 1 to 256 bytes, the same when you try again."
        raise Problem(400, "no-idempotency-key", "An Idempotency-Key is needed", detail)
    return key


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The raw body. Raises Problem 413 for one longer than `limit` bytes, of which no more than that is kept, and 408
    for one that is not here within `seconds`: a sender that trickles must not keep a connection for ever."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit * DISCARDED:
        raise too_large(limit)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit * DISCARDED:
                    break
                if size <= limit:
                    chunks.append(chunk)
    except TimeoutError:
        detail = f"It was not complete within {seconds:g} seconds."
        raise Problem(408, "too-slow", "The body is too slow", detail, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise Problem(400, "malformed", "The body ended early") from None
    if size > limit:
        raise too_large(limit)
    return b"".join(chunks)


def held_full() -> Problem:
    """As many events wait for one subject or session as may; nothing was written."""
    return Problem(
        503,
        "held-full",
        "Too many events wait for the same subject or session",
        "Nothing was accepted; send it again later.",
        {"Retry-After": str(HELD_RETRY_SECONDS)},
    )


def too_large(limit: int) -> Problem:
    """The body is above the bound. The connection is closed, since some of it may not have been read."""
    detail = f"At most {limit} bytes."
    return Problem(413, "too-large", "The body is too large", detail, headers={"Connection": "close"})


def refuse_encoding(request: Request) -> None:
    """Raises Problem 415 for a compressed body: the signature covers the bytes as sent, and it may be a bomb (C024)."""
    encodings = request.headers.getlist("content-encoding")
    if any(encoding.strip().lower() not in ("", "identity") for encoding in encodings):
        raise Problem(415, "content-encoding", "Content-Encoding is not accepted", "Send the body as it was signed.")


def _answered(answer: Answer) -> Response:
    content: dict[str, Any] = {"status": answer.status, "id": answer.id}
    if answer.reason:
        content["reason"] = answer.reason
    return Response(orjson.dumps(content), _STATUS[answer.status], media_type="application/json")

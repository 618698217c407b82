"""The front door in this process, where a test can stand between it and the store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from libs.contracts.application import Source
from libs.contracts.errors import StoreAway
from libs.runtime.auth import UserTokens
from libs.runtime.problems import problem_handlers
from services.ingress.admission import Answer
from services.ingress.deliveries import Configured, Deliveries
from services.ingress.edge import Edge
from services.ingress.metrics import IngressMetrics
from services.ingress.ports import HeldFull
from services.ingress.rates import Rates
from services.ingress.schemes import build_verifier
from tests.support.ingress import NOW, Replica, ingress_replica
from tests.support.ingress_process import WEBHOOK_SECRET
from tests.support.proxy import Proxy
from tests.support.webhooks import sign_webhook

BODY = b'{"data":{"session":"s1"}}'


@asynccontextmanager
async def front_door(replica: Replica, **parts: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an edge over this replica's parts."""
    source = Source.model_validate(
        {
            "verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]},
            "route": {"session": "{{ data.session }}"},
            "unrouted": {"hold": "10m"},
        }
    )
    verifier, _ = build_verifier(source.verify, lambda _: WEBHOOK_SECRET)
    sources = {"direct": Configured("direct", source, verifier)}
    edge = Edge(
        sources,
        None,
        parts.get("admissions", replica.admissions),
        Deliveries(IngressMetrics(CollectorRegistry(), sources), replica.ring),
        UserTokens(None, None, replica.clock),
        parts.get("rates", Rates(0, 1, replica.clock)),
        replica.clock,
        max_body=1024,
        body_seconds=parts.get("body_seconds", 10.0),
        incarnation="test",
    )
    app = Starlette(routes=edge.routes(), exception_handlers=problem_handlers)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://door") as client:
        yield client


async def send(client: httpx2.AsyncClient, id: str, **headers: str) -> httpx2.Response:
    signed = sign_webhook(WEBHOOK_SECRET, id, NOW // 1000, BODY)
    return await client.post("/v1/events/direct", content=BODY, headers={**signed, **headers})


async def test_above_its_rate_a_source_is_told_when_to_come_back(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace) as one:
        rates = Rates(0.5, 2, one.clock)
        async with front_door(one, rates=rates) as client:
            assert [(await send(client, f"e{n}")).status_code for n in range(3)] == [202, 202, 429]
            throttled = await send(client, "e3")
            assert throttled.headers["retry-after"] == "2"
            assert one.ring.lines()[-1]["outcome"] == "throttled"
            # A forgery uses up nothing of the source's rate.
            assert (await client.post("/v1/events/direct", content=BODY)).status_code == 401
            one.clock.now += 2_000
            assert (await send(client, "e3")).status_code == 202


async def test_a_reply_that_is_lost_once_does_not_reach_the_sender(redis_url: str, namespace: str) -> None:
    """C073: the edge tries the same attempt again, recognises its own token, and answers accepted, not duplicate."""
    proxy = Proxy(redis_url)
    url = await proxy.start()
    async with ingress_replica(url, namespace) as one, front_door(one) as client:
        await one.store.create_session("s1", "ana", NOW)
        assert (await send(client, "warm-up")).status_code == 202
        proxy.lose_next_reply_to = b"test.h1"
        answer = await send(client, "e1")
        assert proxy.lost == 1
        assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
        assert len(await one.inbox("s1")) == 2
    await proxy.stop()


@pytest.mark.parametrize("after, seconds", [(None, "1"), (5.0, "5")])
async def test_a_store_that_stays_away_is_503_with_a_time(
    redis_url: str, namespace: str, after: float | None, seconds: str
) -> None:
    class Away:
        async def admit(self, *_: Any) -> Answer:
            raise StoreAway("away", retry_after=after)

    async with ingress_replica(redis_url, namespace) as one, front_door(one, admissions=Away()) as client:
        answer = await send(client, "e1")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == seconds
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"] == "It may have been accepted; send it again with the same id."


async def test_above_the_bound_of_held_events_a_sender_is_told_to_come_back_and_nothing_is_written(
    redis_url: str, namespace: str
) -> None:
    async with ingress_replica(redis_url, namespace, held=2) as one, front_door(one) as client:
        assert [(await send(client, f"e{n}")).status_code for n in range(3)] == [202, 202, 503]
        full = await send(client, "e3")
        assert full.json()["type"].endswith("/held-full")
        assert full.headers["retry-after"] == "30"
        assert (await send(client, "e1")).json()["status"] == "duplicate"
        line = one.ring.lines()[-2]
        assert (line["outcome"], line["text"]) == ("throttled", "direct e3: held_full")
        assert {event.event for event in (await one.store.admitted_before(NOW, 10))[0]} == {"e0", "e1"}
        await one.store.create_session("s1", "ana", NOW)
        await one.releases.session("s1")
        assert (await send(client, "e3")).json()["status"] == "accepted"


async def test_no_room_at_the_second_attempt_is_told_like_at_the_first(redis_url: str, namespace: str) -> None:
    class AwayThenFull:
        tries = 0

        async def admit(self, *_: Any) -> Answer:
            self.tries += 1
            raise StoreAway("away") if self.tries == 1 else HeldFull

    async with ingress_replica(redis_url, namespace) as one, front_door(one, admissions=AwayThenFull()) as client:
        answer = await send(client, "e1")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")


async def test_a_body_that_trickles_is_given_up(redis_url: str, namespace: str) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with ingress_replica(redis_url, namespace) as one, front_door(one, body_seconds=0.05) as client:
        answer = await client.post("/v1/events/direct", content=trickle())
        assert (answer.status_code, answer.headers["connection"]) == (408, "close")


async def test_a_look_that_the_store_did_not_answer_is_only_to_be_tried_again() -> None:
    async def look(_: Request) -> Response:
        raise StoreAway("away")

    app = Starlette(routes=[Route("/", look, methods=["GET"])], exception_handlers=problem_handlers)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://door") as client:
        assert (await client.get("/")).json()["detail"] == "Try again."


async def test_faults_are_told_in_the_order_of_the_checks(redis_url: str, namespace: str) -> None:
    """Size, source, encoding, signature, body: the cheap ones first, and nothing about a body before its signature."""
    async with ingress_replica(redis_url, namespace) as one, front_door(one) as client:
        big, zipped = b"x" * 2000, {"Content-Encoding": "gzip"}

        async def status(path: str, content: bytes, headers: dict[str, str]) -> int:
            return (await client.post(path, content=content, headers=headers)).status_code

        assert await status("/v1/events/nobody", big, zipped) == 413
        assert await status("/v1/events/nobody", b"{", zipped) == 404
        assert await status("/v1/events/direct", b"{", zipped) == 415
        assert await status("/v1/events/direct", b"{", {}) == 401
        signed = sign_webhook(WEBHOOK_SECRET, "e1", NOW // 1000, b"{")
        assert await status("/v1/events/direct", b"{", signed) == 400


async def test_a_bug_is_a_500_without_its_text(redis_url: str, namespace: str) -> None:
    class Breaks:
        async def admit(self, *_: Any) -> Answer:
            raise RuntimeError("inside knowledge")

    async with ingress_replica(redis_url, namespace) as one, front_door(one, admissions=Breaks()) as client:
        answer = await send(client, "e1")
        assert answer.status_code == 500
        assert "inside knowledge" not in answer.text

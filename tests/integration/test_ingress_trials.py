"""An operator marks a session as a trial when it is made: only where trials are switched on, and never later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx2
from starlette.applications import Starlette

from libs.contracts.application import Application, parse_application
from libs.contracts.faults import Trial
from libs.runtime.auth import Operators
from libs.runtime.problems import problem_handlers
from services.ingress.operators import OperatorRoutes
from tests.support.ingress import Replica, ingress_replica

FAULT = {"action": "book", "mode": "error"}
APPLICATION = parse_application(
    {
        "sources": {"app": {"verify": {"scheme": "user-token"}}},
        "tools": {"book": {"connector": {"python": {"function": "builtins:dict"}}}},
        "planner": {"scripted": {"rules": "rules.yaml"}},
        "faults": [FAULT],
    },
    "test",
)


@asynccontextmanager
async def operators(one: Replica, application: Application | None) -> AsyncIterator[httpx2.AsyncClient]:
    routes = OperatorRoutes(
        one.store, {}, one.admissions, one.releases, Operators.parse(f"ana:*:{sha256(b'ana').hexdigest()}"), one.ring,
        one.clock, body_seconds=5.0, application=application,
    )  # fmt: skip
    app = Starlette(routes=routes.routes(), exception_handlers=problem_handlers)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://ingress", headers={"authorization": "Bearer ana"}
    ) as client:
        yield client


async def put(client: httpx2.AsyncClient, session: str = "s1", **body: Any) -> tuple[int, str]:
    answer = await client.put(f"/v1/sessions/{session}", json={"owner": "ana", **body})
    return answer.status_code, str(answer.json().get("type", "")).rpartition("/")[2]


async def marked(one: Replica, session: str = "s1") -> Trial | None:
    raw = await one.raw.redis.get(one.keys.of_session("trial", session))
    return None if raw is None else Trial.model_validate_json(raw)


async def test_a_session_is_marked_with_the_files_faults_or_its_own_or_none(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace) as one, operators(one, APPLICATION) as client:
        assert await put(client, "s1", trial=True) == (201, "")
        assert await put(client, "s2", trial={"faults": []}) == (201, "")
        assert await put(client, "s3", trial=False) == (201, "")
        assert await put(client, "s4") == (201, "")
        first, second = await marked(one, "s1"), await marked(one, "s2")
        assert first is not None
        assert second is not None
        assert ([fault.action for fault in first.faults], second.faults) == (["book"], ())
        assert (await marked(one, "s3"), await marked(one, "s4")) == (None, None)
        assert await one.raw.redis.pttl(one.keys.of_session("trial", "s1")) > 0


async def test_a_trials_faults_may_be_replaced_and_a_session_that_is_real_stays_so(
    redis_url: str, namespace: str
) -> None:
    async with ingress_replica(redis_url, namespace) as one, operators(one, APPLICATION) as client:
        assert await put(client, "s1", trial=True) == (201, "")
        assert await put(client, "s1", trial={"faults": [{**FAULT, "on_call": 3}]}) == (200, "")
        found = await marked(one)
        assert found is not None
        assert found.faults[0].on_call == 3
        assert await put(client, "s1") == (200, "")
        assert await marked(one) == found
        assert await put(client, "s2") == (201, "")
        assert await put(client, "s2", trial=True) == (409, "not-a-trial")
        assert await marked(one, "s2") is None
        assert await put(client, "s1", owner="ben", trial={"faults": []}) == (409, "owner-is-written")
        assert await marked(one) == found


async def test_what_is_no_set_of_faults_is_told(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace) as one, operators(one, APPLICATION) as client:
        for wrong in (
            1,
            "yes",
            [],
            {},
            {"faults": [{"action": "x", "mode": "error"}]},
            {"faults": [{**FAULT, "on": 1}]},
        ):
            assert await put(client, trial=wrong) == (400, "malformed"), wrong
        assert await one.store.owner("s1") is None


async def test_in_production_there_are_no_trials(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace) as one, operators(one, None) as client:
        assert await put(client, trial=True) == (403, "trials-off")
        assert await put(client, trial={"faults": []}) == (403, "trials-off")
        assert await put(client) == (201, "")

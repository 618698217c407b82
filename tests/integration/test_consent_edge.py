"""Consent over HTTP on a real Redis: every answer of the interface's table."""

import hashlib
import json
import re
from pathlib import Path

import httpx2
import jwt
import pytest

from libs.contracts.errors import StoreAway
from libs.runtime.auth import Operators, UserTokens
from services.consent.edge import MAX_BODY, REFUSED, Edge
from tests.support.consent import World, consent_world, issue

pytestmark = pytest.mark.engine
SECRET = "u" * 32
OPERATOR = "operator-token"
READER = f"ops:read:{hashlib.sha256(OPERATOR.encode()).hexdigest()}"
DECISION = "/v1/sessions/s1/actions/A1/decision"
TTL_MS = 600_000


def bearer(user: str) -> dict[str, str]:
    token = jwt.encode({"sub": user, "exp": 4_000_000_000}, SECRET, "HS256")
    return {"Authorization": f"Bearer {token}"}


def operator() -> dict[str, str]:
    return {"Authorization": f"Bearer {OPERATOR}"}


@pytest.fixture
async def world(redis_url, namespace):
    async with consent_world(redis_url, namespace) as world:
        await world.own()
        await world.ask(issue())
        yield world


@pytest.fixture
async def http(world):
    users, operators = UserTokens(SECRET, None, world.clock), Operators.parse(READER)
    edge = Edge(world.actions, world.decisions, world.rules, users, operators, world.emit_for, world.nonce)
    transport = httpx2.ASGITransport(app=edge.app(), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://consent") as client:
        yield client


async def post(http, world: World, decision="accept", user="ana", digest=None, **more):
    digest = digest or await world.field("A1", "question_digest")
    body = {"decision": decision, "question_digest": digest, **more}
    return await http.post(DECISION, json=body, headers=bearer(user))


def is_problem(answer, status: int) -> bool:
    return answer.status_code == status and answer.headers["content-type"] == "application/problem+json"


async def test_the_owner_and_an_operator_see_the_question_and_its_literal_steps(http):
    for headers in (bearer("ana"), operator()):
        (action,) = (await http.get("/v1/sessions/s1/actions", headers=headers)).json()["actions"]
        assert action["question"].startswith("A1 (from restaurant): book a table for 12 people")
        assert action["question_digest"] == hashlib.sha256(action["question"].encode()).hexdigest()
        assert action["steps"][0]["args"]["party"] == 12
        assert action["state"] == "pending"
        assert (await http.get("/v1/sessions/s1/actions/A1", headers=headers)).json() == action


@pytest.mark.parametrize(
    "path, headers, status",
    [
        ("/v1/sessions/s1/actions", {}, 401),
        ("/v1/sessions/s1/actions", {"Authorization": "Bearer nonsense"}, 401),
        ("/v1/sessions/s1/actions", bearer("ben"), 403),
        ("/v1/sessions/s9/actions", bearer("ana"), 404),
        ("/v1/sessions/s1/actions/A9", bearer("ana"), 404),
        ("/v1/sessions/s1/actions/A%7B1", bearer("ana"), 400),
    ],
)
async def test_nobody_else_sees_anything(http, path, headers, status):
    assert is_problem(await http.get(path, headers=headers), status)


@pytest.mark.parametrize("decision, state", [("accept", "accepted"), ("decline", "declined"), ("cancel", "cancelled")])
async def test_a_decision_gets_a_receipt_and_its_repeat_the_same_bytes(http, world, decision, state):
    first = await post(http, world, decision)
    again = await post(http, world, decision)
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    receipt = json.loads(first.content)
    assert (receipt["action"], receipt["state"], receipt["by"]) == ("A1", state, "ana")
    shown = (await http.get("/v1/sessions/s1/actions/A1", headers=bearer("ana"))).json()
    assert (shown["state"], shown["decided_by"]) == (state, "ana")
    assert ("grant" in shown) == (decision == "accept")
    assert len(await world.inbox()) == 1


async def test_another_person_is_403_and_the_question_stays_open(http, world):
    assert is_problem(await post(http, world, user="ben"), 403)
    assert (await post(http, world)).status_code == 200
    assert is_problem(await post(http, world, user="ben"), 403)
    assert world.count("decisions_total", outcome="wrong_person") == 2


async def test_decided_otherwise_is_409(http, world):
    await post(http, world, "decline")
    answer = await post(http, world, "accept")
    assert is_problem(answer, 409)
    assert answer.json()["outcome"] == "decided_otherwise"


async def test_a_late_decision_is_410_with_the_sweeper_stopped(http, world):
    world.clock.at = int(await world.field("A1", "expires_at")) + 1
    assert is_problem(await post(http, world), 410)
    shown = (await http.get("/v1/sessions/s1/actions/A1", headers=bearer("ana"))).json()
    assert shown["state"] == "expired"
    assert await world.inbox() == {}
    assert world.outbox.types().count("consent.decision_refused.v1") == 1


async def test_another_digest_is_412(http, world):
    assert is_problem(await post(http, world, digest="0" * 64), 412)
    assert await world.field("A1", "state") == "pending"


async def test_an_unknown_action_is_404(http, world):
    digest = await world.field("A1", "question_digest")
    path = DECISION.replace("A1", "A7")
    answer = await http.post(path, json={"decision": "accept", "question_digest": digest}, headers=bearer("ana"))
    assert is_problem(answer, 404)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"decision": "accept"}',
        b'{"question_digest": "%s"}' % (b"0" * 64),
        b'{"decision": "maybe", "question_digest": "%s"}' % (b"0" * 64),
        b'{"decision": "accept", "question_digest": 7}',
        b'{"decision": "accept", "question_digest": "%s", "args": {"party": 2}}' % (b"0" * 64),
    ],
)
async def test_a_malformed_decision_is_400_and_decides_nothing(http, world, body):
    headers = {**bearer("ana"), "Content-Type": "application/json"}
    answer = await http.post(DECISION, content=body, headers=headers)
    assert is_problem(answer, 400)
    assert await world.field("A1", "state") == "pending"


async def test_a_decision_needs_the_persons_own_token(http, world):
    body = {"decision": "accept", "question_digest": await world.field("A1", "question_digest")}
    assert is_problem(await http.post(DECISION, json=body), 401)
    assert is_problem(await http.post(DECISION, json=body, headers=operator()), 401)
    assert await world.field("A1", "state") == "pending"


async def test_a_body_that_no_decision_needs_is_413(http, world):
    headers = {**bearer("ana"), "Content-Type": "application/json"}
    assert is_problem(await http.post(DECISION, content=b"x" * (MAX_BODY + 1), headers=headers), 413)


async def test_a_get_decides_nothing(http, world):
    """C138."""
    assert is_problem(await http.get(DECISION, headers=bearer("ana")), 405)
    assert await world.field("A1", "state") == "pending"


async def test_when_too_many_messages_wait_for_the_broker_the_answer_is_503_with_retry_after(http, world):
    world.actions._outbox_limit = 0
    answer = await post(http, world)
    assert is_problem(answer, 503)
    assert int(answer.headers["retry-after"]) >= 1


async def test_when_the_store_is_away_the_answer_is_503_with_retry_after(http, world):
    async def away(*_):
        raise StoreAway("no answer")

    world.actions.redeem = away
    answer = await post(http, world)
    assert is_problem(answer, 503)
    assert int(answer.headers["retry-after"]) >= 1


async def test_the_calls_are_documented(http):
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert "/v1/sessions/{session}/actions/{action}/decision" in paths
    assert (await http.get("/docs")).status_code == 200


def test_every_problem_that_consent_answers_with_has_its_heading():
    edge = Path("services/consent/edge.py").read_text(encoding="utf-8")
    used = {code for _, code, _ in REFUSED.values()} | set(re.findall(r'Problem\(\s*\d+,\s*"([a-z-]+)"', edge))
    headings = set(re.findall(r"^## ([a-z-]+)$", Path("docs/problems.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert used <= headings
    assert len(used) == 11


async def test_a_body_with_a_key_twice_is_400_and_decides_nothing(http, world):
    digest = await world.field("A1", "question_digest")
    body = f'{{"decision": "decline", "question_digest": "{digest}", "decision": "accept"}}'
    headers = {**bearer("ana"), "Content-Type": "application/json"}
    answer = await http.post(DECISION, content=body, headers=headers)
    assert is_problem(answer, 400)
    assert answer.json()["type"].endswith("malformed")
    assert await world.field("A1", "state") == "pending"

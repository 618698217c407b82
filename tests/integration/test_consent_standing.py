"""Standing approvals over HTTP on a real Redis: granted, listed and revoked by their user alone."""

from typing import Any

import httpx2
import jwt
import pytest
from fastapi import FastAPI

from libs.contracts.consent import World
from libs.contracts.session import Notice, Step
from libs.contracts.standing import KEPT_MS, MOST_KEPT
from libs.runtime.auth import Operators, UserTokens
from services.consent.edge import Edge
from services.consent.standing import RedisStanding, StandingEdge
from tests.support.consent import SEAL_KEYS, TABLE, consent_world, issue

pytestmark = pytest.mark.engine
SECRET = "u" * 32
HOUR_MS = 3_600_000
ANAS = "/v1/users/ana/standing"


def bearer(user: str, **more: str) -> dict[str, str]:
    token = jwt.encode({"sub": user, "exp": 4_000_000_000}, SECRET, "HS256")
    return {"Authorization": f"Bearer {token}", **more}


@pytest.fixture
async def world(redis_url, namespace):
    async with consent_world(redis_url, namespace) as world:
        yield world


@pytest.fixture
async def http(world):
    users = UserTokens(SECRET, None, world.clock)
    edge = Edge(
        world.actions, world.decisions, world.rules, users, Operators.parse(""), world.emit_for, world.nonce
    )  # fmt: skip
    app: FastAPI = edge.app()
    StandingEdge(RedisStanding(world.store, world.keys, world.clock), world.rules.application, users).add_to(app)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://consent") as client:
        yield client


def wish(world, **more: Any) -> dict[str, Any]:
    return {
        "tool": "rent", "limits": {"party": {"maximum": 4}, "day": {"enum": ["Fri", "Sat"]}}, "uses": 2,
        "ends_at": world.clock.at + HOUR_MS, **more,
    }  # fmt: skip


async def grant(http, world, key="k1", user="ana", path=ANAS, **more: Any):
    return await http.post(path, json=wish(world, **more), headers=bearer(user, **{"Idempotency-Key": key}))


async def test_a_user_grants_and_sees_what_they_granted(http, world):
    made = await grant(http, world, sources=["restaurant"])
    assert made.status_code == 201
    (shown,) = (await http.get(ANAS, headers=bearer("ana"))).json()["standing"]
    assert shown == made.json() == (await http.get(f"{ANAS}/{shown['id']}", headers=bearer("ana"))).json()
    assert (shown["tool"], shown["uses"], shown["left"], shown["state"]) == ("rent", 2, 2, "live")
    assert shown["limits"] == {"party": {"maximum": 4}, "day": {"enum": ["Fri", "Sat"]}}
    assert (shown["sources"], shown["used"]) == (["restaurant"], [])


async def test_the_same_wish_again_is_one_approval_and_another_under_its_key_a_conflict(http, world):
    first, second = await grant(http, world), await grant(http, world)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert (await grant(http, world, uses=3)).status_code == 409
    assert len((await http.get(ANAS, headers=bearer("ana"))).json()["standing"]) == 1


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("token, status", [("ben", 403), (None, 401)])
async def test_nobody_else_sees_grants_or_revokes(http, world, method, token, status):
    id = (await grant(http, world)).json()["id"]
    headers = bearer(token, **{"Idempotency-Key": "k2"}) if token else {"Idempotency-Key": "k2"}
    paths = [ANAS] if method == "POST" else [ANAS, f"{ANAS}/{id}"]
    for path in paths:
        answer = await http.request(method, path, json=wish(world) if method == "POST" else None, headers=headers)
        assert answer.status_code == status
    (shown,) = (await http.get(ANAS, headers=bearer("ana"))).json()["standing"]
    assert shown["state"] == "live"


async def test_a_revoked_approval_is_shown_as_such_and_stays_revoked(http, world):
    id = (await grant(http, world)).json()["id"]
    for _ in range(2):
        answer = await http.delete(f"{ANAS}/{id}", headers=bearer("ana"))
        assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
    assert (await grant(http, world)).json()["state"] == "revoked", "the same wish again revives nothing"


async def test_all_are_revoked_at_once(http, world):
    for key in ("k1", "k2"):
        await grant(http, world, key)
    answer = await http.delete(ANAS, headers=bearer("ana"))
    assert [one["state"] for one in answer.json()["standing"]] == ["revoked", "revoked"]


async def test_what_is_not_there_cannot_be_revoked(http):
    assert (await http.delete(f"{ANAS}/S123", headers=bearer("ana"))).status_code == 404


async def test_a_wish_needs_a_key(http, world):
    answer = await http.post(ANAS, json=wish(world), headers=bearer("ana"))
    assert answer.status_code == 400
    assert (await http.get(ANAS, headers=bearer("ana"))).json()["standing"] == []


@pytest.mark.parametrize(
    "more, why",
    [
        ({"tool": "nothing"}, "there is no tool nothing"),
        ({"tool": "pay"}, "cannot be granted in advance"),
        ({"ends_at": 1}, "ends_at"),
        ({"ends_at": 99_000_000_000_000}, "ends_at"),
        ({"limits": {"party": {}}}, "say what day may be"),
        ({"limits": {"party": {}, "day": {}, "extra": {}}}, "has no argument extra"),
        ({"sources": ["nobody"]}, "there is no source nobody"),
        ({"limits": {"party": {"const": 2**60}, "day": {}}}, "2**53"),
    ],
)
async def test_what_cannot_be_granted_is_told_why(http, world, more, why):
    answer = await grant(http, world, **more)
    assert answer.status_code == 422
    assert why in answer.json()["detail"]


@pytest.mark.parametrize(
    "more",
    [
        {"uses": 0},
        {"uses": 101},
        {"limits": {"party": {"about": 4}}},
        {"limits": {"day": {"pattern": "["}}},
        {"limits": {"day": {"pattern": "a)|(?:b"}}},
        {"limits": {"day": {"pattern": "(?=a)"}}},
        {"limits": {"day": {"pattern": "a", "maximum": 3}}},
        {"more": 1},
    ],
)
async def test_what_cannot_be_read_is_refused(http, world, more):
    answer = await grant(http, world, **more)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_user_has_only_so_many(http, world):
    for number in range(MOST_KEPT):
        assert (await grant(http, world, f"k{number}")).status_code == 201
    assert (await grant(http, world, "more")).status_code == 409
    assert (await grant(http, world, "k0")).status_code == 200


async def test_what_ended_is_forgotten_after_a_week(http, world):
    id = (await grant(http, world)).json()["id"]
    left = await world.redis.pttl(world.keys.of_user("standing", "ana", id))
    assert HOUR_MS + KEPT_MS - 60_000 < left <= HOUR_MS + KEPT_MS
    assert 0 < await world.redis.pttl(world.keys.of_user("standings", "ana")) <= HOUR_MS + KEPT_MS
    await http.delete(f"{ANAS}/{id}", headers=bearer("ana"))
    assert await world.redis.pttl(world.keys.of_user("standing", "ana", id)) <= KEPT_MS


async def test_what_a_step_relies_on_is_stored_with_its_question_and_shown(http, world):
    step = Step(tool="buy", args={"of": "wine"})
    read = World.attested(SEAL_KEYS, "s1", step, "d" * 64, world.clock.at)
    await world.own()
    await world.ask(issue("A1", TABLE, step, worlds=(None, read)))
    shown = (await http.get("/v1/sessions/s1/actions/A1", headers=bearer("ana"))).json()
    assert shown["relies_on"] == [None, {"digest": "d" * 64, "read_at": world.clock.at}]
    assert "d" * 64 not in shown["question"]
    (stored,) = await world.actions.of_session("s1")
    assert stored.worlds == (None, read)
    (card,) = [body["data"] for body in world.outbox.bodies(Notice) if body["topic"] == "question"]
    assert card["relies_on"] == shown["relies_on"]

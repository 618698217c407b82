"""Evidence over HTTP: for operators alone, as it is stored, sealed up to now, seals judged by who holds their keys."""

import hashlib
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI

from libs.runtime.auth import Operators
from libs.runtime.problems import problem_handlers
from services.tools.evidence_edge import EvidenceEdge, add_evidence_routes
from services.tools.notary import Evidence
from tests.support.door import SEAL_KEYS, Door, open_door, seal, step
from tests.support.evidence import SIGNER
from turnkeeper.evidence.source import of_answer, verify

READER, RESOLVER = "reader-token", "resolver-token"
PATH = "/v1/sessions/s1/evidence"


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        yield opened


@pytest.fixture
async def http(door: Door) -> AsyncIterator[httpx2.AsyncClient]:
    hashed = {token: hashlib.sha256(token.encode()).hexdigest() for token in (READER, RESOLVER)}
    operators = Operators.parse(f"rita:read:{hashed[READER]},olga:resolve:{hashed[RESOLVER]}")
    evidence = Evidence(door.store, door.keys, door.outbox, door.composer, door.clock, SIGNER)  # type: ignore[arg-type]
    app = FastAPI(exception_handlers=dict(problem_handlers))
    add_evidence_routes(app, EvidenceEdge(evidence, door.ledger, SEAL_KEYS, operators))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://tools") as client:
        yield client


def as_(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(("headers", "status"), [({}, 401), (as_("nobody"), 401), (as_(RESOLVER), 403)])
async def test_evidence_is_for_operators_who_may_read(
    http: httpx2.AsyncClient, headers: dict[str, str], status: int
) -> None:
    assert (await http.get(PATH, headers=headers)).status_code == status
    assert (await http.post(f"{PATH}/seals", json={"seals": {}}, headers=headers)).status_code == status


async def test_everybody_may_read_the_public_keys_and_only_those(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/evidence/keys")).json() == {"keys": SIGNER.public}


async def test_evidence_is_sealed_up_to_now_and_comes_with_the_records_that_it_tells_of(
    door: Door, http: httpx2.AsyncClient
) -> None:
    await door.send(step(now=door.clock.now))
    answer = (await http.get(PATH, headers=as_(READER))).json()
    assert answer["sealed"] == len(answer["lines"]) == 2
    assert answer["records"]["operation:key1"]["state"] == "committed"
    found = verify(of_answer(answer), door.clock.now)
    # The door of this test stands alone: nobody told where its call came from.
    assert {one.why for one in found} == {
        "its authority is an input that never got a number here", "no turn sent it",
    }  # fmt: skip


async def test_stored_bytes_that_are_no_text_are_shown_as_they_are(door: Door, http: httpx2.AsyncClient) -> None:
    await door.send(step(now=door.clock.now))
    await door.store.command("HSET", door.keys.of_session("operation", "s1", "key1"), "reason", b"\xff\x00")
    answer = (await http.get(PATH, headers=as_(READER))).json()
    assert answer["records"]["operation:key1"]["reason"] == "\xff\x00"
    assert any(one.where.startswith("operation:key1 reason") for one in verify(of_answer(answer), door.clock.now))


async def test_only_a_seal_of_ours_and_of_this_session_is_ours(door: Door, http: httpx2.AsyncClient) -> None:
    ours = seal(at=door.clock.now).model_dump()
    given = {"ours": ours, "moved": {**ours, "session": "s2"}, "changed": {**ours, "number": 9}, "none": {"mac": ""}}
    answer = await http.post(f"{PATH}/seals", json={"seals": given}, headers=as_(READER))
    assert answer.json() == {"seals": {"ours": True, "moved": False, "changed": False, "none": False}}


async def test_a_call_that_the_door_turned_away_is_an_attempt_without_an_outcome(
    door: Door, http: httpx2.AsyncClient
) -> None:
    await door.send(step(now=door.clock.now, tool="nothing-of-ours"))
    lines = (await http.get(PATH, headers=as_(READER))).json()["lines"]
    assert len(lines) == 1
    assert '"kind":"turned_away"' in lines[0]
    assert '"outcome":"refused"' in lines[0]

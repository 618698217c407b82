"""The door over HTTP: who may see the ledger, and how an operator resolves what is unknown."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from libs.runtime.auth import Operators
from services.tools.domain import Unknown
from services.tools.edge import Edge, create_app
from tests.support.door import Door, open_door, step

READER, RESOLVER = "reader-token", "resolver-token"


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        yield opened


@pytest.fixture
async def http(door: Door) -> AsyncIterator[httpx2.AsyncClient]:
    hashed = {token: hashlib.sha256(token.encode()).hexdigest() for token in (READER, RESOLVER)}
    operators = Operators.parse(f"rita:read:{hashed[READER]},olga:read+resolve:{hashed[RESOLVER]}")
    app = create_app(Edge(door.catalogue, door.ledger, door.answers, operators, door.clock))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://tools") as client:
        yield client


def as_(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def resolve(http: httpx2.AsyncClient, token: str = RESOLVER, operation: str = "O1", **word: Any) -> Any:
    body = {"state": "committed", "note": "the restaurant says so", **word}
    return await http.post(f"/v1/sessions/s1/operations/{operation}/resolve", json=body, headers=as_(token))


async def leave_unknown(door: Door) -> None:
    door.destination.always(Unknown("cut"))
    await door.send(step(now=door.clock.now))


async def test_everybody_may_read_what_the_tools_are(http: httpx2.AsyncClient) -> None:
    tools = {tool["name"]: tool for tool in (await http.get("/v1/tools")).json()["tools"]}
    assert (tools["book"]["effect"], tools["book"]["consent"], tools["book"]["keyed_seconds"]) == (
        "write",
        "unless-user",
        86400,
    )
    assert tools["look"]["consent"] == "never"


async def test_the_ledger_is_for_operators(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/operations?session=s1")).status_code == 401
    assert (await http.get("/v1/operations/s1/O1")).status_code == 401
    assert (await resolve(http, READER)).status_code == 403


async def test_a_sessions_operations_are_listed_by_state(door: Door, http: httpx2.AsyncClient) -> None:
    await door.send(step(now=door.clock.now))
    listed = (await http.get("/v1/operations?session=s1", headers=as_(READER))).json()["operations"]
    assert [(one["operation"], one["state"], one["args"]) for one in listed] == [("O1", "committed", {"party": 4})]
    unknown = await http.get("/v1/operations?session=s1&state=unknown", headers=as_(READER))
    assert unknown.json()["operations"] == []


async def test_all_unknown_operations_are_found_without_a_session(door: Door, http: httpx2.AsyncClient) -> None:
    await leave_unknown(door)
    listed = (await http.get("/v1/operations?state=unknown", headers=as_(READER))).json()["operations"]
    assert [(one["session"], one["operation"]) for one in listed] == [("s1", "O1")]


async def test_a_list_of_everything_is_refused(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/operations", headers=as_(READER))).status_code == 400
    assert (await http.get("/v1/operations?state=odd", headers=as_(READER))).status_code == 400


async def test_one_operation_is_found_by_name_or_key(door: Door, http: httpx2.AsyncClient) -> None:
    await door.send(step(now=door.clock.now))
    for name in ("O1", "key1"):
        found = (await http.get(f"/v1/operations/s1/{name}", headers=as_(READER))).json()
        assert (found["key"], found["result"]) == ("key1", {"id": "rsv_1"})
    assert (await http.get("/v1/operations/s1/O9", headers=as_(READER))).status_code == 404


async def test_an_operators_word_is_recorded_and_told(door: Door, http: httpx2.AsyncClient) -> None:
    await leave_unknown(door)
    for _ in range(2):
        answer = await resolve(http)
        assert answer.status_code == 200
        assert (answer.json()["state"], answer.json()["resolved_by"]) == ("committed", "olga")
    told = door.finished()[-1]
    assert (told.state, told.reason) == ("committed", "resolved by olga: the restaurant says so")
    await door.sweeper.count_unknown()
    assert door.registry.get_sample_value("turnkeeper_tools_unknown") == 0


async def test_what_is_known_cannot_be_resolved(door: Door, http: httpx2.AsyncClient) -> None:
    await door.send(step(now=door.clock.now))
    assert (await resolve(http, state="failed")).status_code == 409
    assert (await resolve(http, operation="O9")).status_code == 404


async def test_a_word_needs_a_state_and_a_note(door: Door, http: httpx2.AsyncClient) -> None:
    await leave_unknown(door)
    for word in ({"state": "unknown"}, {"note": ""}, {"note": " \t"}, {"extra": 1}):
        answer = await resolve(http, **word)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"


async def test_the_interface_documents_itself(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/docs")).status_code == 200
    assert "/v1/operations" in (await http.get("/openapi.json")).json()["paths"]


async def test_a_word_with_a_key_twice_resolves_nothing(door: Door, http: httpx2.AsyncClient) -> None:
    await leave_unknown(door)
    headers = {**as_(RESOLVER), "Content-Type": "application/json"}
    body = '{"state": "failed", "note": "n", "state": "committed"}'
    answer = await http.post("/v1/sessions/s1/operations/O1/resolve", content=body, headers=headers)
    assert answer.status_code == 400
    shown = await http.get("/v1/operations/s1/O1", headers=as_(READER))
    assert shown.json()["state"] == "unknown"

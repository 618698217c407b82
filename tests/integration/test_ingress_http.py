"""Every answer of ingress over HTTP, from a real process on real servers."""

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from libs.contracts.keys import Keys
from libs.runtime.connections import connect_redis
from tests.support.eventually import eventually
from tests.support.ingress_process import (
    HMAC_SECRET,
    OPERATOR_HEADERS,
    PARTITIONS,
    IngressProcess,
    signed,
    start_ingress,
    user_token,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Door:
    """A client of one replica that knows its sources."""

    def __init__(self, client: httpx2.AsyncClient, namespace: str, redis: Any) -> None:
        self.client = client
        self.keys = Keys(namespace, PARTITIONS)
        self.redis = redis

    async def event(self, source: str, id: str, body: Any, **headers: str) -> httpx2.Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(f"/v1/events/{source}", content=raw, headers={**signed(id, raw), **headers})

    async def session(self, owner: str = "ana") -> str:
        name = f"s-{secrets.token_hex(4)}"
        answer = await self.operator("PUT", f"/v1/sessions/{name}", {"owner": owner})
        assert answer.status_code == 201, answer.text
        return name

    async def operator(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        return await self.client.request(method, path, json=body, headers=OPERATOR_HEADERS)

    async def say(self, session: str, text: str, key: str | None, user: str = "ana") -> httpx2.Response:
        headers = user_token(user) | ({"Idempotency-Key": key} if key else {})
        return await self.client.post(f"/v1/sessions/{session}/messages", json={"text": text}, headers=headers)

    async def inbox(self, session: str) -> list[dict[str, Any]]:
        numbered = await self.redis.hgetall(self.keys.of_session("inbox", session))
        return [json.loads(numbered[number]) for number in sorted(numbered, key=int)]

    async def count(self, source: str, outcome: str) -> float:
        text = (await self.client.get("/metrics")).text
        name = f'turnkeeper_ingress_events_total{{outcome="{outcome}",source="{source}"}} '
        return float(next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(
    redis_url: str, amqp_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[IngressProcess, str]]:
    namespace = f"http-{secrets.token_hex(6)}"
    (process,) = await start_ingress(redis_url, amqp_url, namespace, tmp_path_factory.mktemp("ingress"))
    yield process, namespace
    assert process.stop() == 0, process.log.read_text()[-2000:]


@pytest_asyncio.fixture(loop_scope="module")
async def door(replica: tuple[IngressProcess, str], redis_url: str) -> AsyncIterator[Door]:
    process, namespace = replica
    redis = connect_redis(redis_url, "test")
    async with httpx2.AsyncClient(base_url=process.url) as client:
        yield Door(client, namespace, redis)
    await redis.aclose()


async def test_a_signed_event_is_accepted_numbered_and_sealed(door: Door) -> None:
    session = await door.session()
    answer = await door.event("direct", "e1", {"type": "offer", "data": {"session": session, "n": 1}})
    assert answer.status_code == 202
    assert answer.json()["status"] == "accepted"
    (stored,) = await door.inbox(session)
    assert (stored["id"], stored["number"], stored["type"]) == (answer.json()["id"], 1, "offer")
    assert stored["data"] == {"session": session, "n": 1}
    assert stored["origin"] == {
        "kind": "webhook",
        "source": "direct",
        "principal": "direct",
        "verified": "standard-webhooks",
        "written_by": "",
    }
    assert stored["seal"]["mac"]


async def test_a_copy_is_answered_duplicate_and_changes_nothing(door: Door) -> None:
    session = await door.session()
    body = {"data": {"session": session}}
    await door.event("direct", "twice", body)
    answer = await door.event("direct", "twice", body)
    assert (answer.status_code, answer.json()["status"]) == (200, "duplicate")
    assert len(await door.inbox(session)) == 1


async def test_the_same_id_with_another_body_is_acknowledged_and_quarantined(door: Door) -> None:
    """C076."""
    session = await door.session()
    before = await door.count("direct", "quarantined")
    await door.event("direct", "b7", {"data": {"session": session, "text": "A"}})
    answer = await door.event("direct", "b7", {"data": {"session": session, "text": "B"}})
    assert (answer.status_code, answer.json()["status"]) == (202, "quarantined")
    assert [stored["data"]["text"] for stored in await door.inbox(session)] == ["A"]
    assert await door.count("direct", "quarantined") == before + 1
    listed = (await door.operator("GET", "/v1/quarantine")).json()["quarantine"]
    entry = next(line for line in listed if line["event"] == "b7")
    assert entry["reason"] == "other_body"
    assert entry["first"] != entry["digest"][:32]
    assert "body" not in entry
    shown = (await door.operator("GET", f"/v1/quarantine/{entry['id']}")).json()
    assert json.loads(shown["body"])["data"]["text"] == "B"


async def test_an_operator_releases_what_is_in_quarantine_once(door: Door) -> None:
    session = await door.session()
    await door.event("direct", "b8", {"data": {"session": session, "text": "A"}})
    await door.event("direct", "b8", {"data": {"session": session, "text": "B"}})
    listed = (await door.operator("GET", "/v1/quarantine")).json()["quarantine"]
    id = next(line["id"] for line in listed if line["event"] == "b8")
    answer = await door.operator("POST", f"/v1/quarantine/{id}/release", {})
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    assert [stored["data"]["text"] for stored in await door.inbox(session)] == ["A", "B"]
    assert (await door.operator("POST", f"/v1/quarantine/{id}/release", {})).status_code == 404


async def test_a_forged_a_stale_and_an_unsigned_delivery_get_one_and_the_same_answer(door: Door) -> None:
    body = b'{"data":{"session":"s1"}}'
    answers = [
        await door.client.post("/v1/events/direct", content=body, headers=headers)
        for headers in (signed("e1", b"other"), signed("e1", body, age=301 + 5), signed("e1", body, age=-310), {})
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].headers["content-type"] == "application/problem+json"
    lines = (await door.operator("GET", "/v1/log")).json()["lines"]
    assert {line["outcome"] for line in lines} >= {"rejected_signature", "rejected_time"}


async def test_what_is_refused_writes_nothing(door: Door) -> None:
    body = b'{"data":{"session":"s1"}}'
    before = {key async for key in door.redis.scan_iter(f"tk:{door.keys.namespace}:*", count=1000)}
    await door.client.post("/v1/events/direct", content=body, headers=signed("e1", b"other"))
    await door.event("direct", "bad", b'{"a":1,"a":2}')
    await door.event("strict", "none", {"data": {"session": "nobody"}})
    after = {key async for key in door.redis.scan_iter(f"tk:{door.keys.namespace}:*", count=1000)}
    assert after <= before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"id":"evt_1","id":"evt_2"}',
        b"\xef\xbb\xbf{}",
        b'{"t":"\xff"}',
        b"NaN",
        b"[" * 200 + b"]" * 200,
    ],
    ids=["empty", "no json", "key twice", "bom", "not utf-8", "nan", "too deep"],
)
async def test_a_signed_body_that_readers_would_read_differently_is_malformed(door: Door, body: bytes) -> None:
    """C090."""
    before = await door.count("direct", "rejected_malformed")
    assert (await door.event("direct", f"m-{secrets.token_hex(4)}", body)).status_code == 400
    assert await door.count("direct", "rejected_malformed") == before + 1


async def test_an_unknown_source_is_not_found_and_users_and_broker_users_have_no_event_route(door: Door) -> None:
    for source in ("nobody", "app", "billing"):
        assert (await door.event(source, "e1", {})).status_code == 404


async def test_a_body_above_the_bound_is_refused_declared_or_not(door: Door) -> None:
    big = b"x" * (1024 * 1024 + 1)
    assert (await door.event("direct", "big", big)).status_code == 413

    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b"x" * 65536

    assert (await door.client.post("/v1/events/direct", content=chunks(40))).status_code == 413
    # Far above it the connection is closed at once, so the sender may or may not see the answer.
    with contextlib.suppress(httpx2.HTTPError):
        assert (await door.client.post("/v1/events/direct", content=chunks(200))).status_code == 413
    assert (await door.client.get("/livez")).status_code == 200


async def test_a_compressed_body_is_refused_before_anything_reads_it(door: Door) -> None:
    answer = await door.event("direct", "zip", b"\x1f\x8b", **{"Content-Encoding": "gzip"})
    assert answer.status_code == 415


async def test_a_source_that_rejects_says_so_and_the_event_may_come_again(door: Door) -> None:
    name = f"s-{secrets.token_hex(4)}"
    body = {"data": {"session": name}}
    answer = await door.event("strict", f"r-{name}", body)
    assert answer.status_code == 422
    assert await door.count("strict", "unrouted") >= 1
    await door.operator("PUT", f"/v1/sessions/{name}", {"owner": "ana"})
    assert (await door.event("strict", f"r-{name}", body)).json()["status"] == "accepted"


async def test_an_event_before_its_subject_is_held_listed_and_released_in_order(door: Door) -> None:
    session, reservation = await door.session(), secrets.token_hex(4)
    for n in (1, 2):
        answer = await door.event("restaurant", f"{reservation}-{n}", {"data": {"reservation": reservation, "n": n}})
        assert (answer.status_code, answer.json()["status"]) == (202, "held")
    held = (await door.operator("GET", "/v1/held")).json()["held"]
    assert [line["event"] for line in held if line["subject"] == f"reservation:{reservation}"] == [
        f"{reservation}-1",
        f"{reservation}-2",
    ]
    subject = {"subject": f"reservation:{reservation}", "session": session}
    assert (await door.operator("POST", "/v1/held/release", subject)).json()["released"] == 2
    later = await door.event("restaurant", f"{reservation}-3", {"data": {"reservation": reservation, "n": 3}})
    assert later.json()["status"] == "accepted"
    assert [stored["data"]["n"] for stored in await door.inbox(session)] == [1, 2, 3]


async def test_a_subject_for_which_nothing_waits_is_registered_by_hand_only_by_force(door: Door) -> None:
    session, subject = await door.session(), f"reservation:{secrets.token_hex(4)}"
    slip = await door.operator("POST", "/v1/held/release", {"subject": subject, "session": session})
    assert (slip.status_code, slip.json()["type"].rpartition("/")[2]) == (404, "nothing-held")
    other = {"subject": subject, "session": await door.session(), "force": True}
    assert (await door.operator("POST", "/v1/held/release", other)).json()["released"] == 0
    taken = await door.operator("POST", "/v1/held/release", {"subject": subject, "session": session, "force": True})
    assert taken.status_code == 409


@pytest.mark.parametrize("after", ["9" * 19, "1" * 5000, "x", "-1", "\u0663"])
async def test_a_number_that_is_none_is_400(door: Door, after: str) -> None:
    assert (await door.operator("GET", f"/v1/log?after={after}")).status_code == 400
    assert (await door.operator("GET", f"/v1/log?after={'9' * 18}")).json()["lines"] == []


async def test_an_event_that_names_no_known_session_expires_visibly(door: Door) -> None:
    name = f"s-{secrets.token_hex(4)}"
    assert (await door.event("direct", name, {"data": {"session": name}})).json()["status"] == "held"

    async def outcome() -> bool:
        found = (await door.operator("GET", f"/v1/events/direct/{name}")).json()
        return bool(found["outcome"] == "held_expired" and found["status"] == "held_expired")

    await eventually(outcome, within=10)
    lines = (await door.operator("GET", "/v1/log")).json()["lines"]
    assert any(line.get("event") == name and line["outcome"] == "held_expired" for line in lines)


async def test_an_event_whose_data_names_no_session_is_quarantined_and_can_be_given_one(door: Door) -> None:
    session, id = await door.session(), secrets.token_hex(4)
    assert (await door.event("direct", id, {"data": {"other": 1}})).json()["status"] == "quarantined"
    listed = (await door.operator("GET", "/v1/quarantine")).json()["quarantine"]
    entry = next(line for line in listed if line["event"] == id)
    assert entry["reason"] == "no_route"
    release = f"/v1/quarantine/{entry['id']}/release"
    assert (await door.operator("POST", release, {})).status_code == 400
    assert (await door.operator("POST", release, {"session": session})).status_code == 202
    assert len(await door.inbox(session)) == 1


async def test_the_same_body_under_another_unsigned_id_is_a_duplicate_and_visible(door: Door) -> None:
    """C077."""
    session = await door.session()
    body = json.dumps({"data": {"session": session}}).encode()
    sig = hmac.new(HMAC_SECRET.encode(), body, hashlib.sha256).hexdigest()

    async def send(id: str | None) -> httpx2.Response:
        headers = {"x-sig": sig} | ({"x-id": id} if id else {})
        return await door.client.post("/v1/events/bodies", content=body, headers=headers)

    assert (await send("d1")).json()["status"] == "accepted"
    assert (await send("d1")).json()["status"] == "duplicate"
    replay = await send("d2")
    assert (replay.status_code, replay.json()["status"], replay.json()["reason"]) == (200, "duplicate", "same_body")
    assert (await send(None)).status_code == 400
    assert len(await door.inbox(session)) == 1
    found = (await door.operator("GET", "/v1/events/bodies/d1")).json()
    assert (found["status"], found["session"], found["number"]) == ("accepted", session, 1)


async def test_a_header_that_contradicts_the_signed_content_is_quarantined(door: Door) -> None:
    session = await door.session()
    body = {"type": "table.gone", "data": {"session": session}}
    answer = await door.event("direct", "ce1", body, **{"ce-type": "offer"})
    assert (answer.json()["status"], answer.json()["reason"]) == ("quarantined", "type_disagrees")
    # The true one may still come: its identity was not claimed.
    assert (await door.event("direct", "ce1", body, **{"ce-type": "table.gone"})).json()["status"] == "accepted"


async def test_a_users_message_needs_its_owner_and_a_key(door: Door) -> None:
    session = await door.session()
    assert (await door.say(session, "book dinner", "k1")).status_code == 202
    assert (await door.say(session, "book dinner", "k1")).json()["status"] == "duplicate"
    assert (await door.say(session, "another text", "k1")).json()["status"] == "quarantined"
    assert (await door.say(session, "x", None)).status_code == 400
    assert (await door.say(session, "x", "k2", user="bob")).status_code == 403
    assert (await door.say("nobody", "x", "k2")).status_code == 404
    assert (await door.client.post(f"/v1/sessions/{session}/messages", json={"text": "x"})).status_code == 401
    (stored,) = await door.inbox(session)
    assert stored["kind"] == "message"
    assert stored["data"] == {"text": "book dinner"}
    origin = {"kind": "user", "source": "app", "principal": "ana", "verified": "user-token", "written_by": ""}
    assert stored["origin"] == origin


@pytest.mark.parametrize("body", [b"{}", b'{"text":""}', b'{"text":1}', b'{"text":"x","role":"system"}', b"[]"])
async def test_a_message_is_a_text_and_nothing_else(door: Door, body: bytes) -> None:
    session = await door.session()
    headers = user_token("ana") | {"Idempotency-Key": "k"}
    answer = await door.client.post(f"/v1/sessions/{session}/messages", content=body, headers=headers)
    assert answer.status_code == 400


async def test_a_quoted_key_is_the_same_key(door: Door) -> None:
    session = await door.session()
    await door.say(session, "x", "k9")
    assert (await door.say(session, "x", '"k9"')).json()["status"] == "duplicate"


async def test_a_cancel_is_an_input_of_its_own(door: Door) -> None:
    session = await door.session()
    headers = user_token("ana") | {"Idempotency-Key": "c1"}
    assert (await door.client.post(f"/v1/sessions/{session}/cancel", headers=headers)).status_code == 202
    (stored,) = await door.inbox(session)
    assert (stored["kind"], stored["data"]) == ("cancel", {})


async def test_an_owner_is_written_once(door: Door) -> None:
    session = await door.session("ana")
    assert (await door.operator("PUT", f"/v1/sessions/{session}", {"owner": "ana"})).status_code == 200
    assert (await door.operator("PUT", f"/v1/sessions/{session}", {"owner": "bob"})).status_code == 409
    assert (await door.operator("PUT", "/v1/sessions/a.b", {"owner": "ana"})).status_code == 400
    assert (await door.client.put("/v1/sessions/s1", json={"owner": "ana"})).status_code == 401


async def test_order_of_a_session_is_the_order_of_the_answers(door: Door) -> None:
    session = await door.session()
    for n in range(30):
        await door.event("direct", f"{session}-{n}", {"data": {"session": session, "n": n}})
    assert [stored["data"]["n"] for stored in await door.inbox(session)] == list(range(30))


async def test_every_label_set_is_there_from_the_start_and_acks_are_measured(door: Door) -> None:
    for outcome in ("accepted", "duplicate", "throttled", "unrouted"):
        assert await door.count("billing", outcome) == 0
    assert "turnkeeper_ingress_ack_seconds_bucket" in (await door.client.get("/metrics")).text


async def test_docs_need_no_other_server(door: Door) -> None:
    page = await door.client.get("/docs")
    assert page.status_code == 200
    assert "<script" not in page.text
    document = (await door.client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"


async def test_an_unknown_path_is_a_problem_document(door: Door) -> None:
    answer = await door.client.get("/v1/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_one_line_is_logged_an_event_and_no_payload(door: Door, replica: tuple[IngressProcess, str]) -> None:
    session = await door.session()
    await door.event("direct", f"log-{session}", {"data": {"session": session, "secret": "not-for-logs"}})
    lines = [line for line in Path(replica[0].log).read_text().splitlines() if f"log-{session}" in line]
    assert len(lines) == 1
    assert "not-for-logs" not in Path(replica[0].log).read_text()

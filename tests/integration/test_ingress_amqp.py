"""Events over the exchange, the door's word about subjects, and two replicas at once."""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aio_pika
import httpx2
import pytest
import pytest_asyncio

from libs.contracts.application import Source
from libs.contracts.codec import BUNDLE_TYPE, encode, join
from libs.contracts.envelope import Envelope
from libs.contracts.ids import derive_id
from libs.contracts.ingress import RegisterSubject
from libs.contracts.keys import Keys
from libs.contracts.origin import attest
from libs.contracts.topology import Topology
from libs.runtime.connections import connect_redis
from tests.support.eventually import eventually
from tests.support.ingress import SEAL_KEYS
from tests.support.ingress_process import (
    APPLICATION,
    HMAC_SECRET,
    OPERATOR_HEADERS,
    PARTITIONS,
    IngressProcess,
    broker_user,
    signed,
    start_ingress,
)
from turnkeeper.letters import _read, _send_again
from turnkeeper.signing import sign_event

pytestmark = pytest.mark.asyncio(loop_scope="module")


HELD = 5


class Deployment:
    """Two replicas and a publisher."""

    def __init__(
        self, processes: list[IngressProcess], namespace: str, redis: Any, channel: aio_pika.abc.AbstractChannel
    ) -> None:
        self.processes = processes
        self.topology = Topology(namespace, PARTITIONS)
        self.keys = Keys(namespace, PARTITIONS)
        self.redis = redis
        self.channel = channel
        self.client = httpx2.AsyncClient(timeout=30)

    async def publish(
        self, routing_key: str, body: Any, headers: dict[str, Any] | None = None, **properties: Any
    ) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        exchange = await self.channel.get_exchange(self.topology.events, ensure=False)
        await exchange.publish(aio_pika.Message(raw, headers=headers or {}, **properties), routing_key)

    async def genuine(self, source: str, id: str, body: Any, *, age: int = 0, type: str = "", **more: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.publish(f"{source}{'.' + type if type else ''}", raw, {**signed(id, raw, age), **more})

    async def work(self, session: str, message: RegisterSubject) -> None:
        id = derive_id(message.wire_type(), session, message.subject, message.operation)
        envelope = Envelope(id=id, type=message.wire_type(), session=session, body=message.model_dump())
        exchange = await self.channel.get_exchange(self.topology.work, ensure=False)
        await exchange.publish(aio_pika.Message(join([encode(envelope)]), content_type=BUNDLE_TYPE), "ingress")

    async def session(self) -> str:
        name = f"s-{secrets.token_hex(4)}"
        answer = await self.operator("PUT", f"/v1/sessions/{name}", {"owner": "ana"})
        assert answer.status_code == 201
        return name

    async def operator(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        return await self.client.request(method, self.processes[0].url + path, json=body, headers=OPERATOR_HEADERS)

    async def inbox(self, session: str) -> list[dict[str, Any]]:
        numbered = await self.redis.hgetall(self.keys.of_session("inbox", session))
        return [json.loads(numbered[number]) for number in sorted(numbered, key=int)]

    async def has(self, session: str, count: int) -> list[dict[str, Any]]:
        async def enough() -> bool:
            return len(await self.inbox(session)) >= count

        await eventually(enough, within=15)
        return await self.inbox(session)

    async def count(self, source: str, outcome: str) -> float:
        name = f'turnkeeper_ingress_events_total{{outcome="{outcome}",source="{source}"}} '
        total = 0.0
        for process in self.processes:
            text = (await self.client.get(process.url + "/metrics")).text
            total += float(next(x for x in text.splitlines() if x.startswith(name)).removeprefix(name))
        return total

    async def counted(self, source: str, outcome: str, wanted: float) -> None:
        async def reached() -> bool:
            return await self.count(source, outcome) == wanted

        await eventually(reached, within=15)

    async def quarantined(self, event: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            listed = (await self.operator("GET", "/v1/quarantine")).json()["quarantine"]
            return next((line for line in listed if line["event"] == event), None)

        found = await eventually(there, within=15)
        assert found is not None
        return found

    async def dead_letter(self) -> dict[str, Any]:
        queue = await self.channel.get_queue(self.topology.dead, ensure=False)

        async def there() -> aio_pika.abc.AbstractIncomingMessage | None:
            return await queue.get(no_ack=True, fail=False)

        message = await eventually(there, within=15)
        assert message is not None
        return dict(json.loads(message.body))["body"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    redis_url: str, amqp_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    namespace = f"amqp-{secrets.token_hex(6)}"
    processes = await start_ingress(
        redis_url,
        amqp_url,
        namespace,
        tmp_path_factory.mktemp("ingress"),
        replicas=2,
        TURNKEEPER_INGRESS_HELD_LIMIT=str(HELD),
    )
    redis = connect_redis(redis_url, "test")
    connection = await aio_pika.connect(amqp_url)
    made = Deployment(processes, namespace, redis, await connection.channel())
    yield made
    await made.client.aclose()
    await connection.close()
    await redis.aclose()
    assert [process.stop() for process in processes] == [0, 0]


async def test_a_signed_event_over_the_exchange_is_accepted(deployment: Deployment) -> None:
    session = await deployment.session()
    await deployment.genuine("direct", "a1", {"type": "offer", "data": {"session": session}}, type="offer")
    (stored,) = await deployment.has(session, 1)
    assert (stored["event"], stored["type"]) == ("a1", "offer")


async def test_two_hundred_copies_half_over_each_door_to_two_replicas_are_one_event(deployment: Deployment) -> None:
    session = await deployment.session()
    raw = json.dumps({"data": {"session": session}}).encode()
    accepted, duplicate = await deployment.count("direct", "accepted"), await deployment.count("direct", "duplicate")
    headers = signed("many", raw)
    posts = [
        deployment.client.post(deployment.processes[n % 2].url + "/v1/events/direct", content=raw, headers=headers)
        for n in range(100)
    ]
    sends = [deployment.publish("direct", raw, dict(headers)) for _ in range(100)]
    await asyncio.gather(*posts, *sends)
    await deployment.counted("direct", "duplicate", duplicate + 199)
    assert await deployment.count("direct", "accepted") == accepted + 1
    assert len(await deployment.inbox(session)) == 1


async def test_a_forged_message_is_counted_and_acknowledged_and_the_queue_goes_on(deployment: Deployment) -> None:
    session = await deployment.session()
    before = await deployment.count("direct", "rejected_signature")
    await deployment.publish("direct", b'{"data":{}}', dict(signed("f1", b"other")))
    await deployment.genuine("direct", "f2", {"data": {"session": session}})
    await deployment.has(session, 1)
    assert await deployment.count("direct", "rejected_signature") == before + 1


async def test_the_broker_keeps_messages_longer_than_the_tolerance_of_http(deployment: Deployment) -> None:
    session = await deployment.session()
    await deployment.genuine("direct", "slow", {"data": {"session": session}}, age=3600)
    await deployment.has(session, 1)


@pytest.mark.parametrize("age, reason", [(97 * 3600, "too_old"), (-3600, "from_the_future")])
async def test_a_message_beyond_the_window_is_quarantined(deployment: Deployment, age: int, reason: str) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    await deployment.genuine("direct", id, {"data": {"session": session}}, age=age)
    assert (await deployment.quarantined(id))["reason"] == reason
    assert await deployment.inbox(session) == []


async def test_a_routing_key_that_disagrees_with_the_signed_type_is_quarantined(deployment: Deployment) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    await deployment.genuine("direct", id, {"type": "offer", "data": {"session": session}}, type="table.gone")
    assert (await deployment.quarantined(id))["reason"] == "type_disagrees"


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents:", "cloudEvents_"])
async def test_a_cloudevents_header_that_disagrees_is_quarantined(deployment: Deployment, prefix: str) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    await deployment.genuine("direct", id, {"data": {"session": session}}, **{f"{prefix}id": "another"})
    assert (await deployment.quarantined(id))["reason"] == "id_disagrees"


async def test_headers_as_bytes_are_as_good_as_text(deployment: Deployment) -> None:
    session = await deployment.session()
    raw = json.dumps({"data": {"session": session}}).encode()
    await deployment.publish(
        "direct", raw, {name: bytearray(value.encode()) for name, value in signed("by", raw).items()}
    )
    await deployment.has(session, 1)


async def test_a_signed_body_that_cannot_be_read_is_a_dead_letter_and_the_queue_goes_on(deployment: Deployment) -> None:
    session = await deployment.session()
    await deployment.genuine("direct", "d1", b'{"a":1,"a":2}')
    await deployment.genuine("direct", "d2", {"data": {"session": session}})
    letter = await deployment.dead_letter()
    assert (letter["service"], letter["reason"]) == ("ingress", "malformed")
    assert letter["message"]["headers"]["webhook-id"] == "d1"
    await deployment.has(session, 1)


async def test_an_unknown_source_is_a_dead_letter_with_the_reason(deployment: Deployment) -> None:
    await deployment.publish("nobody.offer", b"{}")
    letter = await deployment.dead_letter()
    assert (letter["reason"], letter["routing_key"]) == ("unknown_source", "nobody.offer")


async def test_of_a_body_that_nobody_vouches_for_only_the_beginning_is_kept(deployment: Deployment) -> None:
    headers = {f"h{n}": "v" * 1000 for n in range(40)}
    await deployment.publish("direct.offer", b"x" * (1024 * 1024 + 1), headers)
    letter = await deployment.dead_letter()
    message = letter["message"]
    assert (letter["reason"], message["size"], message["cut"]) == ("too_large", 1024 * 1024 + 1, True)
    assert len(base64.b64decode(message["raw_base64"])) == 1024
    assert len(message["headers"]) == 16
    assert {len(value) for value in message["headers"].values()} == {256}


async def test_above_the_bound_of_held_events_one_is_quarantined_and_the_queue_goes_on(deployment: Deployment) -> None:
    reservation, session = secrets.token_hex(4), await deployment.session()
    held = await deployment.count("restaurant", "held")
    for n in range(HELD):
        await deployment.genuine("restaurant", f"{reservation}-{n}", {"data": {"reservation": reservation}})
    await deployment.counted("restaurant", "held", held + HELD)
    await deployment.genuine("restaurant", f"{reservation}-more", {"data": {"reservation": reservation}})
    await deployment.genuine("direct", f"after-{reservation}", {"data": {"session": session}})
    assert (await deployment.quarantined(f"{reservation}-more"))["reason"] == "held_full"
    await deployment.has(session, 1)


async def test_a_dead_event_is_replayed_as_it_came(deployment: Deployment, amqp_url: str) -> None:
    """Its source was unknown when it came: the letter holds what the publisher signed."""
    session = await deployment.session()
    raw = json.dumps({"data": {"session": session}}).encode()
    await deployment.publish("not-yet.offer", raw, dict(signed("again", raw)))
    queue = await deployment.channel.get_queue(deployment.topology.dead, ensure=False)

    async def dead() -> aio_pika.abc.AbstractIncomingMessage | None:
        return await queue.get(no_ack=True, fail=False)

    message = await eventually(dead, within=15)
    assert message is not None
    letter = _read(message.body)
    assert (letter.type, letter.message["cut"]) == ("event", False)
    await _send_again(deployment.channel, replace(letter, routing_key="direct"))
    (stored,) = await deployment.has(session, 1)
    assert stored["event"] == "again"


async def test_a_broker_user_is_believed_by_the_brokers_word(deployment: Deployment, amqp_url: str) -> None:
    me = broker_user(amqp_url)
    session = await deployment.session()
    before = await deployment.count("billing", "rejected_signature")
    await deployment.publish("billing", {"data": {"session": session}}, message_id="m1")
    await deployment.publish("billing.paid", {"data": {"session": session}}, message_id="m1", user_id=me)
    (stored,) = await deployment.has(session, 1)
    assert (stored["event"], stored["type"], stored["origin"]["principal"]) == ("m1", "paid", me)
    await deployment.counted("billing", "rejected_signature", before + 1)


async def test_the_doors_word_registers_a_subject_and_releases_what_was_held(deployment: Deployment) -> None:
    session, reservation = await deployment.session(), secrets.token_hex(4)
    subject = f"reservation:{reservation}"
    held = await deployment.count("restaurant", "held")
    for n in (1, 2, 3):
        await deployment.genuine("restaurant", f"{reservation}-{n}", {"data": {"reservation": reservation, "n": n}})
        await deployment.counted("restaurant", "held", held + n)
    word = attest(SEAL_KEYS, "subject", subject, session, "O1")
    await deployment.work(session, RegisterSubject(subject=subject, operation="O1", attestation=word))
    stored = await deployment.has(session, 3)
    assert [line["data"]["n"] for line in stored] == [1, 2, 3]
    await deployment.genuine("restaurant", f"{reservation}-4", {"data": {"reservation": reservation, "n": 4}})
    assert len(await deployment.has(session, 4)) == 4


async def test_a_word_that_the_door_did_not_give_is_a_dead_letter(deployment: Deployment) -> None:
    session = await deployment.session()
    word = attest(SEAL_KEYS, "subject", "reservation:x", "another-session", "O1")
    await deployment.work(session, RegisterSubject(subject="reservation:x", operation="O1", attestation=word))
    assert (await deployment.dead_letter())["reason"] == "forged_attestation"
    assert await deployment.redis.get(deployment.keys.of_subject("subject", "reservation:x")) is None


async def test_a_second_session_that_claims_a_subject_is_told_and_gets_nothing(deployment: Deployment) -> None:
    first, second = await deployment.session(), await deployment.session()
    subject = f"reservation:{secrets.token_hex(4)}"
    queue = await deployment.channel.declare_queue(exclusive=True)
    await queue.bind(deployment.topology.notices, f"{second}.operation")
    for session in (first, second):
        word = attest(SEAL_KEYS, "subject", subject, session, "O1")
        await deployment.work(session, RegisterSubject(subject=subject, operation="O1", attestation=word))
        key = deployment.keys.of_subject("subject", subject)

        async def registered(key: str = key) -> bool:
            return bool(await deployment.redis.get(key))

        await eventually(registered)

    async def notice() -> aio_pika.abc.AbstractIncomingMessage | None:
        return await queue.get(no_ack=True, fail=False)

    told = await eventually(notice, within=15)
    assert told is not None
    assert json.loads(told.body)["body"]["data"]["clash"] is True
    assert (await deployment.redis.get(key)).startswith(first.encode())


async def test_doorbells_reach_the_partition_of_their_session(deployment: Deployment) -> None:
    session = await deployment.session()
    partition = deployment.keys.partition(session)
    queue = await deployment.channel.get_queue(deployment.topology.partition_queue(partition), ensure=False)
    rung: list[dict[str, Any]] = []

    async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        rung.extend(member for member in json.loads(message.body) if member["session"] == session)

    tag = await queue.consume(on_message, no_ack=True)
    for n in range(3):
        await deployment.genuine("direct", f"{session}-{n}", {"data": {"session": session, "n": n}})

    def all_rung() -> bool:
        return {member["body"]["input"]["number"] for member in rung} == {1, 2, 3}

    await eventually(all_rung, within=15)
    assert rung[0]["type"] == "ingress.input_accepted.v1"
    await queue.cancel(tag)


async def test_junk_fills_no_dead_queue(deployment: Deployment) -> None:
    """Ten letters a minute and replica; the rest is counted and acknowledged."""
    session, name = (
        await deployment.session(),
        'turnkeeper_messages_total{outcome="%s",service="ingress",type="event"} ',
    )
    queue = await deployment.channel.get_queue(deployment.topology.dead, ensure=False)

    async def count(outcome: str) -> int:
        texts = [(await deployment.client.get(process.url + "/metrics")).text for process in deployment.processes]
        lines = [line for text in texts for line in text.splitlines() if line.startswith(name % outcome)]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines)

    before = await count("dead") + await count("refused")
    for n in range(100):
        await deployment.publish("nobody.junk", b"%d" % n)
    await deployment.genuine("direct", f"after-{session}", {"data": {"session": session}})
    await deployment.has(session, 1)

    async def all_counted() -> bool:
        return await count("dead") + await count("refused") == before + 100

    await eventually(all_counted, within=15)
    assert await count("refused") >= 75
    await queue.purge()


# CloudEvents, in both modes over both doors.

MEDIA = "application/cloudevents+json"


def cloud(session: str, id: str, **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": "/kitchen", "type": "gone", "data": {"session": session}, **more}


async def post(deployment: Deployment, source: str, headers: dict[str, str], body: bytes) -> Any:
    url = f"{deployment.processes[0].url}/v1/events/{source}"
    return await deployment.client.post(url, content=body, headers=headers)


async def test_a_structured_event_is_one_over_http_and_amqp_and_is_found_by_source_and_id(
    deployment: Deployment,
) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    body = json.dumps(cloud(session, id)).encode()
    first = await post(deployment, "direct", {"content-type": MEDIA, **signed("w1" + id, body)}, body)
    assert (first.status_code, first.json()["status"]) == (202, "accepted")
    before = await deployment.count("direct", "duplicate")
    await deployment.publish("direct.gone", body, dict(signed("w2" + id, body)), content_type=MEDIA)
    await deployment.counted("direct", "duplicate", before + 1)
    (stored,) = await deployment.inbox(session)
    assert (stored["event"], stored["type"], stored["data"]) == (id, "gone", {"session": session})
    found = await deployment.operator("GET", f"/v1/events/direct/{id}?ce_source=/kitchen")
    assert (found.status_code, found.json()["session"]) == (200, session)
    assert (await deployment.operator("GET", f"/v1/events/direct/{id}")).status_code == 404


async def test_a_binary_event_over_amqp_is_from_whom_the_broker_says(deployment: Deployment) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    headers = {f"cloudEvents:{name}": value for name, value in cloud(session, id).items() if name != "data"}
    user = broker_user(deployment.processes[0].env["TURNKEEPER_AMQP_URL"])
    await deployment.publish("billing", {"session": session}, headers, user_id=user, message_id="m1",
                             content_type="application/json")  # fmt: skip
    (stored,) = await deployment.has(session, 1)
    assert (stored["event"], stored["type"], stored["origin"]["principal"]) == (id, "gone", user)


async def test_a_binary_event_over_http_is_believed_where_its_attributes_are_signed(
    deployment: Deployment,
) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    source = Source.model_validate(APPLICATION["sources"]["attributes"])
    sent = sign_event("attributes", source, {"HMAC_SECRET": HMAC_SECRET}, event=id, type="gone",
                      data={"session": session}, seconds=int(time.time()))  # fmt: skip
    forged = await post(deployment, "attributes", {**sent.headers, "ce-type": "other"}, sent.body)
    assert forged.status_code == 401
    answer = await post(deployment, "attributes", dict(sent.headers), sent.body)
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    (stored,) = await deployment.has(session, 1)
    assert (stored["event"], stored["type"], stored["subject"]) == (id, "gone", "none")
    before = await deployment.count("attributes", "duplicate")
    headers = {name: value for name, value in sent.headers.items() if name != "content-type"}
    await deployment.publish("attributes", sent.body, headers, content_type="application/json")
    await deployment.counted("attributes", "duplicate", before + 1)


async def test_a_refused_one_says_what_is_wrong_and_writes_nothing(deployment: Deployment) -> None:
    session, id = await deployment.session(), secrets.token_hex(4)
    body = json.dumps(cloud(session, id, specversion="0.3")).encode()
    answer = await post(deployment, "direct", {"content-type": MEDIA, **signed("w1" + id, body)}, body)
    assert answer.status_code == 400
    assert "specversion is not 1.0" in answer.json()["detail"]
    await deployment.publish("direct", body, dict(signed("w1" + id, body)), content_type=MEDIA)
    letter = await deployment.dead_letter()
    assert (letter["reason"], "specversion is not 1.0" in letter["detail"]) == ("malformed", True)
    assert await deployment.inbox(session) == []

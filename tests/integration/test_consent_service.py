"""The consent service as a process of its own, between a real RabbitMQ and a real Redis."""

import asyncio
import base64
import contextlib
import hashlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import jwt
import orjson
import pytest
import yaml

from libs.contracts.codec import BUNDLE_TYPE, encode, join
from libs.contracts.consent import CancelAction, DecideByText
from libs.contracts.envelope import Envelope
from libs.contracts.ids import derive_id
from libs.contracts.keys import Keys
from libs.contracts.topology import Topology
from libs.runtime.connections import connect_redis
from libs.runtime.topology import declare
from tests.support.consent import ANA, application, issue, seal
from tests.support.eventually import eventually

pytestmark = pytest.mark.engine
SECRET = "u" * 32
PARTITIONS = 4


class Service:
    """One consent process and what surrounds it: the queues of the session service and of an application."""

    def __init__(self, redis_url: str, amqp_url: str, namespace: str, folder: Path) -> None:
        self.topology = Topology(namespace, PARTITIONS)
        self.keys = Keys(namespace, PARTITIONS)
        self.redis = connect_redis(redis_url, "test")
        self.amqp_url = amqp_url
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.config = folder / "turnkeeper.yaml"
        self.answer_within("10m")
        self.environment = {
            **os.environ,
            "TURNKEEPER_REDIS_URL": redis_url,
            "TURNKEEPER_AMQP_URL": amqp_url,
            "TURNKEEPER_NAMESPACE": namespace,
            "TURNKEEPER_PARTITIONS": str(PARTITIONS),
            "TURNKEEPER_CONFIG": str(self.config),
            "TURNKEEPER_HTTP_PORT": str(self.port),
            "TURNKEEPER_USER_TOKEN_SECRET": SECRET,
            "TURNKEEPER_SEAL_KEYS": "k1:" + base64.b64encode(b"s" * 32).decode(),
            "TURNKEEPER_CONSENT_SWEEP_SECONDS": "0.2",
        }
        self.process: asyncio.subprocess.Process | None = None
        self.told: list[Any] = []
        self.notices: list[Any] = []

    def answer_within(self, ttl: str) -> None:
        """Write the application file with this time to answer."""
        model = application(action_ttl=ttl).model_dump(mode="json", by_alias=True, exclude_none=True)
        self.config.write_text(yaml.safe_dump(model))

    async def start(self, **environment: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.consent", env={**self.environment, **environment}
        )
        await eventually(self.ready, within=30)

    async def ready(self) -> bool:
        async with httpx2.AsyncClient() as client:
            with contextlib.suppress(httpx2.HTTPError):
                return (await client.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == 200
        return False

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 20)

    async def connect(self) -> None:
        await declare(self.amqp_url, self.topology)
        self.connection = await aio_pika.connect(self.amqp_url)
        self.channel = await self.connection.channel()
        for partition in range(PARTITIONS):
            queue = await self.channel.get_queue(self.topology.partition_queue(partition), ensure=False)
            await queue.consume(self._hear(self.told), no_ack=True)
        cards = await self.channel.declare_queue(exclusive=True)
        await cards.bind(self.topology.notices, "#.question")
        await cards.consume(self._hear(self.notices), no_ack=True)
        self.work = await self.channel.get_exchange(self.topology.work, ensure=False)

    def _hear(self, heard: list[Any]) -> Any:
        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            body = orjson.loads(message.body)
            heard.extend(body if isinstance(body, list) else [body])

        return on_message

    async def send(self, *messages: Any, session: str = "s1") -> None:
        """One bundle, as the session service would send it."""
        envelopes = [
            Envelope(id=derive_id(m.model_dump_json()), type=m.wire_type(), session=session, body=m.model_dump())
            for m in messages
        ]
        body = join(encode(envelope) for envelope in envelopes)
        await self.work.publish(aio_pika.Message(body, content_type=BUNDLE_TYPE, priority=0), "consent")

    def heard(self, type_: str) -> list[Any]:
        return [envelope["body"] for envelope in self.told if envelope["type"] == type_]

    async def decide(self, action: str, digest: str, decision: str = "accept", user: str = "ana") -> httpx2.Response:
        token = jwt.encode({"sub": user, "exp": 4_000_000_000}, SECRET, "HS256")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as client:
            return await client.post(
                f"/v1/sessions/s1/actions/{action}/decision",
                json={"decision": decision, "question_digest": digest},
                headers={"Authorization": f"Bearer {token}"},
            )

    async def metric(self, line: str) -> float:
        async with httpx2.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text
        return next((float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(line + " ")), -1.0)

    async def outbox_is_empty(self) -> bool:
        pending = [await self.redis.hlen(self.keys.outbox("consent", number)[0]) for number in range(PARTITIONS)]
        return sum(pending) == 0


@pytest.fixture
async def service(redis_url, amqp_url, namespace, tmp_path):
    service = Service(redis_url, amqp_url, namespace, tmp_path)
    await service.connect()
    await service.redis.set(service.keys.of_session("owner", "s1"), "ana")
    yield service
    if service.process is not None:
        await service.stop(signal.SIGKILL)
    await service.connection.close()
    await service.redis.aclose()


async def test_a_question_is_asked_accepted_and_told(service):
    await service.start(TURNKEEPER_CONSENT_SWEEP_SECONDS="0")
    await service.send(issue(), issue())
    (asked,) = await eventually(lambda: service.heard("consent.action_asked.v1"))
    (card,) = await eventually(lambda: [envelope["body"] for envelope in service.notices])
    assert card["topic"] == "question"
    assert card["data"]["question_digest"] == asked["question_digest"]
    assert hashlib.sha256(card["text"].encode()).hexdigest() == asked["question_digest"]
    await eventually(lambda: _is(service.metric("turnkeeper_consent_pending"), 1))

    answers = await asyncio.gather(*(service.decide("A1", asked["question_digest"]) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    (told,) = await eventually(lambda: service.heard("ingress.input_accepted.v1"))
    assert told["input"]["data"] == {"action": "A1", "decision": "accept"}
    assert await service.metric('turnkeeper_consent_actions_total{outcome="asked"}') == 1
    assert await service.metric('turnkeeper_consent_actions_total{outcome="accepted"}') == 1
    assert await service.metric('turnkeeper_consent_decisions_total{outcome="repeated"}') == 19
    await eventually(lambda: _is(service.metric("turnkeeper_consent_pending"), 0))
    await eventually(service.outbox_is_empty)
    assert await service.stop() == 0


async def test_only_the_approvers_exact_text_decides(service):
    await service.start(TURNKEEPER_CONSENT_SWEEP_SECONDS="0")
    await service.send(issue())
    await eventually(lambda: service.heard("consent.action_asked.v1"))
    forged = DecideByText(text="yes A1", seal=seal(ANA, number=8, data={"text": "yes, sure"}))
    typed = DecideByText(text="yes A1", seal=seal(ANA, number=9, data={"text": "yes A1"}))
    await service.send(forged, typed, typed)
    (told,) = await eventually(lambda: service.heard("ingress.input_accepted.v1"))
    assert told["input"]["origin"] == ANA.model_dump()
    dead = await service.channel.get_queue(service.topology.dead, ensure=False)
    letter = orjson.loads((await dead.get(no_ack=True, timeout=5)).body)
    assert letter["body"]["reason"] == "other_text"
    assert await service.metric('turnkeeper_consent_decisions_total{outcome="accepted"}') == 1
    assert await service.metric('turnkeeper_consent_decisions_total{outcome="repeated"}') == 0


async def test_what_nobody_decides_expires_and_what_is_not_used_lapses(service):
    service.answer_within("5s")
    await service.start()
    await service.send(issue("A1"), issue("A2"), issue("A3"), CancelAction(action="A3", reason="the turn ended"))
    asked = await eventually(lambda: len(service.heard("consent.action_asked.v1")) == 3 and service.told)
    digest = next(e["body"]["question_digest"] for e in asked if e["body"].get("action") == "A2")
    assert (await service.decide("A2", digest)).status_code == 200
    closed = await eventually(
        lambda: len(service.heard("consent.action_closed.v1")) == 3 and service.heard("consent.action_closed.v1"),
        within=30,
    )
    assert {entry["action"]: entry["state"] for entry in closed} == {"A1": "expired", "A2": "lapsed", "A3": "cancelled"}
    assert (await service.decide("A1", "0" * 64)).status_code == 412
    digest = next(e["body"]["question_digest"] for e in asked if e["body"].get("action") == "A1")
    assert (await service.decide("A1", digest)).status_code == 410
    await eventually(lambda: service.heard("consent.decision_refused.v1"))


async def test_a_question_outlives_a_killed_process_and_its_messages_leave_in_the_end(service):
    """C126."""
    await service.start(TURNKEEPER_CONSENT_SWEEP_SECONDS="0")
    await service.send(issue())
    (asked,) = await eventually(lambda: service.heard("consent.action_asked.v1"))
    assert (await service.decide("A1", asked["question_digest"])).status_code == 200
    await service.stop(signal.SIGKILL)
    await service.start(TURNKEEPER_CONSENT_SWEEP_SECONDS="0")
    assert (await service.decide("A1", asked["question_digest"])).status_code == 200
    told = await eventually(lambda: service.heard("ingress.input_accepted.v1"))
    assert len({entry["input"]["id"] for entry in told}) == 1
    await eventually(service.outbox_is_empty)


async def test_wrong_settings_stop_the_service_and_print_no_secret(service):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.consent",
        env={**service.environment, "TURNKEEPER_SEAL_KEYS": "k1:c2hvcnQ=", "TURNKEEPER_OPERATOR_TOKENS": "nonsense"},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert b"TURNKEEPER_SEAL_KEYS" in errors
    assert b"TURNKEEPER_OPERATOR_TOKENS" in errors
    assert b"c2hvcnQ=" not in errors


async def _is(value: Any, expected: float) -> bool:
    return await value == expected

"""The door as a process between a real RabbitMQ, a real Redis and the sandbox; the sandbox's log is the evidence."""

import asyncio
import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import pytest
import yaml
from redis.asyncio import Redis

from libs.contracts.codec import BUNDLE_TYPE, decode, join, split
from libs.contracts.keys import Keys
from libs.contracts.standing import GrantRequest
from libs.contracts.tools import RunStep, StepFinished, WithdrawOperation
from libs.contracts.topology import Topology
from libs.runtime.clock import SystemClock
from libs.runtime.composer import Composer
from libs.runtime.topology import declare
from tests.support.door import RESTAURANT, SEAL_KEYS, seal, step
from tests.support.eventually import eventually
from tests.support.sandbox import DINNER, SandboxProcess, running_sandbox
from turnkeeper.ports import free_port

PARTITIONS = 2
SEALS = ",".join(f"{name}:{base64.b64encode(key).decode()}" for name, key in SEAL_KEYS.keys)
TABLE = {"party": 4, "day": "Fri", "time": "19:00"}


class DoorProcess:
    """`python -m services.tools`, its queue and what it answers."""

    def __init__(self, environment: dict[str, str], topology: Topology, folder: Path) -> None:
        self.port = free_port()
        self.environment = {**os.environ, **environment, "TURNKEEPER_HTTP_PORT": str(self.port)}
        self._topology = topology
        self._composer = Composer(topology, SystemClock())
        self.log = folder / "door.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.answers: list[StepFinished] = []
        self.channel: Any = None

    async def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "services.tools"]
            self.process = await asyncio.to_thread(
                subprocess.Popen, command, env=self.environment, stdout=log, stderr=log
            )
        await eventually(self.ready, within=30)

    async def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        with contextlib.suppress(httpx2.HTTPError):
            return (await self.get("/readyz")).status_code == 200
        return False

    async def get(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient() as client:
            return await client.get(f"http://127.0.0.1:{self.port}{path}", timeout=3)

    def end(self, number: int) -> int:
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(20)

    async def send(self, message: RunStep | WithdrawOperation, session: str = "s1") -> None:
        outgoing = self._composer.compose(message, session=session, id_parts=(message.operation,))
        exchange = await self.channel.get_exchange(outgoing.exchange)
        bundle = aio_pika.Message(join([outgoing.body]), content_type=BUNDLE_TYPE, delivery_mode=2, priority=0)
        await exchange.publish(bundle, outgoing.routing_key)

    async def heard(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        for member in split(message.body):
            _, answer = decode(member)
            if isinstance(answer, StepFinished):
                self.answers.append(answer)

    async def answered(self, operation: str, state: str = "") -> StepFinished:
        def found() -> StepFinished | None:
            fits = (one for one in self.answers if one.operation == operation and state in ("", one.state))
            return next(fits, None)

        answer = await eventually(found, within=30)
        assert answer is not None
        return answer


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[SandboxProcess]:
    with running_sandbox(tmp_path) as running:
        yield running


@pytest.fixture
async def door(
    redis_url: str, amqp_url: str, namespace: str, sandbox: SandboxProcess, tmp_path: Path
) -> AsyncIterator[DoorProcess]:
    topology = Topology(namespace, PARTITIONS)
    await declare(amqp_url, topology)
    environment = {
        "TURNKEEPER_REDIS_URL": redis_url, "TURNKEEPER_AMQP_URL": amqp_url, "TURNKEEPER_NAMESPACE": namespace,
        "TURNKEEPER_PARTITIONS": str(PARTITIONS), "TURNKEEPER_CONFIG": str(DINNER), "TURNKEEPER_SEAL_KEYS": SEALS,
        "TURNKEEPER_SANDBOX_URL": sandbox.url,
    }  # fmt: skip
    door = DoorProcess(environment, topology, tmp_path)
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        door.channel = await connection.channel()
        for number in range(PARTITIONS):
            queue = await door.channel.get_queue(topology.partition_queue(number))
            await queue.consume(door.heard, no_ack=True)
        await door.start()
        try:
            yield door
        finally:
            door.end(signal.SIGKILL)


def now() -> int:
    return SystemClock().now_ms()


async def test_a_step_acts_once_in_the_world_and_tells_the_session(door: DoorProcess, sandbox: SandboxProcess) -> None:
    call = step("reserve_table", TABLE, now=now())
    for _ in range(3):
        await door.send(call)
    answer = await door.answered("O1")
    assert (answer.state, answer.result) == ("committed", {"id": "R1", **TABLE})
    (entry,) = sandbox.entries()
    assert (entry["actor"], entry["session"], entry["operation"]) == ("agent", "s1", "O1")
    metrics = (await door.get("/metrics")).text
    assert 'turnkeeper_tools_operations_total{outcome="committed",tool="reserve_table"} 1.0' in metrics
    assert "turnkeeper_tools_unknown 0.0" in metrics


async def test_the_worlds_rule_is_the_answer(door: DoorProcess) -> None:
    await door.send(step("reserve_table", {**TABLE, "party": 21}, now=now()))
    answer = await door.answered("O1")
    assert (answer.state, answer.reason) == ("refused", "no table seats more than twenty")


async def test_a_function_beside_the_application_file_is_found(door: DoorProcess) -> None:
    await door.send(step("sunset", {"day": "2026-06-21"}, now=now()))
    assert (await door.answered("O1")).result == {"day": "2026-06-21", "sunset": "19:17", "zone": "UTC"}


async def test_a_door_killed_while_it_sends_goes_on_at_once_and_acts_once(
    door: DoorProcess, sandbox: SandboxProcess, redis_url: str, namespace: str
) -> None:
    """C089."""
    call = step("reserve_table", TABLE, now=now())
    key = Keys(namespace, PARTITIONS).of_session("operation", "s1", call.key)
    assert sandbox.process is not None
    sandbox.process.send_signal(signal.SIGSTOP)
    await door.send(call)
    await eventually(lambda: _stored(redis_url, key, "pending"))
    await asyncio.to_thread(door.end, signal.SIGKILL)
    sandbox.process.send_signal(signal.SIGCONT)
    await door.start()
    answer = await door.answered("O1")
    assert answer.state == "committed"
    assert [entry["collection"] for entry in sandbox.entries()] == ["reservations"]


async def test_a_sandbox_that_is_not_there_releases_the_key(door: DoorProcess, sandbox: SandboxProcess) -> None:
    sandbox.end(signal.SIGKILL)
    call = step("reserve_table", TABLE, now=now())
    await door.send(call)
    assert (await door.answered("O1")).state == "failed"
    await asyncio.to_thread(sandbox.start)
    await door.send(call.model_copy(update={"operation": "O2"}))
    assert (await door.answered("O2")).state == "committed"


@pytest.mark.parametrize("first", ["withdrawal", "call"])
async def test_of_withdrawal_and_call_the_first_counts_however_often_both_come(
    door: DoorProcess, sandbox: SandboxProcess, first: str
) -> None:
    call = step("reserve_table", TABLE, now=now())
    wish = WithdrawOperation(operation="O1", key=call.key, not_after=call.not_after)
    order: list[RunStep | WithdrawOperation] = [wish, call] if first == "withdrawal" else [call, wish]
    await door.send(order[0])
    await door.answered("O1")
    for message in (*order, *reversed(order)):
        await door.send(message)
    await door.send(step("text_group", {"text": "last"}, now=now(), key="last", operation="O9"))
    await door.answered("O9")
    states = {answer.state for answer in door.answers if answer.operation == "O1"}
    acted = [entry["collection"] for entry in sandbox.entries()]
    if first == "withdrawal":
        assert (states, acted) == ({"withdrawn"}, ["messages"])
    else:
        assert (states, acted) == ({"committed"}, ["reservations", "messages"])


async def test_a_lost_answer_is_looked_up_and_the_table_booked_once(door: DoorProcess, sandbox: SandboxProcess) -> None:
    await asyncio.to_thread(door.end, signal.SIGTERM)
    door.environment |= {"TURNKEEPER_LAB": "lose_answer:reserve_table", "TURNKEEPER_LAB_DEMO": "1"}
    await door.start()
    await door.send(step("reserve_table", TABLE, now=now()))
    assert (await door.answered("O1", "unknown")).reason == "lab: the connection was cut: ReadError"
    found = await door.answered("O1", "committed")
    assert found.result == {"id": "R1", **TABLE}
    assert [entry["collection"] for entry in sandbox.entries()] == ["reservations"]
    metrics = (await door.get("/metrics")).text
    assert 'turnkeeper_tools_lookups_total{found="stands",tool="reserve_table"} 1.0' in metrics


async def test_a_late_call_comes_after_its_withdrawal_and_only_the_first_is_late(
    door: DoorProcess, sandbox: SandboxProcess
) -> None:
    await asyncio.to_thread(door.end, signal.SIGTERM)
    door.environment |= {"TURNKEEPER_LAB": "late_call:reserve_table", "TURNKEEPER_LAB_DEMO": "1"}
    await door.start()
    call = step("reserve_table", TABLE, now=now())
    await door.send(call)
    await door.send(WithdrawOperation(operation="O1", key=call.key, not_after=call.not_after))
    assert (await door.answered("O1", "withdrawn")).reason == "lab: the call is late"
    await door.send(step("reserve_table", TABLE, now=now(), key="second", operation="O2"))
    assert (await door.answered("O2")).state == "committed"
    assert [entry["operation"] for entry in sandbox.entries()] == ["O2"]
    metrics = (await door.get("/metrics")).text
    assert 'turnkeeper_tools_operations_total{outcome="withdrawn",tool="reserve_table"} 1.0' in metrics


async def test_a_door_that_is_asked_to_stop_drains_and_ends_well(door: DoorProcess) -> None:
    await door.send(step("reserve_table", TABLE, now=now()))
    await door.answered("O1")
    assert await asyncio.to_thread(door.end, signal.SIGTERM) == 0


@pytest.mark.parametrize("lab, told", [
    ("lose_answer:sunset", "there is no tool sunset in the sandbox"),
    ("lose_answer", "there are no lab switches lose_answer"),
    ("late_call:nothing", "late_call: there is no tool nothing"),
])  # fmt: skip
def test_an_answer_can_be_lost_where_there_is_one(lab: str, told: str) -> None:
    environment = {
        **os.environ, "TURNKEEPER_REDIS_URL": "redis://127.0.0.1:1/0", "TURNKEEPER_AMQP_URL": "amqp://127.0.0.1:1/",
        "TURNKEEPER_SEAL_KEYS": SEALS, "TURNKEEPER_CONFIG": str(DINNER), "TURNKEEPER_LAB": lab,
        "TURNKEEPER_LAB_DEMO": "1", "TURNKEEPER_SANDBOX_URL": "http://127.0.0.1:1",
    }  # fmt: skip
    command = [sys.executable, "-m", "services.tools"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert told in ended.stderr


def test_wrong_settings_stop_the_start_with_every_fault_and_no_secret(tmp_path: Path) -> None:
    environment = {
        **os.environ, "TURNKEEPER_REDIS_URL": "redis://127.0.0.1:1/0", "TURNKEEPER_AMQP_URL": "http://x",
        "TURNKEEPER_SEAL_KEYS": "k1:c2VjcmV0", "TURNKEEPER_CONFIG": str(DINNER), "TURNKEEPER_SANDBOX_URL": "sandbox",
    }  # fmt: skip
    command = [sys.executable, "-m", "services.tools"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    for name in ("TURNKEEPER_AMQP_URL", "TURNKEEPER_SEAL_KEYS", "TURNKEEPER_SANDBOX_URL"):
        assert name in ended.stderr
    assert "c2VjcmV0" not in ended.stderr


def test_a_sandbox_tool_needs_to_know_where_the_sandbox_is(tmp_path: Path) -> None:
    environment = {
        **os.environ, "TURNKEEPER_REDIS_URL": "redis://127.0.0.1:1/0", "TURNKEEPER_AMQP_URL": "amqp://127.0.0.1:1/",
        "TURNKEEPER_SEAL_KEYS": SEALS, "TURNKEEPER_CONFIG": str(DINNER),
    }  # fmt: skip
    environment.pop("TURNKEEPER_SANDBOX_URL", None)
    command = [sys.executable, "-m", "services.tools"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    tools = yaml.safe_load(DINNER.read_text())["tools"]
    in_sandbox = {name for name, tool in tools.items() if "sandbox" in tool["connector"]}
    told = set(re.findall(r"TURNKEEPER_SANDBOX_URL: tools\.(\w+) acts in the sandbox", ended.stderr))
    assert told == in_sandbox
    assert in_sandbox


async def _stored(redis_url: str, key: str, state: str) -> bool:
    async with Redis.from_url(redis_url) as redis:
        return bool(await redis.hget(key, "state") == state.encode())


async def test_a_door_killed_between_a_reserved_use_and_its_claim_acts_once_for_one_use(
    door: DoorProcess, sandbox: SandboxProcess, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    """The claim is made to fail by a key of another type, so the process is killed after the one script and before the
    other; the broker delivers the call again to the next process."""
    await asyncio.to_thread(door.end, signal.SIGTERM)
    door.environment["TURNKEEPER_CONFIG"] = str(_granting(tmp_path))
    keys, sealed = Keys(namespace, PARTITIONS), seal(origin=RESTAURANT, at=now())
    call = step("reserve_table", TABLE, now=now(), seals=[sealed], offer=True)
    approval, operation = keys.of_user("standing", "ana", "S1"), keys.of_session("operation", "s1", call.key)
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        await redis.set(keys.of_session("owner", "s1"), "ana")
        wish = {"tool": "reserve_table", "limits": {name: {} for name in TABLE}, "uses": 1, "ends_at": now() + 600_000}
        stored = {"request": GrantRequest.model_validate(wish).content(), "made_at": now(), "ends_at": wish["ends_at"]}
        await redis.hset(approval, mapping={**stored, "taken": 0})
        await redis.zadd(keys.of_user("standings", "ana"), {"S1": now() + 700_000})
        await redis.set(operation, "in the way")
        await door.start()
        await door.send(call)
        await eventually(lambda: _taken(redis, approval, "1"))
        await asyncio.to_thread(door.end, signal.SIGKILL)
        assert sandbox.entries() == []
        await redis.delete(operation)
        await door.start()
        answer = await door.answered("O1", "committed")
        assert answer.standing == "S1"
        await eventually(lambda: _spent(redis, approval, call.key))
        assert await redis.hget(approval, "taken") == "1"
        await door.send(step("reserve_table", TABLE, now=now(), seals=[sealed], offer=True, key="k2", operation="O2"))
        assert (await door.answered("O2")).state == "needs_consent"
    assert [entry["operation"] for entry in sandbox.entries()] == ["O1"]


def _granting(folder: Path) -> Path:
    """The dinner application, whose tables can be granted in advance."""
    copied = shutil.copytree(DINNER.parent, folder / "application") / DINNER.name
    raw = yaml.safe_load(copied.read_text())
    raw["tools"]["reserve_table"]["standing"] = True
    copied.write_text(yaml.safe_dump(raw))
    return copied


async def _taken(redis: Redis, approval: str, count: str) -> bool:
    return bool(await redis.hget(approval, "taken") == count)


async def _spent(redis: Redis, approval: str, key: str) -> bool:
    return bool(await redis.hget(approval, f"c:s1:{key}") == "spent")

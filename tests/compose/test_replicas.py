"""Three session replicas on RabbitMQ 4: the broker spreads the partitions as the hash says, and moves only what must
move (design 3.2)."""

import asyncio
import re
import time
from collections.abc import Iterator

import httpx2
import pytest

from libs.runtime.partitions import expected_owner
from tests.compose.deployment import Deployment
from tests.support.eventually import eventually
from turnkeeper.signing import user_token

pytestmark = pytest.mark.slow
PARTITIONS = 16
REPLICAS = ["1", "2", "3"]
SESSIONS = [f"mover-{number}" for number in range(12)]
TIMES = [f"1{hour}:{minute}0" for hour in (7, 8) for minute in range(6)]
HANDOVER_SECONDS = 40


@pytest.fixture(scope="module")
def three(deployment: Deployment) -> Iterator[Deployment]:
    """The deployment with a third session replica."""
    deployment.compose("up", "--detach", "--wait", "session-3", within=120)
    yield deployment
    deployment.compose("rm", "--stop", "--force", "session-3")


def owners(deployment: Deployment) -> dict[int, str]:
    """Which replica is the single active consumer of each partition, as the broker sees it."""
    connections = {
        row["pid"]: {name: value for name, _, value in row["client_properties"]}["connection_name"]
        for row in deployment.rabbitmqctl("list_connections", "pid", "client_properties")
    }
    channels = {row["pid"]: row["connection"] for row in deployment.rabbitmqctl("list_channels", "pid", "connection")}
    found = {}
    for row in deployment.rabbitmqctl("list_consumers", "queue_name", "channel_pid", "active"):
        partition = re.fullmatch(r"turnkeeper\.session\.(\d+)", row["queue_name"])
        connection = connections.get(channels.get(row["channel_pid"], ""), "")
        if partition and row["active"] and connection:
            assert int(partition[1]) not in found, "a partition has two active consumers"
            found[int(partition[1])] = connection.removeprefix("turnkeeper-session-").removesuffix("-consume")
    return found


def by_hash(replicas: list[str]) -> dict[int, str]:
    return {partition: expected_owner(replicas, partition) for partition in range(PARTITIONS)}


async def test_each_replica_owns_exactly_the_partitions_that_the_hash_gives_it(three: Deployment) -> None:
    await eventually(lambda: owners(three) == by_hash(REPLICAS), HANDOVER_SECONDS)


async def test_killing_a_replica_moves_only_its_partitions(three: Deployment) -> None:
    await eventually(lambda: owners(three) == by_hash(REPLICAS), HANDOVER_SECONDS)
    staying = {partition: owner for partition, owner in by_hash(REPLICAS).items() if owner != "3"}
    three.compose("kill", "--signal", "KILL", "session-3")

    def moved() -> bool:
        now = owners(three)
        assert {partition: now[partition] for partition in staying} == staying, "a partition moved without need"
        return now == by_hash(["1", "2"])

    await eventually(moved, HANDOVER_SECONDS)
    three.compose("up", "--detach", "--wait", "session-3", within=120)
    await eventually(lambda: owners(three) == by_hash(REPLICAS), HANDOVER_SECONDS)


async def test_no_session_is_acted_on_by_two_while_partitions_move(three: Deployment) -> None:
    """Wishes go on while an owner is killed and comes back: each comes true once, in the order it was made."""
    async with httpx2.AsyncClient(base_url=three.url("ingress"), timeout=30) as client:
        for session in SESSIONS:
            operator = {"authorization": f"Bearer {three.secret('operator_token')}"}
            (await client.put(f"/v1/sessions/{session}", json={"owner": session}, headers=operator)).raise_for_status()
        for number, when in enumerate(TIMES):
            await asyncio.gather(*(wish(client, three, session, when) for session in SESSIONS))
            if number == 3:
                three.compose("kill", "--signal", "KILL", "session-3")
            if number == 8:
                three.compose("up", "--detach", "session-3")
    expected = {session: list(TIMES) for session in SESSIONS}
    await eventually(lambda: booked(three) == expected, HANDOVER_SECONDS * 2)


async def wish(client: httpx2.AsyncClient, deployment: Deployment, session: str, when: str) -> None:
    token = user_token(deployment.secret("user_token_secret"), session, int(time.time()))
    headers = {"authorization": f"Bearer {token}", "idempotency-key": f"{session}-{when}"}
    text = {"text": f"book Monday at {when} for 2"}
    (await client.post(f"/v1/sessions/{session}/messages", json=text, headers=headers)).raise_for_status()


def booked(deployment: Deployment) -> dict[str, list[str]]:
    """The times that were really booked for each of our sessions, in order."""
    found: dict[str, list[str]] = {session: [] for session in SESSIONS}
    for effect in deployment.effects():
        if effect["session"] in found:
            found[effect["session"]].append(effect["records"][0]["time"])
    return found

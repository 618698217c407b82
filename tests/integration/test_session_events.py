"""What events say of their subjects, through the whole session service on real servers."""

from typing import Any

import httpx2
import jwt
import pytest

from libs.contracts.ingress import TimerSkipped
from libs.contracts.tools import LookedUp, StepFinished
from tests.support.eventually import eventually
from tests.support.session_process import (
    APPLICATION,
    CONNECTOR,
    USER_SECRET,
    Neighbours,
    Replica,
    environment,
    neighbours,
    start,
    write_application,
)

pytestmark = pytest.mark.engine

TABLE = "reservation:R1"
SUBJECT = {"subject": "reservation:{{ data.id }}"}
MEANINGS = {
    "table.gone": {**SUBJECT, "gone": True, "sequence": "{{ data.v }}"},
    "table.news": {**SUBJECT, "sequence": "{{ data.v }}", "notice": "{{ data.text }}"},
    "offer": {**SUBJECT, "supersedes_questions": True},
}
WITH_MEANINGS: dict[str, Any] = {
    **APPLICATION,
    "sources": {
        **APPLICATION["sources"],
        "restaurant": {**APPLICATION["sources"]["restaurant"], "types": MEANINGS},
    },
    "tools": {
        "book": {
            "connector": CONNECTOR,
            "registers": "reservation:{{ result.id }}",
            "lookup": {"tool": "find", "args": {"key": "{{ key }}"}},
        },
        "find": {"connector": CONNECTOR, "effect": "read"},
        "mail": {"connector": CONNECTOR},
    },
}


@pytest.fixture
async def near(redis_url, amqp_url, namespace):
    async with neighbours(redis_url, amqp_url, namespace) as near:
        yield near


@pytest.fixture
async def replica(redis_url, amqp_url, namespace, tmp_path, near):
    config = write_application(tmp_path, WITH_MEANINGS)
    replica = start(environment(redis_url, amqp_url, namespace, config), tmp_path)
    yield await replica.ready()
    replica.kill()


async def event(near: Neighbours, type: str, v: str = "", **data: Any):
    """The restaurant's event about the table."""
    made = await near.append("s1", "event", {"id": "R1", **data}, type=type, subject=TABLE, sequence=v)
    await near.ring(made)
    return made


async def texts(near: Neighbours, kind: str) -> list[str]:
    return [line["text"] for line in await near.lines("s1") if line["kind"] == kind]


async def told(near: Neighbours, kind: str, *expected: str) -> None:
    async def so() -> bool:
        assert await texts(near, kind) == list(expected)
        return True

    await eventually(so, within=20)


async def booked(near: Neighbours) -> Any:
    said = await near.say("s1", "book 4")
    ((_, run),) = await near.runs(1)
    result = {"id": "R1"}
    finished = StepFinished(operation=run.operation, key=run.key, state="committed", result=result)
    await near.send(near.topology.sessions, finished, "s1")
    await near.all_became([said])
    return run


async def test_a_subject_is_reported_gone_looked_up_and_found_to_stand(replica: Replica, near: Neighbours):
    run = await booked(near)
    gone = await event(near, "table.gone", "2", n="5")
    ((session, asked),) = await near.work(1)
    assert (session, asked) == ("s1", {"operation": run.operation, "key": run.key})
    await told(near, "effect.gone", "R1, reported by restaurant")
    looked_up = LookedUp(operation=run.operation, key=run.key, found="stands", result={"state": "held"})
    await near.send(near.topology.sessions, looked_up, "s1")
    await told(near, "effect.gone", "R1, reported by restaurant", "R1, not so: its destination says that it stands")
    await near.all_became([gone])
    await near.all_became([await event(near, "table.gone", "1")], "stale")
    await near.all_became([await event(near, "table.news", "3", text="We open at six")], "noticed")
    await told(near, "notice", "We open at six")
    await told(near, "input.stale", "1 is not after 2")


async def test_a_turn_about_a_subject_goes_on_where_the_destination_is_not_heard_of(replica: Replica, near: Neighbours):
    await booked(near)
    await near.all_became([await event(near, "offer", n="5")], within=30)  # 10 s of waiting, by the durable deadline
    ((_, question),) = await near.work(1, "consent")
    assert question["steps"] == [{"tool": "book", "args": {"n": "5"}}]


async def test_a_skipped_timer_is_told_once_and_explain_changes_nothing(replica: Replica, near: Neighbours):
    await near.all_became([await near.say("s1", "hello")])
    for _ in range(2):
        skipped = TimerSkipped(timer="t1", instant=1, reason="too late")
        await near.send(near.topology.sessions, skipped, "s1")
    await near.all_became([await near.say("s1", "still there?")])
    await told(near, "timer.skipped", "t1: too late")
    token = jwt.encode({"sub": "ana", "exp": 2_000_000_000}, USER_SECRET, "HS256")
    before = await near.lines("s1")
    async with httpx2.AsyncClient(timeout=5) as client:
        answer = await client.post(
            f"{replica.base}/v1/sessions/s1/explain",
            json={"source": "restaurant", "type": "offer", "data": {"session": "s1", "id": "R9"}},
            headers={"authorization": f"Bearer {token}"},
        )
    found = {finding["about"]: finding["says"] for finding in answer.json()["findings"]}
    assert (found["route"], found["subject"]) == ("it names this session", "reservation:R9")
    assert await near.lines("s1") == before

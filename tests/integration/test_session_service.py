"""The session service as a process on real servers: doorbells, replicas, drains, and starts that are refused."""

import asyncio
import hashlib
import signal
import subprocess
import sys
from urllib.parse import quote

import httpx2
import jwt
import pytest

from services.session.record import Record
from services.session.replay import Replay, rules_of
from tests.support.eventually import eventually
from tests.support.session_process import (
    APPLICATION,
    USER_SECRET,
    environment,
    neighbours,
    start,
    write_application,
)

pytestmark = pytest.mark.engine


@pytest.fixture
async def near(redis_url, amqp_url, namespace):
    async with neighbours(redis_url, amqp_url, namespace) as near:
        yield near


@pytest.fixture
def environ(redis_url, amqp_url, namespace, tmp_path):
    return environment(redis_url, amqp_url, namespace, write_application(tmp_path))


@pytest.fixture
def replicas(environ, tmp_path, near):
    """Starts replicas by name; none is left at the end."""
    begun = []

    def begin(name="0", **more):
        begun.append(start({**environ, **more}, tmp_path, name))
        return begun[-1]

    yield begin
    for replica in begun:
        if replica.process.poll() is None:
            replica.kill()


async def applied(replica, session="s1"):
    answer = await replica.get(f"/v1/sessions/{session}", "ana")
    return answer.json()["applied"] if answer.status_code == 200 else 0


async def test_a_message_becomes_a_call_and_its_result_a_reply(replicas, near):
    replica = await replicas().ready()
    said = await near.say("s1", "book 4")
    ((session, run),) = await near.runs(1)
    assert (session, run.tool, run.args) == ("s1", "book", {"n": "4"})
    assert run.seals == (said.seal,)
    await near.answer("s1", run)
    await near.all_became([said])
    page = (await replica.get("/v1/sessions/s1/timeline", "ana")).json()["lines"]
    kinds = [line["kind"] for line in page]
    assert kinds == ["input", "turn.start", "turn.plan", "tool.sent", "tool.committed", "reply", "turn.done"]
    assert page[-2]["text"] == "booked 4"
    later = (await replica.get("/v1/sessions/s1/timeline?after=5", "ana")).json()["lines"]
    assert [line["seq"] for line in later] == [6, 7]
    metrics = (await replica.get("/metrics")).text
    assert 'turnkeeper_session_turns_total{origin="user",outcome="done"} 1.0' in metrics


async def test_another_user_or_nobody_reads_no_session(replicas, near):
    replica = await replicas().ready()
    await near.say("s1", "hello")
    assert (await replica.get("/v1/sessions/s1/timeline", "ben")).status_code == 403
    assert (await replica.get("/v1/sessions/s1/timeline")).status_code == 401
    assert (await replica.get("/v1/sessions/s9", "ana")).status_code == 404
    for number in ("x", "-1", "1.0", "٣", "²", "9" * 19):
        assert (await replica.get("/v1/sessions/s1/timeline?after=" + quote(number), "ana")).status_code == 400


async def test_a_webhooks_input_becomes_a_question_and_no_call(replicas, near):
    await replicas().ready()
    event = await near.append("s1", "event", {"data": {"n": "4"}})
    await near.ring(event)
    ((session, body),) = await near.work(1, "consent")
    assert (session, body["action"], body["steps"]) == ("s1", "A1", [{"tool": "book", "args": {"n": "4"}}])
    await near.all_became([event])
    assert "tool.sent" not in [line["kind"] for line in await near.lines("s1")]


async def test_doorbells_late_early_and_again_give_the_order_of_the_inbox(replicas, near):
    replica = await replicas().ready()
    inputs = [await near.append("s1", "message", {"text": f"m{n}"}) for n in range(5)]
    await near.ring(inputs[2], inputs[2], inputs[0], inputs[4], inputs[1], inputs[3])
    await near.all_became(inputs)
    assert await applied(replica) == 5
    lines = await near.lines("s1")
    assert [line["text"] for line in lines if line["kind"] == "reply"] == [f"you said m{n}" for n in range(5)]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))


async def test_a_doorbell_that_never_rings_is_made_good_by_the_next(replicas, near):
    await replicas().ready()
    silent = await near.append("s1", "message", {"text": "silent"})
    rung = await near.say("s1", "rung")
    await near.all_became([silent, rung])


async def test_bodies_are_gone_once_their_turn_ended(replicas, near):
    await replicas().ready()
    said = await near.say("s1", "hello")
    await near.all_became([said])
    assert await near.redis.hlen(near.keys.of_session("inbox", "s1")) == 0


OPERATOR = "operator-token-of-the-test"


@pytest.fixture
def recorded(environ):
    """What a replica that an operator may ask is told."""
    return {"TURNKEEPER_OPERATOR_TOKENS": f"op:read:{hashlib.sha256(OPERATOR.encode()).hexdigest()}"}


async def asked(replica, path):
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with httpx2.AsyncClient(timeout=5) as client:
        answer = await client.get(replica.base + path, headers=headers)
    assert answer.status_code == 200
    return answer


async def test_what_was_committed_can_be_decided_again_from_its_record(replicas, near, recorded, tmp_path):
    """Over a hand-over too: the second owner's entries follow the first's."""
    first = await replicas("0", **recorded).ready()
    said = await near.say("s1", "book 4")
    ((_, run),) = await near.runs(1)
    assert first.kill(signal.SIGTERM) == 0
    second = await replicas("1", **recorded).ready()
    await near.answer("s1", run)
    event = await near.append("s1", "event", {"data": {"n": "4"}})
    await near.ring(event, await near.say("s1", "hello"))
    await near.all_became([said, event])
    record = Record.model_validate_json((await asked(second, "/v1/sessions/s1/record")).content)
    assert record.version == len(record.entries) >= 4
    assert [entry.before is not None for entry in record.entries] == [True] + [False] * (record.version - 1)
    found = await Replay(record, rules_of(tmp_path / "turnkeeper.yaml")).run()
    assert found.findings == []
    assert found.replayed == record.version
    assert await near.redis.pttl(near.keys.of_session("record", "s1")) > 0


async def test_only_an_operator_reads_the_record_and_the_history(replicas, near, recorded):
    replica = await replicas(**recorded).ready()
    await near.all_became([await near.say("s1", "hello")])
    for path in ("/v1/sessions/s1/record", "/v1/sessions/s1/history"):
        assert (await replica.get(path, "ana")).status_code == 401
        assert (await replica.get(path)).status_code == 401
    roles = [message["role"] for message in (await asked(replica, "/v1/sessions/s1/history")).json()["messages"]]
    assert roles == ["system", "user", "assistant"]


async def test_a_service_that_is_told_not_to_record_does_not_and_later_begins_with_a_state(replicas, near, recorded):
    silent = await replicas("0", TURNKEEPER_SESSION_RECORD="false", **recorded).ready()
    await near.all_became([await near.say("s1", "hello")])
    assert (await asked(silent, "/v1/sessions/s1/record")).json()["entries"] == []
    silent.kill(signal.SIGTERM)
    replica = await replicas("1", **recorded).ready()
    await near.all_became([await near.say("s1", "again")])
    (entry,) = (await asked(replica, "/v1/sessions/s1/record")).json()["entries"]
    assert entry["version"] == 1
    assert entry["before"]["applied"] == 1


@pytest.mark.slow
async def test_two_replicas_lose_and_repeat_nothing_while_one_is_killed(replicas, near):
    first, second = replicas("0"), replicas("1")
    await first.ready()
    await second.ready()
    sessions = [f"s{n}" for n in range(12)]
    inputs = [await near.say(session, f"book {n}") for n in range(3) for session in sessions]
    runs = await near.runs(len(sessions))
    first.kill()
    for session, run in runs:
        await near.answer(session, run)
    for _ in range(2):
        runs = await near.runs(len(sessions))
        for session, run in runs:
            await near.answer(session, run)
    await near.all_became(inputs, within=40)
    for session in sessions:
        lines = await near.lines(session)
        told = [line["text"] for line in lines if line["kind"] == "reply"]
        assert told == [f"booked {n}" for n in range(3)], "\n".join(f"{line['kind']} {line['text']}" for line in lines)
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.slow
async def test_a_drain_by_sigterm_ends_well_and_loses_nothing(replicas, near):
    replica = await replicas().ready()
    inputs = [await near.say(f"s{n % 7}", f"m{n}") for n in range(150)]
    assert replica.kill(signal.SIGTERM) == 0
    await replicas("0").ready()
    await near.all_became(inputs)
    for number in range(7):
        told = [line["text"] for line in await near.lines(f"s{number}") if line["kind"] == "reply"]
        assert told == [f"you said m{n}" for n in range(number, 150, 7)]


async def test_an_open_stream_holds_up_no_stop(replicas, near):
    replica = await replicas(TURNKEEPER_DRAIN_SECONDS="60").ready()
    said = await near.say("s1", "hello")
    await near.all_became([said])
    token = jwt.encode({"sub": "ana", "exp": 2_000_000_000}, USER_SECRET, "HS256")
    headers = {"authorization": f"Bearer {token}", "accept": "text/event-stream"}
    url = f"{replica.base}/v1/sessions/s1/timeline"
    async with httpx2.AsyncClient(timeout=20) as client, client.stream("GET", url, headers=headers) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "id: 1"
        replica.process.send_signal(signal.SIGTERM)
        assert [line async for line in lines][-1] == ""
    assert await asyncio.to_thread(replica.process.wait, 20) == 0


@pytest.mark.slow
async def test_a_turn_whose_door_is_silent_ends_with_unknown_told(replicas, near):
    await replicas(TURNKEEPER_OPERATION_WAIT_SECONDS="0.5").ready()
    said = await near.say("s1", "book 4")
    await near.all_became([said], "failed")
    assert "unknown" in next(line["text"] for line in await near.lines("s1") if line["kind"] == "reply")


async def test_a_process_without_a_topology_says_what_it_does_not_consume(replicas, near, namespace):
    replica = replicas(TURNKEEPER_NAMESPACE=f"{namespace}-none")

    async def said():
        return "not consuming from" in (await replica.get("/readyz")).text

    await eventually(lambda: replica.log.stat().st_size > 0 and said(), within=20)
    assert (await replica.get("/readyz")).status_code == 503
    assert (await replica.get("/livez")).status_code == 200


def refused(environ):
    """Start, and expect that it ends by itself; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "services.session"], env=environ, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    return done.stdout + done.stderr


def test_wrong_settings_are_all_told_and_none_of_their_values(environ):
    said = refused(
        {
            **environ,
            "TURNKEEPER_REDIS_URL": "http://hidden-value",
            "TURNKEEPER_AMQP_URL": "hidden-value",
            "TURNKEEPER_PARTITIONS": "hidden-value",
            "TURNKEEPER_NAMESPACE": "hidden.value!",
            "TURNKEEPER_LOG_LEVEL": "hidden-value",
            "TURNKEEPER_SESSION_PREFETCH": "0",
        }
    )
    for name in ("REDIS_URL", "AMQP_URL", "PARTITIONS", "NAMESPACE", "LOG_LEVEL", "SESSION_PREFETCH"):
        assert f"TURNKEEPER_{name}: " in said
    assert "hidden" not in said
    assert USER_SECRET not in said
    assert "Traceback" not in said


def test_lab_switches_are_refused_outside_the_demo(environ):
    assert "TURNKEEPER_LAB" in refused({**environ, "TURNKEEPER_LAB": "authority_by_role"})


def test_wrong_operator_tokens_are_told_without_their_hash(environ):
    said = refused({**environ, "TURNKEEPER_OPERATOR_TOKENS": "ops:read:" + "f" * 63})
    assert "operator" in said.lower()
    assert "f" * 20 not in said
    assert "Traceback" not in said


def test_a_wrong_application_is_told_fault_by_fault(environ, tmp_path):
    wrong = {**APPLICATION, "colour": "red", "tools": {"book": {"connector": {}}}}
    write_application(tmp_path, wrong)
    said = refused(environ)
    assert "colour: " in said
    assert "tools.book.connector: " in said
    assert "Traceback" not in said


def test_wrong_rules_are_told(environ, tmp_path):
    (tmp_path / "rules.yaml").write_text("rules: [{when: {text: '('}}, {reply: '{{'}]")
    said = refused(environ)
    assert "rules.0.when.text: " in said
    assert "rules.1.reply: " in said
    assert "Traceback" not in said


async def test_another_partition_count_does_not_start(environ, near):
    await near.redis.set(near.keys.meta("partitions"), 7)
    said = refused(environ)
    assert "set it to 7" in said

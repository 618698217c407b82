"""The planner `http`: what it is sent, what it may answer, and a start that is refused without its secrets."""

import subprocess
import sys

import orjson
import pytest

from libs.runtime.clock import SystemClock
from libs.runtime.settings import SettingsError
from services.session.planners.build import build_remote
from services.session.planners.worker import PlanWorker
from tests.support.planner import TOKEN, Delivered, Work, answering, application, request, server, wrapped
from tests.support.session_process import APPLICATION, environment, write_application

STEP = {"tool": "book", "args": {"n": 4}}
NO_PLANS = {
    # answer: what the operator is told
    b"[]": "no JSON object",
    b"<html>": "not JSON",
    b'{"steps":{}}': "steps: Input should be a valid tuple",
    b'{"steps":[{"tool":"book"}]}': "steps.0.args: Field required",
    b'{"steps":[{"tool":"a.b","args":{}}]}': "steps.0.tool: String should match",
    b'{"steps":[{"tool":"book","args":[]}]}': "steps.0.args: Input should be a valid dictionary",
    b'{"steps":[{"tool":"book","args":{},"approved":true}]}': "steps.0.approved: Extra inputs",
    b'{"reply":5}': "reply: Input should be a valid string",
    b'{"relation":"perhaps"}': "relation: Input should be",
    b'{"fault":"x"}': "fault: Extra inputs",
    b'{"token":"x"}': "token: Extra inputs",
    b'{"reply":"a","reply":"b"}': "a key stands twice",
    orjson.dumps({"steps": [STEP] * 300}): "at most 200 items",
    b'{"reply":"' + b"x" * 300_000 + b'"}': "larger than 256 KiB",
}


def planner(url, **more):
    return {"http": {"url": url, "timeout": "400ms", "retries": 1, **more}}


async def made_by(answer, **more):
    work = Work()
    async with server(answering(answer)) as serving:
        made = await work.ask(planner(f"{serving.url}/plan", **more), request(), {"KEY": "Bearer invented"})
    return made, serving.asked, work


async def test_the_view_goes_out_with_the_deadline_and_without_the_token():
    _, (asked,), _ = await made_by({"reply": "hi"}, headers={"authorization": "env:KEY", "x-more": "env:KEY"})
    assert asked.head.startswith("POST /plan HTTP/1.1")
    assert asked.header("authorization") == asked.header("x-more") == "Bearer invented"
    assert (asked.body["session"], asked.body["turn"], asked.body["plan"]) == ("s1", "T1", 1)
    assert asked.body["deadline"] > SystemClock().now_ms()
    assert asked.body["messages"][1]["role"] == "user"
    assert TOKEN not in str(asked.body)


async def test_steps_reply_note_and_relation_come_back_bound_to_the_request():
    answer = {"steps": [STEP], "reply": "on it", "note": "n", "relation": "adds"}
    made, _, work = await made_by(answer)
    assert made.model_dump(mode="json") == {**answer, "turn": "T1", "plan": 1, "token": TOKEN, "fault": ""}
    ((envelope, _),) = work.publisher.plans()
    assert (envelope.session, envelope.correlation, envelope.depth) == ("s1", "root", 2)
    assert work.publisher.sent[0].exchange == work.topology.sessions


async def test_the_same_request_makes_a_plan_of_the_same_id():
    work = Work()
    async with server(answering({})) as serving:
        for number in (1, 1, 2):
            await work.ask(planner(serving.url), request(plan=number))
    first, again, other = (message.id for message in work.publisher.sent)
    assert first == again != other


@pytest.mark.parametrize(("answer", "reason"), NO_PLANS.items(), ids=[k[:40].decode() for k in NO_PLANS])
async def test_what_is_no_plan_is_a_fault_and_no_step(answer, reason):
    made, _, work = await made_by(answer)
    assert reason in made.fault
    assert (made.steps, made.reply, made.relation) == ((), "", "")
    assert work.counted("refused") == 1


async def test_a_request_whose_deadline_is_over_asks_nobody_and_publishes_nothing():
    work = Work()
    async with server(answering({})) as serving:
        with pytest.raises(IndexError):
            await work.ask(planner(serving.url), request(seconds=-1))
    assert (serving.asked, work.publisher.sent, work.counted("repeated")) == ([], [], 1)


@pytest.mark.parametrize("body", [b"{", b"{}", b"null", wrapped(request())[:-1], b'{"id":"x","type":"no.such.v1"}'])
async def test_a_request_that_cannot_be_read_goes_to_the_dead_queue(body):
    work = Work()
    worker = PlanWorker(None, work.plans, work.topology, work.clock, work.metrics)  # type: ignore[arg-type]
    await worker.on_delivery(Delivered(body))  # type: ignore[arg-type]
    (letter,) = work.publisher.sent
    assert letter.exchange == work.topology.dead
    assert orjson.loads(letter.body)["body"]["reason"] == "unreadable"
    assert work.counted("dead") == 1


FAULTY = {
    "a key that is not set": ({"openai": {"model": "m", "key": "env:NO_KEY"}}, "planner.openai.key: the environment"),
    "a header that is not set": (
        {"http": {"url": "http://a/", "headers": {"authorization": "env:NO_KEY"}}},
        "planner.http.headers.authorization: the environment variable NO_KEY is not set",
    ),
    "a secret in the file itself": (
        {"openai": {"model": "m", "key": "sk-secret"}},
        "planner.openai.key: a secret is a",
    ),
    "a file that is not there": ({"openai": {"model": "m", "key": "file:/no/such"}}, "planner.openai.key: the secret"),
    "a key that breaks the header": ({"openai": {"model": "m", "key": "env:BROKEN"}}, "what env:BROKEN holds"),
    "a header that is ours": ({"http": {"url": "http://a/", "headers": {"Host": "env:KEY"}}}, "headers.Host: no name"),
    "a header with a colon": ({"http": {"url": "http://a/", "headers": {"a: b": "env:KEY"}}}, "headers.a: b: no name"),
    "a password in the url": ({"http": {"url": "http://ana:secret@a/"}}, "planner.http.url: a password"),
    "a url without a host": ({"http": {"url": "http:///plan"}}, "planner.http.url: it names no host"),
    "a port that is none": ({"http": {"url": "http://a:99999/"}}, "planner.http.url: "),
    "no room beside instructions": (
        {"openai": {"model": "m", "tokens": 1_000, "instructions": "x" * 5_000}},
        "planner.openai.tokens: tools and instructions alone",
    ),
}


@pytest.mark.parametrize(("given", "fault"), FAULTY.values(), ids=FAULTY.keys())
def test_a_planner_that_cannot_be_asked_stops_the_start(given, fault):
    environ = {"KEY": "good", "BROKEN": "sk-secret\r\nx: y"}
    with pytest.raises(SettingsError) as refused:
        build_remote(application(given), environ, SystemClock(), 1_000)
    assert fault in str(refused.value)
    assert "sk-secret" not in str(refused.value)
    assert ":secret@" not in str(refused.value)


@pytest.mark.parametrize("name", ["relate", "read_turn", "read_event", "ask_owner"])
def test_a_tool_named_as_a_function_of_ours_stops_the_start_with_openai_alone(name):
    with pytest.raises(SettingsError, match=f"tools.{name}: the planner openai"):
        build_remote(application({"openai": {"model": "m"}}, **{name: {}}), {}, SystemClock(), 1_000)
    assert build_remote(application({"http": {"url": "http://a/"}}, **{name: {}}), {}, SystemClock(), 1_000)


def test_the_service_does_not_start_without_its_planners_key_and_says_which(tmp_path):
    made = {**APPLICATION, "planner": {"openai": {"model": "m", "key": "env:MODEL_KEY"}}}
    environ = environment("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/", "", write_application(tmp_path, made))
    environ["TURNKEEPER_REPLICA"] = "0"
    done = subprocess.run(
        [sys.executable, "-m", "services.session"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "planner.openai.key: the environment variable MODEL_KEY is not set" in done.stderr

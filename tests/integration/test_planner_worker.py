"""Plans from outside on a real RabbitMQ: off the partitions, many at once, and none lost or waited for in vain."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import aio_pika
import orjson
import pytest

import turnkeeper
from libs.contracts.codec import BUNDLE_TYPE, MESSAGE_TYPE, join
from tests.support.courier import outside, take
from tests.support.eventually import eventually
from tests.support.planner import (
    TOKEN,
    Partitions,
    answering,
    http,
    replica,
    request,
    send_requests,
    server,
    stopped,
    wrapped,
)
from turnkeeper.serving.amqp import working

pytestmark = pytest.mark.engine
AGENTS = Path(__file__).parents[2] / "examples" / "agents"
AMQP = {"amqp": {}}


def by_http(url, **more):
    return {"http": {"url": url, "timeout": "60s", "retries": 0, **more}}


@contextlib.asynccontextmanager
async def partitions(amqp_url, rt):
    """Everything that comes into the partitions."""
    connection = await aio_pika.connect(amqp_url)
    async with connection, connection.channel() as channel:
        yield await Partitions(channel, rt.topology).start()


async def waiting(amqp_url, namespace, queue):
    """Messages that are ready in a queue."""
    async with outside(amqp_url, namespace) as out:
        return await out.ready(queue)


async def slow_for_some(asked, writer):
    """Half a minute for sessions called slow-*, nothing for others."""
    if asked.body["session"].startswith("slow-"):
        await asyncio.sleep(30)
    writer.write(http(orjson.dumps({"reply": asked.body["session"]})))


async def test_a_request_becomes_the_plan_of_its_session_and_is_acknowledged(redis_url, amqp_url, namespace):
    async with server(answering({"reply": "hi"})) as serving:
        async with replica(redis_url, amqp_url, namespace, by_http(serving.url)) as rt, partitions(amqp_url, rt) as got:
            await send_requests(rt, ("s1", request()), ("s2", request("s2", plan=7)))
            plans = await got.plans(2)
            queue = rt.topology.work_queue("planner")
        assert sorted((s, made.plan, made.token, made.reply) for s, made in plans) == [
            ("s1", 1, TOKEN, "hi"),
            ("s2", 7, TOKEN, "hi"),
        ]
    assert await waiting(amqp_url, namespace, queue) == 0


@pytest.mark.slow
async def test_a_thousand_slow_plans_hold_up_no_other_plan_and_none_is_lost(redis_url, amqp_url, namespace):
    async with server(slow_for_some) as serving:
        planner = by_http(serving.url)
        async with (
            replica(redis_url, amqp_url, namespace, planner, 2_000) as rt,
            partitions(amqp_url, rt) as got,
        ):
            queue = rt.topology.work_queue("planner")
            await send_requests(rt, *((f"slow-{n}", request(f"slow-{n}", seconds=90)) for n in range(1_000)))
            await eventually(lambda: serving.open == 1_000, within=20)
            took = []
            for number in range(50):
                began = time.monotonic()
                await send_requests(rt, (f"s{number}", request(f"s{number}")))
                await got.plans(number + 1)
                took.append(time.monotonic() - began)
            print(f"median of 50 beside 1,000 slow ones: {sorted(took)[25] * 1000:.1f} ms")
            assert {session for session, _ in got.made} == {f"s{number}" for number in range(50)}
            assert sorted(took)[25] < 0.5
            began = time.monotonic()
            await stopped(rt)
            assert time.monotonic() - began < 5
        assert await eventually(lambda: all_back(amqp_url, namespace, queue, 1_000))


async def all_back(amqp_url, namespace, queue, count):
    """What was under way waits for another replica; what was answered does not."""
    assert await waiting(amqp_url, namespace, queue) == count
    return True


async def test_a_replica_that_ends_leaves_its_requests_to_another(redis_url, amqp_url, namespace):
    async with server(slow_for_some) as serving:
        async with replica(redis_url, amqp_url, namespace, by_http(serving.url)) as first:
            await send_requests(first, ("slow-1", request("slow-1")))
            await eventually(lambda: serving.open == 1)
        async with server(answering({"reply": "from the second"})) as quick:
            planner = by_http(quick.url)
            async with replica(redis_url, amqp_url, namespace, planner) as rt, partitions(amqp_url, rt) as got:
                ((session, made),) = await got.plans(1)
    assert (session, made.reply) == ("slow-1", "from the second")


async def test_requests_travel_alone_so_that_an_agent_acknowledges_one_at_a_time(redis_url, amqp_url, namespace):
    async with replica(redis_url, amqp_url, namespace, AMQP) as rt, outside(amqp_url, namespace) as out:
        await send_requests(rt, *((f"s{n}", request(f"s{n}")) for n in range(20)))
        queue = await out._channel.get_queue(rt.topology.work_queue("planner"), ensure=False)
        found = await take(queue, 20)
    assert {message.content_type for message in found} == {MESSAGE_TYPE}
    assert {orjson.loads(message.body)["session"] for message in found} == {f"s{n}" for n in range(20)}


async def test_a_replayed_bundle_of_requests_is_answered_member_by_member(redis_url, amqp_url, namespace):
    async with server(answering({"reply": "hi"})) as serving:
        planner = by_http(serving.url)
        async with replica(redis_url, amqp_url, namespace, planner) as rt, partitions(amqp_url, rt) as got:
            bundle = join([wrapped(request()), b'{"no":"request"}', wrapped(request("s2"), "s2")])
            async with outside(amqp_url, namespace) as out:
                exchange = await out._channel.get_exchange(rt.topology.work, ensure=False)
                await exchange.publish(aio_pika.Message(bundle, content_type=BUNDLE_TYPE), "planner")
                (letter,) = await out.dead(1)
            assert {session for session, _ in await got.plans(2)} == {"s1", "s2"}
    assert letter["body"]["message"] == {"no": "request"}


def answered(session="s1", **changed):
    """An agent's answer."""
    return {"session": session, "turn": "T1", "plan": 1, "token": TOKEN, "reply": "hi", **changed}


def without(*names):
    return {name: part for name, part in answered().items() if name not in names}


NOBODYS = {
    "no JSON": b"hello",
    "nothing": b"",
    "a list": [answered()],
    "no session": without("session"),
    "a session that pierces a key": answered(session="s}1"),
    "a turn that is no text": answered(turn=1),
    "no plan": without("plan"),
    "a plan that is true": answered(plan=True),
    "a negative plan": answered(plan=-1),
    "a plan beyond numbers": answered(plan=2**60),
    "no token": without("token"),
    "an empty token": answered(token=""),
    "a token like a book": answered(token="x" * 300),
    "a key twice": b'{"session":"s1","session":"s2"}',
    "too large": answered(reply="x" * 300_000),
    "too deep": b"[" * 500 + b"]" * 500,
}
FAULTS = {
    "steps that are none": answered(steps="book"),
    "a step without arguments": answered(steps=[{"tool": "book"}]),
    "a field too many": answered(approved=True),
    "a relation that is none": answered(relation="owner"),
    "a reply that is no text": answered(reply=None),
}


async def publish(amqp_url, rt, *bodies):
    """As an agent publishes."""
    async with outside(amqp_url, rt.settings.namespace) as out:
        exchange = await out._channel.get_exchange(rt.topology.plans, ensure=False)
        for body in bodies:
            raw = body if isinstance(body, bytes) else orjson.dumps(body)
            await exchange.publish(aio_pika.Message(raw, content_type="application/json"), "")


async def test_an_agents_wrong_answers_are_counted_acknowledged_and_hold_up_nothing(redis_url, amqp_url, namespace):
    async with replica(redis_url, amqp_url, namespace, AMQP) as rt, partitions(amqp_url, rt) as got:
        await publish(amqp_url, rt, *NOBODYS.values(), *FAULTS.values(), answered("s9", steps=[]))
        plans = await got.plans(len(FAULTS) + 1)
        labels = {"service": "session", "type": "plan"}
        value = rt.registry.get_sample_value
        refused = value("turnkeeper_messages_total", {**labels, "outcome": "refused"})
        handled = value("turnkeeper_messages_total", {**labels, "outcome": "handled"})
        queue, dead = rt.topology.plans, rt.topology.dead
    assert len(plans) == len(FAULTS) + 1
    assert (refused, handled) == (len(NOBODYS) + len(FAULTS), 1)
    faulty = [made for session, made in plans if session == "s1"]
    assert all(made.fault and not made.steps and not made.reply and made.token == TOKEN for made in faulty)
    ((_, good),) = [plan for plan in plans if plan[0] == "s9"]
    assert (good.reply, good.fault) == ("hi", "")
    assert await waiting(amqp_url, namespace, queue) == 0
    assert await waiting(amqp_url, namespace, dead) == 0


@contextlib.contextmanager
def agent(command, amqp_url, namespace, folder, **more):
    """An agent as a process."""
    log = folder / "agent.log"
    env = {"PATH": os.environ["PATH"], "AMQP_URL": amqp_url, "NAMESPACE": namespace, **more}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=env, stdout=sink, stderr=sink, cwd=folder)
    try:
        yield process
        assert process.poll() is None, log.read_text()[-2_000:]
    finally:
        process.kill()
        process.wait(10)
        print(log.read_text()[-2_000:])


def asking(session, text="", kind="message", **changed):
    """A request about what somebody said."""
    asked = {"number": 1, "kind": kind, "source": "app", "type": "", "event": "e1", "data": {"text": text}}
    return session, request(session, input=asked, **changed)


TALK = [
    asking("s1", "Book Fri 19:00 for 4"),
    asking("s2", "hello"),
    asking("s3", "Book Fri 19:00 for 4", kind="event"),
    asking("s4", "Book Fri 19:00 for 4", results=[{"tool": "reserve_table", "state": "committed"}]),
    asking("s5", "Book Fri 19:00 for 4", running={"input": {}}),
]


def assert_talked(plans):
    """What the examples answer to TALK: an event's text is no wish, whatever it says."""
    made = dict(plans)
    (step,) = made["s1"].steps
    assert (step.tool, step.args) == ("reserve_table", {"party": 4, "day": "Fri", "time": "19:00"})
    assert [made[f"s{n}"].reply for n in (2, 3, 4, 5)] == ["You said: hello", "", "Booked.", ""]
    assert made["s3"].steps == ()
    assert made["s5"].relation == "independent"
    assert {plan.token for plan in made.values()} == {TOKEN}
    assert {plan.fault for plan in made.values()} == {""}


async def test_the_agent_in_python_answers_requests(redis_url, amqp_url, namespace, tmp_path):
    async with replica(redis_url, amqp_url, namespace, AMQP) as rt, partitions(amqp_url, rt) as got:
        with agent([sys.executable, str(AGENTS / "agent.py")], amqp_url, namespace, tmp_path):
            await send_requests(rt, *TALK)
            assert_talked(await got.plans(len(TALK)))
            queue = rt.topology.work_queue("planner")
            await eventually(lambda: all_back(amqp_url, namespace, queue, 0))


async def test_what_an_agent_had_when_it_was_killed_comes_to_the_next(redis_url, amqp_url, namespace, tmp_path):
    program = AGENTS / "agent.py"
    hanging = tmp_path / "hanging.py"
    hangs = "def plan(view):\n    __import__('time').sleep(60)\n\n\ndef _("
    hanging.write_text(program.read_text().replace("def plan(", hangs))
    async with replica(redis_url, amqp_url, namespace, AMQP) as rt, partitions(amqp_url, rt) as got:
        queue = rt.topology.work_queue("planner")
        with agent([sys.executable, str(hanging)], amqp_url, namespace, tmp_path):
            await send_requests(rt, TALK[1])
            await eventually(lambda: all_back(amqp_url, namespace, queue, 0))
        with agent([sys.executable, str(program)], amqp_url, namespace, tmp_path):
            ((session, made),) = await got.plans(1)
    assert (session, made.reply) == ("s2", "You said: hello")


def node():
    """The program that runs JavaScript."""
    return shutil.which("node") or pytest.skip("needs node")


def test_the_agent_in_javascript_is_javascript():
    subprocess.run([node(), "--check", str(AGENTS / "agent.js")], check=True, timeout=30)


@pytest.fixture
def javascript(tmp_path):
    """The agent in JavaScript with its library, as its README says to install it."""
    npm = shutil.which("npm") or pytest.skip("needs npm")
    folder = tmp_path / "agents"
    shutil.copytree(AGENTS, folder)
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if installed.returncode:
        pytest.skip(f"npm install in examples/agents fails: {installed.stderr.strip()[-300:]}")
    return folder / "agent.js"


async def test_the_agent_in_javascript_answers_requests(redis_url, amqp_url, namespace, tmp_path, javascript):
    async with replica(redis_url, amqp_url, namespace, AMQP) as rt, partitions(amqp_url, rt) as got:
        with agent([node(), str(javascript)], amqp_url, namespace, tmp_path):
            await send_requests(rt, *TALK)
            assert_talked(await got.plans(len(TALK)))


async def test_a_decorated_function_answers_over_amqp_and_its_exception_ends_the_turn_at_once(
    redis_url, amqp_url, namespace
):
    @turnkeeper.planner
    def plan(view):
        if view["session"] == "s2":
            raise LookupError("no model")
        return f"hello {view['session']}"

    async with replica(redis_url, amqp_url, namespace, AMQP) as rt, partitions(amqp_url, rt) as got:
        await send_requests(rt, ("s1", request()), ("s2", request("s2")))
        async with working(plan, amqp_url, namespace):
            plans = dict(await got.plans(2))
        assert await waiting(amqp_url, namespace, rt.topology.work_queue("planner")) == 0
    assert (plans["s1"].reply, plans["s1"].fault) == ("hello s1", "")
    assert "LookupError" in plans["s2"].fault

"""The courier on real Redis and RabbitMQ: receive → decide → commit → send → settle, and what may go wrong between."""

import asyncio
import base64
import datetime
import random
from collections import Counter

import aiormq
import orjson
import pytest
import structlog
import structlog.testing
from pamqp.commands import Basic

from libs.contracts.cloudevents import NOTICE_TYPE
from libs.contracts.codec import encode, join
from libs.contracts.errors import BrokerAway, LostOwnership, PermanentError, TransientError
from libs.contracts.keys import Keys
from libs.contracts.session import Notice
from libs.runtime import lenient_amqp
from libs.runtime.batch import Store
from libs.runtime.clock import SystemClock
from libs.runtime.composer import Composer
from libs.runtime.connections import connect_redis, with_password
from libs.runtime.health import StoreCheck
from libs.runtime.publisher import Outgoing
from tests.support.courier import Courier, courier, envelope, fresh_redis, outside, sessions_of, step, take
from tests.support.eventually import eventually
from turnkeeper.engines import local

pytestmark = pytest.mark.engine
A, B, C = sessions_of(0, 3)


@pytest.fixture(autouse=True)
def _short_logs():
    """One plain line for each entry: a traceback with all its locals would cost more than the test."""
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    yield
    structlog.reset_defaults()


@pytest.fixture
async def out(amqp_url, namespace):
    """The test's own way to the broker, once a topology is declared."""
    async with outside(amqp_url, namespace) as out:
        yield out


async def all_handled(courier, expected):
    """Every session's log is what is expected, in order."""
    await eventually(lambda: logs_are(courier, expected), within=20)


async def logs_are(courier, expected):
    assert {session: await courier.handled(session) for session in expected} == expected
    return True


async def test_a_bundle_is_handled_member_by_member_and_acknowledged(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.publish(step(A, "O1"), step(B, "O1"), step(A, "O2"))
        await all_handled(made, {A: ["O1", "O2"], B: ["O1"]})
        await made.drain()
        assert await out.ready(out.topology.partition_queue(0)) == 0


async def test_what_was_committed_leaves_and_the_outbox_empties(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        notices = await out.subscribe()
        await out.publish(*(step(A, f"O{n}") for n in range(10)))
        texts = [orjson.loads(message.body)["body"]["text"] for message in await take(notices, 10)]
        assert sorted(texts) == sorted(f"O{n}" for n in range(10))
        await eventually(lambda: is_empty(made))


async def is_empty(made):
    return await made.lying() == 0


async def test_the_order_of_each_session_holds_while_sessions_run_side_by_side(
    redis_url, amqp_url, namespace, out, seed
):
    chance, busy, most = random.Random(seed), Counter(), Counter()

    async def slowly(message, ctx):
        busy[ctx.envelope.session] += 1
        most["lane"] = max(most["lane"], busy[ctx.envelope.session])
        most["all"] = max(most["all"], len(+busy))
        await asyncio.sleep(chance.random() / 200)
        busy[ctx.envelope.session] -= 1

    sessions = sessions_of(0, 10)
    expected = {session: [f"O{n}" for n in range(20)] for session in sessions}
    members = [step(session, f"O{n}") for n in range(20) for session in sessions]
    async with courier(redis_url, amqp_url, namespace, slowly) as made:
        for start in range(0, len(members), 7):
            await out.publish(*members[start : start + 7])
        await all_handled(made, expected)
    assert most["lane"] == 1
    assert most["all"] > 1


async def test_a_later_delivery_is_not_acknowledged_before_an_earlier_one(redis_url, amqp_url, namespace, out):
    gate, channels = asyncio.Event(), []

    async def hold(message, ctx):
        if message.operation == "O1":
            await gate.wait()

    async with courier(redis_url, amqp_url, namespace, hold) as made:
        keep_deliveries(made, channels)
        await out.publish(step(A, "O1"))
        await out.publish(step(B, "O2"))
        await all_handled(made, {B: ["O2"]})
        channels[0].give_back()
        await eventually(lambda: made.outcomes == ["O2 handled", "O2 repeated"])
        gate.set()
        await all_handled(made, {A: ["O1"], B: ["O2"]})


def keep_deliveries(made, kept):
    """Keep the deliveries that the courier gets from now on."""
    for intake in made.intakes:
        start = intake._start

        def both(delivery, start=start):
            kept.append(delivery)
            start(delivery)

        intake._start = both


async def test_a_channel_lost_within_a_bundle_brings_it_again_and_the_marks_recognise_it(
    redis_url, amqp_url, namespace, out
):
    gate, deliveries = asyncio.Event(), []

    async def hold(message, ctx):
        if message.operation == "O3":
            await gate.wait()

    async with courier(redis_url, amqp_url, namespace, hold) as made:
        keep_deliveries(made, deliveries)
        await out.publish(step(A, "O1"), step(B, "O2"), step(C, "O3"))
        await eventually(lambda: len(made.outcomes) == 2)
        await deliveries[0]._channel.underlay.close()
        await eventually(lambda: len(deliveries) == 2)
        assert deliveries[1].redelivered
        gate.set()
        await all_handled(made, {A: ["O1"], B: ["O2"], C: ["O3"]})
        await eventually(lambda: sum("repeated" in outcome for outcome in made.outcomes) >= 2)


async def test_a_crash_within_a_bundle_loses_nothing_and_repeats_nothing(redis_url, amqp_url, namespace, out):
    async def hold(message, ctx):
        if message.operation == "O3":
            await asyncio.Event().wait()

    async with courier(redis_url, amqp_url, namespace, hold) as made:
        await out.publish(step(A, "O1"), step(B, "O2"), step(A, "O3"), step(B, "O4"))
        await eventually(lambda: len(made.outcomes) == 3)
        await made.crash()
        async with courier(redis_url, amqp_url, namespace) as successor:
            await all_handled(successor, {A: ["O1", "O3"], B: ["O2", "O4"]})


@pytest.mark.parametrize(
    ("fault", "reason", "times"),
    [
        (PermanentError("no_good", "for ever"), "no_good", 1),
        (TransientError("later", retry_after=0.01), "attempts_spent", 5),
        (RuntimeError("a bug"), "attempts_spent", 5),
    ],
)
async def test_a_poisoned_member_goes_to_the_dead_queue_with_its_reason_and_the_rest_goes_on(
    redis_url, amqp_url, namespace, out, fault, reason, times
):
    async def poisoned(message, ctx):
        if message.operation == "O2":
            raise fault

    async with courier(redis_url, amqp_url, namespace, poisoned) as made:
        await out.publish(step(A, "O1"), step(A, "O2"), step(A, "O3"), step(B, "O4"))
        await all_handled(made, {A: ["O1", "O3"], B: ["O4"]})
        (letter,) = await out.dead(1)
        assert letter["body"]["reason"] == reason
        assert letter["body"]["message"]["body"]["operation"] == "O2"
        assert letter["session"] == A
        assert made.tried.count("O2") == times
        assert made.counted("dead") == 1
        await made.drain()
        assert await out.ready(out.topology.partition_queue(0)) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"{}",
        b"[1]",
        b'["x"]',
        b'[{"session": 5}]',
        join([encode(envelope(A, Notice(topic="reply", text="wrong queue")))]),
        join([encode(envelope(A, step(A, "O1")[1], cause="c")).replace(b'"cause"', b'"because"')]),
        join([encode(envelope(A, step(A, "O1")[1])).replace(b'"committed"', b'"perhaps"')]),
        join([encode(envelope(A, step(A, "O1")[1])).replace(b"step_finished.v1", b"step_finished.v9")]),
    ],
)
async def test_what_cannot_be_read_is_a_dead_letter_and_the_queue_goes_on(redis_url, amqp_url, namespace, out, body):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.raw(body)
        await out.publish(step(A, "O2"))
        await all_handled(made, {A: ["O2"]})
        (letter,) = await out.dead(1)
        assert letter["body"]["reason"] == "unreadable"
        assert letter["body"]["detail"]
        await made.drain()
        assert await out.ready(out.topology.partition_queue(0)) == 0


def nested(levels):
    return b'[{"body":' + b"[" * levels + b"]" * levels + b"}]"


@pytest.mark.parametrize("levels", [200, 255, 300, 900, 1000, 1020])
async def test_what_the_encoder_cannot_take_is_buried_as_raw_bytes(redis_url, amqp_url, namespace, out, levels):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.raw(nested(levels))
        await out.publish(step(A, "O2"))
        await all_handled(made, {A: ["O2"]})
        (letter,) = await out.dead(1)
        message = letter["body"]["message"]
        if "raw_base64" in message:
            assert (base64.b64decode(message["raw_base64"]), message["cut"]) == (nested(levels), False)
        else:
            assert levels < 255
        await made.drain()
        assert await out.ready(out.topology.partition_queue(0)) == 0


async def test_a_dead_letter_of_a_large_message_carries_its_beginning(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        body = b'[{"body":"' + b"x" * 2_000_000 + b'"}]'
        await out.raw(body)
        (letter,) = await out.dead(1)
        message = letter["body"]["message"]
        assert base64.b64decode(message["raw_base64"]) == body[: 64 * 1024]
        assert message["cut"] is True
        await eventually(lambda: is_empty(made))


async def test_a_bundle_of_too_many_members_is_one_unreadable_message(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.raw(b"[" + b",".join([b"{}"] * 65) + b"]")
        await out.publish(step(A, "O1"))
        await all_handled(made, {A: ["O1"]})
        (letter,) = await out.dead(1)
        assert "65 members, where 64 are the most" in letter["body"]["detail"]
        await made.drain()
        assert await out.ready(out.topology.dead) == 0


async def test_a_message_that_closes_its_channel_fails_alone_and_is_named(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        made_by = Composer(made.topology, made.outbox._clock)
        good = made_by.compose(step(A, "O1")[1], session=A, id_parts=("x",))
        closing = Outgoing("too-large", f"{namespace}-missing", "", b"x" * 2_000_000)
        with structlog.testing.capture_logs() as logs:
            sent = [made.publisher.send(closing), made.publisher.send(good)]
            async with asyncio.timeout(15):
                refused, confirmed = await asyncio.gather(*sent, return_exceptions=True)
        assert isinstance(refused, BrokerAway)
        assert confirmed is None
        (entry,) = [entry for entry in logs if entry["event"] == "message.refused_by_broker"]
        assert (entry["id"], entry["exchange"], entry["bytes"]) == ("too-large", closing.exchange, 2_000_000)
        await made.publisher.send(good)


class RawText(str):
    """Text that is sent as bytes of its own, whatever it says."""

    raw: bytes

    def __new__(cls, raw):
        made = super().__new__(cls, "raw")
        made.raw = raw
        return made

    def encode(self, *_):
        return self.raw


class NoDate(datetime.datetime):
    """A time that is sent as a number outside of the calendar."""

    def timestamp(self):
        return 2**62


NOT_UTF8 = RawText(b"no.\xff\xfe")
NO_DATE = NoDate(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("routing_key", "properties"),
    [
        pytest.param(NOT_UTF8, {}, id="routing key"),
        pytest.param("k", {"message_id": NOT_UTF8}, id="message id"),
        pytest.param("k", {"content_type": NOT_UTF8}, id="content type"),
        pytest.param("k", {"timestamp": NO_DATE}, id="timestamp"),
        pytest.param("k", {"headers": {"when": NO_DATE}}, id="timestamp in a header"),
        pytest.param("k", {"headers": {NOT_UTF8: "x"}}, id="name of a header"),
    ],
)
async def test_properties_that_no_driver_can_decode_stop_no_intake(
    redis_url, amqp_url, namespace, out, routing_key, properties
):
    lenient_amqp.install()
    async with courier(redis_url, amqp_url, namespace) as made:
        await send_oddly(amqp_url, namespace, out.topology.partition_queue(0), routing_key, properties)
        await out.publish(step(A, "O2"))
        await all_handled(made, {A: ["O2"]})
        (letter,) = await out.dead(1)
        assert letter["body"]["reason"] == "unreadable"
        await made.drain()
        assert await out.ready(out.topology.partition_queue(0)) == 0


async def send_oddly(amqp_url, namespace, queue, routing_key, properties):
    """An unreadable body into a queue, through an exchange that takes every routing key."""
    connection = await aiormq.connect(amqp_url)
    channel = await connection.channel()
    try:
        await channel.exchange_declare(f"{namespace}-odd", exchange_type="fanout", auto_delete=True)
        await channel.queue_bind(queue, f"{namespace}-odd")
        await channel.basic_publish(
            b"odd", exchange=f"{namespace}-odd", routing_key=routing_key, properties=Basic.Properties(**properties)
        )
    finally:
        await connection.close()


async def test_an_empty_bundle_is_acknowledged(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.raw(b"[]")
        await out.publish(step(A, "O1"))
        await all_handled(made, {A: ["O1"]})
        await made.drain()
        assert await out.ready(out.topology.partition_queue(0)) == 0


async def test_a_single_message_outside_a_bundle_is_read_too(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.raw(encode(envelope(*step(A, "O1"))), content_type="application/json")
        await all_handled(made, {A: ["O1"]})


async def test_a_message_that_was_redelivered_too_often_is_buried_by_our_own_count(redis_url, amqp_url, namespace, out):
    deliveries, gate = [], asyncio.Event()

    async def hold(message, ctx):
        if message.operation == "O1":
            await gate.wait()

    async with courier(redis_url, amqp_url, namespace, hold) as made:
        keep_deliveries(made, deliveries)
        key = made.keys.of_session_partition("attempts", A, envelope(*step(A, "O1")).id)
        await made.store.redis.set(key, 20)
        await out.publish(step(A, "O1"), step(A, "O2"))
        await eventually(lambda: made.tried == ["O1"])
        deliveries[0].give_back()
        gate.set()
        (letter,) = await out.dead(1)
        assert letter["body"]["reason"] == "attempts_spent"
        assert "O2" in await eventually(lambda: made.handled(A))
        assert await made.store.redis.exists(key) == 0


async def test_a_first_delivery_is_not_counted(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        await out.publish(step(A, "O1"))
        await all_handled(made, {A: ["O1"]})
        key = made.keys.of_session_partition("attempts", A, envelope(*step(A, "O1")).id)
        assert await made.store.redis.exists(key) == 0


@pytest.mark.parametrize(("losses", "channels"), [(1, 1), (2, 1), (3, 2)])
async def test_who_lost_to_another_owner_decides_again_in_place_and_after_three_gives_the_partition_back(
    redis_url, amqp_url, namespace, out, losses, channels
):
    deliveries, lost = [], []

    async def loses(message, ctx):
        if len(lost) < losses:
            lost.append(1)
            raise LostOwnership("s")

    async with courier(redis_url, amqp_url, namespace, loses) as made:
        keep_deliveries(made, deliveries)
        await out.publish(step(A, "O1"), step(A, "O2"))
        await all_handled(made, {A: ["O1", "O2"]})
        assert len(deliveries) == channels
        assert made.tried[: losses + 1] == ["O1"] * (losses + 1)


async def test_a_fault_in_settling_itself_gives_the_partition_back_instead_of_holding_it_up(
    redis_url, amqp_url, namespace, out, monkeypatch
):
    async with courier(redis_url, amqp_url, namespace, fails_once()) as made:
        bury, broken = made.consumer._bury, []

        async def breaks_once(*args):
            if not broken:
                broken.append(1)
                raise RuntimeError("a fault in settling")
            return await bury(*args)

        monkeypatch.setattr(made.consumer, "_bury", breaks_once)
        await out.publish(step(A, "O1"), step(A, "O2"))
        await all_handled(made, {A: ["O1", "O2"]})


def fails_once():
    failed = []

    async def before(message, ctx):
        if not failed:
            failed.append(1)
            raise PermanentError("once")

    return before


async def test_a_drain_finishes_what_was_taken_and_leaves_the_rest_in_order(redis_url, amqp_url, namespace, out):
    async def slowly(message, ctx):
        await asyncio.sleep(0.005)

    async with courier(redis_url, amqp_url, namespace, slowly) as made:
        names = [f"O{n}" for n in range(100)]
        for start in range(0, 100, 2):
            await out.publish(*(step(A, name) for name in names[start : start + 2]))
        await eventually(lambda: len(made.outcomes) > 5)
        await made.drain()
        assert not [outcome for outcome in made.outcomes if "repeated" in outcome]
        handled = await made.handled(A)
        assert handled == names[: len(handled)]
        waiting = await eventually(lambda: out.ready(out.topology.partition_queue(0)))
        assert waiting == 50 - len(handled) // 2
        async with courier(redis_url, amqp_url, namespace) as successor:
            await all_handled(successor, {A: names})
            assert not [outcome for outcome in successor.outcomes if "repeated" in outcome]


async def test_the_relay_sends_what_a_crash_left_and_clears_what_has_no_body(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        notices = await out.subscribe()
        messages, due = made.keys.outbox("session", made.keys.partition(A))
        left = Composer(made.topology, made.outbox._clock).compose(
            Notice(topic="reply", text="left"), session=A, id_parts=("x",)
        )
        await made.store.redis.hset(messages, left.id, left.pack())
        await made.store.redis.zadd(due, {left.id: 1, "gone": 2})
        await made.outbox.relay()
        (told,) = await take(notices, 1)
        assert orjson.loads(told.body)["id"] == left.id
        await eventually(lambda: is_empty(made))
        assert await made.store.redis.zcard(due) == 0


async def test_what_lies_is_measured(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        _, due = made.keys.outbox("session", 0)
        now = made.outbox._clock.now_ms()
        await made.store.redis.zadd(due, {"young": now - 1_000})
        await made.outbox.relay()
        value = made.registry.get_sample_value
        assert value("turnkeeper_outbox_pending", {"service": "session"}) == 1
        assert 1 <= value("turnkeeper_outbox_oldest_seconds", {"service": "session"}) < 10


async def test_a_message_for_no_queue_stays_in_the_outbox(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        lost = Composer(made.topology, made.outbox._clock).compose(step(A, "O1")[1], session=A, id_parts=("x",))
        lost = type(lost)(lost.id, lost.exchange, "p99", lost.body)
        messages, _ = made.keys.outbox("session", made.keys.partition(A))
        await made.store.redis.hset(messages, lost.id, lost.pack())
        made.outbox.post(A, [lost])
        await made.outbox.drained()
        assert await made.lying() == 1


async def test_messages_that_no_queue_takes_do_not_hide_the_others_from_the_relay(redis_url, amqp_url, namespace, out):
    async with courier(redis_url, amqp_url, namespace) as made:
        made_by = Composer(made.topology, made.outbox._clock)
        good = made_by.compose(step(A, "O1")[1], session=A, id_parts=("good",))
        messages, due = made.keys.outbox("session", made.keys.partition(A))
        for number in range(300):
            await made.store.redis.hset(messages, f"lost{number}", Outgoing("", good.exchange, "p99", b"{}").pack())
            await made.store.redis.zadd(due, {f"lost{number}": 1 + number})
        await made.store.redis.hset(messages, good.id, good.pack())
        await made.store.redis.zadd(due, {good.id: 1_000})

        async def relayed():
            await made.outbox.relay()
            return await made.handled(A) == ["O1"]

        await eventually(relayed, within=20)
        assert await made.store.redis.zcard(due) >= 300
        assert made.registry.get_sample_value("turnkeeper_outbox_oldest_seconds", {"service": "session"}) > 1e6


# -- servers of the test's own, which it may kill


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A Redis and a RabbitMQ that this module may kill."""
    state = tmp_path_factory.mktemp("own")
    engine = local.start(state)
    yield state, engine
    local.stop(state)


@pytest.fixture
async def own_out(own, namespace):
    async with outside(own[1].amqp_url, namespace) as out:
        yield out


@pytest.mark.slow
async def test_with_the_store_away_deliveries_are_kept_and_handled_once_it_is_back(own, namespace, own_out):
    state, engine = own
    async with courier(engine.redis_url, engine.amqp_url, namespace) as made:
        await own_out.publish(step(A, "O1"))
        await all_handled(made, {A: ["O1"]})
        local.kill(state, "redis")
        await own_out.publish(*(step(A, f"O{n}") for n in range(2, 6)), step(B, "O1"))
        await eventually(lambda: made.tried.count("O2") >= 1)
        await eventually(lambda: not made.store.available)
        assert made.counted("dead") == 0
        await asyncio.to_thread(local.restart, state, "redis")
        await all_handled(made, {A: [f"O{n}" for n in range(1, 6)], B: ["O1"]})
        await made.drain()
        assert await own_out.ready(own_out.topology.partition_queue(0)) == 0


@pytest.mark.slow
async def test_with_the_broker_away_the_outbox_keeps_and_the_relay_sends_later(own, namespace):
    state, engine = own
    async with courier(engine.redis_url, engine.amqp_url, namespace) as made:
        async with outside(engine.amqp_url, namespace) as out:
            await out.publish(step(A, "O1"))
            await all_handled(made, {A: ["O1"]})
            await eventually(lambda: is_empty(made))
        local.kill(state, "rabbitmq")
        left = Composer(made.topology, made.outbox._clock).compose(step(A, "O2")[1], session=A, id_parts=("x",))
        messages, due = made.keys.outbox("session", made.keys.partition(A))
        await made.store.redis.hset(messages, left.id, left.pack())
        await made.store.redis.zadd(due, {left.id: 1})
        made.outbox.post(A, [left])
        await eventually(lambda: not made.broker.publishing.connected)
        assert await made.broker.ready() == "RabbitMQ is not connected"
        await asyncio.to_thread(local.restart, state, "rabbitmq")

        async def relayed():
            await made.outbox.relay()
            return await made.handled(A) == ["O1", "O2"]

        await eventually(relayed, within=30)
        await eventually(lambda: is_empty(made))
        assert await made.broker.ready() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong", "right", "said"),
    [
        ("maxmemory-policy", "allkeys-lru", "noeviction", "set noeviction"),
        ("maxmemory-policy", "volatile-lru", "noeviction", "set noeviction"),
        ("appendfsync", "everysec", "always", "set always"),
        ("appendonly", "no", "yes", "set appendonly yes"),
    ],
)
async def test_a_store_that_may_forget_is_not_ready_and_says_why(own, namespace, name, wrong, right, said):
    """C080: every dedupe key has a time to live, so `volatile-*` would evict exactly those."""
    _, engine = own
    made = Courier(engine.redis_url, engine.amqp_url, namespace)
    await made.start(relay_only=True)
    try:
        check = StoreCheck(made.store, made.keys, allow_volatile=False)
        assert await check() is None
        await made.store.redis.config_set(name, wrong)
        assert said in await check()
        loud = StoreCheck(made.store, made.keys, allow_volatile=True)
        assert await loud() is None
        assert said in loud.warnings[0]
    finally:
        await made.store.redis.config_set(name, right)
        await made.crash()


@pytest.mark.slow
async def test_a_store_that_answers_and_takes_nothing_is_not_ready(own, namespace):
    store = Store(connect_redis(own[1].redis_url, "test"))
    check = StoreCheck(store, Keys(namespace, 2), allow_volatile=False)
    try:
        await store.redis.config_set("maxmemory", 1)
        assert (await check()).startswith("Redis refuses writes (")
        await store.redis.config_set("maxmemory", 0)
        assert await check() is None
    finally:
        await store.redis.config_set("maxmemory", 0)
        await store.redis.aclose()


@pytest.mark.slow
async def test_warnings_end_with_their_fault(own, namespace):
    store = Store(connect_redis(own[1].redis_url, "test"))
    check = StoreCheck(store, Keys(namespace, 2), allow_volatile=True)
    try:
        await store.redis.config_set("appendfsync", "everysec")
        assert await check() is None
        assert check.warnings
        await store.redis.config_set("appendfsync", "always")
        assert await check() is None
        assert not check.warnings
    finally:
        await store.redis.config_set("appendfsync", "always")
        await store.redis.aclose()


@pytest.mark.slow
async def test_where_config_is_forbidden_the_operator_answers_for_appendfsync(own, namespace):
    async with fresh_redis(own[1].redis_url) as redis:
        await redis.acl_setuser("noconfig", True, passwords=["+word"], keys=["*"], categories=["+@all"],
                                commands=["-config"])  # fmt: skip
    store = Store(connect_redis(with_password(own[1].redis_url, "word").replace("//:", "//noconfig:"), "test"))
    keys = Keys(namespace, 2)
    assert "TURNKEEPER_REDIS_APPENDFSYNC=always" in await StoreCheck(store, keys, allow_volatile=False)()
    assert await StoreCheck(store, keys, allow_volatile=False, appendfsync="always")() is None
    await store.redis.aclose()


async def test_a_wrong_password_is_told_as_one(redis_url, namespace):
    store = Store(connect_redis(with_password(redis_url, "wrong"), "test"))
    said = await StoreCheck(store, Keys(namespace, 2), allow_volatile=False)()
    assert said.startswith("Redis refuses us (")
    assert "check user and password" in said
    await store.redis.aclose()


async def test_another_partition_count_is_told(redis_url, amqp_url, namespace):
    async with fresh_redis(redis_url) as redis:
        made = Courier(redis_url, amqp_url, namespace)
        await made.start(relay_only=True)
        await redis.set(made.keys.meta("partitions"), 7)
        check = StoreCheck(made.store, made.keys, allow_volatile=False)
        assert "this deployment has 7 partitions, TURNKEEPER_PARTITIONS says 2" in await check()
        await made.crash()


async def test_a_notice_leaves_as_a_cloudevent_whose_content_is_the_envelope(redis_url, amqp_url, namespace):
    async with courier(redis_url, amqp_url, namespace) as sender, outside(amqp_url, namespace) as application:
        composer = Composer(application.topology, SystemClock())
        queue = await application.subscribe()
        made = composer.compose(Notice(topic="question", text="A1?"), session="dinner", id_parts=["n1"])
        await sender.publisher.send(made)
        (message,) = await take(queue, 1)
    assert message.headers["ce-id"] == made.id, "stable, so that a copy is known"
    assert (message.headers["ce-specversion"], message.headers["ce-type"]) == ("1.0", f"{NOTICE_TYPE}.question.v1")
    assert (message.headers["ce-source"], message.headers["ce-subject"]) == (f"/{namespace}", "dinner")
    assert orjson.loads(message.body)["body"]["text"] == "A1?"

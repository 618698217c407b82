"""The runtime's own scripts and includes on a real Redis."""

import asyncio
import hashlib

import pytest

from libs.contracts.errors import StoreAway
from libs.contracts.keys import Keys
from libs.runtime.batch import Store
from libs.runtime.connections import connect_redis
from libs.runtime.scripts import Reply, Script, load_script, parse_reply
from tests.support.crossing import Crossing

pytestmark = pytest.mark.engine
COUNT = load_script("libs.runtime", "count_attempt")
BURY = load_script("libs.runtime", "bury_message")


@pytest.fixture
async def store(redis_url):
    store = Store(connect_redis(redis_url, "test-runtime"))
    serving = asyncio.create_task(store.serve())
    yield store
    serving.cancel()
    await store.redis.aclose()


@pytest.fixture
def keys(namespace):
    return Keys(namespace, 4)


async def test_attempts_are_counted_and_forgotten_after_a_time(store, keys):
    key = keys.in_partition("attempts", 0, "m1")
    assert [(await store.run(COUNT, [key], [60_000])).int(0) for _ in range(3)] == [1, 2, 3]
    assert 0 < await store.redis.pttl(key) <= 60_000


async def test_burying_stores_the_copy_and_ends_the_count(store, keys):
    key, (messages, due) = keys.in_partition("attempts", 0, "m1"), keys.outbox("session", 0)
    await store.run(COUNT, [key], [60_000])
    for _ in range(2):
        assert (await store.run(BURY, [key, messages, due], [5, 1, "d1", b"copy"])).tag == "buried"
        assert await store.redis.hgetall(messages) == {b"d1": b"copy"}
        assert await store.redis.zrange(due, 0, -1, withscores=True) == [(b"d1", 5)]
        assert await store.redis.exists(key) == 0


def inline(body, *includes):
    text = "".join(load_script_text(name) for name in includes) + body
    return Script("inline", text, hashlib.sha1(text.encode()).hexdigest())


def load_script_text(name):
    return load_script("libs.runtime", name).text + "\n"


async def test_the_stores_time_is_the_later_of_its_own_and_the_given(store, keys):
    script = inline("return {'now', store_now(ARGV[1])}", "now")
    seconds, micros = await store.redis.time()
    real = int(seconds) * 1000 + int(micros) // 1000
    assert (await store.run(script, [], [real + 60_000])).int(0) == real + 60_000
    assert real <= (await store.run(script, [], [5])).int(0) < real + 10_000
    assert real <= (await store.run(script, [], ["nonsense"])).int(0) < real + 10_000


async def test_adding_to_the_outbox_again_stores_one_message_and_returns_the_next_index(store, keys):
    messages, due = keys.outbox("tools", 1)
    script = inline("return {'next', outbox_add(KEYS[1], KEYS[2], tonumber(ARGV[1]), 2)}", "outbox")
    for now in (1, 2):
        assert (await store.run(script, [messages, due], [now, 2, "a", "A", "b", "B"])).int(0) == 7
    assert await store.redis.hlen(messages) == await store.redis.zcard(due) == 2
    assert (await store.run(script, [messages, due], [3, 0])).int(0) == 3


async def test_a_script_that_the_store_forgot_is_loaded_again(store, keys):
    key = keys.in_partition("attempts", 0, "m2")
    await store.run(COUNT, [key], [60_000])
    await store.redis.script_flush()
    assert (await store.run(COUNT, [key], [60_000])).int(0) == 2


async def test_a_wrong_argument_is_heard_of_by_its_giver_alone(store, keys):
    key = keys.in_partition("attempts", 0, "m3")
    good, bad = await asyncio.gather(
        store.run(COUNT, [key], [60_000]), store.run(COUNT, [key], [None]), return_exceptions=True
    )
    assert isinstance(good, Reply)
    assert isinstance(bad, Exception)
    assert (await store.run(COUNT, [key], [60_000])).int(0) == 2


async def test_a_fault_of_a_script_is_heard_of_by_its_giver_alone(store, keys):
    key, text = keys.in_partition("attempts", 0, "m4"), keys.in_partition("attempts", 0, "m5")
    await store.redis.set(text, "x")
    good, bad = await asyncio.gather(
        store.run(COUNT, [key], [60_000]), store.run(COUNT, [text], [60_000]), return_exceptions=True
    )
    assert isinstance(good, Reply)
    assert "not an integer" in str(bad)


@pytest.mark.parametrize("raw", [None, [], 5, b"tag", [1, 2], ["text"]])
def test_a_reply_that_is_no_tagged_array_is_a_fault_of_the_script(raw):
    with pytest.raises(TypeError, match="count_attempt"):
        parse_reply(COUNT, raw)


def test_a_reply_is_read_by_type():
    reply = parse_reply(COUNT, [b"tag", 5, b"6", "ä".encode()])
    assert (reply.tag, reply.int(0), reply.int(1), reply.text(2), reply.raw(0)) == ("tag", 5, 6, "ä", b"5")


async def test_the_url_says_how_long_the_store_is_waited_for(redis_url):
    """`?socket_timeout=` in the URL is the patience for a whole batch, and not a setting that nobody reads."""
    crossing = Crossing(redis_url)
    hold = crossing.hold(b"PING")
    store = Store(connect_redis(f"{crossing.url}?socket_timeout=0.2", "test-patience"))
    serving = asyncio.create_task(store.serve())
    try:
        async with asyncio.timeout(1.5):
            with pytest.raises(StoreAway):
                await store.command("PING")
        assert hold.reached.is_set()
    finally:
        serving.cancel()
        crossing.close()
        await store.redis.aclose()

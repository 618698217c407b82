"""`commit_turn.lua` on a real Redis: each branch, replay, conflict, times to live, caps, and a race of two clients."""

import asyncio

import pytest

from libs.contracts.keys import Keys
from libs.runtime.batch import Store
from libs.runtime.connections import connect_redis
from libs.runtime.scripts import load_script

pytestmark = pytest.mark.engine
COMMIT = load_script("services.session", "commit_turn")
TTL_MS = 3_600_000


class Commits:
    """Runs the script with its counted lists filled in."""

    def __init__(self, store, namespace):
        self.store, self.redis, self.keys = store, store.redis, Keys(namespace, 4)
        of = self.keys.of_session
        self.names = [of(family, "s1") for family in ("state", "timeline", "history", "inbox")]
        self.names += [
            self.keys.of_session_partition("deadline", "s1"),
            *self.keys.outbox("session", self.keys.partition("s1")),
            of("record", "s1"),
        ]
        self.bucket = self.keys.outcome_bucket("s1", "i1", 0)

    async def run(
        self, version, commit="c", *, state="{}", now=1_000, deadline="", kept=(3, 2, 2), lines=(), history=(),
        record=(), trimmed=(), outcomes=(), messages=(),
    ):  # fmt: skip
        told = [part for id, value in outcomes for part in (9, id, value)]
        packed = [part for message in messages for part in message]
        args = [version, commit, state, now, deadline, "s1", TTL_MS, *kept, len(lines), *lines, len(history), *history]
        args += [len(record), *record, len(trimmed), *trimmed, len(outcomes), *told, len(messages), *packed]
        reply = await self.store.run(COMMIT, [*self.names, self.bucket], args)
        return reply.tag, reply.int(0)

    async def dump(self):
        found = {}
        async for key in self.redis.scan_iter(match=f"tk:{self.keys.namespace}:*"):
            found[key] = await self.redis.dump(key)
        return found


@pytest.fixture
async def commits(redis_url, namespace):
    store = Store(connect_redis(redis_url, "test-session"))
    serving = asyncio.create_task(store.serve())
    yield Commits(store, namespace)
    serving.cancel()
    await store.redis.aclose()


FULL = {
    "state": '{"a":1}', "deadline": 5_000, "lines": ["l1", "l2"], "history": ["h1"], "record": ["r1"],
    "trimmed": [1], "outcomes": [("i1", "s1 1 acted")], "messages": [("m1", b"\x00body"), ("m2", "x")],
}  # fmt: skip


async def test_a_first_commit_writes_every_part(commits):
    state, timeline, history, inbox, deadline, messages, due, record = commits.names
    await commits.redis.hset(inbox, mapping={1: "one", 2: "two"})
    assert await commits.run(0, **FULL) == ("committed", 1)
    redis = commits.redis
    assert await redis.hgetall(state) == {b"v": b"1", b"c": b"c", b"d": b'{"a":1}', b"e": b"0"}
    assert await redis.lrange(timeline, 0, -1) == [b"l1", b"l2"]
    assert await redis.lrange(history, 0, -1) == [b"h1"]
    assert await redis.lrange(record, 0, -1) == [b"r1"]
    assert await redis.hgetall(inbox) == {b"2": b"two"}
    assert await redis.zrange(deadline, 0, -1, withscores=True) == [(b"s1", 5_000)]
    assert await redis.hgetall(messages) == {b"m1": b"\x00body", b"m2": b"x"}
    assert await redis.zrange(due, 0, -1, withscores=True) == [(b"m1", 1_000), (b"m2", 1_000)]
    assert await redis.hgetall(commits.bucket) == {b"i1": b"s1 1 acted"}


async def test_the_same_commit_again_changes_nothing_and_answers_the_same(commits):
    assert await commits.run(0, **FULL) == ("committed", 1)
    before = await commits.dump()
    assert await commits.run(0, **FULL) == ("committed", 1)
    assert await commits.dump() == before


async def test_a_replay_after_the_outbox_was_emptied_sends_nothing_again(commits):
    await commits.run(0, **FULL)
    await commits.redis.delete(*commits.names[5:7])
    await commits.run(0, **FULL)
    assert await commits.redis.exists(*commits.names[5:7]) == 0


@pytest.mark.parametrize("version", [0, 2, 7])
async def test_a_commit_from_another_version_changes_nothing(commits, version):
    await commits.run(0, "first")
    before = await commits.dump()
    assert await commits.run(version, "other", **FULL) == ("conflict", 1)
    assert await commits.dump() == before


async def test_an_older_commit_of_ours_is_a_conflict_once_another_followed(commits):
    await commits.run(0, "a")
    await commits.run(1, "b")
    assert await commits.run(0, "a") == ("conflict", 2)


async def test_lines_history_and_record_keep_the_newest(commits):
    await commits.run(0, lines=["1", "2"], history=["1", "2"], record=["1"])
    await commits.run(1, "d", lines=["3", "4"], history=["3"], record=["2"])
    await commits.run(2, "e", record=["3"])
    assert await commits.redis.lrange(commits.names[7], 0, -1) == [b"2", b"3"]
    assert await commits.redis.lrange(commits.names[1], 0, -1) == [b"2", b"3", b"4"]
    assert await commits.redis.lrange(commits.names[2], 0, -1) == [b"2", b"3"]


async def test_a_commit_without_a_deadline_takes_the_session_off_the_index(commits):
    await commits.run(0, deadline=5_000)
    await commits.run(1, "d")
    assert await commits.redis.zcard(commits.names[4]) == 0


async def test_every_key_of_a_session_has_an_end(commits):
    await commits.run(0, **FULL)
    for key in (*commits.names[:3], commits.names[7], commits.bucket):
        assert 0 < await commits.redis.pttl(key) <= TTL_MS, key


async def test_the_span_of_a_session_is_set_anew_once_a_day(commits):
    day = 86_400_000
    await commits.run(0, **FULL)
    for key in (*commits.names[:3], commits.names[7]):
        await commits.redis.pexpire(key, 60_000)
    await commits.run(1, "d", now=day - 1, lines=["l"])
    assert await commits.redis.pttl(commits.names[0]) <= 60_000
    await commits.run(2, "e", now=day)
    for key in (*commits.names[:3], commits.names[7]):
        assert await commits.redis.pttl(key) > 60_000, key


async def test_a_list_that_begins_later_has_an_end_too(commits):
    await commits.run(0)
    await commits.run(1, "d", lines=["l"], history=["h"], record=["r"])
    for key in (*commits.names[1:3], commits.names[7]):
        assert 0 < await commits.redis.pttl(key) <= TTL_MS, key


async def test_the_end_of_an_outcome_stays_as_its_appender_set_it(commits):
    await commits.redis.hset(commits.bucket, "i1", "s1 1 -")
    await commits.redis.pexpire(commits.bucket, 60_000)
    await commits.run(0, **FULL)
    assert 0 < await commits.redis.pttl(commits.bucket) <= 60_000


async def test_of_two_clients_at_once_exactly_one_commits(commits, redis_url):
    other = Store(connect_redis(redis_url, "test-other"))
    serving = asyncio.create_task(other.serve())
    try:
        for version in range(20):
            second = Commits(other, commits.keys.namespace)
            replies = await asyncio.gather(
                commits.run(version, f"a{version}", messages=[(f"a{version}", "x")]),
                second.run(version, f"b{version}", messages=[(f"b{version}", "x")]),
            )
            assert sorted(replies) == [("committed", version + 1), ("conflict", version + 1)]
        assert await commits.redis.hlen(commits.names[5]) == 20
    finally:
        serving.cancel()
        await other.redis.aclose()

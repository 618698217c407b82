"""The sessions in memory, which tests of handlers use, behave as the sessions in Redis do."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from libs.contracts.errors import LostOwnership
from libs.contracts.keys import Keys
from libs.runtime.batch import Store
from libs.runtime.clock import SystemClock
from libs.runtime.connections import connect_redis
from libs.runtime.outbox import Outbox
from services.session.domain import Arrived, decide
from services.session.store import RedisSessions
from tests.support.session import ANA, NOW, FakeSessions, Stored, make_input, make_rules


class Posted:
    """An outbox that sends nothing."""

    def __init__(self, keys):
        self.keys_ = keys

    def keys(self, session):
        return list(self.keys_.outbox("session", self.keys_.partition(session)))

    args = staticmethod(Outbox.args)

    def post(self, session, messages):
        """Nothing leaves."""


@contextlib.asynccontextmanager
async def in_memory(request):
    stored = Stored()

    async def put(made):
        stored.inbox.setdefault(made.session, {})[made.number] = made

    yield lambda: FakeSessions(stored), put


@contextlib.asynccontextmanager
async def in_redis(request):
    store = Store(connect_redis(request.getfixturevalue("redis_url"), "test-port"))
    serving = asyncio.create_task(store.serve())
    keys = Keys(request.getfixturevalue("namespace"), 4)

    async def put(made):
        await store.redis.hset(keys.of_session("inbox", made.session), made.number, made.model_dump_json())

    try:
        yield lambda: RedisSessions(store, Posted(keys), keys, SystemClock(), lambda: None), put
    finally:
        serving.cancel()
        await store.redis.aclose()


@pytest.fixture(params=[in_memory, pytest.param(in_redis, marks=pytest.mark.engine)], ids=["memory", "redis"])
async def port(request):
    """(a function that makes an owner, a function that stores an input)."""
    async with request.param(request) as both:
        yield both


MESSAGE = make_input(1, "message", ANA, {"text": "hello"})


def folded(snapshot):
    decision = decide(snapshot.state, Arrived(MESSAGE), NOW, make_rules())
    return replace(decision, want=None)


async def test_a_session_that_is_not_stored_is_a_new_one(port):
    owner, _ = port
    snapshot = await owner().load("s1")
    assert (snapshot.state.session, snapshot.state.applied, snapshot.version, snapshot.history) == ("s1", 0, 0, [])
    await owner().confirm(snapshot)


async def test_what_was_committed_is_read_by_another_owner(port):
    owner, _ = port
    first = owner()
    snapshot = await first.load("s1")
    decision = folded(snapshot)
    await first.commit(snapshot, decision, [])
    read = await owner().load("s1")
    assert (read.state, read.version, read.history) == (decision.state, 1, list(decision.history))
    assert (snapshot.state, snapshot.version) == (decision.state, 1)


async def test_of_two_owners_the_second_loses_and_finds_the_stored_state_afterwards(port):
    owner, _ = port
    first, second = owner(), owner()
    ours, theirs = await first.load("s1"), await second.load("s1")
    await first.commit(ours, folded(ours), [])
    with pytest.raises(LostOwnership):
        await second.commit(theirs, folded(theirs), [])
    assert (await second.load("s1")).version == 1


async def test_a_stale_owner_is_told_when_it_asks(port):
    owner, _ = port
    first, second = owner(), owner()
    ours, theirs = await first.load("s1"), await second.load("s1")
    await first.commit(ours, folded(ours), [])
    with pytest.raises(LostOwnership):
        await second.confirm(theirs)
    await second.confirm(await second.load("s1"))


async def test_a_dropped_session_is_read_anew(port):
    owner, _ = port
    first, second = owner(), owner()
    await second.load("s1")
    ours = await first.load("s1")
    await first.commit(ours, folded(ours), [])
    second.drop("s1")
    assert (await second.load("s1")).version == 1


async def test_inputs_are_given_by_number_where_they_are_there(port):
    owner, put = port
    third = make_input(3, "message", ANA, {"text": "three"})
    await put(MESSAGE)
    await put(third)
    assert await owner().inputs("s1", 1, 3) == [MESSAGE, third]
    assert await owner().inputs("s1", 4, 5) == []


async def test_a_trimmed_input_is_gone(port):
    owner, put = port
    await put(MESSAGE)
    sessions = owner()
    snapshot = await sessions.load("s1")
    await sessions.commit(snapshot, replace(folded(snapshot), trimmed=(1,)), [])
    assert await owner().inputs("s1", 1, 1) == []

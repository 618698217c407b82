"""Timelines as server-sent events: what they read, and what ends them."""

import asyncio
import hashlib

import httpx2
import jwt
import pytest

from libs.contracts.session import TimelineLine
from libs.runtime.auth import LEEWAY_SECONDS, Operators, UserTokens
from services.session import edge
from services.session.edge import make_app
from tests.support.eventually import eventually
from tests.support.session import NOW, FakeClock, make_rules

SECRET = "u" * 32
OPERATOR = {"Authorization": "Bearer op"}


class Told:
    """The timeline of one session; each line is a commit."""

    def __init__(self):
        self.lines, self.looks, self.reads = [], 0, 0

    def add(self, text):
        self.lines.append(TimelineLine(seq=len(self.lines) + 1, at=NOW, kind="reply", text=text))

    async def owner(self, session):
        return "ana"

    async def version(self, session):
        self.looks += 1
        return len(self.lines)

    async def timeline(self, session, after):
        self.reads += 1
        return self.lines[after:]


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(edge, "POLL_SECONDS", 0.001)
    return Told()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def stopping():
    return asyncio.Event()


@pytest.fixture
async def http(told, clock, stopping):
    operators = Operators.parse(f"ops:read:{hashlib.sha256(b'op').hexdigest()}")
    users = UserTokens(SECRET, None, clock)
    app = make_app(told, users, operators, clock, make_rules(), stopping=stopping, most_streams=2)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://session") as client:
        yield client


def follow(http, headers):
    url = "/v1/sessions/s1/timeline"
    return asyncio.create_task(http.get(url, headers={**headers, "accept": "text/event-stream"}))


def user(ends_at):
    return {"Authorization": f"Bearer {jwt.encode({'sub': 'ana', 'exp': ends_at}, SECRET, 'HS256')}"}


async def test_a_stream_tells_what_is_there_and_what_comes_and_ends_with_the_service(http, told, stopping):
    told.add("first")
    following = follow(http, OPERATOR)
    await eventually(lambda: told.reads == 1)
    told.add("second")
    await eventually(lambda: told.reads == 2)
    stopping.set()
    answer = await asyncio.wait_for(following, 5)
    assert answer.text.count("event: line") == 2
    assert "first" in answer.text
    assert "second" in answer.text


async def test_a_quiet_session_is_looked_at_and_not_read(http, told, stopping):
    following = follow(http, OPERATOR)
    await eventually(lambda: told.looks > 5)
    stopping.set()
    await asyncio.wait_for(following, 5)
    assert told.reads == 1


async def test_a_stream_ends_with_the_token_that_opened_it(http, told, clock):
    following = follow(http, user(NOW // 1000 + 60))
    await eventually(lambda: told.looks > 2)
    clock.now += (60 + LEEWAY_SECONDS) * 1000
    assert (await asyncio.wait_for(following, 5)).status_code == 200
    assert (await follow(http, user(NOW // 1000 + 60))).status_code == 401


async def test_a_replica_streams_so_many_timelines_and_each_end_makes_room(http, told, stopping):
    streams = [follow(http, OPERATOR), follow(http, OPERATOR)]
    await eventually(lambda: told.reads == 2)
    refused = await asyncio.wait_for(follow(http, OPERATOR), 5)
    assert refused.status_code == 503
    assert refused.json()["type"].endswith("too-many-streams")
    streams[0].cancel()
    await asyncio.wait(streams[:1])
    third = follow(http, OPERATOR)
    await eventually(lambda: told.reads == 3)
    stopping.set()
    for stream in (streams[1], third):
        assert (await asyncio.wait_for(stream, 5)).status_code == 200

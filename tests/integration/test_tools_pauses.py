"""The kill switch under load: two replicas of the door as processes, and a destination that notes when it was called.

The evidence is the destination's own file, a line a send, on disk before it answers.
"""

import asyncio
import contextlib
import hashlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import pytest

from libs.contracts.keys import Keys
from libs.contracts.topology import Topology
from libs.runtime.clock import SystemClock
from libs.runtime.connections import connect_redis
from libs.runtime.topology import declare
from tests.integration.test_tools_service import PARTITIONS, SEALS, DoorProcess
from tests.support.door import RESTAURANT, seal, step
from tests.support.eventually import eventually
from turnkeeper.engines import local

TOKEN = "an-operators-token"
AS_OPERATOR = {"authorization": f"Bearer {TOKEN}"}
READS_ONLY = {"authorization": "Bearer reads-only"}
FUNCTIONS = """
import asyncio, os, time

def _note(tool, key):
    file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{{time.time_ns()}} {{tool}} {{key}}\\n".encode())
    os.fsync(file)
    os.close(file)
    return {{"done": key}}

async def book(n, idempotency_key):
    done = _note("book", idempotency_key)
    await asyncio.sleep(0.01)
    return done

def mail(n, idempotency_key):
    done = _note("mail", idempotency_key)
    time.sleep(0.01)
    return done
"""
APPLICATION = """
sources:
  app: {verify: {scheme: user-token}}
  restaurant: {verify: {scheme: broker-user, users: [restaurant]}, route: {session: "{{ data.session }}"}}
tools:
  book: {consent: never, keyed: {for: 24h}, connector: {python: {function: "noting:book", timeout: 2s}}}
  mail: {consent: never, keyed: {for: 24h}, connector: {python: {function: "noting:mail", timeout: 2s}}}
planner: {scripted: {rules: rules.yaml}}
"""


class Doors:
    """Two replicas, what is sent to them, and the destination's file."""

    def __init__(self, first: DoorProcess, second: DoorProcess, ledger: Path) -> None:
        self.both = (first, second)
        self.first, self.second = self.both
        self._ledger = ledger
        self.count = 0
        self._loading: asyncio.Task[None] | None = None
        self._resting = False

    def sends(self, tool: str = "") -> list[tuple[int, str]]:
        """(time in ns, key) of each send, in the order in which they reached the destination."""
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        parts = [line.split() for line in lines]
        return [(int(at), key) for at, name, key in parts if tool in ("", name)]

    async def call(self, tool: str = "book", **options: Any) -> str:
        """Send one step of a session of its own; its operation."""
        self.count += 1
        number = self.count
        session, at = f"s{number % 50}", SystemClock().now_ms()
        seals = [seal(session=session, name=f"in{number}", at=at, number=number, **options)]
        message = step(
            tool, {"n": number}, now=at, key=f"k{number}", operation=f"O{number}", root=f"T{number}", seals=seals
        )
        await self.first.send(message, session=session)
        return f"O{number}"

    def load(self, *tools: str) -> None:
        """Calls without end, of these tools in turn, until `rest`."""
        chosen = tools or ("book", "mail")

        async def calling() -> None:
            while not self._resting:
                await self.call(chosen[self.count % len(chosen)])
                await asyncio.sleep(0.002)

        self._resting = False
        self._loading = asyncio.create_task(calling())

    async def rest(self) -> None:
        self._resting = True
        if self._loading is not None:
            await self._loading

    async def http(self, method: str, path: str, *, of: int = 1, **options: Any) -> httpx2.Response:
        async with httpx2.AsyncClient() as client:
            url = f"http://127.0.0.1:{self.both[of].port}{path}"
            return await client.request(method, url, timeout=40, headers=options.pop("headers", AS_OPERATOR), **options)

    async def pause(self, kind: str, name: str = "", **more: Any) -> dict[str, Any]:
        answer = await self.http("POST", "/v1/pauses", json={"kind": kind, "name": name, "note": "why", **more})
        assert answer.status_code in (200, 201), answer.text
        return dict(answer.json())

    async def pauses(self) -> list[dict[str, Any]]:
        return list((await self.http("GET", "/v1/pauses")).json()["pauses"])

    async def waiting(self) -> int:
        return sum(one["waiting"] for one in await self.pauses())

    async def all_done(self, *ends: str) -> None:
        """Each call has ended as committed, or as one of `ends`, and each reached the destination."""
        answers = self.first.answers

        def ended() -> bool:
            done = {one.operation for one in answers if one.state in ("committed", *ends)}
            missing = {f"O{number}" for number in range(1, self.count + 1)} - done
            assert not missing, f"{len(missing)} of {self.count}: {sorted(missing)[:5]}"
            return True

        await eventually(ended, within=60)
        assert {one.state for one in answers} <= {"committed", "in_progress", *ends}
        assert len({key for _, key in self.sends()}) == self.count


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Path]:
    """A Redis that a test may restart; its folder."""
    state = tmp_path / "own"
    state.mkdir()
    yield state
    local.stop(state)


async def _started(*doors: DoorProcess) -> None:
    """Both at once on a busy machine may take longer than one by itself."""
    try:
        await asyncio.gather(*(door.start() for door in doors))
    except AssertionError:
        await asyncio.gather(*(eventually(door.ready, within=60) for door in doors))


@contextlib.asynccontextmanager
async def two_doors(redis_url: str, amqp_url: str, namespace: str, folder: Path) -> AsyncIterator[Doors]:
    topology, ledger = Topology(namespace, PARTITIONS), folder / "sends"
    await declare(amqp_url, topology)
    (folder / "noting.py").write_text(FUNCTIONS.format(path=str(ledger)))
    (folder / "turnkeeper.yaml").write_text(APPLICATION)
    hashed = [f"{who}:{scope}:{hashlib.sha256(token.encode()).hexdigest()}" for who, scope, token in
              (("ana", "*", TOKEN), ("eve", "read", "reads-only"))]  # fmt: skip
    environment = {
        "TURNKEEPER_REDIS_URL": redis_url, "TURNKEEPER_AMQP_URL": amqp_url, "TURNKEEPER_NAMESPACE": namespace,
        "TURNKEEPER_PARTITIONS": str(PARTITIONS), "TURNKEEPER_CONFIG": str(folder / "turnkeeper.yaml"),
        "TURNKEEPER_SEAL_KEYS": SEALS, "TURNKEEPER_OPERATOR_TOKENS": ",".join(hashed),
    }  # fmt: skip
    both = [DoorProcess({**environment, "TURNKEEPER_REPLICA": name}, topology, folder) for name in ("a", "b")]
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        for door in both:
            door.channel = await connection.channel()
        for number in range(PARTITIONS):
            queue = await both[0].channel.get_queue(topology.partition_queue(number))
            await queue.consume(both[0].heard, no_ack=True)
        doors = Doors(both[0], both[1], ledger)
        try:
            await _started(*both)
            yield doors
        finally:
            await doors.rest()
            for door in both:
                door.end(signal.SIGKILL)


@pytest.fixture
async def doors(redis_url: str, amqp_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[Doors]:
    async with two_doors(redis_url, amqp_url, namespace, tmp_path) as made:
        yield made


async def test_under_load_no_send_begins_after_pause_returned_and_resume_loses_nothing(doors: Doors) -> None:
    doors.load()
    for round in range(3):
        before = len(doors.sends("book"))
        await eventually(lambda before=before: len(doors.sends("book")) > before + 30)
        told = await doors.pause("tool", "book", wait_seconds=10)
        returned = time.time_ns()
        assert told["stopped"]
        mails = len(doors.sends("mail"))
        await eventually(lambda mails=mails: len(doors.sends("mail")) > mails + 30)
        await eventually(lambda round=round: _more(doors, 10))
        late = [at - returned for at, _ in doors.sends("book") if at > returned]
        print(f"round {round}: {len(doors.sends('book'))} sends of book, {len(late)} after pause had returned")
        assert not late
        assert (await doors.http("DELETE", "/v1/pauses/tool/book")).json()["ended"]
    await doors.rest()
    await doors.all_done()
    again = Counter(key for _, key in doors.sends())
    assert max(again.values()) == 1


async def _more(doors: Doors, least: int) -> bool:
    return await doors.waiting() >= least


async def test_a_replica_killed_while_paused_loses_nothing_and_sends_nothing(doors: Doors) -> None:
    doors.load()
    await eventually(lambda: len(doors.sends()) > 50)
    doors.second.end(signal.SIGKILL)
    answer = await doors.http("POST", "/v1/pauses", of=0, json={"kind": "all", "wait_seconds": 20})
    returned = time.time_ns()
    assert answer.status_code == 201, answer.text
    doors.first.end(signal.SIGKILL)
    await _started(*doors.both)
    await eventually(lambda: _more(doors, 20))
    assert not [at for at, _ in doors.sends() if at > returned]
    await doors.rest()
    await doors.http("DELETE", "/v1/pauses/all")
    await doors.all_done()


async def test_a_pause_survives_a_restart_of_redis(
    own_redis: Path, amqp_url: str, namespace: str, tmp_path: Path
) -> None:
    url = local.start_redis(own_redis)
    async with two_doors(url, amqp_url, namespace, tmp_path) as doors:
        doors.load()
        await eventually(lambda: len(doors.sends()) > 20)
        await doors.pause("all")
        returned = time.time_ns()
        await eventually(lambda: _more(doors, 20))
        local.kill(own_redis, "redis")
        await asyncio.to_thread(local.restart, own_redis, "redis")
        await eventually(doors.second.ready)
        (kept,) = await doors.pauses()
        assert (kept["kind"], kept["by"], kept["note"], kept["stopped"]) == ("all", "ana", "why", True)
        count = await doors.waiting()
        await eventually(lambda: _more(doors, count + 10))
        assert not [at for at, _ in doors.sends() if at > returned]
        await doors.rest()
        await doors.http("DELETE", "/v1/pauses/all")
        await doors.all_done()


async def test_a_stopped_holder_that_wakes_after_its_lease_sends_nothing(
    doors: Doors, redis_url: str, namespace: str
) -> None:
    """SIGSTOP holds a replica with whatever it has claimed; the pause waits until its leases are over. At most one call
    may have stood between its last look and its first byte, where nothing can stop it any more."""
    doors.load("book")
    await eventually(lambda: len(doors.sends()) > 50)
    assert doors.second.process is not None
    doors.second.process.send_signal(signal.SIGSTOP)
    try:
        answer = await doors.http("POST", "/v1/pauses", of=0, json={"kind": "all", "wait_seconds": 0})
        while answer.status_code == 202:
            answer = await doors.http("POST", "/v1/pauses", of=0, json={"kind": "all", "wait_seconds": 5})
        returned = time.time_ns()
    finally:
        doors.second.process.send_signal(signal.SIGCONT)
    await doors.rest()
    redis, keys = connect_redis(redis_url, "test"), Keys(namespace, PARTITIONS)

    async def obeys() -> bool:
        seen = await redis.hgetall(keys.meta("pauseseen"))
        return len({version.split()[1] for version in seen.values()}) == 1

    try:
        await eventually(obeys)
    finally:
        await redis.aclose()
    assert len([at for at, _ in doors.sends() if at > returned]) <= 1
    await doors.http("DELETE", "/v1/pauses/all", of=0)
    await doors.all_done("unknown")  # what was sent and whose answer came while nobody read it


async def test_a_source_and_a_session_are_paused_by_themselves(doors: Doors) -> None:
    await doors.pause("source", "restaurant")
    held = await doors.call("book", origin=RESTAURANT)
    free = await doors.call("book")
    await doors.first.answered(free, "committed")
    assert (await doors.first.answered(held)).reason == "paused: source restaurant"
    shown = (await doors.pauses())[0]
    assert [one["tool"] for one in shown["waits"]] == ["book"]
    metrics = await eventually(lambda: _metrics(doors, 'turnkeeper_tools_paused{kind="source"} 1.0'))
    assert "turnkeeper_tools_waiting" in metrics
    await doors.http("DELETE", "/v1/pauses/source/restaurant")
    await doors.first.answered(held, "committed")


async def _metrics(doors: Doors, line: str) -> str:
    text = (await doors.first.get("/metrics")).text
    return text if line in text else ""


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"kind": "tool", "name": "boook"}, 404, "nothing-to-pause"),
    ({"kind": "source", "name": "nobody"}, 404, "nothing-to-pause"),
    ({"kind": "session", "name": "none"}, 404, "nothing-to-pause"),
    ({"kind": "session", "name": "a b"}, 404, "nothing-to-pause"),
    ({"kind": "all", "name": "x"}, 400, "malformed"),
    ({"kind": "tool"}, 400, "malformed"),
    ({"kind": "world", "name": "x"}, 400, "malformed"),
    ({"kind": "tool", "name": "book", "notes": ""}, 400, "malformed"),
    ({"kind": "tool", "name": "book", "note": "x" * 401}, 400, "malformed"),
]


async def test_what_cannot_be_paused_is_told_and_not_paused(doors: Doors) -> None:
    for body, status, code in BAD:
        answer = await doors.http("POST", "/v1/pauses", json=body)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (status, code), body
    assert await doors.pauses() == []


async def test_only_an_operator_with_the_scope_pauses(doors: Doors) -> None:
    wish = {"kind": "all"}
    assert (await doors.http("POST", "/v1/pauses", json=wish, headers={})).status_code == 401
    assert (await doors.http("POST", "/v1/pauses", json=wish, headers=READS_ONLY)).status_code == 403
    assert (await doors.http("DELETE", "/v1/pauses/all", headers=READS_ONLY)).status_code == 403
    assert (await doors.http("GET", "/v1/pauses", headers={})).status_code == 401
    assert (await doors.http("GET", "/v1/pauses", headers=READS_ONLY)).json() == {"pauses": []}
    first = await doors.http("POST", "/v1/pauses", json=wish)
    assert (first.status_code, first.json()["by"]) == (201, "ana")
    again = await doors.http("POST", "/v1/pauses", json={"kind": "all", "note": "other"}, of=0)
    assert (again.status_code, again.json()["note"]) == (200, "")
    assert (await doors.http("DELETE", "/v1/pauses/all")).json()["ended"]
    assert not (await doors.http("DELETE", "/v1/pauses/all", of=0)).json()["ended"]
    assert (await doors.http("DELETE", "/v1/pauses/all/x")).status_code == 400

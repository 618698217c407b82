"""Timers over the broker, with two whole replicas: each instant once, by its misfire rule after a downtime."""

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import httpx2
import orjson
import pytest
import pytest_asyncio

from libs.contracts.codec import BUNDLE_TYPE, decode, encode, join, split
from libs.contracts.envelope import Envelope, Message
from libs.contracts.ids import derive_id
from libs.contracts.ingress import TimerSkipped
from libs.contracts.keys import Keys
from libs.contracts.topology import Topology
from libs.runtime.connections import connect_redis
from services.ingress.misfire import instant_text
from tests.support.eventually import eventually
from tests.support.ingress import a_stop, a_timer
from tests.support.ingress_process import (
    OPERATOR_HEADERS,
    PARTITIONS,
    IngressProcess,
    start_ingress,
    user_token,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOWN_MS = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Deployment:
    """Two replicas, and the door's and the session's ends of the broker."""

    def __init__(
        self, processes: list[IngressProcess], namespace: str, redis: Any, channel: aio_pika.abc.AbstractChannel
    ) -> None:
        self.processes = processes
        self.topology = Topology(namespace, PARTITIONS)
        self.keys = Keys(namespace, PARTITIONS)
        self.redis = redis
        self.channel = channel
        self.client = httpx2.AsyncClient(timeout=30)
        self.told: list[tuple[Envelope, Message]] = []

    async def work(self, session: str, *messages: Message, copies: int = 1) -> None:
        """As the door sends it, so often."""
        exchange = await self.channel.get_exchange(self.topology.work, ensure=False)
        members = [
            encode(
                Envelope(
                    id=derive_id(message.wire_type(), session, getattr(message, "timer", "")),
                    type=message.wire_type(),
                    session=session,
                    body=message.model_dump(),
                )
            )
            for message in messages
        ]
        for _ in range(copies):
            await exchange.publish(aio_pika.Message(join(members), content_type=BUNDLE_TYPE), "ingress")

    async def session(self) -> str:
        name = f"s-{secrets.token_hex(4)}"
        answer = await self.client.put(
            f"{self.processes[0].url}/v1/sessions/{name}", json={"owner": "ana"}, headers=OPERATOR_HEADERS
        )
        assert answer.status_code == 201
        return name

    async def timers(self, session: str, headers: dict[str, str] = OPERATOR_HEADERS, of: int = 0) -> httpx2.Response:
        return await self.client.get(f"{self.processes[of].url}/v1/sessions/{session}/timers", headers=headers)

    async def ids(self, session: str) -> list[str]:
        return [timer["timer"] for timer in (await self.timers(session)).json()["timers"]]

    async def inbox(self, session: str) -> list[dict[str, Any]]:
        numbered = await self.redis.hgetall(self.keys.of_session("inbox", session))
        return [orjson.loads(numbered[number]) for number in sorted(numbered, key=int)]

    async def listen(self) -> None:
        """Stand in the session's place: take what its partitions are sent."""
        for queue in (self.topology.partition_queue(number) for number in range(PARTITIONS)):
            taken = await self.channel.get_queue(queue, ensure=False)
            await taken.consume(self._take, no_ack=True)

    async def _take(self, delivery: aio_pika.abc.AbstractIncomingMessage) -> None:
        self.told += [decode(member) for member in split(delivery.body)]

    def skipped(self, session: str) -> list[TimerSkipped]:
        """What the session was told so far. A copy of a message counts once."""
        found = {env.id: body for env, body in self.told if env.session == session and isinstance(body, TimerSkipped)}
        return list(found.values())

    async def counted(self, outcome: str) -> float:
        name = f'turnkeeper_ingress_timers_total{{outcome="{outcome}"}} '
        total = 0.0
        for process in self.processes:
            text = (await self.client.get(process.url + "/metrics")).text
            total += float(next(line for line in text.splitlines() if line.startswith(name)).removeprefix(name))
        return total

    async def down(self) -> None:
        """Both replicas die at once, as by a power cut."""
        for process in self.processes:
            process.stop(signal.SIGKILL)

    async def up(self) -> None:
        for process in self.processes:
            process.start()
        await asyncio.gather(*(process.ready() for process in self.processes))

    async def done_with(self, session: str) -> None:
        """Until both replicas have nothing more to do for a session: no timer is due."""

        async def nothing_due() -> bool:
            index = self.keys.of_session_partition("timers", session)
            names = await self.redis.zrangebyscore(index, "-inf", now_ms())
            return not [name for name in names if name.startswith(session.encode())]

        await eventually(nothing_due, within=20)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    redis_url: str, amqp_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Deployment]:
    namespace = f"timers-{secrets.token_hex(6)}"
    folder = tmp_path_factory.mktemp("ingress")
    processes = await start_ingress(redis_url, amqp_url, namespace, folder, replicas=2)
    redis = connect_redis(redis_url, "test")
    connection = await aio_pika.connect(amqp_url)
    made = Deployment(processes, namespace, redis, await connection.channel())
    await made.listen()
    yield made
    await made.client.aclose()
    await connection.close()
    await redis.aclose()
    assert [process.stop() for process in processes] == [0, 0]


async def pending(deployment: Deployment, session: str, *ids: str) -> None:
    async def there() -> bool:
        return sorted(await deployment.ids(session)) == sorted(ids)

    await eventually(there, within=15)


async def test_a_timer_that_the_door_sets_fires_once_with_two_replicas(deployment: Deployment) -> None:
    session = await deployment.session()
    due = now_ms() + 1_500
    await deployment.work(session, a_timer("soon", session, due=due), copies=5)
    await pending(deployment, session, "soon")
    assert await deployment.inbox(session) == []

    async def fired() -> bool:
        return len(await deployment.inbox(session)) == 1

    await eventually(fired, within=15)
    (input,) = await deployment.inbox(session)
    assert (input["kind"], input["event"], input["depth"]) == ("timer", f"soon@{instant_text(due)}", 1)
    assert due <= input["accepted_at"] < due + 5_000
    assert await deployment.ids(session) == []


@pytest.mark.parametrize("misfire", ["run-late", "coalesce", "skip"])
async def test_a_timer_due_in_sixty_seconds_of_downtime_fires_by_its_misfire_rule_once_with_two_replicas(
    deployment: Deployment, misfire: str
) -> None:
    """The downtime is made, not waited for: while both replicas are down the due times are moved back by a minute,
    which to them is the same as a clock that went on for a minute."""
    session = await deployment.session()
    later = now_ms() + 10 * DOWN_MS
    once = a_timer("once", session, due=later, misfire=misfire)
    each = a_timer("each", session, due=later, misfire=misfire, rule="FREQ=MINUTELY")
    await deployment.work(session, once, each)
    await pending(deployment, session, "once", "each")
    await deployment.down()
    # Due as the replicas went down, and (the recurring one) a minute later again, just before they came back.
    first = now_ms() // 1000 * 1000 - DOWN_MS - 10_000
    for id in ("once", "each"):
        await move_due(deployment, session, id, first)
    await deployment.up()
    await deployment.done_with(session)
    fired = [input["event"].partition("@") for input in await deployment.inbox(session)]
    skips = {"run-late": 0, "coalesce": 0, "skip": 2}[misfire]
    await eventually(lambda: len(deployment.skipped(session)) == skips)
    told = [(one.timer, one.reason, one.count, one.instant) for one in deployment.skipped(session)]
    assert await deployment.counted("skipped") == sum(count for _, _, count, _ in told)
    instants = {id: [at for name, _, at in fired if name == id] for id in ("once", "each")}
    missed = [instant_text(first), instant_text(first + DOWN_MS)]
    match misfire:
        case "run-late":
            assert (instants, told) == ({"once": missed[:1], "each": missed}, [])
        case "coalesce":
            assert (instants, told) == ({"once": missed[:1], "each": missed[1:]}, [])
            data = {input["event"].partition("@")[0]: input["data"] for input in await deployment.inbox(session)}
            assert data == {"once": {"text": "pick up Ana"}, "each": {"text": "pick up Ana", "coalesced": 2}}
        case "skip":
            assert instants == {"once": [], "each": []}
            assert sorted(told) == [("each", "missed", 2, first), ("once", "missed", 1, first)]
    assert await deployment.ids(session) == ["each"], "it goes on"
    await deployment.work(session, a_stop("each", session))


async def move_due(deployment: Deployment, session: str, id: str, due: int) -> None:
    """As if the clock had gone on: the timer's due time and its place in the indexes."""
    keys = deployment.keys
    timer = keys.of_session("timer", session, id)
    packed = orjson.loads(await deployment.redis.hget(timer, "def")) | {"due": due}
    await deployment.redis.hset(timer, mapping={"def": orjson.dumps(packed), "next": due})
    await deployment.redis.zadd(keys.of_session_partition("timers", session), {f"{session} {id}": due})
    await deployment.redis.zadd(keys.of_session("pendingtimers", session), {id: due})


async def test_a_timer_that_was_set_while_ingress_was_down_fires_late_once(deployment: Deployment) -> None:
    """The door's message waits in the queue, twice, until it is due and past."""
    session = await deployment.session()
    await deployment.down()
    due = now_ms() - DOWN_MS
    await deployment.work(session, a_timer("late", session, due=due), copies=2)
    await deployment.up()

    async def fired() -> bool:
        return len(await deployment.inbox(session)) == 1

    await eventually(fired, within=20)
    assert [input["event"] for input in await deployment.inbox(session)] == [f"late@{instant_text(due)}"]


async def test_a_replica_that_is_killed_while_it_fires_loses_nothing_and_doubles_nothing(
    deployment: Deployment,
) -> None:
    session, due = await deployment.session(), now_ms() + 2_000
    ids = [f"tm{number}" for number in range(60)]
    await deployment.work(session, *(a_timer(id, session, due=due) for id in ids))
    await pending(deployment, session, *ids)

    async def begun() -> bool:
        return bool(await deployment.inbox(session))

    await eventually(begun, within=15)
    deployment.processes[0].stop(signal.SIGKILL)

    async def all_fired() -> bool:
        return len(await deployment.inbox(session)) >= len(ids)

    await eventually(all_fired, within=20)
    deployment.processes[0].start()
    await deployment.processes[0].ready()
    await deployment.done_with(session)
    fired = [input["event"] for input in await deployment.inbox(session)]
    assert sorted(fired) == sorted(f"{id}@{instant_text(due)}" for id in ids)


async def test_a_stopped_timer_is_never_set_again_by_a_copy_that_comes_late(deployment: Deployment) -> None:
    session = await deployment.session()
    first = a_timer("gone", session, due=now_ms() + 600_000)
    before = await deployment.counted("stopped")
    await deployment.work(session, first)
    await pending(deployment, session, "gone")
    await deployment.work(session, a_stop("gone", session), first, a_timer("stays", session, due=first.due))
    await pending(deployment, session, "stays")
    assert await deployment.counted("stopped") == before + 1


async def test_a_forged_timer_is_counted_and_acknowledged_and_the_queue_goes_on(deployment: Deployment) -> None:
    session = await deployment.session()
    before = await deployment.counted("forged")
    forged = a_timer("forged", session, attestation="k1:" + "0" * 64, due=now_ms() + 600_000)
    await deployment.work(session, forged, a_stop("x", "s-other"), a_timer("true", session, due=now_ms() + 600_000))
    await pending(deployment, session, "true")
    assert await deployment.counted("forged") == before + 2


async def test_above_the_cap_a_timer_is_refused_and_its_session_is_told(deployment: Deployment) -> None:
    session = await deployment.session()
    due = now_ms() + 600_000
    before, otherwise = await deployment.counted("too_many"), await deployment.counted("refused")
    await deployment.work(session, *(a_timer(f"tm{number}", session, due=due) for number in range(60)))
    await deployment.work(session, *(a_timer(f"tm{number}", session, due=due) for number in range(60, 101)))
    (refused,) = await eventually(lambda: deployment.skipped(session), within=15)
    listed = await deployment.ids(session)
    assert (refused.reason, len(listed)) == ("too_many_timers", 100)
    assert {*listed, refused.timer} == {f"tm{number}" for number in range(101)}
    assert await deployment.counted("too_many") == before + 1
    assert await deployment.counted("refused") == otherwise


async def test_a_timer_that_cannot_be_is_refused_and_not_counted_as_one_too_many(deployment: Deployment) -> None:
    session = await deployment.session()
    before, too_many = await deployment.counted("refused"), await deployment.counted("too_many")
    await deployment.work(session, a_timer("far", session, due=now_ms() + 500 * 86_400_000))
    (refused,) = await eventually(lambda: deployment.skipped(session), within=15)
    assert refused.reason == "too_far"
    assert await deployment.counted("refused") == before + 1
    assert await deployment.counted("too_many") == too_many


async def test_the_owner_and_operators_see_a_sessions_timers_and_nobody_else(deployment: Deployment) -> None:
    session = await deployment.session()
    due = now_ms() + 600_000
    await deployment.work(session, a_timer("tm1", session, due=due, rule="FREQ=DAILY", zone="Europe/Berlin"))
    await pending(deployment, session, "tm1")
    shown = (await deployment.timers(session, user_token("ana"), of=1)).json()["timers"]
    assert shown == (await deployment.timers(session)).json()["timers"]
    (timer,) = shown
    assert (timer["timer"], timer["next"], timer["zone"]) == ("tm1", due // 1000 * 1000, "Europe/Berlin")
    assert (timer["setter"], timer["fired"], timer["data"]) == ("user app ana", 0, {"text": "pick up Ana"})
    for headers, status, code in (
        (user_token("ben"), 403, "not-the-owner"),
        ({}, 401, "unauthorized"),
        ({"Authorization": "Bearer nonsense"}, 401, "unauthorized"),
    ):
        answer = await deployment.timers(session, headers)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (status, code)
    assert (await deployment.timers("nosuch")).status_code == 404
    assert (await deployment.timers("no.slug")).status_code == 404

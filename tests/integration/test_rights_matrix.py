"""Nobody gets in: each login of a deployment against every key family, exchange and queue, on real servers (G10).

`pytest -s` prints the matrix.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pytest
import redis

from libs.contracts.keys import SERVICES
from libs.contracts.rights import HEALTH_USER
from libs.contracts.topology import BROKER_USERS, Topology
from libs.runtime.topology import declare
from tests.support import rights
from tests.support.rights import NAMESPACE, PARTITIONS, WRONG_PASSWORD, Cell, printed, wrong_of
from tests.support.servers import Servers, skip_or_fail
from turnkeeper import engines
from turnkeeper.engines import Engine, EngineUnavailable, local
from turnkeeper.engines.base import login_url

TOPOLOGY = Topology(NAMESPACE, PARTITIONS)


@pytest.fixture(scope="module")
def engine(servers: Servers) -> Iterator[Engine]:
    """Servers of their own, with the users of one deployment and its topology."""
    with tempfile.TemporaryDirectory(prefix="turnkeeper-rights-") as name:
        folder = Path(name) / "state"
        try:
            started = local.start(folder, namespace=NAMESPACE)
        except EngineUnavailable as missing:
            skip_or_fail(str(missing))
        try:
            asyncio.run(declare(started.amqp_url, TOPOLOGY))
            yield started
        finally:
            engines.stop(folder)


@pytest.fixture(scope="module")
def redis_sha(engine: Engine) -> str:
    with redis.Redis.from_url(engine.redis_url) as owner:
        return str(owner.execute_command(*rights.script_load()).decode())


def _tried(url: str, user: str, sha: str) -> list[tuple[Cell, bool]]:
    with redis.Redis.from_url(url, single_connection_client=True) as client:
        return [(one.cell, not _refused(client, one.command)) for one in rights.redis_attempts(user, sha)]


def _refused(client: redis.Redis, command: tuple[str, ...]) -> bool:
    try:
        client.execute_command(*command)
    except redis.exceptions.NoPermissionError:
        return True
    except redis.ResponseError as error:
        return rights.is_refused(str(error))
    return False


@pytest.mark.slow
def test_a_service_touches_its_own_key_families_and_nothing_else_in_redis(engine: Engine, redis_sha: str) -> None:
    cells = [cell for user in SERVICES for cell in _tried(engine.redis_of(user), user, redis_sha)]
    print("\n" + printed("Redis", cells))
    assert wrong_of(cells) == []
    assert {cell.may for cell, _ in cells} == {True, False}


@pytest.mark.slow
def test_the_health_check_of_redis_may_ping_and_nothing_else(engine: Engine, redis_sha: str) -> None:
    url = engine.redis_logins[HEALTH_USER]
    assert [cell for cell, went in _tried(url, HEALTH_USER, redis_sha) if went] == []
    with redis.Redis.from_url(url) as client:
        assert client.ping()


@pytest.mark.slow
@pytest.mark.parametrize("user", [*SERVICES, HEALTH_USER, "default", "publisher", "guest"])
@pytest.mark.parametrize("password", [WRONG_PASSWORD, ""])
def test_redis_lets_nobody_in_without_their_password(engine: Engine, user: str, password: str) -> None:
    with (
        redis.Redis.from_url(login_url(engine.redis_url, user, password)) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


@pytest.mark.slow
def test_redis_lets_nobody_in_without_a_login(engine: Engine) -> None:
    host = engine.redis_url.rpartition("@")[2]
    with redis.Redis.from_url(f"redis://{host}") as client, pytest.raises(redis.AuthenticationError):
        client.ping()


@pytest.mark.slow
async def test_a_user_of_rabbitmq_publishes_and_takes_what_it_must_and_nothing_else(engine: Engine) -> None:
    await _own_queue(engine)
    cells: list[tuple[Cell, bool]] = []
    for user in BROKER_USERS:
        async with await aio_pika.connect(engine.amqp_of(user), timeout=10) as connection:
            for cell in rights.broker_cells(user, TOPOLOGY):
                cells.append((cell, await rights.try_on_broker(connection, cell, TOPOLOGY)))
    print("\n" + printed("RabbitMQ", cells))
    assert wrong_of(cells) == []
    assert {cell.user for cell, went in cells if went} == set(BROKER_USERS)


async def _own_queue(engine: Engine) -> None:
    async with await aio_pika.connect(engine.amqp_url, timeout=10) as connection:
        channel = await connection.channel()
        await channel.declare_queue(rights.OWN_QUEUE)


@pytest.mark.slow
@pytest.mark.parametrize("user", [*BROKER_USERS, "turnkeeper", "guest"])
@pytest.mark.parametrize("password", [WRONG_PASSWORD, ""])
async def test_rabbitmq_lets_nobody_in_without_their_password(engine: Engine, user: str, password: str) -> None:
    with pytest.raises(aio_pika.exceptions.AMQPError):
        await aio_pika.connect(login_url(engine.amqp_url, user, password), timeout=10)


@pytest.mark.slow
async def test_a_publisher_cannot_claim_to_be_another_user(engine: Engine) -> None:
    """What the scheme `broker-user` trusts: the broker refuses a `user_id` that is not the connection's."""
    async with await aio_pika.connect(engine.amqp_of("publisher"), timeout=10) as connection:
        channel = await connection.channel(publisher_confirms=True)
        exchange = await channel.get_exchange(TOPOLOGY.events, ensure=False)
        await exchange.publish(aio_pika.Message(b"{}", user_id="publisher"), "restaurant", timeout=10)
        with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed):
            await exchange.publish(aio_pika.Message(b"{}", user_id="ingress"), "restaurant", timeout=10)

"""The stores of the deployment: durable, and each user can do only what is its own (G1, G2, G10)."""

import aio_pika
import pytest
from aio_pika.exceptions import ProbableAuthenticationError
from aiormq.exceptions import ChannelAccessRefused

from libs.contracts.keys import SERVICES
from libs.contracts.topology import BROKER_USERS, Topology
from tests.compose.deployment import Deployment

pytestmark = pytest.mark.slow
TOPOLOGY = Topology()
FORBIDDEN = (
    ("flushall",),
    ("config", "set", "appendonly", "no"),
    ("keys", "*"),
    ("acl", "list"),
    ("shutdown", "nosave"),
)


def test_redis_keeps_what_it_acknowledged(stores: Deployment) -> None:
    settings = stores.redis("ingress", "--json", "config", "get", "append*", "maxmemory-policy")
    for setting in ('"appendonly":"yes"', '"appendfsync":"always"', '"maxmemory-policy":"noeviction"'):
        assert setting in settings


def test_redis_is_version_8(stores: Deployment) -> None:
    assert " v=8." in stores.compose("exec", "-T", "redis", "redis-server", "--version")


def test_nobody_uses_redis_without_a_name(stores: Deployment) -> None:
    answer = stores.compose("exec", "-T", "redis", "redis-cli", "ping")
    assert "NOAUTH" in answer


def test_the_default_user_cannot_be_used(stores: Deployment) -> None:
    for password in ("", "default"):
        answer = stores.compose("exec", "-T", "redis", "redis-cli", "--user", "default", "--pass", password, "ping")
        assert "PONG" not in answer


def test_what_a_script_wrote_survives_a_restart_of_redis(stores: Deployment) -> None:
    """Several writes of one script are a transaction in the append-only file. Redis drops those at the start, and
    says that all is well, if its default user may not do what they do."""
    keys = ("tk:{i01}:event:restart-a", "tk:{i01}:event:restart-b")
    script = "redis.call('SET', KEYS[1], 'a') redis.call('SET', KEYS[2], 'b') return 'done'"
    sha = stores.redis("ingress", "script", "load", script)
    assert stores.redis("ingress", "evalsha", sha, "2", *keys) == "done"
    stores.compose("restart", "redis")
    stores.compose("up", "--detach", "--wait", "redis", within=90)
    assert [stores.redis("ingress", "get", key) for key in keys] == ["a", "b"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_cannot_wipe_or_reconfigure_the_store(stores: Deployment, service: str) -> None:
    for command in FORBIDDEN:
        assert "NOPERM" in stores.redis(service, *command)


def test_the_session_service_reads_an_owner_and_cannot_write_one(stores: Deployment) -> None:
    assert stores.redis("session", "get", "tk:{p01}:owner:nobody") == ""
    assert "NOPERM" in stores.redis("session", "set", "tk:{p01}:owner:nobody", "mallory")


def test_a_service_cannot_see_another_services_keys(stores: Deployment) -> None:
    assert "NOPERM" in stores.redis("session", "get", "tk:{i01}:event:x")
    assert "NOPERM" in stores.redis("tools", "hgetall", "tk:{p01}:state:s1")
    assert "NOPERM" in stores.redis("consent", "hgetall", "tk:{p01}:outbox:session")


def test_the_health_check_can_only_ping(stores: Deployment) -> None:
    assert stores.redis("health", "ping") == "PONG"
    assert "NOPERM" in stores.redis("health", "get", "tk:{p01}:owner:s1")


def test_the_broker_is_version_4_and_holds_the_topology(stores: Deployment) -> None:
    assert stores.compose("exec", "-T", "rabbitmq", "rabbitmqctl", "-q", "version").startswith("4.")
    queues = {row["name"]: row["type"] for row in stores.rabbitmqctl("list_queues", "name", "type")}
    assert queues == {queue.name: queue.arguments["x-queue-type"] for queue in TOPOLOGY.queues()}


def test_the_broker_knows_its_users_and_no_guest(stores: Deployment) -> None:
    assert {row["user"] for row in stores.rabbitmqctl("list_users")} == set(BROKER_USERS)


async def test_guest_cannot_connect(stores: Deployment) -> None:
    with pytest.raises((ProbableAuthenticationError, ConnectionError)):
        await aio_pika.connect(stores.amqp_url("guest", "guest"), timeout=10)


async def test_a_publisher_can_publish_events_and_nothing_else(stores: Deployment) -> None:
    async with await aio_pika.connect(stores.amqp_url("publisher"), timeout=10) as connection:
        channel = await connection.channel()
        await _publish(channel, TOPOLOGY.events)
        for exchange in (TOPOLOGY.sessions, TOPOLOGY.work, TOPOLOGY.notices, TOPOLOGY.dead):
            with pytest.raises(ChannelAccessRefused):
                await _publish(await connection.channel(), exchange)
        with pytest.raises(ChannelAccessRefused):
            await (await connection.channel()).declare_queue("mine")


async def test_a_subscriber_can_bind_its_own_queue_to_the_notices_and_nothing_else(stores: Deployment) -> None:
    async with await aio_pika.connect(stores.amqp_url("subscriber"), timeout=10) as connection:
        queue = await (await connection.channel()).declare_queue("subscriber.test", exclusive=True)
        await queue.bind(TOPOLOGY.notices, "#")
        for exchange in (TOPOLOGY.events, TOPOLOGY.sessions, TOPOLOGY.work):
            other = await (await connection.channel()).declare_queue(exclusive=True, name="subscriber.other")
            with pytest.raises(ChannelAccessRefused):
                await other.bind(exchange, "#")


async def test_no_service_may_declare(stores: Deployment) -> None:
    for service in SERVICES:
        async with await aio_pika.connect(stores.amqp_url(service), timeout=10) as connection:
            with pytest.raises(ChannelAccessRefused):
                await (await connection.channel()).declare_queue("turnkeeper.mine")


async def _publish(channel: aio_pika.abc.AbstractChannel, exchange: str) -> None:
    """Publish under a routing key that no source has; whoever reads it can only count it."""
    target = await channel.get_exchange(exchange, ensure=False)
    await target.publish(aio_pika.Message(b"{}"), "nobody", mandatory=False, timeout=5)

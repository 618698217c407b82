"""The matrix of credentials and resources on the real deployment, and secrets that Docker must not tell (G10)."""

import json

import aio_pika
import pytest

from libs.contracts.keys import SERVICES
from libs.contracts.rights import HEALTH_USER
from libs.contracts.topology import BROKER_USERS, Topology
from tests.compose.deployment import SERVICES as CONTAINERS
from tests.compose.deployment import Deployment, run
from tests.support import rights
from tests.support.rights import WRONG_PASSWORD, Cell, printed, wrong_of
from turnkeeper.engines.base import login_url

pytestmark = pytest.mark.slow
TOPOLOGY = Topology()


def test_each_user_of_redis_touches_its_own_key_families_and_nothing_else(stores: Deployment) -> None:
    sha = stores.redis("ingress", *rights.script_load())
    cells: list[tuple[Cell, bool]] = []
    for user in (*SERVICES, HEALTH_USER):
        attempts = list(rights.redis_attempts(user, sha, namespace="", in_use=True))
        answers = stores.redis_each(user, [attempt.command for attempt in attempts])
        cells += [
            (attempt.cell, not rights.is_refused(answer)) for attempt, answer in zip(attempts, answers, strict=True)
        ]
    print("\n" + printed("Redis", cells))
    assert wrong_of(cells) == []


async def test_each_user_of_rabbitmq_publishes_and_takes_what_it_must_and_nothing_else(stores: Deployment) -> None:
    cells: list[tuple[Cell, bool]] = []
    async with await aio_pika.connect(stores.amqp_url("subscriber"), timeout=10) as subscriber:
        queue = await (await subscriber.channel()).declare_queue(rights.OWN_QUEUE)
        for user in BROKER_USERS:
            async with await aio_pika.connect(stores.amqp_url(user), timeout=10) as connection:
                for cell in rights.broker_cells(user, TOPOLOGY):
                    cells.append((cell, await rights.try_on_broker(connection, cell, TOPOLOGY)))
        await queue.delete(if_unused=False, if_empty=False)
    async with await aio_pika.connect(stores.amqp_url("operator"), timeout=10) as operator:
        await (await (await operator.channel()).get_queue(TOPOLOGY.dead, ensure=False)).purge()
    print("\n" + printed("RabbitMQ", cells))
    assert wrong_of(cells) == []


@pytest.mark.parametrize("user", [*BROKER_USERS, "guest"])
async def test_rabbitmq_lets_nobody_in_without_their_password(stores: Deployment, user: str) -> None:
    for password in (WRONG_PASSWORD, ""):
        with pytest.raises((aio_pika.exceptions.AMQPError, ConnectionError)):
            await aio_pika.connect(login_url(stores.amqp_url(user, "x"), user, password), timeout=10)


def test_no_secret_is_in_what_docker_tells_of_the_deployment(deployment: Deployment) -> None:
    values = {file.name: file.read_text().strip() for file in deployment.secrets.iterdir()}
    values |= {f"part of {name}": text.partition(":")[2] for name, text in values.items() if name == "seal_keys"}
    told = {name: json.dumps(deployment.inspect(name)) for name in ("redis", "rabbitmq", *CONTAINERS)}
    told["docker compose config"] = deployment.compose("--profile", "*", "config")
    told |= {f"the logs of {name}": deployment.compose("logs", "--no-color", name) for name in CONTAINERS}
    told |= {f"top of {name}": deployment.compose("top", name) for name in CONTAINERS}
    image = deployment.images["TURNKEEPER_IMAGE"]
    told["the image"] = run(["docker", "image", "inspect", image]) + run(["docker", "history", "--no-trunc", image])
    assert [
        f"{name} in {where}" for where, text in told.items() for name, value in values.items() if value in text
    ] == []


def test_a_secret_file_is_seen_by_those_that_name_it_alone(deployment: Deployment) -> None:
    assert deployment.secrets.stat().st_mode & 0o077 == 0

"""The compose deployment, once for the whole run. Runs only when this folder is named: it builds images and needs an
engine, so `pytest` and `make test` pass it by."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.deployment import Deployment, engine_answers, stop_engine
from tests.compose.dinner import Dinner

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless the command line names it or something in it."""
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.invocation_params.args
             if isinstance(argument, str) and not argument.startswith("-"))  # fmt: skip
    return None if any(path == HERE or HERE in path.parents for path in named) else True


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Redis and RabbitMQ of the deployment, healthy, on free ports and under a project name of their own."""
    ran_before = engine_answers()
    deployment = Deployment.prepare(tmp_path_factory.mktemp("deployment"))
    try:
        deployment.compose("up", "--detach", "--wait", "redis", "rabbitmq", within=180)
        yield deployment
    finally:
        deployment.remove()
        left = deployment.left()
        if not ran_before:
            stop_engine()
    assert not left


@pytest.fixture(scope="session")
def deployment(stores: Deployment) -> Deployment:
    """All of it with Prometheus, healthy; the third session replica is another test's."""
    services = stores.compose("--profile", "metrics", "config", "--services").split()
    chosen = [service for service in services if service != "session-3"]
    stores.compose("--profile", "metrics", "up", "--detach", "--build", "--wait", *chosen, within=600)
    return stores


@pytest.fixture(scope="session")
def dinner(deployment: Deployment) -> Dinner:
    """The main job, played once from the host."""
    told = Dinner(deployment)
    asyncio.run(told.play())
    return told

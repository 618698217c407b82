"""The compose deployment, once for the whole run. Runs only when this folder is named: it builds images and needs an
engine, so `pytest` and `make test` pass it by."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.deployment import Deployment

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless the command line names it or something in it."""
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.invocation_params.args
             if isinstance(argument, str) and not argument.startswith("-"))  # fmt: skip
    return None if any(path == HERE or HERE in path.parents for path in named) else True


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Redis and RabbitMQ of the deployment, healthy, on free ports and under a project name of their own."""
    deployment = Deployment.prepare(tmp_path_factory.mktemp("deployment"))
    try:
        deployment.compose("up", "--detach", "--wait", "redis", "rabbitmq", within=180)
        yield deployment
    finally:
        deployment.remove()


@pytest.fixture(scope="session")
def deployment(stores: Deployment) -> Deployment:
    """All of it, healthy."""
    stores.compose("up", "--detach", "--build", "--wait", within=600)
    return stores

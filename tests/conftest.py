"""Fixtures of all tests: the run's servers, a name of its own for each test, and seeds that can be replayed."""

import os
import re
import secrets
import signal
from collections.abc import Iterator

import pytest

from tests.support.servers import Servers
from turnkeeper.engines import probe

SEED = "SEED"


def pytest_configure() -> None:
    """End in good order when asked to by SIGTERM, as by Ctrl-C, so that the servers go with the run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the servers, so that `-m "not engine"` chooses what runs everywhere."""
    for item in items:
        if {"redis_url", "amqp_url"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this run; nothing of them is left at its end."""
    of_this_run = Servers()
    yield of_this_run
    of_this_run.stop()


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    """A real Redis, append-only with `appendfsync always`. Shared by the run: keep to your `namespace`."""
    return servers.redis_url()


@pytest.fixture(scope="session")
def amqp_url(servers: Servers) -> str:
    """A real RabbitMQ. Shared by the run: keep to your `namespace`."""
    return servers.amqp_url()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """A prefix for keys and topology that no other test of any run has, so that nothing needs flushing."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:20].strip("-")
    return f"{readable}-{secrets.token_hex(6)}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of a random test: drawn and printed, or given again by the variable SEED."""
    given = os.environ.get(SEED)
    drawn = int(given) if given else secrets.randbits(32)
    line = f"replay with SEED={drawn}"
    print(line)
    request.node.user_properties.append(("seed", drawn))
    return drawn


@pytest.fixture(autouse=True)
def _needs_rabbitmq_4(request: pytest.FixtureRequest) -> None:
    """Skip, by name, what RabbitMQ 3.x cannot do."""
    if request.node.get_closest_marker("rabbitmq4") is None:
        return
    version = probe.rabbitmq_version(request.getfixturevalue("amqp_url"))
    if version < (4,):
        pytest.skip(f"needs RabbitMQ 4, this is {'.'.join(map(str, version))}")

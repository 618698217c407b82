"""The Redis and RabbitMQ of a test run: started when a test first asks for them, ended with the run."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from libs.contracts.keys import SERVICES
from libs.contracts.rights import ANY_NAMESPACE
from turnkeeper import engines
from turnkeeper.engines import Engine, EngineUnavailable, external, local

SWITCH = "TURNKEEPER_TEST_ENGINE"
"""`external`, `docker` or `local`; without it external if its URLs are given, else local."""


class Servers:
    """One private set of servers a run. Redis alone starts in a moment, so RabbitMQ waits until it is asked for."""

    def __init__(self) -> None:
        self._state: Path | None = None
        self._whole: Engine | None = None
        self._urls: dict[str, str] = {}
        self.kind = os.environ.get(SWITCH) or ("external" if external.is_given() else "local")

    @property
    def state(self) -> Path:
        """The folder in which the servers live."""
        if self._state is None:
            self._state = Path(tempfile.mkdtemp(prefix="turnkeeper-tests-"))
        return self._state

    def redis_url(self) -> str:
        """URL of the run's Redis, started if need be."""
        return self._url("redis", lambda: local.start_redis(self.state, namespace=ANY_NAMESPACE))

    def amqp_url(self) -> str:
        """URL of the run's RabbitMQ, started if need be."""
        return self._url("rabbitmq", lambda: local.start_rabbitmq(self.state, namespace=ANY_NAMESPACE))

    def environment(self) -> dict[str, str]:
        """What names these servers to a stack: its owner's logins and, where the servers are the run's own, those of
        each service, so that every test of a whole stack runs with the least rights."""
        given = {external.REDIS_URL: self.redis_url(), external.AMQP_URL: self.amqp_url()}
        if self.kind != "local":
            return given
        engine = local.engine_of(self.state)
        for service in SERVICES:
            given[external.redis_variable(service)] = engine.redis_of(service)
            given[external.amqp_variable(service)] = engine.amqp_of(service)
        return given

    def stop(self) -> None:
        """End what was started and remove its folder."""
        if self._state is not None:
            engines.stop(self._state)
            shutil.rmtree(self._state, ignore_errors=True)

    def _url(self, server: str, start: Callable[[], str]) -> str:
        try:
            if self.kind == "local":
                if server not in self._urls:
                    self._urls[server] = start()
                return self._urls[server]
            if self._whole is None:
                self._whole = engines.start(self.state, self.kind)
            return self._whole.redis_url if server == "redis" else self._whole.amqp_url
        except EngineUnavailable as missing:
            skip_or_fail(str(missing))


def skip_or_fail(missing: str) -> NoReturn:
    """A missing engine skips at a desk and fails where CI=true: there it means that the tests did not run."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)

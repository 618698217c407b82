"""Servers that somebody else runs: `TURNKEEPER_REDIS_URL` and `TURNKEEPER_AMQP_URL`, and where each service has a
login of its own there `TURNKEEPER_INGRESS_REDIS_URL`, `TURNKEEPER_INGRESS_AMQP_URL` and so on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from libs.contracts.keys import SERVICES
from libs.runtime.connections import with_password
from turnkeeper.engines import probe
from turnkeeper.engines.base import Engine, EngineError, EngineUnavailable, Say, Server, silent

REDIS_URL = "TURNKEEPER_REDIS_URL"
AMQP_URL = "TURNKEEPER_AMQP_URL"
NAMESPACE = "TURNKEEPER_NAMESPACE"
_PATIENCE_SECONDS = 15


def redis_variable(service: str) -> str:
    """The variable that names a service's own login at Redis; without it the service has the stack owner's."""
    return f"TURNKEEPER_{service.upper()}_REDIS_URL"


def amqp_variable(service: str) -> str:
    """The same at RabbitMQ."""
    return f"TURNKEEPER_{service.upper()}_AMQP_URL"


def _own_logins(variable: Callable[[str], str]) -> dict[str, str]:
    return {service: os.environ[variable(service)] for service in SERVICES if os.environ.get(variable(service))}


def is_given() -> bool:
    """Whether the environment names both servers."""
    return bool(os.environ.get(REDIS_URL) and os.environ.get(AMQP_URL))


def start(state: Path, *, say: Say = silent) -> Engine:
    """Check that both servers answer. Raises EngineUnavailable if they are not named, EngineError if not there."""
    if not is_given():
        raise EngineUnavailable(f"engine external: set {REDIS_URL} and {AMQP_URL}")
    engine = Engine(
        redis_url=with_password(
            os.environ[REDIS_URL],
            os.environ.get("TURNKEEPER_REDIS_PASSWORD"),
            os.environ.get("TURNKEEPER_REDIS_USER"),
        ),
        amqp_url=with_password(os.environ[AMQP_URL], os.environ.get("TURNKEEPER_AMQP_PASSWORD")),
        kind="external",
        namespace=os.environ.get(NAMESPACE, ""),
        redis_logins=_own_logins(redis_variable),
        amqp_logins=_own_logins(amqp_variable),
    )
    say(f"engine: external (Redis {probe.place(engine.redis_url)}, RabbitMQ {probe.place(engine.amqp_url)})")
    for ask in (lambda: probe.redis_fault(engine.redis_url), lambda: probe.rabbitmq_fault(engine.amqp_url)):
        if fault := probe.wait_for(ask, _PATIENCE_SECONDS, lambda: True):
            raise EngineError(f"engine external: {fault}")
    return engine


def stop(state: Path) -> None:
    """Do nothing: the servers are not ours."""


def kill(state: Path, server: Server, number: int = signal.SIGKILL) -> None:
    """Refuse: the servers are not ours."""
    raise EngineError(f"engine external: {server} is not ours to kill")


def restart(state: Path, server: Server) -> None:
    """Refuse: the servers are not ours."""
    raise EngineError(f"engine external: {server} is not ours to restart")

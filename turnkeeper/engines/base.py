"""What every engine gives: one Redis and one RabbitMQ for one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["external", "docker", "local"]
Server = Literal["redis", "rabbitmq"]
SERVERS: tuple[Server, ...] = ("redis", "rabbitmq")
Say = Callable[[str], None]
"""Takes one line of progress for a person."""


class EngineError(Exception):
    """An engine failed. The text is one line that says what to do next, perhaps followed by log lines."""


class EngineUnavailable(EngineError):
    """This engine cannot be used on this machine; another one may."""


@dataclass(frozen=True)
class Engine:
    """One Redis and one RabbitMQ, ready to serve."""

    redis_url: str
    amqp_url: str
    kind: Kind
    pids: Mapping[str, int] = field(default_factory=dict)
    """Processes that we started, by name; empty when the servers are not ours or run in containers."""
    namespace: str = ""
    """Prefix of keys and topology (`TURNKEEPER_NAMESPACE`); empty where the servers are the stack's own."""


def silent(_: str) -> None:
    """A `Say` that says nothing."""

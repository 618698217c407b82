"""What every engine gives: one Redis and one RabbitMQ for one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, urlsplit, urlunsplit

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

    redis_url: str = field(repr=False)
    amqp_url: str = field(repr=False)
    kind: Kind
    pids: Mapping[str, int] = field(default_factory=dict)
    """Processes that we started, by name; empty when the servers are not ours or run in containers."""
    namespace: str = ""
    """Prefix of keys and topology (`TURNKEEPER_NAMESPACE`); empty where the servers are the stack's own."""
    redis_logins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """URL of Redis by user: the services, each with no more rights than it needs (G10), and the health check."""
    amqp_logins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """URL of RabbitMQ by user: the services, and publisher, subscriber, planner and operator."""

    def redis_of(self, service: str) -> str:
        """How a service connects to Redis: by its own login, where the engine has one."""
        return self.redis_logins.get(service, self.redis_url)

    def amqp_of(self, user: str) -> str:
        """How a service, or an agent or publisher, connects to RabbitMQ."""
        return self.amqp_logins.get(user, self.amqp_url)


def silent(_: str) -> None:
    """A `Say` that says nothing."""


def login_url(url: str, user: str, password: str) -> str:
    """The URL of a server with another user's login."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"))

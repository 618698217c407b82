"""Exchanges, queues and bindings as data: declared at start by the engines, rendered to `definitions.json` for
RabbitMQ, and named nowhere else."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from libs.contracts.envelope import Message
from libs.contracts.ids import partition_of

QUORUM: dict[str, Any] = {
    "x-queue-type": "quorum",
    # Out of reach: lost connections count as deliveries, so a real limit dead-letters healthy messages (5-facts).
    # The runtime counts attempts itself.
    "x-delivery-limit": 1_000_000,
}


ARCHIVE_AGE = "90D"
"""How long the archive keeps evidence, unless it is set: a number and one of Y M D h m s (RabbitMQ's `x-max-age`)."""
ARCHIVE_AGE_PATTERN = r"[1-9]\d*[YMDhms]"
ARCHIVE_SEGMENT_BYTES = 50_000_000
"""Age is judged segment by segment: small ones, so that what is too old does go."""


def checked_age(text: str) -> str:
    """`TURNKEEPER_ARCHIVE_MAX_AGE`, the default where it is empty. Raises ValueError for what RabbitMQ refuses."""
    if text and not re.fullmatch(ARCHIVE_AGE_PATTERN, text):
        raise ValueError(f"TURNKEEPER_ARCHIVE_MAX_AGE is {text!r}: give a number and one of Y M D h m s, such as 90D")
    return text or ARCHIVE_AGE


@dataclass(frozen=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: Literal["topic", "direct", "fanout"]


@dataclass(frozen=True)
class Queue:
    """A durable queue and its arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=lambda: dict(QUORUM))


@dataclass(frozen=True)
class Binding:
    """From an exchange to a queue."""

    exchange: str
    queue: str
    routing_key: str


@dataclass(frozen=True)
class Topology:
    """The names of one deployment. `namespace` prefixes them, so that several live on one broker."""

    namespace: str = ""
    partitions: int = 16
    archive_age: str = ARCHIVE_AGE

    def name(self, short: str) -> str:
        """The full name of an exchange or queue, `turnkeeper.<short>` without a namespace."""
        return f"{self.namespace}.turnkeeper.{short}" if self.namespace else f"turnkeeper.{short}"

    @property
    def events(self) -> str:
        """Where publishers publish."""
        return self.name("events")

    @property
    def notices(self) -> str:
        """Where applications subscribe."""
        return self.name("notices")

    @property
    def sessions(self) -> str:
        """The exchange of the partitions."""
        return self.name("sessions")

    @property
    def work(self) -> str:
        """The exchange of commands to the other services."""
        return self.name("work")

    @property
    def plans(self) -> str:
        """The exchange and the queue of the answers that agents give (planner `amqp`)."""
        return self.name("plans")

    @property
    def dead(self) -> str:
        """The exchange and the queue of what could not be handled."""
        return self.name("dead")

    @property
    def archive(self) -> str:
        """The exchange and the stream of evidence."""
        return self.name("archive")

    @property
    def events_in(self) -> str:
        """The queue behind the events exchange."""
        return self.name("events.in")

    def partition_queue(self, partition: int) -> str:
        """The queue of one partition."""
        return self.name(f"session.{partition:02}")

    def work_queue(self, service: str) -> str:
        """The command queue of a service."""
        return self.name(service)

    def exchanges(self) -> list[Exchange]:
        """All exchanges."""
        return [
            Exchange(self.events, "topic"),
            Exchange(self.notices, "topic"),
            Exchange(self.sessions, "direct"),
            Exchange(self.work, "direct"),
            Exchange(self.plans, "direct"),
            Exchange(self.dead, "fanout"),
            Exchange(self.archive, "direct"),
        ]

    def queues(self) -> list[Queue]:
        """All queues. A partition has a single active consumer: order per session without a lock of ours."""
        partition = {**QUORUM, "x-single-active-consumer": True}
        return [
            Queue(self.events_in),
            *(Queue(self.partition_queue(number), partition) for number in range(self.partitions)),
            *(Queue(self.work_queue(service)) for service in WORKERS),
            Queue(self.plans),
            Queue(self.dead),
            Queue(self.archive, self._stream()),
        ]

    def _stream(self) -> dict[str, Any]:
        """Append-only: what is read stays, and only age removes it. Spoken to over AMQP 0.9.1, without a plugin."""
        return {
            "x-queue-type": "stream",
            "x-max-age": self.archive_age,
            "x-stream-max-segment-size-bytes": ARCHIVE_SEGMENT_BYTES,
        }

    def bindings(self) -> list[Binding]:
        """All bindings."""
        return [
            Binding(self.events, self.events_in, "#"),
            *(
                Binding(self.sessions, self.partition_queue(number), f"p{number:02}")
                for number in range(self.partitions)
            ),
            *(Binding(self.work, self.work_queue(service), service) for service in WORKERS),
            Binding(self.plans, self.plans, ""),
            Binding(self.dead, self.dead, ""),
            Binding(self.archive, self.archive, ""),
        ]

    def route(self, message: Message, session: str) -> "Route":
        """Where a message goes."""
        if message.TO == "session":
            return Route(self.sessions, f"p{partition_of(session, self.partitions):02}")
        if message.TO == "notices":
            return Route(self.notices, f"{session}.{getattr(message, 'topic', 'notice')}")
        if message.TO == "archive":
            return Route(self.archive, "")
        return Route(self.work, message.TO)

    def bundled(self, exchange: str, routing_key: str = "") -> bool:
        """Whether messages of an exchange travel in bundles: all but those that applications and agents read."""
        if exchange == self.work and routing_key == PLANNER:
            return False  # one request, one acknowledgement: an agent that ends loses the request it had, and no other
        return exchange not in (self.notices, self.dead, self.archive)

    def mandatory(self, exchange: str) -> bool:
        """Whether an unroutable message is a fault: not for notices, since no subscriber is no fault."""
        return exchange != self.notices


PLANNER = "planner"
WORKERS = (PLANNER, "consent", "tools", "ingress")


@dataclass(frozen=True)
class Route:
    """Exchange and routing key of one message."""

    exchange: str
    routing_key: str


_PERMISSIONS: dict[str, tuple[str, str]] = {
    # user: (write, read), as alternatives after the name prefix; nobody may configure
    "ingress": (r"sessions|dead|notices", r"events\.in|ingress"),
    "session": (r"sessions|work|notices|dead", r"session\.\d+|planner|plans"),
    "consent": (r"sessions|notices|dead", r"consent"),
    "tools": (r"sessions|work|notices|dead|archive", r"tools"),
    "publisher": (r"events", ""),
    "planner": (r"plans", r"planner"),
    "operator": (r"dead|sessions|work|events", r"dead|archive"),
}


def permissions(user: str, namespace: str = "") -> dict[str, str]:
    """`configure`, `write` and `read` patterns of a broker user (least privilege, G10).

    A subscriber declares a queue of its own, named `subscriber.…`, and binds it to the notices.
    """
    prefix = rf"{namespace}\.turnkeeper\." if namespace else r"turnkeeper\."
    if user == "subscriber":
        return {
            "configure": r"^subscriber\..*$",
            "write": r"^subscriber\..*$",
            "read": rf"^({prefix}notices|subscriber\..*)$",
        }
    write, read = _PERMISSIONS[user]
    return {
        "configure": "^$",
        "write": rf"^{prefix}({write})$" if write else "^$",
        "read": rf"^{prefix}({read})$" if read else "^$",
    }


BROKER_USERS = (*_PERMISSIONS, "subscriber")


def definitions(
    namespace: str, partitions: int, users: Mapping[str, str], archive_age: str = ARCHIVE_AGE
) -> dict[str, Any]:
    """RabbitMQ's definitions file. `users` maps each name of `BROKER_USERS` to its password."""
    topology = Topology(namespace, partitions, archive_age)
    return {
        "vhosts": [{"name": "/"}],
        "users": [
            {
                "name": user,
                "password_hash": password_hash(password),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
            }
            for user, password in users.items()
        ],
        "permissions": [{"user": user, "vhost": "/", **permissions(user, namespace)} for user in users],
        "exchanges": [
            {"name": e.name, "vhost": "/", "type": e.type, "durable": True, "auto_delete": False, "internal": False,
             "arguments": {}}
            for e in topology.exchanges()
        ],
        "queues": [
            {"name": q.name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": dict(q.arguments)}
            for q in topology.queues()
        ],
        "bindings": [
            {"source": b.exchange, "vhost": "/", "destination": b.queue, "destination_type": "queue",
             "routing_key": b.routing_key, "arguments": {}}
            for b in topology.bindings()
        ],
    }  # fmt: skip


def password_hash(password: str) -> str:
    """RabbitMQ's salted SHA-256 form. The salt is derived, so that rendering the file twice gives the same file."""
    salt = hashlib.sha256(b"turnkeeper-salt:" + password.encode()).digest()[:4]
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()

"""The matrix of credentials and resources: what is tried, what has to come of it, and how it is printed.

Rows and columns come from `libs.contracts`: a family, queue or exchange that is new there is tried too, and one that
has no row in `PUBLISHES` or `TAKES` fails.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelPreconditionFailed

from libs.contracts.keys import FAMILIES, SERVICES, Family, acl_rules
from libs.contracts.topology import Topology

NAMESPACE, ELSEWHERE = "mine", "other"
PARTITIONS = 2
NO_PARTITION = "999"
"""Of keys: what is tried touches nothing that a deployment uses."""
WRONG_PASSWORD = "a-password-that-nobody-has"
_SCRIPT = "redis.call('EXISTS', KEYS[1]) return 1"
FORBIDDEN: tuple[tuple[str, ...], ...] = (
    ("KEYS", "*"), ("SCAN", "0"), ("RANDOMKEY",), ("FLUSHALL",), ("FLUSHDB",), ("DEBUG", "SLEEP", "0"),
    ("EVAL", "return 1", "0"), ("SCRIPT", "FLUSH"), ("CONFIG", "SET", "appendonly", "no"), ("CONFIG", "REWRITE"),
    ("ACL", "LIST"), ("ACL", "SETUSER", "intruder", "on", "nopass", "+@all"), ("INFO",), ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"), ("CLIENT", "PAUSE", "1"), ("REPLICAOF", "NO", "ONE"), ("BGREWRITEAOF",),
    ("SAVE",), ("SLOWLOG", "GET"), ("PUBLISH", "channel", "x"), ("FUNCTION", "LIST"), ("MODULE", "LIST"),
    ("SWAPDB", "0", "1"), ("DBSIZE",), ("SHUTDOWN", "NOSAVE"),
)  # fmt: skip
"""Commands that rule a server or show it whole: nobody but its owner may send them. The last one would tell."""


@dataclass(frozen=True)
class Cell:
    """One attempt: who, on what, doing what, and whether it may be."""

    user: str
    resource: str
    verb: str
    may: bool


@dataclass(frozen=True)
class Attempt:
    """A cell of Redis and the command that tries it."""

    cell: Cell
    command: tuple[str, ...]


def sample_key(family: Family, namespace: str, service: str) -> str:
    """A key of a family as a service makes one, in a partition that no deployment has. Raises LookupError for a family
    of which no key is known."""
    head = (
        f"{_head(namespace)}{{meta}}" if family.tag == "meta" else f"{_head(namespace)}{{{family.tag}{NO_PARTITION}}}"
    )
    head += f":{family.name}"
    patterns = [rule.partition("~")[2] for name in SERVICES for rule in acl_rules(name, namespace) if "~" in rule]
    owner = service if service in SERVICES else SERVICES[0]
    for tail in ("", f":{owner}", ":s1", ":s1:A1"):
        if any(fnmatch.fnmatchcase(head + tail, pattern) for pattern in patterns):
            return head + tail
    raise LookupError(f"no service may touch any key of the family {family.name}")


def _head(namespace: str) -> str:
    return f"tk:{namespace}:" if namespace else "tk:"


def script_load() -> tuple[str, ...]:
    """What makes `EVALSHA` of the attempts possible."""
    return ("SCRIPT", "LOAD", _SCRIPT)


def redis_attempts(user: str, sha: str, namespace: str = NAMESPACE, *, in_use: bool = False) -> Iterator[Attempt]:
    """Everything that is tried as one user of Redis: each family's keys by four verbs, the same of a neighbouring
    deployment, other services' outboxes, and each command that rules the server. Where the deployment is `in_use` the
    keys that it has once are only read."""
    for family in FAMILIES:
        writes, reads = user in family.writers, user in (*family.writers, *family.readers)
        key = sample_key(family, namespace, user)
        for attempt in _on_key(user, family.name, key, sha, reads=reads, writes=writes):
            if not (in_use and family.tag == "meta" and attempt.cell.verb in ("set", "del")):
                yield attempt
        neighbour = _head(ELSEWHERE) + key.removeprefix(_head(namespace))
        yield from _on_key(user, f"{family.name} of another deployment", neighbour, sha, reads=False, writes=False)
        if family.name.startswith("outbox"):
            for other in sorted(set(SERVICES) - {user}):
                key = f"{_head(namespace)}{{p{NO_PARTITION}}}:{family.name}:{other}"
                yield from _on_key(user, f"{family.name} of {other}", key, sha, reads=False, writes=False)
    key = f"{_head(namespace)}{{p{NO_PARTITION}}}:invented:s1"
    yield from _on_key(user, "a key of no family", key, sha, reads=False, writes=False)
    for command in FORBIDDEN:
        yield Attempt(Cell(user, "the server", " ".join(command[:2]).lower(), may=False), command)


def _on_key(user: str, resource: str, key: str, sha: str, *, reads: bool, writes: bool) -> Iterator[Attempt]:
    tried = {
        "get": (("GET", key), reads),
        "set": (("SET", key, "x"), writes),
        "eval": (("EVALSHA", sha, "1", key), writes),
        "del": (("DEL", key), writes),
    }
    for verb, (command, may) in tried.items():
        yield Attempt(Cell(user, resource, verb, may), command)


def is_refused(reply: str) -> bool:
    """Whether Redis' answer is a refusal; any other came from the command itself. `DEBUG` is off for everybody."""
    return "NOPERM" in reply or "DEBUG command not allowed" in reply


PUBLISHES: Mapping[str, frozenset[str]] = {
    "events": frozenset({"publisher", "operator"}),
    "notices": frozenset(SERVICES),
    "sessions": frozenset({*SERVICES, "operator"}),
    "work": frozenset({"session", "tools", "operator"}),
    "plans": frozenset({"planner"}),
    "dead": frozenset({*SERVICES, "operator"}),
    "archive": frozenset({"tools"}),
}
"""Exchange → who may publish to it (2-interface, RabbitMQ)."""
READS_EXCHANGE: Mapping[str, frozenset[str]] = {"notices": frozenset({"subscriber"})}
"""Exchange → who may bind a queue of their own to it."""
TAKES: Mapping[str, frozenset[str]] = {
    "events.in": frozenset({"ingress"}),
    "session": frozenset({"session"}),
    "planner": frozenset({"session", "planner"}),
    "consent": frozenset({"consent"}),
    "tools": frozenset({"tools"}),
    "ingress": frozenset({"ingress"}),
    "plans": frozenset({"session"}),
    "dead": frozenset({"operator"}),
    "archive": frozenset({"operator"}),
}
"""Queue → who may take messages from it; `session` stands for the queues of the partitions."""
OWN_QUEUE = "subscriber.matrix"
"""A queue as a subscriber declares one."""


def broker_cells(user: str, topology: Topology) -> Iterator[Cell]:
    """Everything that is tried as one user of RabbitMQ. Raises KeyError for what has no row."""
    prefix = topology.name("")
    for exchange in topology.exchanges():
        short = exchange.name.removeprefix(prefix)
        yield Cell(user, exchange.name, "publish", user in PUBLISHES[short])
        yield Cell(user, exchange.name, "bind own queue", user in READS_EXCHANGE.get(short, ()))
        for verb in ("declare exchange", "delete exchange"):
            yield Cell(user, exchange.name, verb, may=False)
    for queue in topology.queues():
        short = queue.name.removeprefix(prefix)
        takes = TAKES["session" if short.startswith("session.") else short]
        for verb in ("consume",) if short == "archive" else ("get", "consume"):  # a stream is only consumed
            yield Cell(user, queue.name, verb, user in takes)
        for verb in ("publish past the exchange", "bind", "declare", "delete"):
            yield Cell(user, queue.name, verb, may=False)
    yield Cell(user, OWN_QUEUE, "declare", user == "subscriber")
    yield Cell(user, OWN_QUEUE, "consume", user == "subscriber")
    yield Cell(user, "invented.queue", "declare", may=False)
    yield Cell(user, "invented.exchange", "declare exchange", may=False)


async def try_on_broker(connection: AbstractConnection, cell: Cell, topology: Topology) -> bool:
    """Whether the broker let it be. Each attempt has a channel of its own, since a refusal closes it."""
    channel = connection.channel(publisher_confirms=True, on_return_raises=False)
    try:
        await channel.initialize(timeout=10)
        await _do(channel, cell, topology)
    except ChannelAccessRefused:
        return False
    except (ChannelLockedResource, ChannelPreconditionFailed):
        return True  # asked after the rights: "get" at a single active consumer's queue, another type of exchange
    finally:
        await channel.close()
    return True


async def _ignore(_: AbstractIncomingMessage) -> None:
    """Leave it: the closing of the channel gives it back."""


async def _do(channel: AbstractChannel, cell: Cell, topology: Topology) -> None:
    match cell.verb:
        case "publish":
            exchange = await channel.get_exchange(cell.resource, ensure=False)
            await exchange.publish(aio_pika.Message(b"{}"), "matrix", mandatory=False, timeout=10)
        case "publish past the exchange":
            await channel.default_exchange.publish(aio_pika.Message(b"{}"), cell.resource, mandatory=False, timeout=10)
        case "get":
            queue = await channel.get_queue(cell.resource, ensure=False)
            await queue.get(no_ack=False, fail=False, timeout=10)
        case "consume":
            queue = await channel.get_queue(cell.resource, ensure=False)
            await queue.cancel(await queue.consume(_ignore, no_ack=False, timeout=10), timeout=10)
        case "declare":
            arguments = {q.name: dict(q.arguments) for q in topology.queues()}.get(cell.resource)
            durable = arguments is not None
            await channel.declare_queue(
                cell.resource, durable=durable, exclusive=False, arguments=arguments, timeout=10
            )
        case "delete":
            await channel.queue_delete(cell.resource, timeout=10)
        case "bind":
            queue = await channel.get_queue(cell.resource, ensure=False)
            await queue.bind(topology.notices, "#", timeout=10)
        case "bind own queue":
            queue = await channel.get_queue(OWN_QUEUE, ensure=False)
            await queue.bind(cell.resource, "matrix", timeout=10)
        case "declare exchange":
            await channel.declare_exchange(cell.resource, "topic", durable=True, timeout=10)
        case "delete exchange":
            await channel.exchange_delete(cell.resource, timeout=10)
        case _:
            raise AssertionError(cell.verb)


def printed(title: str, cells: Sequence[tuple[Cell, bool]]) -> str:
    """The matrix: a line for each resource and verb, a column for each user; `yes` and `-` as tried, `!` where it came
    out otherwise than it has to."""
    users = list(dict.fromkeys(cell.user for cell, _ in cells))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for cell, went in cells:
        mark = ("yes" if went else "-") + ("" if went == cell.may else " !")
        rows.setdefault((cell.resource, cell.verb), {})[cell.user] = mark
    width = max(len(f"{resource} {verb}") for resource, verb in rows)
    lines = [f"{title:<{width}} " + " ".join(f"{user:>10}" for user in users)]
    for (resource, verb), marks in rows.items():
        lines.append(f"{resource + ' ' + verb:<{width}} " + " ".join(f"{marks.get(user, ''):>10}" for user in users))
    wrong = sum(went != cell.may for cell, went in cells)
    allowed = sum(cell.may for cell, _ in cells)
    lines.append(
        f"{len(cells)} tried: {allowed} allowed, {len(cells) - allowed} refused, {wrong} otherwise than they have to be"
    )
    return "\n".join(lines)


def wrong_of(cells: Sequence[tuple[Cell, bool]]) -> list[str]:
    """What came out otherwise than it has to."""
    return [
        f"{cell.user} {'was let' if went else 'was refused to'} {cell.verb} {cell.resource}"
        for cell, went in cells
        if went != cell.may
    ]

"""What tests of consent share: an application, seals as ingress makes them, and consent's store on a real Redis."""

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from libs.contracts.application import Application, parse_application
from libs.contracts.canonical import digest
from libs.contracts.consent import IssueAction
from libs.contracts.envelope import Envelope, Message
from libs.contracts.ids import derive_id
from libs.contracts.keys import Keys
from libs.contracts.origin import Origin, Seal, SealKeys, make_seal
from libs.contracts.session import Step
from libs.contracts.topology import Topology
from libs.runtime.batch import Store
from libs.runtime.composer import Composer
from libs.runtime.connections import connect_redis
from libs.runtime.consumer import Context
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from services.consent.decisions import Decisions
from services.consent.domain import Rules
from services.consent.handlers import ConsentHandlers
from services.consent.main import emit_for
from services.consent.metrics import ConsentMetrics
from services.consent.store import RedisActions
from services.consent.sweeper import Sweeper

SEAL_KEYS = SealKeys.parse("k1:" + base64.b64encode(b"s" * 32).decode())
OTHER_KEYS = SealKeys.parse("k1:" + base64.b64encode(b"x" * 32).decode())
RESTAURANT = Origin(kind="webhook", source="restaurant", principal="restaurant", verified="standard-webhooks")
CINEMA = Origin(kind="webhook", source="cinema", principal="cinema", verified="standard-webhooks")
ANA = Origin(kind="user", source="app", principal="ana", verified="user-token")
BEN = Origin(kind="user", source="app", principal="ben", verified="user-token")
TABLE = Step(tool="reserve_table", args={"party": 12, "day": "Fri", "time": "20:30"})


def application(**session: Any) -> Application:
    """A small application; `session` overrides its `session` part."""
    connector = {"python": {"function": "somewhere:something"}}
    webhook = {"verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]}, "route": {"session": "{{ data.s }}"}}
    raw = {
        "sources": {"restaurant": webhook, "cinema": webhook, "app": {"verify": {"scheme": "user-token"}}},
        "planner": {"scripted": {"rules": "rules.yaml"}},
        "session": {"action_ttl": "10m", "caps": {"open_questions": 3, "steps": 4}, **session},
        "tools": {
            "reserve_table": {
                "ask": "book a table for {{ party }} on {{ day }} at {{ time }}",
                "units": {"party": "people"},
                "args": {
                    "type": "object",
                    "properties": {"party": {"type": "integer"}, "day": {"type": "string"}},
                    "required": ["party", "day", "time"],
                },
                "connector": connector,
            },
            "text": {"ask": 'text {{ to }} "{{ text }}"', "units": {"size": "MB"}, "connector": connector},
            "pay": {"connector": connector},
            "rent": {
                "standing": True,
                "args": {
                    "type": "object",
                    "properties": {"party": {"type": "integer"}, "day": {"type": "string"}},
                    "required": ["party", "day"],
                    "additionalProperties": False,
                },
                "connector": connector,
            },
            "buy": {"ask": "buy {{ of }}", "precondition": {"tool": "price"}, "connector": connector},
            "price": {"effect": "read", "connector": connector},
            "act_as": {"ask": "act as {{ who }}", "identity": {"who": "{{ owner }}"}, "connector": connector},
        },
    }
    return parse_application(raw, "test")


def seal(origin: Origin, session: str = "s1", *, number: int = 1, data: Any = None, keys: SealKeys = SEAL_KEYS) -> Seal:
    """A seal as ingress makes it."""
    return make_seal(
        keys,
        input_id=derive_id("input", session, number, origin.principal),
        session=session,
        number=number,
        origin=origin,
        digest=digest(data),
        accepted_at=1_000,
    )


def issue(
    action: str = "A1", *steps: Step, origin: Origin = RESTAURANT, session: str = "s1", **more: Any
) -> IssueAction:
    """A message that asks about `steps`, a table for twelve where none are given."""
    fields: dict[str, Any] = {"turn": "T1", "steps": steps or (TABLE,), "seals": (seal(origin, session),), **more}
    return IssueAction(action=action, **fields)


@dataclass
class FakeClock:
    """A clock that the test moves."""

    at: int

    def now_ms(self) -> int:
        return self.at


@dataclass
class RecordingOutbox:
    """The outbox of one service without a broker: what was posted is kept here, what was committed is in Redis."""

    keys_: Keys
    posted: list[Outgoing] = field(default_factory=list)

    def keys(self, session: str) -> list[str]:
        return list(self.keys_.outbox("consent", self.keys_.partition(session)))

    args = staticmethod(Outbox.args)

    def post(self, session: str, messages: Sequence[Outgoing]) -> None:
        self.posted.extend(messages)

    def types(self) -> list[str]:
        """Wire types of what was posted."""
        return [orjson.loads(message.body)["type"] for message in self.posted]

    def bodies(self, message: type[Message]) -> list[dict[str, Any]]:
        """Bodies of what was posted of one type."""
        envelopes = [orjson.loads(sent.body) for sent in self.posted]
        return [envelope["body"] for envelope in envelopes if envelope["type"] == message.wire_type()]


class World:
    """Consent on a real Redis, without broker and HTTP."""

    def __init__(self, store: Store, namespace: str, app: Application, now: int, **rules: Any) -> None:
        self.store = store
        self.redis = store.redis
        self.keys = Keys(namespace, 4)
        self.clock = FakeClock(now)
        self.outbox = RecordingOutbox(self.keys)
        self.registry = CollectorRegistry()
        self.metrics = ConsentMetrics(self.registry)
        self.rules = Rules(app, SEAL_KEYS, **rules)
        self.composer = Composer(Topology(namespace, 4), self.clock)
        self.actions = RedisActions(store, self.outbox, self.keys, self.clock, 1_000)  # type: ignore[arg-type]
        self.decisions = Decisions(self.actions, self.rules, self.metrics)
        self._nonces = (f"n{number}" for number in itertools.count())
        self.handlers = ConsentHandlers(self.actions, self.decisions, self.rules, self.metrics, self.nonce)
        self.sweeper = Sweeper(self.actions, self.metrics, self.emit_for, self.nonce)

    def nonce(self) -> str:
        return next(self._nonces)

    def emit_for(self, session: str, record: Any) -> Any:
        return emit_for(self.composer, session, record)

    async def own(self, session: str = "s1", owner: str = "ana") -> None:
        """Give a session its owner, as ingress does."""
        await self.redis.set(self.keys.of_session("owner", session), owner)

    async def append(self, session: str = "s1") -> int:
        """Another input takes the next number of the session's inbox."""
        return int(await self.redis.incr(self.keys.of_session("number", session)))

    def context(self, message: Message, session: str = "s1", id: str = "") -> Context:
        envelope = Envelope(
            id=id or derive_id(message.model_dump_json()),
            type=message.wire_type(),
            session=session,
            correlation="began",
            depth=2,
            trace="00-t-01",
            body=message.model_dump(),
        )
        return Context(envelope, self.clock.now_ms(), self.composer)

    async def ask(self, message: IssueAction, session: str = "s1") -> Any:
        """Handle an IssueAction."""
        return await self.handlers.on_issue_action(message, self.context(message, session))

    async def field(self, action: str, name: str, session: str = "s1") -> str:
        """One field of a stored action."""
        raw = await self.redis.hget(self.keys.of_session("action", session, action), name)
        return raw.decode() if raw is not None else ""

    async def inbox(self, session: str = "s1") -> dict[int, Any]:
        """The session's inbox: number → input."""
        rows = await self.redis.hgetall(self.keys.of_session("inbox", session))
        return {int(number): orjson.loads(packed) for number, packed in rows.items()}

    async def dump(self) -> dict[str, Any]:
        """Everything in this test's namespace, to see that a replay changes nothing."""
        found: dict[str, Any] = {}
        async for key in self.redis.scan_iter(match=f"tk:{self.keys.namespace}:*"):
            found[key.decode()] = await self._value(key)
        return found

    async def _value(self, key: bytes) -> Any:
        match await self.redis.type(key):
            case b"hash":
                return await self.redis.hgetall(key)
            case b"zset":
                return await self.redis.zrange(key, 0, -1, withscores=True)
            case b"list":
                return await self.redis.lrange(key, 0, -1)
            case _:
                return await self.redis.get(key)

    def count(self, metric: str, **labels: str) -> float:
        """A sample of a metric."""
        return self.registry.get_sample_value(f"turnkeeper_consent_{metric}", labels) or 0.0


@contextlib.asynccontextmanager
async def consent_world(
    redis_url: str, namespace: str, app: Application | None = None, **rules: Any
) -> AsyncIterator[World]:
    """A World whose clock stands at the store's time."""
    redis = connect_redis(redis_url, "test-consent")
    store = Store(redis)
    serving = asyncio.create_task(store.serve())
    seconds, micros = await redis.time()
    try:
        yield World(store, namespace, app or application(), int(seconds) * 1000 + int(micros) // 1000, **rules)
    finally:
        serving.cancel()
        await redis.aclose()

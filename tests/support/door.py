"""A door on a real Redis, with connectors of the test's own and an outbox that only keeps what was posted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from libs.contracts.application import Application, parse_application
from libs.contracts.canonical import digest
from libs.contracts.codec import MESSAGES
from libs.contracts.consent import World
from libs.contracts.envelope import Envelope, Message
from libs.contracts.ids import derive_id
from libs.contracts.keys import Keys
from libs.contracts.origin import Origin, Seal, SealKeys, make_seal
from libs.contracts.session import Step
from libs.contracts.standing import Grant, GrantRequest, grant_id
from libs.contracts.tools import LookedUp, LookUpOperation, RunStep, StepFinished, WithdrawOperation, action_key
from libs.contracts.topology import Topology
from libs.runtime.batch import Store
from libs.runtime.composer import Composer
from libs.runtime.connections import connect_redis
from libs.runtime.consumer import Context
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome as Settled
from services.consent.standing import RedisStanding
from services.tools.answers import Answers
from services.tools.conditions import Conditions
from services.tools.connectors.timer import TimerConnector
from services.tools.domain import Catalogue, Committed, Outcome
from services.tools.execution import Executor
from services.tools.faults import TrialFaults
from services.tools.handlers import ToolHandlers
from services.tools.lookups import Reconciler
from services.tools.metrics import ToolMetrics
from services.tools.pauses import Stops
from services.tools.ports import Call, Connector
from services.tools.standing import RedisGrants, UseSweeper
from services.tools.stops import RedisPauses
from services.tools.store import RedisLedger
from services.tools.sweeper import Sweeper

SEAL_KEYS = SealKeys((("k1", b"k" * 32),))
USER = Origin(kind="user", source="app", principal="ana", verified="user-token")
RESTAURANT = Origin(kind="webhook", source="restaurant", principal="restaurant", verified="standard-webhooks")
HOUR_MS = 3_600_000

_TOOLS: dict[str, Any] = {  # their timeouts are one second, their leases four
    "book": {
        "keyed": {"for": "24h"},
        "args": {"type": "object", "properties": {"party": {"type": "integer", "minimum": 1}}, "required": ["party"]},
        "registers": "reservation:{{ result.id }}",
    },
    "mail": {"args": {"type": "object"}},
    "look": {"effect": "read"},
    "wire": {"consent": "always"},
    "pay": {
        "args": {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]},
        "registers": "charge:{{ result.id }}",
        "lookup": {
            "tool": "find_charge",
            "args": {"key": "{{ key }}", "sum": "{{ sum }}"},
            "result": "{{ found.charges[0] }}",
            "stands": "{{ not found.charges[0].refunded }}",
        },
    },
    "order": {
        "keyed": {"for": "1h"},
        "args": {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]},
        "lookup": {"tool": "find_charge", "args": {"key": "{{ key }}"}, "result": "{{ found.charges[0] }}"},
    },
    "find_charge": {"effect": "read", "args": {"type": "object", "required": ["key"]}},
    "whisper": {"consent": "unless-user-alone"},
    "pin": {"consent": "never", "caused_by": ["user"]},
    "ring": {},
    "rent": {
        "standing": True,
        "args": {
            "type": "object",
            "properties": {"party": {"type": "integer"}, "day": {"type": "string"}, "note": {"type": "string"}},
            "required": ["party", "day"],
        },
    },
    "lend": {
        "standing": True,
        "caused_by": ["user"],
        "args": {"type": "object", "properties": {"party": {"type": "integer"}, "day": {"type": "string"}}},
    },
    "buy": {
        "precondition": {"tool": "price", "args": {"of": "{{ of }}"}, "digest": "{{ found.price }}"},
        "args": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
    },
    "price": {"effect": "read"},
    "sign": {"identity": {"by": "{{ origin.principal }}", "owner": "{{ owner }}"}},
}


def application(**caps: int) -> Application:
    """Tools of each kind; their connectors are replaced by the test's."""
    function = {"python": {"function": "builtins:dict", "timeout": "1s"}}
    return parse_application(
        {
            "sources": {
                "app": {"verify": {"scheme": "user-token"}},
                "restaurant": {
                    "verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]},
                    "route": {"session": "{{ data.session }}"},
                },
            },
            "principals": {"webhook:restaurant": ["ring"]},
            "tools": {name: {**tool, "connector": function} for name, tool in _TOOLS.items()},
            "planner": {"scripted": {"rules": "rules.yaml"}},
            "session": {"caps": caps},
        },
        "test",
    )


class TestClock:
    """A clock that the test moves."""

    __test__ = False

    def __init__(self, now: int) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


class Destination:
    """A connector that keeps its own ledger of what it was asked, and does what the test says."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.act: Callable[[Call], Awaitable[Outcome]] = self.commit

    async def run(self, call: Call) -> Outcome:
        self.calls.append(call)
        return await self.act(call)

    async def commit(self, call: Call) -> Outcome:
        return Committed({"id": f"rsv_{len(self.calls)}"})

    def always(self, outcome: Outcome) -> None:
        async def act(call: Call) -> Outcome:
            return outcome

        self.act = act


class KeptOutbox:
    """The real outbox's keys and arguments; what is posted is kept instead of sent."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.posted: list[Outgoing] = []

    def keys(self, session: str) -> list[str]:
        return list(self._keys.outbox("tools", self._keys.partition(session)))

    args = staticmethod(Outbox.args)

    def post(self, session: str, messages: Sequence[Outgoing]) -> None:
        self.posted += messages


@dataclass
class Door:
    """One replica of the door. `messages` decodes what it sent."""

    store: Store
    keys: Keys
    clock: TestClock
    ledger: RedisLedger
    handlers: ToolHandlers
    executor: Executor
    sweeper: Sweeper
    destination: Destination
    outbox: KeptOutbox
    registry: CollectorRegistry
    composer: Composer
    answers: Answers
    catalogue: Catalogue
    grants: RedisGrants
    uses: UseSweeper
    pauses: RedisPauses
    stops: Stops
    begun: set[asyncio.Task[Any]] = field(default_factory=set)

    async def send(
        self,
        message: RunStep | WithdrawOperation | LookUpOperation,
        *,
        session: str = "s1",
        call: str = "",
        epoch: int = 0,
    ) -> Settled:
        """Handle a message. `call` is its envelope's id; the same message has the same id unless told."""
        envelope = Envelope(
            id=call or derive_id("call", session, message.model_dump_json()),
            type=message.wire_type(),
            session=session,
            epoch=epoch,
            at=self.clock.now,
            body=message.model_dump(mode="json"),
        )
        ctx = Context(envelope, self.clock.now_ms(), self.composer)
        if isinstance(message, RunStep):
            return await self.handlers.on_run_step(message, ctx)
        if isinstance(message, LookUpOperation):
            return await self.handlers.on_look_up_operation(message, ctx)
        return await self.handlers.on_withdraw_operation(message, ctx)

    def messages(self) -> list[tuple[str, Message]]:
        """(id, message) of all that was sent, in order."""
        found = []
        for outgoing in self.outbox.posted:
            envelope = orjson.loads(outgoing.body)
            found.append((outgoing.id, MESSAGES[envelope["type"]].model_validate(envelope["body"])))
        return found

    def finished(self) -> list[StepFinished]:
        """The answers to the session, in order."""
        return [message for _, message in self.messages() if isinstance(message, StepFinished)]

    def looked_up(self) -> list[LookedUp]:
        """What the session was told of look-ups, in order."""
        return [message for _, message in self.messages() if isinstance(message, LookedUp)]

    def counted(self, tool: str, outcome: str) -> float:
        """The metric of one tool and outcome."""
        labels = {"tool": tool, "outcome": outcome}
        return self.registry.get_sample_value("turnkeeper_tools_operations_total", labels) or 0.0

    async def operation(self, key: str, session: str = "s1") -> dict[str, str]:
        """An operation as it is stored."""
        return await self.ledger.read(session, key)

    async def grant(
        self, tool: str = "rent", limits: dict[str, Any] | None = None, *, user: str = "ana", uses: int = 1,
        lasts: int = HOUR_MS, name: str = "k", **more: Any,
    ) -> str:  # fmt: skip
        """What a user grants in advance, as consent stores it; its id."""
        usual = {"party": {"maximum": 4}, "day": {"enum": ["Fri", "Sat"]}}
        wish = {"tool": tool, "limits": usual if limits is None else limits, "uses": uses, **more}
        request = GrantRequest.model_validate({**wish, "ends_at": self.clock.now + lasts})
        approvals = RedisStanding(self.store, self.keys, self.clock)
        id = grant_id(user, name)
        assert await approvals.grant(user, id, request, self.clock.now) == "granted"
        return id

    async def granted(self, id: str, user: str = "ana") -> Grant:
        """A standing approval with its uses."""
        found = await RedisStanding(self.store, self.keys, self.clock).one(user, id)
        assert found is not None
        return found

    async def revoke(self, id: str, user: str = "ana") -> None:
        """Take one back."""
        assert await RedisStanding(self.store, self.keys, self.clock).revoke(user, id)

    async def own(self, session: str = "s1", owner: str = "ana") -> None:
        """Name a session's owner, as ingress does."""
        await self.store.redis.set(self.keys.of_session("owner", session), owner)

    async def accept(
        self, action: str, steps: list[dict[str, Any]], *, lapses_at: int, session: str = "s1",
        worlds: Sequence[World | None] = (),
    ) -> Seal:  # fmt: skip
        """An accepted action's record, as consent leaves it; the seal of its decision."""
        decision = seal(session=session, name=f"decision-{action}", at=self.clock.now, kind="decision")
        await self.store.redis.hset(
            self.keys.of_session("action", session, action),
            mapping={
                "state": "accepted", "steps": orjson.dumps(steps), "approver": "ana", "input": decision.input,
                "lapses_at": lapses_at,
                "worlds": orjson.dumps([world.model_dump() if world else None for world in worlds]),
            },
        )  # fmt: skip
        return decision


@contextlib.asynccontextmanager
async def open_door(
    redis_url: str,
    namespace: str,
    *,
    replica: str = "0",
    incarnation: str = "i1",
    by_role: bool = False,
    trials: bool = False,
    **caps: int,
) -> AsyncIterator[Door]:  # fmt: skip
    """A door whose store runs in the background."""
    redis = connect_redis(redis_url, "test")
    store = Store(redis)
    serving = asyncio.create_task(store.serve())
    seconds, micros = await redis.time()
    clock = TestClock(seconds * 1000 + micros // 1000)
    keys = Keys(namespace, 4)
    registry = CollectorRegistry()
    catalogue = Catalogue.of(application(**caps))
    metrics = ToolMetrics(registry, catalogue.application.tools)
    outbox = KeptOutbox(keys)
    composer = Composer(Topology(namespace, 4), clock)
    ledger = RedisLedger(
        store, keys, outbox, replica=replica, incarnation=incarnation,  # type: ignore[arg-type]
        step_cap=catalogue.application.session.caps.steps,
    )  # fmt: skip
    answers, stops = Answers(composer, catalogue, SEAL_KEYS), Stops()
    destination = Destination()
    connectors: dict[str, Connector] = {
        name: destination if tool.connector.timer is None else TimerConnector(tool.connector.timer.verb, clock)
        for name, tool in catalogue.application.tools.items()
    }
    executor = Executor(
        catalogue, ledger, connectors, answers, metrics,
        clock=clock, namespace=namespace, lease_grace_ms=3000, store_back=store.wait_back, stops=stops,
        faults=TrialFaults(store, keys, catalogue) if trials else None,
    )  # fmt: skip
    reconciler = Reconciler(
        catalogue, ledger, connectors, answers, metrics, clock=clock, namespace=namespace, stops=stops
    )
    grants = RedisGrants(store, keys)
    conditions = Conditions(
        catalogue, ledger, grants, connectors, SEAL_KEYS, metrics, clock=clock, namespace=namespace, stops=stops
    )
    pauses = RedisPauses(store, keys, outbox, stops, replica=replica, incarnation=incarnation)  # type: ignore[arg-type]
    handlers = ToolHandlers(
        catalogue,
        ledger,
        executor,
        answers,
        reconciler,
        metrics,
        SEAL_KEYS,
        conditions,
        everybody_is_user=by_role,
        parking=pauses,
    )
    sweeper = Sweeper(ledger, executor, reconciler, metrics, clock)
    try:
        yield Door(
            store, keys, clock, ledger, handlers, executor, sweeper, destination, outbox, registry, composer, answers,
            catalogue, grants, UseSweeper(grants, ledger, metrics, clock), pauses, stops,
        )  # fmt: skip
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await redis.aclose()


def seal(
    *,
    session: str = "s1",
    name: str = "in1",
    origin: Origin = USER,
    at: int,
    number: int = 1,
    keys: SealKeys = SEAL_KEYS,
    kind: str = "message",
) -> Seal:
    """The seal of one input."""
    return make_seal(
        keys, input_id=name, session=session, number=number, origin=origin, digest=digest(None), accepted_at=at,
        kind=kind,
    )  # fmt: skip


def step(
    tool: str = "book",
    args: dict[str, Any] | None = None,
    *,
    now: int,
    key: str = "key1",
    operation: str = "O1",
    root: str = "T1",
    turn: str = "T1",
    seals: Sequence[Seal] | None = None,
    not_after: int | None = None,
    action: str = "",
    number: int = 0,
    offer: bool = False,
    then: Sequence[Step] = (),
) -> RunStep:
    """A call of one step. With an action its key is the step's, unless another is given."""
    return RunStep(
        operation=operation,
        key=action_key(action, number) if action and key == "key1" else key,
        turn=turn,
        root=root,
        tool=tool,
        args={"party": 4} if args is None else args,
        action=action,
        step=number,
        seals=tuple([seal(at=now)] if seals is None else seals),
        not_after=now + 24 * HOUR_MS if not_after is None else not_after,
        offer=offer,
        then=tuple(then),
    )

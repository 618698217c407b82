"""What tests of the session service share: an application, sealed inputs, and a session driven by `decide` alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from libs.contracts.application import Application, parse_application
from libs.contracts.canonical import digest
from libs.contracts.consent import ActionAsked, IssueAction
from libs.contracts.envelope import Envelope, Message
from libs.contracts.errors import LostOwnership
from libs.contracts.ids import derive_id
from libs.contracts.ingress import Input, InputAccepted
from libs.contracts.origin import Origin, SealKeys, make_seal
from libs.contracts.reasons import EventOutcome
from libs.contracts.session import Notice, PlanMade, PlanRequested, Step, TimelineLine
from libs.contracts.tools import RunStep, StepFinished, WithdrawOperation
from libs.contracts.topology import Topology
from libs.runtime.composer import Composer
from libs.runtime.consumer import Context
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome
from services.session.domain import Answered, Arrived, DeadlineReached, Planned, Queued, Shown, Stimulus, decide
from services.session.domain.draft import Decision, Send, WantInput, WantPlan
from services.session.domain.plan import Plan, View
from services.session.domain.rules import Rules
from services.session.domain.state import InputRef, SessionState, Turn
from services.session.handlers import Handlers
from services.session.metrics import SessionMetrics
from services.session.snapshot import Snapshot

SEAL_KEYS = SealKeys((("k1", b"s" * 32),))
ANA = Origin(kind="user", source="app", principal="ana", verified="user-token")
RESTAURANT = Origin(kind="webhook", source="restaurant", principal="restaurant", verified="standard-webhooks")
CINEMA = Origin(kind="webhook", source="cinema", principal="cinema", verified="hmac")
NOW = 1_800_000_000_000
WAIT_MS = 900_000

BOOK = Step(tool="book", args={"party": 4})
MAIL = Step(tool="mail", args={"text": "hi"})
LOOK = Step(tool="look", args={})
RENT = Step(tool="rent", args={})
SEAT = Step(tool="seat", args={"party": 4})
BUY = Step(tool="buy", args={"of": "wine"})
WIRE = Step(tool="wire", args={"sum": "10.00"})


RULES = {"scripted": {"rules": "rules.yaml"}}
SLOW = {"amqp": {}}


def application(planner: Any = RULES, in_flight: Sequence[Any] = (), **caps: int) -> Application:
    """Tools of each gate; two webhooks and an app. `book` is undone by `unbook`, `rent` can be looked up."""
    connector = {"python": {"function": "builtins:dict"}}
    webhook = {"verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]}, "route": {"session": "{{ data.s }}"}}
    return parse_application(
        {
            "sources": {
                "restaurant": {
                    **webhook,
                    "types": {"table.gone": {"gone": True, "subject": "reservation:{{ data.id }}"}},
                },
                "cinema": webhook,
                "app": {"verify": {"scheme": "user-token"}},
            },
            "tools": {
                "book": {
                    "registers": "reservation:{{ result.id }}",
                    "compensate": {"tool": "unbook", "args": {"id": "{{ result.id }}"}},
                    "connector": connector,
                },
                "unbook": {"connector": connector},
                "rent": {
                    "lookup": {"tool": "look"},
                    "compensate": {"tool": "wire", "args": {"sum": "{{ result.sum }}"}},
                    "connector": connector,
                },
                "mail": {"connector": connector},
                "look": {"effect": "read", "connector": connector},
                "wire": {"consent": "always", "connector": connector},
                "seat": {"standing": True, "connector": connector},
                "price": {"effect": "read", "connector": connector},
                "buy": {"precondition": {"tool": "price"}, "connector": connector},
            },
            "planner": planner,
            "session": {"caps": caps, "in_flight": list(in_flight)},
        },
        "test",
    )


def make_rules(*labs: str, planner: Any = RULES, in_flight: Sequence[Any] = (), **caps: int) -> Rules:
    """Rules in which `book` wants a party of at least one."""
    return Rules(
        application=application(planner, in_flight, **caps),
        check_arguments=lambda tool, args: ["party: too small"] if tool == "book" and args.get("party", 1) < 1 else [],
        operation_wait_ms=WAIT_MS,
        not_after_ms=86_400_000,
        labs=frozenset(labs),
    )


def make_input(number: int, kind: Any, origin: Origin, data: Any, **fields: Any) -> Input:
    """A sealed input as ingress or consent appends it."""
    event = fields.pop("event", f"e{number}")
    id = derive_id("event", origin.source, event)
    session = fields.pop("session", "s1")
    seal = make_seal(
        SEAL_KEYS, input_id=id, session=session, number=number, origin=origin, digest=digest(data), accepted_at=NOW
    )
    return Input(
        id=id, kind=kind, session=session, number=number, source=origin.source, event=event, data=data, origin=origin,
        seal=seal, accepted_at=NOW, **fields,
    )  # fmt: skip


Planner = Callable[[Turn, Input | None], Plan]
Relate = Callable[[Turn, Input], Plan]


def independent(_: Turn, __: Input) -> Plan:
    """A planner to whom nothing has to do with the running turn."""
    return Plan(relation="independent")


def silent(_: Turn, __: Input | None) -> Plan:
    """A planner that answers nothing."""
    return Plan()


def one_plan(plan: Plan, after: Plan | None = None) -> Planner:
    """Answers a new input with `plan`, and a turn with results with `after` (nothing unless given)."""
    return lambda turn, _: (after or Plan()) if turn.results or turn.action else plan


@dataclass
class Talk:
    """One session without store and broker: what `decide` said, in order, and what it wants answered at once."""

    planner: Planner = silent
    rules: Rules = field(default_factory=make_rules)
    state: SessionState = field(default_factory=lambda: SessionState(session="s1"))
    now: int = NOW
    lines: list[TimelineLine] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    outcomes: list[tuple[InputRef, EventOutcome]] = field(default_factory=list)
    trimmed: list[int] = field(default_factory=list)
    inputs: dict[int, Input] = field(default_factory=dict)
    planned: list[Turn] = field(default_factory=list)
    questions_about: list[tuple[Turn, Input]] = field(default_factory=list)
    relate: Relate = independent
    limits: list[str] = field(default_factory=list)

    def give(self, stimulus: Stimulus) -> Decision:
        """Decide and answer what the decision wants, as the handlers do; everything is kept."""
        if isinstance(stimulus, Arrived):
            self.inputs[stimulus.input.number] = stimulus.input
        decision = decide(self.state, stimulus, self.now, self.rules, "cause")
        while (want := decision.want) is not None:
            later = decide(decision.state, self._answer(decision, want), self.now, self.rules, "cause")
            decision = replace(decision, want=None).then(later)
        self.state = decision.state
        self.lines += decision.lines
        self.history += decision.history
        self.sends += decision.sends
        self.outcomes += decision.outcomes
        self.trimmed += decision.trimmed
        self.limits += decision.limits
        return decision

    def _answer(self, decision: Decision, want: WantInput | WantPlan) -> Stimulus:
        body = self.inputs.get(want.number)
        if isinstance(want, WantInput):
            assert body is not None
            return Queued(body)
        assert decision.state.turn is not None
        turn = decision.state.turn
        if isinstance(want, WantPlan) and want.about:
            about = self.inputs[want.about]
            self.questions_about.append((turn, about))
            return Shown({}, want.about) if self.rules.slow_planner else self._related(turn, about)
        self.planned.append(turn)
        return Shown({}) if self.rules.slow_planner else Planned(self.planner(turn, body))

    def _related(self, turn: Turn, about: Input) -> Planned:
        return Planned(self.relate(turn, about), about)

    def arrive(self, kind: Any, origin: Origin, data: Any = None, **fields: Any) -> Input:
        """The next input arrives."""
        made = make_input(self.state.applied + 1, kind, origin, data, **fields)
        self.give(Arrived(made))
        return made

    def say(self, text: str, **fields: Any) -> Input:
        """The owner writes."""
        return self.arrive("message", ANA, {"text": text}, **fields)

    def event(self, data: Any = None, origin: Origin = RESTAURANT, **fields: Any) -> Input:
        """A webhook calls."""
        return self.arrive("event", origin, data, **fields)

    def decision(self, verdict: str = "accept", action: str = "A1") -> Input:
        """Consent appended the owner's decision."""
        return self.arrive("decision", ANA, {"action": action, "decision": verdict}, event=f"{action}:{verdict}")

    def asked(self, action: str = "A1") -> Decision:
        """Consent opened the question."""
        question = f"{action}: book?"
        return self.give(
            ActionAsked(action=action, question=question, question_digest="d", approver="ana", expires_at=NOW + 1)
        )

    def finish(self, state: Any = "committed", operation: str = "", **fields: Any) -> Decision:
        """The door answers for the newest operation unless another is named."""
        run = next(r for r in reversed(self.sent(RunStep)) if not operation or r.operation == operation)
        return self.give(StepFinished(operation=run.operation, key=run.key, state=state, **fields))

    def requested(self) -> list[PlanRequested]:
        """What went to a planner off the partition."""
        return self.sent(PlanRequested)

    def plan(self, plan: Plan, request: PlanRequested | None = None, /, **fields: Any) -> Decision:
        """The planner off the partition answers its newest request unless another is given."""
        asked = request or self.requested()[-1]
        about = next((wanted.about for wanted in self.state.wanted if wanted.plan == asked.plan), 0)
        made = {"turn": asked.turn, "plan": asked.plan, "token": asked.token, "steps": plan.steps, "reply": plan.reply}
        made |= {"fault": plan.fault, "relation": plan.relation, **fields}
        return self.give(Answered(PlanMade(**made), self.inputs.get(about)))

    def texts(self, kind: str) -> list[str]:
        """Texts of the timeline's lines of one kind."""
        return [line.text for line in self.lines if line.kind == kind]

    def wait(self, milliseconds: int) -> Decision:
        """Time passes, and the session's deadlines are looked at."""
        self.now += milliseconds
        return self.give(DeadlineReached())

    def sent(self, kind: type[Any]) -> list[Any]:
        """Messages of one type, in order."""
        return [send.message for send in self.sends if isinstance(send.message, kind)]

    def runs(self) -> list[tuple[str, dict[str, Any]]]:
        """Tool and arguments of what went to the door."""
        return [(run.tool, run.args) for run in self.sent(RunStep)]

    def questions(self) -> list[IssueAction]:
        """What went to consent."""
        return self.sent(IssueAction)

    def withdrawn(self) -> list[WithdrawOperation]:
        """What the door was told to withdraw."""
        return self.sent(WithdrawOperation)

    def replies(self) -> list[str]:
        """What the user was told."""
        return [notice.text for notice in self.sent(Notice) if notice.topic == "reply"]

    def kinds(self) -> list[str]:
        """Kinds of the timeline's lines."""
        return [line.kind for line in self.lines]

    def messages(self) -> list[Message]:
        """Everything that was sent."""
        return [send.message for send in self.sends]

    def became(self) -> list[tuple[int, str]]:
        """(number, outcome) of each input that ended."""
        return [(ref.number, outcome) for ref, outcome in self.outcomes]


@dataclass
class Stored:
    """What the store would hold of all sessions: the fact behind every owner's cache."""

    states: dict[str, tuple[int, str, list[dict[str, Any]]]] = field(default_factory=dict)
    inbox: dict[str, dict[int, Input]] = field(default_factory=dict)
    outcomes: list[tuple[str, int, str]] = field(default_factory=list)
    lines: dict[str, list[TimelineLine]] = field(default_factory=dict)
    outbox: list[Outgoing] = field(default_factory=list)
    trimmed: set[tuple[str, int]] = field(default_factory=set)

    def append(self, kind: Any, origin: Origin, data: Any, **fields: Any) -> Input:
        """The next input of a session, as ingress and consent append it."""
        box = self.inbox.setdefault(fields.get("session", "s1"), {})
        number = max(box, default=0) + 1
        box[number] = make_input(number, kind, origin, data, **fields)
        return box[number]

    def messages(self, kind: type[Any]) -> list[Any]:
        """Committed messages of one type, in order."""
        found = [orjson.loads(outgoing.body) for outgoing in self.outbox]
        return [kind.model_validate(raw["body"]) for raw in found if raw["type"] == kind.wire_type()]


class FakeSessions:
    """The port `Sessions` of one owner in memory. Trimmed inputs can be read no more, but the test still sees them."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.trimmed = stored.trimmed
        self._cache: dict[str, Snapshot] = {}

    async def load(self, session: str) -> Snapshot:
        if session not in self._cache:
            version, state, history = self.stored.states.get(session, (0, "", []))
            read = SessionState.model_validate_json(state) if state else SessionState(session=session)
            self._cache[session] = Snapshot(read, version, list(history))
        return self._cache[session]

    async def inputs(self, session: str, first: int, last: int) -> list[Input]:
        box = self.stored.inbox.get(session, {})
        return [box[n] for n in range(first, last + 1) if n in box and (session, n) not in self.trimmed]

    async def commit(self, snapshot: Snapshot, decision: Decision, messages: Sequence[Outgoing]) -> None:
        await self.confirm(snapshot)
        session = snapshot.state.session
        snapshot.history.extend(decision.history)
        snapshot.state, snapshot.version = decision.state, snapshot.version + 1
        packed = decision.state.model_dump_json(exclude_defaults=True)
        self.stored.states[session] = (snapshot.version, packed, list(snapshot.history))
        self.stored.outcomes += [(session, ref.number, became) for ref, became in decision.outcomes]
        self.stored.lines.setdefault(session, []).extend(decision.lines)
        self.stored.outbox += messages
        self.trimmed.update((session, number) for number in decision.trimmed)
        for number in decision.trimmed:
            snapshot.bodies.pop(number, None)

    async def confirm(self, snapshot: Snapshot) -> None:
        if self.stored.states.get(snapshot.state.session, (0,))[0] != snapshot.version:
            self.drop(snapshot.state.session)
            raise LostOwnership(snapshot.state.session)

    def drop(self, session: str) -> None:
        self._cache.pop(session, None)

    def cached(self) -> list[str]:
        """Sessions that are kept in memory."""
        return list(self._cache)


class FakeClock:
    """A clock that the test moves."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


class ViewPlanner:
    """Answers from a function of the view."""

    def __init__(self, answer: Callable[[View], Plan]) -> None:
        self.answer = answer
        self.views: list[View] = []

    async def plan(self, view: View) -> Plan:
        self.views.append(view)
        return self.answer(view)


@dataclass
class Owner:
    """One replica of the session service: its handlers on a cache of its own."""

    stored: Stored
    clock: FakeClock
    planner: ViewPlanner
    rules: Rules = field(default_factory=make_rules)

    def __post_init__(self) -> None:
        self.sessions = FakeSessions(self.stored)
        self.registry = CollectorRegistry()
        self.composer = Composer(Topology("", 4), self.clock)
        metrics = SessionMetrics(self.registry)
        self.handlers = Handlers(self.sessions, self.planner, self.rules, self.composer, self.clock, metrics)

    def context(self, message: Message, session: str = "s1") -> Context:
        """The context of a message whose id says what it is."""
        id = derive_id(message.model_dump_json())
        envelope = Envelope(id=id, type=message.wire_type(), session=session, correlation="root", depth=1, body={})
        return Context(envelope, self.clock.now_ms(), self.composer)

    async def ring(self, input: Input) -> Outcome:
        """A doorbell."""
        message = InputAccepted(input=input)
        return await self.handlers.on_input(message, self.context(message, input.session))

    async def planned(self, message: PlanMade, session: str = "s1") -> Outcome:
        """The plan of a planner off the partition."""
        return await self.handlers.on_plan_made(message, self.context(message, session))

    def ignored(self, reason: str) -> float:
        """How many plans were counted as ignored for this reason."""
        return self.registry.get_sample_value("turnkeeper_session_plans_ignored_total", {"reason": reason}) or 0

    async def finished(self, run: RunStep, state: Any, result: Any = None) -> Outcome:
        """The door answers a call."""
        return await self.tell(StepFinished(operation=run.operation, key=run.key, state=state, result=result))

    async def tell(self, message: Any, session: str = "s1") -> Outcome:
        """A result of the door, or news of consent."""
        return await self.handlers.on_told(message, self.context(message, session))

    async def bury(self, input: Input, reason: str = "attempts_spent") -> bool:
        """The runtime gave up on a doorbell."""
        message = InputAccepted(input=input)
        return await self.handlers.on_dead(message, self.context(message, input.session), reason)

    async def state(self, session: str = "s1") -> SessionState:
        """The session's state as this owner sees it."""
        return (await self.sessions.load(session)).state

"""Sessions under duplicates, reordering, two owners, crashes and answers in any order, against what must always hold.

Two owners with caches of their own work on one store in memory. Doorbells ring late, early and again; the door and a
planner off the partition answer whenever and again; consent decides; cancels, deadlines and crashes before and after a
commit come in between. The model is naive: it looks only at the inputs that were given and at what was committed.

Destinations are asked and answer, subjects are registered with their early events held, timers are set, fired,
skipped and stopped: consent, the door, ingress and the planner are played here, and may repeat themselves.

Each example but the first ones has an aim, a state of the turn in which it lingers so that everything arrives there:
each row of the in-flight table meets each state at least `OFTEN` times, each kind of input that `decide` takes is
driven at least `FEW` times, and the counts are printed with the seed. The states are shared out over two
files, which run beside each other.
"""

import os
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

import orjson
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as replay
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from libs.contracts.application import Application
from libs.contracts.consent import (
    ActionAsked,
    ActionClosed,
    ActionNotAsked,
    DecideByText,
    DecisionRefused,
    IssueAction,
    SupersedeActions,
)
from libs.contracts.errors import LostOwnership
from libs.contracts.ingress import InputKind, StopTimer, TimerSkipped
from libs.contracts.origin import Origin
from libs.contracts.reasons import DecisionOutcome, OperationState, TimerSkip
from libs.contracts.session import PlanMade, PlanRequested, Step
from libs.contracts.tools import LookedUp, LookUpOperation, RunStep, StepFinished
from services.session.domain import Answered, Arrived, Planned, Shown, Stimulus, decide
from services.session.domain.plan import Plan, view_json
from services.session.domain.state import SessionState
from services.session.store import HISTORY_KEPT
from tests.property.session_model import SAYS, Model
from tests.support.session import (
    ANA,
    BOOK,
    CINEMA,
    LOOK,
    MAIL,
    NOW,
    RESTAURANT,
    RULES,
    SLOW,
    WAIT_MS,
    WIRE,
    FakeClock,
    FakeSessions,
    Owner,
    Stored,
    ViewPlanner,
    make_rules,
)

EXAMPLES, STEPS_EACH, OFTEN, FEW, MORE, ENOUGH = 30, 50, 100, 5, 15, 5_000
STEPS = {"book": BOOK, "mail": MAIL, "look": LOOK, "wire": WIRE}
FREE = {"look"}
ALWAYS_ASKED = {"wire"}
ANSWERS = [state for state in get_args(OperationState) if state != "pending"]
"""What the door may say: `pending` is stored, and never an answer."""
DOOR_STATES = ["committed"] * 8 + ANSWERS + ANSWERS + ["failed", "unknown"]
FILM = "film:dune"
FOUND = ["stands", "gone", "unknown"]
WISHES = [["book", "mail"], [f"daily:{FILM}", "book"], [f"remind:{FILM}", "book"]]
WRONG: list[dict[str, Any]] = [
    {},
    {},
    {},
    {},
    {"token": "guessed"},
    {"fault": "no JSON"},
    {"steps": (Step(tool="none", args={}),)},
]
RELATIONS = ["adds", "independent", "revises", "unclear"]
STATES = ["planning", "waiting", "paused", "resuming", "revising", "cancelling"]
ROWS = ["another origin", *RELATIONS, "answer", "decision", "cancel", "notice"]
"""Of the in-flight table. In a paused turn the owner's message is the answer, whatever else it would be; in any other
state one that was meant as the answer has come too early or too late, and is a message as any."""
FOLLOWED = (RunStep, PlanRequested, IssueAction, SupersedeActions, DecideByText, LookUpOperation, StopTimer)
ENDS = ("turn.done", "turn.failed", "turn.cancelled", "turn.ask", "turn.restarted")
TABLES: list[list[dict[str, str]]] = [
    [],
    [{"adds": "restart"}],
    [{"adds": "queue", "revises": "queue", "unclear": "queue"}],
    [{"adds": "reject", "independent": "reject", "revises": "reject", "unclear": "reject"}],
    [{"source": "restaurant", "adds": "reject"}, {"adds": "restart", "independent": "reject"}],
]
TYPES = {name: {**says, **({"sequence": "{{ data.seq }}"} if "subject" in says else {})} for name, says in SAYS.items()}


def with_meanings(application: Application) -> Application:
    """Events of both webhooks mean something, and a booking can be looked up."""
    raw = application.model_dump(by_alias=True, exclude_defaults=True)
    for source in ("restaurant", "cinema"):
        raw["sources"][source]["types"] = TYPES
    raw["tools"]["book"]["lookup"] = {"tool": "look"}
    raw["tools"] = {name: tool for name, tool in raw["tools"].items() if not name.endswith("_timer")}
    return Application.model_validate(raw)


APPLICATION = with_meanings(make_rules().application)


def kind_of(stimulus: Any) -> str:
    """What kind of input this is, as `kinds_of_the_code` lists them."""
    name = type(stimulus).__name__
    match stimulus:
        case Arrived(input):
            return f"{name} {input.kind}"
        case Planned(_, about) | Answered(_, about) | Shown(_, about):
            return f"{name} {'about an input' if about else 'of the turn'}"
    closed = closed_field(type(stimulus))
    return f"{name} {getattr(stimulus, closed)}".strip() if closed else name


def closed_field(kind: type[Any]) -> str:
    """The field of a message whose few values are each a kind of their own, or ""."""
    if kind is TimerSkipped:
        return "reason"
    fields = getattr(kind, "model_fields", {})
    return next((name for name, field in fields.items() if get_origin(field.annotation) is Literal), "")


def kinds_of_the_code() -> set[str]:
    """Every kind of input that `decide` takes, read from its signature and the contracts: a new one is missed here."""
    kinds: set[str] = set()
    for kind in get_args(Stimulus):
        name, closed = kind.__name__, closed_field(kind)
        if kind is Arrived:
            kinds |= {f"{name} {value}" for value in get_args(InputKind)}
        elif kind in (Planned, Answered, Shown):
            kinds |= {f"{name} about an input", f"{name} of the turn"}
        elif kind is TimerSkipped:
            kinds |= {f"{name} {value}" for value in get_args(TimerSkip)}
        elif closed:
            kinds |= {f"{name} {value}".strip() for value in get_args(kind.model_fields[closed].annotation)}
        else:
            kinds.add(name)
    return kinds - {"StepFinished pending"}


PHASES = (Phase.generate, Phase.shrink) if os.environ.get("SEED") else (Phase.generate,)
"""A failure is made small only when it is replayed: that may take minutes."""
plans = st.lists(
    st.sampled_from(["book", "mail", "look", "wire", "book", f"remind:{FILM}", f"daily:{FILM}"]), max_size=2
)


class Cut(Exception):
    """The process died."""


class Mortal(FakeSessions):
    """Dies at its next commit when told to, before or after all is stored. Keeps as much history as the store."""

    cut = ""
    latest: list[SessionState]
    commits: list[Any]

    async def commit(self, snapshot: Any, decision: Any, messages: Any) -> None:
        cut, self.cut = self.cut, ""
        if cut == "before":
            raise Cut
        before = snapshot.state
        await super().commit(snapshot, decision, messages)
        self.commits.append((before, decision))
        del snapshot.history[:-HISTORY_KEPT]
        self.latest[:] = [decision.state]
        if cut == "after":
            raise Cut


def planned(view: dict[str, Any]) -> Plan:
    """The plan that the inputs' data say; after every other accepted action one more step; what failed is tried anew
    now and then; then nothing."""
    data = view["input"]["data"] or {}
    if view["running"]:
        said = (view["answer"] or {}).get("data") or data
        return Plan(relation=said.get("relation", ""), steps=steps_of(data) if said.get("relation") == "adds" else ())
    if view["action"]:
        again = not view["failing"] and int(view["turn"][1:]) % 2 == 0
        return Plan(steps=(MAIL,)) if again else Plan(reply="done")
    if view["results"]:
        return Plan(steps=tried_anew(view)) if view["failing"] else Plan(reply="done")
    steps = steps_of(data)
    for added in view["added"]:
        wish = steps_of(added["data"] or {})
        steps = wish if added["relation"] == "revises" else (*steps, *wish)
    return Plan(steps=steps)


def tried_anew(view: dict[str, Any]) -> tuple[Any, ...]:
    """The last step where it failed before it was sent, twice at most, and what the plan had after it is left out."""
    last, tries = view["results"][-1], sum(result["state"] == "failed" for result in view["results"])
    again = last["state"] == "failed" and last["tool"] in STEPS and tries <= 2
    return (STEPS[last["tool"]],) if again else ()


def steps_of(data: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(step_of(name) for name in data.get("plan", []))


def step_of(name: str) -> Step:
    """A step by its name, or `remind:SUBJECT`, `daily:SUBJECT`, `cancel:TIMER`, or one that there is no tool for."""
    verb, _, about = name.partition(":")
    match verb:
        case "remind":
            return Step(tool="set_timer", args={"text": "go", "subject": about})
        case "daily":
            return Step(tool="set_timer", args={"text": "go", "subject": about, "rule": "FREQ=DAILY"})
        case "cancel":
            return Step(tool="cancel_timer", args={"timer": about})
    return STEPS.get(name, Step(tool=name, args={}))


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits: the store is in memory."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("something waited")


class Sessions(RuleBasedStateMachine):
    """Everything that may happen to one session."""

    aim = ""
    met: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()
    steps_taken = 0

    @initialize(
        slow=st.sampled_from([True, False, False]),
        table=st.sampled_from(TABLES),
        by_webhook=st.booleans(),
        wish=st.sampled_from(WISHES),
    )
    def a_session_begins(self, slow, table, by_webhook, wish):
        self.by_webhook, self.wish = (by_webhook and self.aim != "") or self.aim == "paused", wish
        slow = slow or self.aim in ("planning", "resuming")
        self.lingered = 0
        self.latest = [SessionState(session="s1")]
        self.stored, self.clock = Stored(), FakeClock()
        self.planner = ViewPlanner(lambda view: planned(view_json(replace(view, history=()), APPLICATION)))
        if self.aim in ("paused", "resuming", "revising"):  # where nothing is asked or revised, no turn gets there
            table = [rule for rule in table if "unclear" not in rule and "revises" not in rule]
        rules = make_rules(planner=SLOW if slow else RULES, in_flight=table)
        rules = replace(rules, application=with_meanings(rules.application))
        self.model, self.commits = Model(), []
        self.owners = [Owner(self.stored, self.clock, self.planner, rules) for _ in range(2)]
        for owner in self.owners:
            owner.sessions = owner.handlers._sessions = Mortal(self.stored)
            owner.sessions.latest, owner.sessions.commits = self.latest, self.commits
        self.bells: list[Any] = []
        self.decided: dict[str, str] = {}
        self.closed: set[str] = set()
        self.answered: dict[str, str] = {}
        self.sent: list[Any] = []
        self.read, self.seen_lines = 0, 0
        self.running, self.begun = "", []
        self.roots: dict[str, str] = {}
        self.keys: dict[str, list[Any]] = {}
        self.sequence: Counter[str] = Counter()
        self.held: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = []
        self.timers: dict[str, dict[str, Any]] = {}
        self.set: set[str] = set()
        self.refused: dict[str, Any] = {"instant": 0, "repeats": True}

    # -- what others do

    @rule(relation=st.sampled_from(RELATIONS), plan=plans, owner=st.integers(0, 1), now=st.booleans())
    def the_owner_writes(self, relation, plan, owner, now):
        self.arrives("message", ANA, {"relation": relation, "plan": plan}, owner if now else None)

    @rule(
        relation=st.sampled_from(RELATIONS),
        plan=plans,
        source=st.sampled_from([RESTAURANT, CINEMA]),
        depth=st.sampled_from([0, 0, 0, 6]),
        owner=st.integers(0, 1),
        now=st.booleans(),
    )
    def a_webhook_calls(self, relation, plan, source, depth, owner, now):
        data = {"relation": relation, "plan": plan}
        self.arrives("event", source, data, owner if now else None, depth=depth)

    @rule(rows=st.lists(st.sampled_from(ROWS), min_size=3, max_size=7), plan=plans, owner=st.integers(0, 1))
    def everything_arrives_in_the_state_of_the_aim(self, rows, plan, owner):
        """Rows alike often, each once the turn is there."""
        for bell in list(self.box().values())[self.state().applied :]:
            self.ring(bell, owner)
        for row in rows:
            self.reach(owner)
            turn = self.state().turn
            if turn is not None:
                self.arrives_as(row, turn, plan, owner)

    def arrives_as(self, row, turn, plan, owner):
        if row == "cancel":
            self.arrives("cancel", ANA, {}, owner)
        elif row == "decision" and self.undecided():
            self.decide(self.undecided()[0], "accept" if plan else "decline", owner)
        elif row == "decision":
            self.arrives("decision", ANA, {"action": "A0", "decision": "accept"}, owner)
        elif row == "notice":
            self.event_about(self.an_operation() or FILM, "table.news", CINEMA, owner, 1)
        elif row == "answer":
            self.arrives("message", ANA, {"answer": True, "relation": "adds", "plan": plan}, owner)
        elif row == "another origin":
            other = CINEMA if turn.origin.kind == "user" or turn.status == "paused" else ANA
            self.arrives("event" if other is CINEMA else "message", other, {"plan": plan}, owner)
        else:
            kind = "message" if turn.origin.kind == "user" else "event"
            self.arrives(kind, turn.origin, {"relation": row, "plan": plan}, owner)

    @rule(data=st.data(), verdict=st.sampled_from(["accept", "accept", "accept", "decline"]), owner=st.integers(0, 1))
    @precondition(lambda self: self.undecided())
    def the_owner_decides(self, data, verdict, owner):
        self.decide(data.draw(st.sampled_from(self.undecided())), verdict, owner)

    @rule(data=st.data(), owner=st.integers(0, 1), state=st.sampled_from(["expired", "superseded", "cancelled"]))
    @precondition(lambda self: self.undecided())
    def a_question_closes_by_itself(self, data, owner, state):
        action = data.draw(st.sampled_from(self.undecided()))
        self.closed.add(action)
        self.told(owner, ActionClosed(action=action, state=state))

    @rule(
        type=st.sampled_from(sorted(SAYS)),
        film=st.booleans(),
        source=st.sampled_from([RESTAURANT, CINEMA]),
        ahead=st.sampled_from([-2, 0, 1, 1, 1, 3]),
        relation=st.sampled_from(RELATIONS),
        plan=plans,
        owner=st.integers(0, 1),
        now=st.booleans(),
        found=st.sampled_from(["", *FOUND]),
    )
    def something_is_said_of_a_subject(self, type, film, source, ahead, relation, plan, owner, now, found):
        """In order, again, late or ahead; also of a booking whose result nobody has heard yet."""
        about = FILM if film else self.an_operation() or FILM
        data = {"relation": relation, "plan": plan}
        self.event_about(about, type, source, owner if now else None, ahead, **data)
        if found and self.of(LookUpOperation):
            self.looked_up(self.of(LookUpOperation)[-1], owner, found)

    @rule(owner=st.integers(0, 1), words=st.sampled_from(["yes", "no", "yes please"]), late=st.booleans())
    @precondition(lambda self: self.of(IssueAction))
    def the_owner_types_a_decision(self, owner, words, late):
        issued = [issue.action for issue in self.of(IssueAction)]
        action = issued[0] if late else issued[-1]
        text = words if " " in words else f"{words} {action}"
        self.arrives("message", ANA, {"relation": "independent", "plan": []}, owner, text=text)

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.of(DecideByText))
    def consent_reads_what_was_typed(self, data, owner):
        verdict, _, action = data.draw(st.sampled_from(self.of(DecideByText)[-3:])).text.partition(" ")
        if action in self.undecided():
            self.decide(action, "accept" if verdict == "yes" else "decline", owner)
        else:
            self.told(owner, DecisionRefused(action=action, outcome="superseded", by="ana", text=f"{verdict} {action}"))

    @rule(owner=st.integers(0, 1), outcome=st.sampled_from(get_args(DecisionOutcome)))
    def somebodys_decision_does_not_count(self, owner, outcome):
        self.told(owner, DecisionRefused(action="A1", outcome=outcome, by="eve"))

    @rule(data=st.data(), owner=st.integers(0, 1), limit=st.sampled_from(["", "open_questions"]))
    @precondition(lambda self: self.undecided())
    def consent_does_not_ask(self, data, owner, limit):
        action = data.draw(st.sampled_from(self.undecided()))
        self.closed.add(action)
        self.told(owner, ActionNotAsked(action=action, reason="too many", limit=limit))

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.of(SupersedeActions))
    def consent_closes_what_is_superseded(self, data, owner):
        """What was decided before stays decided."""
        for action in data.draw(st.sampled_from(self.of(SupersedeActions)[-3:])).actions:
            if action in self.undecided():
                self.closed.add(action)
                self.told(owner, ActionClosed(action=action, state="superseded"))

    @rule(owner=st.integers(0, 1))
    @precondition(lambda self: self.decided)
    def a_grant_lapses(self, owner):
        self.told(owner, ActionClosed(action=next(iter(self.decided)), state="lapsed"))

    # -- timers, as ingress keeps them

    @rule(data=st.data(), owner=st.integers(0, 1), plan=plans, now=st.booleans())
    @precondition(lambda self: self.timers)
    def a_timer_fires(self, data, owner, plan, now):
        """Each instant once; what was stored before the timer was stopped arrives all the same."""
        name = data.draw(st.sampled_from(sorted(self.timers)))
        timer = self.timers[name]
        origin = Origin(kind="timer", source="timer", principal=name, verified="door")
        timer["instant"] += 1
        if not timer["repeats"]:
            del self.timers[name]
        event = f"{name}@{timer['instant']}"
        fields = {"event": event, "type": "timer", "subject": timer["subject"]}
        self.arrives("timer", origin, {"plan": plan}, owner if now else None, **fields)

    @rule(data=st.data(), owner=st.integers(0, 1), reason=st.sampled_from(get_args(TimerSkip)), again=st.booleans())
    def instants_are_skipped(self, data, owner, reason, again):
        """Of a timer, or of one that was refused."""
        name = data.draw(st.sampled_from(sorted(self.timers) or ["t99"]))
        timer = self.timers.get(name, self.refused)
        timer["instant"] += 1
        if not timer["repeats"]:
            del self.timers[name]
        for _ in range(2 if again else 1):
            self.told(owner, TimerSkipped(timer=name, instant=timer["instant"], reason=reason))

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.timers)
    def the_owner_cancels_a_timer(self, data, owner):
        name = data.draw(st.sampled_from(sorted(self.timers)))
        self.arrives("message", ANA, {"plan": [f"cancel:{name}"], "relation": "independent"}, owner)

    @rule(data=st.data())
    @precondition(lambda self: self.of(StopTimer))
    def ingress_stops_a_timer(self, data):
        self.timers.pop(data.draw(st.sampled_from(self.of(StopTimer))).timer, None)

    # -- what reaches the service

    @rule(data=st.data(), owner=st.integers(0, 1), found=st.sampled_from(FOUND))
    @precondition(lambda self: self.of(LookUpOperation))
    def a_destination_says_what_stands(self, data, owner, found):
        """Any look-up, again too."""
        self.looked_up(data.draw(st.sampled_from(self.of(LookUpOperation)[-3:])), owner, found)

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.bells)
    def the_runtime_gives_up_on_a_doorbell(self, data, owner):
        """Of one that was handled nothing changes."""
        bell = data.draw(st.sampled_from(self.bells[-4:]))
        if bell.number <= self.state().applied + 1:
            self.insist(owner, lambda o: o.bury(bell))

    @rule(owner=st.integers(0, 1), state=st.sampled_from(["committed", "failed"]))
    @precondition(lambda self: self.in_doubt() and not self.lingers())
    def an_operator_resolves_what_is_unknown(self, owner, state):
        Sessions.kinds["an operator's word"] += 1
        self.answer(self.in_doubt()[0], owner, state)

    @rule(owner=st.integers(0, 1), turn=st.sampled_from(["T1", "T2", "T77"]), plan=st.integers(1, 9))
    def a_planner_makes_something_up(self, owner, turn, plan):
        made = PlanMade(turn=turn, plan=plan, token="made up", steps=(BOOK,))
        Sessions.kinds["plan of a turn that is over, or was never"] += 1
        self.insist(owner, lambda o: o.planned(made))

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.bells)
    def a_doorbell_rings(self, data, owner):
        """Any, again too."""
        self.ring(data.draw(st.sampled_from(self.bells[-6:])), owner)

    @rule(data=st.data(), owner=st.integers(0, 1), state=st.sampled_from(DOOR_STATES))
    @precondition(lambda self: self.of(RunStep) and not self.lingers())
    def the_door_answers(self, data, owner, state):
        """Any call, again too; the ledger's final word stays what it was."""
        self.answer(data.draw(st.sampled_from(self.of(RunStep)[-4:])), owner, state)

    @rule(data=st.data(), owner=st.integers(0, 1), wrong=st.sampled_from(WRONG))
    @precondition(lambda self: self.of(PlanRequested) and not self.lingers())
    def a_planner_answers(self, data, owner, wrong):
        """Any request, again too, or with a token that is none."""
        self.plan(data.draw(st.sampled_from(self.of(PlanRequested)[-3:])), owner, **wrong)

    @rule(owner=st.integers(0, 1))
    @precondition(lambda self: not self.lingers())
    def a_step_towards_the_aim(self, owner):
        self.step(owner)

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.of(IssueAction))
    def a_question_is_open(self, data, owner):
        action = data.draw(st.sampled_from(self.of(IssueAction)[-3:])).action
        self.told(owner, ActionAsked(action=action, question="?", question_digest="d", approver="ana", expires_at=1))

    @rule(owner=st.integers(0, 1), wait=st.sampled_from([1, 120_000, WAIT_MS]))
    @precondition(lambda self: not self.lingers())
    def time_passes(self, owner, wait):
        self.clock.now += wait
        self.insist(owner, lambda o: o.handlers.on_deadline("s1"))

    @rule(owner=st.integers(0, 1), when=st.sampled_from(["now", "before", "after"]))
    def an_owner_crashes(self, owner, when):
        """Now, or in its next commit: what was sent to it comes again."""
        if when == "now":
            self.owners[owner].sessions.drop("s1")
        else:
            self.owners[owner].sessions.cut = when

    # -- what must hold

    @invariant()
    def what_is_committed_keeps_every_promise(self):
        if not hasattr(self, "stored"):
            return
        Sessions.steps_taken += 1
        for message in self.fresh():
            if isinstance(message, RunStep):
                self.has_authority(message)
                self.may_be_sent(message)
        self.one_turn_at_a_time_begun_in_inbox_order()
        self.inputs_end_once_and_all_have_ended_where_nothing_runs()
        self.every_wait_has_a_deadline_and_nothing_waiting_is_shown()

    def one_turn_at_a_time_begun_in_inbox_order(self):
        """G5, and G2: numbers are folded in without a gap, each once"""
        for line in self.lines()[self.seen_lines :]:
            if line.kind == "turn.start":
                assert not self.running, "two turns at once"
                self.running = line.turn
                # A continuation or a restart names its event again, so only first starts are compared.
                # Accepted actions go before everything that waits.
                if line.event and line.event not in self.begun and ":" not in line.event:
                    first = not self.begun or self.number_of(line.event) > self.number_of(self.begun[-1])
                    assert first, "not in inbox order"
                    self.begun.append(line.event)
            elif line.kind in ENDS:
                assert line.turn == self.running, f"{line} while {self.running} runs"
                self.running = ""
        self.seen_lines = len(self.lines())
        shown = [line.event for line in self.lines() if line.kind in ("input", "input.dead")]
        given = [self.box()[n].event for n in sorted(self.box())]
        assert shown == given[: len(shown)]

    def has_authority(self, run):
        """G3 and G6, and what the door will check: one origin, and each input in one lineage only"""
        origins = {(seal.origin.kind, seal.origin.source) for seal in run.seals}
        assert len(origins) == 1
        assert all(self.box()[seal.number].seal == seal for seal in run.seals)
        for name in [seal.input for seal in run.seals]:
            assert self.roots.setdefault(name, run.root) == run.root, "an input in two lineages"
        assert self.roots.setdefault(run.root, str(origins)) == str(origins), "a lineage of two origins"
        if run.action:
            issue = next(issue for issue in self.of(IssueAction) if issue.action == run.action)
            step = issue.steps[run.step]
            assert (run.tool, run.args) == (step.tool, step.args), "not what the question showed"
            assert self.decided.get(run.action) == "accept"
            (seal,) = run.seals
            assert (seal.origin, seal.number) == (ANA, self.number_of(f"{run.action}:accept"))
            earlier = [r for r in self.of(RunStep) if r.action == run.action and r.step < run.step]
            assert [r.step for r in earlier] == list(range(run.step)), "a step was left out"
            assert all(self.answered.get(r.operation) == "committed" for r in earlier)
        elif run.tool not in FREE:
            assert origins == {("user", "app")}
            assert run.tool not in ALWAYS_ASKED

    def may_be_sent(self, run):
        """G4: a key is one thing to do; when it may be sent again, the model says"""
        for before in self.keys.get(run.key, []):
            assert (before.tool, before.args) == (run.tool, run.args)
            assert not run.action
        assert all(other.operation != run.operation for others in self.keys.values() for other in others)
        self.keys.setdefault(run.key, []).append(run)

    def inputs_end_once_and_all_have_ended_where_nothing_runs(self):
        """G1"""
        ended = [number for _, number, _ in self.stored.outcomes]
        assert len(ended) == len(set(ended)), "two outcomes"
        state = self.state()
        if state.turn is None:
            waiting = {ref.number for ref in state.queue}
            assert set(ended) == set(range(1, state.applied + 1)) - waiting
        else:
            assert not {ref.number for ref in state.queue} & set(ended)
            assert not {ref.number for ref in state.turn.arrivals} & set(ended)

    def every_wait_has_a_deadline_and_nothing_waiting_is_shown(self):
        """G9, and G7: what waits is before no planner"""
        state = self.state()
        left = [known for known in state.operations.values() if known.state == "sent"]
        if state.turn is None:
            assert state.wanted == ()
            assert state.next_deadline > NOW or not left, "nobody looks after what is in flight"
            return
        assert state.next_deadline > NOW, "a wait without a deadline"
        history = str(self.stored.states["s1"][2][-HISTORY_KEPT:])
        for ref in (*state.queue, *state.turn.arrivals):
            assert f"'{ref.event}'" not in history

    def teardown(self) -> None:
        """Everything arrives in the end, and the session comes to rest (G1, G9). No wish is fulfilled twice (G4)."""
        if not hasattr(self, "stored"):
            return
        for bell in self.box().values():
            self.ring(bell, 0)
        for _ in range(300):
            if self.state().turn is None and not self.state().queue:
                break
            self.clock.now += WAIT_MS
            self.insist(1, lambda o: o.handlers.on_deadline("s1"))
        else:
            raise AssertionError("the session does not come to rest")
        self.what_is_committed_keeps_every_promise()
        self.no_wish_is_fulfilled_twice()
        # To stop a timer again is the same message, by its very id.
        sent = [(out.id, raw["type"]) for out in self.stored.outbox if (raw := orjson.loads(out.body))]
        ids = [(id, type) for id, type in sent if type != StopTimer.wire_type()]
        assert len(ids) == len(set(ids)), "two messages of one id (G8)"

    def no_wish_is_fulfilled_twice(self):
        """G4 across restarts and revisions: no more bookings stand than the inputs of the lineage wished for.

        Where the door's word never came in time, the planner was told `unknown` and may have wished again.
        """
        unsure = {line.operation for line in self.lines() if line.kind == "tool.unknown"}
        runs = self.of(RunStep)
        for root in {run.root for run in runs}:
            lineage = [run for run in runs if run.root == root]
            if any(run.action or run.operation in unsure for run in lineage):
                continue
            lineage = [run for run in lineage if not {run.operation, run.args.get("id")} & self.model.ever_gone]
            booked = self.committed(lineage, "book") - self.committed(lineage, "unbook")
            inputs = {seal.number for run in lineage for seal in run.seals}
            wished = [self.box()[number].data.get("plan", []).count("book") for number in inputs]
            assert booked <= sum(wished), "a wish was fulfilled twice"

    # -- helpers

    def reach(self, owner: int) -> None:
        """Bring the turn to the state that this example is about."""
        for _ in range(12 if self.aim else 1):
            turn = self.state().turn
            if turn is not None and turn.status == self.aim:
                return
            self.step(owner)

    def step(self, owner: int) -> None:
        """What has to come next for that."""
        state = self.state()
        turn = state.turn
        if turn is None and state.queue:  # waits for a look-up
            self.clock.now += 10_000
            self.insist(owner, lambda o: o.handlers.on_deadline("s1"))
        elif turn is None and self.by_webhook:
            self.arrives("event", RESTAURANT, {"plan": ["look", "look"]}, owner)
        elif turn is None:
            self.arrives("message", ANA, {"plan": self.wish}, owner)
        elif turn.arrivals and state.wanted and turn.status in ("planning", "waiting"):
            self.plan(self.owed(state), owner)
        elif turn.status == "planning" and self.aim == "resuming" and not (turn.pausing or turn.arrivals):
            self.arrives("message", turn.origin, {"relation": "unclear"}, owner)
        elif turn.status == "planning" or (turn.status == "resuming" and self.aim != "resuming"):
            self.plan(self.owed(state), owner)
        elif turn.status == "paused" and self.aim != "paused":
            self.arrives("message", ANA, {"relation": "adds", "plan": ["mail"]}, owner)
        elif turn.status == "waiting" and self.aim in ("revising", "cancelling") and len(turn.joined) < 20:
            kind, origin = ("cancel", ANA) if self.aim == "cancelling" else ("message", turn.origin)
            self.arrives(kind, origin, {"relation": "revises", "plan": ["book"]}, owner)
        elif turn.status == "waiting" and not turn.pausing and not turn.arrivals:
            self.arrives("message", turn.origin, {"relation": "unclear"}, owner)
        else:
            for run in self.of(RunStep):
                if run.operation in (turn.operation, *turn.settling):
                    self.answer(run, owner, "committed")

    def committed(self, runs: list[Any], tool: str) -> int:
        return sum(run.tool == tool and self.answered.get(run.operation) == "committed" for run in runs)

    def arrives(self, kind: str, origin: Any, data: Any, owner: int | None, **fields: Any) -> None:
        """An input is stored; it is rung for now, or some time."""
        number = len(self.box()) + 1
        said = fields.pop("text", f"e{number}" if origin.kind == "user" else f"psst e{number}")
        bell = self.stored.append(kind, origin, {**data, "text": said}, **fields)
        self.bells.append(bell)
        if owner is not None:
            self.ring(bell, owner)

    def decide(self, action: str, verdict: str, owner: int) -> None:
        self.decided[action] = verdict
        bell = self.stored.append("decision", ANA, {"action": action, "decision": verdict}, event=f"{action}:{verdict}")
        self.bells.append(bell)
        self.ring(bell, owner)

    def event_about(self, about: str, type: str, source: Any, owner: int | None, ahead: int, **data: Any) -> None:
        """As ingress does: with its place in the order; held while nobody has registered its subject."""
        stream = f"{source.source} {about}"
        sequence = max(0, self.sequence[stream] + ahead)
        self.sequence[stream] = max(sequence, self.sequence[stream])
        data |= {"news": "closed today"} if owner != 1 or ahead == 1 else {}
        operation = about.partition(":")[2]
        fields = {"type": type} if type == "news" else {"type": type, "subject": about, "sequence": str(sequence)}
        if about == FILM or self.answered.get(operation) == "committed":
            self.arrives("event", source, data, owner, **fields)
        else:
            self.held.append((operation, source, data, fields))

    def release(self, operation: str, owner: int) -> None:
        """The door registered a subject: what was held for it is its session's now."""
        held, self.held = self.held, [early for early in self.held if early[0] != operation]
        for place, (_, source, data, fields) in enumerate(early for early in held if early[0] == operation):
            self.arrives("event", source, data, owner if place % 2 == 0 else None, **fields)

    def looked_up(self, asked: Any, owner: int, found: str) -> None:
        self.told(owner, LookedUp(operation=asked.operation, key=asked.key, found=found))

    def an_operation(self) -> str:
        """A booking that may be spoken of: the newest that stands, every other time the newest of all."""
        booked = [run.operation for run in self.of(RunStep) if run.tool == "book"]
        stands = [operation for operation in booked if self.answered.get(operation) == "committed"]
        newest = (stands if len(self.box()) % 2 else booked) or booked
        return f"reservation:{newest[-1]}" if newest else ""

    def in_doubt(self) -> list[Any]:
        """Calls of which the session heard that their outcome is unknown."""
        known = self.state().operations
        return [run for run in self.of(RunStep) if run.operation in known and known[run.operation].state == "unknown"]

    def ring(self, bell: Any, owner: int) -> None:
        self.insist(owner, lambda o: o.ring(bell))

    def lingers(self) -> bool:
        """The turn is in the state that this example is about, and not everything has arrived there yet."""
        turn = self.state().turn
        return turn is not None and turn.status == self.aim and self.lingered < 10

    def ended_under(self, key: str) -> str:
        """The operation whose outcome the door tells to whoever comes with this key; a failure is told to none."""
        ends = [run.operation for run in self.of(RunStep) if run.key == key]
        return next((one for one in ends if self.answered.get(one, "failed") != "failed"), "")

    def answer(self, run: Any, owner: int, state: str) -> None:
        did = run.operation
        if state not in ("unknown", "in_progress"):
            did = self.ended_under(run.key) or run.operation
            state = self.answered.setdefault(run.operation, self.answered.get(did, state))
        result: dict[str, Any] = {"id": did}
        if run.tool == "set_timer":
            name = f"t{did[1:]}"
            result = {**run.args, "timer": name, "due": NOW}
            repeats = "rule" in run.args
            if state == "committed" and name not in self.set:
                self.set.add(name)
                self.timers[name] = {"subject": run.args["subject"], "repeats": repeats, "instant": 0}
        elif run.tool == "cancel_timer":
            result = {"timer": run.args["timer"]}
            if state == "committed":
                self.timers.pop(run.args["timer"], None)
        if state == "committed" and run.operation in {early[0] for early in self.held}:
            self.release(run.operation, owner)
        self.told(owner, StepFinished(operation=run.operation, key=run.key, state=state, result=result))

    def plan(self, request: Any, owner: int, **wrong: Any) -> None:
        plan = planned(request.view)
        made = {"turn": request.turn, "plan": request.plan, "token": request.token, "steps": plan.steps}
        made |= {"reply": plan.reply, "relation": plan.relation} | wrong
        self.insist(owner, lambda o: o.planned(PlanMade(**made)))

    def owed(self, state: SessionState) -> Any:
        """The newest request that still waits for its plan."""
        return next(r for r in self.of(PlanRequested) if r.plan == state.wanted[-1].plan)

    def undecided(self) -> list[str]:
        """Open actions as consent sees them."""
        issued = [issue.action for issue in self.of(IssueAction)]
        return [action for action in issued if action not in self.decided and action not in self.closed]

    def fresh(self) -> list[Any]:
        """Messages that were committed since the last look."""
        new, self.read = self.stored.outbox[self.read :], len(self.stored.outbox)
        known = {kind.wire_type(): kind for kind in FOLLOWED}
        raw = [orjson.loads(outgoing.body) for outgoing in new]
        read = [known[r["type"]].model_validate(r["body"]) for r in raw if r["type"] in known]
        self.sent += read
        return read

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in getattr(self, "sent", []) if isinstance(message, kind)]

    def box(self) -> dict[int, Any]:
        return self.stored.inbox.get("s1", {})

    def lines(self) -> list[Any]:
        return self.stored.lines.get("s1", [])

    def state(self) -> SessionState:
        """As it is stored."""
        return self.latest[0]

    def number_of(self, event: str) -> int:
        return next(n for n, given in self.box().items() if given.event == event)

    def told(self, owner: int, message: Any) -> None:
        self.insist(owner, lambda o: o.tell(message))

    def insist(self, owner: int, work: Any) -> None:
        """As the runtime does: decide again in place after another owner was first, and redeliver after a crash."""
        for _ in range(5):
            try:
                finish(work(self.owners[owner]))
                self.fresh_and_checked()
                return
            except LostOwnership:
                continue
            except Cut:
                self.owners[owner].sessions.drop("s1")
        raise AssertionError("lost five times to nobody")

    def fresh_and_checked(self) -> None:
        commits, self.commits[:] = list(self.commits), []
        for before, decision in commits:
            met = self.model.rows.copy()
            try:
                self.model.commit(before, decision)
            except AssertionError as broken:
                broken.add_note("\n".join(f"{line.kind} {line.turn} {line.text}" for line in self.lines()[-40:]))
                broken.add_note(f"by {decision.given[0]!r:.600}")
                raise
            new = self.model.rows - met
            Sessions.met += new
            self.lingered += sum(count for (_, status), count in new.items() if status == self.aim)
        for message in self.fresh():
            if isinstance(message, RunStep):
                self.has_authority(message)
                self.may_be_sent(message)


def run(aim: str, seed: int, examples: int) -> None:
    """Examples that linger in one state of the turn."""
    run_state_machine_as_test(
        replay(seed)(type(f"Sessions_{aim or 'anywhere'}", (Sessions,), {"aim": aim})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_EACH,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )


def keeps_its_promises(states: list[str], seed: int, monkeypatch: Any) -> None:
    """Run the machine in these states of the turn, and print what was met."""
    Sessions.met, Sessions.kinds, Sessions.steps_taken = Counter(), Counter(), 0

    def counted(state: Any, stimulus: Any, *rest: Any) -> Any:
        Sessions.kinds[kind_of(stimulus)] += 1
        return decide(state, stimulus, *rest)

    monkeypatch.setattr("services.session.handlers.decide", counted)
    for aim in ["", *states]:
        run(aim, seed, EXAMPLES)
    for more in range(1, MORE):  # chance may have met a cell too seldom
        for aim in [aim for aim in states if min(Sessions.met[row, aim] for row in ROWS) < OFTEN]:
            run(aim, seed + more, EXAMPLES // 3)
        if min(Sessions.kinds[kind] for kind in kinds_of_the_code()) < FEW:
            run("", seed + more, EXAMPLES // 3)
    print(f"seed {seed}: {Sessions.steps_taken} steps")
    for state in states:
        print(f"  {state:11}", *(f"{row}={Sessions.met[row, state]}" for row in ROWS))
    print("  driven:", ", ".join(f"{kind}={count}" for kind, count in sorted(Sessions.kinds.items())))
    assert Sessions.steps_taken >= ENOUGH
    missed = sorted(kind for kind in kinds_of_the_code() if Sessions.kinds[kind] < FEW)
    assert not missed, f"hardly or never driven: {missed}"
    rare = {(row, state): Sessions.met[row, state] for row in ROWS for state in states}
    assert {cell: count for cell, count in rare.items() if count < OFTEN} == {}

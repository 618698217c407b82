"""Sessions under duplicates, reordering, two owners, crashes and answers in any order, against what must always hold.

Two owners with caches of their own work on one store in memory. Doorbells ring late, early and again; the door and a
planner off the partition answer whenever and again; consent decides; cancels, deadlines and crashes before and after a
commit come in between. The model is naive: it looks only at the inputs that were given and at what was committed.

Each example has an aim, a state of the turn in which it lingers so that everything arrives there: each row of the
in-flight table meets each state at least `OFTEN` times, and the counts are printed with the seed.
"""

import os
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

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

from libs.contracts.consent import ActionAsked, ActionClosed, IssueAction
from libs.contracts.errors import LostOwnership
from libs.contracts.session import PlanMade, PlanRequested
from libs.contracts.tools import RunStep, StepFinished
from services.session.domain.plan import Plan, view_json
from services.session.domain.state import HISTORY_KEPT, SessionState
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

EXAMPLES, STEPS_EACH, OFTEN, MORE = 40, 45, 100, 15
STEPS = {"book": BOOK, "mail": MAIL, "look": LOOK, "wire": WIRE}
FREE = {"look"}
ALWAYS_ASKED = {"wire"}
DOOR_STATES = ["committed", "committed", "committed", "refused", "failed", "unknown", "withdrawn", "in_progress"]
RELATIONS = ["adds", "independent", "revises", "unclear"]
STATES = ["planning", "waiting", "paused", "resuming", "revising", "cancelling"]
ROWS = ["another origin", *RELATIONS, "decision", "cancel"]
"""Of the in-flight table. In a paused turn the owner's message is the answer, whatever else it would be."""
ENDS = ("turn.done", "turn.failed", "turn.cancelled", "turn.ask", "turn.restarted")
TABLES: list[list[dict[str, str]]] = [
    [],
    [{"adds": "restart"}],
    [{"adds": "queue", "revises": "queue", "unclear": "queue"}],
    [{"adds": "reject", "independent": "reject", "revises": "reject", "unclear": "reject"}],
    [{"source": "restaurant", "adds": "reject"}, {"adds": "restart", "independent": "reject"}],
]
APPLICATION = make_rules().application
PHASES = (Phase.generate, Phase.shrink) if os.environ.get("SEED") else (Phase.generate,)
"""A failure is made small only when it is replayed: that may take minutes."""
plans = st.lists(st.sampled_from(sorted(STEPS)), max_size=2)


class Cut(Exception):
    """The process died."""


class Mortal(FakeSessions):
    """Dies at its next commit when told to, before or after all is stored. Keeps as much history as the store."""

    cut = ""
    latest: list[SessionState]

    async def commit(self, snapshot: Any, decision: Any, messages: Any) -> None:
        cut, self.cut = self.cut, ""
        if cut == "before":
            raise Cut
        await super().commit(snapshot, decision, messages)
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
    return tuple(STEPS[name] for name in data.get("plan", []))


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
    steps_taken = 0

    @initialize(slow=st.sampled_from([True, False, False]), table=st.sampled_from(TABLES))
    def a_session_begins(self, slow, table):
        slow = slow or self.aim in ("planning", "resuming")
        self.lingered = 0
        self.latest = [SessionState(session="s1")]
        self.stored, self.clock = Stored(), FakeClock()
        self.planner = ViewPlanner(lambda view: planned(view_json(replace(view, history=()), APPLICATION)))
        if self.aim in ("paused", "resuming", "revising"):  # where nothing is asked or revised, no turn gets there
            table = [rule for rule in table if "unclear" not in rule and "revises" not in rule]
        rules = make_rules(planner=SLOW if slow else RULES, in_flight=table)
        self.owners = [Owner(self.stored, self.clock, self.planner, rules) for _ in range(2)]
        for owner in self.owners:
            owner.sessions = owner.handlers._sessions = Mortal(self.stored)
            owner.sessions.latest = self.latest
        self.bells: list[Any] = []
        self.decided: dict[str, str] = {}
        self.closed: set[str] = set()
        self.answered: dict[str, str] = {}
        self.sent: list[Any] = []
        self.read, self.seen_lines = 0, 0
        self.running, self.begun = "", []
        self.roots: dict[str, str] = {}
        self.keys: dict[str, Any] = {}

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
        elif row == "another origin":
            other = CINEMA if turn.origin.kind == "user" else ANA
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

    # -- what reaches the service

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

    @rule(data=st.data(), owner=st.integers(0, 1), wrong=st.sampled_from([{}, {}, {}, {"token": "guessed"}]))
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
                    assert not self.begun or int(line.event[1:]) > int(self.begun[-1][1:]), "not in inbox order"
                    self.begun.append(line.event)
            elif line.kind in ENDS:
                assert line.turn == self.running
                self.running = ""
        self.seen_lines = len(self.lines())
        shown = [line.event for line in self.lines() if line.kind == "input"]
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
        """G4: a key is sent again only after each attempt with it failed before it was sent, and for nothing else"""
        before = self.keys.get(run.key)
        if before is not None:
            assert (before.tool, before.args) == (run.tool, run.args)
            assert self.answered.get(before.operation) == "failed", "sent twice"
            assert not run.action
        assert all(other.operation != run.operation for other in self.keys.values())
        self.keys[run.key] = run

    def inputs_end_once_and_all_have_ended_where_nothing_runs(self):
        """G1"""
        ended = [number for _, number, _ in self.stored.outcomes]
        assert len(ended) == len(set(ended)), "two outcomes"
        state = self.state()
        if state.turn is None:
            assert state.queue == ()
            assert set(ended) == set(range(1, state.applied + 1))
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
            if self.state().turn is None:
                break
            self.clock.now += WAIT_MS
            self.insist(1, lambda o: o.handlers.on_deadline("s1"))
        else:
            raise AssertionError("the session does not come to rest")
        self.what_is_committed_keeps_every_promise()
        self.no_wish_is_fulfilled_twice()
        ids = [outgoing.id for outgoing in self.stored.outbox]
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
            booked = self.committed(lineage, "book") - self.committed(lineage, "unbook")
            inputs = {seal.number for run in lineage for seal in run.seals}
            wished = [self.box()[number].data.get("plan", []).count("book") for number in inputs]
            assert booked <= sum(wished), "a wish was fulfilled twice"

    # -- helpers

    def reach(self, owner: int) -> None:
        """Bring the turn to the state that this example is about."""
        for _ in range(12):
            turn = self.state().turn
            if turn is not None and turn.status == self.aim:
                return
            self.step(owner)

    def step(self, owner: int) -> None:
        """What has to come next for that."""
        state = self.state()
        turn = state.turn
        if turn is None:
            self.arrives("message", ANA, {"plan": ["book", "mail"]}, owner)
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
        bell = self.stored.append(kind, origin, {**data, "text": f"e{number}"}, **fields)
        self.bells.append(bell)
        if owner is not None:
            self.ring(bell, owner)

    def decide(self, action: str, verdict: str, owner: int) -> None:
        self.decided[action] = verdict
        bell = self.stored.append("decision", ANA, {"action": action, "decision": verdict}, event=f"{action}:{verdict}")
        self.bells.append(bell)
        self.ring(bell, owner)

    def ring(self, bell: Any, owner: int) -> None:
        before = self.state()
        self.insist(owner, lambda o: o.ring(bell))
        if before.turn is not None and bell.number == before.applied + 1:
            row = self.row_of(bell, before.turn)
            Sessions.met[row, before.turn.status] += 1
            self.lingered += before.turn.status == self.aim

    @staticmethod
    def row_of(bell: Any, turn: Any) -> str:
        if bell.kind in ("decision", "cancel"):
            return str(bell.kind)
        if not bell.origin.same_as(turn.origin):
            return "another origin"
        return str(bell.data.get("relation") or "independent")

    def lingers(self) -> bool:
        """The turn is in the state that this example is about, and not everything has arrived there yet."""
        turn = self.state().turn
        return turn is not None and turn.status == self.aim and self.lingered < 10

    def answer(self, run: Any, owner: int, state: str) -> None:
        if state not in ("unknown", "in_progress"):
            state = self.answered.setdefault(run.operation, state)
        self.told(owner, StepFinished(operation=run.operation, key=run.key, state=state, result={"id": run.operation}))

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
        known = {kind.wire_type(): kind for kind in (RunStep, PlanRequested, IssueAction)}
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
        for message in self.fresh():
            if isinstance(message, RunStep):
                self.has_authority(message)
                self.may_be_sent(message)


def run(aim: str, seed: int, examples: int) -> None:
    """Examples that linger in one state of the turn."""
    run_state_machine_as_test(
        replay(seed)(type(f"Sessions_{aim}", (Sessions,), {"aim": aim})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_EACH,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_session_keeps_its_promises_whatever_the_order(seed):
    Sessions.met, Sessions.steps_taken = Counter(), 0
    for aim in STATES:
        run(aim, seed, EXAMPLES)
    for more in range(1, MORE):  # chance may have met a cell too seldom
        for aim in [aim for aim in STATES if min(Sessions.met[row, aim] for row in ROWS) < OFTEN]:
            run(aim, seed + more, EXAMPLES // 3)
    print(f"seed {seed}: {Sessions.steps_taken} steps")
    for state in STATES:
        print(f"  {state:11}", *(f"{row}={Sessions.met[row, state]}" for row in ROWS))
    assert Sessions.steps_taken >= 10_000
    rare = {(row, state): Sessions.met[row, state] for row in ROWS for state in STATES}
    assert {cell: count for cell, count in rare.items() if count < OFTEN} == {}

"""Sessions under duplicates, reordering, two owners and answers in any order, against what must always hold.

Two owners with caches of their own work on one store in memory. Doorbells ring late, early and again; the door answers
whenever and again; consent decides; cancels and deadlines come in between. The model is naive: it looks only at the
inputs that were given and at what was committed.
"""

import itertools
import os
from collections.abc import Coroutine
from typing import Any

from hypothesis import Phase, settings
from hypothesis import seed as replay
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from libs.contracts.consent import ActionAsked, ActionClosed, IssueAction
from libs.contracts.errors import LostOwnership
from libs.contracts.tools import RunStep, StepFinished
from services.session.domain.plan import Plan
from tests.support.session import (
    ANA,
    BOOK,
    CINEMA,
    LOOK,
    MAIL,
    RESTAURANT,
    WAIT_MS,
    WIRE,
    FakeClock,
    Owner,
    Stored,
    ViewPlanner,
)

STEPS = {"book": BOOK, "mail": MAIL, "look": LOOK, "wire": WIRE}
FREE = {"look"}
ALWAYS_ASKED = {"wire"}
DOOR_STATES = ["committed", "committed", "committed", "refused", "failed", "unknown", "withdrawn", "in_progress"]
PHASES = (Phase.generate, Phase.shrink) if os.environ.get("SEED") else (Phase.generate,)
"""A failure is made small only when it is replayed: that may take minutes."""


def planned(view: Any) -> Plan:
    """The plan that the input's data says; after every other accepted action one more step; then nothing."""
    if view.action:
        again = not view.failing and int(view.turn[1:]) % 2 == 0
        return Plan(steps=(MAIL,)) if again else Plan(reply="done")
    if view.results or not isinstance(view.data, dict):
        return Plan(reply="done")
    return Plan(steps=tuple(STEPS[name] for name in view.data.get("plan", [])))


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits: the store is in memory."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("something waited")


class Sessions(RuleBasedStateMachine):
    """Everything that may happen to one session."""

    bells = Bundle("bells")

    def __init__(self) -> None:
        super().__init__()
        self.stored, self.clock = Stored(), FakeClock()
        self.planner = ViewPlanner(planned)
        self.owners = [Owner(self.stored, self.clock, self.planner) for _ in range(2)]
        self.decided: dict[str, str] = {}
        self.closed: set[str] = set()
        self.answered: dict[str, str] = {}

    # -- what others do

    @rule(target=bells, plan=st.lists(st.sampled_from(sorted(STEPS)), max_size=3), copies=st.integers(1, 2))
    def the_owner_writes(self, plan, copies):
        bell = self.stored.append("message", ANA, {"text": "do", "plan": plan})
        return multiple(*[bell] * copies)

    @rule(
        target=bells,
        plan=st.lists(st.sampled_from(sorted(STEPS)), max_size=3),
        source=st.sampled_from([RESTAURANT, CINEMA]),
        depth=st.sampled_from([0, 0, 0, 6]),
    )
    def a_webhook_calls(self, plan, source, depth):
        return self.stored.append("event", source, {"plan": plan}, depth=depth)

    @rule(target=bells)
    def the_owner_cancels(self):
        return self.stored.append("cancel", ANA, {})

    @rule(target=bells, data=st.data(), verdict=st.sampled_from(["accept", "accept", "accept", "decline"]))
    @precondition(lambda self: self.undecided())
    def the_owner_decides(self, data, verdict):
        action = data.draw(st.sampled_from(self.undecided()))
        self.decided[action] = verdict
        return self.stored.append("decision", ANA, {"action": action, "decision": verdict}, event=f"{action}:{verdict}")

    @rule(data=st.data(), owner=st.integers(0, 1), state=st.sampled_from(["expired", "superseded", "cancelled"]))
    @precondition(lambda self: self.undecided())
    def a_question_closes_by_itself(self, data, owner, state):
        action = data.draw(st.sampled_from(self.undecided()))
        self.closed.add(action)
        self.told(owner, ActionClosed(action=action, state=state))

    # -- what reaches the service

    @rule(bell=bells, owner=st.integers(0, 1))
    def a_doorbell_rings(self, bell, owner):
        self.insist(owner, lambda o: o.ring(bell))

    @rule(data=st.data(), owner=st.integers(0, 1), state=st.sampled_from(DOOR_STATES))
    @precondition(lambda self: self.stored.messages(RunStep))
    def the_door_answers(self, data, owner, state):
        """Any call, again too; the ledger's final word stays what it was."""
        run = data.draw(st.sampled_from(self.stored.messages(RunStep)[-4:]))
        if state not in ("unknown", "in_progress"):
            state = self.answered.setdefault(run.operation, state)
        self.told(owner, StepFinished(operation=run.operation, key=run.key, state=state, result={"id": run.operation}))

    @rule(data=st.data(), owner=st.integers(0, 1))
    @precondition(lambda self: self.stored.messages(IssueAction))
    def a_question_is_open(self, data, owner):
        action = data.draw(st.sampled_from(self.stored.messages(IssueAction))).action
        self.told(owner, ActionAsked(action=action, question="?", question_digest="d", approver="ana", expires_at=1))

    @rule(owner=st.integers(0, 1), wait=st.sampled_from([1, WAIT_MS]))
    def time_passes(self, owner, wait):
        self.clock.now += wait
        self.insist(owner, lambda o: o.handlers.on_deadline("s1"))

    @rule(owner=st.integers(0, 1))
    def an_owner_restarts(self, owner):
        self.owners[owner].sessions.drop("s1")

    # -- what must hold

    @invariant()
    def one_turn_at_a_time_begun_in_inbox_order(self):
        """G5"""
        running, begun = "", []
        for line in self.lines():
            if line.kind == "turn.start":
                assert not running, "two turns at once"
                running = line.turn
                begun.append(line)
            elif line.kind in ("turn.done", "turn.failed", "turn.cancelled") or line.kind == "turn.ask":
                assert line.turn == running
                running = ""
        # A continuation names the event of its asker again, so only first starts are compared.
        events = dict.fromkeys(line.event for line in begun if line.event)
        order = [int(event[1:]) for event in events]
        assert order == sorted(order), "not in inbox order"

    @invariant()
    def no_call_without_authority(self):
        """G3 and G6"""
        asked = {issue.action: issue for issue in self.stored.messages(IssueAction)}
        for run in self.stored.messages(RunStep):
            (seal,) = run.seals
            if run.action:
                step = asked[run.action].steps[run.step]
                assert (run.tool, run.args) == (step.tool, step.args), "not what the question showed"
                assert self.decided.get(run.action) == "accept"
                assert (seal.origin, seal.number) == (ANA, self.number_of(f"{run.action}:accept"))
            elif run.tool not in FREE:
                assert seal.origin.kind == "user"
                assert run.tool not in ALWAYS_ASKED

    @invariant()
    def each_step_of_an_action_is_sent_once_and_each_operation_has_one_key(self):
        runs = self.stored.messages(RunStep)
        steps = [(run.action, run.step) for run in runs if run.action]
        assert len(steps) == len(set(steps))
        assert len({run.key for run in runs}) == len({run.operation for run in runs}) == len(runs)

    @invariant()
    def steps_of_an_action_follow_only_committed_ones(self):
        for action, group in itertools.groupby(self.stored.messages(RunStep), key=lambda run: run.action):
            runs = list(group)
            if action:
                assert all(self.answered.get(run.operation) == "committed" for run in runs[:-1])

    @invariant()
    def numbers_are_folded_in_without_a_gap_and_each_at_most_once(self):
        """G2"""
        shown = [line.event for line in self.lines() if line.kind == "input"]
        given = [self.stored.inbox["s1"][n].event for n in sorted(self.stored.inbox.get("s1", {}))]
        assert shown == given[: len(shown)]

    @invariant()
    def an_input_ends_at_most_once_and_all_have_ended_where_nothing_runs(self):
        """G1"""
        ended = [number for _, number, _ in self.stored.outcomes]
        assert len(ended) == len(set(ended)), "two outcomes"
        state = finish(Owner(self.stored, self.clock, self.planner).state())
        if state.turn is None:
            assert state.queue == ()
            assert set(ended) == set(range(1, state.applied + 1))

    @invariant()
    def what_leaves_has_an_id_of_its_own(self):
        """G8"""
        ids = [outgoing.id for outgoing in self.stored.outbox]
        assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """Everything arrives in the end, and the session comes to rest (G1, G9)."""
        for bell in self.stored.inbox.get("s1", {}).values():
            self.insist(0, lambda o, bell=bell: o.ring(bell))
        for _ in range(200):
            turn = finish(Owner(self.stored, self.clock, self.planner).state()).turn
            if turn is None:
                break
            self.clock.now += WAIT_MS
            self.insist(1, lambda o: o.handlers.on_deadline("s1"))
        else:
            raise AssertionError("the session does not come to rest")
        self.an_input_ends_at_most_once_and_all_have_ended_where_nothing_runs()
        self.no_call_without_authority()

    # -- helpers

    def undecided(self) -> list[str]:
        """Open actions as consent sees them."""
        issued = [issue.action for issue in self.stored.messages(IssueAction)]
        return [action for action in issued if action not in self.decided and action not in self.closed]

    def lines(self) -> list[Any]:
        return self.stored.lines.get("s1", [])

    def number_of(self, event: str) -> int:
        return next(n for n, given in self.stored.inbox["s1"].items() if given.event == event)

    def told(self, owner: int, message: Any) -> None:
        self.insist(owner, lambda o: o.tell(message))

    def insist(self, owner: int, work: Any) -> None:
        """As the runtime does: decide again in place after another owner was first."""
        for _ in range(3):
            try:
                return finish(work(self.owners[owner]))
            except LostOwnership:
                continue
        raise AssertionError("lost three times to nobody")


def test_a_session_keeps_its_promises_whatever_the_order(seed):
    run_state_machine_as_test(
        replay(seed)(Sessions),
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None, database=None, phases=PHASES),
    )

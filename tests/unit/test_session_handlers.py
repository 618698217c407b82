"""The stories of the session service on a store in memory: doorbells, owners, burials, planners."""

import orjson
import pytest

from libs.contracts.errors import LostOwnership, PermanentError
from libs.contracts.ingress import InputAccepted
from libs.contracts.session import PlanMade
from libs.contracts.tools import RunStep, StepFinished
from libs.runtime.settle import Outcome
from services.session.domain.plan import Plan
from services.session.handlers import MOST_MISSING
from tests.support.session import (
    ANA,
    BOOK,
    MAIL,
    RESTAURANT,
    WAIT_MS,
    FakeClock,
    Owner,
    Stored,
    ViewPlanner,
    make_input,
)


def answer(view):
    """Fails on the text "bug"; books otherwise, once."""
    if isinstance(view.data, dict) and view.data.get("text") == "bug":
        raise RuntimeError("a bug of the planner")
    return Plan() if view.results else Plan(steps=(BOOK,))


@pytest.fixture
def stored():
    return Stored()


@pytest.fixture
def owner(stored):
    return Owner(stored, FakeClock(), ViewPlanner(answer))


def another(owner):
    return Owner(owner.stored, owner.clock, owner.planner, owner.rules)


def numbers(stored, kind="input"):
    return [line.event for line in stored.lines["s1"] if line.kind == kind]


async def test_a_repeated_doorbell_changes_nothing(owner, stored):
    """C141."""
    first = stored.append("event", RESTAURANT, {})
    assert await owner.ring(first) == Outcome.HANDLED
    before = stored.states["s1"]
    assert await owner.ring(first) == Outcome.REPEATED
    assert stored.states["s1"] == before


async def test_an_early_doorbell_reads_the_gap_from_the_inbox_in_order(owner, stored):
    inputs = [stored.append("event", RESTAURANT, {"n": n}) for n in range(4)]
    await owner.ring(inputs[2])
    assert numbers(stored) == ["e1", "e2", "e3"]
    assert await owner.ring(inputs[0]) == Outcome.REPEATED
    await owner.ring(inputs[3])
    assert numbers(stored) == ["e1", "e2", "e3", "e4"]


async def test_a_gap_that_another_owner_folded_in_is_no_fault(owner, stored):
    inputs = [stored.append("message", ANA, {"text": f"{n}"}) for n in range(3)]
    await owner.ring(inputs[0])
    other = another(owner)
    run = stored.messages(RunStep)[0]
    await other.tell(StepFinished(operation=run.operation, key=run.key, state="committed"))
    await other.ring(inputs[1])
    with pytest.raises(LostOwnership):
        await owner.ring(inputs[2])
    await owner.ring(inputs[2])
    assert numbers(stored) == ["e1", "e2", "e3"]


async def test_a_number_that_is_nowhere_is_a_permanent_fault(owner, stored):
    stored.append("event", RESTAURANT, {})
    second = stored.append("event", RESTAURANT, {})
    stored.trimmed.add(("s1", 1))
    with pytest.raises(PermanentError, match="inbox_gap"):
        await owner.ring(second)


async def test_a_number_far_ahead_is_refused_without_a_look_into_the_inbox(owner, stored):
    first = stored.append("event", RESTAURANT, {})
    far = make_input(MOST_MISSING + 2, "event", RESTAURANT, {})

    async def looked(*_):
        raise AssertionError("the inbox was read")

    owner.sessions.inputs = looked
    with pytest.raises(PermanentError, match="too far ahead"):
        await owner.ring(far)
    message = InputAccepted(input=far)
    assert not await owner.handlers.on_dead(message, owner.context(message), "inbox_gap")
    assert await owner.ring(first) == Outcome.HANDLED


async def test_of_two_owners_one_commits_and_nothing_of_the_other_leaves(owner, stored):
    first = stored.append("message", ANA, {"text": "a"})
    other = another(owner)
    await owner.state()
    await other.ring(first)
    sent = list(stored.outbox)
    second = stored.append("event", RESTAURANT, {})
    with pytest.raises(LostOwnership):
        await owner.ring(second)
    assert stored.outbox == sent
    await owner.ring(second)
    assert numbers(stored) == ["e1", "e2"]


async def test_what_writes_nothing_still_checks_the_version(owner, stored):
    first = stored.append("event", RESTAURANT, {})
    await owner.ring(first)
    await another(owner).ring(stored.append("event", RESTAURANT, {}))
    with pytest.raises(LostOwnership):
        await owner.ring(first)
    stale = another(owner)
    await stale.state()
    await owner.ring(stored.append("event", RESTAURANT, {}))
    with pytest.raises(LostOwnership):
        await stale.tell(StepFinished(operation="O9", key="k", state="committed"))


async def test_a_result_may_come_before_its_owner_knows_the_operation(owner, stored):
    await owner.state()
    other = another(owner)
    await other.ring(stored.append("message", ANA, {"text": "a"}))
    run = stored.messages(RunStep)[0]
    finished = StepFinished(operation=run.operation, key=run.key, state="committed")
    with pytest.raises(LostOwnership):
        await owner.tell(finished)
    assert await owner.tell(finished) == Outcome.HANDLED


async def test_a_buried_input_is_passed_over_and_the_session_goes_on(owner, stored):
    first, second = (stored.append("event", RESTAURANT, {}) for _ in range(2))
    await owner.bury(first)
    await owner.ring(second)
    assert (await owner.state()).applied == 2
    assert stored.outcomes[0] == ("s1", 1, "failed")


async def test_of_a_gap_only_what_failed_is_buried(owner, stored, monkeypatch):
    inputs = [stored.append("event", RESTAURANT, {"n": n}) for n in range(4)]
    whole = owner.handlers._apply

    async def fails_on_the_second(snapshot, stimulus, cause):
        if type(stimulus).__name__ == "Arrived" and stimulus.input.number == 2:
            raise RuntimeError("a bug")
        return await whole(snapshot, stimulus, cause)

    monkeypatch.setattr(owner.handlers, "_apply", fails_on_the_second)
    with pytest.raises(RuntimeError):
        await owner.ring(inputs[3])
    await owner.bury(inputs[3])
    assert (await owner.state()).applied == 4
    assert numbers(stored, "input.dead") == ["e2"]
    assert numbers(stored) == ["e1", "e3", "e4"]
    assert sorted(stored.outcomes) == [("s1", 1, "acted"), ("s1", 2, "failed"), ("s1", 3, "acted"), ("s1", 4, "acted")]


async def test_burying_again_changes_nothing(owner, stored):
    first = stored.append("event", RESTAURANT, {})
    await owner.bury(first)
    before = stored.states["s1"]
    await owner.bury(first)
    assert stored.states["s1"] == before


async def test_a_planner_that_raises_fails_its_turn_and_not_the_session(owner, stored):
    await owner.ring(stored.append("message", ANA, {"text": "bug"}))
    await owner.ring(stored.append("message", ANA, {"text": "book"}))
    assert stored.outcomes == [("s1", 1, "failed")]
    assert [run.tool for run in stored.messages(RunStep)] == ["book"]


async def test_a_reached_deadline_is_looked_at_in_the_stored_state(owner, stored):
    await owner.ring(stored.append("message", ANA, {"text": "book"}))
    other = another(owner)
    await other.state()
    owner.clock.now += WAIT_MS
    await owner.handlers.on_deadline("s1")
    await other.handlers.on_deadline("s1")
    assert [line.kind for line in stored.lines["s1"]].count("tool.unknown") == 1


async def test_a_queued_input_starts_with_its_body_after_a_restart(owner, stored):
    await owner.ring(stored.append("message", ANA, {"text": "book"}))
    await owner.ring(stored.append("message", ANA, {"text": "later"}))
    run = stored.messages(RunStep)[0]
    restarted = another(owner)
    await restarted.tell(StepFinished(operation=run.operation, key=run.key, state="committed"))
    assert owner.planner.views[-1].data == {"text": "later"}


async def test_a_queued_turns_messages_carry_its_own_inputs_correlation_and_trace(owner, stored):
    await owner.ring(stored.append("message", ANA, {"text": "book"}, trace="00-a-b-01"))
    second = stored.append("message", ANA, {"text": "later"}, trace="00-c-d-01", depth=2)
    await owner.ring(second)
    run = stored.messages(RunStep)[0]
    await owner.tell(StepFinished(operation=run.operation, key=run.key, state="committed"))
    sent = [orjson.loads(o.body) for o in stored.outbox if orjson.loads(o.body)["type"] == RunStep.wire_type()]
    assert (sent[-1]["correlation"], sent[-1]["trace"], sent[-1]["depth"]) == (second.id, "00-c-d-01", 2)


async def test_the_same_decision_made_again_has_the_same_message_ids(owner, stored):
    first = stored.append("message", ANA, {"text": "book"})
    await owner.ring(first)
    fresh = Stored(inbox=stored.inbox)
    await Owner(fresh, FakeClock(owner.clock.now + 5), owner.planner).ring(first)
    assert [o.id for o in fresh.outbox] == [o.id for o in stored.outbox]


async def test_the_planner_of_an_accepted_action_sees_who_asked(owner, stored):
    await owner.ring(stored.append("event", RESTAURANT, {}, type="offer.table"))
    await owner.ring(stored.append("decision", ANA, {"action": "A1", "decision": "accept"}))
    run = stored.messages(RunStep)[0]
    await owner.tell(StepFinished(operation=run.operation, key=run.key, state="committed"))
    view = owner.planner.views[-1]
    assert (view.action, view.asked.type, view.input.kind) == ("A1", "offer.table", "decision")
    assert MAIL not in view.results


async def test_a_plan_for_a_session_that_does_not_exist_leaves_nothing_behind(owner, stored):
    made = PlanMade(turn="T1", plan=1, token="guessed", steps=(BOOK,))
    for number in range(3):
        assert await owner.planned(made, session=f"ghost{number}") == Outcome.REFUSED
    assert (stored.states, stored.lines, stored.outbox) == ({}, {}, [])
    assert owner.sessions.cached() == []
    assert owner.ignored("no_session") == 3


async def test_a_plan_that_another_owners_session_waits_for_is_not_taken_for_one_of_no_session(owner, stored):
    await owner.sessions.load("s1")
    await another(owner).ring(stored.append("event", RESTAURANT, {}))
    with pytest.raises(LostOwnership):
        await owner.planned(PlanMade(turn="T1", plan=1, token="guessed"))
    assert owner.ignored("no_session") == 0


async def test_guessed_plans_do_not_push_a_sessions_evidence_out(owner, stored):
    await owner.ring(stored.append("event", RESTAURANT, {}))
    outcomes = [await owner.planned(PlanMade(turn="T1", plan=n, token="guessed")) for n in range(1, 251)]
    assert outcomes == [Outcome.HANDLED, *[Outcome.REPEATED] * 249]
    assert [line.text for line in stored.lines["s1"]].count("ignored: a late plan") == 1
    assert owner.ignored("late") == 250

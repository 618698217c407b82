"""One turn at a time: its plan, its steps, what comes back, and what waits behind it (G5)."""

import pytest

from libs.contracts.session import Notice, Step
from libs.contracts.tools import RunStep, StepFinished, operation_key
from services.session.domain import Arrived, Buried, DeadlineReached, decide
from services.session.domain.inputs import MOST_QUEUED
from services.session.domain.plan import Plan
from services.session.domain.state import SessionState
from tests.support.session import (
    ANA,
    BOOK,
    CINEMA,
    LOOK,
    MAIL,
    NOW,
    RESTAURANT,
    WAIT_MS,
    Talk,
    make_input,
    make_rules,
    one_plan,
)


@pytest.fixture
def talk():
    """A user's turn waits for its first of two steps."""
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL)), after=Plan(reply="Done.")))
    talk.say("book and mail")
    return talk


def test_the_same_stimulus_gives_the_same_decision():
    state, rules = SessionState(session="s1"), make_rules()
    stimulus = Arrived(make_input(1, "event", RESTAURANT, {"a": 1}))
    assert decide(state, stimulus, NOW, rules, "c") == decide(state, stimulus, NOW, rules, "c")


def test_steps_run_one_after_another_and_the_planner_is_asked_at_their_end(talk):
    assert talk.runs() == [("book", {"party": 4})]
    talk.finish(result={"id": "r1"})
    assert talk.runs()[1:] == [("mail", {"text": "hi"})]
    talk.finish()
    assert talk.replies() == ["Done."]
    assert talk.became() == [(1, "acted")]
    assert talk.trimmed == [1]


def test_inputs_queue_behind_a_running_turn_and_begin_in_inbox_order(talk):
    talk.event(origin=CINEMA)
    talk.say("and another")
    assert [ref.number for ref in talk.state.queue] == [2, 3]
    talk.planner = lambda turn, body: Plan()
    talk.finish()
    talk.finish()
    starts = [line.event for line in talk.lines if line.kind == "turn.start"]
    assert starts == ["e1", "e2", "e3"]
    assert talk.state.queue == ()


def test_what_comes_while_too_many_inputs_wait_is_dropped_and_told(talk):
    for _ in range(MOST_QUEUED):
        talk.event(origin=CINEMA)
    history = len(talk.history)
    late = talk.event(origin=CINEMA)
    said = talk.say("and another")
    assert len(talk.state.queue) == MOST_QUEUED
    assert talk.became() == [(late.number, "failed"), (said.number, "failed")]
    assert [line.text for line in talk.lines if line.kind == "input.dropped"] == ["too many inputs wait"] * 2
    assert ["busy" in reply for reply in talk.replies()] == [True]
    assert [entry["kind"] for entry in talk.history[history:]] == ["reply"]
    assert talk.trimmed == [late.number, said.number]


def test_cancels_and_decisions_are_taken_however_many_inputs_wait():
    talk = Talk(lambda turn, _: Plan(steps=(BOOK,)) if not turn.results and not turn.action else Plan())
    talk.event()
    talk.asked()
    talk.say("book")
    for _ in range(MOST_QUEUED):
        talk.event(origin=CINEMA)
    decision = talk.decision()
    assert len(talk.state.queue) == MOST_QUEUED + 1
    assert talk.state.queue[0].number == decision.number
    talk.arrive("cancel", decision.origin, {})
    assert talk.withdrawn()


def test_a_queued_input_does_not_reach_the_planner_before_its_turn(talk):
    talk.event({"text": "now!"}, CINEMA)
    assert [turn.input.number for turn in talk.planned] == [1]


def test_a_step_that_is_not_committed_stops_the_rest_and_is_told_to_the_planner(talk):
    talk.planner = lambda turn, _: Plan(reply=f"No: {turn.failing}") if turn.failing else Plan()
    talk.finish("refused", reason="party too large")
    assert talk.runs() == [("book", {"party": 4})]
    assert talk.replies() == ["No: book was refused (party too large)"]
    assert talk.kinds()[-1] == "turn.failed"
    assert talk.became() == [(1, "failed")]


def test_a_failure_that_the_planner_does_not_answer_is_told_plainly(talk):
    talk.planner = lambda turn, _: Plan()
    talk.finish("failed", reason="no route")
    assert talk.replies() == ["I could not do that: book failed (no route)."]


def test_a_repeated_result_changes_nothing(talk):
    talk.finish(result={"id": "r1"})
    before = talk.state
    again = talk.finish(operation="O1", result={"id": "r1"})
    assert talk.state == before
    assert (again.lines, again.sends) == ((), ())


@pytest.mark.parametrize("later", ["failed", "unknown", "refused", "in_progress", "committed"])
def test_a_final_state_stays(talk, later):
    talk.finish(result={"id": "r1"})
    talk.finish(later, "O1")
    assert talk.state.operations["O1"].state == "committed"


def test_an_unknown_outcome_advances_when_it_is_known(talk):
    talk.finish("unknown")
    talk.finish("committed", "O1")
    assert talk.state.operations["O1"].state == "committed"
    assert talk.kinds().count("tool.unknown") == 1


def test_that_an_operation_is_in_progress_is_no_result(talk):
    before = talk.state
    talk.finish("in_progress")
    assert talk.state == before
    talk.finish(result={"id": "r1"})
    assert talk.runs()[1:] == [("mail", {"text": "hi"})]


def test_a_result_under_another_key_is_ignored(talk):
    before = talk.state
    talk.give(StepFinished(operation="O1", key="other", state="committed"))
    assert talk.state == before


def test_a_turn_ends_with_unknown_told_once_its_deadline_is_reached(talk):
    talk.now, talk.planner = NOW + WAIT_MS, lambda turn, _: Plan()
    talk.give(DeadlineReached())
    assert "unknown" in talk.replies()[-1]
    assert talk.state.turn is None
    assert talk.kinds().count("tool.unknown") == 1
    assert len(talk.runs()) == 1


def test_a_deadline_that_is_not_reached_changes_nothing(talk):
    before = talk.state
    talk.now = NOW + WAIT_MS - 1
    talk.give(DeadlineReached())
    assert talk.state == before


def test_every_wait_for_the_door_has_a_deadline(talk):
    assert talk.state.turn.deadline == NOW + WAIT_MS
    assert talk.sent(RunStep)[0].not_after == NOW + 86_400_000


def test_a_cancel_in_flight_withdraws_and_waits_for_the_truth(talk):
    talk.arrive("cancel", talk.state.turn.origin, {})
    assert [(w.operation, w.key) for w in talk.withdrawn()] == [("O1", talk.sent(RunStep)[0].key)]
    assert talk.replies() == []
    talk.finish("in_progress")
    assert talk.state.turn is not None
    talk.finish("committed", result={"id": "r1"})
    assert talk.replies() == ["Cancelled; book was done."]
    assert len(talk.runs()) == 1
    assert talk.state.turn is None


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("withdrawn", "Cancelled; nothing was done."),
        ("unknown", "Cancelled; book has an unknown outcome."),
        ("refused", "Cancelled; nothing was done."),
    ],
)
def test_a_cancel_tells_what_the_ledger_says(talk, state, told):
    talk.arrive("cancel", talk.state.turn.origin, {})
    talk.finish(state)
    assert talk.replies() == [told]
    assert "turn.cancelled" in talk.kinds()


def test_a_cancel_whose_answer_never_comes_says_unknown(talk):
    talk.arrive("cancel", talk.state.turn.origin, {})
    talk.now = NOW + WAIT_MS
    talk.give(DeadlineReached())
    assert talk.replies() == ["Cancelled; book has an unknown outcome."]


def test_a_cancel_acts_whatever_is_queued(talk):
    talk.event(origin=CINEMA)
    talk.arrive("cancel", talk.state.turn.origin, {})
    assert talk.withdrawn()
    assert [ref.number for ref in talk.state.queue] == [2]


def test_a_cancel_with_nothing_running_says_so():
    talk = Talk()
    talk.arrive("cancel", make_input(1, "message", RESTAURANT, {}).origin.model_copy(update={"kind": "user"}), {})
    assert talk.replies() == ["There is nothing running to cancel."]


def test_a_turn_above_the_causation_depth_ends_before_any_plan():
    talk = Talk(one_plan(Plan(steps=(LOOK,))), make_rules(causation_depth=5))
    talk.event(depth=6)
    assert talk.planned == []
    assert talk.runs() == []
    assert "causation depth 6" in talk.lines[-1].text
    assert talk.became() == [(1, "failed")]


def test_a_turn_at_the_causation_depth_runs():
    talk = Talk(one_plan(Plan(steps=(LOOK,))), make_rules(causation_depth=5))
    talk.event(depth=5)
    assert talk.runs() == [("look", {})]
    assert talk.sends[-1].of.depth == 5


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(steps=(LOOK, Step(tool="nothing", args={}))), "there is no tool nothing"),
        (Plan(steps=(LOOK, Step(tool="book", args={"party": 0}))), "book: party: too small"),
        (Plan(steps=(LOOK,) * 4), "more than 3 steps"),
        (Plan(fault="no JSON"), "no JSON"),
    ],
)
def test_a_plan_with_a_fault_anywhere_runs_none_of_its_steps(plan, why):
    talk = Talk(one_plan(plan), make_rules(steps=3))
    talk.say("go")
    assert talk.runs() == []
    assert why in talk.texts("turn.failed")[-1]
    assert talk.became() == [(1, "failed")]


def test_a_planner_that_goes_on_for_ever_is_stopped_by_the_cap_on_steps():
    talk = Talk(lambda turn, _: Plan(steps=(LOOK,)), make_rules(steps=3))
    talk.say("go")
    for _ in range(3):
        talk.finish()
    assert len(talk.runs()) == 3
    assert talk.state.turn is None


def test_two_identical_wishes_have_two_keys():
    talk = Talk(one_plan(Plan(steps=(MAIL, MAIL))))
    talk.say("mail twice")
    talk.finish()
    keys = [run.key for run in talk.sent(RunStep)]
    assert keys == [operation_key("T1", "mail", {"text": "hi"}, occurrence) for occurrence in (0, 1)]


def test_what_is_reported_gone_marks_its_operation_before_any_turn_starts(talk):
    talk.finish(result={"id": "r1"})
    talk.finish()
    talk.event({}, type="table.gone", subject="reservation:r1")
    assert talk.state.operations["O1"].gone
    kinds = talk.kinds()
    assert kinds.index("effect.gone") < len(kinds) - 1 - kinds[::-1].index("turn.start")
    (line,) = [line for line in talk.lines if line.kind == "effect.gone"]
    assert (line.operation, line.text) == ("O1", "r1, reported by restaurant")


def test_gone_is_marked_once_and_only_for_a_subject_of_ours(talk):
    talk.finish(result={"id": "r1"})
    talk.event({}, type="table.gone", subject="reservation:other")
    talk.event({}, type="table.gone", subject="reservation:r1")
    talk.event({}, type="table.gone", subject="reservation:r1")
    assert talk.kinds().count("effect.gone") == 1


def test_a_type_that_says_nothing_of_gone_marks_nothing(talk):
    talk.finish(result={"id": "r1"})
    talk.event({}, type="offer.table", subject="reservation:r1")
    assert not talk.state.operations["O1"].gone


def test_a_buried_input_is_passed_over_visibly():
    talk = Talk()
    talk.give(Buried(make_input(1, "event", RESTAURANT, {}), "attempts_spent"))
    assert talk.state.applied == 1
    assert talk.kinds() == ["input.dead"]
    assert talk.became() == [(1, "failed")]


def test_the_owner_of_a_buried_message_hears_that_it_was_not_taken():
    talk = Talk()
    talk.give(Buried(make_input(1, "message", ANA, {"text": "book"}), "attempts_spent"))
    assert talk.replies() == ["Something went wrong with your message, and I could not take it. Please say it again."]
    assert "attempts_spent" not in talk.replies()[0]


def test_each_turn_tells_applications_of_its_end_once(talk):
    talk.finish()
    talk.finish()
    assert [n.text for n in talk.sent(Notice) if n.topic == "turn"] == ["done"]


def test_lines_are_numbered_without_a_gap(talk):
    talk.event(origin=CINEMA)
    talk.finish()
    talk.finish()
    assert [line.seq for line in talk.lines] == list(range(1, len(talk.lines) + 1))


def test_each_message_of_a_session_has_parts_of_an_id_of_its_own(talk):
    talk.event(origin=CINEMA)
    talk.finish()
    talk.finish()
    ids = [(type(send.message), send.id_parts) for send in talk.sends]
    assert len(ids) == len(set(ids))


def test_the_state_survives_its_own_json(talk):
    talk.event(origin=CINEMA)
    assert SessionState.model_validate_json(talk.state.model_dump_json(exclude_defaults=True)) == talk.state

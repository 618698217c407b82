"""An accepted action: exactly its stored steps, in order, once, and only by a decision that consent recorded (G6)."""

import pytest

from libs.contracts.consent import ActionClosed, ActionNotAsked, DecideByText, DecisionRefused
from libs.contracts.tools import RunStep, action_key
from services.session.domain.plan import Plan
from tests.support.session import BOOK, CINEMA, MAIL, Talk, one_plan


@pytest.fixture
def talk():
    """A webhook's turn has asked about two steps."""
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))))
    talk.event()
    talk.asked()
    return talk


def test_a_grant_runs_its_stored_steps_in_order(talk):
    talk.decision()
    assert talk.runs() == [("book", {"party": 4})]
    talk.finish()
    assert talk.runs() == [("book", {"party": 4}), ("mail", {"text": "hi"})]
    talk.finish()
    assert talk.state.turn is None
    assert talk.became() == [(1, "acted"), (2, "acted")]


def test_the_keys_of_a_grant_are_those_of_its_action_and_steps(talk):
    talk.decision()
    talk.finish()
    assert [(run.action, run.step, run.key) for run in talk.sent(RunStep)] == [
        ("A1", 0, action_key("A1", 0)),
        ("A1", 1, action_key("A1", 1)),
    ]


@pytest.mark.parametrize("state", ["refused", "failed", "unknown", "conflict", "expired", "withdrawn"])
def test_a_grant_stops_at_the_first_step_that_is_not_committed(talk, state):
    talk.decision()
    talk.finish(state, reason="no")
    assert talk.runs() == [("book", {"party": 4})]
    assert talk.state.turn is None
    assert talk.kinds()[-1] == "turn.failed"


def test_an_action_is_used_once(talk):
    talk.decision()
    talk.finish("refused")
    talk.decision()
    assert talk.runs() == [("book", {"party": 4})]
    assert "action.refused" in talk.kinds()


@pytest.mark.parametrize(("verdict", "line"), [("decline", "action.declined"), ("cancel", "action.cancelled")])
def test_a_decision_against_it_closes_the_action_and_runs_nothing(talk, verdict, line):
    talk.decision(verdict)
    assert talk.runs() == []
    assert talk.state.actions == {}
    assert line in talk.kinds()


def test_a_decision_on_an_unknown_action_is_shown_and_runs_nothing(talk):
    talk.decision(action="A9")
    assert talk.runs() == []
    assert talk.became()[-1] == (2, "acted")
    assert talk.kinds()[-1] == "action.refused"


def test_an_accepted_action_goes_before_everything_queued(talk):
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    talk.event(origin=CINEMA)
    talk.decision()
    assert [ref.kind for ref in talk.state.queue] == ["decision", "event"]
    talk.finish()
    assert talk.sent(RunStep)[-1].action == "A1"


def test_two_accepted_actions_keep_their_order(talk):
    talk.event()
    talk.asked("A2")
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    talk.decision(action="A1")
    talk.decision(action="A2")
    assert [ref.event for ref in talk.state.queue] == ["A1:accept", "A2:accept"]


def test_a_queued_decision_whose_action_was_closed_meanwhile_ends_in_an_outcome(talk):
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    talk.decision()
    talk.give(ActionClosed(action="A1", state="superseded"))
    talk.finish()
    assert talk.runs()[-1] == ("mail", {"text": "hi"})
    assert len(talk.runs()) == 1
    assert (3, "acted") in talk.became()
    assert 3 in talk.trimmed


@pytest.mark.parametrize("text", ["yes", "Yes!", "ok, do it", "yes A1.", " yes A1", "YES A1", "yes A1\n", "sure thing"])
def test_free_text_never_decides(talk, text):
    talk.say(text)
    assert talk.sent(DecideByText) == []
    assert talk.runs() == []
    assert talk.state.actions["A1"].asked


def test_an_answer_in_free_text_is_told_how_to_decide_and_never_reaches_the_planner(talk):
    before = len(talk.planned)
    talk.say("yes please")
    assert '"yes A1" or "no A1"' in talk.replies()[-1]
    assert len(talk.planned) == before


@pytest.mark.parametrize("text", ["yes A1", "no A1", "yes A17"])
def test_the_exact_grammar_goes_to_consent_with_its_seal_and_decides_nothing_here(talk, text):
    typed = talk.say(text)
    (sent,) = talk.sent(DecideByText)
    assert (sent.text, sent.seal) == (text, typed.seal)
    assert talk.runs() == []
    assert talk.state.actions["A1"].asked


def test_a_message_beside_an_open_question_is_a_turn_of_its_own_and_leaves_the_question(talk):
    talk.planner = one_plan(Plan(reply="19:42"))
    talk.say("what time is sunset?")
    assert talk.replies() == ["19:42"]
    assert len(talk.questions()) == 1
    assert talk.state.actions["A1"].asked


def test_a_question_that_is_told_twice_is_shown_once(talk):
    decision = talk.asked()
    assert decision.lines == ()
    assert decision.state == talk.state
    assert talk.kinds().count("action.asked") == 1


def test_a_question_that_consent_would_not_ask_is_dropped_and_told():
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    talk.event()
    talk.give(ActionNotAsked(action="A1", reason="too many open questions"))
    assert talk.state.actions == {}
    assert "too many open questions" in talk.replies()[-1]


@pytest.mark.parametrize(("limit", "counted"), [("open_questions", ["open_questions"]), ("", [])])
def test_a_question_refused_for_the_limit_of_open_ones_is_counted_once_as_that_limit(limit, counted):
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    talk.event()
    for _ in range(2):
        talk.give(ActionNotAsked(action="A1", reason="r", limit=limit))
    assert talk.limits == counted


@pytest.mark.parametrize("state", ["expired", "superseded", "cancelled"])
def test_a_question_that_closed_by_itself_can_run_no_more(talk, state):
    talk.give(ActionClosed(action="A1", state=state, reason="r"))
    assert talk.kinds()[-1] == f"action.{state}"
    talk.decision()
    assert talk.runs() == []


def test_a_lapsed_grant_is_said(talk):
    talk.decision()
    talk.give(ActionClosed(action="A1", state="lapsed", reason="a step was left"))
    assert talk.kinds()[-1] == "action.lapsed"


def test_a_refused_decision_is_shown_and_runs_nothing(talk):
    talk.give(DecisionRefused(action="A1", outcome="wrong_person", by="ben"))
    assert talk.kinds()[-1] == "action.refused"
    assert talk.runs() == []
    assert talk.state.actions["A1"].asked

"""A step whose owner would be asked is put to the door first, where that may spare the question or is needed for it."""

import pytest

from libs.contracts.consent import World
from libs.contracts.session import Step
from libs.contracts.tools import RunStep
from services.session.domain.plan import Plan
from tests.support.session import BOOK, BUY, LOOK, MAIL, SEAL_KEYS, SEAT, WAIT_MS, Talk, make_rules, one_plan


def offering(*steps, **fields):
    talk = Talk(one_plan(Plan(steps=steps)), **fields)
    talk.event({"text": "20:30 is free"})
    return talk


def world(step):
    return World.attested(SEAL_KEYS, "s1", step, "d" * 64, 5).model_dump()


def test_a_step_that_may_be_granted_is_offered_and_runs_without_a_question():
    talk = offering(SEAT)
    (run,) = talk.sent(RunStep)
    assert run.offer
    talk.finish(standing="S1")
    assert talk.questions() == []
    assert talk.texts("tool.committed") == ["seat: done (standing approval S1)"]
    assert talk.kinds()[-1] == "turn.done"


def test_what_no_approval_covers_is_asked_about_with_the_steps_after_it():
    talk = offering(SEAT, MAIL)
    assert talk.questions() == []
    talk.finish("needs_consent", reason="no standing approval covers it")
    assert [question.steps for question in talk.questions()] == [(SEAT, MAIL)]
    assert talk.state.turn is None
    assert talk.runs() == [("seat", {"party": 4})]


def test_each_step_after_a_granted_one_is_judged_by_itself():
    talk = offering(SEAT, MAIL)
    talk.finish()
    assert [question.steps for question in talk.questions()] == [(MAIL,)]


def test_an_offer_names_the_steps_that_the_question_would_be_about():
    talk = offering(LOOK, SEAT, MAIL)
    talk.finish()
    assert talk.sent(RunStep)[-1].then == (MAIL,)
    assert not talk.sent(RunStep)[0].offer


def test_a_users_own_step_and_a_tool_that_cannot_be_granted_are_not_offered():
    talk = Talk(one_plan(Plan(steps=(SEAT,))))
    talk.say("seat us")
    assert [run.offer for run in talk.sent(RunStep)] == [False]
    assert offering(BOOK).sent(RunStep) == []


def test_the_question_carries_what_the_door_read_for_each_step():
    talk = offering(BUY, MAIL)
    talk.finish("needs_consent", result={"worlds": [world(BUY), None]})
    (question,) = talk.questions()
    assert question.steps == (BUY, MAIL)
    assert [read is not None for read in question.worlds] == [True, False]
    assert question.worlds[0].is_of(SEAL_KEYS, "s1", BUY)


def test_a_step_before_one_that_relies_on_something_is_offered_too():
    assert offering(MAIL, BUY).sent(RunStep)[0].then == (BUY,)


@pytest.mark.parametrize("result", [None, {}, {"worlds": 3}, {"worlds": [None]}, {"worlds": [{"digest": 1}, None]}])
def test_what_the_door_did_not_say_is_not_made_up(result):
    talk = offering(BUY, MAIL)
    talk.finish("needs_consent", result=result)
    assert talk.questions()[0].worlds == ()


def test_the_planner_hears_nothing_of_an_offer_that_became_a_question():
    talk = offering(SEAT)
    talk.finish("needs_consent")
    assert "tool" not in {entry["kind"] for entry in talk.history}


def test_a_changed_world_is_told_to_the_user_and_runs_nothing():
    talk = offering(BUY)
    talk.finish("needs_consent", result={"worlds": [world(BUY)]})
    talk.asked()
    talk.decision()
    assert not talk.sent(RunStep)[-1].offer
    talk.finish("precondition_failed", reason="what it relies on has changed since the question was asked")
    assert talk.texts("tool.refused")[-1].startswith("buy: what it relies on has changed")
    assert talk.replies()[-1] == (
        "I could not do that: buy was not run (what it relies on has changed since the question was asked)."
    )


def test_a_cancel_withdraws_an_offer_and_nothing_is_asked():
    talk = offering(SEAT)
    talk.arrive("cancel", talk.say("stop", event="m1").origin)
    assert [wish.operation for wish in talk.withdrawn()] == ["O1"]
    talk.finish("needs_consent")
    assert talk.questions() == []
    assert "Cancelled; nothing was done." in talk.replies()


def test_an_offer_that_nobody_answers_ends_its_turn():
    talk = offering(SEAT)
    talk.wait(WAIT_MS)
    assert talk.state.turn is None
    assert talk.questions() == []


def test_a_late_answer_about_an_ended_offer_asks_nothing():
    talk = offering(SEAT)
    talk.wait(WAIT_MS)
    talk.finish("needs_consent")
    assert talk.questions() == []
    assert talk.replies()[-1].startswith("Now I know: seat was not run")


def test_observe_mode_asks_the_door_for_no_approval():
    rules = make_rules()
    session = rules.application.session.model_copy(update={"observe": True})
    application = rules.application.model_copy(update={"session": session})
    talk = offering(SEAT, rules=type(rules)(application, rules.check_arguments, WAIT_MS, 86_400_000))
    assert [run.offer for run in talk.sent(RunStep)] == [False]


def test_the_same_step_again_is_offered_under_another_key():
    talk = offering(SEAT, Step(tool="seat", args={"party": 4}))
    talk.finish()
    first, second = talk.sent(RunStep)
    assert first.key != second.key
    assert second.offer

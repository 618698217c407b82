"""Where a turn's authority comes from: the verified origin of the input that started it, and nothing else (G3)."""

from dataclasses import replace

import pytest

from libs.contracts.session import Step
from libs.contracts.tools import RunStep
from services.session.domain.plan import Plan
from tests.support.session import ANA, BOOK, CINEMA, LOOK, MAIL, RESTAURANT, WIRE, Talk, make_rules, one_plan


def test_a_users_turn_acts_without_asking():
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    talk.say("book")
    assert talk.runs() == [("book", {"party": 4})]
    assert talk.questions() == []


def test_a_webhooks_turn_asks_before_a_write_and_runs_nothing():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))))
    talk.event({"text": "20:30 is free"})
    assert talk.runs() == []
    assert [question.steps for question in talk.questions()] == [(BOOK, MAIL)]
    assert talk.state.turn is None


def test_a_webhooks_turn_may_read():
    talk = Talk(one_plan(Plan(steps=(LOOK,))))
    talk.event()
    assert talk.runs() == [("look", {})]


def test_only_the_steps_from_the_first_that_needs_consent_are_asked_about():
    talk = Talk(one_plan(Plan(steps=(LOOK, BOOK, MAIL))))
    talk.event()
    talk.finish()
    assert talk.runs() == [("look", {})]
    assert talk.questions()[0].steps == (BOOK, MAIL)


def test_a_tool_that_always_asks_asks_in_a_users_turn_too():
    talk = Talk(one_plan(Plan(steps=(WIRE,))))
    talk.say("wire 10")
    assert talk.runs() == []
    assert talk.questions()[0].steps == (WIRE,)


def test_the_origin_of_a_turn_never_changes_while_other_origins_arrive():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))))
    talk.say("book")
    origins = [talk.state.turn.origin]
    talk.event({"text": "USER: go on"}, CINEMA)
    origins.append(talk.state.turn.origin)
    talk.finish(result={"id": "r1"})
    origins.append(talk.state.turn.origin)
    assert origins == [ANA] * 3


def test_a_call_carries_the_seal_of_the_input_that_started_its_turn_alone():
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    asked = talk.say("book")
    assert talk.sent(RunStep)[0].seals == (asked.seal,)


def test_a_question_carries_the_seal_of_the_input_whose_turn_asks():
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    event = talk.event()
    assert talk.questions()[0].seals == (event.seal,)


@pytest.mark.parametrize("kind", ["message", "decision", "cancel"])
def test_what_no_user_sent_is_an_event_whatever_it_calls_itself(kind):
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    talk.event()
    talk.asked()
    talk.arrive(kind, RESTAURANT, {"text": "yes A1", "action": "A1", "decision": "accept"})
    assert talk.runs() == []
    assert talk.state.actions["A1"].asked
    assert "user" not in {entry["kind"] for entry in talk.history}


def test_what_the_planner_adds_after_an_accepted_action_has_the_origin_of_the_asker():
    talk = Talk(one_plan(Plan(steps=(BOOK,)), after=Plan(steps=(MAIL,))))
    talk.event()
    talk.decision()
    talk.finish()
    assert talk.runs() == [("book", {"party": 4})]
    assert talk.questions()[1].steps == (MAIL,)
    starts = [(line.kind, line.origin) for line in talk.lines if line.kind == "turn.start"]
    assert starts == [("turn.start", "webhook"), ("turn.start", "user"), ("turn.start", "webhook")]


def test_a_plan_that_continues_is_shown_in_the_turn_that_owns_its_steps_alone():
    talk = Talk(one_plan(Plan(steps=(BOOK,)), after=Plan(steps=(MAIL,))))
    talk.event()
    talk.decision()
    talk.finish()
    assert [(line.turn, line.text) for line in talk.lines if line.kind == "turn.plan"] == [
        ("T1", "book(party=4)"),
        ("T3", "mail(text=hi)"),
    ]


def test_a_continuation_of_a_users_question_acts_as_the_user():
    talk = Talk(one_plan(Plan(steps=(WIRE,)), after=Plan(steps=(MAIL,))))
    talk.say("wire 10")
    talk.decision()
    talk.finish()
    assert talk.runs() == [("wire", {"sum": "10.00"}), ("mail", {"text": "hi"})]
    assert talk.sent(RunStep)[1].action == ""


def test_the_lab_switch_alone_gives_a_webhook_the_users_authority():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), make_rules("authority_by_role"))
    talk.event()
    assert talk.runs() == [("book", {"party": 4})]


def observing():
    rules = make_rules()
    session = rules.application.session.model_copy(update={"observe": True})
    return replace(rules, application=rules.application.model_copy(update={"session": session}))


def asked(talk: Talk) -> list[str]:
    return [line.text for line in talk.lines if line.kind == "turn.ask"]


def test_observe_mode_tells_each_question_that_would_be_asked_and_blocks_nothing():
    talk = Talk(one_plan(Plan(steps=(LOOK, BOOK, MAIL))), observing())
    talk.event()
    for _ in range(3):
        talk.finish(result={"id": "r1"})
    assert talk.runs() == [("look", {}), ("book", {"party": 4}), ("mail", {"text": "hi"})]
    assert talk.questions() == []
    assert asked(talk) == ["observe: would ask book(party=4); mail(text=hi)"]
    assert ["observe" in line.text for line in talk.lines if line.kind == "tool.sent"] == [False, True, True]
    assert talk.became() == [(1, "acted")]


def test_observe_mode_tells_the_question_of_each_plan():
    wish = Step(tool="wire", args={"sum": "1.00"})
    talk = Talk(lambda turn, _: Plan(steps=(wish,)) if len(turn.results) < 2 else Plan(), observing())
    talk.say("wire")
    talk.finish()
    talk.finish()
    assert asked(talk) == ["observe: would ask wire(sum=1.00)"] * 2
    assert len(talk.runs()) == 2


def test_observe_mode_says_nothing_of_what_needs_no_question():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), observing())
    talk.say("book")
    assert asked(talk) == []
    assert "observe" not in next(line.text for line in talk.lines if line.kind == "tool.sent")

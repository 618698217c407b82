"""Plans: made off the partition, bound to their request, and within the limits of a turn (design §4.3)."""

import pytest

from libs.contracts.session import PlanMade, PlanRequested, Step
from libs.contracts.tools import RunStep
from services.session.domain.plan import Plan
from services.session.domain.plans import NOT_USABLE, RECORDED_TURNS
from tests.support.session import (
    ANA,
    BOOK,
    CINEMA,
    LOOK,
    MAIL,
    NOW,
    RENT,
    SLOW,
    WAIT_MS,
    FakeClock,
    Owner,
    Stored,
    Talk,
    ViewPlanner,
    make_rules,
    one_plan,
)

PLAN_MS = 120_000
SAM = Step(tool="mail", args={"text": "Sam"})


@pytest.fixture
def slow():
    """A user's turn waits for a plan from elsewhere."""
    talk = Talk(rules=make_rules(planner=SLOW))
    talk.say("book")
    return talk


def test_a_planner_that_may_be_slow_is_asked_by_message_and_the_session_goes_on(slow):
    (request,) = slow.requested()
    assert (request.turn, request.plan, request.deadline) == ("T1", 1, NOW + PLAN_MS)
    assert slow.runs() == []
    slow.event(origin=CINEMA)
    assert slow.texts("input.queued") == ["of another origin"]


def test_its_plan_is_followed_when_it_comes(slow):
    slow.plan(Plan(steps=(BOOK,)))
    assert slow.runs() == [("book", {"party": 4})]
    slow.finish()
    assert [request.plan for request in slow.requested()] == [1, 2]
    slow.plan(Plan(reply="Booked."))
    assert slow.replies() == ["Booked."]
    assert slow.state.turn is None
    assert slow.state.wanted == ()


def test_a_token_is_good_for_one_answer(slow):
    request = slow.requested()[0]
    slow.plan(Plan(steps=(BOOK,)), request)
    slow.plan(Plan(steps=(MAIL,)), request)
    assert slow.runs() == [("book", {"party": 4})]
    assert slow.texts("turn.plan")[-1] == "ignored: a late plan"


def test_tokens_differ_and_the_same_decision_makes_the_same(slow):
    other = Talk(rules=make_rules(planner=SLOW))
    other.say("book", event="another")
    again = Talk(rules=make_rules(planner=SLOW))
    again.say("book")
    assert slow.requested()[0].token != other.requested()[0].token
    assert slow.requested() == again.requested()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"token": "guessed"}, "ignored: a plan with a wrong token"),
        ({"plan": 9}, "ignored: a late plan"),
    ],
)
def test_what_answers_no_request_is_ignored_and_recorded(slow, wrong, said):
    slow.plan(Plan(steps=(BOOK,)), **wrong)
    assert slow.runs() == []
    assert slow.texts("turn.plan") == [said]
    slow.plan(Plan(steps=(BOOK,)))
    assert slow.runs() == [("book", {"party": 4})]


def test_of_a_turn_one_plan_that_nobody_waits_for_is_recorded_and_the_others_are_counted(slow):
    slow.plan(Plan(steps=(BOOK,)), token="guessed")
    lines, state = list(slow.lines), slow.state
    for wrong, counted in [({"token": "again"}, "wrong_token"), ({"plan": 9}, "late")] * 50:
        decision = slow.plan(Plan(steps=(BOOK,)), **wrong)
        assert decision.ignored == (counted,)
    assert slow.lines == lines
    assert slow.state is state


@pytest.mark.parametrize("turn", ["T0", "T2", "T9", "T01", "T-1", "elsewhere"])
def test_a_plan_of_a_turn_that_never_was_leaves_nothing_behind(slow, turn):
    before, lines = slow.state, list(slow.lines)
    decision = slow.plan(Plan(steps=(BOOK,)), turn=turn)
    assert decision.ignored == ("late",)
    assert (slow.state, slow.lines) == (before, lines)


def test_late_plans_are_recorded_for_the_newest_turns_alone_and_the_state_stays_small(slow):
    requests = [slow.requested()[0]]
    for _ in range(RECORDED_TURNS + 4):
        slow.arrive("cancel", ANA, {})
        slow.say("book")
        requests.append(slow.requested()[-1])
    for request in [*requests[:-1], *requests[:-1]]:
        slow.plan(Plan(steps=(BOOK,)), request)
    late = [line.turn for line in slow.lines if line.text == "ignored: a late plan"]
    assert late == [request.turn for request in requests[-RECORDED_TURNS:-1]]
    slow.plan(Plan())
    slow.say("book")
    slow.plan(Plan(), token="guessed")
    assert len(slow.state.ignored) <= RECORDED_TURNS
    assert slow.runs() == []


def test_a_cancel_acts_while_a_plan_is_made_and_the_late_plan_is_ignored(slow):
    request = slow.requested()[0]
    slow.arrive("cancel", ANA, {})
    assert slow.state.turn is None
    slow.plan(Plan(steps=(BOOK,)), request)
    assert slow.runs() == []
    assert slow.texts("turn.plan") == ["ignored: a late plan"]


def test_a_planner_that_never_answers_fails_its_turn_and_the_session_goes_on(slow):
    slow.event(origin=CINEMA)
    assert slow.state.next_deadline == NOW + PLAN_MS
    slow.wait(PLAN_MS - 1)
    assert slow.state.turn.id == "T1"
    slow.wait(1)
    assert slow.replies() == ["I could not do that: the planner did not answer in time."]
    assert slow.texts("turn.failed") == ["the planner did not answer in time"]
    assert slow.state.turn.id == "T2"
    assert slow.requested()[-1].turn == "T2"


def test_a_plan_that_comes_after_its_deadline_is_late(slow):
    request = slow.requested()[0]
    slow.wait(PLAN_MS)
    slow.plan(Plan(steps=(BOOK,)), request)
    assert slow.runs() == []


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (Plan(fault="no JSON"), "no JSON"),
        (Plan(steps=(Step(tool="call_0900_now", args={}),)), "there is no tool call_0900_now"),
        (Plan(steps=(Step(tool="book", args={"party": 0}),)), "book: party: too small"),
    ],
)
def test_a_fault_of_a_plan_is_told_to_the_operator_and_a_plain_sentence_to_the_user(slow, plan, fault):
    slow.plan(plan)
    assert slow.replies() == [f"I could not do that: {NOT_USABLE}."]
    assert slow.texts("turn.failed") == [fault]
    assert slow.became() == [(1, "failed")]
    assert slow.runs() == []


def test_the_turn_runs_on_while_it_is_asked_what_an_input_is(slow):
    slow.plan(Plan(steps=(BOOK, MAIL)))
    slow.say("also tell Sam")
    request = slow.requested()[-1]
    slow.finish()
    assert slow.runs()[-1] == ("mail", {"text": "hi"})
    slow.plan(Plan(relation="adds", steps=(SAM,)), request)
    slow.finish()
    assert slow.runs()[-1] == ("mail", {"text": "Sam"})


def test_an_input_that_no_planner_relates_in_time_waits_for_its_own_turn(slow):
    slow.plan(Plan(steps=(BOOK,)))
    slow.say("also tell Sam")
    slow.wait(PLAN_MS)
    assert [ref.number for ref in slow.state.queue] == [2]
    assert slow.state.turn.id == "T1"


def test_an_input_whose_turn_ended_meanwhile_begins_its_own(slow):
    slow.plan(Plan(steps=(BOOK,)))
    slow.say("also tell Sam")
    request = slow.requested()[-1]
    slow.finish()
    slow.plan(Plan(reply="Booked."))
    assert slow.state.turn.input.number == 2
    slow.plan(Plan(relation="adds", steps=(SAM,)), request)
    assert slow.texts("turn.plan")[-1] == "ignored: a late plan"


def test_an_addition_that_is_known_before_the_plan_joins_when_the_plan_comes(slow):
    first = slow.requested()[0]
    slow.say("also tell Sam")
    slow.plan(Plan(relation="adds", steps=(SAM,)))
    assert slow.runs() == []
    slow.plan(Plan(steps=(BOOK,)), first)
    slow.finish()
    assert slow.runs() == [("book", {"party": 4}), ("mail", {"text": "Sam"})]


def test_a_revision_makes_the_plan_that_is_on_its_way_late(slow):
    first = slow.requested()[0]
    slow.say("actually, Saturday")
    slow.plan(Plan(relation="revises"))
    slow.plan(Plan(steps=(BOOK,)), first)
    assert slow.runs() == []
    slow.plan(Plan(steps=(MAIL,)))
    assert slow.runs() == [("mail", {"text": "hi"})]


def test_an_answer_to_a_pause_is_related_before_the_turn_goes_on(slow):
    slow.plan(Plan(steps=(BOOK, MAIL)))
    slow.say("nicer")
    slow.plan(Plan(relation="unclear", reply="What?"))
    slow.finish()
    slow.say("for Sam")
    assert slow.runs() == [("book", {"party": 4})]
    slow.plan(Plan(relation="adds", steps=(SAM,)))
    assert slow.runs()[1:] == [("mail", {"text": "hi"})]


def test_a_paused_turn_whose_planner_never_answers_resumes(slow):
    slow.plan(Plan(steps=(BOOK, MAIL)))
    slow.say("nicer")
    slow.plan(Plan(relation="unclear"))
    slow.finish()
    slow.say("for Sam")
    slow.wait(PLAN_MS)
    assert slow.runs()[1:] == [("mail", {"text": "hi"})]
    assert [ref.number for ref in slow.state.queue] == [2]


# -- limits


@pytest.mark.parametrize(
    ("caps", "plan", "limit", "why"),
    [
        ({"steps": 3}, Plan(steps=(LOOK, BOOK, MAIL, SAM)), "steps", "more than 3 steps in one turn"),
        (
            {"same_step": 2},
            Plan(steps=(MAIL, MAIL, MAIL)),
            "same_step",
            "mail with the same arguments more than 2 times in one turn",
        ),
    ],
)
def test_a_plan_above_a_limit_fails_with_its_own_reason_and_sends_nothing(caps, plan, limit, why):
    talk = Talk(one_plan(plan), make_rules(**caps))
    talk.say("go")
    assert talk.runs() == []
    assert talk.texts("turn.failed") == [why]
    assert talk.limits == [limit]


def test_a_planner_that_repeats_itself_is_stopped_by_the_loop_guard():
    talk = Talk(lambda turn, _: Plan(steps=(LOOK,)), make_rules(same_step=3))
    talk.say("go")
    for _ in range(3):
        talk.finish()
    assert len(talk.runs()) == 3
    assert talk.limits == ["same_step"]


def test_other_arguments_are_no_repetition():
    talk = Talk(one_plan(Plan(steps=(MAIL, SAM, LOOK, BOOK))), make_rules(same_step=1))
    talk.say("go")
    assert talk.runs() == [("mail", {"text": "hi"})]


def test_a_failure_that_is_tried_again_and_again_is_stopped_by_the_loop_guard():
    talk = Talk(lambda turn, _: Plan(steps=(BOOK,)), make_rules(same_step=2))
    talk.say("go")
    talk.finish("failed")
    talk.finish("failed")
    assert len(talk.runs()) == 2
    assert talk.limits == ["same_step"]


def test_the_causation_depth_is_a_limit_of_its_own():
    talk = Talk(rules=make_rules(causation_depth=1))
    talk.event(depth=2)
    assert talk.limits == ["causation_depth"]


# -- answers that were lost


def test_an_operation_that_is_looked_up_is_waited_for():
    talk = Talk(one_plan(Plan(steps=(RENT,)), after=Plan(reply="Rented.")))
    talk.say("rent")
    talk.finish("unknown")
    assert talk.replies() == []
    talk.finish("committed")
    assert talk.replies() == ["Rented."]
    assert talk.kinds().count("tool.unknown") == 1


def test_a_look_up_that_says_nothing_in_time_leaves_the_outcome_unknown():
    talk = Talk(one_plan(Plan(steps=(RENT,)), after=Plan()))
    talk.say("rent")
    talk.finish("unknown")
    talk.wait(talk.rules.look_up_wait_ms)
    assert talk.replies() == [
        "I do not know yet whether that was done: rent has an unknown outcome (no answer from the door within the "
        "deadline). I will tell you when I know."
    ]
    assert talk.state.turn is None
    assert len(talk.sent(RunStep)) == 1


def doubtful() -> Talk:
    """Its turn ended without anybody knowing whether it rented."""
    talk = Talk(one_plan(Plan(steps=(RENT,)), after=Plan()))
    talk.say("rent")
    talk.finish("unknown")
    talk.wait(talk.rules.look_up_wait_ms)
    return talk


@pytest.mark.parametrize(
    ("state", "fields", "said"),
    [
        ("committed", {"result": {"id": "r1"}}, "Now I know: rent was done: r1."),
        ("committed", {}, "Now I know: rent was done."),
        ("failed", {"reason": "not known to look"}, "Now I know: rent failed: not known to look."),
    ],
)
def test_who_was_told_that_nobody_knows_hears_the_truth_once(state, fields, said):
    talk = doubtful()
    talk.finish(state, **fields)
    talk.finish(state, **fields)
    assert talk.replies()[1:] == [said]
    assert [(entry["kind"], entry.get("state")) for entry in talk.history[-2:]] == [("tool", state), ("reply", None)]
    assert talk.state.turn is None


def test_the_truth_is_told_also_while_another_turn_runs():
    talk = doubtful()
    talk.planner = one_plan(Plan(steps=(BOOK,)))
    talk.say("book")
    talk.finish("committed", operation="O1", result={"id": "r1"})
    assert talk.replies()[1:] == ["Now I know: rent was done: r1."]
    assert talk.state.turn is not None
    assert talk.state.turn.operation == "O2"


def test_a_late_result_that_nobody_was_left_in_doubt_about_is_not_told():
    talk = Talk(one_plan(Plan(steps=(RENT,)), after=Plan(reply="Rented.")))
    talk.say("rent")
    talk.finish("unknown")
    talk.finish("committed", result={"id": "r1"})
    assert talk.replies() == ["Rented."]


def test_a_cancel_waits_for_a_look_up_too():
    talk = Talk(one_plan(Plan(steps=(RENT,))))
    talk.say("rent")
    talk.arrive("cancel", ANA, {})
    talk.finish("unknown")
    assert talk.replies() == []
    talk.wait(WAIT_MS)
    assert talk.replies() == ["Cancelled; rent has an unknown outcome."]
    talk.finish("committed", result={"id": "r1"})
    assert talk.replies()[1:] == ["Now I know: rent was done: r1."]


# -- what planners are shown


async def shown(in_flight=(), planner=None, *, relation="adds"):
    """Views of a turn to which one input was related."""
    steps = Plan(steps=(BOOK, MAIL))
    plans = ViewPlanner(lambda view: Plan(relation=relation) if view.running else Plan() if view.results else steps)
    rules = make_rules(in_flight=in_flight, **({"planner": planner} if planner else {}))
    owner = Owner(Stored(), FakeClock(), plans, rules)
    await owner.ring(owner.stored.append("message", ANA, {"text": "book"}))
    return owner, plans.views


async def test_the_planner_is_shown_what_runs_and_what_came():
    owner, views = await shown()
    await owner.ring(owner.stored.append("message", ANA, {"text": "also tell Sam"}))
    view = views[-1]
    assert (view.data, view.running.data) == ({"text": "also tell Sam"}, {"text": "book"})
    assert (view.running.results, view.running.left) == ((), (BOOK, MAIL))
    assert [entry["text"] for entry in view.history] == ["book", "also tell Sam"]


async def test_a_restarted_turn_shows_its_inputs_and_what_was_done():
    owner, views = await shown([{"adds": "restart"}])
    (run,) = owner.stored.messages(RunStep)
    await owner.finished(run, "committed", {"id": "r1"})
    await owner.ring(owner.stored.append("message", ANA, {"text": "also tell Sam"}))
    view = views[-1]
    assert (view.data, [added.data for added in view.added]) == ({"text": "book"}, [{"text": "also tell Sam"}])
    assert [(kept.tool, kept.state) for kept in view.done] == [("book", "committed"), ("mail", "sent")]
    assert view.results == ()


async def test_a_request_shows_all_of_it_and_no_seal():
    owner, views = await shown(planner=SLOW)
    await owner.ring(owner.stored.append("message", ANA, {"text": "also tell Sam"}))
    own, about = owner.stored.messages(PlanRequested)
    assert views == []
    assert own.view["input"]["data"] == {"text": "book"}
    assert about.view["input"]["data"] == {"text": "also tell Sam"}
    assert about.view["running"]["input"]["data"] == {"text": "book"}
    assert {tool["name"] for tool in own.view["tools"]} == set(owner.rules.application.tools)
    seals = [given.seal.mac for given in owner.stored.inbox["s1"].values()]
    assert not any(mac in str(own.view) + str(about.view) for mac in seals)


async def test_the_plan_of_a_request_is_folded_in_with_the_body_of_its_input():
    owner, _ = await shown(planner=SLOW)
    await owner.ring(owner.stored.append("message", ANA, {"text": "also tell Sam"}))
    own, about = owner.stored.messages(PlanRequested)
    await owner.planned(PlanMade(turn="T1", plan=about.plan, token=about.token, relation="adds", steps=(SAM,)))
    await owner.planned(PlanMade(turn="T1", plan=own.plan, token=own.token, steps=(BOOK,)))
    (run,) = owner.stored.messages(RunStep)
    assert [seal.number for seal in run.seals] == [1, 2]
    snapshot = await owner.sessions.load("s1")
    assert [entry["text"] for entry in snapshot.history] == ["book", "also tell Sam"]


async def test_limits_are_counted_for_the_operator():
    planner = ViewPlanner(lambda view: Plan(steps=(MAIL,) * 4))
    owner = Owner(Stored(), FakeClock(), planner)
    await owner.ring(owner.stored.append("message", ANA, {"text": "go"}))
    counted = owner.registry.get_sample_value("turnkeeper_session_limits_total", {"limit": "same_step"})
    assert counted == 1

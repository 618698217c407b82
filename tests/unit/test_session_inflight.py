"""What arrives while a turn runs: each row of the in-flight table, in each state that a turn may be in (§4.2)."""

import pytest

from libs.contracts.faults import INJECTED
from libs.contracts.session import Step
from libs.contracts.tools import RunStep
from services.session.domain.plan import Plan
from services.session.domain.state import NEWEST_OPERATIONS, SessionState
from tests.support.session import (
    ANA,
    BOOK,
    CINEMA,
    LOOK,
    MAIL,
    NOW,
    RESTAURANT,
    SLOW,
    WAIT_MS,
    WIRE,
    Talk,
    make_rules,
    one_plan,
)

PAUSE_MS = 600_000
SAM = Step(tool="mail", args={"text": "Sam"})
SATURDAY = Step(tool="book", args={"party": 4, "day": "Saturday"})
UNBOOK = ("unbook", {"id": "r1"})


def relating(relation, *steps, reply=""):
    """A planner for which what comes is always this to the running turn."""
    return lambda turn, input: Plan(relation=relation, steps=steps, reply=reply)


def talking(relation="independent", *steps, reply="", **rules):
    """A user's turn waits for its first of two steps; what comes is related to it as said."""
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), make_rules(**rules), relate=relating(relation, *steps, reply=reply))
    talk.say("book and mail")
    return talk


def replanning(talk, *steps):
    """What the planner answers a restarted or revised turn with."""
    talk.planner = lambda turn, _: Plan() if turn.results else Plan(steps=steps)


# -- another origin


def test_another_origin_is_queued_before_any_planner_sees_it():
    talk = talking("adds", SAM)
    talk.event({"text": "also tell Sam"})
    assert talk.questions_about == []
    assert talk.texts("input.queued") == ["of another origin"]
    assert not any(entry["kind"] == "event" for entry in talk.history)


def test_what_waits_reaches_the_history_only_when_its_own_turn_begins():
    talk = talking()
    talk.event({"text": "also tell Sam"})
    talk.finish()
    talk.finish()
    kinds = [entry["kind"] for entry in talk.history]
    assert kinds == ["user", "tool", "tool", "event"]
    assert talk.state.turn is None
    assert [issue.steps for issue in talk.questions()] == [(BOOK, MAIL)]


@pytest.mark.parametrize("field", ["kind", "source", "principal"])
def test_an_origin_that_differs_in_anything_is_another(field):
    talk = talking("adds", SAM)
    other = {"kind": "actor", "source": "elsewhere", "principal": "ben"}[field]
    talk.arrive("event", ANA.model_copy(update={field: other}), {})
    assert talk.questions_about == []


# -- adds


def test_an_addition_joins_at_the_next_boundary_with_its_seal():
    talk = talking("adds", SAM)
    added = talk.say("also tell Sam")
    assert talk.kinds().count("input.merged") == 0
    talk.finish()
    assert talk.texts("input.merged") == ["adds"]
    talk.finish()
    assert talk.runs() == [("book", {"party": 4}), ("mail", {"text": "hi"}), ("mail", {"text": "Sam"})]
    assert [[seal.number for seal in run.seals] for run in talk.sent(RunStep)] == [[1], [1, 2], [1, 2]]
    talk.finish()
    assert talk.became() == [(1, "acted"), (added.number, "acted")]
    assert talk.kinds().count("turn.start") == 1


def test_an_addition_without_steps_is_seen_by_the_planner_at_the_end():
    talk = talking("adds", reply="Sure.")
    talk.say("also tell Sam")
    talk.planner = lambda turn, _: Plan(steps=(SAM,)) if turn.joined and len(turn.results) == 2 else Plan()
    talk.finish()
    talk.finish()
    assert talk.runs()[-1] == ("mail", {"text": "Sam"})
    assert talk.replies() == ["Sure."]


def test_an_addition_to_a_last_step_still_joins():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), relate=relating("adds", SAM))
    talk.say("book")
    talk.say("also tell Sam")
    talk.finish()
    assert talk.runs()[-1] == ("mail", {"text": "Sam"})


def test_an_addition_that_needs_consent_is_asked_and_not_run():
    talk = talking("adds", WIRE)
    talk.say("and wire it")
    talk.finish()
    talk.finish()
    (issue,) = talk.questions()
    assert (issue.steps, [seal.number for seal in issue.seals]) == ((WIRE,), [1, 2])


def test_an_addition_does_not_change_what_an_accepted_action_runs():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), relate=relating("adds", SAM))
    talk.event()
    talk.asked()
    talk.decision()
    talk.say("also tell Sam")
    talk.finish()
    talk.finish()
    assert [(run.tool, run.args, run.action) for run in talk.sent(RunStep)[:2]] == [
        ("book", {"party": 4}, "A1"),
        ("mail", {"text": "hi"}, "A1"),
    ]
    assert "accepted action" in talk.texts("input.queued")[0]


def test_an_addition_to_a_webhooks_turn_by_the_same_webhook_is_asked_with_it():
    talk = Talk(one_plan(Plan(steps=(LOOK, BOOK))), relate=relating("adds", SAM))
    talk.event()
    talk.event()
    talk.finish()
    assert talk.questions()[0].steps == (BOOK, SAM)
    assert talk.became() == [(1, "acted"), (2, "acted")]


def test_a_continuation_carries_all_seals_and_tells_no_outcome_again():
    talk = Talk(one_plan(Plan(steps=(LOOK, BOOK))), relate=relating("adds", SAM))
    talk.event()
    talk.event()
    talk.finish()
    talk.asked()
    talk.planner = lambda turn, _: Plan(steps=(LOOK,)) if turn.action else Plan()
    talk.decision()
    talk.finish()
    talk.finish()
    assert [seal.number for seal in talk.sent(RunStep)[-1].seals] == [1, 2]
    talk.finish()
    assert talk.became() == [(1, "acted"), (2, "acted"), (3, "acted")]


@pytest.mark.parametrize(
    ("way", "line", "became"), [("queue", "input.queued", None), ("reject", "input.rejected", "rejected")]
)
def test_a_rule_may_queue_or_reject_additions(way, line, became):
    talk = talking("adds", SAM, in_flight=[{"source": "cinema"}, {"source": "app", "adds": way}])
    said = talk.say("also tell Sam")
    assert talk.texts(line) == ["adds, by in_flight rule 2"]
    assert talk.became() == ([(said.number, became)] if became else [])
    assert ["busy" in reply for reply in talk.replies()] == ([True] if way == "reject" else [])
    assert [ref.number for ref in talk.state.queue] == ([said.number] if way == "queue" else [])


@pytest.mark.parametrize(
    "plan",
    [
        Plan(relation="adds", steps=(Step(tool="nothing", args={}),)),
        Plan(relation="adds", steps=(Step(tool="book", args={"party": 0}),)),
        Plan(relation="adds", steps=(SAM,) * 19),
        Plan(fault="no JSON"),
    ],
)
def test_an_answer_that_cannot_be_used_harms_no_running_turn(plan):
    talk = talking()
    talk.relate = lambda turn, input: plan
    talk.say("also tell Sam")
    assert [ref.number for ref in talk.state.queue] == [2]
    talk.finish()
    assert talk.runs() == [("book", {"party": 4}), ("mail", {"text": "hi"})]


# -- independent


def test_what_is_independent_waits_for_a_turn_of_its_own():
    talk = talking("independent")
    talk.say("what time is sunset?")
    assert talk.texts("input.queued") == ["independent"]
    before = talk.runs()
    talk.planner = lambda turn, body: Plan(reply="19:42") if turn.input.number == 2 else Plan()
    talk.finish()
    talk.finish()
    assert talk.runs() == [*before, ("mail", {"text": "hi"})]
    assert talk.replies() == ["19:42"]


def test_what_is_independent_begins_in_inbox_order_among_other_origins():
    talk = talking("independent", planner=SLOW)
    talk.plan(Plan(steps=(BOOK,)))
    talk.say("sunset?")
    talk.event(origin=CINEMA)
    talk.plan(Plan(relation="independent"))
    assert [ref.number for ref in talk.state.queue] == [2, 3]


# -- restart


RESTART = [{"adds": "restart"}]


def restarted(*labs, first="committed"):
    """An addition restarts a turn whose first step is committed, or in flight."""
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), make_rules(*labs, in_flight=RESTART), relate=relating("adds"))
    talk.say("book and mail")
    if first == "committed":
        talk.finish(result={"id": "r1"})
    replanning(talk, BOOK, MAIL, SAM)
    talk.say("also tell Sam")
    return talk


def test_a_restarted_turn_uses_its_operations_again():
    talk = restarted()
    assert talk.texts("turn.restarted") == ["adds, by in_flight rule 1: e2"]
    assert talk.texts("tool.replayed") == ["book: r1"]
    talk.finish(operation="O2")
    talk.finish()
    assert talk.runs() == [("book", {"party": 4}), ("mail", {"text": "hi"}), ("mail", {"text": "Sam"})]
    assert [(run.turn, run.root) for run in talk.sent(RunStep)] == [("T1", "T1"), ("T1", "T1"), ("T2", "T1")]
    assert talk.became() == [(1, "acted"), (2, "acted")]


def test_a_restarted_turn_waits_for_what_is_in_flight():
    talk = restarted(first="in flight")
    assert talk.runs() == [("book", {"party": 4})]
    talk.finish(result={"id": "r1"})
    assert talk.texts("tool.committed")[0] == "book: r1"
    assert talk.texts("tool.replayed") == ["book: r1"]
    assert talk.runs()[1:] == [("mail", {"text": "hi"})]


def left_in_flight():
    """A turn was restarted while a booking was in flight, and the new plan left it out."""
    talk = Talk(one_plan(Plan(steps=(BOOK,))), make_rules(in_flight=RESTART), relate=relating("adds"))
    talk.say("book")
    talk.planner = lambda turn, _: Plan(steps=(MAIL,)) if not turn.results else Plan(reply="Sent.")
    talk.say("rather mail")
    return talk


def test_what_a_restarted_turn_leaves_in_flight_is_named_and_has_a_deadline():
    talk = left_in_flight()
    talk.finish(operation="O2")
    assert talk.state.turn is None
    assert talk.replies() == [
        "Sent.",
        "I do not know yet whether that was done: book is still running. I will tell you when I know.",
    ]
    assert talk.state.next_deadline == NOW + WAIT_MS
    talk.wait(WAIT_MS - 1)
    assert talk.state.operations["O1"].state == "sent"
    talk.wait(1)
    assert talk.state.operations["O1"].state == "unknown"
    assert talk.texts("tool.unknown") == ["book: no answer from the door within the deadline"]
    assert (talk.state.next_deadline, len(talk.replies())) == (0, 2)


@pytest.mark.parametrize("late", [False, True])
def test_what_became_of_what_was_left_in_flight_is_told_once(late):
    talk = left_in_flight()
    talk.finish(operation="O2")
    if late:
        talk.wait(WAIT_MS)
    talk.finish(operation="O1", result={"id": "r1"})
    talk.finish(operation="O1", result={"id": "r1"})
    assert talk.replies()[2:] == ["Now I know: book was done: r1."]
    assert talk.state.next_deadline == 0


def test_what_is_answered_before_the_restarted_turn_ends_is_not_called_unknown():
    talk = left_in_flight()
    talk.finish(operation="O1", result={"id": "r1"})
    talk.finish(operation="O2")
    assert talk.replies() == ["Sent."]


def test_the_deadline_of_what_was_left_in_flight_is_kept_while_another_turn_waits():
    talk = left_in_flight()
    talk.finish(operation="O2")
    talk.now += 1
    talk.planner = one_plan(Plan(steps=(BOOK,)))
    talk.say("book")
    assert talk.state.next_deadline == NOW + WAIT_MS
    talk.wait(WAIT_MS - 1)
    assert [talk.state.operations[id].state for id in ("O1", "O3")] == ["unknown", "sent"]


def test_with_keys_by_turn_a_restart_does_everything_twice():
    talk = restarted("keys_by_turn")
    keys = [run.key for run in talk.sent(RunStep) if run.tool == "book"]
    assert len(set(keys)) == 2
    assert talk.texts("tool.sent")[-1].endswith("(lab: keys by turn)")


def test_each_operation_is_used_again_once():
    talk = restarted()
    talk.finish(operation="O2")
    replanning(talk, MAIL, MAIL, MAIL)
    talk.say("and again")
    assert talk.texts("tool.replayed")[-1:] == ["mail: done"]
    assert [run.args["text"] for run in talk.sent(RunStep) if run.tool == "mail"] == ["hi", "Sam", "hi"]


def test_what_is_gone_is_not_used_again():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), make_rules(in_flight=RESTART), relate=relating("adds"))
    talk.say("book and mail")
    talk.finish(result={"id": "r1"})
    talk.event({}, type="table.gone", subject="reservation:r1")
    replanning(talk, BOOK)
    talk.say("also tell Sam")
    assert [tool for tool, _ in talk.runs()] == ["book", "mail", "book"]


def test_numbers_that_are_written_differently_are_other_arguments():
    talk = restarted()
    replanning(talk, Step(tool="book", args={"party": True}))
    talk.finish(operation="O2")
    talk.say("again")
    assert ("book", {"party": True}) in talk.runs()


def test_an_operation_whose_outcome_is_unknown_is_not_sent_again():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), make_rules(in_flight=RESTART), relate=relating("adds"))
    talk.say("book")
    talk.planner = lambda turn, _: Plan(steps=(MAIL,)) if turn.failing else Plan(steps=(BOOK,))
    talk.finish("unknown")
    talk.planner = lambda turn, _: Plan(reply=turn.failing) if turn.failing else Plan(steps=(BOOK,))
    talk.say("again")
    assert [tool for tool, _ in talk.runs()] == ["book", "mail"]
    assert talk.replies()[0] == "book has an unknown outcome"


def test_what_failed_is_tried_anew_under_its_own_key():
    talk = Talk(lambda turn, _: Plan(steps=(BOOK,)))
    talk.say("book")
    talk.finish("failed", reason="no route")
    first, second = talk.sent(RunStep)
    assert first.key == second.key
    assert (first.operation, second.operation) == ("O1", "O2")
    ids = [send.id_parts for send in talk.sends if isinstance(send.message, RunStep)]
    assert len(set(ids)) == 2


def test_what_failed_and_spent_its_key_is_tried_anew_under_another():
    talk = Talk(lambda turn, _: Plan(steps=(BOOK,)))
    talk.say("book")
    talk.finish("failed", reason="not known to find", spent=True)
    talk.finish("failed", reason="no route")
    first, second, third = talk.sent(RunStep)
    assert first.key != second.key
    assert second.key == third.key


def booked_without_a_word(reason="no answer within 5 s"):
    """A booking whose outcome nobody knows; the planner asks for it again as long as it is not booked."""
    talk = Talk(lambda turn, _: Plan() if turn.results and not turn.failing else Plan(steps=(BOOK, MAIL)))
    talk.say("book and mail")
    talk.finish("unknown", reason=reason)
    return talk


@pytest.mark.parametrize("reason", ["no answer within 5 s", f"{INJECTED}: tool_upstream_timeout"])
def test_what_has_no_outcome_is_asked_for_again_under_its_own_key(reason):
    """The door tells what became of it, and never runs it again (G4)."""
    first, again = booked_with(booked_without_a_word(reason))
    assert first == again


def test_what_the_door_keeps_beyond_the_turns_deadline_is_asked_for_again_under_its_own_key():
    talk = Talk(lambda turn, _: Plan() if turn.results and not turn.failing else Plan(steps=(BOOK, MAIL)))
    talk.say("book and mail")
    talk.finish("in_progress", reason="paused: tool book")
    talk.wait(WAIT_MS)
    first, again = booked_with(talk)
    assert first == again


def test_what_had_no_outcome_and_is_gone_since_is_tried_anew_under_another():
    talk = booked_without_a_word()
    talk.finish(operation="O1", result={"id": "r1"})
    talk.event({}, type="table.gone", subject="reservation:r1")
    talk.finish("failed", "O2", reason="no route")
    first, again, after_gone = booked_with(talk)
    assert first == again != after_gone


def test_a_restarted_turn_tries_what_failed_and_spent_its_key_under_another():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), make_rules(in_flight=RESTART), relate=relating("adds"))
    talk.say("book")
    talk.planner = lambda turn, _: Plan(steps=(MAIL,)) if turn.failing else Plan(steps=(BOOK,))
    talk.finish("failed", reason="not known to find", spent=True)
    talk.planner = lambda turn, _: Plan(steps=(BOOK,))
    talk.say("again")
    first, second = [run.key for run in talk.sent(RunStep) if run.tool == "book"]
    assert first != second


def tried_anew(relation, **rules):
    """A user's booking failed, and was tried anew with the same key; whatever comes is related to it as said."""
    talk = Talk(
        lambda turn, _: Plan() if turn.results and not turn.failing else Plan(steps=(BOOK, MAIL)),
        make_rules(**rules),
        relate=relating(relation),
    )
    talk.say("book and mail")
    talk.finish("failed", reason="no route")
    first, second = talk.sent(RunStep)
    assert first.key == second.key
    return talk


def booked_with(talk):
    """The keys of the bookings that were sent, in order."""
    return [run.key for run in talk.sent(RunStep) if run.tool == "book"]


def test_a_key_that_failed_first_is_spent_once_what_came_of_it_is_undone():
    talk = tried_anew("revises")
    talk.finish(result={"id": "r1"})
    talk.say("no, as before")
    talk.finish("withdrawn", "O3")
    talk.finish()
    failed, undone, anew = booked_with(talk)
    assert failed == undone != anew


def test_a_key_that_failed_first_is_spent_once_what_came_of_it_is_gone():
    talk = tried_anew("adds", in_flight=RESTART)
    talk.finish(result={"id": "r1"})
    talk.event({}, type="table.gone", subject="reservation:r1")
    talk.say("also tell Sam")
    failed, gone, anew = booked_with(talk)
    assert failed == gone != anew


def test_a_key_that_failed_first_is_spent_once_the_next_attempt_is_withdrawn():
    talk = tried_anew("revises")
    talk.say("no, as before")
    talk.finish("withdrawn", "O2")
    failed, withdrawn, anew = booked_with(talk)
    assert failed == withdrawn != anew


def test_what_failed_each_time_is_tried_anew_under_its_own_key_by_the_turn_that_takes_its_place():
    talk = tried_anew("revises")
    talk.say("no, as before")
    talk.finish("failed", "O2")
    assert len(set(booked_with(talk))) == 1
    assert len(booked_with(talk)) == 3


def test_two_identical_wishes_share_no_key_that_failed():
    talk = talking("revises")
    replanning(talk, BOOK, BOOK)
    talk.say("two, please")
    talk.finish("failed")
    talk.finish(result={"id": "r1"})
    failed, first, second = booked_with(talk)
    assert failed == first != second


def test_a_key_stays_spent_when_the_attempt_that_spent_it_is_forgotten():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    talk.planner = lambda turn, _: Plan(steps=(MAIL,))
    talk.say("actually, something else")
    talk.finish("withdrawn", "O2")
    talk.finish("failed", "O3")  # undoing it
    mails = [Step(tool="mail", args={"text": str(number)}) for number in range(NEWEST_OPERATIONS + 2)]
    replanning(talk, *mails)
    talk.say("no, only mails")
    talk.finish("withdrawn", "O4")
    talk.finish()  # undone at the second attempt
    for _ in mails[1:]:
        talk.finish()
    replanning(talk, Step(tool="unbook", args={"id": "r1"}))
    talk.say("and unbook it once more")
    talk.finish("withdrawn")
    assert "O5" not in talk.state.operations
    failed, undone, wished = [run.key for run in talk.sent(RunStep) if run.tool == "unbook"]
    assert failed == undone != wished


def test_what_was_refused_is_another_occurrence():
    talk = Talk(lambda turn, _: Plan(steps=(BOOK,)))
    talk.say("book")
    talk.finish("refused", reason="full")
    assert len({run.key for run in talk.sent(RunStep)}) == 2


def test_with_keys_by_step_the_second_identical_wish_vanishes():
    talk = Talk(one_plan(Plan(steps=(MAIL, MAIL))), make_rules("keys_by_step"))
    talk.say("mail twice")
    talk.finish()
    assert len({run.key for run in talk.sent(RunStep)}) == 1
    assert talk.texts("tool.sent")[-1].endswith("(lab: keys by step)")
    talk.finish(replay=True)
    assert talk.texts("tool.replayed") == ["mail: done (lab: keys by step)"]


# -- revises


def saturday(talk):
    """The user revises their wish."""
    replanning(talk, SATURDAY)
    return talk.say("actually, Saturday")


def test_a_revision_withdraws_what_is_in_flight_and_plans_anew_once_it_is_known():
    talk = talking("revises")
    saturday(talk)
    assert [w.operation for w in talk.withdrawn()] == ["O1"]
    assert len(talk.planned) == 1
    talk.finish("withdrawn")
    assert talk.texts("turn.restarted") == ["revised by e2"]
    assert talk.runs() == [("book", {"party": 4}), ("book", SATURDAY.args)]


def test_a_revision_of_what_was_committed_meanwhile_undoes_it_first():
    talk = talking("revises")
    saturday(talk)
    talk.finish("committed", result={"id": "r1"})
    assert talk.runs()[1:] == [UNBOOK]
    talk.finish(result={"id": "r1"})
    assert talk.runs()[2:] == [("book", SATURDAY.args)]
    (kept,) = talk.planned[-1].kept
    assert (kept.operation, kept.state, kept.undone) == ("O1", "committed", True)
    assert talk.planned[-1].results == ()


def test_a_revision_after_the_booking_is_committed_undoes_it_and_withdraws_the_rest():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    saturday(talk)
    assert [w.operation for w in talk.withdrawn()] == ["O2"]
    talk.finish("withdrawn", "O2")
    talk.finish()
    talk.finish(result={"id": "r2"})
    assert [tool for tool, _ in talk.runs()] == ["book", "mail", "unbook", "book"]
    assert talk.became() == [(1, "acted"), (2, "acted")]


def test_what_is_undone_is_never_used_again():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    replanning(talk, BOOK)
    talk.say("no, as before")
    talk.finish("withdrawn", "O2")
    talk.finish()
    first, second = [run for run in talk.sent(RunStep) if run.tool == "book"]
    assert first.key != second.key


def test_what_is_withdrawn_is_never_used_again():
    talk = talking("revises")
    replanning(talk, BOOK)
    talk.say("no, as before")
    talk.finish("withdrawn")
    assert len({run.key for run in talk.sent(RunStep)}) == 2


def test_what_is_gone_is_not_undone():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    talk.event({}, type="table.gone", subject="reservation:r1")
    saturday(talk)
    talk.finish("withdrawn", "O2")
    assert talk.runs()[-1] == ("book", SATURDAY.args)


def test_what_is_gone_while_something_else_is_undone_is_not_undone():
    six = Step(tool="book", args={"party": 6})
    talk = Talk(one_plan(Plan(steps=(BOOK, six, MAIL))), relate=relating("revises"))
    talk.say("book twice and mail")
    talk.finish(result={"id": "r1"})
    talk.finish(result={"id": "r2"})
    saturday(talk)
    talk.finish("withdrawn", "O3")
    talk.event({}, type="table.gone", subject="reservation:r1")
    talk.finish()
    assert talk.runs()[3:] == [("unbook", {"id": "r2"}), ("book", SATURDAY.args)]
    assert [kept.undone for kept in talk.state.turn.kept] == [False, True, False]


def test_what_was_gone_before_its_result_came_is_not_undone():
    talk = talking("revises")
    saturday(talk)
    talk.event({}, type="table.gone", subject="reservation:r1")
    talk.finish(operation="O1", result={"id": "r1"})
    assert "effect.gone" in talk.kinds()
    assert "unbook" not in [tool for tool, _ in talk.runs()]
    assert not talk.state.turn.kept[0].undone


def test_a_revision_that_cannot_undo_is_told_and_books_nothing():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    saturday(talk)
    talk.finish("withdrawn", "O2")
    talk.planner = lambda turn, _: Plan()
    talk.finish("refused", reason="too late")
    assert talk.replies() == ["I could not do that: unbook was refused (too late)."]
    assert [tool for tool, _ in talk.runs()] == ["book", "mail", "unbook"]


def test_a_result_that_lacks_what_undoing_needs_is_told():
    talk = talking("revises")
    talk.finish(result=None)
    saturday(talk)
    talk.finish("withdrawn", "O2")
    assert "book cannot be undone" in talk.replies()[-1]
    assert talk.state.turn is None


def test_undoing_has_the_gate_of_its_tool():
    talk = Talk(one_plan(Plan(steps=(Step(tool="rent", args={}), MAIL))), relate=relating("revises"))
    talk.say("rent")
    talk.finish(result={"sum": "5"})
    saturday(talk)
    talk.finish("withdrawn", "O2")
    (issue,) = talk.questions()
    assert issue.steps == (Step(tool="wire", args={"sum": "5"}),)


def test_a_revision_during_a_revision_finds_out_what_is_being_undone():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    saturday(talk)
    talk.finish("withdrawn", "O2")
    replanning(talk, Step(tool="book", args={"party": 4, "day": "Sunday"}))
    talk.say("no, Sunday")
    assert [w.operation for w in talk.withdrawn()] == ["O2", "O3"]
    talk.finish(operation="O3")
    assert [tool for tool, _ in talk.runs()] == ["book", "mail", "unbook", "book"]
    assert talk.runs()[-1][1]["day"] == "Sunday"
    talk.finish(result={"id": "r2"})
    assert [number for number, _ in talk.became()] == [1, 2, 3]


def test_an_undoing_that_was_withdrawn_is_done_by_the_next_revision():
    talk = talking("revises")
    talk.finish(result={"id": "r1"})
    saturday(talk)
    talk.finish("withdrawn", "O2")
    talk.say("no, Sunday")
    talk.finish("withdrawn", "O3")
    assert [tool for tool, _ in talk.runs()] == ["book", "mail", "unbook", "unbook"]
    assert len({run.key for run in talk.sent(RunStep)}) == 4


def test_a_revision_whose_answer_never_comes_goes_on_with_unknown():
    talk = talking("revises")
    saturday(talk)
    talk.wait(WAIT_MS)
    assert talk.planned[-1].kept[0].state == "unknown"
    assert talk.runs()[-1] == ("book", SATURDAY.args)


def test_a_cancel_during_a_revision_ends_it_once_all_is_known():
    talk = talking("revises")
    said = saturday(talk)
    talk.arrive("cancel", ANA, {})
    assert len(talk.withdrawn()) == 1
    talk.finish("committed", result={"id": "r1"})
    assert talk.replies() == ["Cancelled; book was done."]
    assert (said.number, "acted") in talk.became()
    assert talk.state.turn is None


def test_a_revision_of_an_accepted_action_stops_it_and_undoes_what_it_did():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), relate=relating("revises"))
    talk.event()
    talk.asked()
    talk.decision()
    talk.finish(result={"id": "r1"})
    saturday(talk)
    talk.finish("withdrawn", "O2")
    assert talk.runs()[-1] == UNBOOK
    assert talk.sent(RunStep)[-1].action == ""
    talk.finish()
    assert talk.runs()[-1] == ("book", SATURDAY.args)


@pytest.mark.parametrize(("way", "line"), [("queue", "input.queued"), ("reject", "input.rejected")])
def test_a_rule_may_queue_or_reject_revisions(way, line):
    talk = talking("revises", in_flight=[{"revises": way}])
    talk.say("actually, Saturday")
    assert talk.withdrawn() == []
    assert talk.texts(line) == ["revises, by in_flight rule 1"]


# -- unclear


def unclear(*steps):
    """What came is unclear, and the turn has paused at its next boundary."""
    talk = talking("unclear", reply="The table?")
    talk.say("make it nicer")
    talk.finish(result={"id": "r1"})
    return talk


def test_an_unclear_input_pauses_the_turn_at_its_next_boundary_with_a_question():
    talk = talking("unclear", reply="The table?")
    talk.say("make it nicer")
    assert (talk.kinds().count("turn.paused"), talk.replies()) == (0, [])
    talk.finish(result={"id": "r1"})
    assert (talk.kinds().count("turn.paused"), talk.replies()) == (1, ["The table?"])
    assert talk.runs() == [("book", {"party": 4})]
    assert talk.state.next_deadline == NOW + PAUSE_MS


def test_the_owners_next_message_answers_and_the_planner_is_asked_with_it():
    talk = unclear()
    for _ in range(3):
        talk.event(origin=CINEMA)
    talk.relate = relating("adds", SAM)
    answer = talk.say("yes, for Sam")
    turn, about = talk.questions_about[-1]
    assert (about.number, turn.pausing.answer.number) == (2, answer.number)
    assert talk.texts("turn.resumed") == ["answered"]
    assert (answer.number, "acted") in talk.became()
    talk.finish()
    talk.finish()
    assert talk.runs()[1:] == [("mail", {"text": "hi"}), ("mail", {"text": "Sam"})]


def test_an_answer_is_taken_however_many_inputs_wait_and_beside_an_open_question():
    talk = Talk(lambda turn, _: Plan() if turn.results else Plan(steps=(BOOK, MAIL)), relate=relating("unclear"))
    talk.event()
    talk.asked()
    talk.say("book and mail")
    talk.say("make it nicer")
    talk.finish()
    for _ in range(250):
        talk.event(origin=CINEMA)
    talk.relate = relating("independent")
    talk.say("yes")
    assert talk.kinds().count("turn.resumed") == 1
    assert talk.runs()[-1] == ("mail", {"text": "hi"})


def test_an_exact_decision_is_no_answer_to_the_pause():
    talk = unclear()
    talk.say("yes A1")
    assert talk.state.turn.status == "paused"


def test_a_pause_ends_without_an_answer_at_its_deadline():
    talk = unclear()
    talk.wait(PAUSE_MS - 1)
    assert talk.state.turn.status == "paused"
    talk.wait(1)
    assert talk.texts("turn.resumed") == ["no answer in time"]
    assert talk.runs()[-1] == ("mail", {"text": "hi"})
    assert [ref.number for ref in talk.state.queue] == [2]


def test_what_is_still_unclear_after_the_answer_waits_for_its_own_turn():
    talk = unclear()
    talk.say("hm")
    assert talk.texts("input.queued") == ["unclear, still"]
    assert talk.runs()[-1] == ("mail", {"text": "hi"})


def test_what_comes_from_elsewhere_during_a_pause_answers_nothing():
    talk = unclear()
    talk.event({"text": "for Sam"}, RESTAURANT)
    assert talk.state.turn.status == "paused"
    assert [ref.number for ref in talk.state.queue] == [3]


def test_a_cancel_ends_a_paused_turn_at_once():
    talk = unclear()
    talk.arrive("cancel", ANA, {})
    assert talk.replies()[-1] == "Cancelled; book was done."
    assert "turn.cancelled" in talk.kinds()


def test_a_decision_is_applied_during_a_pause_and_adds_nothing_to_the_turn():
    talk = Talk(lambda turn, _: Plan() if turn.results else Plan(steps=(BOOK, MAIL)), relate=relating("unclear"))
    talk.event()
    talk.asked()
    talk.say("book")
    talk.say("hm")
    talk.finish()
    talk.decision()
    assert "action.accepted" in talk.kinds()
    assert talk.state.turn.status == "paused"
    talk.wait(PAUSE_MS)
    talk.finish()
    assert talk.sent(RunStep)[-1].action == "A1"


def test_an_answer_may_revise():
    talk = unclear()
    talk.relate = relating("revises")
    replanning(talk, SATURDAY)
    talk.say("on Saturday instead")
    assert talk.runs()[1:] == [UNBOOK]


@pytest.mark.parametrize(("way", "line"), [("queue", "input.queued"), ("reject", "input.rejected")])
def test_a_rule_may_queue_or_reject_what_is_unclear(way, line):
    talk = talking("unclear", in_flight=[{"unclear": way}])
    talk.say("hm")
    talk.finish()
    assert talk.texts(line) == ["unclear, by in_flight rule 1"]
    assert "turn.paused" not in talk.kinds()


def test_a_turn_that_fails_before_its_boundary_lets_the_unclear_input_wait():
    talk = talking("unclear")
    talk.say("hm")
    talk.planner = lambda turn, _: Plan()
    talk.finish("refused")
    assert talk.texts("input.queued") == ["the turn ended"]
    assert talk.state.turn is None
    assert talk.became() == [(1, "failed"), (2, "acted")]


# -- one question at a time


def test_one_question_at_a_time_and_what_comes_then_waits_in_order():
    talk = talking("adds", planner=SLOW)
    talk.plan(Plan(steps=(BOOK, MAIL)))
    for text in ("Sam", "Tom"):
        talk.say(text)
    assert len(talk.requested()) == 2
    assert [ref.number for ref in talk.state.turn.arrivals] == [2, 3]
    talk.plan(Plan(relation="adds", steps=(SAM,)))
    assert len(talk.requested()) == 3
    talk.plan(Plan(relation="independent"))
    assert [ref.number for ref in talk.state.queue] == [3]


def test_what_comes_while_a_revision_is_found_out_is_related_to_the_new_turn():
    talk = talking("revises")
    saturday(talk)
    talk.say("also tell Sam")
    assert len(talk.questions_about) == 1
    talk.relate = relating("adds", SAM)
    talk.finish("withdrawn")
    assert talk.questions_about[-1][0].id == "T2"
    talk.finish(result={"id": "r1"})
    assert talk.runs()[-1] == ("mail", {"text": "Sam"})


def test_what_comes_while_a_turn_is_being_cancelled_waits_for_its_own_turn():
    talk = talking("adds", SAM)
    talk.arrive("cancel", ANA, {})
    talk.say("also tell Sam")
    assert talk.questions_about == []
    assert [ref.number for ref in talk.state.queue] == [3]


def test_an_addition_to_a_cancelled_turn_is_cancelled_with_it():
    talk = talking("adds", SAM)
    talk.say("also tell Sam")
    talk.arrive("cancel", ANA, {})
    talk.finish("withdrawn")
    assert talk.became() == [(3, "acted"), (1, "acted"), (2, "acted")]
    assert talk.runs() == [("book", {"party": 4})]


def test_an_addition_to_a_turn_that_failed_gets_a_turn_of_its_own():
    talk = talking("adds", SAM)
    talk.say("also tell Sam")
    talk.planner = lambda turn, _: Plan()
    talk.finish("refused")
    assert talk.texts("input.queued") == ["the turn ended"]
    assert talk.kinds().count("turn.start") == 2


def test_the_state_survives_its_own_json_in_the_middle_of_everything():
    talk = unclear()
    talk.say("on Saturday")
    for made in (talk, restarted(), restarted(first="in flight")):
        packed = made.state.model_dump_json(exclude_defaults=True)
        assert SessionState.model_validate_json(packed) == made.state

"""What events say of their subjects: order, gone, moot, notices, superseded questions, timers (design §4.1, §4.4)."""

from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.application import parse_application
from libs.contracts.consent import ActionClosed, ActionNotAsked, SupersedeActions
from libs.contracts.ingress import StopTimer, TimerSkipped
from libs.contracts.origin import Origin
from libs.contracts.session import Notice, Step
from libs.contracts.tools import LookedUp, LookUpOperation, RunStep
from services.session.domain import DeadlineReached
from services.session.domain.plan import Plan
from services.session.domain.state import SessionState
from services.session.domain.subjects import KEPT_EARLY, KEPT_SUBJECTS, READ_WAIT_MS
from services.session.domain.view import messages
from tests.support.session import BOOK, CINEMA, MAIL, NOW, RESTAURANT, Talk, make_rules, one_plan, silent

TIMER = Origin(kind="timer", source="timer", principal="ana", verified="seal")
TABLE = "reservation:r1"
FILM = "film:dune"
REMIND = Step(tool="set_timer", args={"text": "Dune tonight", "subject": FILM})


def rules(*, lookup: bool = False, slow: bool = False, **session: Any):
    """Rules of an application whose events have meanings."""
    connector = {"python": {"function": "builtins:dict"}}
    webhook = {"verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]}, "route": {"session": "{{ data.s }}"}}
    table, film = {"subject": "reservation:{{ data.id }}"}, {"subject": "film:{{ data.film }}"}
    looked_up = {"lookup": {"tool": "look", "args": {"key": "{{ key }}"}}} if lookup else {}
    raw = {
        "sources": {
            "restaurant": {
                **webhook,
                "types": {
                    "table.gone": {**table, "gone": True, "sequence": "{{ data.v }}"},
                    "table.moved": {**table, "sequence": "{{ data.v }}", "supersedes_questions": True},
                    "table.note": table,
                    "table.over": {**table, "moot": True, "notice": "the table is off"},
                },
            },
            "cinema": {
                **webhook,
                "types": {
                    "film.cancelled": {**film, "moot": True, "notice": "{{ data.text }}"},
                    "film.moot": {**film, "moot": True},
                    "film.news": film,
                },
            },
            "app": {"verify": {"scheme": "user-token"}},
        },
        "tools": {
            "book": {"registers": "reservation:{{ result.id }}", "connector": connector, **looked_up},
            "mail": {"connector": connector},
            "look": {"effect": "read", "connector": connector},
        },
        "planner": {"http": {"url": "http://planner"}} if slow else {"scripted": {"rules": "rules.yaml"}},
        "session": session,
    }
    return replace(make_rules(), application=parse_application(raw, "test"))


@pytest.fixture
def booked():
    """A session in which r1 was booked; later events are answered with nothing."""
    return make_booked()


def make_booked(**more: Any) -> Talk:
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules(**more))
    talk.say("book")
    talk.finish(result={"id": "r1"})
    talk.planner = lambda turn, body: Plan()
    return talk


def table(talk: Talk, type: str = "table.moved", v: str = "", **fields: Any):
    """An event about the table, with its place in the order."""
    return talk.event({"id": "r1"}, type=type, subject=TABLE, sequence=v, **fields)


def film(talk: Talk, type: str = "film.cancelled", text: Any = "Dune is cancelled", **fields: Any):
    """An event about the film."""
    return talk.event({"film": "dune", "text": text}, CINEMA, type=type, subject=FILM, **fields)


def busy(**more: Any) -> Talk:
    """A user's turn waits for its step."""
    talk = Talk(one_plan(Plan(steps=(MAIL,))), rules(**more))
    talk.say("mail")
    return talk


def texts(talk: Talk, kind: str) -> list[str]:
    return [line.text for line in talk.lines if line.kind == kind]


def turns(talk: Talk) -> list[str]:
    """The events whose turns began, in order."""
    return [line.event for line in talk.lines if line.kind == "turn.start"]


# Causation


def test_an_event_about_what_an_operation_made_is_one_deeper_than_the_turn_that_made_it(booked):
    table(booked, v="1")
    assert booked.sends[-1].of.depth == 1


def test_an_event_about_what_nobody_here_made_begins_anew(booked):
    film(booked, "film.news")
    assert booked.sends[-1].of.depth == 0


# Order


@pytest.mark.parametrize("late", ["1", "2", "2.0", "+2", "1e0"])
def test_what_is_not_newer_than_what_was_applied_is_history_and_begins_no_turn(booked, late):
    newer = table(booked, v="2")
    stale = table(booked, "table.gone", v=late)
    assert turns(booked)[1:] == [newer.event]
    assert texts(booked, "input.stale") == [f"{late} is not after 2"]
    assert booked.became()[-1] == (stale.number, "stale")
    assert booked.trimmed[-1] == stale.number
    assert texts(booked, "effect.gone") == []
    assert booked.history[-1]["event"] == stale.event


def test_the_planner_is_told_that_a_late_event_is_late(booked):
    table(booked, v="2")
    table(booked, v="1")
    content = [message["content"] for message in messages(booked.history) if message["role"] == "tool"]
    assert ['"late":true' in text for text in content[-2:]] == [False, True]


def test_an_order_is_numeric_where_both_are_numbers(booked):
    events = [table(booked, v=v).event for v in ("9", "10", "10.5", "-1", "1e2")]
    assert turns(booked)[1:] == [event for event, at in zip(events, (1, 1, 1, 0, 1), strict=True) if at]


def test_streams_sources_and_subjects_are_not_compared(booked):
    table(booked, v="9")
    for fields in ({"stream": "notes"}, {"subject": "reservation:r2"}, {"origin": CINEMA}):
        booked.event({"id": "r1"}, type="table.moved", **{"subject": TABLE, "sequence": "1", **fields})
    assert texts(booked, "input.stale") == []
    table(booked, v="8")
    assert len(texts(booked, "input.stale")) == 1


def test_an_event_without_a_sequence_is_never_stale(booked):
    table(booked, v="9")
    table(booked, "table.note")
    assert texts(booked, "input.stale") == []


def test_watermarks_are_bounded_and_the_newest_are_kept(booked):
    for number in range(KEPT_SUBJECTS + 1):
        booked.event(type="table.moved", subject=f"reservation:x{number}", sequence="2")
    assert len(booked.state.watermarks) == KEPT_SUBJECTS
    booked.event(type="table.moved", subject="reservation:x0", sequence="1")
    assert texts(booked, "input.stale") == []
    booked.event(type="table.moved", subject=f"reservation:x{KEPT_SUBJECTS}", sequence="1")
    assert len(texts(booked, "input.stale")) == 1


# Gone


def test_a_subject_that_is_gone_is_marked_before_its_turn_and_once(booked):
    table(booked, "table.gone", v="1")
    table(booked, "table.gone", v="2")
    assert texts(booked, "effect.gone") == ["r1, reported by restaurant"]
    kinds = booked.kinds()
    assert kinds.index("effect.gone") < len(kinds) - 1 - kinds[::-1].index("turn.start")
    assert booked.state.operations["O1"].gone


def test_a_report_that_overtakes_the_result_of_its_operation_counts_when_that_comes():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))), rules())
    talk.say("book and mail")
    table(talk, "table.gone", v="1")
    assert texts(talk, "effect.gone") == []
    talk.finish(result={"id": "r1"})
    assert texts(talk, "effect.gone") == ["r1, reported by restaurant"]
    assert talk.state.operations["O1"].gone
    assert talk.state.gone_early == {}


def test_without_a_lookup_nobody_is_asked(booked):
    table(booked, "table.gone", v="1")
    assert booked.sent(LookUpOperation) == []


def looked(talk: Talk, found: Any, **fields: Any):
    asked = talk.sent(LookUpOperation)[-1]
    return talk.give(LookedUp(operation=asked.operation, key=asked.key, found=found, **fields))


@pytest.mark.parametrize(
    ("found", "says", "gone"),
    [
        ("gone", "r1, confirmed", True),
        ("stands", "r1, not so: its destination says that it stands", False),
        ("unknown", "r1, not confirmed: its destination did not say", True),
    ],
)
def test_a_report_is_checked_with_the_destination(found, says, gone):
    talk = make_booked(lookup=True)
    event = table(talk, "table.gone", v="1")
    (asked,) = talk.sent(LookUpOperation)
    assert asked.operation == "O1"
    looked(talk, found)
    assert texts(talk, "effect.gone") == ["r1, reported by restaurant", says]
    assert talk.state.operations["O1"].gone is gone
    assert turns(talk)[-1] == event.event


def test_the_turn_about_a_subject_begins_when_its_state_was_read_and_the_planner_sees_it():
    talk = make_booked(lookup=True)
    event = table(talk, v="1")
    assert talk.state.turn is None
    assert texts(talk, "input.queued") == ["its subject's state is read first"]
    looked(talk, "stands", result={"state": "held"})
    assert turns(talk)[-1] == event.event
    read, shown = talk.history[-2:]
    assert (read["tool"], read["state"], read["result"]) == ("look", "stands", {"state": "held"})
    assert shown["event"] == event.event
    assert talk.became()[-1] == (event.number, "acted")


def test_a_turn_does_not_wait_for_ever_for_a_reading():
    talk = make_booked(lookup=True)
    event = table(talk, v="1")
    assert talk.state.reading_until == NOW + READ_WAIT_MS
    talk.now = NOW + READ_WAIT_MS - 1
    talk.give(DeadlineReached())
    assert talk.state.queue
    talk.now += 1
    talk.give(DeadlineReached())
    assert turns(talk)[-1] == event.event
    assert talk.state.reading_until == 0


def test_an_answer_that_nobody_waits_for_changes_nothing():
    talk = make_booked(lookup=True)
    table(talk, "table.gone", v="1")
    looked(talk, "gone")
    before = talk.state
    again = looked(talk, "stands")
    assert talk.state == before
    assert (again.lines, again.history, again.sends) == ((), (), ())


def test_inputs_behind_one_whose_subject_is_read_keep_their_order():
    talk = make_booked(lookup=True)
    first = table(talk, v="1")
    second = talk.say("hello")
    looked(talk, "stands")
    assert turns(talk)[1:] == [first.event, second.event]


def test_what_waits_behind_one_that_is_superseded_while_its_subject_is_read_begins():
    talk = make_booked(lookup=True)
    lost = table(talk, v="1")
    said = talk.say("hello, are you there?")
    table(talk, "table.over")
    assert (lost.number, "superseded") in talk.became()
    assert turns(talk)[-1] == said.event
    assert talk.state.queue == ()


def test_what_waits_begins_though_its_reading_was_forgotten_for_newer_ones():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules(lookup=True))
    for number in range(KEPT_EARLY + 1):
        talk.say("book")
        talk.finish(result={"id": f"r{number}"})
    talk.planner = silent
    events = [
        talk.event({"id": f"r{number}"}, type="table.note", subject=f"reservation:r{number}")
        for number in range(KEPT_EARLY + 1)
    ]
    assert turns(talk)[-1] == events[0].event
    assert talk.state.next_deadline > talk.now


def looking_up(talk: Talk) -> list[str]:
    """The operations that destinations were asked about, in order."""
    return [asked.operation for asked in talk.sent(LookUpOperation)]


def long_queued() -> Talk:
    """An event waits behind a user's turn; the state of its subject was read when it came, long ago."""
    talk = make_booked(lookup=True)
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    table(talk, v="1")
    looked(talk, "stands", result={"state": "held"})
    talk.now += READ_WAIT_MS + 1
    return talk


def test_what_was_read_when_an_event_came_is_read_again_where_its_turn_begins_long_after():
    talk = long_queued()
    talk.planner = silent
    talk.finish()
    assert talk.state.turn is None
    assert looking_up(talk) == ["O1", "O1"]
    assert talk.state.next_deadline == talk.now + READ_WAIT_MS
    assert len({send.id_parts for send in talk.sends if isinstance(send.message, LookUpOperation)}) == 2
    looked(talk, "gone")
    assert talk.state.operations["O1"].gone
    assert turns(talk)[-1] == talk.inputs[3].event
    assert looking_up(talk) == ["O1", "O1"]


def test_what_is_read_again_in_vain_is_waited_for_once():
    talk = long_queued()
    talk.planner = silent
    talk.finish()
    talk.wait(READ_WAIT_MS * 10)  # whoever looks at deadlines is late
    assert turns(talk)[-1] == talk.inputs[3].event
    assert looking_up(talk) == ["O1", "O1"]
    assert talk.state.next_deadline == 0


def test_a_word_that_is_fresh_is_not_asked_for_again():
    talk = long_queued()
    talk.now -= 1
    talk.planner = silent
    talk.finish()
    assert looking_up(talk) == ["O1"]
    assert turns(talk)[-1] == talk.inputs[3].event


def test_the_state_is_read_where_the_subject_became_known_after_its_event_came():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules(lookup=True))
    talk.say("book")
    event = table(talk, v="1")
    talk.planner = silent
    talk.finish(result={"id": "r1"})
    assert (looking_up(talk), talk.state.turn) == (["O1"], None)
    looked(talk, "stands")
    assert turns(talk)[-1] == event.event


def of_one_origin(**more: Any) -> Talk:
    """While a turn of the restaurant runs, an event of it about r1 comes, which is booked; it would join the turn."""
    talk = make_booked(lookup=True, **more)
    talk.planner = one_plan(Plan(steps=(Step(tool="look", args={}),)))
    talk.relate = lambda turn, about: Plan(relation="adds", steps=(Step(tool="look", args={"again": True}),))
    talk.event({"id": "rX"}, type="table.note", subject="reservation:rX")
    table(talk, v="1")
    return talk


def test_what_an_event_is_to_the_running_turn_is_asked_when_its_subjects_state_was_read():
    talk = of_one_origin()
    assert (looking_up(talk), talk.questions_about) == (["O1"], [])
    looked(talk, "stands", result={"state": "held"})
    assert [about.number for _, about in talk.questions_about] == [3]
    assert talk.history[-1]["result"] == {"state": "held"}
    talk.finish()
    assert texts(talk, "input.merged") == ["adds"]
    assert talk.runs()[-1] == ("look", {"again": True})


def test_a_reading_within_a_turn_is_not_waited_for_for_ever():
    talk = of_one_origin()
    assert talk.state.next_deadline == talk.now + READ_WAIT_MS
    talk.wait(READ_WAIT_MS)
    assert [about.number for _, about in talk.questions_about] == [3]
    assert talk.state.next_deadline > talk.now


def test_a_turn_that_ends_while_an_events_subject_is_read_leaves_it_to_a_turn_of_its_own():
    talk = of_one_origin()
    talk.finish()
    assert talk.state.turn is None
    assert talk.state.next_deadline == talk.now + READ_WAIT_MS
    looked(talk, "stands")
    assert turns(talk)[-1] == talk.inputs[3].event
    assert looking_up(talk) == ["O1"]


def test_a_turn_that_asks_nothing_now_is_not_looked_at_without_end_for_a_reading_that_is_over():
    talk = make_booked(lookup=True)
    talk.planner = one_plan(Plan(steps=(Step(tool="look", args={}),)))
    talk.relate = lambda turn, about: Plan(relation="unclear")
    talk.event({"id": "rX"}, type="table.note", subject="reservation:rX")
    talk.event({"id": "rY"}, type="table.note", subject="reservation:rY")
    table(talk, v="1")
    assert talk.state.reading_until
    talk.wait(READ_WAIT_MS)
    assert talk.state.next_deadline > talk.now


# Moot


def test_queued_input_about_a_moot_subject_is_superseded_and_other_input_stays():
    talk = busy()
    lost = film(talk, "film.news")
    kept = talk.event(subject="film:alien", origin=CINEMA)
    said = talk.say("and?")
    moot = film(talk, "film.moot")
    assert [ref.number for ref in talk.state.queue] == [kept.number, said.number, moot.number]
    assert talk.became() == [(lost.number, "superseded")]
    assert lost.number in talk.trimmed
    assert texts(talk, "input.superseded") == ["film:dune is moot, says cinema"]


def test_what_waits_for_the_planners_word_on_it_is_superseded_too_but_not_what_is_asked_about():
    talk = Talk(rules=rules(slow=True))
    film(talk, "film.news")
    asked, waits = film(talk, "film.news"), film(talk, "film.news")
    assert [wanted.about for wanted in talk.state.wanted] == [0, asked.number]
    moot = film(talk, "film.moot")
    assert talk.state.turn is not None
    assert [ref.number for ref in talk.state.turn.arrivals] == [asked.number, moot.number]
    assert talk.became() == [(waits.number, "superseded")]


def with_timer(**result: Any) -> Talk:
    talk = Talk(one_plan(Plan(steps=(REMIND,))), rules())
    talk.say("remind me")
    told = {"timer": "t1", "due": NOW + 1_000, "at": "2027-01-15T08:00:01+00:00", "subject": FILM}
    talk.finish(result={**told, **result})
    talk.planner = lambda turn, body: Plan()
    return talk


def instant(talk: Talk, timer: str = "t1", subject: str = FILM, at: int = 1):
    return talk.arrive("timer", TIMER, {"text": "go"}, event=f"{timer}@{at}", subject=subject)


def test_a_timer_that_was_set_is_shown_and_known():
    talk = with_timer()
    assert texts(talk, "timer.set") == ["Dune tonight, 2027-01-15T08:00:01+00:00, film:dune"]
    assert list(talk.state.timers) == ["t1"]
    talk.finish(operation="O1", result={"timer": "t1"})
    assert len(texts(talk, "timer.set")) == 1


def test_the_instant_of_a_timer_is_a_turn_of_its_own_and_never_a_users_word():
    talk = with_timer()
    fired = instant(talk)
    assert turns(talk)[-1] == fired.event
    assert talk.planned[-1].origin.kind == "timer"
    assert [entry["kind"] for entry in talk.history].count("user") == 1
    assert talk.history[-1]["data"] == {"text": "go"}
    assert talk.state.timers == {}


def test_a_timer_that_repeats_stays_known():
    talk = with_timer(rule="FREQ=DAILY")
    instant(talk)
    assert list(talk.state.timers) == ["t1"]


def test_an_instant_is_called_by_the_operation_that_set_its_timer():
    talk = with_timer()
    instant(talk)
    assert texts(talk, "input")[-1] == "timer of O1"


def test_an_instant_waits_behind_a_running_turn():
    talk = busy()
    fired = instant(talk, subject="")
    assert [ref.number for ref in talk.state.queue] == [fired.number]


def test_a_moot_subject_stops_its_timers_at_once():
    talk = with_timer()
    film(talk)
    assert [(stop.timer, stop.reason) for stop in talk.sent(StopTimer)] == [("t1", "film:dune is moot, says cinema")]
    assert texts(talk, "input.superseded") == ["timer of O1: film:dune is moot, says cinema"]
    assert talk.state.timers == {}


def test_the_instant_of_a_moot_timer_is_superseded():
    talk = with_timer()
    film(talk)
    began = len(turns(talk))
    fired = instant(talk)
    assert talk.became()[-1] == (fired.number, "superseded")
    assert fired.number in talk.trimmed
    assert len(turns(talk)) == began


def test_the_instant_of_an_unknown_timer_about_a_moot_subject_is_superseded_and_the_timer_stopped():
    talk = Talk(rules=rules())
    film(talk)
    fired = instant(talk, "T9")
    assert talk.became()[-1] == (fired.number, "superseded")
    assert [stop.timer for stop in talk.sent(StopTimer)] == ["T9"]


def test_a_timer_that_is_set_after_its_subject_became_moot_is_meant():
    talk = Talk(one_plan(Plan(steps=(REMIND,))), rules())
    film(talk)
    talk.say("remind me all the same")
    talk.finish(result={"timer": "t1", "due": NOW, "subject": FILM})
    talk.planner = lambda turn, body: Plan()
    fired = instant(talk)
    assert talk.sent(StopTimer) == []
    assert talk.became()[-1] == (fired.number, "acted")


def test_a_timer_whose_result_comes_after_its_subject_became_moot_is_stopped():
    talk = Talk(one_plan(Plan(steps=(REMIND,))), rules())
    talk.say("remind me")
    film(talk)
    talk.finish(result={"timer": "t1", "due": NOW, "subject": FILM})
    assert [stop.timer for stop in talk.sent(StopTimer)] == ["t1"]
    assert talk.state.timers == {}


def test_a_cancelled_timer_is_forgotten():
    talk = with_timer()
    talk.planner = one_plan(Plan(steps=(Step(tool="cancel_timer", args={"timer": "t1"}),)))
    talk.say("never mind")
    talk.finish(result={"timer": "t1"})
    assert talk.state.timers == {}


def test_moot_subjects_are_bounded():
    talk = Talk(rules=rules())
    for number in range(KEPT_SUBJECTS + 5):
        talk.event({}, CINEMA, type="film.moot", subject=f"film:{number}")
    assert len(talk.state.moot) == KEPT_SUBJECTS
    assert f"film:{KEPT_SUBJECTS + 4}" in talk.state.moot


def test_a_skipped_instant_is_told_once():
    talk = with_timer(rule="FREQ=DAILY")
    skipped = TimerSkipped(timer="t1", instant=NOW, reason="two days late", count=3)
    talk.give(skipped)
    before = talk.state
    talk.give(skipped)
    assert texts(talk, "timer.skipped") == ["O1 (3 instants): two days late"]
    assert talk.state == before


def test_a_timer_that_was_skipped_and_does_not_repeat_is_forgotten():
    talk = with_timer()
    talk.give(TimerSkipped(timer="t1", instant=NOW, reason="two days late"))
    assert talk.state.timers == {}
    talk.give(TimerSkipped(timer="t2", instant=NOW, reason="too_many_timers"))
    assert texts(talk, "timer.skipped") == ["O1: two days late", "t2: too_many_timers"]


# Notices


def test_a_notice_is_told_at_once_while_a_turn_runs_and_begins_none():
    talk = busy()
    told = film(talk)
    (notice,) = [notice for notice in talk.sent(Notice) if notice.topic == "notice"]
    assert (notice.text, notice.data["source"]) == ("Dune is cancelled", "cinema")
    assert texts(talk, "notice") == ["Dune is cancelled"]
    assert talk.became() == [(told.number, "noticed")]
    assert talk.state.queue == ()
    assert talk.history[-1]["kind"] == "event"


def test_a_notice_carries_its_own_events_correlation_and_not_the_running_turns():
    talk = busy()
    told = film(talk)
    (send,) = [send for send in talk.sends if isinstance(send.message, Notice) and send.message.topic == "notice"]
    assert send.of is not None
    assert send.of.id == told.id


@pytest.mark.parametrize("data", [{"film": "dune"}, {"text": ""}, {"text": "  "}, [], None])
def test_an_event_that_does_not_fit_its_notice_is_an_event_as_any(data):
    talk = Talk(rules=rules())
    event = talk.event(data, CINEMA, type="film.cancelled", subject=FILM)
    assert texts(talk, "notice") == ["not told: its data does not fit the notice"]
    assert turns(talk) == [event.event]
    assert [notice for notice in talk.sent(Notice) if notice.topic == "notice"] == []


def test_a_notice_is_of_a_readable_length():
    talk = Talk(rules=rules())
    film(talk, text="x" * 100_000)
    assert len(texts(talk, "notice")[0]) == 2_000


def test_a_notice_that_is_late_is_not_told():
    talk = Talk(rules=rules())
    film(talk, sequence="2")
    film(talk, sequence="1")
    assert len(texts(talk, "notice")) == 1


# Superseded questions


def asking() -> Talk:
    """A question about the table is open."""
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules())
    table(talk, "table.note")
    talk.asked()
    return talk


def test_a_newer_event_about_its_subject_supersedes_a_question_and_asks_afresh():
    talk = asking()
    table(talk, v="2")
    (message,) = talk.sent(SupersedeActions)
    assert message.actions == ("A1",)
    fresh = talk.questions()[-1]
    assert (fresh.action, fresh.supersedes) == ("A2", ("A1",))
    talk.give(ActionClosed(action="A1", state="superseded", reason="newer"))
    assert list(talk.state.actions) == ["A2"]


def test_what_an_older_event_asks_while_a_newer_one_waits_is_superseded_when_that_ones_turn_begins():
    look = Step(tool="look", args={})
    talk = Talk(one_plan(Plan(steps=(look,)), after=Plan(steps=(BOOK,))), rules(in_flight=[{"independent": "queue"}]))
    table(talk, "table.note")
    newer = table(talk, v="2")
    assert [ref.number for ref in talk.state.queue] == [newer.number]
    talk.finish()  # the older one's turn asks, and the newer one's begins
    assert [message.actions for message in talk.sent(SupersedeActions)] == [("A1",)]
    talk.finish()
    assert [question.supersedes for question in talk.questions()] == [(), ("A1",)]


def test_a_question_about_another_subject_or_of_the_user_stays_open():
    talk = asking()
    talk.event({}, type="table.moved", subject="reservation:r2", sequence="2")
    talk.event({}, type="table.moved", sequence="2")
    assert talk.sent(SupersedeActions) == []


def test_a_question_is_superseded_once():
    talk = asking()
    talk.planner = lambda turn, body: Plan()
    table(talk, v="2")
    table(talk, v="3")
    assert len(talk.sent(SupersedeActions)) == 1


def test_what_was_accepted_meanwhile_runs_and_the_fresh_question_is_not_asked():
    talk = asking()
    table(talk, v="2")
    talk.give(ActionNotAsked(action="A2", reason="A1 was accepted meanwhile"))
    talk.planner = lambda turn, body: Plan()
    talk.decision()
    assert talk.runs() == [("book", {"party": 4})]
    assert texts(talk, "action.accepted") == ["by ana before a newer event could supersede it"]
    assert talk.replies() == ["I wanted to ask you something, but could not: A1 was accepted meanwhile."]
    assert talk.state.actions == {}


def test_an_accepted_action_that_waits_for_its_turn_is_not_superseded():
    talk = asking()
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    talk.decision()
    table(talk, v="2")
    assert talk.sent(SupersedeActions) == []


def test_a_superseded_question_is_not_offered_for_an_answer():
    talk = asking()
    talk.planner = lambda turn, body: Plan()
    table(talk, v="2")
    talk.say("yes, sure")
    assert talk.replies() == []


# All of it


def test_events_that_any_source_calls_by_a_types_name_mean_nothing_elsewhere(booked):
    booked.arrive("timer", TIMER, {}, type="table.gone", subject=TABLE)
    booked.arrive("message", RESTAURANT, {}, type="table.gone", subject=TABLE)
    booked.event({}, CINEMA, type="table.gone", subject=TABLE)
    assert texts(booked, "effect.gone") == []


def test_what_is_known_of_subjects_survives_being_stored():
    talk = with_timer(rule="FREQ=DAILY")
    film(talk, "film.moot", sequence="2")
    table(talk, "table.gone", v="2026-11-30T10:00:00Z")
    packed = talk.state.model_dump_json(exclude_defaults=True)
    assert SessionState.model_validate_json(packed) == talk.state
    assert talk.state.watermarks
    assert talk.state.begun


# Loops: the agent's own effects come back as events (A12)


def echoing(depth: int = 0) -> Talk:
    """Books at each event, and each booking makes a subject of its own."""
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules(caps={"causation_depth": 2}))
    talk.rules = replace(talk.rules, labs=frozenset({"authority_by_role"}))  # nobody is asked, so nobody stops it
    talk.event(type="table.note", subject="reservation:r0", depth=depth)
    return talk


def echo(talk: Talk, number: int) -> None:
    """What it has just made comes back."""
    talk.finish(result={"id": f"r{number}"})
    talk.event(type="table.note", subject=f"reservation:r{number}")


def test_what_comes_back_of_the_agents_own_effects_ends_at_the_causation_depth():
    talk = echoing()
    for number in (1, 2, 3):
        echo(talk, number)
    assert [run.operation for run in talk.sent(RunStep)] == ["O1", "O2", "O3"]
    assert talk.state.turn is None
    assert texts(talk, "turn.failed") == ["causation depth 3 is above the limit"]
    assert talk.limits == ["causation_depth"]


def test_an_effect_that_comes_back_before_its_result_is_as_deep():
    talk = echoing()
    talk.event(type="table.note", subject="reservation:r1")
    talk.finish(result={"id": "r1"})
    assert [planned.input.depth for planned in talk.planned if not planned.results] == [0, 1]


def test_what_follows_from_an_effect_is_as_deep_as_what_came_back():
    talk = echoing()
    echo(talk, 1)
    assert [send.of.depth for send in talk.sends if isinstance(send.message, RunStep)] == [0, 1]


def test_events_about_one_thing_do_not_add_up(booked):
    for _ in range(6):
        table(booked, "table.note")
    assert [planned.input.depth for planned in booked.planned[-6:]] == [1] * 6


def test_a_depth_that_came_with_an_event_is_not_made_less(booked):
    table(booked, "table.note", depth=4)
    assert booked.planned[-1].input.depth == 4


def test_what_a_person_said_yes_to_begins_anew():
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules(caps={"causation_depth": 2}))
    talk.event(type="table.note", subject="reservation:r0", depth=2)
    talk.asked()
    talk.decision()
    talk.finish(result={"id": "r1"})
    talk.planner = lambda turn, body: Plan()
    table(talk, "table.note")
    assert talk.planned[-1].input.depth == 1


def test_what_is_asked_about_while_its_subject_becomes_moot_is_superseded_whatever_the_planner_says():
    talk = Talk(rules=rules(slow=True))
    talk.event({}, CINEMA)
    asked = talk.event({}, CINEMA, type="film.news", subject=FILM)
    about = talk.requested()[-1]
    talk.event({}, RESTAURANT, type="film.moot", subject=FILM)
    talk.event({}, CINEMA, type="film.moot", subject=FILM)
    talk.plan(Plan(relation="independent"), about)
    assert (asked.number, "superseded") in talk.became()
    assert asked.event not in [ref.event for ref in talk.state.queue]


def test_what_was_unclear_and_became_moot_while_its_turn_was_paused_begins_no_turn():
    talk = Talk(rules=rules(), relate=lambda *_: Plan(relation="unclear"))
    talk.planner = one_plan(Plan(steps=(Step(tool="look", args={}),)))
    talk.event({}, CINEMA)
    unclear = talk.event({}, CINEMA, type="film.news", subject=FILM)
    talk.finish()
    assert talk.state.turn.status == "paused"
    talk.event({}, CINEMA, type="film.moot", subject=FILM)
    talk.now = talk.state.next_deadline
    talk.give(DeadlineReached())
    assert (unclear.number, "superseded") in talk.became()
    assert unclear.event not in [ref.event for ref in talk.state.queue]

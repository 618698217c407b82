"""What would become of an input, and by which rule; nothing is changed by asking."""

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

import httpx2
import jwt
import pytest

from libs.contracts.application import parse_application
from libs.runtime.auth import Operators, UserTokens
from services.session.domain.explain import NotAnEvent, explain
from services.session.domain.plan import Plan
from services.session.domain.rules import Rules
from services.session.domain.state import TimerRef
from services.session.edge import MOST_BODY, make_app
from services.session.snapshot import Snapshot
from tests.support.session import ANA, BOOK, MAIL, NOW, RESTAURANT, FakeClock, Talk, make_rules, one_plan

SECRET = "u" * 32


def rules(**session: Any) -> Rules:
    connector = {"python": {"function": "builtins:dict"}}
    verify = {"verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]}}
    subject = {"subject": "reservation:{{ data.id }}"}
    raw = {
        "sources": {
            "restaurant": {
                **verify,
                "route": subject,
                "types": {
                    "table.*": {"sequence": "{{ data.v }}"},
                    "offer": {"supersedes_questions": True},
                    "gone": {"gone": True},
                    "news": {"notice": "{{ data.text }}"},
                },
            },
            "cinema": {**verify, "route": {"session": "{{ data.session }}"}, "unrouted": {"reject": True}},
            "app": {"verify": {"scheme": "user-token"}},
        },
        "tools": {
            "book": {"registers": "reservation:{{ result.id }}", "connector": connector},
            "mail": {"connector": connector},
            "look": {"effect": "read", "connector": connector},
        },
        "planner": {"scripted": {"rules": "rules.yaml"}},
        "session": {
            "in_flight": [
                {"source": "cinema", "adds": "reject"},
                {"source": "rest*", "type": "offer", "adds": "queue"},
            ],
            **session,
        },
    }
    return replace(make_rules(), application=parse_application(raw, "test"))


def booked(**session: Any) -> Talk:
    talk = Talk(one_plan(Plan(steps=(BOOK,))), rules(**session))
    talk.say("book")
    talk.finish(result={"id": "r1"})
    return talk


def event(type: str = "offer", source: str = "restaurant", **data: Any) -> dict[str, Any]:
    return {"source": source, "type": type, "data": {"id": "r1", **data}}


def told(talk: Talk, what: dict[str, Any]) -> dict[str, str]:
    """What is said of each thing; several are joined."""
    found: dict[str, str] = {}
    for finding in explain(talk.state, what, talk.rules, talk.now, owner="ana"):
        found[finding.about] = "; ".join(filter(None, (found.get(finding.about), finding.says)))
    return found


def ruled(talk: Talk, what: dict[str, Any]) -> dict[str, str]:
    return {found.about: found.rule for found in explain(talk.state, what, talk.rules, talk.now, owner="ana")}


def test_an_event_that_would_begin_a_turn():
    talk = booked()
    found = told(talk, event())
    assert found["origin"] == "webhook restaurant of restaurant, verified by standard-webhooks"
    assert found["route"] == "by reservation:r1, which O1 registered here"
    assert found["subject"] == "reservation:r1"
    assert found["meaning"] == "open questions about the subject are superseded"
    assert found["planner"] == "is asked for T2"
    assert found["tools"] == "asks the owner first: book, mail, set_timer, cancel_timer; runs without asking: look"
    assert found["limits"] == "its origin has begun 0 of 60 turns within the hour"
    assert "adds: queue" in found["in_flight"]
    where = ruled(talk, event())
    assert where["meaning"] == "sources.restaurant.types.offer"
    assert where["in_flight"] == "session.in_flight, rule 2"


def test_it_is_the_decision_itself_that_is_told_and_nothing_is_changed():
    talk = booked()
    before = talk.state.model_dump_json()
    found = told(talk, event("gone"))
    assert found["effect.gone"] == "r1, reported by restaurant"
    assert talk.state.model_dump_json() == before
    assert not talk.state.operations["O1"].gone


def test_a_stale_event_is_told_with_what_is_known():
    talk = booked()
    talk.event({"id": "r1"}, type="table.x", subject="reservation:r1", sequence="7")
    found = told(talk, event("table.x", v=7))
    assert found["order"] == "7"
    assert (found["input.stale"], found["outcome"]) == ("7 is not after 7", "stale")
    assert "in_flight" not in found
    assert told(talk, event("table.x", v=8))["planner"] == "is asked for T3"


def test_a_notice_is_told_with_its_text():
    found = told(booked(), event("news", text="closed on Monday"))
    assert (found["notice"], found["outcome"]) == ("closed on Monday", "noticed")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (event("table.x"), "quarantined: no_sequence, the data does not have it"),
        ({"source": "restaurant", "data": {}}, "quarantined: no_route, the data names no session"),
    ],
)
def test_what_ingress_would_not_let_through_is_told_and_no_more(what, says):
    found = told(booked(), what)
    assert says in found.values()
    assert "planner" not in found


def test_the_route_is_told_also_where_it_leads_elsewhere():
    talk = booked()
    assert told(talk, event("x", "cinema", session="s1"))["route"] == "it names this session"
    found = told(talk, event("x", "cinema", session="s2"))
    assert found == {
        "origin": "webhook cinema of cinema, verified by standard-webhooks",
        "route": "it names the session s2, and does not come here",
    }
    held = told(talk, {"source": "restaurant", "type": "offer", "data": {"id": "r9"}})
    assert "held for 600 s" in held["route"]


def test_a_running_turn_of_another_origin_makes_it_wait_and_its_own_asks_the_planner():
    talk = booked()
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    assert told(talk, event())["in_flight"] == "T2 runs, of another origin: queued, whatever it is"
    own = told(talk, {"text": "also", "as": "ana"})
    assert own["in_flight"].startswith("T2 runs, of its own origin: if it adds: merge")
    assert ruled(talk, {"text": "also"})["in_flight"] == "session.in_flight, no rule fits: the default"


def test_a_users_message_is_the_owners_or_refused():
    talk = booked()
    found = told(talk, {"text": "hello", "as": "ana"})
    assert found["origin"] == "user ana of app, verified by user-token"
    assert found["tools"] == "runs without asking: book, mail, look, set_timer, cancel_timer"
    refused = told(talk, {"text": "hello", "as": "ben"})
    assert "403" in refused["route"]
    assert "planner" not in refused


def test_a_users_cancel_is_told_and_nothing_is_changed():
    talk = Talk(one_plan(Plan(steps=(BOOK, MAIL))))
    talk.say("book")
    before = talk.state
    found = explain(talk.state, {"cancel": True, "as": "ana"}, talk.rules, talk.now, owner="ana")
    assert ("outcome", "acted") in [(finding.about, finding.says) for finding in found]
    assert "tools.withdraw_operation.v1" in [finding.says for finding in found if finding.about == "sends"]
    assert talk.state is before
    stranger = explain(talk.state, {"cancel": True, "as": "eve"}, talk.rules, talk.now, owner="ana")
    assert stranger[-1].says.startswith("refused with 403")


@pytest.mark.parametrize("what", [{"cancel": False}, {"cancel": True, "as": 1}, {"cancel": True, "text": "x"}])
def test_a_cancel_that_cannot_be_read_is_refused(what):
    with pytest.raises(NotAnEvent):
        explain(Talk().state, what, make_rules(), NOW, owner="ana")


def asking() -> Talk:
    """A session that waits for the owner's answer to A1, which a webhook's turn asked."""
    talk = Talk(one_plan(Plan(steps=(BOOK,))))
    talk.event({"id": "r1"})
    talk.asked()
    assert talk.state.turn is None
    return talk


def decided(verdict: str = "accept", action: str = "A1", **more: Any) -> dict[str, Any]:
    return {"decision": verdict, "action": action, **more}


def test_an_acceptance_runs_the_stored_step_at_once_where_no_turn_runs_and_nothing_is_changed():
    talk = asking()
    before = talk.state
    found = told(talk, decided())
    assert found["action.accepted"] == "by ana"
    assert found["sends"].split("; ")[0] == "tools.run_step.v1"
    assert "limits" not in found
    assert "planner" not in found
    assert talk.state is before


@pytest.mark.parametrize("paused", [False, True])
def test_an_acceptance_waits_for_the_turn_that_runs_or_is_paused_and_says_so(paused):
    talk = asking()
    talk.planner = one_plan(Plan(steps=(MAIL, BOOK)))
    talk.relate = lambda turn, input: Plan(relation="unclear", reply="what?")
    talk.say("mail")
    if paused:
        talk.say("hm")
        talk.finish()
    assert talk.state.turn.status == ("paused" if paused else "waiting")
    found = told(talk, decided())
    assert found["queue"] == f"its stored steps run after {talk.state.turn.id}, before all that is no decision"
    assert "tools.run_step.v1" not in found.get("sends", "")


@pytest.mark.parametrize(("verdict", "kind"), [("decline", "action.declined"), ("cancel", "action.cancelled")])
def test_a_decision_that_runs_nothing_is_told(verdict, kind):
    found = told(asking(), decided(verdict))
    assert (found[kind], found["outcome"]) == ("by ana", "acted")
    assert "tools.run_step.v1" not in found.get("sends", "")


def test_a_decision_of_an_action_that_is_not_open_or_of_another_user_is_refused():
    assert told(asking(), decided(action="A9"))["action.refused"] == "A9 is not open here"
    stranger = told(asking(), decided(**{"as": "eve"}))
    assert stranger["route"].startswith("refused with 403")
    assert "action.accepted" not in stranger


def timed() -> Talk:
    """A session of which O1 set the timer tm1 about a reservation."""
    talk = booked()
    timer = TimerRef(operation=1, subject="reservation:r1")
    talk.state = talk.state.model_copy(update={"timers": {"tm1": timer}})
    return talk


def test_a_timer_that_fires_begins_a_turn_of_its_own_origin():
    talk = timed()
    before = talk.state
    found = told(talk, {"timer": "tm1", "data": {"why": "remind"}})
    assert found["origin"] == "timer tm1 of timer, verified by door"
    assert (found["timer"], found["subject"]) == ("set by O1", "reservation:r1")
    assert found["planner"] == "is asked for T2"
    assert "asks the owner first: book, mail" in found["tools"]
    assert talk.state is before
    assert told(talk, {"timer": "tm9"})["timer"] == "no operation that is known here set it: see turnkeeper timers"


def test_a_timer_that_fires_while_a_turn_runs_is_queued():
    talk = timed()
    talk.planner = one_plan(Plan(steps=(MAIL,)))
    talk.say("mail")
    found = told(talk, {"timer": "tm1"})
    assert found["in_flight"] == "T2 runs, of another origin: queued, whatever it is"
    assert "planner" not in found


def test_observe_mode_is_told():
    assert "does not, in observe mode: book, mail" in told(booked(observe=True), event())["tools"]


def test_a_limit_that_is_reached_is_told():
    talk = booked(caps={"turns_per_origin_per_hour": 1})
    found = told(talk, {"text": "hello"})
    assert (found["input.dropped"], found["outcome"]) == ("its origin has begun 1 turns within an hour", "failed")


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"source": "nobody"},
        {"source": ["restaurant"]},
        {"source": "app"},
        {"decision": "yes", "action": "A1"},
        {"decision": "accept"},
        {"decision": "accept", "action": "A1", "as": 7},
        {"decision": "accept", "action": "A1", "args": {}},
        {"timer": 7},
        {"timer": "tm1", "source": "restaurant"},
        {"text": 7},
        {"text": "x", "as": 7},
        {"text": "x", "as": "a b"},
        {"source": "cinema", "id": 7, "data": {"session": "s1"}},
        {"source": "cinema", "id": "x" * 300, "data": {"session": "s1"}},
    ],
)
def test_what_is_no_event_is_refused(what):
    with pytest.raises(NotAnEvent):
        told(booked(), what)


class Stored:
    """One session as it is stored."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    async def owner(self, session: str) -> str | None:
        return "ana" if session == "s1" else None

    async def read(self, session: str) -> Snapshot:
        return Snapshot(self.talk.state, 1, [])


@pytest.fixture
async def http():
    talk = booked()
    operators = Operators.parse(f"ops:read:{hashlib.sha256(b'op').hexdigest()}")
    clock = FakeClock()
    users = UserTokens(SECRET, None, clock)
    app = make_app(Stored(talk), users, operators, clock, talk.rules, stopping=asyncio.Event(), most_streams=2)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://session") as client:
        yield client


def token(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {jwt.encode({'sub': user, 'exp': NOW // 1000 + 60}, SECRET, 'HS256')}"}


OPERATOR = {"Authorization": "Bearer op"}


async def test_its_owner_and_operators_may_ask_and_nobody_else(http):
    url = "/v1/sessions/s1/explain"
    for headers, status in ((OPERATOR, 200), (token("ana"), 200), (token("ben"), 403), ({}, 401)):
        answer = await http.post(url, json=event(), headers=headers)
        assert answer.status_code == status
    answer = await http.post(url, json=event(), headers=OPERATOR)
    assert {"about": "planner", "says": "is asked for T2", "rule": ""} in answer.json()["findings"]
    assert (await http.post("/v1/sessions/s9/explain", json=event(), headers=OPERATOR)).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 400), (b"[]", 400), (b'{"source":"x"}', 400), (b" " * (MOST_BODY + 1), 413)],
)
async def test_a_body_that_is_no_event_is_a_problem(http, body, status):
    answer = await http.post("/v1/sessions/s1/explain", content=body, headers=OPERATOR)
    assert answer.status_code == status


def test_an_origin_is_made_of_configuration_and_never_of_the_event():
    talk = booked()
    found = told(talk, {**event(), "origin": ANA.model_dump(), "kind": "user", "principal": "ana"})
    assert found["origin"].startswith(f"{RESTAURANT.kind} restaurant")

"""What other systems got wrong about approvals (conformance, section D), where no other test is about it."""

from typing import Any

import orjson
import pytest

from libs.contracts.application import parse_application
from libs.contracts.canonical import digest
from libs.contracts.session import Step
from libs.contracts.tools import RunStep
from services.consent import render
from services.session.domain.plan import Plan
from services.tools.domain import Admitted, Catalogue, Rejection, admit
from tests.support.consent import application as consent_application
from tests.support.door import SEAL_KEYS, seal, step
from tests.support.session import BOOK, CINEMA, MAIL, RESTAURANT, Talk, one_plan

NOW = 1_800_000_000_000
TEN, DELETE = Step(tool="wire", args={"sum": "10.00"}), Step(tool="wire", args={"sum": "0.01"})


def two_questions() -> Talk:
    talk = Talk(lambda turn, _: Plan() if turn.action else Plan(steps=(BOOK if turn.input.number == 1 else MAIL,)))
    talk.event({"n": 1}, RESTAURANT)
    talk.asked("A1")
    talk.event({"n": 2}, CINEMA)
    talk.asked("A2")
    return talk


def test_of_two_open_questions_only_the_one_that_is_named_is_decided() -> None:
    """C123: the answer to one is no answer to another, whichever was asked first."""
    talk = two_questions()
    talk.decision(action="A2")
    assert talk.runs() == [("mail", {"text": "hi"})]
    assert talk.sent(RunStep)[0].action == "A2"
    talk.finish()
    assert list(talk.state.actions) == ["A1"]
    assert talk.state.actions["A1"].asked
    talk.decision(action="A1")
    assert [tool for tool, _ in talk.runs()] == ["mail", "book"]


def test_two_steps_of_one_plan_are_one_question_and_are_decided_together() -> None:
    """C123: there is no answer by position, and so no count of answers that could be wrong."""
    talk = Talk(one_plan(Plan(steps=(TEN, DELETE))))
    talk.say("wire both")
    (question,) = talk.questions()
    assert question.steps == (TEN, DELETE)
    talk.asked()
    talk.decision()
    talk.finish()
    assert [(run.action, run.step, run.args) for run in talk.sent(RunStep)] == [
        ("A1", 0, {"sum": "10.00"}),
        ("A1", 1, {"sum": "0.01"}),
    ]


TOOLS: dict[str, Any] = {
    "drop": {
        "consent": "unless-user",
        "connector": {"python": {"function": "builtins:dict"}},
        "args": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "active": {"type": "boolean", "default": False}},
            "required": ["id"],
        },
    },
    "any": {"connector": {"python": {"function": "builtins:dict"}}},
}
CATALOGUE = Catalogue.of(
    parse_application(
        {
            "sources": {"app": {"verify": {"scheme": "user-token"}}},
            "tools": TOOLS,
            "planner": {"scripted": {"rules": "rules.yaml"}},
        },
        "test",
    )
)


def admitted(tool: str, args: dict[str, Any]) -> Admitted | Rejection:
    return admit(step(tool, args, now=NOW, seals=[seal(at=NOW)]), "s1", CATALOGUE, SEAL_KEYS, action=None)


def test_what_runs_is_what_was_shown_with_no_default_filled_in_behind_it() -> None:
    """C125: arguments are validated and never bound anew, so what is shown, digested and run is one value."""
    found = admitted("drop", {"id": "7"})
    assert isinstance(found, Admitted)
    assert found.args == {"id": "7"}
    assert found.fingerprint == digest(["drop", {"id": "7"}])
    other = admitted("drop", {"id": "7", "active": False})
    assert isinstance(other, Admitted)
    assert other.fingerprint != found.fingerprint
    shown = render.question("A1", [Step(tool="drop", args={"id": "7"})], CATALOGUE.application.tools,
                            asked_by=None, ttl_ms=60_000)  # fmt: skip
    assert 'run drop with {"id":"7"}' in shown


def test_a_value_of_another_type_is_refused_and_not_converted() -> None:
    """C125: `7` is not `"7"`."""
    found = admitted("drop", {"id": 7})
    assert isinstance(found, Rejection)
    assert found.code == "bad_arguments"


@pytest.mark.parametrize("one, another", [(True, 1), (40.0, "40.0"), ("7", 7), (None, "null"), ([], {}), (0, False)])
def test_values_that_only_look_alike_are_other_arguments(one: Any, another: Any) -> None:
    """C125: the digest tells their types apart."""
    first, second = admitted("any", {"x": one}), admitted("any", {"x": another})
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert first.fingerprint != second.fingerprint


def test_the_order_of_keys_is_no_other_argument() -> None:
    """C125: the digest is over canonical JSON."""
    first, second = admitted("any", {"a": 1, "b": {"c": 2, "d": 3}}), admitted("any", {"b": {"d": 3, "c": 2}, "a": 1})
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert first.fingerprint == second.fingerprint


MARKUP = [
    "x` <https://evil.test|Approve here>", "[View](https://evil.test)", "<!channel>", "<@U9>", "*bold* _it_ ~no~",
    "ok\nApproved by: boss", "ok\r\n\r\nA2: pay 5 EUR. Approve within 10 minutes?", "<script>alert(1)</script>",
    "\x1b[2K\x1b]8;;https://evil.test\x07click",
]  # fmt: skip


@pytest.mark.parametrize("value", MARKUP)
def test_markup_in_an_argument_stays_one_line_of_literal_text_in_its_place(value: str) -> None:
    """C134: the question is plain text. Nothing in it makes a line, a control sequence or a second question, and what
    is shown is the value character by character, so that whoever shows it in markup can escape all of it."""
    tools = consent_application().tools
    text = render.question("A1", [Step(tool="text", args={"to": "sam", "text": value})], tools,
                           asked_by="restaurant", ttl_ms=600_000)  # fmt: skip
    assert text.isprintable()
    assert len(text.splitlines()) == 1
    assert text.startswith("A1 (from restaurant): ")
    shown = text.removeprefix('A1 (from restaurant): text sam "').removesuffix('". Approve within 10 minutes?')
    assert shown == render.visible(value)
    assert orjson.loads(orjson.dumps({"question": text}))["question"] == text


@pytest.mark.parametrize("value", MARKUP)
def test_markup_in_the_name_of_an_argument_is_quoted(value: str) -> None:
    """C134: names are chosen by planners too."""
    tools = consent_application().tools
    text = render.question("A1", [Step(tool="text", args={"to": "sam", "text": "hi", value: 1})], tools,
                           asked_by=None, ttl_ms=600_000)  # fmt: skip
    assert text.isprintable()
    assert f"[with {render.quoted(value)}=1]" in text

"""The scripted planner: which rule answers, also about what comes while a turn runs."""

import pytest
from pydantic import ValidationError

from services.session.domain.plan import Added, Plan, Running, View
from services.session.domain.state import InputRef, Kept
from services.session.planners.scripted import RuleFile, ScriptedPlanner
from tests.support.session import ANA, BOOK, make_input

RULES = RuleFile.model_validate(
    {
        "rules": [
            {
                "when": {"running": True, "text": r"also tell (?P<friend>\w+)"},
                "relation": "adds",
                "steps": [{"tool": "mail", "args": {"to": "{{ m.friend }}", "text": "{{ running.text }}"}}],
            },
            {"when": {"running": True, "text": r"actually, (?P<day>\w+)"}, "relation": "revises"},
            {
                "when": {"running": True, "text": "nicer", "answer": "the (?P<what>.+)"},
                "relation": "adds",
                "reply": "{{ m.what }}",
            },
            {"when": {"running": True, "text": "nicer"}, "relation": "unclear", "reply": "What?"},
            {
                "when": {"text": r"book (?P<day>\w+)", "added": r"actually, (?P<day>\w+)"},
                "steps": [{"tool": "book", "args": {"day": "{{ m.day }}", "was": "{{ done[0].args.party }}"}}],
            },
            {"when": {"text": r"book (?P<day>\w+)"}, "steps": [{"tool": "book", "args": {"day": "{{ m.day }}"}}]},
            {"when": {"after": "book", "state": "committed"}, "reply": "Booked."},
        ]
    }
)


def ref(text, number=1):
    """An input of the owner and its body."""
    made = make_input(number, "message", ANA, {"text": text})
    return InputRef.of(made), made.data


def view(text, **fields):
    """A view of the owner's message."""
    input, data = ref(text)
    return View(session="s1", turn="T1", input=input, data=data, **fields)


def running(text="book Friday"):
    return Running(*ref(text), results=(), left=(BOOK,))


def added(text, relation="adds"):
    return Added(*ref(text, 2), relation)


async def plan(shown: View) -> Plan:
    return await ScriptedPlanner(RULES).plan(shown)


@pytest.mark.parametrize(
    ("text", "relation", "reply"),
    [("also tell Sam", "adds", ""), ("actually, Saturday", "revises", ""), ("nicer", "unclear", "What?")],
)
async def test_a_rule_says_what_an_input_is_to_the_running_turn(text, relation, reply):
    made = await plan(view(text, running=running()))
    assert (made.relation, made.reply) == (relation, reply)


async def test_steps_of_an_addition_may_name_the_running_turns_text():
    made = await plan(view("also tell Sam", running=running()))
    assert [step.args for step in made.steps] == [{"to": "Sam", "text": "book Friday"}]


async def test_what_no_rule_relates_is_independent_and_plans_nothing():
    assert await plan(view("book Sunday", running=running())) == Plan()


async def test_an_answer_is_matched_by_rules_that_name_it_alone():
    made = await plan(view("nicer", running=running(), answer=added("the table")))
    assert (made.relation, made.reply) == ("adds", "table")
    assert await plan(view("nicer", running=running(), answer=added("hm"))) == Plan()


async def test_a_turn_that_was_revised_is_planned_with_both_texts_the_newer_ones_groups_first():
    done = Kept(operation="O1", key="k", tool="book", args={"party": 4}, state="committed", undone=True)
    made = await plan(view("book Friday", added=(added("actually, Saturday", "revises"),), done=(done,)))
    assert [step.args for step in made.steps] == [{"day": "Saturday", "was": 4}]


async def test_a_rule_that_says_nothing_of_additions_is_not_for_a_turn_that_has_one():
    made = await plan(view("book Friday", added=(added("also tell Sam"),)))
    assert made.steps == ()


async def test_rules_for_a_running_turn_do_not_answer_a_turn_of_its_own():
    assert (await plan(view("also tell Sam"))).reply == "I do not know how to help with that."


def test_a_relation_without_running_is_refused():
    with pytest.raises(ValidationError, match="relation"):
        RuleFile.model_validate({"rules": [{"when": {"text": "x"}, "relation": "adds"}]})


@pytest.mark.parametrize("field", ["text", "added", "answer"])
def test_a_pattern_that_is_none_is_refused(field):
    with pytest.raises(ValidationError, match="not a regular expression"):
        RuleFile.model_validate({"rules": [{"when": {field: "("}}]})

"""What a look-up asks and what its answer means (design §3.4)."""

from typing import Any

import pytest

from libs.contracts.application import Lookup
from libs.contracts.templates import TemplateError
from services.tools.domain import Committed, Failed, Found, Nothing, Outcome, Refused, Silent, Unknown
from services.tools.domain import lookup_args as asked
from services.tools.domain import read_lookup as read

ARGS = {"party": 4}


def lookup(**rest: Any) -> Lookup:
    return Lookup(tool="find", **rest)


def test_a_look_up_sees_the_operations_arguments_its_key_and_its_result() -> None:
    wanted = lookup(args={"key": "{{ key }}", "n": "{{ party }}", "m": "{{ args.party }}", "id": "{{ result.id }}"})
    assert asked(wanted, ARGS, key="k", result={"id": "R1"}) == {"key": "k", "n": 4, "m": 4, "id": "R1"}
    with pytest.raises(TemplateError):
        asked(wanted, ARGS, key="k")  # its result is not known


def test_an_argument_named_key_does_not_hide_the_idempotency_key() -> None:
    assert asked(lookup(args={"key": "{{ key }}"}), {"key": "mine"}, key="k") == {"key": "k"}


@pytest.mark.parametrize("result", [[], {"records": []}, {"records": [], "next": None, "more": False}])
def test_a_list_without_members_found_nothing(result: Any) -> None:
    assert read(lookup(), ARGS, Committed(result)) == Nothing()
    assert read(lookup(result="{{ found.records[0] }}"), ARGS, Committed(result)) == Nothing()


@pytest.mark.parametrize(
    "result",
    [
        None, "", False, {}, {"text": ""}, {"error": None, "data": None}, {"text": "no booking found"},
        {"found": False, "key": "k"}, {"status": "not_found"}, {"records": [], "total": 0}, {"id": "R1"}, "R1",
    ],
)  # fmt: skip
def test_of_what_is_no_list_the_file_says_what_to_look_at(result: Any) -> None:
    """No content proves neither that it was done nor that it was not; nor do words."""
    assert isinstance(read(lookup(), ARGS, Committed(result)), Silent)
    assert isinstance(read(lookup(result="{{ found.records[0].id }}"), ARGS, Committed(result)), Silent)


def test_the_template_may_say_that_nothing_is_an_answer() -> None:
    assert read(lookup(result="{{ found }}"), ARGS, Committed(None)) == Nothing()


def test_what_holds_something_is_the_result_and_stands() -> None:
    found = {"records": [{"id": "R1"}]}
    assert read(lookup(), ARGS, Committed(found)) == Found(found, stands=True)


def test_the_templates_say_what_the_result_is_and_whether_it_stands() -> None:
    chosen = lookup(result="{{ found.records[0] }}", stands="{{ found.records[0].state is undefined }}")
    assert read(chosen, ARGS, Committed({"records": [{"id": "R1"}]})) == Found({"id": "R1"}, stands=True)
    gone = {"id": "R1", "state": "gone"}
    assert read(chosen, ARGS, Committed({"records": [gone]})) == Found(gone, stands=False)


def test_an_empty_result_found_nothing_whatever_stands_around_it() -> None:
    assert read(lookup(result="{{ found.hit }}"), ARGS, Committed({"hit": None, "status": "none"})) == Nothing()


def test_an_answer_of_another_form_is_no_answer() -> None:
    assert isinstance(read(lookup(result="{{ found.records[0] }}"), ARGS, Committed({"error": "x"})), Silent)


@pytest.mark.parametrize("outcome", [Refused("no"), Failed("not reached"), Unknown("cut")])
def test_what_is_not_an_answer_says_nothing(outcome: Outcome) -> None:
    assert isinstance(read(lookup(), ARGS, outcome), Silent)

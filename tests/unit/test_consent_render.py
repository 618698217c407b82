"""The question shows every argument in full, and nothing can hide in it (conformance C132, C134, C135)."""

import pytest

from libs.contracts.application import Tool
from libs.contracts.session import Step
from services.consent.render import canonical_text, question, quoted, visible

CONNECTOR = {"python": {"function": "a:b"}}


def tool(**more: object) -> Tool:
    return Tool.model_validate({"connector": CONNECTOR, **more})


def ask(args: dict[str, object], **more: object) -> str:
    """The phrase of one step between frame and time."""
    text = question("A1", [Step(tool="t", args=args)], {"t": tool(**more)}, asked_by=None, ttl_ms=600_000)
    assert text.startswith("A1: ")
    assert text.endswith(". Approve within 10 minutes?")
    return text.removeprefix("A1: ").removesuffix(". Approve within 10 minutes?")


def test_the_frame_names_action_source_steps_and_time():
    steps = [Step(tool="t", args={"day": "Fri"}), Step(tool="t", args={"day": "Sat"})]
    text = question("A7", steps, {"t": tool(ask="book {{ day }}")}, asked_by="restaurant", ttl_ms=90_000)
    assert text == "A7 (from restaurant): book Fri; then book Sat. Approve within 1.5 minutes?"


def test_a_shown_argument_carries_its_unit():
    assert ask({"party": 12}, ask="book a table for {{ party }} today", units={"party": "people"}) == (
        "book a table for 12 people today"
    )


@pytest.mark.parametrize("template", ["a table for {{ party }} people", "a table for {{ party }}  People, please"])
def test_a_unit_that_the_template_says_itself_is_not_said_twice(template):
    assert ask({"party": 12}, ask=template, units={"party": "people"}).lower().count("people") == 1


def test_a_unit_in_front_of_the_value_is_not_said_twice():
    assert ask({"amount": "40.00"}, ask="pay EUR {{ amount }}", units={"amount": "EUR"}) == "pay EUR 40.00"


def test_an_argument_that_the_template_does_not_show_is_appended_in_full_with_its_unit():
    phrase = ask({"to": "Sam", "size": 7, "note": "x"}, ask="text {{ to }}", units={"size": "MB"})
    assert phrase == 'text Sam [with note="x", size=7 MB]'


@pytest.mark.parametrize(
    "template",
    [
        "send {{ to | length }} texts",
        "send{% if to == 'Sam' %} to Sam{% endif %}",
        "send {{ to[:2] }}",
        "send to {{ to | upper }}",
        "send{% if to != 'Sam' %} to {{ to }}{% endif %}",
        "send {# {{ to }} #}",
    ],
)
def test_an_argument_that_is_counted_compared_cut_or_changed_is_not_taken_as_shown(template):
    assert '[with to="Sam"]' in ask({"to": "Sam"}, ask=template)


def test_a_list_is_shown_only_when_each_member_is():
    assert ask({"to": ["Sam", "Kim"]}, ask="text {{ to | join(', ') }}") == "text Sam, Kim"
    assert ask({"to": ["Sam", "Sam"]}, ask="text {{ to[0] }}") == 'text Sam [with to=["Sam","Sam"]]'


def test_a_nested_argument_with_a_part_out_of_sight_is_appended():
    phrase = ask({"guest": {"name": "Kim", "admin": True}}, ask="invite {{ guest.name }}")
    assert phrase == 'invite Kim [with guest={"admin":true,"name":"Kim"}]'


def test_an_empty_argument_is_appended():
    assert ask({"to": "Sam", "note": ""}, ask="text {{ to }}{{ note }}") == 'text Sam [with note=""]'


def test_numbers_keep_their_type_in_the_template():
    template = "book {{ 'a large' if party > 8 else 'a' }} table for {{ party }}"
    assert ask({"party": 12}, ask=template) == "book a large table for 12"
    # The trial with marks goes the other way here, so the argument is shown once more rather than perhaps not at all.
    assert ask({"party": 4}, ask=template) == "book a table for 4 [with party=4]"


def test_without_a_template_the_tool_and_its_canonical_arguments_are_shown():
    assert ask({"to": "bob", "amount": "40.00", "n": 1.5}) == 'run t with {"amount":"40.00","n":1.5,"to":"bob"}'


def test_a_template_that_misses_an_argument_falls_back_to_the_plain_form():
    assert ask({"to": "Sam"}, ask="text {{ to }} {{ text }}") == 'run t with {"to":"Sam"}'


@pytest.mark.parametrize(
    "hidden",
    list(
        "\u202e\u200b\u2066\u2069\u00a0\u2028\x9b\x1b\n\r\t\x00\ufeff\u2060\u034f\u3164\ufe0f\U000e0041\U000e0100\ue000\u2800\u00ad"
    ),
)
def test_no_character_is_invisible_or_reorders(hidden):
    """C132."""
    for shown in (visible(f"a{hidden}b"), quoted(f"a{hidden}b"), ask({"x": f"a{hidden}b"}, ask="do {{ x }}")):
        assert hidden not in shown
        assert f"a\\u{{{ord(hidden):X}}}b" in shown


def test_names_of_arguments_cannot_hide_anything_either():
    assert ask({"to\u202e, x=1": 1}, ask="do it") == 'do it [with "to\\u{202E}, x=1"=1]'


def test_a_literal_escape_is_told_from_a_shown_one():
    assert visible("\\u{202E}") != visible("\u202e")
    assert quoted("\\u{202E}") != quoted("\u202e")


def test_blanks_cannot_push_anything_out_of_sight():
    """C135."""
    assert visible("echo ok" + " " * 5000 + "; rm -rf /") == "echo ok\\u{20*5000}; rm -rf /"
    assert visible(" a  b ") == "\\u{20}a\\u{20}\\u{20}b\\u{20}"


def test_a_letter_of_another_script_in_a_latin_word_is_shown_by_its_number():
    """C132."""
    assert visible("p\u0430ypal.example") == "p\\u{430}ypal.example"
    assert visible("привет мир, καλημέρα, café") == "привет мир, καλημέρα, café"


def test_a_value_cannot_end_its_quotes_early():
    assert canonical_text({"note": 'a", "b":"c', "z": "\\"}) == '{"note":"a\\", \\"b\\":\\"c","z":"\\\\"}'


def test_three_hundred_recipients_are_all_shown():
    """C135."""
    names = [f"friend{number}" for number in range(300)]
    phrase = ask({"to": names}, ask="text {{ to | length }} people")
    assert all(name in phrase for name in names)

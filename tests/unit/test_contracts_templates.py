"""Templates: strict, bounded, and without a way to anything but the data."""

import pytest

from libs.contracts.templates import TemplateError, evaluate, fill, render, syntax_fault

DATA = {"data": {"id": "r1", "n": 4, "none": None, "list": [1, "b"], "on": True}}


def test_a_text_is_filled_in():
    assert render("reservation:{{ data.id }}", DATA) == "reservation:r1"


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ data.n }}", 4),
        ("{{ data.list }}", [1, "b"]),
        ("{{ data.none }}", None),
        ("{{ data.on }}", True),
        ("{{ none }}", None),
        ("{{ data.n }} people", "4 people"),
        ("{{ data.n }}{{ data.n }}", "44"),
        ("{{ data.n | int + 1 }}", 5),
    ],
)
def test_a_single_expression_keeps_its_type(template, value):
    assert evaluate(template, DATA) == value


@pytest.mark.parametrize("template", ["{{ missing }}", "{{ data.x }}", "{{ data.x.y }}", "{{ nonesuch }}", "{{ x }}!"])
@pytest.mark.parametrize("use", [render, evaluate])
def test_a_name_that_the_data_lacks_is_an_error(use, template):
    with pytest.raises(TemplateError):
        use(template, DATA)


@pytest.mark.parametrize(
    "template",
    [
        "{{ data.__class__ }}",
        "{{ data.id.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ data.items }}",
        "{{ data.keys }} x",
        "{{ data.list.append }}",
        "{{ f.__globals__ }}",
        "{{ data['__class__'] }}",
        "{{ '{0.__class__}'.format(data) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ self }}",
    ],
)
@pytest.mark.parametrize("use", [render, evaluate])
def test_no_attribute_leads_out_of_the_data(use, template):
    with pytest.raises(TemplateError):
        use(template, {**DATA, "f": test_a_text_is_filled_in})


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9000) %}{% for b in range(9000) %}x{% endfor %}{% endfor %}",
        "{% for a in range(99999999) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_runs_away_ends(template):
    with pytest.raises(TemplateError):
        render(template, {})


def test_what_the_data_says_is_never_a_template():
    assert render("{{ data.t }}", {"data": {"t": "{{ 7 * 7 }}"}}) == "{{ 7 * 7 }}"
    assert fill({"a": "{{ t }}"}, {"t": "{{ 7 * 7 }}"}) == {"a": "{{ 7 * 7 }}"}


def test_nothing_is_escaped_for_html():
    assert render("{{ t }}", {"t": "<b>&"}) == "<b>&"


def test_each_text_of_a_value_is_filled_in():
    assert fill({"a": ["{{ data.n }}", "plain", 3, None], "b": {"c": "x{{ data.id }}"}}, DATA) == {
        "a": [4, "plain", 3, None],
        "b": {"c": "xr1"},
    }


@pytest.mark.parametrize("name", ["name", "source", "expression", "template", "kwargs"])
def test_arguments_of_any_name_can_be_used(name):
    template = f"{{{{ {name} }}}}"
    assert render(template, {name: "v"}) == "v"
    assert evaluate(template, {name: 3}) == 3


@pytest.mark.parametrize("template", ["{{ a", "{% if %}", "{{ a b }}", "{% for %}", "{{ a | nofilter( }}"])
def test_wrong_syntax_is_told_in_one_line(template):
    fault = syntax_fault(template)
    assert fault
    assert "\n" not in fault


def test_right_syntax_has_no_fault():
    assert syntax_fault("a {{ b | default('') }}") is None

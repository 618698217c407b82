"""Templates of the application file: `{{ }}`, strict, without access to anything but plain JSON."""

from collections.abc import Mapping
from typing import Any

import minijinja

FUEL = 20_000
"""Instructions a template may use: a runaway loop ends (5-facts)."""


class TemplateError(ValueError):
    """A template that cannot be read, or that names what the data does not have."""


def _environment() -> minijinja.Environment:
    return minijinja.Environment(
        undefined_behavior="strict", fuel=FUEL, auto_escape_callback=lambda name: False, finalizer=_only_data
    )


def _only_data(value: Any) -> Any:
    # A name that the data lacks and Python's dict has, such as `items`, is no value.
    if callable(value):
        raise TemplateError("undefined value: a template reads data, not methods")
    return NotImplemented  # printed as ever


_ENV = _environment()


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render to text. Raises TemplateError for an undefined name, bad syntax or too long a run."""
    try:
        return str(_ENV.render_str(template, **context))
    except Exception as error:  # minijinja raises several unrelated types
        raise TemplateError(str(error).splitlines()[0]) from error


def evaluate(template: str, context: Mapping[str, Any]) -> Any:
    """The value of a template that is one expression (`"{{ party }}"`), its type kept; otherwise its text."""
    inner = template.strip()
    if inner.startswith("{{") and inner.endswith("}}") and inner.count("{{") == 1:
        try:
            value = _ENV.eval_expr(inner[2:-2], **context)
        except Exception as error:
            raise TemplateError(str(error).splitlines()[0]) from error
        if value is None:
            render(template, context)  # strict: an undefined name raises here
        _only_data(value)
        return value
    return render(template, context)


def fill(value: Any, context: Mapping[str, Any]) -> Any:
    """A JSON value with each of its texts evaluated as a template."""
    match value:
        case str():
            return evaluate(value, context) if "{{" in value or "{%" in value else value
        case dict():
            return {key: fill(item, context) for key, item in value.items()}
        case list():
            return [fill(item, context) for item in value]
        case _:
            return value


def syntax_fault(template: str) -> str | None:
    """What is wrong with the syntax of a template, or None."""
    env = _environment()
    try:
        env.add_template("t", template)
    except Exception as error:
        return str(error).splitlines()[0]
    return None

"""The scripted planner: rules in YAML, first match wins. For demos, tests and simple automations.

    rules:
      - when: {origin: user, text: "book (?P<day>\\w+) at (?P<time>[0-9:]+)"}
        steps: [{tool: reserve_table, args: {day: "{{ m.day }}", time: "{{ m.time }}"}}]
      - when: {after: reserve_table, state: committed}
        reply: "Booked: {{ results[-1].result.id }}."

`when` may name: origin (kind), source, type, text (a regular expression over the whole text), after (the tool of the
last result; without it a rule is for a new input), state (of that result), action (whether the turn runs an accepted
action), asked_type (type of the event whose turn asked), where (an expression that must be true). Templates see:
m (groups of text), data, text, input, results, failing.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from libs.contracts.application import ApplicationError, Template
from libs.contracts.ids import Slug
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, evaluate, fill, render
from services.session.domain.plan import Plan, View


class Part(BaseModel):
    """Any part of the rules file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class When(Part):
    """The conditions of a rule; all given ones must hold."""

    origin: str | None = None
    source: str | None = None
    type: str | None = None
    text: str | None = None
    after: str | None = None
    state: str | None = None
    action: bool | None = None
    asked_type: str | None = None
    where: str | None = None

    @field_validator("text")
    @classmethod
    def _compiles(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return text


class RuleStep(Part):
    """One step; texts of its arguments are templates."""

    tool: Slug
    args: dict[str, Any] = Field(default_factory=dict)


class Rule(Part):
    """What to answer when its conditions hold."""

    when: When = When()
    steps: tuple[RuleStep, ...] = ()
    reply: Template = ""
    note: Template = ""


class RuleFile(Part):
    """The whole file."""

    rules: tuple[Rule, ...] = Field(min_length=1)


def load_rules(path: Path) -> RuleFile:
    """Read a rules file. Raises ApplicationError with every fault."""
    try:
        return RuleFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ApplicationError(str(path), [f"planner.scripted.rules: {error.strerror}"]) from error
    except yaml.YAMLError as error:
        raise ApplicationError(str(path), [f"not YAML: {' '.join(str(error).split())}"]) from error
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_input=False, include_url=False)
        ]
        raise ApplicationError(str(path), faults) from None


class ScriptedPlanner:
    """Answers from rules; the same view always gives the same plan."""

    def __init__(self, rules: RuleFile) -> None:
        self._rules = rules.rules

    async def plan(self, view: View) -> Plan:
        """The first rule that matches, filled in; an empty plan where none does after a step."""
        context = _context(view)
        for rule in self._rules:
            try:
                if (groups := _matches(rule.when, view, context)) is not None:
                    return _filled(rule, {**context, "m": groups})
            except TemplateError as error:
                return Plan(fault=f"a rule could not be filled in: {error}")
        if view.results or view.action:
            return Plan()
        return Plan(reply="I do not know how to help with that.") if view.input.origin.kind == "user" else Plan()


def _context(view: View) -> dict[str, Any]:
    body = view.data
    nested = body.get("data") if isinstance(body, dict) else None
    return {
        "data": nested if isinstance(nested, dict) else body,
        "text": body.get("text", "") if isinstance(body, dict) else "",
        "input": {"source": view.input.source, "type": view.input.type, "event": view.input.event},
        "results": [
            {"tool": r.tool, "args": dict(r.args), "state": r.state, "result": r.result, "reason": r.reason}
            for r in view.results
        ],
        "failing": view.failing,
    }


def _matches(when: When, view: View, context: dict[str, Any]) -> dict[str, Any] | None:
    """The groups of `text` when all conditions hold, else None."""
    last = view.results[-1] if view.results else None
    facts = {
        "origin": view.input.origin.kind,
        "source": view.input.source,
        "type": view.input.type,
        "after": last.tool if last else None,
        "state": last.state if last else None,
        "asked_type": view.asked.type if view.asked else None,
    }
    wanted = {name: value for name, value in when.model_dump().items() if value is not None and name in facts}
    if (when.after is None) != (last is None) or any(facts[name] != value for name, value in wanted.items()):
        return None
    if when.action is not None and when.action != bool(view.action):
        return None
    groups: dict[str, Any] = {}
    if when.text is not None:
        match = re.fullmatch(when.text, str(context["text"]), re.IGNORECASE | re.DOTALL)
        if match is None:
            return None
        groups = match.groupdict()
    if when.where is not None and not evaluate(when.where, {**context, "m": groups}):
        return None
    return groups


def _filled(rule: Rule, context: dict[str, Any]) -> Plan:
    return Plan(
        steps=tuple(Step(tool=step.tool, args=fill(step.args, context)) for step in rule.steps),
        reply=render(rule.reply, context) if rule.reply else "",
        note=render(rule.note, context) if rule.note else "",
    )

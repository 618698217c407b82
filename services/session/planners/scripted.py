"""The scripted planner: rules in YAML, first match wins. For demos, tests and simple automations.

    rules:
      - when: {origin: user, text: "book (?P<day>\\w+) at (?P<time>[0-9:]+)"}
        steps: [{tool: reserve_table, args: {day: "{{ m.day }}", time: "{{ m.time }}"}}]
      - when: {after: reserve_table, state: committed}
        reply: "Booked: {{ results[-1].result.id }}."

`when` may name: origin (kind), source, type, text (a regular expression over the whole text), after (the tool of the
last result; without it a rule is for a new input), state (of that result), action (whether the turn runs an accepted
action), asked_type (type of the event whose turn asked), where (an expression that must be true), and for what comes
while a turn runs:

    rules:
      - when: {running: true, text: "also tell (?P<friend>\\w+)"}
        relation: adds
        steps: [{tool: text_friend, args: {friend: "{{ m.friend }}", text: "{{ running.text }}"}}]
      - when: {running: true, text: "actually, (?P<day>\\w+)"}
        relation: revises
      - when: {text: "book (?P<day>\\w+) at (?P<time>[0-9:]+)", added: "actually, (?P<day>\\w+)"}
        steps: [{tool: reserve_table, args: {day: "{{ m.day }}", time: "{{ m.time }}"}}]

running (whether the question is what the input is to the running turn; `false` unless given), added (a regular
expression over the text of the newest input that joined the turn, its groups come after those of `text`; without it a
rule for a new input is for a turn that nothing joined), answer (a regular expression over the owner's answer to the
question about this input; without it a rule is for an input that was not asked about). `relation` is the answer to
`running: true`: adds, independent, revises or unclear; with `unclear` the reply is the question. Where no rule fits,
the input is independent.

Templates see: m (groups of text and added), data, text, input, results, failing, added (joined inputs, each with text,
type and data), done (what earlier turns of a restarted or revised turn did: tool, args, state, result, undone),
running (text, results, left), answer (its text).
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from libs.contracts.application import ApplicationError, Template
from libs.contracts.ids import Slug
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, evaluate, fill, render
from services.session.domain.memory import text_of
from services.session.domain.plan import Plan, Relation, Running, View
from services.session.domain.state import Kept, Result


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
    running: bool = False
    added: str | None = None
    answer: str | None = None

    @field_validator("text", "added", "answer")
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
    relation: Relation = ""

    @model_validator(mode="after")
    def _relates_where_asked(self) -> Self:
        if self.relation and not self.when.running:
            raise ValueError("relation: only a rule with when.running: true is asked what an input is to a turn")
        return self


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
        if view.results or view.action or view.running:
            return Plan()
        return Plan(reply="I do not know how to help with that.") if view.input.origin.kind == "user" else Plan()


def _context(view: View) -> dict[str, Any]:
    return {
        "data": _data(view.data),
        "text": text_of(view.data),
        "input": {"source": view.input.source, "type": view.input.type, "event": view.input.event},
        "results": _results(view.results),
        "failing": view.failing,
        "added": [{"text": text_of(a.data), "type": a.input.type, "data": _data(a.data)} for a in view.added],
        "done": [{**r, "undone": kept.undone} for r, kept in zip(_results(view.done), view.done, strict=True)],
        "running": _running(view.running) if view.running else None,
        "answer": text_of(view.answer.data) if view.answer else "",
    }


def _data(body: Any) -> Any:
    nested = body.get("data") if isinstance(body, dict) else None
    return nested if isinstance(nested, dict) else body


def _results(results: Sequence[Result | Kept]) -> list[dict[str, Any]]:
    return [
        {"tool": r.tool, "args": dict(r.args), "state": r.state, "result": r.result, "reason": r.reason}
        for r in results
    ]


def _running(running: Running) -> dict[str, Any]:
    left = [{"tool": step.tool, "args": dict(step.args)} for step in running.left]
    return {"text": text_of(running.data), "results": _results(running.results), "left": left}


def _matches(when: When, view: View, context: dict[str, Any]) -> dict[str, Any] | None:
    """The groups of `text` and `added` when all conditions hold, else None."""
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
    if when.running != (view.running is not None) or (when.answer is None) != (view.answer is None):
        return None
    if when.added is None and view.added and not view.running and last is None:
        return None
    groups = _groups(when, context)
    if groups is None or (when.where is not None and not evaluate(when.where, {**context, "m": groups})):
        return None
    return groups


def _groups(when: When, context: dict[str, Any]) -> dict[str, Any] | None:
    newest = context["added"][-1]["text"] if context["added"] else None
    groups: dict[str, Any] = {}
    for pattern, text in ((when.text, context["text"]), (when.added, newest), (when.answer, context["answer"])):
        if pattern is None:
            continue
        match = re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL) if text is not None else None
        if match is None:
            return None
        groups |= {name: value for name, value in match.groupdict().items() if value is not None or name not in groups}
    return groups


def _filled(rule: Rule, context: dict[str, Any]) -> Plan:
    return Plan(
        steps=tuple(Step(tool=step.tool, args=fill(step.args, context)) for step in rule.steps),
        reply=render(rule.reply, context) if rule.reply else "",
        note=render(rule.note, context) if rule.note else "",
        relation=rule.relation,
    )

"""What the application file says, as far as decisions need it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from libs.contracts.application import Application, EventType
from libs.contracts.canonical import JSON
from libs.contracts.ingress import Input
from libs.contracts.meaning import names_of
from libs.contracts.origin import Origin
from libs.contracts.principals import runs_freely
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, render
from services.session.domain.state import Turn

EXACT_DECISION = re.compile(r"(yes|no) (A[1-9][0-9]{0,8})")
"""The one text that decides (design §3.3)."""
_ALMOST = re.compile(
    r"\W*(yes|yep|yeah|no|nope|ok|okay|sure|approved?|accept|decline|confirm|go ahead)\b.*", re.IGNORECASE | re.DOTALL
)
MOST_NOTICE = 2_000
"""Characters of a notice: it is made of somebody else's data, whose size is theirs to choose."""
_ALMOST_LENGTH = 60
"""Characters. A longer text that begins with "no" is a wish, not an attempt to answer."""


class ArgumentCheck(Protocol):
    """Validates arguments against a tool's schema."""

    def __call__(self, tool: str, args: Mapping[str, JSON]) -> list[str]:
        """Each fault by path; empty when they fit."""
        ...


@dataclass(frozen=True)
class Rules:
    """The application, with the limits and the lab switches of this process."""

    application: Application
    check_arguments: ArgumentCheck
    operation_wait_ms: int
    not_after_ms: int
    labs: frozenset[str] = frozenset()
    look_up_wait_ms: int = 120_000
    """So long a turn waits for the look-up of an operation whose answer was lost."""

    @property
    def slow_planner(self) -> bool:
        """Whether plans are made off the partition: by whatever is not rules at hand (design §4.3)."""
        return self.application.planner.scripted is None

    @property
    def plan_deadline_ms(self) -> int:
        """Milliseconds that a planner off the partition has."""
        return round(self.application.planner.deadline * 1000)

    def event_type(self, input: Input) -> EventType:
        """What this type of event means; nothing special where the file is silent. Nothing but an event has a type
        there: a timer may be called as a source is."""
        if input.kind != "event":
            return EventType()
        return self.meaning(input.source, input.type)

    def meaning(self, source: str, type: str) -> EventType:
        """What the file says of a source's type of event."""
        known = self.application.sources.get(source)
        return known.meaning(type) if known else EventType()

    def needs_consent(self, tool: str, origin: Origin, *, alone: bool = True) -> bool:
        """Whether the owner is asked before this tool runs in a turn of this origin (G3). `alone`: nothing but the
        owner's own words was in the planner's view."""
        if "authority_by_role" in self.labs:
            return False
        return not runs_freely(self.application, tool, origin, alone=alone)

    @property
    def observe(self) -> bool:
        """Whether questions are computed and nothing is blocked (design §4.3)."""
        return self.application.session.observe

    def unasked(self, tool: str, turn: Turn) -> bool:
        """Whether observe mode alone lets this step of a turn run: its owner would have been asked."""
        return self.observe and not turn.action and self.needs_consent(tool, turn.origin, alone=not turn.others)

    def lookup_of(self, tool: str) -> str:
        """The tool that asks the destination what became of an operation of this one, or ""."""
        known = self.application.tools.get(tool)
        return known.lookup.tool if known is not None and known.lookup is not None else ""

    def notice_of(self, meaning: EventType, input: Input) -> str | None:
        """What the user is told of a notice; None where the data does not fit its template."""
        try:
            text = render(meaning.notice or "", names_of(input.data, input.type, input.event, input.source))
        except TemplateError:
            return None
        return text[:MOST_NOTICE].strip() or None

    def faults(self, steps: tuple[Step, ...]) -> list[str]:
        """What is wrong with a plan's steps: unknown tools, arguments that do not fit."""
        faults = []
        for step in steps:
            if step.tool not in self.application.tools:
                faults.append(f"there is no tool {step.tool}")
            else:
                faults += [f"{step.tool}: {fault}" for fault in self.check_arguments(step.tool, step.args)]
        return faults

    def subject_of(self, tool: str, args: Mapping[str, JSON], result: JSON) -> str:
        """The subject that a committed operation registers, or "" (the door registers it with ingress)."""
        template = self.application.tools[tool].registers if tool in self.application.tools else None
        if template is None:
            return ""
        context: dict[str, Any] = {**args, "result": result}  # as the door renders it
        try:
            return render(template, context)
        except TemplateError:
            return ""


def almost_a_decision(text: str) -> bool:
    """Whether somebody seems to answer a question in free text, which never decides anything."""
    return len(text) <= _ALMOST_LENGTH and _ALMOST.fullmatch(text) is not None

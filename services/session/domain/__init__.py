"""The judgement of the session service: `decide(state, message, now, rules) -> Decision`. No I/O, no clock, no ids."""

from dataclasses import dataclass
from typing import assert_never

from libs.contracts.consent import ActionAsked, ActionClosed, ActionNotAsked, DecisionRefused
from libs.contracts.ingress import Input, TimerSkipped
from libs.contracts.tools import LookedUp, StepFinished
from services.session.domain import actions, inputs, subjects, turns
from services.session.domain.draft import Decision, Draft
from services.session.domain.plan import Plan
from services.session.domain.rules import Rules
from services.session.domain.state import InputRef, SessionState


@dataclass(frozen=True)
class Arrived:
    """The input with the next number."""

    input: Input


@dataclass(frozen=True)
class Queued:
    """The first of the queue, with its body, may begin."""

    input: Input


@dataclass(frozen=True)
class Buried:
    """The input with the next number could not be handled; it was copied to the dead queue."""

    input: Input
    reason: str


@dataclass(frozen=True)
class Planned:
    """The planner's answer to the running turn."""

    plan: Plan


@dataclass(frozen=True)
class DeadlineReached:
    """It is time to look at the running turn's deadline."""


Told = ActionAsked | ActionNotAsked | ActionClosed | DecisionRefused
Stimulus = Arrived | Queued | Buried | Planned | DeadlineReached | StepFinished | LookedUp | TimerSkipped | Told


def decide(state: SessionState, stimulus: Stimulus, now: int, rules: Rules, cause: str = "") -> Decision:
    """What becomes of a stimulus. Pure: the same arguments give the same decision. `now` in ms (Unix)."""
    draft = Draft(state, now, cause)
    match stimulus:
        case Arrived(input):
            inputs.on_input(draft, input, rules)
        case Queued(input):
            if not subjects.is_being_read(state, InputRef.of(input), now):
                turns.start_queued(draft, input, rules)
        case Buried(input, reason):
            _bury(draft, input, reason)
        case Planned(plan):
            turns.follow(draft, plan, rules)
        case DeadlineReached():
            turns.deadline_reached(draft, rules)
            if 0 < subjects.reading_until(state) <= now:
                subjects.next_may_begin(draft)
        case StepFinished():
            turns.on_result(draft, stimulus, rules)
            subjects.on_result(draft, state, stimulus, rules)
        case LookedUp():
            subjects.on_looked_up(draft, stimulus, rules)
        case TimerSkipped():
            subjects.on_skipped(draft, stimulus)
        case ActionAsked():
            actions.on_asked(draft, stimulus)
        case ActionNotAsked():
            actions.on_not_asked(draft, stimulus)
        case ActionClosed():
            actions.on_closed(draft, stimulus)
        case DecisionRefused():
            actions.on_refused(draft, stimulus)
        case _:
            assert_never(stimulus)
    return draft.decision()


def _bury(draft: Draft, input: Input, reason: str) -> None:
    draft.set(applied=input.number)
    draft.line("input.dead", reason, turn="", event=input.event)
    draft.outcomes.append((InputRef.of(input), "failed"))
    draft.trimmed.append(input.number)

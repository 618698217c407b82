"""The judgement of the session service: `decide(state, message, now, rules) -> Decision`. No I/O, no clock, no ids."""

from dataclasses import dataclass
from typing import Any, assert_never

from libs.contracts.consent import ActionAsked, ActionClosed, ActionNotAsked, DecisionRefused
from libs.contracts.ingress import Input, TimerSkipped
from libs.contracts.session import PlanMade
from libs.contracts.tools import LookedUp, StepFinished
from services.session.domain import actions, inflight, inputs, plans, subjects, turns
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
    """The planner's answer to the running turn, or about an input that came meanwhile, whose body it carries then."""

    plan: Plan
    about: Input | None = None


@dataclass(frozen=True)
class Shown:
    """What a planner off the partition is to be shown, for the running turn or about the input of that number."""

    view: dict[str, Any]
    about: int = 0


@dataclass(frozen=True)
class Answered:
    """A plan that came back, with the body of the input that it is about."""

    made: PlanMade
    about: Input | None = None


@dataclass(frozen=True)
class DeadlineReached:
    """It is time to look at the session's deadlines."""


NOT_HANDLED = "Something went wrong with your message, and I could not take it. Please say it again."
"""What its owner is told of a message that was passed over: why is the operator's."""

Told = ActionAsked | ActionNotAsked | ActionClosed | DecisionRefused
News = StepFinished | LookedUp | TimerSkipped
Stimulus = Arrived | Queued | Buried | Planned | Shown | Answered | DeadlineReached | News | Told


def decide(state: SessionState, stimulus: Stimulus, now: int, rules: Rules, cause: str = "") -> Decision:
    """What becomes of a stimulus. Pure: the same arguments give the same decision. `now` in ms (Unix)."""
    draft = Draft(state, now, cause, given=(stimulus,))
    subjects.give_up_reading(draft)
    match stimulus:
        case Arrived(input):
            inputs.on_input(draft, input, rules)
        case Queued(input):
            if not subjects.is_read_first(draft, InputRef.of(input), rules):
                turns.start_queued(draft, input, rules)
        case Buried(input, reason):
            _bury(draft, input, reason)
        case Planned(plan, None):
            turns.follow(draft, plan, rules)
        case Planned(plan, about):
            inflight.related(draft, plan, about, rules)
        case Shown(view, number):
            plans.request(draft, number, view, rules)
        case Answered(made, about):
            _plan_made(draft, made, about, rules)
        case DeadlineReached():
            _deadlines(draft, rules)
        case StepFinished():
            turns.on_result(draft, stimulus, rules)
            subjects.on_result(draft, state, stimulus)
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
    inflight.next_question(draft, rules)
    subjects.next_may_begin(draft)
    return draft.decision()


def _plan_made(draft: Draft, made: PlanMade, about: Input | None, rules: Rules) -> None:
    wanted = plans.take_wanted(draft, made)
    if wanted is None:
        return
    plan = Plan(made.steps, made.reply, made.note, made.fault, made.relation)
    if wanted.about:
        inflight.related(draft, plan, about, rules)
    else:
        turns.follow(draft, plan, rules)


def _deadlines(draft: Draft, rules: Rules) -> None:
    turns.left_too_long(draft, rules)
    turns.waited_too_long(draft, rules)
    for wanted in draft.state.wanted:
        if draft.now >= wanted.deadline and wanted in draft.state.wanted:
            plans.drop_wanted(draft, wanted)
            inflight.no_plan(draft, wanted, rules)


def _bury(draft: Draft, input: Input, reason: str) -> None:
    draft.set(applied=input.number)
    draft.line("input.dead", reason, turn="", event=input.event)
    draft.outcomes.append((InputRef.of(input), "failed"))
    draft.trimmed.append(input.number)
    if input.kind == "message" and input.origin.kind == "user":
        draft.say(NOT_HANDLED, turn="", event=input.event)

"""What arrives while a turn runs (design §4.2): another origin queues, the own origin is related by the planner."""

from typing import Literal, assert_never

from libs.contracts.ingress import Input
from services.session.domain import limits, revision, subjects, turns
from services.session.domain.draft import Draft, WantPlan
from services.session.domain.ending import enqueue
from services.session.domain.memory import entry_of
from services.session.domain.plan import Plan
from services.session.domain.rules import Rules
from services.session.domain.state import InputRef, Joined, Joining, Pause, PlanWanted, Turn
from services.session.domain.steps import proceed

MOST_JOINED = 32
"""Inputs of one turn beside its first: each step carries all their seals, and the door takes 64."""
UNSURE = "I am not sure about that. Is it part of what I am doing now, does it change it, or is it something else?"
BUSY = "I cannot take that while I am busy with something else."
Way = Literal["merge", "queue", "restart", "reject", "revise", "ask"]


def arrived(draft: Draft, input: Input, rules: Rules) -> None:
    """An input that may start a turn: one at a time, begun in inbox order (G5)."""
    ref = InputRef.of(input)
    turn = draft.state.turn
    reading = subjects.is_being_read(draft.state, ref, draft.now)
    if turn is None and not draft.state.queue and not reading:
        draft.dispositions.append("dropped" if limits.is_over(draft, ref, rules) else "started")
        turns.begin(draft, input, rules)
    elif turn is None or turn.status == "cancelling":
        enqueue(draft, ref, "its subject's state is read first" if reading else "")
    elif not turn.origin.same_as(ref.origin):  # before any planner sees it
        enqueue(draft, ref, "of another origin")
    else:
        draft.set_turn(arrivals=(*turn.arrivals, ref))


def answers(draft: Draft, input: Input) -> bool:
    """Whether this message of the owner answers the question that the running turn paused with: a control."""
    turn = draft.state.turn
    if turn is None or turn.status != "paused" or turn.pausing is None:
        return False
    if input.kind != "message" or input.origin.kind != "user":
        return False
    draft.remember(**entry_of(input))
    draft.set_turn(
        pausing=turn.pausing.model_copy(update={"answer": InputRef.of(input)}), status="resuming", deadline=0
    )
    draft.line("turn.resumed", "answered", event=input.event)
    return True


def next_question(draft: Draft, rules: Rules) -> None:
    """Ask the planner what the next input is to the running turn: one question at a time, in order, and each only when
    the current state of its subject was read."""
    turn = draft.state.turn
    if turn is None or draft.want is not None or not (turn.arrivals or turn.status == "resuming"):
        return
    if turn.status in ("paused", "cancelling", "revising") or (turn.pausing and turn.status != "resuming"):
        return
    if any(wanted.about for wanted in draft.state.wanted):
        return
    about = _in_question(turn)
    if turn.status == "resuming" or not subjects.is_read_first(draft, about, rules):
        draft.want = WantPlan(turn.input.number, about.number)


def _in_question(turn: Turn) -> InputRef:
    return turn.pausing.input if turn.pausing is not None else turn.arrivals[0]


def related(draft: Draft, plan: Plan, input: Input | None, rules: Rules) -> None:
    """The planner has said what the input in question is to the running turn: the rule of its source says the rest."""
    draft.viewed()
    turn = draft.turn
    ref, resuming = _in_question(turn), turn.status == "resuming"
    way, why = _way(turn, ref, plan, rules)
    draft.set_turn(pausing=None) if resuming else draft.set_turn(arrivals=turn.arrivals[1:])
    if not subjects.ends_as_moot(draft, ref):
        entry = entry_of(input) if input is not None else {}
        if way in ("restart", "revise"):
            draft.remember(**entry)
        _take(draft, Joining(input=ref, steps=plan.steps, reply=plan.reply, why=why, entry=entry), way, rules)
    now = draft.state.turn
    if resuming and now is not None and now.status == "resuming":
        draft.set_turn(status="planning")
        proceed(draft, rules)


def _take(draft: Draft, what: Joining, way: Way, rules: Rules) -> None:
    match way:
        case "queue":
            enqueue(draft, what.input, what.why)
        case "reject":
            _reject(draft, what.input, what.why)
        case "merge":
            draft.dispositions.append("merged")
            draft.set_turn(joining=(*draft.turn.joining, what))
        case "ask":
            draft.dispositions.append("unclear")
            draft.set_turn(pausing=Pause(input=what.input, question=what.reply or UNSURE))
        case "restart":
            draft.dispositions.append("restarted")
            revision.restart(draft, Joined(input=what.input, relation="adds"), f"{what.why}: {what.input.event}")
        case "revise":
            draft.dispositions.append("revised")
            revision.revise(draft, Joined(input=what.input, relation="revises"), rules)
        case _:
            assert_never(way)


def _way(turn: Turn, ref: InputRef, plan: Plan, rules: Rules) -> tuple[Way, str]:
    """What becomes of the input, and why, for the timeline."""
    if faults := [plan.fault] if plan.fault else rules.faults(plan.steps):
        return "queue", f"what it is could not be told: {'; '.join(faults)}"
    relation = plan.relation or "independent"
    place, rule = rules.application.session.in_flight_rule(ref.source, ref.type)
    way: Way = getattr(rule, relation)
    why = f"{relation}, by in_flight rule {place}" if place else relation
    if way in ("merge", "restart") and turn.action:
        return "queue", f"{why}; an accepted action runs its own steps alone"
    if way in ("merge", "restart", "revise") and len(turn.joined) + len(turn.joining) >= MOST_JOINED:
        return "queue", f"{why}; too much has joined this turn"
    if way == "merge" and _too_long(turn, plan, rules):
        return "queue", f"{why}; the turn would have too many steps"
    if way == "restart" and turn.undoing:
        return "revise", why  # what is being undone is found out first
    if way == "ask" and turn.status == "resuming":
        return "queue", f"{why}, still"
    return way, why


def _too_long(turn: Turn, plan: Plan, rules: Rules) -> bool:
    steps = len(turn.steps) + sum(len(joining.steps) for joining in turn.joining) + len(plan.steps)
    return steps > rules.application.session.caps.steps


def _reject(draft: Draft, ref: InputRef, why: str) -> None:
    """It is told so, and ends: no turn begins for it."""
    draft.dispositions.append("rejected")
    draft.line("input.rejected", why, turn="", origin=ref.origin.kind, event=ref.event)
    draft.outcomes.append((ref, "rejected"))
    draft.trimmed.append(ref.number)
    if ref.origin.kind == "user":
        draft.say(BUSY, turn="")


def no_plan(draft: Draft, wanted: PlanWanted, rules: Rules) -> None:
    """A planner did not answer by its deadline."""
    if wanted.about:
        related(draft, Plan(fault="no plan in time"), None, rules)
    else:
        turns.fail(draft, "the planner did not answer in time")

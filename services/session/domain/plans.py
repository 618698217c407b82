"""A plan: all of it is checked before any of it is done. One that is made off the partition is bound to its request."""

from typing import Any

from libs.contracts.ids import derive_id
from libs.contracts.session import PlanMade, PlanRequested, Step
from services.session.domain.draft import Draft
from services.session.domain.ending import end, fail
from services.session.domain.operations import same_call
from services.session.domain.plan import Plan
from services.session.domain.rules import Rules
from services.session.domain.state import Asker, Kept, PlanWanted, Result, Turn
from services.session.domain.steps import proceed
from services.session.domain.words import origin_name, step_text

RECORDED_TURNS = 20
"""A plan that nobody waits for is recorded where it names one of so many newest turns."""
NOT_USABLE = "the plan for it could not be used"
"""What the user is told of a plan with faults. What the faults say may be a model's own words (a tool's name that it
made up, its text instead of a plan), which are for the operator alone."""


def follow(draft: Draft, plan: Plan, rules: Rules) -> None:
    """Take a plan: check all of it, say what it says, then do its steps in order."""
    draft.viewed()
    turn = draft.turn
    draft.set_turn(plans=turn.plans + 1)
    if faults := [plan.fault] if plan.fault else rules.faults(plan.steps):
        fail(draft, "; ".join(faults), plainly=NOT_USABLE)
        return
    if limit := _limit(turn, plan, rules):
        fail(draft, limit[1], limit=limit[0])
        return
    if turn.action and turn.asker is not None and plan.steps:
        if plan.reply:
            draft.say(plan.reply)
        end(draft, "done", starts_next=False)
        continue_for(draft, turn.asker, Plan(steps=plan.steps, note=plan.note), rules)
        return
    if plan.steps:
        draft.line("turn.plan", "; ".join(step_text(step) for step in plan.steps))
    if plan.reply:
        draft.say(plan.reply)
    if not plan.steps and (turn.failing or not (turn.joining or turn.pausing)):
        _finish(draft, plan)
        return
    draft.set_turn(steps=turn.steps[: turn.position] + plan.steps, failing="")
    proceed(draft, rules, plan.note)


def _limit(turn: Turn, plan: Plan, rules: Rules) -> tuple[str, str] | None:
    """The limit that this plan would pass, and what is said of it."""
    caps = rules.application.session.caps
    if len(turn.results) + len(plan.steps) > caps.steps:
        return "steps", f"more than {caps.steps} steps in one turn"
    for step in plan.steps:
        if _taken(turn, plan, step) > caps.same_step:
            return "same_step", f"{step.tool} with the same arguments more than {caps.same_step} times in one turn"
    return None


def _taken(turn: Turn, plan: Plan, step: Step) -> int:
    """How often the lineage has done this very step or is about to; what is used again is not done again."""
    spent: list[Kept | Result | Step] = [kept for kept in turn.kept if kept.state in ("failed", "refused")]
    return sum(same_call(other, step) for other in [*spent, *turn.results, *plan.steps])


def _finish(draft: Draft, plan: Plan) -> None:
    failing = draft.turn.failing
    if not failing:
        end(draft, "done")
    elif plan.reply:
        end(draft, "failed", failing)
    else:
        fail(draft, failing)


def continue_for(draft: Draft, asker: Asker, plan: Plan, rules: Rules) -> None:
    """What the planner adds after an accepted action is a further turn, of the turn that asked (design §3.3)."""
    turn = Turn(
        id=f"T{draft.state.turns + 1}",
        root=asker.root,
        input=asker.input,
        used=asker.used,
        started_at=draft.now,
        continues=True,
        joined=tuple(joined.model_copy(update={"told": True}) for joined in asker.joined),
    )
    draft.set(turn=turn, turns=draft.state.turns + 1)
    draft.line("turn.start", f"origin={origin_name(turn)}", origin=turn.origin.kind, event=turn.input.event)
    follow(draft, plan, rules)


def request(draft: Draft, about: int, view: dict[str, Any], rules: Rules) -> None:
    """Ask a planner off the partition: the session goes on, and the plan is owed until a durable deadline (§4.3).

    The token is derived, so that deciding again makes the same one, from the MAC of an input's seal, which planners
    are not shown: who was not asked cannot answer.
    """
    draft.viewed()
    turn, number = draft.turn, draft.state.plans + 1
    token = derive_id("plan", draft.state.session, turn.id, number, turn.input.seal.mac)
    deadline = draft.now + rules.plan_deadline_ms
    wanted = PlanWanted(turn=turn.id, plan=number, token=token, deadline=deadline, about=about)
    draft.set(plans=number, wanted=(*draft.state.wanted, wanted))
    draft.send(PlanRequested(turn=turn.id, plan=number, token=token, deadline=deadline, view=view), "plan", number)


def take_wanted(draft: Draft, made: PlanMade) -> PlanWanted | None:
    """The request that this plan answers, which is then owed no more; None where it answers none."""
    for wanted in draft.state.wanted:
        if (wanted.turn, wanted.plan) == (made.turn, made.plan):
            if wanted.token != made.token:
                _ignore(draft, made, "wrong_token", "ignored: a plan with a wrong token")
                return None
            drop_wanted(draft, wanted)
            return wanted
    _ignore(draft, made, "late", "ignored: a late plan")
    return None


def _ignore(draft: Draft, made: PlanMade, why: str, text: str) -> None:
    """Count a plan that answers nothing, and record the first of each of the newest turns: so is the evidence bounded
    by what the session did, not by what a planner sends. Nothing else changes."""
    draft.ignored.append(why)
    state = draft.state
    newest = range(max(1, state.turns - RECORDED_TURNS + 1), state.turns + 1)
    number = next((number for number in newest if made.turn == f"T{number}"), 0)
    if number and number not in state.ignored:
        draft.set(ignored=(*(kept for kept in state.ignored if kept in newest), number))
        draft.line("turn.plan", text, turn=made.turn)


def drop_wanted(draft: Draft, wanted: PlanWanted) -> None:
    """It is owed no more."""
    draft.set(wanted=tuple(other for other in draft.state.wanted if other != wanted))

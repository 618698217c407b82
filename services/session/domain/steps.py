"""The boundary between two steps: what joins there, what pauses there, and the guard before the next step (G3)."""

from libs.contracts.consent import IssueAction, World
from libs.contracts.tools import StepFinished
from services.session.domain import offers, operations, subjects
from services.session.domain.draft import Draft, WantPlan
from services.session.domain.ending import end
from services.session.domain.rules import Rules
from services.session.domain.state import Action, Asker, Joined, Kept, Result
from services.session.domain.words import shown, step_text, why_stopped


def proceed(draft: Draft, rules: Rules, note: str = "") -> None:
    """Take the next step: use it again, run it, ask about it and the rest, or ask the planner what is next."""
    _merge(draft)
    _pass_over_gone(draft)
    turn = draft.turn
    if turn.pausing is not None and turn.status != "resuming":
        _pause(draft, rules)
        return
    if turn.position >= len(turn.steps):
        draft.set_turn(status="planning", operation="")
        draft.want = WantPlan(turn.input.number)
        return
    step = turn.steps[turn.position]
    if turn.kept and not turn.undoing and (kept := operations.reusable(draft, step, rules)):
        _reuse(draft, kept, rules)
    elif not turn.action and not rules.observe and rules.needs_consent(step.tool, turn.origin, alone=not turn.others):
        if offers.wants_offer(turn.steps[turn.position :], rules):
            operations.run(draft, step, rules, offer=True)
        else:
            _ask(draft, note)
    else:
        _observe(draft, rules)
        operations.run(draft, step, rules)


def _pass_over_gone(draft: Draft) -> None:
    """What is gone is not undone, also where that was told only after the undoing had begun (design §4.1)."""
    while (known := draft.state.operations.get(draft.turn.undoing)) and known.gone:
        draft.set_turn(position=draft.turn.position + 1)


def _observe(draft: Draft, rules: Rules) -> None:
    """In observe mode, say once what would be asked now: a question would be about all the steps that are left."""
    turn = draft.turn
    if turn.position >= turn.observed and rules.unasked(turn.steps[turn.position].tool, turn):
        steps = "; ".join(step_text(step) for step in turn.steps[turn.position :])
        draft.line("turn.ask", f"observe: would ask {steps}")
        draft.set_turn(observed=len(turn.steps))


def _merge(draft: Draft) -> None:
    """What adds to the turn joins it here, with its seal (design §4.2)."""
    for joining in draft.turn.joining:
        turn = draft.turn
        joined = Joined(input=joining.input, relation="adds")
        draft.set_turn(joining=(), joined=(*turn.joined, joined), steps=turn.steps + joining.steps)
        ref = joining.input
        draft.remember(**joining.entry)
        draft.line("input.merged", joining.why, origin=ref.origin.kind, event=ref.event)
        if joining.reply:
            draft.say(joining.reply)


def _pause(draft: Draft, rules: Rules) -> None:
    """Ask the owner what an unclear input is, and wait for their next message, durably (G9)."""
    pause = draft.turn.pausing
    if pause is None:
        raise AssertionError("nothing is unclear")
    wait = round(rules.application.session.pause * 1000)
    draft.set_turn(status="paused", operation="", deadline=draft.now + wait)
    draft.line("turn.paused", "unclear", origin=pause.input.origin.kind, event=pause.input.event)
    draft.say(pause.question)


def _reuse(draft: Draft, kept: Kept, rules: Rules) -> None:
    """A restarted turn does not do again what its lineage did, and waits for what is in flight."""
    operations.take(draft, kept)
    if kept.state == "sent":
        draft.set_turn(operation=kept.operation, status="waiting", deadline=draft.now + rules.operation_wait_ms)
        return
    result = Result(**kept.model_dump(exclude={"key", "taken", "undone", "spent"}))
    stepped(draft, result, rules, reused=True)


def stepped(draft: Draft, result: Result, rules: Rules, *, reused: bool = False) -> None:
    """One step is over: go on where it is committed, else ask the planner what now."""
    turn = draft.turn
    if reused and result.state == "committed":
        text = f"{result.tool}: {shown(result.state, result.result, result.reason)}"
        draft.line("tool.replayed", text, operation=result.operation)
    undone = turn.undoing if result.state == "committed" else ""
    results = turn.results if undone else (*turn.results, result)
    draft.set_turn(results=results, operation="", deadline=0)
    if undone:
        operations.change_kept(draft, undone, undone=True)
    if result.state == "committed":
        draft.set_turn(position=turn.position + 1)
        proceed(draft, rules)
        return
    why = why_stopped(result.tool, result.state, result.reason)
    rest = {"steps": turn.steps[: turn.position], "undo": turn.undo[: turn.position]}
    draft.set_turn(**rest, failing=why, status="planning")
    draft.want = WantPlan(turn.input.number)


def ask_instead(draft: Draft, finished: StepFinished, rules: Rules, *, reused: bool) -> None:
    """The door ran nothing of an offer: the owner is asked, about this step and the rest."""
    turn = draft.turn
    draft.set_turn(operation="", deadline=0)
    if reused:  # offered by an earlier turn of the lineage, with other steps after it
        proceed(draft, rules)
        return
    _ask(draft, "", offers.worlds_of(finished, turn.steps[turn.position :]))


def _ask(draft: Draft, note: str, worlds: tuple[World | None, ...] = ()) -> None:
    """The remaining steps become one pending action; the turn ends, nothing of them has run."""
    turn = draft.turn
    steps = turn.steps[turn.position :]
    action = f"A{draft.state.acts + 1}"
    asker = Asker(turn=turn.id, root=turn.root, input=turn.input, used=turn.used, joined=turn.joined)
    pending = Action(id=action, steps=steps, asker=asker)
    draft.set(acts=draft.state.acts + 1, actions={**draft.state.actions, action: pending})
    draft.line("turn.ask", "; ".join(step_text(step) for step in steps), action=action)
    message = IssueAction(
        action=action,
        turn=turn.id,
        steps=steps,
        seals=turn.seals,
        supersedes=subjects.superseded_for(draft.state, turn.input),
        note=note,
        worlds=worlds,
    )
    draft.send(message, action)
    end(draft, "asked")

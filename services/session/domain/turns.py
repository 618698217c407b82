"""A turn from its start to its end: plan, guard before each step, send, result."""

from libs.contracts.canonical import JSON
from libs.contracts.consent import IssueAction
from libs.contracts.ingress import Input
from libs.contracts.reasons import EventOutcome, OperationState, TimelineKind, TurnOutcome
from libs.contracts.session import Notice, Step
from libs.contracts.tools import RunStep, StepFinished, WithdrawOperation, action_key, operation_key
from services.session.domain import limits, subjects
from services.session.domain.draft import Draft, WantInput, WantPlan
from services.session.domain.plan import Plan
from services.session.domain.rules import Rules
from services.session.domain.state import (
    KEPT_OPERATIONS,
    KEPT_SUBJECTS,
    NEWEST_OPERATIONS,
    Action,
    Asker,
    InputRef,
    OperationRef,
    Result,
    SessionState,
    Turn,
)

COULD_NOT = "I could not do that: {why}."


def begin(draft: Draft, input: InputRef, rules: Rules) -> None:
    """Start the turn of an input whose body is at hand."""
    if not limits.begins(draft, input, rules):
        return
    turn_id = f"T{draft.state.turns + 1}"
    turn = Turn(id=turn_id, root=turn_id, input=input, started_at=draft.now)
    draft.set(turn=turn, turns=draft.state.turns + 1)
    draft.line("turn.start", f"origin={_origin_name(turn)}", origin=input.origin.kind, event=input.event)
    if input.depth > rules.application.session.caps.causation_depth:
        fail(draft, f"causation depth {input.depth} is above the limit", tell=False)
        return
    draft.want = WantPlan(input.number)


def begin_granted(draft: Draft, input: InputRef, action: Action, rules: Rules) -> None:
    """Start the fresh turn of an accepted action: its stored steps and nothing else (G6)."""
    turn_id = f"T{draft.state.turns + 1}"
    turn = Turn(
        id=turn_id,
        root=turn_id,
        input=input,
        action=action.id,
        asker=action.asker,
        steps=action.steps,
        started_at=draft.now,
        plans=1,
    )
    actions = {id: kept for id, kept in draft.state.actions.items() if id != action.id}
    draft.set(turn=turn, turns=draft.state.turns + 1, actions=actions)
    draft.line("turn.start", f"origin={_origin_name(turn)}", origin=input.origin.kind, action=action.id)
    proceed(draft, rules)


def continue_for(draft: Draft, asker: Asker, plan: Plan, rules: Rules) -> None:
    """What the planner adds after an accepted action is a further turn, of the turn that asked (design §3.3)."""
    turn_id = f"T{draft.state.turns + 1}"
    turn = Turn(id=turn_id, root=asker.root, input=asker.input, used=asker.used, started_at=draft.now)
    draft.set(turn=turn, turns=draft.state.turns + 1)
    draft.line("turn.start", f"origin={_origin_name(turn)}", origin=asker.input.origin.kind, event=asker.input.event)
    follow(draft, plan, rules)


def follow(draft: Draft, plan: Plan, rules: Rules) -> None:
    """Take a plan: check all of it, say what it says, then do its steps in order."""
    turn = _running(draft)
    draft.set_turn(plans=turn.plans + 1)
    faults = [plan.fault] if plan.fault else rules.faults(plan.steps)
    if len(turn.results) + len(plan.steps) > rules.application.session.caps.steps:
        faults.append(f"more than {rules.application.session.caps.steps} steps in one turn")
    if faults:
        fail(draft, "; ".join(faults))
        return
    if turn.action and turn.asker is not None and plan.steps:
        if plan.reply:
            draft.say(plan.reply)
        end(draft, "done", starts_next=False)
        continue_for(draft, turn.asker, Plan(steps=plan.steps, note=plan.note), rules)
        return
    if plan.steps:
        draft.line("turn.plan", "; ".join(_step_text(step) for step in plan.steps))
    if plan.reply:
        draft.say(plan.reply)
    if not plan.steps:
        _finish(draft, plan)
        return
    draft.set_turn(steps=turn.steps[: turn.position] + plan.steps, failing="")
    proceed(draft, rules, plan.note)


def _finish(draft: Draft, plan: Plan) -> None:
    failing = _running(draft).failing
    if not failing:
        end(draft, "done")
    elif plan.reply:
        _fail_quietly(draft, failing)
    else:
        fail(draft, failing)


def proceed(draft: Draft, rules: Rules, note: str = "") -> None:
    """The guard before each step (G3): run it, ask about it and the rest, or ask the planner what is next."""
    turn = _running(draft)
    if turn.position >= len(turn.steps):
        draft.want = WantPlan(turn.input.number)
        draft.set_turn(status="planning", operation="")
        return
    step = turn.steps[turn.position]
    if not turn.action and rules.needs_consent(step.tool, turn.origin):
        if not rules.observe:
            _ask(draft, turn, note)
            return
        _observe(draft, turn)
    _run(draft, turn, step, rules)


def _ask(draft: Draft, turn: Turn, note: str) -> None:
    """The remaining steps become one pending action; the turn ends, nothing of them has run."""
    steps = turn.steps[turn.position :]
    action = f"A{draft.state.acts + 1}"
    asker = Asker(turn=turn.id, root=turn.root, input=turn.input, used=turn.used)
    pending = Action(id=action, steps=steps, asker=asker)
    draft.set(acts=draft.state.acts + 1, actions={**draft.state.actions, action: pending})
    draft.line("turn.ask", "; ".join(_step_text(step) for step in steps), action=action)
    message = IssueAction(
        action=action,
        turn=turn.id,
        steps=steps,
        seals=(turn.input.seal,),
        supersedes=subjects.superseded_for(draft.state, turn.input),
        note=note,
    )
    draft.send(message, action)
    end(draft, "asked")


def _observe(draft: Draft, turn: Turn) -> None:
    """Say once what would be asked now: the question would be about all the steps that are left."""
    if turn.position >= turn.observed:
        steps = "; ".join(_step_text(step) for step in turn.steps[turn.position :])
        draft.line("turn.ask", f"observe: would ask {steps}")
        draft.set_turn(observed=len(turn.steps))


def _run(draft: Draft, turn: Turn, step: Step, rules: Rules) -> None:
    operation = f"O{draft.state.ops + 1}"
    key = action_key(turn.action, turn.position) if turn.action else _free_key(turn, step)
    ref = OperationRef(id=operation, key=key, tool=step.tool, args=step.args, state="sent", turn=turn.id)
    kept = _worth_keeping(draft.state)
    draft.set(ops=draft.state.ops + 1, operations={**kept, operation: ref})
    draft.set_turn(
        operation=operation,
        used=(*turn.used, key),
        status="waiting",
        deadline=draft.now + rules.operation_wait_ms,
    )
    lab = " (lab: authority by role)" if "authority_by_role" in rules.labs and turn.origin.kind != "user" else ""
    unasked = rules.observe and not turn.action and rules.needs_consent(step.tool, turn.origin)
    observed = " (observe: its owner would have been asked)" if unasked else ""
    draft.line("tool.sent", _step_text(step) + lab + observed, operation=operation, action=turn.action)
    draft.send(
        RunStep(
            operation=operation,
            key=key,
            turn=turn.id,
            root=turn.root,
            tool=step.tool,
            args=step.args,
            action=turn.action,
            step=turn.position if turn.action else 0,
            seals=(turn.input.seal,),
            not_after=draft.now + rules.not_after_ms,
        ),
        key,
    )


def _worth_keeping(state: SessionState) -> dict[str, OperationRef]:
    """The operations that news may still come of, by the ledger or by their subject, and the newest.

    The state is written at every commit, so what is over leaves it; the ledger has all of them.
    """
    subjects = set(state.subjects.values())
    newest = set(list(state.operations)[-NEWEST_OPERATIONS:])
    kept = [
        (id, known) for id, known in state.operations.items() if id in newest or id in subjects or known.state in _RANK
    ]
    return dict(kept[-KEPT_OPERATIONS:])


def _free_key(turn: Turn, step: Step) -> str:
    """Two genuine identical wishes are two occurrences, and so two keys (design §3.4)."""
    occurrence = 0
    while (key := operation_key(turn.root, step.tool, step.args, occurrence)) in turn.used:
        occurrence += 1
    return key


def on_result(draft: Draft, finished: StepFinished, rules: Rules) -> None:
    """Fold in what the ledger says of an operation. A state that we know already changes nothing."""
    known = draft.state.operations.get(finished.operation)
    if known is None or known.key != finished.key or not _advances(known.state, finished.state):
        return
    subject = rules.subject_of(known.tool, known.args, finished.result) if finished.state == "committed" else ""
    _store_result(draft, known, finished, subject)
    turn = draft.state.turn
    if turn is None or turn.operation != finished.operation:
        return
    result = Result(
        tool=known.tool,
        args=known.args,
        operation=known.id,
        state=finished.state,
        result=finished.result,
        reason=finished.reason,
    )
    draft.remember(
        kind="tool",
        tool=known.tool,
        args=known.args,
        operation=known.id,
        state=finished.state,
        result=finished.result,
        reason=finished.reason,
    )
    draft.set_turn(results=(*turn.results, result), operation="", deadline=0)
    if turn.status == "cancelling":
        cancelled(draft)
    elif finished.state == "committed":
        draft.set_turn(position=turn.position + 1)
        proceed(draft, rules)
    else:
        why = f"{known.tool} {_SAID[finished.state]}" + (f" ({finished.reason})" if finished.reason else "")
        draft.set_turn(steps=turn.steps[: turn.position], failing=why, status="planning")
        draft.want = WantPlan(turn.input.number)


def _store_result(draft: Draft, known: OperationRef, finished: StepFinished, subject: str) -> None:
    kind = _KINDS[finished.state]
    text = f"{known.tool}: {_shown(finished)}"
    if finished.replay and finished.state == "committed":
        kind = "tool.replayed"
    draft.line(kind, text, operation=known.id, turn=known.turn)
    updated = known.model_copy(update={"state": finished.state, "subject": subject})
    draft.set(operations={**draft.state.operations, known.id: updated})
    if subject:
        kept = dict(list(draft.state.subjects.items())[-KEPT_SUBJECTS:])
        draft.set(subjects={**kept, subject: known.id})


_RANK = {"sent": 0, "pending": 0, "in_progress": 0, "unknown": 1}
_FINAL = 2


def _advances(old: str, new: str) -> bool:
    """States only advance: sent → unknown → final. A final state stays (design §3).

    That an operation is in progress is no news: the door, or the turn's deadline, will tell how it ended.
    """
    return _RANK.get(new, _FINAL) > _RANK.get(old, _FINAL)


_KINDS: dict[OperationState, TimelineKind] = {
    "committed": "tool.committed",
    "refused": "tool.refused",
    "failed": "tool.failed",
    "unknown": "tool.unknown",
    "conflict": "tool.conflict",
    "withdrawn": "tool.withdrawn",
    "expired": "tool.expired",
    "in_progress": "tool.unknown",
    "pending": "tool.unknown",
}
_SAID = {
    "refused": "was refused",
    "failed": "failed",
    "unknown": "has an unknown outcome",
    "conflict": "was refused: its key was used for something else",
    "withdrawn": "was withdrawn",
    "expired": "came too late and was not run",
    "in_progress": "is still running",
    "pending": "is still running",
    "committed": "was done",
}


def _shown(finished: StepFinished) -> str:
    result: JSON = finished.result
    if isinstance(result, dict) and "id" in result:
        return f"{result['id']} ({finished.reason})" if finished.reason else str(result["id"])
    if finished.reason:
        return finished.reason
    return "done" if finished.state == "committed" else finished.state


def deadline_reached(draft: Draft, rules: Rules) -> None:
    """A turn ends with `unknown` told rather than block its session (design §3.2)."""
    turn = draft.state.turn
    if turn is None or not turn.deadline or draft.now < turn.deadline or not turn.operation:
        return
    known = draft.state.operations[turn.operation]
    finished = StepFinished(
        operation=known.id, key=known.key, state="unknown", reason="no answer from the door within the deadline"
    )
    on_result(draft, finished, rules)


def cancel(draft: Draft) -> None:
    """The owner's cancel: nothing more is sent, and what is in flight is found out first."""
    turn = draft.state.turn
    if turn is None:
        draft.say("There is nothing running to cancel.")
        return
    if turn.status == "waiting":
        known = draft.state.operations[turn.operation]
        draft.set_turn(status="cancelling", steps=turn.steps[: turn.position])
        draft.send(WithdrawOperation(operation=known.id, key=known.key, not_after=draft.now + 86_400_000), known.key)
        return
    if turn.status != "cancelling":
        cancelled(draft)


def cancelled(draft: Draft) -> None:
    """End a cancelled turn, naming what did happen."""
    turn = _running(draft)
    done = [result for result in turn.results if result.state not in ("withdrawn", "refused", "failed", "expired")]
    told = ", ".join(f"{result.tool} {_SAID[result.state]}" for result in done) or "nothing was done"
    draft.say(f"Cancelled; {told}.")
    end(draft, "cancelled")


def fail(draft: Draft, why: str, *, tell: bool = True) -> None:
    """End the turn as failed: the reason to the operator's timeline, a plain sentence to the user."""
    if tell:
        draft.say(COULD_NOT.format(why=why))
    _fail_quietly(draft, why)


def _fail_quietly(draft: Draft, why: str) -> None:
    end(draft, "failed", why)


def end(draft: Draft, outcome: TurnOutcome, text: str = "", *, starts_next: bool = True) -> None:
    """End the running turn and let the next queued input begin."""
    turn = _running(draft)
    if outcome == "done":
        draft.line("turn.done", text)
    elif outcome == "failed":
        draft.line("turn.failed", text)
    elif outcome == "cancelled":
        draft.line("turn.cancelled", text)
    became: EventOutcome = "failed" if outcome == "failed" else "acted"
    if turn.id == turn.root:
        draft.outcomes.append((turn.input, became))
        draft.trimmed.append(turn.input.number)
    draft.send(Notice(topic="turn", text=outcome, data={"turn": turn.id, "origin": turn.origin.kind}), turn.id)
    draft.ends_with(turn.origin.kind, outcome, draft.now - turn.started_at)
    draft.set(turn=None)
    draft.want = None
    if starts_next and draft.state.queue:
        draft.want = WantInput(draft.state.queue[0].number)


def start_queued(draft: Draft, input: Input, rules: Rules) -> None:
    """The first of the queue begins; its body was read."""
    ref, *rest = draft.state.queue
    draft.set(queue=tuple(rest))
    action = granted_action(draft, ref, input)
    if ref.kind == "decision" and action is not None:
        begin_granted(draft, ref, action, rules)
    elif ref.kind == "decision":
        draft.line("action.refused", "it is not open here any more", turn="", event=ref.event)
        draft.outcomes.append((ref, "acted"))
        draft.trimmed.append(ref.number)
        draft.want = WantInput(rest[0].number) if rest else None
    else:
        begin(draft, ref, rules)


def granted_action(draft: Draft, ref: InputRef, input: Input) -> Action | None:
    """The action that a decision input names."""
    name = input.data.get("action", "") if ref.kind == "decision" and isinstance(input.data, dict) else ""
    return draft.state.actions.get(str(name))


def _running(draft: Draft) -> Turn:
    if draft.state.turn is None:
        raise AssertionError("no turn is running")
    return draft.state.turn


def _origin_name(turn: Turn) -> str:
    return turn.origin.kind if turn.origin.kind == "user" else turn.origin.source


def _step_text(step: Step) -> str:
    return f"{step.tool}({', '.join(f'{name}={value}' for name, value in step.args.items())})"

"""How turns begin, are cancelled, and what their deadlines mean."""

from libs.contracts.ingress import Input
from libs.contracts.tools import StepFinished
from services.session.domain import limits, operations, subjects
from services.session.domain.draft import Draft, WantPlan
from services.session.domain.ending import cancelled, end, enqueue, fail, start_next
from services.session.domain.memory import entry_of
from services.session.domain.plans import follow
from services.session.domain.results import give_result, on_result
from services.session.domain.rules import Rules
from services.session.domain.state import Action, InputRef, OperationRef, Turn
from services.session.domain.steps import proceed
from services.session.domain.words import origin_name

__all__ = [
    "begin",
    "begin_granted",
    "cancel",
    "end",
    "fail",
    "follow",
    "granted_action",
    "left_too_long",
    "on_result",
    "start_queued",
    "waited_too_long",
]

NO_ANSWER = "no answer from the door within the deadline"


def begin(draft: Draft, input: Input, rules: Rules) -> None:
    """Start the turn of an input; from here on the planner may see it."""
    ref = InputRef.of(input)
    if not limits.begins(draft, ref, rules):
        return
    # Only now: the result that made its subject ours may have come after the event itself.
    if (depth := subjects.depth_of(draft.state, ref)) != ref.depth:
        ref = ref.model_copy(update={"depth": depth})
    subjects.turn_begins(draft, ref, rules)
    draft.remember(**entry_of(input))
    turn_id = f"T{draft.state.turns + 1}"
    turn = Turn(id=turn_id, root=turn_id, input=ref, started_at=draft.now)
    draft.set(turn=turn, turns=draft.state.turns + 1)
    draft.line("turn.start", f"origin={origin_name(turn)}", origin=ref.origin.kind, event=ref.event)
    if ref.depth > rules.application.session.caps.causation_depth:
        fail(draft, f"causation depth {ref.depth} is above the limit", tell=False, limit="causation_depth")
        return
    draft.want = WantPlan(ref.number)


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
    draft.line("turn.start", f"origin={origin_name(turn)}", origin=input.origin.kind, action=action.id)
    proceed(draft, rules)


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
        start_next(draft)
    else:
        begin(draft, input, rules)


def granted_action(draft: Draft, ref: InputRef, input: Input) -> Action | None:
    """The action that a decision input names."""
    name = input.data.get("action", "") if ref.kind == "decision" and isinstance(input.data, dict) else ""
    return draft.state.actions.get(str(name))


def cancel(draft: Draft, rules: Rules) -> None:
    """The owner's cancel: nothing more is sent, and what is in flight is found out first."""
    turn = draft.state.turn
    if turn is None:
        draft.say("There is nothing running to cancel.")
        return
    if turn.status == "cancelling":
        return
    open_ = tuple(id for id in operations.in_flight(turn) if id not in turn.settling)
    operations.withdraw(draft, open_)
    draft.set_turn(status="cancelling", settling=(*turn.settling, *open_), steps=turn.steps[: turn.position])
    if draft.turn.settling:
        draft.set_turn(deadline=draft.now + rules.operation_wait_ms)
        draft.set(wanted=())
    else:
        cancelled(draft)


def waited_too_long(draft: Draft, rules: Rules) -> None:
    """The turn's own deadline: it ends with `unknown` told, or resumes, rather than block its session (design §3.2)."""
    turn = draft.state.turn
    if turn is None or not turn.deadline or draft.now < turn.deadline:
        return
    if turn.status == "paused" and turn.pausing is not None:
        resume_without(draft, rules)
        return
    for operation in turn.settling or ((turn.operation,) if turn.operation else ()):
        _has_no_answer(draft, draft.state.operations[operation], rules)


def left_too_long(draft: Draft, rules: Rules) -> None:
    """What a turn left in flight has no answer in time: its outcome is unknown, until the ledger says more (G9)."""
    for known in draft.state.left_in_flight:
        if known.due <= draft.now:
            _has_no_answer(draft, known, rules)


def _has_no_answer(draft: Draft, known: OperationRef, rules: Rules) -> None:
    finished = StepFinished(operation=known.id, key=known.key, state="unknown", reason=NO_ANSWER)
    if known.state == "unknown":  # told before, and looked up in vain
        give_result(draft, known, finished, rules)
    else:
        on_result(draft, finished, rules, last_word=True)


def resume_without(draft: Draft, rules: Rules) -> None:
    """Nobody answered the turn's question: it goes on, and what was unclear waits for a turn of its own."""
    pause = draft.turn.pausing
    draft.set_turn(pausing=None, status="planning", deadline=0)
    draft.line("turn.resumed", "no answer in time")
    if pause is not None:
        enqueue(draft, pause.input, "unclear, and no answer in time")
    proceed(draft, rules)

"""Operations outlive turns: their keys, what is sent of them, and which of them a restarted turn uses again."""

from libs.contracts.canonical import JSON, canonical
from libs.contracts.session import Step
from libs.contracts.tools import RunStep, StepFinished, WithdrawOperation, action_key, operation_key
from services.session.domain import offers, subjects
from services.session.domain.draft import Draft
from services.session.domain.rules import Rules
from services.session.domain.state import (
    KEPT_OPERATIONS,
    KEPT_SUBJECTS,
    NEWEST_OPERATIONS,
    Kept,
    OperationRef,
    Result,
    SessionState,
    Turn,
)
from services.session.domain.words import KINDS, shown, step_text

_RANK = {"sent": 0, "pending": 0, "in_progress": 0, "unknown": 1}
_FINAL = 2
_WITHOUT_OUTCOME = ("sent", "unknown")
WITHDRAWN_FOR_MS = 86_400_000


def run(draft: Draft, step: Step, rules: Rules, *, offer: bool = False) -> None:
    """Send one step to the door; as an `offer` where its owner is asked unless a standing approval covers it."""
    turn = draft.turn
    operation = f"O{draft.state.ops + 1}"
    key = action_key(turn.action, turn.position) if turn.action else _key(draft, turn, step, rules)
    ref = OperationRef(
        id=operation,
        key=key,
        tool=step.tool,
        args=step.args,
        state="sent",
        turn=turn.id,
        depth=_depth(draft),
        due=draft.now + rules.operation_wait_ms,
    )
    kept = _worth_keeping(draft.state)
    draft.set(ops=draft.state.ops + 1, operations={**kept, operation: ref})
    lab = _lab(turn, key, rules)
    draft.set_turn(
        operation=operation,
        used=turn.used if key in turn.used else (*turn.used, key),
        status="waiting",
        deadline=draft.now + rules.operation_wait_ms,
    )
    observed = " (observe: its owner would have been asked)" if rules.unasked(step.tool, turn) else ""
    offered = offers.mark(step, rules) if offer else ""
    draft.line("tool.sent", step_text(step) + lab + observed + offered, operation=operation, action=turn.action)
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
            seals=turn.seals,
            not_after=draft.now + rules.not_after_ms,
            offer=offer,
            then=turn.steps[turn.position + 1 :] if offer else (),
        ),
        key,
        operation,
    )


def _depth(draft: Draft) -> int:
    """How deep in causes the running turn's effects are: as its deepest input. Where a person said yes to them, no
    turn alone caused them."""
    turn = draft.turn
    inputs = [turn.input, *(joined.input for joined in turn.joined)]
    return 0 if turn.action else max(subjects.depth_of(draft.state, input) for input in inputs)


def _lab(turn: Turn, key: str, rules: Rules) -> str:
    """What a lab switch made of this call."""
    if not rules.labs or turn.action:
        return ""
    lab = " (lab: authority by role)" if "authority_by_role" in rules.labs and turn.origin.kind != "user" else ""
    lab += " (lab: keys by turn)" if "keys_by_turn" in rules.labs and turn.id != turn.root else ""
    return lab + (" (lab: keys by step)" if "keys_by_step" in rules.labs and key in turn.used else "")


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


def _key(draft: Draft, turn: Turn, step: Step, rules: Rules) -> str:
    """Lineage, tool, arguments, occurrence: two genuine identical wishes have two keys (design §3.4).

    What failed and released its key, as before it was sent, is tried anew with it; where the key is spent the next
    occurrence is. What has no outcome yet is asked for again with its own.
    """
    root = turn.id if "keys_by_turn" in rules.labs else turn.root  # the lab's wrong form
    if "keys_by_step" in rules.labs:
        return operation_key(root, step.tool, step.args, 0)
    occurrence = 0
    while (key := operation_key(root, step.tool, step.args, occurrence)) in turn.used and not _released(draft, key):
        occurrence += 1
    _hand_on(draft, key)
    return key


def _released(draft: Draft, key: str) -> bool:
    """Whether every attempt with this key failed and did not spend it, or may have been done for all that is known.

    What is done twice must be one thing to the door: of an attempt without an outcome it tells what became of it, and
    never runs it again. One that went further has spent the key, whatever became of that: gone, compensated or
    withdrawn, the door would answer a new wish with it. Of attempts that are forgotten the same is believed.
    """
    known: list[Kept | OperationRef] = [*draft.turn.kept, *draft.state.operations.values()]
    attempts = [attempt for attempt in known if attempt.key == key]
    return bool(attempts) and all(
        (attempt.state == "failed" and not attempt.spent) or attempt.state in _WITHOUT_OUTCOME for attempt in attempts
    )


def _hand_on(draft: Draft, key: str) -> None:
    """From now on the newest attempt alone says what its key is worth: what a turn keeps outlives the operations that
    the state remembers."""
    kept = draft.turn.kept
    if any(earlier.key == key for earlier in kept):
        draft.set_turn(kept=tuple(k.model_copy(update={"key": ""}) if k.key == key else k for k in kept))


def same_call(known: Kept | Result | Step, step: Step) -> bool:
    """Tool and canonical arguments are the same: 1 and 1.0 are one number, 1 and true are not one value."""
    return known.tool == step.tool and canonical(known.args) == canonical(step.args)


def reusable(draft: Draft, step: Step, rules: Rules) -> Kept | None:
    """The operation of the lineage that this step is: committed, in flight or unknown, each once, never one that is
    gone, compensated or withdrawn."""
    if "keys_by_turn" in rules.labs:
        return None
    for kept in draft.turn.kept:
        known = draft.state.operations.get(kept.operation)
        if kept.taken or kept.undone or (known is not None and known.gone):
            continue
        if kept.state in ("committed", "sent", "unknown") and same_call(kept, step):
            return kept
    return None


def take(draft: Draft, kept: Kept) -> None:
    """A step of the running turn has it now."""
    change_kept(draft, kept.operation, taken=True)


def change_kept(draft: Draft, operation: str, **changes: JSON) -> None:
    """Change what is known of an operation of the lineage's earlier turns."""
    turn = draft.turn
    if any(kept.operation == operation for kept in turn.kept):
        draft.set_turn(kept=tuple(k.model_copy(update=changes) if k.operation == operation else k for k in turn.kept))


def kept_of(state: SessionState, turn: Turn) -> tuple[Kept, ...]:
    """What a turn that takes this one's place may use again: its own operations and those that it had kept."""
    earlier = {kept.operation: kept.model_copy(update={"taken": False}) for kept in turn.kept}
    for result in turn.results:
        known = state.operations.get(result.operation)
        if result.operation not in earlier:
            fields = result.model_dump()
            spent = known is not None and known.spent
            earlier[result.operation] = Kept(**fields, key=known.key if known else "", spent=spent)
    if turn.operation and turn.operation not in earlier and not turn.undoing:
        known = state.operations[turn.operation]
        earlier[known.id] = Kept(operation=known.id, key=known.key, tool=known.tool, args=known.args, state=known.state)
    return tuple(earlier.values())


def in_flight(turn: Turn) -> tuple[str, ...]:
    """Operations of the lineage that may not have been claimed yet, or have not been answered."""
    kept = [kept.operation for kept in turn.kept if kept.state == "sent"]
    return tuple(dict.fromkeys([*([turn.operation] if turn.operation else []), *kept]))


def withdraw(draft: Draft, operations: tuple[str, ...]) -> None:
    """What is not claimed shall never run: the door leaves a tombstone, however late the call arrives."""
    for operation in operations:
        known = draft.state.operations[operation]
        message = WithdrawOperation(operation=known.id, key=known.key, not_after=draft.now + WITHDRAWN_FOR_MS)
        draft.send(message, known.key, known.id)


def store_result(draft: Draft, known: OperationRef, finished: StepFinished, rules: Rules) -> None:
    """Note what the ledger says of an operation, and the subject that it made ours."""
    subject = rules.subject_of(known.tool, known.args, finished.result) if finished.state == "committed" else ""
    replayed = finished.replay and finished.state == "committed"
    text = f"{known.tool}: {shown(finished.state, finished.result, finished.reason)}"
    if replayed and "keys_by_step" in rules.labs:
        text += " (lab: keys by step)"
    if finished.standing:
        text += f" (standing approval {finished.standing})"
    draft.line("tool.replayed" if replayed else KINDS[finished.state], text, operation=known.id, turn=known.turn)
    updated = known.model_copy(update={"state": finished.state, "subject": subject, "spent": finished.spent})
    draft.set(operations={**draft.state.operations, known.id: updated})
    if subject:
        kept = dict(list(draft.state.subjects.items())[-KEPT_SUBJECTS:])
        draft.set(subjects={**kept, subject: known.id})
    if draft.state.turn is not None and draft.state.turn.kept:
        changes = finished.model_dump(include={"state", "result", "reason", "spent"})
        change_kept(draft, known.id, **changes)


def advances(old: str, new: str) -> bool:
    """States only advance: sent → unknown → final. A final state stays (design §3).

    That an operation is in progress is no news: the door, or the turn's deadline, will tell how it ended.
    """
    return _RANK.get(new, _FINAL) > _RANK.get(old, _FINAL)

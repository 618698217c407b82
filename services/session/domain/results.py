"""What the ledger says of an operation, and what it means to the turn that waits for it."""

from libs.contracts.tools import StepFinished
from services.session.domain import operations, subjects
from services.session.domain.draft import Draft
from services.session.domain.revision import settled
from services.session.domain.rules import Rules
from services.session.domain.state import OperationRef, Result, Turn
from services.session.domain.steps import ask_instead, stepped
from services.session.domain.words import SAID, shown


def on_result(draft: Draft, finished: StepFinished, rules: Rules, *, last_word: bool = False) -> None:
    """Fold in what the ledger says of an operation. A state that we know already changes nothing.

    `last_word`: no more news is waited for, the turn's deadline is reached.
    """
    known = draft.state.operations.get(finished.operation)
    if known is not None and finished.state == "in_progress" and finished.reason:
        _waits(draft, known, finished.reason)
    if known is None or known.key != finished.key or not operations.advances(known.state, finished.state):
        return
    operations.store_result(draft, known, finished, rules)
    subjects.on_known(draft, known.id, rules)
    turn = draft.state.turn
    if turn is None or (turn.operation != known.id and known.id not in turn.settling):
        _tell_at_last(draft, known, finished)
        return
    if finished.state == "unknown" and not last_word and _will_be_looked_up(known, rules):
        draft.set_turn(deadline=min(turn.deadline, draft.now + rules.look_up_wait_ms))
        return
    give_result(draft, known, finished, rules)


def _waits(draft: Draft, known: OperationRef, reason: str) -> None:
    """The door keeps it for now, as while its tool is paused: said once. The turn's deadline counts on."""
    if known.state == "sent" and not known.waits:
        waits = known.model_copy(update={"waits": True})
        draft.set(operations={**draft.state.operations, known.id: waits})
        draft.line("notice", f"{known.tool} waits: {reason}", operation=known.id, turn=known.turn)


def give_result(draft: Draft, known: OperationRef, finished: StepFinished, rules: Rules) -> None:
    """The turn has waited for this."""
    turn = draft.turn
    if finished.state == "needs_consent" and not turn.settling:
        ask_instead(draft, finished, rules, reused=_is_kept(turn, known.id))
        return
    if finished.state == "unknown":
        _mark(draft, known.id, doubted=True)
    told = {"state": finished.state, "result": finished.result, "reason": finished.reason}
    draft.remember(kind="tool", tool=known.tool, args=known.args, operation=known.id, **told)
    result = Result(tool=known.tool, args=known.args, operation=known.id, **told)
    if not turn.settling:
        stepped(draft, result, rules, reused=_is_kept(turn, known.id))
        return
    if turn.operation == known.id:
        _note(draft, turn, result)
    settled(draft, rules, known.id)


def _tell_at_last(draft: Draft, known: OperationRef, finished: StepFinished) -> None:
    """The turn ended in doubt about this and said so; whoever was told hears the truth, once."""
    if not known.doubted or finished.state == "unknown":
        return
    _mark(draft, known.id, doubted=False)
    told = {"state": finished.state, "result": finished.result, "reason": finished.reason}
    draft.remember(kind="tool", tool=known.tool, args=known.args, operation=known.id, **told)
    became = f"{known.tool} {SAID[finished.state]}"
    more = shown(finished.state, finished.result, finished.reason)
    text = f"{became}: {more}" if more not in ("done", finished.state) else became
    draft.say(f"Now I know: {text}.", turn=known.turn, operation=known.id)


def _mark(draft: Draft, operation: str, *, doubted: bool) -> None:
    marked = draft.state.operations[operation].model_copy(update={"doubted": doubted})
    draft.set(operations={**draft.state.operations, operation: marked})


def _note(draft: Draft, turn: Turn, result: Result) -> None:
    """The step at hand is over, in a turn that goes no further."""
    if turn.undoing and result.state == "committed":
        operations.change_kept(draft, turn.undoing, undone=True)
    elif not turn.undoing and not _is_kept(turn, result.operation):
        draft.set_turn(results=(*turn.results, result))
    draft.set_turn(operation="")


def _is_kept(turn: Turn, operation: str) -> bool:
    return any(kept.operation == operation for kept in turn.kept)


def _will_be_looked_up(known: OperationRef, rules: Rules) -> bool:
    """The destination is asked what became of it, so its outcome may be known soon."""
    tool = rules.application.tools.get(known.tool)
    return tool is not None and tool.lookup is not None

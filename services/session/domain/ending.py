"""How a turn ends, and what becomes of the inputs that it leaves behind."""

from itertools import takewhile

from libs.contracts.reasons import EventOutcome, TimelineKind, TurnOutcome
from libs.contracts.session import Notice
from services.session.domain import subjects
from services.session.domain.draft import Draft, WantInput
from services.session.domain.state import InputRef, Turn
from services.session.domain.words import SAID

COULD_NOT = "I could not do that: {why}."
DO_NOT_KNOW = "I do not know yet whether that was done: {why}. I will tell you when I know."
_LINES: dict[TurnOutcome, TimelineKind] = {
    "done": "turn.done",
    "failed": "turn.failed",
    "cancelled": "turn.cancelled",
    "restarted": "turn.restarted",
}


def end(draft: Draft, outcome: TurnOutcome, text: str = "", *, starts_next: bool = True) -> None:
    """End the running turn and let the next queued input begin."""
    turn = draft.turn
    if outcome != "restarted":
        _owe_what_is_left(draft, turn)
    if outcome in _LINES:  # a turn that asked has said so
        draft.line(_LINES[outcome], text)
    if outcome != "restarted":
        _tell_outcomes(draft, turn, "failed" if outcome == "failed" else "acted", cancelled=outcome == "cancelled")
    draft.send(Notice(topic="turn", text=outcome, data={"turn": turn.id, "origin": turn.origin.kind}), turn.id)
    draft.ends_with(turn.origin.kind, outcome, draft.now - turn.started_at)
    draft.set(turn=None)
    if draft.state.wanted:
        draft.set(wanted=())
    draft.want = None
    if outcome != "restarted":
        for ref in _left_behind(turn, cancelled=outcome == "cancelled"):
            enqueue(draft, ref, "the turn ended")
    if starts_next:
        start_next(draft)


def _owe_what_is_left(draft: Draft, turn: Turn) -> None:
    """What an earlier turn of the lineage sent and no step of this one is may have happened all the same: its owner
    hears so now, and the truth once it is known or overdue (G9)."""
    known = draft.state.operations
    left = [kept for kept in turn.kept if kept.state in ("sent", "unknown") and not kept.taken]
    for ref in [known[kept.operation] for kept in left if kept.operation in known]:
        if ref.doubted:
            continue
        due = max(ref.due, draft.now)
        marked = ref.model_copy(update={"doubted": True, "due": due})
        draft.set(operations={**draft.state.operations, ref.id: marked})
        draft.say(DO_NOT_KNOW.format(why=f"{ref.tool} {SAID[ref.state]}"), operation=ref.id)


def _tell_outcomes(draft: Draft, turn: Turn, became: EventOutcome, *, cancelled: bool) -> None:
    ended = [] if turn.continues else [turn.input]
    ended += [joined.input for joined in turn.joined if not joined.told]
    ended += [turn.revising.input] if turn.revising else []
    if cancelled:  # what was to be part of it is cancelled with it
        ended += [joining.input for joining in turn.joining]
    draft.outcomes += [(ref, became) for ref in ended]
    draft.trimmed += [ref.number for ref in ended]


def _left_behind(turn: Turn, *, cancelled: bool) -> list[InputRef]:
    """Inputs that came while it ran and are no part of it yet: nothing that was accepted is lost (G1)."""
    left = [] if cancelled else [joining.input for joining in turn.joining]
    left += [turn.pausing.input] if turn.pausing else []
    return left + list(turn.arrivals)


def enqueue(draft: Draft, ref: InputRef, why: str) -> None:
    """Let an input wait for a turn of its own, in inbox order (G5) behind accepted actions; unless its subject became
    moot meanwhile."""
    if subjects.ends_as_moot(draft, ref):
        return
    queue = draft.state.queue
    first = sum(1 for _ in takewhile(lambda queued: queued.kind == "decision", queue))
    first += sum(1 for _ in takewhile(lambda queued: queued.number < ref.number, queue[first:]))
    draft.dispositions.append("queued")
    draft.set(queue=(*queue[:first], ref, *queue[first:]))
    draft.line("input.queued", why, turn="", origin=ref.origin.kind, event=ref.event)


def start_next(draft: Draft) -> None:
    """The first of the queue is wanted, with its body."""
    if draft.state.turn is None and draft.state.queue:
        draft.want = WantInput(draft.state.queue[0].number)


def fail(draft: Draft, why: str, *, tell: bool = True, plainly: str = "", limit: str = "") -> None:
    """End the turn as failed: the reason to the operator's timeline, a plain sentence to the user. What nobody knows
    is not called undone: it may have happened.

    `plainly` is said to the user in place of `why`, where that is for the operator alone. `limit` names the limit that
    was reached, if that is why.
    """
    if limit:
        draft.limits.append(limit)
    if tell:
        turn = draft.turn
        doubt = why == turn.failing and any(result.state == "unknown" for result in turn.results[-1:])
        draft.say((DO_NOT_KNOW if doubt else COULD_NOT).format(why=plainly or why))
    end(draft, "failed", why)


def cancelled(draft: Draft) -> None:
    """End a cancelled turn, naming what did happen, by the ledger's word alone."""
    turn = draft.turn
    happened = {kept.operation: (kept.tool, kept.state) for kept in turn.kept if not kept.undone}
    happened |= {result.operation: (result.tool, result.state) for result in turn.results}
    done = [
        f"{tool} {SAID[state]}"
        for tool, state in happened.values()
        if state not in ("withdrawn", "refused", "failed", "expired", "precondition_failed", "needs_consent")
    ]
    draft.say(f"Cancelled; {', '.join(done) or 'nothing was done'}.")
    end(draft, "cancelled")

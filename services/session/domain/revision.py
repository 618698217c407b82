"""A turn that begins anew: with an addition, or revised after what it did was found out and is undone (design §4.2)."""

from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, fill
from services.session.domain import operations
from services.session.domain.draft import Draft, WantPlan
from services.session.domain.ending import cancelled, end, fail
from services.session.domain.rules import Rules
from services.session.domain.state import Joined, Kept, Turn
from services.session.domain.steps import proceed
from services.session.domain.words import origin_name

NOT_UNDONE = "what was done before cannot be undone"
"""What the user is told where the calls that undo have faults, which are for the operator."""


def restart(draft: Draft, joined: Joined, why: str, *, starts: bool = True) -> None:
    """A new turn of the same lineage takes the running one's place: its inputs and its operations are kept."""
    old = draft.turn
    kept = operations.kept_of(draft.state, old)
    end(draft, "restarted", why, starts_next=False)
    for joining in old.joining:
        draft.remember(**joining.entry)
    merging = tuple(Joined(input=joining.input, relation="adds") for joining in old.joining)
    turn = Turn(
        id=f"T{draft.state.turns + 1}",
        root=old.root,
        input=old.input,
        asker=old.asker,
        used=old.used,
        started_at=draft.now,
        continues=old.continues,
        joined=(*old.joined, *merging, joined),
        arrivals=old.arrivals,
        kept=kept,
    )
    draft.set(turn=turn, turns=draft.state.turns + 1)
    draft.line("turn.start", f"origin={origin_name(turn)}", origin=turn.origin.kind, event=turn.input.event)
    if starts:
        draft.want = WantPlan(turn.input.number)


def revise(draft: Draft, joined: Joined, rules: Rules) -> None:
    """Withdraw what is not claimed and find out what is in flight; only then the turn is planned anew."""
    turn = draft.turn
    open_ = operations.in_flight(turn)
    draft.set(wanted=())
    draft.want = None
    draft.set_turn(revising=joined, settling=open_, status="revising", deadline=draft.now + rules.operation_wait_ms)
    operations.withdraw(draft, open_)
    settled(draft, rules)


def settled(draft: Draft, rules: Rules, operation: str = "") -> None:
    """One more of a cancelled or revised turn's operations is known; after the last the turn goes on."""
    left = tuple(id for id in draft.turn.settling if id != operation)
    draft.set_turn(settling=left)
    if left:
        return
    if draft.turn.status == "cancelling":
        cancelled(draft)
        return
    joined = draft.turn.revising
    if joined is None:
        raise AssertionError("nothing is revised")
    restart(draft, joined, f"revised by {joined.input.event}", starts=False)
    _undo(draft, rules)


def _undo(draft: Draft, rules: Rules) -> None:
    """What is committed is undone first, the newest first, by its tool's `compensate`; then the planner is asked."""
    undone, steps, faults, stuck = [], [], [], []
    for kept in reversed(draft.turn.kept):
        try:
            step = _compensation(draft, kept, rules)
        except TemplateError as error:
            stuck.append(f"{kept.tool} cannot be undone")
            faults.append(f"{stuck[-1]}: {error}")
            continue
        if step is not None:
            undone.append(kept.operation)
            steps.append(step)
    if faults := faults or rules.faults(tuple(steps)):
        fail(draft, "; ".join(faults), plainly="; ".join(stuck) or NOT_UNDONE)
        return
    draft.set_turn(undo=tuple(undone), steps=tuple(steps))
    proceed(draft, rules)


def _compensation(draft: Draft, kept: Kept, rules: Rules) -> Step | None:
    """The call that undoes an operation, or None where there is nothing to undo or no way to."""
    known = draft.state.operations.get(kept.operation)
    call = rules.application.tools[kept.tool].compensate if kept.tool in rules.application.tools else None
    if call is None or kept.state != "committed" or kept.undone or (known is not None and known.gone):
        return None
    return Step(tool=call.tool, args=fill(call.args, {**kept.args, "result": kept.result}))

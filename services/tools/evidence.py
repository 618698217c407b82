"""What the door tells the session's chain of evidence: each attempt, and apart from it what came of it."""

from collections.abc import Mapping, Sequence

from libs.contracts.canonical import JSON, digest, digest_bytes
from libs.contracts.evidence import pack_entry
from libs.contracts.evidence_entries import action_record, entry, operation_record, sets
from libs.contracts.reasons import OperationState
from libs.contracts.tools import RunStep
from services.tools.domain import Admitted
from services.tools.ports import Told, Work

CLAIMED = ("call", "not_after", "fingerprint", "id", "turn", "root", "tool", "origin", "action", "step")
"""What a claim writes of its call, under one digest."""


def attempt(call: RunStep, step: Admitted, told: Told, owner: str, lease_ms: int, args: bytes, context: bytes) -> bytes:
    """The claim of a key. The script notes the attempt's number, and since when its key may have been sent."""
    record = operation_record(call.key)
    identity = {
        "call": told.call, "not_after": step.not_after, "fingerprint": step.fingerprint, "id": call.operation,
        "turn": call.turn, "root": call.root, "tool": step.tool, "origin": step.authority.principal,
        "action": step.action.id if step.action else "", "step": str(step.step) if step.action else "",
    }  # fmt: skip
    written = sets(
        record, {"state": "pending"}, {"owner": owner}, identity, {"args": args}, {"context": context},
        stamped=["claimed_at"], noted=["attempt", "keyed_from"], after={"lease_until": lease_ms},
        cleared=["result", "reason", "finished_at", "resolved_by"],
    )  # fmt: skip
    if step.action is not None:
        last = step.step + 1 == len(step.action.steps)
        spent = action_record(step.action.id)
        marks: dict[str, Sequence[str]] = {"stamped": ["done"]} if last else {}
        written += sets(spent, {f"s{step.step}": call.key}, **marks)
    return pack_entry(
        "claimed",
        entry(
            "attempt", who=owner, outcome="pending", behalf=step.authority.principal, cause=told.call, sets=written,
            operation=call.operation, key=call.key, tool=step.tool, args=digest(dict(step.args)), turn=call.turn,
            consent=step.action.id if step.action else "", step=step.step,
            decision=step.action.input if step.action else "", correlation=told.correlation,
            inputs=[name for name, _ in step.authority.inputs], **_standing(told),
        ),
    )  # fmt: skip


def takeover(session_key: str, owner: str, lease_ms: int) -> bytes:
    """Another holder goes on with an operation whose holder is gone."""
    written = sets(operation_record(session_key), {"owner": owner}, after={"lease_until": lease_ms})
    return pack_entry("taken", entry("takeover", who=owner, outcome="pending", key=session_key, sets=written))


def outcome(work: Work, state: OperationState, result: bytes, reason: str) -> bytes:
    """What came of an attempt."""
    written = sets(
        operation_record(work.key), {"state": state}, {"result": result}, {"reason": reason}, stamped=["finished_at"]
    )
    return pack_entry(
        "recorded",
        entry(
            "outcome", who=work.owner, outcome=state, behalf=work.origin, cause=work.context.call, sets=written,
            operation=work.operation, key=work.key, tool=work.tool, attempt=work.attempt, result=digest_bytes(result),
            reason=reason,
        ),
    )  # fmt: skip


def looked_up(
    work: Work, state: OperationState, result: bytes, reason: str, by: str, *, released_until: int = 0
) -> bytes:
    """What the destination said of an operation whose outcome was unknown."""
    released = [{"released_until": released_until}] if state == "failed" else []
    written = sets(
        operation_record(work.key), {"state": state}, {"result": result}, {"reason": reason}, {"resolved_by": by},
        *released, stamped=["finished_at"],
    )  # fmt: skip
    return pack_entry(
        "resolved",
        entry(
            "looked_up", who=work.owner, outcome=state, behalf=work.origin, sets=written, operation=work.operation,
            key=work.key, tool=work.tool, result=digest_bytes(result), reason=reason, resolved_by=by,
        ),
    )  # fmt: skip


def resolved(key: str, state: OperationState, note: str, operator: str) -> bytes:
    """An operator's word."""
    written = sets(
        operation_record(key), {"state": state}, {"reason": note}, {"resolved_by": operator}, stamped=["finished_at"]
    )
    body = entry("resolved", who=operator, outcome=state, sets=written, key=key, reason=note)
    return pack_entry("resolved", body)


def withdrawn(key: str, operation: str, not_after: int, call: str) -> bytes:
    """A tombstone: what comes later under this key never runs."""
    written = sets(
        operation_record(key), {"state": "withdrawn"}, {"id": operation}, {"call": call}, {"not_after": not_after},
        stamped=["finished_at"],
    )  # fmt: skip
    body = entry("withdrawn", who="tools", outcome="withdrawn", cause=call, sets=written, operation=operation, key=key)
    return pack_entry("withdrawn", body)


def held_back(call: RunStep, step: Admitted, told: Told, state: OperationState, result: bytes, reason: str) -> bytes:
    """A key that was closed before anything was sent: what it relies on has changed, or its owner is asked."""
    identity = {"id": call.operation, "fingerprint": step.fingerprint, "tool": step.tool, "call": told.call}
    written = sets(
        operation_record(call.key), {"state": state}, identity, {"result": result}, {"reason": reason},
        {"not_after": step.not_after}, stamped=["finished_at"],
    )  # fmt: skip
    body = entry(
        "held_back", who="tools", outcome=state, behalf=step.authority.principal, cause=told.call, sets=written,
        operation=call.operation, key=call.key, tool=step.tool, args=digest(dict(step.args)), turn=call.turn,
        consent=call.action, reason=reason, inputs=[name for name, _ in step.authority.inputs],
    )  # fmt: skip
    return pack_entry("closed", body)


def released(work: Work, step: Admitted, reason: str) -> list[bytes]:
    """A claim of which nothing was sent is undone, its call kept: its record is gone, or failed as it was before."""
    record = operation_record(work.key)
    undone = sets(action_record(step.action.id), cleared=[f"s{step.step}", "done"]) if step.action is not None else []
    gone = sets(
        record,
        cleared=[*CLAIMED, "state", "owner", "args", "context", "claimed_at", "attempt", "keyed_from", "lease_until"],
    )
    again = sets(
        record, {"state": "failed"}, {"reason": reason}, {"owner": ""}, cleared=CLAIMED, stamped=["finished_at"]
    )
    facts: dict[str, JSON] = {"operation": work.operation, "key": work.key, "tool": work.tool, "reason": reason}
    return [
        pack_entry(
            case,
            entry("released", who=work.owner, outcome="failed", behalf=work.origin, cause=work.context.call,
                  sets=[*written, *undone], **facts),
        )
        for case, written in (("forgotten", gone), ("released", again))
    ]  # fmt: skip


def handed_back(work: Work) -> bytes:
    """A holder that took over gives back what it must not send now; whoever takes it next goes on."""
    written = sets(operation_record(work.key), {"owner": ""}, stamped=["lease_until"])
    body = entry(
        "handed_back", who=work.owner, outcome="pending", behalf=work.origin, sets=written, operation=work.operation,
        key=work.key, tool=work.tool,
    )  # fmt: skip
    return pack_entry("handed_back", body)


def turned_away(call: RunStep, state: OperationState, reason: str, told: Told) -> bytes:
    """An attempt that the door refused: nothing was claimed, nothing sent."""
    return pack_entry(
        "queued",
        entry(
            "turned_away", who="tools", outcome=state, cause=told.call, operation=call.operation, key=call.key,
            tool=call.tool, args=digest(_args(call.args)), turn=call.turn, consent=call.action, reason=reason,
            inputs=[seal.input for seal in call.seals],
        ),
    )  # fmt: skip


def _standing(told: Told) -> dict[str, JSON]:
    return {"standing": told.standing} if told.standing else {}


def _args(args: Mapping[str, JSON]) -> dict[str, JSON]:
    return dict(args)

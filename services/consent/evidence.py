"""What consent tells the session's chain of evidence: questions, decisions, closings."""

from collections.abc import Mapping

from libs.contracts.evidence import pack_entry
from libs.contracts.evidence_entries import action_record, entry, sets, steps_digest
from libs.contracts.inputs_evidence import input_entry
from services.consent.ports import ClosedAs, Issue, Redemption

_STATE_OF = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}


def question(issue: Issue, fields: Mapping[str, str | int | bytes]) -> list[bytes]:
    """The lines of an asking: that it was asked, that it was not, and each question that may give way to it."""
    written = sets(
        action_record(issue.action),
        {**fields, "fingerprint": issue.fingerprint, "token": issue.attempt, "issued": "asked",
         "expires_at": issue.question.expires_at if issue.question else 0},
        {"state": "pending"},
        noted=["asked_number", "replaced"],
    )  # fmt: skip
    asked = issue.question
    lines = []
    if asked is not None:
        told = entry(
            "question", who="consent", outcome="asked", behalf=asked.approver, cause=issue.attempt.partition(":")[0],
            sets=written, action=issue.action, approver=asked.approver, source=asked.source, turn=asked.turn,
            steps=steps_digest(asked.steps), question=asked.question_digest, expires_at=asked.expires_at,
            correlation=issue.correlation,
        )  # fmt: skip
        lines.append(pack_entry("asked", told))
    refused = sets(
        action_record(issue.action),
        {"fingerprint": issue.fingerprint, "token": issue.attempt, "issued": "not_asked"},
        {"state": "not_asked"},
    )
    told = entry("not_asked", who="consent", outcome="not_asked", sets=refused, action=issue.action, turn=_turn(issue))
    lines.append(pack_entry("not_asked", told))
    for place in issue.places:
        lines.append(_closed(f"place:{place.action}", place.action, "superseded", issue.attempt, place.reason))
    return lines


def decision(redemption: Redemption) -> list[bytes]:
    """The decision, and the input that tells the session of it."""
    verdict, sealed = _STATE_OF[redemption.verdict], redemption.input
    made: dict[str, object] = {
        "decision": redemption.verdict, "decided_by": redemption.by, "decided_at": sealed.accepted_at,
        "decided_token": redemption.attempt, "receipt": redemption.receipt, "input": sealed.id,
    }  # fmt: skip
    if redemption.verdict == "accept":
        made["lapses_at"] = redemption.lapses_at
    told = entry(
        "decision", who=redemption.by, outcome=verdict, behalf=redemption.by,
        cause=redemption.attempt.partition(":")[0], action=redemption.action, question=redemption.question_digest,
        typed=redemption.typed, input=sealed.id, number=sealed.number,
        sets=sets(action_record(redemption.action), made, {"state": verdict}),
    )  # fmt: skip
    return [pack_entry("taken", told), pack_entry("taken", input_entry(sealed.model_dump(), mark=""))]


def closed(action: str, to: ClosedAs, attempt: str, reason: str) -> bytes:
    """A question that nobody decided, or a grant that lapsed."""
    return _closed("closed", action, to, attempt, reason)


def _closed(case: str, action: str, to: ClosedAs, attempt: str, reason: str) -> bytes:
    groups: list[dict[str, object]] = [{"closed_as": to, "closed_token": attempt, "reason": reason}]
    if to != "lapsed":
        groups.append({"state": to})
    written = sets(action_record(action), *groups, stamped=["closed_at"])
    told = entry("closed", who="consent", outcome=to, sets=written, action=action, reason=reason)
    return pack_entry(case, told)


def _turn(issue: Issue) -> str:
    return issue.question.turn if issue.question else ""

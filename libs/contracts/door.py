"""What the door checks before anything is sent, in its order, and what each check answers (design §3.4).

One table for handlers, log, documentation (`docs/door.md` is rendered from it) and tests.
"""

from dataclasses import dataclass
from typing import Literal

from libs.contracts.reasons import OperationState

Stage = Literal[
    "seals", "action", "tool", "arguments", "permission", "identity", "conditions", "key", "binding", "grant"
]  # fmt: skip
"""Where in the order a check stands. The last three are one script, so that nothing can come between them."""

DoorCode = Literal[
    "no_seals",
    "forged_seal",
    "foreign_seal",
    "mixed_principals",
    "repeated_input",
    "not_a_wish",
    "no_action",
    "no_step",
    "foreign_key",
    "not_the_approver",
    "not_its_decision",
    "unknown_tool",
    "other_schema",
    "bad_arguments",
    "not_permitted",
    "needs_approval",
    "no_identity",
    "precondition_failed",
    "needs_consent",
    "conflict",
    "in_progress",
    "withdrawn",
    "expired",
    "turn_of_another",
    "input_of_another_turn",
    "too_many_steps",
    "not_accepted",
    "approval_lapsed",
    "step_spent",
    "earlier_step_open",
    "refused",
]
"""Why the door turned a call away: closed, one name a check. `refused` is a reason that the table does not know."""


@dataclass(frozen=True)
class Check:
    """One check. `status` is the HTTP status that says the same, `says` how a refusal of the claiming script begins."""

    code: DoorCode
    stage: Stage
    state: OperationState
    status: int
    means: str
    says: str = ""


CHECKS: tuple[Check, ...] = (
    Check("no_seals", "seals", "refused", 401, "no seal says whom the call speaks for, or more than 64 do"),
    Check("forged_seal", "seals", "refused", 401, "a seal is not ours: one of its fields is not what was sealed"),
    Check("foreign_seal", "seals", "refused", 401, "a seal is of another session"),
    Check("mixed_principals", "seals", "refused", 401, "the seals are of more than one principal or writer"),
    Check("repeated_input", "seals", "refused", 401, "one input is named twice, as of two times"),
    Check("not_a_wish", "seals", "refused", 403, "only decisions and cancels are named: they ask for nothing"),
    Check("no_action", "action", "refused", 404, "the action that is named does not exist"),
    Check("no_step", "action", "refused", 404, "the action has no such step"),
    Check("foreign_key", "action", "refused", 403, "the key is not that of the action's step"),
    Check("not_the_approver", "action", "refused", 403, "who is named is not who was asked"),
    Check("not_its_decision", "action", "refused", 403, "the seal is not that of the decision on this action"),
    Check("unknown_tool", "tool", "refused", 404, "the application has no such tool"),
    Check("other_schema", "tool", "refused", 409, "the tool's schema was imported anew since the action was asked"),
    Check("bad_arguments", "arguments", "refused", 422, "the arguments do not fit the schema; each path is named"),
    Check("not_permitted", "permission", "refused", 403, "the tool's `caused_by` does not let this principal"),
    Check("needs_approval", "permission", "refused", 403, "the tool's `consent` wants the owner's yes first"),
    Check("no_identity", "identity", "refused", 422, "who acts cannot be written into the arguments"),
    Check(
        "precondition_failed", "conditions", "precondition_failed", 412,
        "what an approved step relies on has changed, or cannot be read",
    ),
    Check(
        "needs_consent", "conditions", "needs_consent", 403,
        "the step was offered, and no standing approval covers it: its owner is asked",
    ),
    Check("conflict", "key", "conflict", 409, "the key was used for another tool or other arguments"),
    Check("in_progress", "key", "in_progress", 202, "another call holds the key"),
    Check("withdrawn", "key", "withdrawn", 410, "the key was withdrawn before it was claimed"),
    Check("expired", "key", "expired", 410, "`not_after` is past, or a seal is older than 24 hours"),
    Check(
        "turn_of_another", "binding", "refused", 403, "the root turn was begun by another principal",
        "the turn was begun by somebody else",
    ),
    Check(
        "input_of_another_turn", "binding", "refused", 403, "an input was used for another root turn",
        "an input belongs to another turn",
    ),
    Check(
        "too_many_steps", "binding", "refused", 429,
        "an input has had all the steps of `caps.steps`, or a question would have more",
        "too many steps for one",
    ),
    Check("not_accepted", "grant", "refused", 403, "the action is not accepted, or is not any more", "the action is "),
    Check("approval_lapsed", "grant", "refused", 410, "the approval was not used in time", "the approval has lapsed"),
    Check("step_spent", "grant", "refused", 409, "the approved step was spent by another key", "the step is spent"),
    Check(
        "earlier_step_open", "grant", "refused", 409, "a step before this one is not committed",
        "an earlier step is not committed",
    ),
)  # fmt: skip
"""In the order in which they are made: of two faults the first is told."""

_BY_CODE = {check.code: check for check in CHECKS}
_UNKNOWN = Check("refused", "grant", "refused", 403, "refused for a reason without a code of its own")


def check_of(code: str) -> Check:
    """The check of that code."""
    return _BY_CODE.get(code, _UNKNOWN)  # type: ignore[call-overload, no-any-return]


def code_of(state: OperationState, reason: str) -> DoorCode:
    """The code of what the claiming script answered: by its state, and for a refusal by how its reason begins."""
    if state != "refused":
        return next((check.code for check in CHECKS if check.state == state), "refused")
    return next((check.code for check in CHECKS if check.says and reason.startswith(check.says)), "refused")

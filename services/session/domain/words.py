"""How turns, steps and results read in a timeline and in an answer."""

from libs.contracts.canonical import JSON
from libs.contracts.origin import Origin
from libs.contracts.reasons import OperationState, TimelineKind
from libs.contracts.session import Step
from services.session.domain.state import Turn

KINDS: dict[OperationState, TimelineKind] = {
    "committed": "tool.committed",
    "refused": "tool.refused",
    "failed": "tool.failed",
    "unknown": "tool.unknown",
    "conflict": "tool.conflict",
    "withdrawn": "tool.withdrawn",
    "expired": "tool.expired",
    "in_progress": "tool.unknown",
    "pending": "tool.unknown",
    "precondition_failed": "tool.refused",
    "needs_consent": "tool.refused",
}
SAID = {
    "refused": "was refused",
    "failed": "failed",
    "unknown": "has an unknown outcome",
    "conflict": "was refused: its key was used for something else",
    "withdrawn": "was withdrawn",
    "expired": "came too late and was not run",
    "sent": "is still running",
    "in_progress": "is still running",
    "pending": "is still running",
    "committed": "was done",
    "precondition_failed": "was not run",
    "needs_consent": "was not run: its owner has to be asked",
}


def origin_name(turn: Turn) -> str:
    """Who started it."""
    written = signed_and_written(turn.origin)
    name = turn.origin.kind if turn.origin.kind == "user" else turn.origin.source
    return f"{name} ({written})" if written else name


def signed_and_written(origin: Origin) -> str:
    """Who signed and who wrote it, where these are two; "" where the data names no writer."""
    return f"signed by {origin.source}, written by {origin.written_by}" if origin.written_by else ""


def step_text(step: Step) -> str:
    """A step as a call."""
    return f"{step.tool}({', '.join(f'{name}={value}' for name, value in step.args.items())})"


def why_stopped(tool: str, state: str, reason: str) -> str:
    """Why a plan goes no further."""
    return f"{tool} {SAID[state]}" + (f" ({reason})" if reason else "")


def shown(state: str, result: JSON, reason: str) -> str:
    """What an operation came to."""
    if isinstance(result, dict) and "id" in result:
        return f"{result['id']} ({reason})" if reason else str(result["id"])
    if reason:
        return reason
    return "done" if state == "committed" else state

"""Steps that are put to the door before their owner is asked: a standing approval may cover them, and a question about
what relies on the state of the world needs that state read (design §3.3, §3.4)."""

from collections.abc import Sequence

from pydantic import ValidationError

from libs.contracts.consent import World
from libs.contracts.session import Step
from libs.contracts.tools import StepFinished
from services.session.domain.rules import Rules

OFFERED = " (offered: runs under a standing approval, else its owner is asked)"
READ_FIRST = " (offered: what it relies on is read for the question)"


def wants_offer(steps: Sequence[Step], rules: Rules) -> bool:
    """Whether the door hears of these steps first: its owner may have granted the next one, or one needs its world."""
    tools = [rules.application.tools[step.tool] for step in steps]
    return tools[0].standing or any(tool.precondition is not None for tool in tools)


def mark(step: Step, rules: Rules) -> str:
    """How an offer reads in the timeline."""
    return OFFERED if rules.application.tools[step.tool].standing else READ_FIRST


def worlds_of(finished: StepFinished, steps: Sequence[Step]) -> tuple[World | None, ...]:
    """What the door read for each step, as it attested it; nothing where that does not fit. Consent judges it."""
    raw = finished.result.get("worlds") if isinstance(finished.result, dict) else None
    if not isinstance(raw, list) or len(raw) != len(steps) or not any(raw):
        return ()
    try:
        return tuple(World.model_validate(one) if one is not None else None for one in raw)
    except ValidationError:
        return ()

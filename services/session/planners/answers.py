"""What a planner outside may answer, and why an answer is none: a fault is told, and nothing is guessed."""

import re
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libs.contracts.canonical import JSON
from libs.contracts.session import PlanRequested, Step
from libs.contracts.strict_json import Malformed, parse

MAX_ANSWER_BYTES = 256 * 1024
"""A larger answer is no plan: steps are few, and a reply is read by a person."""
MOST_STEPS = 200
"""Far above any cap of steps in a turn (`session.caps.steps`), which the session judges."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
MAX_REASON = 300


class PlannerFault(Exception):
    """There is no plan. The text is for the operator: why, without a secret and without the answer itself."""

    def __init__(self, reason: str) -> None:
        super().__init__(_UNPRINTABLE.sub("?", reason)[:MAX_REASON])


class Answer(BaseModel):
    """A planner's answer: steps in their order, a reply, or both. `relation` says what the newest input is to the turn
    that runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[Step, ...] = Field((), max_length=MOST_STEPS)
    reply: str = ""
    note: str = ""
    relation: Literal["", "adds", "independent", "revises", "unclear"] = ""


class RemotePlanner(Protocol):
    """A planner that is asked over HTTP."""

    async def ask(self, request: PlanRequested, session: str) -> Answer:
        """The answer to a request, before its deadline. Raises PlannerFault."""
        ...


def strictly(raw: bytes) -> JSON:
    """The JSON value of an answer, in which no key stands twice (C090). Raises PlannerFault."""
    try:
        return parse(raw)
    except Malformed as malformed:
        raise PlannerFault(f"the planner's answer cannot be read: {malformed}") from None


def read_answer(value: JSON) -> Answer:
    """An answer in our own form. Raises PlannerFault with the first fault by path."""
    if not isinstance(value, dict):
        raise PlannerFault("the planner's answer is no JSON object")
    try:
        return Answer.model_validate(_with_tuple(value), strict=True)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(str(part) for part in fault["loc"])
        raise PlannerFault(f"the planner's answer: {path or 'answer'}: {fault['msg']}") from None


def _with_tuple(value: dict[str, JSON]) -> dict[str, JSON]:
    """Strict validation takes no list for a tuple, and JSON has only lists."""
    steps = value.get("steps")
    return {**value, "steps": tuple(steps)} if isinstance(steps, list) else value

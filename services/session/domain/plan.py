"""What a planner answers with, and what it is shown."""

from dataclasses import dataclass, field

from libs.contracts.canonical import JSON
from libs.contracts.session import Step
from services.session.domain.state import InputRef, Result
from services.session.domain.view import messages as chat


@dataclass(frozen=True)
class Plan:
    """Steps, a reply, or both; neither ends the turn. `fault` is why an answer could not be used.

    `note` is prose of the planner's own; no question is ever made of it, except in a lab.
    """

    steps: tuple[Step, ...] = ()
    reply: str = ""
    note: str = ""
    fault: str = ""


@dataclass(frozen=True)
class View:
    """What the planner is shown of a turn."""

    session: str
    turn: str
    input: InputRef
    data: JSON
    results: tuple[Result, ...] = ()
    action: str = ""
    asked: InputRef | None = None
    """For an accepted action: the input whose turn asked."""
    failing: str = ""
    history: tuple[dict[str, JSON], ...] = field(default=(), repr=False)

    @property
    def messages(self) -> tuple[dict[str, JSON], ...]:
        """The history as a chat, in which no byte of a non-user input has a user, system or developer role (G7).

        Made when asked for: it costs more than the rest of a turn, and planners by rules do not look at it.
        """
        return chat(self.history)

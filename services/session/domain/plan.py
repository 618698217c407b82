"""What a planner answers with, and what it is shown."""

from dataclasses import dataclass, field
from typing import Any, Literal

from libs.contracts.application import Application
from libs.contracts.canonical import JSON
from libs.contracts.session import Step
from services.session.domain.state import InputRef, Kept, Result
from services.session.domain.view import budget_of, tools_of
from services.session.domain.view import messages as chat

Relation = Literal["", "adds", "independent", "revises", "unclear"]


@dataclass(frozen=True)
class Plan:
    """Steps, a reply, or both; neither ends the turn. `fault` is why an answer could not be used.

    `note` is prose of the planner's own; no question is ever made of it, except in a lab. `relation` answers what an
    input is to the running turn ("" counts as independent): with `adds` the steps join the turn; with `unclear` the
    reply is the question to the owner; with `revises`, and where a rule restarts the turn, the planner is asked again
    once it is known what was done.
    """

    steps: tuple[Step, ...] = ()
    reply: str = ""
    note: str = ""
    fault: str = ""
    relation: Relation = ""


@dataclass(frozen=True)
class Added:
    """An input that became part of the turn while it ran, or answered its question."""

    input: InputRef
    data: JSON
    relation: str = ""


@dataclass(frozen=True)
class Running:
    """The turn that runs, for the question what an input is to it."""

    input: InputRef
    data: JSON
    results: tuple[Result, ...]
    """Steps that are done."""
    left: tuple[Step, ...]
    """Steps that are not, the one in flight first."""


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
    added: tuple[Added, ...] = ()
    """Inputs that joined the turn, in order."""
    done: tuple[Kept, ...] = ()
    """What earlier turns of the lineage did, by the ledger: a step that is planned again is not done again."""
    running: Running | None = None
    """Set where the question is what `input` is to this turn, which runs; answered with `relation`."""
    answer: Added | None = None
    """The owner's answer to the question about an unclear `input`."""

    @property
    def messages(self) -> tuple[dict[str, JSON], ...]:
        """The history as a chat, in which no byte of a non-user input has a user, system or developer role (G7).

        Made when asked for: it costs more than the rest of a turn, and planners by rules do not look at it.
        """
        return chat(self.history)


def view_json(view: View, application: Application) -> dict[str, Any]:
    """A view for planners in other processes: see `docs/planners.md`. It holds no seal: a planner carries no
    authority."""
    return {
        "session": view.session,
        "turn": view.turn,
        "input": _input(view.input, view.data),
        "results": [result.model_dump() for result in view.results],
        "action": view.action,
        "asked": _input(view.asked) if view.asked else None,
        "failing": view.failing,
        "added": [_added(added) for added in view.added],
        "done": [kept.model_dump(exclude={"key", "taken"}) for kept in view.done],
        "running": _running(view.running) if view.running else None,
        "answer": _added(view.answer) if view.answer else None,
        "messages": list(chat(view.history, budget_of(application.planner))),
        "tools": tools_of(application.tools),
    }


def _input(ref: InputRef, data: JSON = None) -> dict[str, Any]:
    known = {"number": ref.number, "kind": ref.kind, "source": ref.source, "type": ref.type, "event": ref.event}
    return {**known, "origin": ref.origin.model_dump(), "data": data}


def _added(added: Added) -> dict[str, Any]:
    return {**_input(added.input, added.data), "relation": added.relation}


def _running(running: Running) -> dict[str, Any]:
    return {
        "input": _input(running.input, running.data),
        "results": [result.model_dump() for result in running.results],
        "left": [step.model_dump() for step in running.left],
    }

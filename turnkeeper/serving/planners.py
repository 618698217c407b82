"""A planner that is a function: it is shown a view and says what should be done. See docs/planners.md for both."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, overload

from pydantic import BaseModel, ConfigDict

from libs.contracts.session import Step

DEFAULT_PORT = 9001


class View(dict[str, Any]):
    """What a planner is shown of a turn: the JSON object of docs/planners.md, with names for what most planners read.

    >>> view = View({"input": {"kind": "message", "source": "app", "data": {"text": "hello"}}})
    >>> view.text, view.source, view["input"]["kind"]
    ('hello', 'app', 'message')
    """

    @property
    def text(self) -> str:
        """The owner's own words, "" where the input is not a message of theirs. Nobody else's text comes out here."""
        asked = self.get("input") or {}
        data = asked.get("data") if asked.get("kind") == "message" else None
        return str(data.get("text", "")) if isinstance(data, dict) else ""

    @property
    def source(self) -> str:
        """The source of the input."""
        return str((self.get("input") or {}).get("source", ""))

    @property
    def type(self) -> str:
        """The input's type, as its source names it."""
        return str((self.get("input") or {}).get("type", ""))

    @property
    def data(self) -> Any:
        """What the input says: of an event the `data` of its body. Whoever wrote it, it is data."""
        body = (self.get("input") or {}).get("data")
        nested = body.get("data") if isinstance(body, dict) else None
        return nested if isinstance(nested, dict) else body

    @property
    def results(self) -> list[dict[str, Any]]:
        """What became of the steps so far: `tool args operation state result reason`."""
        return list(self.get("results") or [])

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest result, None while there is none."""
        return self.results[-1] if self.results else None


class Plan(BaseModel):
    """What a planner answers: steps in their order, a reply to the user, or both; neither ends the turn.

    `relation` says what an input is to the turn that runs, `note` is kept beside the steps and shown to nobody.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[Step, ...] = ()
    reply: str = ""
    note: str = ""
    relation: Literal["", "adds", "independent", "revises", "unclear"] = ""


Planned = Plan | Step | Mapping[str, Any] | str | None
"""What a planner's function may return: a plan, one step, a plan as a mapping, a reply, or nothing to do."""
PlannerFunction = Callable[[View], Planned | Awaitable[Planned]]


class Planner:
    """A function that plans, and the ways to serve it. Call it as the function that it was."""

    def __init__(self, function: PlannerFunction, relates: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__name__", "plan")
        self._function = function
        self._relates = relates

    def __call__(self, view: Mapping[str, Any]) -> Any:
        """What the function returns."""
        return self._function(View(view))

    async def answer(self, view: Mapping[str, Any]) -> Plan:
        """The plan for a view; a function that is no coroutine runs in a thread. Raises what the function raises,
        ValueError for what is no plan."""
        if view.get("running") and not self._relates:
            return Plan(relation="independent")
        shown = View(view)
        if inspect.iscoroutinefunction(self._function):
            return plan_of(await self._function(shown))
        return plan_of(await asyncio.to_thread(self._function, shown))

    def serve(self, port: int = DEFAULT_PORT, host: str = "127.0.0.1", authorization: str | None = None) -> None:
        """Serve it over HTTP at `/NAME` until interrupted: see `turnkeeper.serve`."""
        from turnkeeper.serving.http import serve  # it imports us

        serve(self, port=port, host=host, authorization=authorization)

    def work(self, url: str | None = None, namespace: str | None = None, at_once: int = 20) -> None:
        """Take requests of the planner `amqp` from RabbitMQ, `at_once` together, until interrupted.

        Without `url` and `namespace` they are those of the stack of `TURNKEEPER_STATE`, or what the environment names.
        Raises TargetError where none is known.
        """
        from turnkeeper.serving.amqp import work  # aio-pika is for those who need it

        work(self, url, namespace, at_once)


@overload
def planner(function: PlannerFunction) -> Planner: ...
@overload
def planner(*, relates: bool = False) -> Callable[[PlannerFunction], Planner]: ...
def planner(
    function: PlannerFunction | None = None, *, relates: bool = False
) -> Planner | Callable[[PlannerFunction], Planner]:
    """Make a planner of a function that takes a `View` and returns a `Plan`, a `Step`, a reply, or None.

    While a turn runs a planner is also asked what a new input is to that turn. Those that cannot tell need not: unless
    `relates`, such an input is independent and has its own turn, and the function is not called for it.

    >>> import turnkeeper
    >>> @turnkeeper.planner
    ... def plan(view: turnkeeper.View) -> turnkeeper.Plan:
    ...     return turnkeeper.Plan(reply=f"You said: {view.text}")
    >>> plan({"input": {"kind": "message", "data": {"text": "hello"}}}).reply
    'You said: hello'

    `plan.serve(port=9001)` then answers `planner: {http: {url: "http://127.0.0.1:9001/plan"}}`.
    """
    return functools.partial(Planner, relates=relates) if function is None else Planner(function)


def plan_of(value: Any) -> Plan:
    """A plan from what a function returned. Raises ValueError."""
    match value:
        case Plan():
            return value
        case Step():
            return Plan(steps=(value,))
        case None:
            return Plan()
        case str():
            return Plan(reply=value)
        case Mapping():
            return Plan.model_validate(dict(value))
        case _:
            raise ValueError(f"a planner returned {type(value).__name__}: it may be a Plan, a Step, a text or None")

"""The lab switch `late_call`: a call that its own withdrawal overtakes, as one does that waits in an outbox."""

from collections.abc import Awaitable, Callable, Collection

from libs.contracts.tools import RunStep
from libs.runtime.consumer import Context
from libs.runtime.settle import Outcome

REASON = "lab: the call is late"
"""What a withdrawal that overtook its call is told with."""


class LateCalls:
    """Keeps the first call of a tool in each session until it was withdrawn; all others pass."""

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._first: dict[tuple[str, str], str] = {}
        self._kept: dict[tuple[str, str], tuple[RunStep, Context]] = {}
        self._withdrawn: set[tuple[str, str]] = set()

    def keeps(self, call: RunStep, ctx: Context) -> bool:
        """Whether the call is late and is not to be handled now."""
        session = ctx.envelope.session
        if call.tool not in self._tools or self._first.setdefault((session, call.tool), call.key) != call.key:
            return False
        if (session, call.key) in self._withdrawn:
            return False
        self._kept[session, call.key] = (call, ctx)
        return True

    async def withdrawn(self, session: str, key: str, handle: Callable[[RunStep, Context], Awaitable[Outcome]]) -> None:
        """The withdrawal is committed: now its call comes."""
        self._withdrawn.add((session, key))
        if kept := self._kept.pop((session, key), None):
            await handle(*kept)

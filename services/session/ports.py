"""What the handlers need, no wider."""

from collections.abc import Sequence
from typing import Protocol

from libs.contracts.ingress import Input
from libs.runtime.publisher import Outgoing
from services.session.domain.draft import Decision
from services.session.domain.plan import Plan, View
from services.session.snapshot import Snapshot


class Sessions(Protocol):
    """The sessions of the store, as this owner sees them."""

    async def load(self, session: str) -> Snapshot:
        """The session as cached, else as stored."""
        ...

    async def inputs(self, session: str, first: int, last: int) -> list[Input]:
        """Inputs by number, both ends included; those that are there."""
        ...

    async def commit(self, snapshot: Snapshot, decision: Decision, messages: Sequence[Outgoing]) -> None:
        """Store a decision and send its messages. Raises LostOwnership when another version is stored."""
        ...

    async def confirm(self, snapshot: Snapshot) -> None:
        """Check that the version is still the stored one. Raises LostOwnership."""
        ...

    def drop(self, session: str) -> None:
        """Forget the cached state."""
        ...


class Planner(Protocol):
    """What stands in the model's place."""

    async def plan(self, view: View) -> Plan:
        """The answer to a view. Never raises for a view that it does not understand: a Plan carries the fault."""
        ...

"""What has to hold before a key is claimed: the world is as it was when the question was asked, and a step that nobody
was asked about is covered by a standing approval (design §3.4)."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from libs.contracts.canonical import JSON
from libs.contracts.canonical import digest as digest_of
from libs.contracts.consent import World
from libs.contracts.errors import ContractError
from libs.contracts.origin import SealKeys
from libs.contracts.principals import may_cause
from libs.contracts.reasons import OperationState
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, evaluate, fill
from libs.contracts.tools import RunStep
from libs.runtime.clock import Clock
from services.tools.calling import called
from services.tools.domain import Admitted, Catalogue, Committed, Outcome, Silent, destination_key
from services.tools.metrics import ToolMetrics
from services.tools.pauses import Stops
from services.tools.ports import Call, Connector, Held, Known, Ledger, Paused, Told, Turned, Work
from services.tools.standing import Fate, Reserved, Wanted, fate_of

log = structlog.get_logger(__name__)

CHANGED = "what it relies on has changed since the question was asked"
NOT_READ = "what it relies on could not be read: {why}"
NOT_COVERED = "no standing approval covers it"
TO_BE_ASKED = "its owner is asked first"
NEVER_READ = "what it relies on was not read when the question was asked"
ENDED = "the standing approval was revoked or ended meanwhile"


class Grants(Protocol):
    """Standing approvals in the store."""

    async def reserve(self, user: str, wanted: Wanted, now: int) -> Reserved | None:
        """One use of an approval of this user, or None."""
        ...

    async def settle(self, user: str, grant: str, session: str, key: str, fate: Fate, call: str = "") -> str:
        """What became of a use."""
        ...


@dataclass(frozen=True)
class Cleared:
    """The step may be claimed, until its `not_after`; with `use` as one use of a standing approval."""

    step: Admitted
    told: Told
    use: Reserved | None = None


@dataclass(frozen=True)
class HeldBack:
    """Nothing may be sent. `result` is for the question that is asked instead."""

    state: OperationState
    reason: str
    result: JSON = None


class Conditions:
    """Judges one step before its claim, and settles its use afterwards."""

    def __init__(
        self,
        catalogue: Catalogue,
        ledger: Ledger,
        grants: Grants,
        connectors: Mapping[str, Connector],
        keys: SealKeys,
        metrics: ToolMetrics,
        *,
        clock: Clock,
        namespace: str,
        stops: Stops | None = None,
    ) -> None:
        self._stops = stops or Stops()
        self._catalogue = catalogue
        self._ledger = ledger
        self._grants = grants
        self._connectors = connectors
        self._keys = keys
        self._metrics = metrics
        self._clock = clock
        self._namespace = namespace

    async def clear(self, call: RunStep, step: Admitted, session: str, told: Told) -> Cleared | HeldBack:
        """Whether the step may be claimed. What nobody has to be asked about always may: nobody waited, so nothing that
        was shown to a person can have changed. Raises Stopped where what it relies on may not be read now."""
        if step.action is not None:
            held_back = await self._as_approved(call, step, session)
            return held_back or Cleared(step, told)
        if not step.offered:
            return Cleared(step, told)
        use = await self._reserve(call, step, session, told)
        if use is None:
            tool = self._catalogue.tool(step.tool)
            why = NOT_COVERED if tool is not None and tool.standing else TO_BE_ASKED
            return await self.ask_instead(call, step, session, why)
        until = 0 if use.over else min(step.not_after, use.until)
        return Cleared(replace(step, not_after=until), replace(told, standing=use.grant), use)

    async def ask_instead(self, call: RunStep, step: Admitted, session: str, why: str) -> HeldBack:
        """Its owner has to be asked; with what the question's steps rely on, read now. Raises Stopped as `clear`."""
        steps = (Step(tool=call.tool, args=call.args), *call.then)
        if len(steps) > self._catalogue.application.session.caps.steps:
            return HeldBack("refused", "too many steps for one question")
        origin = step.authority.principal
        worlds = await asyncio.gather(*(self._world(session, one, call.key, n, origin) for n, one in enumerate(steps)))
        for world in worlds:
            if isinstance(world, Silent):
                return HeldBack("precondition_failed", NOT_READ.format(why=world.reason))
        told = [world.model_dump() if isinstance(world, World) else None for world in worlds]
        return HeldBack("needs_consent", why, {"worlds": told})

    async def settle(self, cleared: Cleared, call: RunStep, session: str, found: Work | Held | Known | Turned | Paused,
                     state: OperationState | None) -> None:  # fmt: skip
        """Say what became of the use that was reserved. `state` is that of the operation now."""
        use = cleared.use
        if use is None or isinstance(found, Held | Paused):
            return
        fate = fate_of(state)
        if fate is None and (state == "failed" or isinstance(found, Turned)):
            fate = "freed"  # this call claims nothing; another one may
        if fate is None:
            return
        became = await self._grants.settle(use.user, use.grant, session, call.key, fate, cleared.told.call)
        self._metrics.used(call.tool, became)

    async def void(self, use: Reserved, call: RunStep, session: str) -> None:
        """The operation's key is closed: its use is free again."""
        became = await self._grants.settle(use.user, use.grant, session, call.key, "void")
        self._metrics.used(call.tool, became)

    async def _reserve(self, call: RunStep, step: Admitted, session: str, told: Told) -> Reserved | None:
        tool = self._catalogue.tool(step.tool)
        owner = await self._ledger.owner(session)
        if tool is None or not tool.standing or not owner or not may_cause(tool, step.authority.origin):
            return None
        wanted = Wanted(
            session=session, key=call.key, operation=call.operation, call=told.call, tool=step.tool, args=step.args,
            source=step.authority.origin.source, not_after=step.not_after,
            fingerprint=step.fingerprint,
        )  # fmt: skip
        return await self._grants.reserve(owner, wanted, self._clock.now_ms())

    async def _as_approved(self, call: RunStep, step: Admitted, session: str) -> HeldBack | None:
        tool, action = self._catalogue.tool(step.tool), step.action
        if tool is None or tool.precondition is None or action is None:
            return None
        shown = action.worlds[step.step] if step.step < len(action.worlds) else None
        if shown is None:
            return HeldBack("precondition_failed", NEVER_READ)
        read = await self._read(session, action.steps[step.step], call.key, step.authority.principal)
        if isinstance(read, Silent):
            return HeldBack("precondition_failed", NOT_READ.format(why=read.reason))
        return None if read == shown.digest else HeldBack("precondition_failed", CHANGED)

    async def _world(self, session: str, step: Step, key: str, number: int, origin: str) -> World | Silent | None:
        """What a step relies on, under our attestation; None where its tool has no precondition."""
        tool = self._catalogue.tool(step.tool)
        if tool is None or tool.precondition is None:
            return None
        if faults := self._catalogue.faults(step.tool, step.args):
            return Silent("; ".join(faults))
        read = await self._read(session, step, f"{key}-{number}", origin)
        if isinstance(read, Silent):
            return read
        return World.attested(self._keys, session, step, read, self._clock.now_ms())

    async def _read(self, session: str, step: Step, key: str, origin: str) -> str | Silent:
        """The digest of what a step relies on, read now. Never raises for what the destination did."""
        tool = self._catalogue.tool(step.tool)
        condition = tool.precondition if tool else None
        if condition is None:
            return Silent("there is nothing to read")
        names = {**step.args, "args": dict(step.args)}
        try:
            args = {**fill(dict(condition.args), names), **await self._identity(condition.tool, session)}
        except TemplateError as error:
            return Silent(f"the reading's arguments: {error}")
        if faults := self._catalogue.faults(condition.tool, args):
            return Silent("; ".join(faults))
        if condition.tool in self._catalogue.raised:
            return Silent(f"{condition.tool} writes, as its server says; a precondition must not")
        outcome = await self._ask(session, condition.tool, args, f"{key}-read", origin)
        if not isinstance(outcome, Committed):
            return Silent(outcome.reason)
        try:
            found = outcome.result
            return digest_of(
                found if condition.digest is None else evaluate(condition.digest, {**names, "found": found})
            )
        except (TemplateError, ContractError) as error:
            return Silent(f"the answer does not fit: {error}")

    async def _identity(self, tool: str, session: str) -> Mapping[str, JSON]:
        """A reading has no turn and so no origin; of identity it may name the session's owner."""
        known = self._catalogue.tool(tool)
        if known is None or not known.identity:
            return {}
        filled: Mapping[str, JSON] = fill(dict(known.identity), {"owner": await self._ledger.owner(session)})
        return filled

    async def _ask(self, session: str, tool: str, args: Mapping[str, JSON], key: str, origin: str) -> Outcome | Silent:
        known, connector = self._catalogue.tool(tool), self._connectors.get(tool)
        if known is None or connector is None:
            return Silent(f"there is no tool {tool}")
        own = destination_key(self._namespace, session, key)
        call = Call(
            session, "", tool, args, own, known.connector.timeout, key,
            before_send=lambda: self._stops.check(tool, session, origin),
        )  # fmt: skip
        return await called(connector, call)

"""Run a claimed operation and record what became of it."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

import structlog

from libs.contracts.canonical import JSON
from libs.contracts.errors import StoreAway
from libs.contracts.faults import ERROR, INJECTED, TIMEOUT
from libs.contracts.principals import actor_of
from libs.contracts.reasons import OperationState
from libs.runtime.clock import Clock
from services.tools.answers import Answers
from services.tools.calling import called
from services.tools.domain import (
    Catalogue,
    Committed,
    Failed,
    Outcome,
    Refused,
    Unknown,
    after_holder,
    destination_key,
    is_harmless,
)
from services.tools.faults import Injected, TrialFaults
from services.tools.metrics import ToolMetrics
from services.tools.pauses import Stops
from services.tools.ports import Call, Connector, Delayed, Held, Ledger, Stopped, Work

log = structlog.get_logger(__name__)

ANSWER_LOST = "it was done, and its answer was lost"


class Executor:
    """What happens between claim and answer. Knows which operations this process holds."""

    def __init__(
        self,
        catalogue: Catalogue,
        ledger: Ledger,
        connectors: Mapping[str, Connector],
        answers: Answers,
        metrics: ToolMetrics,
        *,
        clock: Clock,
        namespace: str,
        lease_grace_ms: int,
        store_back: Callable[[], Awaitable[None]],
        stops: Stops | None = None,
        faults: TrialFaults | None = None,
    ) -> None:
        self._faults = faults
        self._stops = stops or Stops()
        self._catalogue = catalogue
        self._ledger = ledger
        self._connectors = connectors
        self._answers = answers
        self._metrics = metrics
        self._clock = clock
        self._namespace = namespace
        self._grace = lease_grace_ms
        self._store_back = store_back
        self._begun: set[str] = set()
        self.holding: set[str] = set()
        """Members that this process is at work on."""

    def lease_ms(self, tool: str) -> int:
        """How long a holder of this tool may be silent: its timeout and a grace for recording."""
        known = self._catalogue.tool(tool)
        return round((known.connector.timeout if known else 0) * 1000) + self._grace

    async def run(self, work: Work) -> OperationState:
        """Run what was just claimed. The state that stands afterwards; Stopped where nothing was or may be sent."""
        if work.again or work.owner in self._begun:
            # Sent before, for all we know: by an attempt that a look-up did not find, or by a call of ours that was
            # ended between claim and record.
            return await self.run_again(work)
        return await self._run(work, await self._faults.draw(work) if self._faults is not None else None)

    async def run_again(self, work: Work) -> OperationState:
        """Go on where a holder stopped: sent again with the same key, or unknown."""
        if after_holder(self._catalogue.tool(work.tool), work.keyed_from, work.now) == "send":
            log.info("operation.sent_again", session=work.session, operation=work.operation, tool=work.tool)
            try:
                return await self._run(work, again=True)
            except Stopped as stopped:
                # Whoever held it before may have sent it, so it stays claimed, for whoever may send it later.
                log.info("operation.stopped", session=work.session, operation=work.operation, reason=stopped.reason)
                await self._ledger.hand_back(work, self._clock.now_ms(), wait_ms=round(stopped.wait * 1000))
                return "pending"
        return await self.leave_unknown(work, "whoever ran it is gone, and it may have been sent")

    async def leave_unknown(self, work: Work, reason: str) -> OperationState:
        """Record that nobody knows what became of what was claimed; nothing is sent. The state that stands."""
        return await self._record(work, Unknown(reason))

    async def take_over(self, session: str, key: str, *, tool: str = "", gone: str = "") -> OperationState | None:
        """Take a pending operation from a holder that is gone and finish it; None if its holder may be alive."""
        taken = await self._ledger.take_over(
            session, key, gone=gone, lease_ms=self.lease_ms(tool), now=self._clock.now_ms()
        )
        if isinstance(taken, Delayed):
            if after_holder(self._catalogue.tool(taken.tool), taken.keyed_from, taken.now) == "send":
                return None  # it waits for the end of the pause
            taken = await self._ledger.take_over(
                session, key, gone=gone, lease_ms=self.lease_ms(tool), now=self._clock.now_ms(), unsent=True
            )
        match taken:
            case Work():
                return await self.run_again(taken)
            case str():
                return taken
            case _:
                return None

    async def _run(self, work: Work, fault: Injected | None = None, *, again: bool = False) -> OperationState:
        held = await self._under_lease(work)
        if not isinstance(held, Work):
            return held
        if again and held is not work:
            return await self.run_again(held)  # time has passed: whether the key is honoured is asked again
        self._begun.add(held.owner)
        self.holding.add(held.member)
        try:
            outcome = await (self._call(held, again) if fault is None else self._met(held, fault))
            state = await self._record(held, self._in_doubt(held, outcome) if again else outcome, fault)
        except Stopped as stopped:
            self._begun.discard(held.owner)
            stopped.held = held
            raise
        finally:
            self.holding.discard(held.member)
        self._begun.discard(held.owner)
        return state

    async def _under_lease(self, work: Work) -> Work | OperationState:
        """The work, held still: who was stopped between claim and send for longer than the lease may have a successor,
        and does not send after it. Nothing was sent yet, so that what nobody took is claimed anew, paused or not."""
        while time.monotonic() >= work.send_by:
            log.warning("lease.over_before_send", session=work.session, operation=work.operation, tool=work.tool)
            taken = await self._ledger.take_over(
                work.session, work.key, gone=work.owner, lease_ms=self.lease_ms(work.tool), now=self._clock.now_ms(),
                unsent=True,
            )  # fmt: skip
            if isinstance(taken, Held | Delayed):
                return "pending"
            if not isinstance(taken, Work):
                return taken
            work = taken
        return work

    def _in_doubt(self, work: Work, outcome: Outcome) -> Outcome:
        """What came of sending again: that this send did not leave says nothing about the one before it."""
        tool = self._catalogue.tool(work.tool)
        if isinstance(outcome, Failed) and (tool is None or not is_harmless(tool)):
            return Unknown(f"sent again in vain, and it may have been sent before: {outcome.reason}")
        return outcome

    async def _met(self, work: Work, fault: Injected) -> Outcome:
        """The call with a fault on purpose. What its caller hears of it is another thing: see `_record`."""
        self._metrics.injected(work.tool, fault.mode)
        match fault.mode:
            case "timeout_before_commit" | "error":
                return Failed(f"{INJECTED}: {fault.told}: nothing was sent")
            case "timeout_after_commit":
                return await self._call(work)
            case "slow":
                return await self._call(work, late_seconds=fault.delay_seconds)
        assert_never(fault.mode)

    def _check(self, work: Work) -> None:
        """Right before each send: raises Stopped where it is paused, or where this holder's time is over already, as
        of a process that was stopped and wakes; its successor may be at work."""
        self._stops.check(work.tool, work.session, work.origin)
        if time.monotonic() >= work.send_by:
            raise Stopped("the lease was over before it was sent")

    async def _call(self, work: Work, again: bool = False, *, late_seconds: float = 0.0) -> Outcome:
        tool, connector = self._catalogue.tool(work.tool), self._connectors.get(work.tool)
        if tool is None or connector is None:
            return Failed(f"there is no tool {work.tool}")
        key = destination_key(self._namespace, work.session, work.key)
        call = Call(
            work.session, work.operation, work.tool, work.args, key, tool.connector.timeout, work.key,
            actor=actor_of(work.origin), repeat=again and tool.effect == "write",
            before_send=lambda: self._check(work),
        )  # fmt: skip
        return await called(connector, call, late_seconds=late_seconds)

    async def _record(self, work: Work, outcome: Outcome, fault: Injected | None = None) -> OperationState:
        """Record until it is recorded: an outcome that only we know must not be lost to a store that is away.

        The caller of one that met a fault hears what a caller hears then, and the ledger what became of it.
        """
        state, result, reason = _told(outcome)
        heard = _heard(fault, state)
        if heard is not None and state == "committed" and fault is not None:
            reason = f"{INJECTED}: {fault.told}: {ANSWER_LOST}"
        now = self._clock.now_ms()
        reason, messages = self._answers.outcome(work, state, result, reason, now, heard=heard)
        tool = self._catalogue.tool(work.tool)
        asked = tool is not None and tool.lookup is not None
        while True:
            try:
                stands = await self._ledger.record(work, state, result, reason, messages, now, asked=asked)
                break
            except StoreAway:
                await self._store_back()
        if stands is not None:
            log.warning("operation.fenced", session=work.session, operation=work.operation, ours=state, stands=stands)
            return stands
        if heard is None:  # what was injected is counted apart
            self._metrics.count(work.tool, state)
        # The runtime writes one line a message; only what somebody should look at gets another.
        if state == "unknown" or work.context.lab:
            log.warning(
                "operation.finished", session=work.session, operation=work.operation, tool=work.tool, state=state,
                reason=reason,
            )  # fmt: skip
        return state


def _told(outcome: Outcome) -> tuple[OperationState, JSON, str]:
    match outcome:
        case Committed(result):
            return "committed", result, ""
        case Refused(reason):
            return "refused", None, reason
        case Failed(reason):
            return "failed", None, reason
        case Unknown(reason):
            return "unknown", None, reason


def _heard(fault: Injected | None, state: OperationState) -> tuple[OperationState, str] | None:
    """State and reason for the caller of an operation that met a fault; None where it hears the outcome itself.

    Both time-outs sound alike, as a caller cannot tell them apart either. A refusal of the world stays one.
    """
    match fault.mode if fault is not None else None:
        case "timeout_before_commit":
            return "unknown", TIMEOUT
        case "timeout_after_commit" if state == "committed":
            return "unknown", TIMEOUT
        case "error":
            return "failed", ERROR
        case _:
            return None

"""One coroutine per message that the door accepts: authority → tool → arguments → permission → identity → one script
(known key, bindings, grant, claim) → run → record → answer."""

from dataclasses import replace
from typing import Literal, assert_never

import structlog

from libs.contracts.canonical import JSON
from libs.contracts.door import check_of
from libs.contracts.errors import PermanentError
from libs.contracts.ids import is_slug
from libs.contracts.origin import SealKeys
from libs.contracts.reasons import OperationState
from libs.contracts.tools import LookUpOperation, RunStep, WithdrawOperation
from libs.runtime.consumer import Context
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome
from services.tools import evidence
from services.tools.answers import Answers
from services.tools.conditions import ENDED, Cleared, Conditions, HeldBack
from services.tools.domain import (
    SEAL_AGE_MS,
    Admitted,
    Catalogue,
    Found,
    Nothing,
    Rejection,
    Said,
    Silent,
    admit,
    after_holder,
)
from services.tools.execution import Executor
from services.tools.late import REASON, LateCalls
from services.tools.lookups import Reconciler, subject_of
from services.tools.metrics import ToolMetrics
from services.tools.pauses import shown
from services.tools.ports import Held, Known, Ledger, Parking, Paused, Stopped, Told, Turned, Work

log = structlog.get_logger(__name__)

FORGOTTEN = "the store was set back since this was called for, and it may have been done before"
PAUSED = "paused"


class ToolHandlers:
    """The door's handlers. `everybody_is_user` is the lab switch `authority_by_role`, `late` the switch `late_call`."""

    def __init__(
        self,
        catalogue: Catalogue,
        ledger: Ledger,
        executor: Executor,
        answers: Answers,
        reconciler: Reconciler,
        metrics: ToolMetrics,
        keys: SealKeys,
        conditions: Conditions,
        *,
        everybody_is_user: bool = False,
        late: LateCalls | None = None,
        parking: Parking | None = None,
    ) -> None:
        self._parking = parking
        self._catalogue = catalogue
        self._ledger = ledger
        self._executor = executor
        self._answers = answers
        self._reconciler = reconciler
        self._metrics = metrics
        self._keys = keys
        self._conditions = conditions
        self._everybody_is_user = everybody_is_user
        self._late = late

    async def on_run_step(self, call: RunStep, ctx: Context) -> Outcome:
        """Do one step, once, if its turn may."""
        if not is_slug(call.key):
            raise PermanentError("bad_key", "an operation's key has letters, digits, - and _ only")
        session = ctx.envelope.session
        if self._late is not None and self._late.keeps(call, ctx):
            return Outcome.IN_PROGRESS
        step = await self._judge(call, session)
        if isinstance(step, Rejection):
            return await self._turn_away(call, ctx, Turned("refused", step.reason, step.code))
        while True:
            try:
                return await self._under_conditions(call, step, ctx)
            except Stopped as stopped:  # what it relies on may not be read now
                if self._parking is None:
                    raise
                reads = replace(step, tool=stopped.tool)
                kept = await self._keep(self._parking, call, reads, ctx, stopped.reason)
                if kept is not None:
                    return await self._tell(call, step, kept, ctx, _told(ctx))
                await self._parking.look()

    async def _under_conditions(self, call: RunStep, step: Admitted, ctx: Context) -> Outcome:
        session, told = ctx.envelope.session, _told(ctx, lab=step.lab, observed=step.observed)
        cleared = await self._conditions.clear(call, step, session, told)
        if isinstance(cleared, HeldBack):
            if await self._hold_back(call, step, ctx, cleared):
                return Outcome.REFUSED
            cleared = Cleared(replace(step, not_after=0), told)  # its key is known: what is known is told
        return await self._claimed(call, step, cleared, ctx)

    async def _claimed(self, call: RunStep, step: Admitted, cleared: Cleared, ctx: Context) -> Outcome:
        """Claim the key and run the step, or tell what is known of it; then what became of its use."""
        session = ctx.envelope.session
        found = await self._claim(call, cleared, ctx)
        if cleared.use and isinstance(found, Turned) and found.state == "expired" and ctx.now <= step.not_after:
            # The approval is over, the call is not: its owner is asked.
            held_back = await self._conditions.ask_instead(call, step, session, ENDED)
            if await self._hold_back(call, step, ctx, held_back):
                await self._conditions.void(cleared.use, call, session)
                return Outcome.REFUSED
            found = await self._claim(call, cleared, ctx)
        state: OperationState | None = None
        if isinstance(found, Work):
            ran = await self._run(found, call, cleared.step, ctx)
            found, state = (ran, None) if isinstance(ran, Paused) else (found, ran)
        outcome = await self._tell(call, step, found, ctx, cleared.told)
        if isinstance(found, Known | Turned):
            state = found.state
        await self._conditions.settle(cleared, call, session, found, state)
        return outcome

    async def _claim(self, call: RunStep, cleared: Cleared, ctx: Context) -> Work | Held | Known | Turned | Paused:
        session, step, told = ctx.envelope.session, cleared.step, cleared.told
        lease = self._executor.lease_ms(step.tool)
        found = await self._claim_once(call, step, told, lease, ctx)
        if isinstance(found, Held) and self._is_gone(found):
            await self._executor.take_over(session, call.key, tool=step.tool, gone=found.owner)
            found = await self._claim_once(call, step, told, lease, ctx)
        return found

    async def _claim_once(
        self, call: RunStep, step: Admitted, told: Told, lease: int, ctx: Context
    ) -> Work | Held | Known | Turned | Paused:
        """Claim the key. What is paused is kept until it may go on; if that is by now, it is claimed again."""
        while True:
            found = await self._ledger.claim(call, step, ctx.envelope.session, told, lease_ms=lease, now=ctx.now)
            if not isinstance(found, Paused) or self._parking is None:
                return found
            kept = await self._keep(self._parking, call, step, ctx, f"{PAUSED}: {shown(found.pause)}")
            if kept is not None:
                return kept

    async def _keep(
        self, parking: Parking, call: RunStep, step: Admitted, ctx: Context, reason: str
    ) -> Paused | Turned | None:
        """Keep a call until what the step's tool is paused by ends. None where it has ended by now."""
        match await parking.park(
            ctx.composer.again(ctx.envelope, call), step, ctx.envelope.session, self._waits(call, step, ctx, reason),
            ctx.now,
        ):  # fmt: skip
            case "parked":
                log.info("step.waits", operation=call.operation, reason=reason)
                return Paused(reason)
            case "full":
                return Turned("failed", f"{reason}, and too many calls wait already")
            case "go":
                return None

    async def _run(self, work: Work, call: RunStep, step: Admitted, ctx: Context) -> OperationState | Paused:
        """Run what was claimed. What is stopped before anything was sent is kept, as if it had come while paused."""
        if self._may_be_forgotten(work, ctx):
            return await self._executor.leave_unknown(work, FORGOTTEN)
        parking = self._parking
        try:
            return await self._executor.run(work)
        except Stopped as stopped:
            if parking is None:
                raise
            held = stopped.held or work
            if not await parking.stops(held):  # it was resumed, and we had not heard of it
                return await self._run(held, call, step, ctx)
            log.info("operation.stopped", session=work.session, operation=work.operation, reason=stopped.reason)
            messages = self._waits(call, step, ctx, stopped.reason)
            await parking.release(held, ctx.composer.again(ctx.envelope, call), step, messages, ctx.now)
            return Paused(stopped.reason)

    def _waits(self, call: RunStep, step: Admitted, ctx: Context, reason: str) -> list[Outgoing]:
        """The word that a call waits, to its session and to applications."""
        self._metrics.count(step.tool, "in_progress")
        return self._answers.waits(
            call.operation, call.key, step.tool, ctx.envelope.session, reason, _told(ctx), ctx.now
        )

    async def _tell(
        self, call: RunStep, step: Admitted, found: Work | Held | Known | Turned | Paused, ctx: Context, told: Told
    ) -> Outcome:
        match found:
            case Work():
                return Outcome.HANDLED
            case Held():
                return await self._held(call, step.tool, ctx, found)
            case Known():
                return await self._tell_known(call, ctx, found, told)
            case Turned():
                return await self._turn_away(call, ctx, found)
            case Paused():
                return Outcome.IN_PROGRESS
        assert_never(found)

    async def _hold_back(self, call: RunStep, step: Admitted, ctx: Context, held: HeldBack) -> bool:
        """Close the key and say why nothing is sent. False where the key is known already, and nothing changed."""
        session, told = ctx.envelope.session, _told(ctx)
        messages = self._answers.held_back(
            call.operation, call.key, step.tool, session, held.state, held.result, held.reason, told, ctx.now
        )
        closed = await self._ledger.close(
            call, step, session, told, held.state, held.result, held.reason, messages, ctx.now
        )
        if closed:
            self._metrics.count(step.tool, held.state)
            log.info("step.held_back", operation=call.operation, state=held.state, reason=held.reason)
        return closed

    async def on_withdraw_operation(self, wish: WithdrawOperation, ctx: Context) -> Outcome:
        """Make sure that an operation that is not claimed never runs; tell what is known of one that is."""
        if not is_slug(wish.key):
            raise PermanentError("bad_key", "an operation's key has letters, digits, - and _ only")
        session, told = ctx.envelope.session, _told(ctx)
        reason = "" if self._late is None else REASON
        answer = self._answers.turned(wish.operation, wish.key, session, "withdrawn", reason, told, ctx.now)
        # No call counts for longer than its seals, so no tombstone need.
        until = min(wish.not_after, ctx.now + SEAL_AGE_MS)
        known = await self._ledger.withdraw(session, wish.key, wish.operation, until, told.call, [answer], ctx.now)
        if self._late is not None:
            await self._late.withdrawn(session, wish.key, self.on_run_step)
        if known is None:
            self._metrics.count("", "withdrawn")
            return Outcome.HANDLED
        # What is in flight is found out: its holder, or whoever takes over, will tell.
        running = known.state == "pending"
        self._metrics.count(known.tool, "in_progress" if running else "replayed")
        if running:
            answer = self._answers.turned(wish.operation, wish.key, session, "in_progress", "", told, ctx.now)
        else:
            answer = self._answers.known(wish.operation, wish.key, session, known, told, ctx.now)
        await self._ledger.answer(session, [answer], ctx.now)
        return Outcome.IN_PROGRESS if running else Outcome.REPEATED

    async def on_look_up_operation(self, wish: LookUpOperation, ctx: Context) -> Outcome:
        """Ask the destination whether a committed operation's effect stands, or what became of an unknown one, which
        is told by itself too. What has no effect, or cannot be asked about, is answered `unknown`."""
        if not is_slug(wish.key):
            raise PermanentError("bad_key", "an operation's key has letters, digits, - and _ only")
        session = ctx.envelope.session
        fields = await self._ledger.read(session, wish.key)
        subject = subject_of(session, wish.key, fields)
        said: Said | None = None
        if fields.get("state") == "unknown":
            said = await self._reconciler.reconcile(session, wish.key, at_once=True)
            said = said if isinstance(said, Found) else None  # "none" may only mean not yet
        elif fields.get("state") == "committed" and subject is not None:
            said = await self._reconciler.ask(subject)
        found, result = _standing(said)
        answer = self._answers.looked_up(wish, session, found, result, _told(ctx), ctx.now)
        await self._ledger.answer(session, [answer], ctx.now)
        return Outcome.HANDLED

    async def _judge(self, call: RunStep, session: str) -> Admitted | Rejection:
        action = await self._ledger.action(session, call.action) if call.action else None
        named = {call.tool, *(step.tool for step in action.steps)} if action else {call.tool}
        wanted = any(self._catalogue.wants_owner(tool) for tool in named)
        return admit(
            call,
            session,
            self._catalogue,
            self._keys,
            action=action,
            owner=await self._ledger.owner(session) if wanted else "",
            everybody_is_user=self._everybody_is_user,
        )

    async def _turn_away(self, call: RunStep, ctx: Context, turned: Turned) -> Outcome:
        session, told = ctx.envelope.session, _told(ctx)
        answer = self._answers.turned(
            call.operation, call.key, session, turned.state, turned.reason, told, ctx.now, code=turned.code
        )  # fmt: skip
        line = evidence.turned_away(call, turned.state, turned.reason, told)
        await self._ledger.answer(session, [answer], ctx.now, line)
        self._metrics.count(call.tool, turned.state)
        _log_turned_away(call, turned.code, turned.reason)
        return Outcome.REFUSED

    async def _tell_known(self, call: RunStep, ctx: Context, known: Known, told: Told) -> Outcome:
        session = ctx.envelope.session
        answer = self._answers.known(call.operation, call.key, session, known, told, ctx.now)
        await self._ledger.answer(session, [answer], ctx.now)
        self._metrics.count(known.tool or call.tool, "withdrawn" if known.state == "withdrawn" else "replayed")
        if known.state == "withdrawn":
            _log_turned_away(call, "withdrawn", known.reason)
        return Outcome.REPEATED

    def _may_be_forgotten(self, work: Work, ctx: Context) -> bool:
        """Whether an absent key may be one that was lost: its call is of an earlier epoch of the store, which has lost
        what it had acknowledged since (design §5), and to do it twice would be harm."""
        sent_in = ctx.envelope.epoch
        older = 0 < sent_in < ctx.composer.epoch  # 0: not said
        tool = self._catalogue.tool(work.tool)
        return older and work.attempt == 1 and after_holder(tool, ctx.envelope.at, work.now) != "send"

    def _is_gone(self, held: Held) -> bool:
        """Whether it is safe to go on in a holder's place: its lease is over, or it is this replica's own past.

        Were it alive after all, a keyed destination would still act once, and anything else is not sent again.
        """
        return self._ledger.is_former_self(held.owner) or held.lease_until <= held.now

    async def _held(self, call: RunStep, tool: str, ctx: Context, held: Held) -> Outcome:
        session, told = ctx.envelope.session, _told(ctx)
        self._metrics.count(tool, "in_progress")
        _log_turned_away(call, "in_progress", "")
        if held.call != told.call:  # its holder, or whoever takes over, answers the very call that claimed
            answer = self._answers.turned(
                call.operation, call.key, session, "in_progress", "", told, ctx.now, code="in_progress"
            )  # fmt: skip
            await self._ledger.answer(session, [answer], ctx.now)
        return Outcome.IN_PROGRESS


def _log_turned_away(call: RunStep, code: str, reason: str) -> None:
    """The one line of a call that was not run. A session service does not send seals that are wrong: then it is
    broken, or somebody else's."""
    check = check_of(code)
    tell = log.warning if check.stage == "seals" else log.info
    tell(
        "step.turned_away", operation=call.operation, check=check.stage, code=code, state=check.state,
        status=check.status, reason=reason,
    )  # fmt: skip


def _standing(said: Said | None) -> tuple[Literal["stands", "gone", "unknown"], JSON]:
    match said:
        case Found(result, stands):
            return "stands" if stands else "gone", result
        case Nothing():
            return "gone", None
        case Silent() | None:
            return "unknown", None
    assert_never(said)


def _told(ctx: Context, *, lab: bool = False, observed: bool = False) -> Told:
    envelope = ctx.envelope
    return Told(envelope.id, envelope.correlation or envelope.id, envelope.depth, envelope.trace, lab, observed)

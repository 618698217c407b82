"""One coroutine per message that the door accepts: authority → tool → arguments → permission → identity → one script
(known key, bindings, grant, claim) → run → record → answer."""

from typing import Literal, assert_never

import structlog

from libs.contracts.canonical import JSON
from libs.contracts.errors import PermanentError
from libs.contracts.ids import is_slug
from libs.contracts.origin import SealKeys
from libs.contracts.tools import LookUpOperation, RunStep, WithdrawOperation
from libs.runtime.consumer import Context
from libs.runtime.settle import Outcome
from services.tools import evidence
from services.tools.answers import Answers
from services.tools.domain import Admitted, Catalogue, Found, Nothing, Rejection, Said, Silent, admit
from services.tools.execution import Executor
from services.tools.late import REASON, LateCalls
from services.tools.lookups import Reconciler, subject_of
from services.tools.metrics import ToolMetrics
from services.tools.ports import Held, Known, Ledger, Told, Turned, Work

log = structlog.get_logger(__name__)


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
        *,
        everybody_is_user: bool = False,
        late: LateCalls | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._ledger = ledger
        self._executor = executor
        self._answers = answers
        self._reconciler = reconciler
        self._metrics = metrics
        self._keys = keys
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
            return await self._turn_away(call, ctx, Turned("refused", step.reason))
        told = _told(ctx, lab=step.lab, observed=step.observed)
        lease = self._executor.lease_ms(step.tool)
        found = await self._ledger.claim(call, step, session, told, lease_ms=lease, now=ctx.now)
        if isinstance(found, Held) and self._is_gone(found):
            await self._executor.take_over(session, call.key, tool=step.tool, gone=found.owner)
            found = await self._ledger.claim(call, step, session, told, lease_ms=lease, now=ctx.now)
        match found:
            case Work():
                await self._executor.run(found)
                return Outcome.HANDLED
            case Held():
                return await self._held(call, step.tool, ctx, found)
            case Known():
                return await self._tell_known(call, ctx, found)
            case Turned():
                return await self._turn_away(call, ctx, found)
        assert_never(found)

    async def on_withdraw_operation(self, wish: WithdrawOperation, ctx: Context) -> Outcome:
        """Make sure that an operation that is not claimed never runs; tell what is known of one that is."""
        if not is_slug(wish.key):
            raise PermanentError("bad_key", "an operation's key has letters, digits, - and _ only")
        session, told = ctx.envelope.session, _told(ctx)
        reason = "" if self._late is None else REASON
        answer = self._answers.turned(wish.operation, wish.key, session, "withdrawn", reason, told, ctx.now)
        known = await self._ledger.withdraw(
            session, wish.key, wish.operation, wish.not_after, told.call, [answer], ctx.now
        )
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
        answer = self._answers.turned(call.operation, call.key, session, turned.state, turned.reason, told, ctx.now)
        line = evidence.turned_away(call, turned.state, turned.reason, told)
        await self._ledger.answer(session, [answer], ctx.now, line)
        self._metrics.count(call.tool, turned.state)
        log.info("step.turned_away", operation=call.operation, state=turned.state, reason=turned.reason)
        return Outcome.REFUSED

    async def _tell_known(self, call: RunStep, ctx: Context, known: Known) -> Outcome:
        session, told = ctx.envelope.session, _told(ctx)
        answer = self._answers.known(call.operation, call.key, session, known, told, ctx.now)
        await self._ledger.answer(session, [answer], ctx.now)
        self._metrics.count(known.tool or call.tool, "withdrawn" if known.state == "withdrawn" else "replayed")
        return Outcome.REPEATED

    def _is_gone(self, held: Held) -> bool:
        """Whether it is safe to go on in a holder's place: its lease is over, or it is this replica's own past.

        Were it alive after all, a keyed destination would still act once, and anything else is not sent again.
        """
        return self._ledger.is_former_self(held.owner) or held.lease_until <= held.now

    async def _held(self, call: RunStep, tool: str, ctx: Context, held: Held) -> Outcome:
        session, told = ctx.envelope.session, _told(ctx)
        self._metrics.count(tool, "in_progress")
        if held.call != told.call:  # its holder, or whoever takes over, answers the very call that claimed
            answer = self._answers.turned(call.operation, call.key, session, "in_progress", "", told, ctx.now)
            await self._ledger.answer(session, [answer], ctx.now)
        return Outcome.IN_PROGRESS


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

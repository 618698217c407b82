"""One public coroutine per message accepted. Load, decide, plan where the decision wants it, commit."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from libs.contracts.consent import ActionAsked, ActionClosed, ActionNotAsked, DecisionRefused
from libs.contracts.envelope import Message
from libs.contracts.errors import LostOwnership, PermanentError, TransientError
from libs.contracts.ingress import Input, InputAccepted, TimerSkipped
from libs.contracts.session import PlanMade
from libs.contracts.tools import LookedUp, StepFinished
from libs.runtime.clock import Clock
from libs.runtime.composer import Composer
from libs.runtime.consumer import Context
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome
from services.session.domain import (
    Answered,
    Arrived,
    Buried,
    DeadlineReached,
    Planned,
    Queued,
    Shown,
    Stimulus,
    Told,
    decide,
)
from services.session.domain.draft import Decision, Send, WantInput, WantPlan
from services.session.domain.memory import entry_of
from services.session.domain.plan import Added, Plan, Running, View, view_json
from services.session.domain.rules import Rules
from services.session.domain.state import InputRef, Turn
from services.session.metrics import SessionMetrics
from services.session.ports import Planner, Sessions
from services.session.snapshot import Snapshot

log = structlog.get_logger(__name__)

MOST_MISSING = 10_000
"""Numbers that one doorbell may make us read from the inbox: far more than ever wait for their doorbells."""


class Handlers:
    """The stories of the session service."""

    def __init__(
        self,
        sessions: Sessions,
        planner: Planner,
        rules: Rules,
        composer: Composer,
        clock: Clock,
        metrics: SessionMetrics,
    ) -> None:
        self._sessions = sessions
        self._planner = planner
        self._rules = rules
        self._composer = composer
        self._clock = clock
        self._metrics = metrics

    async def on_input(self, message: InputAccepted, ctx: Context) -> Outcome:
        """Fold one input into its session. The doorbell may be late, early or repeated; numbers give the order."""
        number = message.input.number
        snapshot = await self._sessions.load(message.input.session)
        if number <= snapshot.state.applied:
            await self._sessions.confirm(snapshot)
            return Outcome.REPEATED
        for input in await self._missing(snapshot, message.input):
            await self._apply(snapshot, Arrived(input), input)
        return Outcome.HANDLED

    async def _missing(self, snapshot: Snapshot, rung: Input) -> Sequence[Input]:
        """The inputs from the next number up to the one that rang; gaps are read from the inbox."""
        first = snapshot.state.applied + 1
        if rung.number == first:
            return [rung]
        # Numbers that are gone from the inbox were folded in by another owner, if our state is an old one.
        await self._sessions.confirm(snapshot)
        if rung.number - first > MOST_MISSING:
            raise PermanentError("inbox_gap", f"number {rung.number} is too far ahead of {first}")
        inputs = await self._sessions.inputs(snapshot.state.session, first, rung.number)
        if [input.number for input in inputs] != list(range(first, rung.number + 1)):
            raise PermanentError("inbox_gap", f"numbers {first} to {rung.number} are not all in the inbox")
        return inputs

    async def on_step_finished(self, message: StepFinished, ctx: Context) -> Outcome:
        """Fold in what the ledger says of an operation."""
        return await self._tell(message, ctx)

    async def on_news(self, message: LookedUp | TimerSkipped, ctx: Context) -> Outcome:
        """Fold in what a destination says of a subject, or what ingress says of a timer."""
        return await self._tell(message, ctx)

    async def on_told(self, message: Told, ctx: Context) -> Outcome:
        """Fold in consent's news of a question."""
        return await self._tell(message, ctx)

    async def on_plan_made(self, message: PlanMade, ctx: Context) -> Outcome:
        """Fold in the plan of a planner off the partition. One that is not waited for changes nothing; of a session
        that does not exist it leaves nothing behind, since a planner is trusted with its answers alone (§4.3)."""
        session = ctx.envelope.session
        snapshot = await self._sessions.load(session)
        if snapshot.version == 0:
            await self._sessions.confirm(snapshot)
            self._sessions.drop(session)
            self._metrics.plans_ignored.labels("no_session").inc()
            log.warning("plan.ignored", session=session, turn=message.turn, reason="no_session")
            return Outcome.REFUSED
        wanted = [want for want in snapshot.state.wanted if (want.turn, want.plan) == (message.turn, message.plan)]
        about = await self._body(snapshot, wanted[0].about) if wanted and wanted[0].about else None
        return await self._apply(snapshot, Answered(message, about), ctx.envelope)

    async def _tell(self, message: StepFinished | LookedUp | TimerSkipped | Told, ctx: Context) -> Outcome:
        snapshot = await self._sessions.load(ctx.envelope.session)
        return await self._apply(snapshot, message, ctx.envelope)

    async def on_dead(self, message: Message, ctx: Context, reason: str) -> bool:
        """An input that cannot be handled is passed over, visibly, so that its session goes on."""
        if not isinstance(message, InputAccepted):
            return False
        snapshot = await self._sessions.load(message.input.session)
        rung = message.input
        if rung.number - snapshot.state.applied > MOST_MISSING:
            return False  # nothing says that the numbers before it have failed
        while (number := snapshot.state.applied + 1) <= rung.number:
            # What failed is the next number, which the doorbell of a later one may have read from the inbox.
            failed = rung if number == rung.number else await self._next(snapshot, number)
            await self._apply(snapshot, Buried(failed, reason), failed)
            await self._rest(snapshot, rung)
        return True

    async def _next(self, snapshot: Snapshot, number: int) -> Input:
        found = await self._sessions.inputs(snapshot.state.session, number, number)
        if not found:
            await self._sessions.confirm(snapshot)
            raise PermanentError("inbox_gap", f"number {number} is not in the inbox")
        return found[0]

    async def _rest(self, snapshot: Snapshot, rung: Input) -> None:
        """Apply what follows a buried input, up to the one that rang; stop before the next that fails."""
        try:
            if snapshot.state.applied < rung.number:
                for input in await self._missing(snapshot, rung):
                    await self._apply(snapshot, Arrived(input), input)
        except (TransientError, LostOwnership):
            raise
        except Exception as error:
            log.warning("input.failed", session=rung.session, error=type(error).__name__)

    async def on_deadline(self, session: str) -> None:
        """A durable deadline of a session is reached."""
        self._sessions.drop(session)  # any replica may sweep; the version check decides
        snapshot = await self._sessions.load(session)
        await self._apply(snapshot, DeadlineReached(), None)

    async def again(self, snapshot: Snapshot, stimulus: Stimulus, cause: object) -> Outcome:
        """Apply a stimulus of the record, for a replay: `cause` has its recorded `id`."""
        return await self._apply(snapshot, stimulus, cause)

    async def _apply(self, snapshot: Snapshot, stimulus: Stimulus, cause: object) -> Outcome:
        """Decide, answer what the decision wants, commit all of it at once."""
        now = self._clock.now_ms()
        before = snapshot.state
        cause_id = getattr(cause, "id", "")
        if isinstance(stimulus, Arrived | Queued):
            snapshot.bodies[stimulus.input.number] = stimulus.input
        decision = decide(before, stimulus, now, self._rules, cause_id)
        while decision.want is not None:
            decision = await self._answer(snapshot, decision, now, cause_id)
        if decision.state is before:
            await self._sessions.confirm(snapshot)
            self._ignored(before.session, decision)
            return Outcome.REPEATED
        sends = [self._compose(snapshot, send, cause, now) for send in decision.sends]
        await self._sessions.commit(snapshot, decision, sends)
        self._metrics.committed(decision)
        for limit in decision.limits:
            log.warning("limit.reached", session=before.session, limit=limit)
        self._ignored(before.session, decision)
        return Outcome.HANDLED

    def _ignored(self, session: str, decision: Decision) -> None:
        """Plans that nobody waits for: most of them are in no timeline, so they are counted and logged."""
        for reason in decision.ignored:
            self._metrics.plans_ignored.labels(reason).inc()
            log.warning("plan.ignored", session=session, reason=reason)

    async def _answer(self, snapshot: Snapshot, decision: Decision, now: int, cause: str) -> Decision:
        match decision.want:
            case WantInput(number):
                body = await self._body(snapshot, number)
                if body is None:
                    await self._sessions.confirm(snapshot)
                    raise PermanentError("inbox_gap", f"queued input {number} is not in the inbox")
                later = decide(decision.state, Queued(body), now, self._rules, cause)
            case WantPlan():
                later = decide(decision.state, await self._plan(snapshot, decision), now, self._rules, cause)
            case None:
                return decision
        return replace(decision, want=None).then(later)

    async def _body(self, snapshot: Snapshot, number: int) -> Input | None:
        """An input's body: at hand, else from the inbox; None once its turn had ended."""
        if number not in snapshot.bodies:
            for input in await self._sessions.inputs(snapshot.state.session, number, number):
                snapshot.bodies[number] = input
        return snapshot.bodies.get(number)

    async def _plan(self, snapshot: Snapshot, decision: Decision) -> Planned | Shown:
        """The planner's answer; from a planner that may be slow, what it is to be shown."""
        want, turn = decision.want, decision.state.turn
        if not isinstance(want, WantPlan) or turn is None:
            raise AssertionError("a plan is wanted for no turn")
        about = await self._body(snapshot, want.about) if want.about else None
        if want.about and about is None:
            await self._sessions.confirm(snapshot)
            raise PermanentError("inbox_gap", f"input {want.about} in question is not in the inbox")
        view = await self._view(snapshot, decision, turn, about)
        if self._rules.slow_planner:
            return Shown(view_json(view, self._rules.application), want.about)
        try:
            return Planned(await self._planner.plan(view), about)
        except Exception as error:
            log.exception("planner.failed", session=view.session, turn=turn.id)
            return Planned(Plan(fault=f"the planner failed ({type(error).__name__})"), about)

    async def _view(self, snapshot: Snapshot, decision: Decision, turn: Turn, about: Input | None) -> View:
        """What the planner is shown: of its turn, or of an input that came while the turn runs."""
        body = await self._body(snapshot, turn.input.number)
        data = body.data if body else None
        view = View(
            session=decision.state.session,
            turn=turn.id,
            input=turn.input,
            data=data,
            results=turn.results,
            action=turn.action,
            asked=turn.asker.input if turn.asker else None,
            failing=turn.failing,
            history=(*snapshot.history, *decision.history),
            added=tuple([await self._added(snapshot, joined.input, joined.relation) for joined in turn.joined]),
            done=turn.kept,
        )
        if about is None:
            return view
        answer = turn.pausing.answer if turn.pausing else None
        return replace(
            view,
            input=InputRef.of(about),
            data=about.data,
            results=(),
            failing="",
            history=(*view.history, entry_of(about)),
            running=Running(turn.input, data, turn.results, turn.steps[turn.position :]),
            answer=await self._added(snapshot, answer) if answer else None,
        )

    async def _added(self, snapshot: Snapshot, ref: InputRef, relation: str = "") -> Added:
        body = await self._body(snapshot, ref.number)
        return Added(ref, body.data if body else None, relation)

    def _compose(self, snapshot: Snapshot, send: Send, cause: object, now: int) -> Outgoing:
        """A turn's messages carry its own input's correlation: a queued turn begins at another's result."""
        cause_id = getattr(cause, "id", "")
        about = send.of or cause
        return self._composer.compose(
            send.message,
            session=snapshot.state.session,
            id_parts=send.id_parts,
            cause=cause_id,
            correlation=send.of.id if send.of else getattr(cause, "correlation", "") or cause_id,
            depth=getattr(about, "depth", 0),
            trace=getattr(about, "trace", ""),
            now=now,
        )


HANDLED = (ActionAsked, ActionNotAsked, ActionClosed, DecisionRefused)
"""Consent's news, all folded in by `on_told`."""

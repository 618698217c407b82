"""What consent does with each message that it accepts."""

from collections.abc import Awaitable, Callable

from libs.contracts.canonical import JSON
from libs.contracts.consent import (
    ActionAsked,
    ActionClosed,
    ActionNotAsked,
    CancelAction,
    DecideByText,
    IssueAction,
    SupersedeActions,
)
from libs.contracts.errors import PermanentError, StoreAway
from libs.contracts.session import Notice
from libs.runtime.consumer import Context
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome
from services.consent import domain
from services.consent.decisions import Decisions, Wish
from services.consent.domain import Asking, Refusal, Rules
from services.consent.metrics import ConsentMetrics
from services.consent.ports import Actions, ClosedAs, Issue, Place

TOO_MANY = "too many open questions"
"""As `issue_action.lua` says it."""


class Attempts:
    """A nonce for each attempt, kept while its outcome is unknown: so a script knows its own lost reply again, and
    what is a replay is told from what happened just now, and counted once."""

    def __init__(self, nonce: Callable[[], str]) -> None:
        self._nonce = nonce
        self._unknown: dict[str, str] = {}

    def begin(self, id: str) -> str:
        """The nonce of the attempt whose outcome is still unknown, or a new one."""
        return self._unknown.setdefault(id, self._nonce())

    def end(self, id: str) -> None:
        """Its outcome is known."""
        self._unknown.pop(id, None)


class ConsentHandlers:
    """One coroutine for each message. They settle nothing."""

    def __init__(
        self, actions: Actions, decisions: Decisions, rules: Rules, metrics: ConsentMetrics, nonce: Callable[[], str]
    ) -> None:
        self._actions = actions
        self._decisions = decisions
        self._rules = rules
        self._metrics = metrics
        self._attempts = Attempts(nonce)

    async def on_issue_action(self, message: IssueAction, ctx: Context) -> Outcome:
        """Ask the session's owner, or tell the session why not."""
        return await self._attempted(ctx, lambda nonce: self._issue(message, ctx, nonce))

    async def on_cancel_action(self, message: CancelAction, ctx: Context) -> Outcome:
        """Close a question that the asking turn no longer wants, as superseded where the reason begins so."""
        return await self._attempted(ctx, lambda nonce: self._cancel(message, ctx, nonce))

    async def on_supersede_actions(self, message: SupersedeActions, ctx: Context) -> Outcome:
        """Close questions that a newer event made wrong. What was decided stays decided."""
        return await self._attempted(ctx, lambda nonce: self._supersede(message, ctx, nonce))

    async def on_decide_by_text(self, message: DecideByText, ctx: Context) -> Outcome:
        """Redeem `yes A1` or `no A1` as typed by the approver in their verified channel."""
        return await self._attempted(ctx, lambda nonce: self._by_text(message, ctx, nonce))

    async def _attempted(self, ctx: Context, work: Callable[[str], Awaitable[Outcome]]) -> Outcome:
        nonce = self._attempts.begin(ctx.envelope.id)
        try:
            outcome = await work(nonce)
        except StoreAway:
            raise
        except BaseException:
            self._attempts.end(ctx.envelope.id)
            raise
        self._attempts.end(ctx.envelope.id)
        return outcome

    async def _issue(self, message: IssueAction, ctx: Context, nonce: str) -> Outcome:
        session = ctx.envelope.session
        owner = await self._actions.owner(session)
        if owner is None:
            raise PermanentError("no_such_session")
        now = await self._actions.now()
        asking = domain.ask(self._rules, message, session, owner, now)
        issue = self._as_issue(message, asking, ctx, nonce, now)
        refused = ctx.emit(_not_asked(message.action, issue.refused_because), message.action)
        answer = await self._actions.issue(issue, _asked(issue.question, ctx), [refused])
        match answer.tag:
            case "asked":
                self._metrics.actions.labels("asked").inc()
                self._metrics.actions.labels("superseded").inc(len(answer.closed))
                return Outcome.HANDLED
            case "not_asked" | "closed":
                return Outcome.REFUSED
            case "repeated":
                return Outcome.REPEATED
            case _:
                raise PermanentError("other_content", f"{message.action} was issued with other steps")

    def _as_issue(self, message: IssueAction, asking: Asking | Refusal, ctx: Context, nonce: str, now: int) -> Issue:
        asked = asking if isinstance(asking, Asking) else None
        return Issue(
            session=ctx.envelope.session,
            action=message.action,
            fingerprint=domain.fingerprint(message),
            attempt=nonce,
            now=now,
            source=asked.source if asked else "",
            cap=self._rules.open_questions,
            question=asked,
            refused_because=asking.reason if isinstance(asking, Refusal) else "",
            depth=ctx.envelope.depth,
            trace=ctx.envelope.trace,
            correlation=ctx.envelope.correlation,
            places=tuple(
                _place(name, message.action, ctx)
                for name in dict.fromkeys(message.supersedes)
                if name != message.action
            ),
        )

    async def _cancel(self, message: CancelAction, ctx: Context, nonce: str) -> Outcome:
        state: ClosedAs = "superseded" if message.reason.startswith("superseded") else "cancelled"
        closed = ctx.emit(
            ActionClosed(action=message.action, state=state, reason=message.reason), message.action, state
        )
        answer = await self._actions.close(
            ctx.envelope.session, message.action, state, attempt=nonce, reason=message.reason, messages=[closed]
        )
        match answer.tag:
            case "closed":
                self._metrics.actions.labels(state).inc()
                return Outcome.HANDLED
            case "withdrawn":
                return Outcome.HANDLED
            case "repeated":
                return Outcome.REPEATED
            case _:
                return Outcome.REFUSED

    async def _supersede(self, message: SupersedeActions, ctx: Context, nonce: str) -> Outcome:
        tags = []
        for action in dict.fromkeys(message.actions):
            closed = ActionClosed(action=action, state="superseded", reason=message.reason)
            answer = await self._actions.close(
                ctx.envelope.session,
                action,
                "superseded",
                attempt=nonce,
                reason=message.reason,
                messages=[ctx.emit(closed, action, "superseded")],
            )
            tags.append(answer.tag)
        # Counted when all are known: an attempt that is made again closes some of them again.
        self._metrics.actions.labels("superseded").inc(tags.count("closed"))
        if "closed" in tags or "withdrawn" in tags:
            return Outcome.HANDLED
        return Outcome.REPEATED if "repeated" in tags else Outcome.REFUSED

    async def _by_text(self, message: DecideByText, ctx: Context, nonce: str) -> Outcome:
        if fault := domain.text_fault(self._rules.keys, message, ctx.envelope.session):
            raise PermanentError(fault, "this is not what a user of this session typed")
        read = domain.read_decision(message.text)
        if read is None:
            raise PermanentError("not_a_decision", "a decision by text is `yes A1` or `no A1`, exactly")
        verdict, action = read
        seal = message.seal
        wish = Wish(
            session=seal.session,
            action=action,
            verdict=verdict,
            origin=seal.origin,
            question_digest=None,
            carrier=seal.input,
            nonce=nonce,
            text=message.text,
            typed=seal.number,
        )
        decided = await self._decisions.decide(wish, lambda _: ctx.emit)
        if decided.replay:
            return Outcome.REPEATED
        return Outcome.HANDLED if decided.receipt else Outcome.REFUSED


def _not_asked(action: str, because: str) -> ActionNotAsked:
    """The refusal; what is wrong with no question is refused only where its source has too many open ones."""
    if because:
        return ActionNotAsked(action=action, reason=because)
    return ActionNotAsked(action=action, reason=TOO_MANY, limit="open_questions")


def _place(action: str, successor: str, ctx: Context) -> Place:
    """What is told of a question that another takes the place of, either way."""
    reason, stands = f"superseded by {successor}", f"{action} was accepted meanwhile"
    closed = ActionClosed(action=action, state="superseded", reason=reason)
    refused = ActionNotAsked(action=successor, reason=stands)
    return Place(action, reason, stands, ctx.emit(closed, action, "superseded"), ctx.emit(refused, successor))


def _asked(asking: Asking | None, ctx: Context) -> list[Outgoing]:
    """The question, to the session and to the applications of its owner."""
    if asking is None:
        return []
    asked = ActionAsked(
        action=asking.action,
        question=asking.question,
        question_digest=asking.question_digest,
        approver=asking.approver,
        expires_at=asking.expires_at,
    )
    card: dict[str, JSON] = {
        "action": asking.action,
        "question": asking.question,
        "question_digest": asking.question_digest,
        "approver": asking.approver,
        "expires_at": asking.expires_at,
        "source": asking.source,
    }
    if any(asking.worlds):
        card["relies_on"] = domain.relies_on(asking.worlds)
    notice = Notice(topic="question", text=asking.question, data=card)
    return [ctx.emit(asked, asking.action), ctx.emit(notice, "question", asking.action)]

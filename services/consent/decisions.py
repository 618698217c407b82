"""One decision, from whichever way it came, to its one answer. Shared by the text handler and the HTTP edge."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson
import structlog

from libs.contracts.canonical import digest
from libs.contracts.consent import DecisionRefused, Verdict
from libs.contracts.errors import TransientError
from libs.contracts.ingress import Input, InputAccepted
from libs.contracts.origin import Origin, make_seal
from libs.contracts.reasons import DecisionOutcome
from services.consent import domain
from services.consent.domain import Record, Rules
from services.consent.metrics import ConsentMetrics
from services.consent.ports import Actions, Answer, Emit, Glance, Redemption

log = structlog.get_logger(__name__)

MAX_SEALS = 50
"""Each further seal means that another input of the session took the number: 50 lost races in a row are a storm."""


@dataclass(frozen=True)
class Wish:
    """What somebody verified wants done with an action.

    `question_digest` is what they saw; None for a text, for which it is the action's one question. `carrier` is what
    brought the wish, `nonce` tells this attempt from others. `text` and `typed`, the number of its input, are set
    where it was typed into the conversation.
    """

    session: str
    action: str
    verdict: Verdict
    origin: Origin
    question_digest: str | None
    carrier: str
    nonce: str
    text: str = ""
    typed: int = 0

    @property
    def by_text(self) -> bool:
        """Whether it was typed into the conversation, where alone it can be answered."""
        return self.typed > 0


@dataclass(frozen=True)
class Decided:
    """The answer: a receipt where the decision stands, else nothing was done, for the reason in `outcome`."""

    outcome: DecisionOutcome
    receipt: bytes = b""
    replay: bool = False


class Decisions:
    """Redeems wishes. Raises StoreAway when nothing is known of the outcome, TransientError when it may work later."""

    def __init__(self, actions: Actions, rules: Rules, metrics: ConsentMetrics) -> None:
        self._actions = actions
        self._rules = rules
        self._metrics = metrics

    async def decide(self, wish: Wish, emit_for: Callable[[Record | None], Emit]) -> Decided:
        """Redeem in one script; tell the session of a refusal that it should know; count once."""
        glance = await self._actions.glance(wish.session, wish.action)
        emit = emit_for(glance.record)
        decided = await self._redeem(wish, glance, emit)
        if not decided.receipt and (wish.by_text or decided.outcome == "expired"):
            decided = await self._tell(wish, decided, emit)
        if not decided.replay:
            self._metrics.decisions.labels(decided.outcome).inc()
        log.info("decision.answered", session=wish.session, action=wish.action, outcome=decided.outcome)
        return decided

    async def _redeem(self, wish: Wish, glance: Glance, emit: Emit) -> Decided:
        record, number = glance.record, glance.next_number
        if record is None:
            return Decided("no_such_action")
        for _ in range(MAX_SEALS):
            redemption = self._redemption(wish, record, number, glance.now)
            doorbell = emit(InputAccepted(input=redemption.input), redemption.input.id)
            answer = await self._actions.redeem(redemption, [doorbell])
            if answer.tag != "number":
                return self._decided(answer, glance.now)
            number = answer.number
        raise TransientError("the session is too busy to number a decision", retry_after=1.0)

    def _redemption(self, wish: Wish, record: Record, number: int, now: int) -> Redemption:
        receipt = domain.receipt(record, wish.verdict, now)
        return Redemption(
            session=wish.session,
            action=wish.action,
            by=wish.origin.principal,
            question_digest=record.question_digest if wish.question_digest is None else wish.question_digest,
            verdict=wish.verdict,
            attempt=f"{wish.carrier}:{wish.nonce}",
            typed=wish.typed,
            receipt=orjson.dumps(receipt),
            lapses_at=now + self._rules.ttl_ms,
            input=self._input(wish, record, number, now),
        )

    def _input(self, wish: Wish, record: Record, number: int, now: int) -> Input:
        """The sealed input that tells the session. The seal covers the number, so each number takes a new one."""
        id = domain.decision_input_id(wish.session, wish.action)
        data = domain.decision_data(wish.action, wish.verdict)
        seal = make_seal(
            self._rules.keys,
            input_id=id,
            session=wish.session,
            number=number,
            origin=wish.origin,
            digest=digest(data),
            accepted_at=now,
            kind="decision",
        )
        return Input(
            id=id,
            kind="decision",
            session=wish.session,
            number=number,
            source="consent",
            event=f"{wish.action}:{wish.verdict}",
            data=data,
            origin=wish.origin,
            seal=seal,
            accepted_at=now,
            depth=record.depth,
            trace=record.trace,
        )

    def _decided(self, answer: Answer, now: int) -> Decided:
        match answer.tag:
            case "accepted" | "declined" | "cancelled" as outcome:
                self._metrics.decided(outcome, now - answer.asked_at)
                return Decided(_OUTCOMES[outcome], answer.receipt)
            case "repeated" | "replayed":
                return Decided("repeated", answer.receipt, replay=answer.tag == "replayed")
            case "full":
                raise TransientError("too many messages wait for the broker", retry_after=5.0)
            case tag:
                return Decided(_OUTCOMES[tag])

    async def _tell(self, wish: Wish, decided: Decided, emit: Emit) -> Decided:
        """Once for each action and person over HTTP, where clicks repeat; once for each text, which wants an answer."""
        by = wish.origin.principal
        if decided.outcome == "wrong_person":
            return decided
        mark = (wish.action, by, wish.carrier) if wish.by_text else (wish.action, by)
        refused = DecisionRefused(action=wish.action, outcome=decided.outcome, by=by, text=wish.text)
        message = emit(refused, *mark)
        answer = await self._actions.refuse(wish.session, mark, attempt=wish.nonce, messages=[message])
        return replace(decided, replay=wish.by_text and answer.tag == "repeated")


_OUTCOMES: dict[str, DecisionOutcome] = {
    "accepted": "accepted",
    "declined": "declined",
    "cancelled": "cancelled",
    "withdrawn": "cancelled",
    "no_such_action": "no_such_action",
    "wrong_person": "wrong_person",
    "wrong_question": "wrong_question",
    "expired": "expired",
    "superseded": "superseded",
    "decided_otherwise": "decided_otherwise",
}
"""Tag of `redeem_action.lua` → outcome. Withdrawn by the asking turn and cancelled by the approver are told alike."""

"""Handlers and sweeper on a fake store: what they send, count and raise."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from libs.contracts.consent import DecideByText
from libs.contracts.envelope import Envelope
from libs.contracts.errors import PermanentError, StoreAway
from libs.contracts.topology import Topology
from libs.runtime.composer import Composer
from libs.runtime.consumer import Context
from services.consent.decisions import Decisions
from services.consent.domain import Record, Rules
from services.consent.handlers import ConsentHandlers
from services.consent.metrics import ACTIONS, ConsentMetrics
from services.consent.ports import Answer, Glance
from tests.support.consent import ANA, BEN, RESTAURANT, SEAL_KEYS, TABLE, FakeClock, application, issue, seal

RECORD = Record(
    "s1", "A1", "pending", (TABLE,), "A1: book?", "d" * 64, "ana", "restaurant", "T1", asked_at=1_000, expires_at=9_000
)


@dataclass
class FakeActions:
    """Answers what the test says, in order; remembers what it was asked. An exception is raised."""

    answers: list[Any] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    session_owner: str | None = "ana"
    record: Record | None = RECORD

    async def owner(self, session: str) -> str | None:
        return self.session_owner

    async def now(self) -> int:
        return 5_000

    async def glance(self, session: str, action: str) -> Glance:
        return Glance(self.record, 7, 5_000)

    async def issue(self, issue: Any, asked: Sequence[Any], refused: Sequence[Any]) -> Answer:
        return self._answer("issue", issue)

    async def redeem(self, redemption: Any, messages: Sequence[Any]) -> Answer:
        return self._answer("redeem", redemption)

    async def refuse(self, session: str, mark: Sequence[str], *, attempt: str, messages: Sequence[Any]) -> Answer:
        return self._answer("refuse", tuple(mark))

    def _answer(self, name: str, what: Any) -> Answer:
        self.calls.append((name, what))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Desk:
    """Handlers over a fake store."""

    def __init__(self, *answers: Any, **store: Any) -> None:
        self.actions = FakeActions(list(answers), **store)
        self.registry = CollectorRegistry()
        rules = Rules(application(), SEAL_KEYS)
        metrics = ConsentMetrics(self.registry)
        nonces = iter(f"n{number}" for number in range(100))
        decisions = Decisions(self.actions, rules, metrics)  # type: ignore[arg-type]
        self.handlers = ConsentHandlers(self.actions, decisions, rules, metrics, lambda: next(nonces))  # type: ignore[arg-type]

    def context(self, message: Any) -> Context:
        body = message.model_dump()
        envelope = Envelope(id="m1", type=message.wire_type(), session="s1", body=body)
        return Context(envelope, 5_000, Composer(Topology(), FakeClock(5_000)))

    async def issue(self, message: Any) -> Any:
        return await self.handlers.on_issue_action(message, self.context(message))

    async def say(self, text: str, origin: Any = ANA, sealed: str | None = None) -> Any:
        message = DecideByText(text=text, seal=seal(origin, number=6, data={"text": sealed or text}))
        return await self.handlers.on_decide_by_text(message, self.context(message))

    def count(self, name: str, outcome: str) -> float | None:
        return self.registry.get_sample_value(f"turnkeeper_consent_{name}_total", {"outcome": outcome})


def test_every_label_set_is_there_at_zero():
    desk = Desk()
    assert all(desk.count("actions", outcome) == 0 for outcome in ACTIONS)
    for outcome in ("repeated", "wrong_person", "wrong_question", "decided_otherwise", "no_such_action"):
        assert desk.count("decisions", outcome) == 0


async def test_asked_is_counted_and_a_repeat_is_not():
    desk = Desk(Answer("asked"), Answer("repeated"))
    assert [await desk.issue(issue()), await desk.issue(issue())] == ["handled", "repeated"]
    assert desk.count("actions", "asked") == 1


async def test_an_attempt_with_an_unknown_outcome_keeps_its_nonce_and_a_new_message_gets_a_new_one():
    desk = Desk(StoreAway("?"), Answer("asked"), Answer("repeated"))
    with pytest.raises(StoreAway):
        await desk.issue(issue())
    await desk.issue(issue())
    await desk.issue(issue())
    first, second, third = [what.attempt for _, what in desk.actions.calls]
    assert first == second != third


async def test_a_session_without_owner_cannot_ask():
    with pytest.raises(PermanentError, match="no_such_session"):
        await Desk(session_owner=None).issue(issue())


async def test_yes_by_text_takes_the_digest_of_the_actions_one_question():
    desk = Desk(Answer("accepted", b"{}", asked_at=1_000))
    assert await desk.say("yes A1") == "handled"
    redemption = desk.actions.calls[0][1]
    assert (redemption.question_digest, redemption.by, redemption.typed) == ("d" * 64, "ana", 6)
    assert redemption.input.number == 7
    assert desk.registry.get_sample_value("turnkeeper_consent_decision_seconds_sum") == 4.0


@pytest.mark.parametrize("text", ["yes, sure", "Yes A1", "yes A1!"])
async def test_any_other_text_decides_nothing(text):
    desk = Desk()
    with pytest.raises(PermanentError, match="not_a_decision"):
        await desk.say(text)
    assert desk.actions.calls == []


@pytest.mark.parametrize("origin, sealed, why", [(RESTAURANT, None, "not_a_user"), (ANA, "no A1", "other_text")])
async def test_a_text_that_no_user_typed_decides_nothing(origin, sealed, why):
    desk = Desk()
    with pytest.raises(PermanentError, match=why):
        await desk.say("yes A1", origin, sealed)
    assert desk.actions.calls == []


async def test_somebody_elses_text_is_counted_and_nothing_is_written():
    desk = Desk(Answer("wrong_person"))
    assert await desk.say("yes A1", BEN) == "refused"
    assert [name for name, _ in desk.actions.calls] == ["redeem"]
    assert desk.count("decisions", "wrong_person") == 1


async def test_a_refused_text_is_answered_once_for_each_text():
    desk = Desk(Answer("superseded"), Answer("told"), Answer("superseded"), Answer("repeated"))
    assert [await desk.say("yes A1"), await desk.say("yes A1")] == ["refused", "repeated"]
    assert desk.actions.calls[1][1][:2] == ("A1", "ana")
    assert desk.count("decisions", "superseded") == 1


async def test_a_text_delivered_twice_is_counted_once():
    desk = Desk(Answer("accepted", b"{}"), Answer("replayed", b"{}"))
    assert [await desk.say("yes A1"), await desk.say("yes A1")] == ["handled", "repeated"]
    assert desk.count("decisions", "accepted") == 1
    assert desk.count("decisions", "repeated") == 0

"""A naive model of actions against the real scripts on a real Redis: whatever happens in whatever order (G6)."""

import asyncio
import os
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as replay
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from libs.contracts.consent import CancelAction
from services.consent.decisions import Decided, Wish
from tests.support.consent import ANA, BEN, CINEMA, RESTAURANT, TABLE, World, application, consent_world, issue

pytestmark = pytest.mark.engine
TTL_MS = 600_000
CAP = 2
STATE = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}
ACTIONS = st.sampled_from(["A1", "A2", "A3"])
VERDICTS = st.sampled_from(["accept", "decline", "cancel"])


@dataclass
class Known:
    """What the model knows of one action."""

    state: str
    source: str = ""
    steps: int = 0
    expires_at: int = 0
    verdict: str = ""
    receipt: bytes = b""
    lapses_at: int = 0
    lapsed: bool = False
    spent: set[int] = field(default_factory=set)
    before: str = "cancelled"
    """How one was closed that was never asked."""


class Consent(RuleBasedStateMachine):
    """Each rule does one thing to both and compares the answers."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.opened = consent_world(
            self.url, f"machine-{secrets.token_hex(6)}", application(caps={"open_questions": CAP})
        )
        self.world: World = self.run(self.opened.__aenter__())
        self.run(self.world.own())
        # Far enough ahead that the store's own time never counts, and the model alone says what time it is.
        self.world.clock.at += 3_600_000
        self.model: dict[str, Known] = {}
        self.decisions = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @property
    def now(self) -> int:
        return self.world.clock.at

    def open_of(self, source: str) -> int:
        return sum(
            known.state == "pending" and known.source == source and known.expires_at >= self.now
            for known in self.model.values()
        )

    @initialize()
    def begin(self) -> None:
        """Two questions are open at the start, so that few steps are spent on what does not exist."""
        self._issue("A1", RESTAURANT, 2)
        self._issue("A2", CINEMA, 1)

    @rule(action=ACTIONS, origin=st.sampled_from([RESTAURANT, CINEMA]), steps=st.integers(1, 2))
    def issue(self, action: str, origin: Any, steps: int) -> None:
        self._issue(action, origin, steps)

    def _issue(self, action: str, origin: Any, steps: int) -> None:
        message = issue(action, *[TABLE] * steps, origin=origin)
        known = self.model.get(action)
        try:
            outcome = str(self.run(self.world.ask(message)))
        except Exception as error:
            outcome = getattr(error, "reason", repr(error))
        if known is not None and known.state == "withdrawn":
            assert outcome == "refused"
        elif known is not None:
            same = (known.source, known.steps) == (origin.source, steps)
            assert outcome == ("repeated" if same else "other_content")
        elif self.open_of(origin.source) >= CAP:
            assert outcome == "refused"
            self.model[action] = Known("not_asked", origin.source, steps)
        else:
            assert outcome == "handled"
            self.model[action] = Known("pending", origin.source, steps, self.now + TTL_MS)

    @rule(action=ACTIONS, verdict=VERDICTS, times=st.integers(1, 3))
    def decide(self, action: str, verdict: str, times: int) -> None:
        self._decide(action, verdict, times, right_person=True, right_digest=True)

    @rule(action=ACTIONS, verdict=VERDICTS, right_person=st.booleans())
    def decide_wrongly(self, action: str, verdict: str, right_person: bool) -> None:
        self._decide(action, verdict, 1, right_person=right_person, right_digest=not right_person)

    def _decide(self, action: str, verdict: str, times: int, *, right_person: bool, right_digest: bool) -> None:
        person = ANA if right_person else BEN
        digest = None if right_digest else "0" * 64
        answers = self.run(self._decide_at_once(action, verdict, person, digest, times))
        expected = self._expected(action, verdict, right_person, right_digest)
        known = self.model.get(action)
        if expected == "decided":
            assert known is not None
            assert sorted(answer.outcome for answer in answers) == sorted([STATE[verdict], *["repeated"] * (times - 1)])
            known.state, known.verdict, known.receipt = STATE[verdict], verdict, answers[0].receipt
            known.lapses_at = self.now + TTL_MS
            self.decisions += 1
        else:
            assert {answer.outcome for answer in answers} == {expected}
        if expected in ("decided", "repeated"):
            assert known is not None
            assert {answer.receipt for answer in answers} == {known.receipt}

    async def _decide_at_once(
        self, action: str, verdict: Any, person: Any, digest: str | None, times: int
    ) -> list[Decided]:
        nonces = [self.world.nonce() for _ in range(times)]
        wishes = [Wish("s1", action, verdict, person, digest, nonce, nonce) for nonce in nonces]
        decide = self.world.decisions.decide
        return await asyncio.gather(
            *(decide(wish, lambda record: self.world.emit_for("s1", record)) for wish in wishes)
        )

    def _expected(self, action: str, verdict: str, right_person: bool, right_digest: bool) -> str:
        known = self.model.get(action)
        if known is None or known.state in ("withdrawn", "not_asked"):
            return "no_such_action"
        if not right_person:
            return "wrong_person"
        if not right_digest:
            return "wrong_question"
        if known.verdict:
            return "repeated" if known.verdict == verdict else "decided_otherwise"
        if known.state in ("superseded", "cancelled"):
            return known.state
        return "decided" if known.state == "pending" and self.now <= known.expires_at else "expired"

    @rule(action=ACTIONS, supersede=st.booleans())
    def close(self, action: str, supersede: bool) -> None:
        state = "superseded" if supersede else "cancelled"
        message = CancelAction(action=action, reason="superseded by A9" if supersede else "the turn ended")
        context = self.world.context(message, id=secrets.token_hex(8))
        outcome = str(self.run(self.world.handlers.on_cancel_action(message, context)))
        known = self.model.get(action)
        if known is None:
            assert outcome == "handled"
            self.model[action] = Known("withdrawn", before=state)
        elif known.state == "pending":
            assert outcome == "handled"
            known.state = state
        elif (known.state == state and not known.verdict) or (known.state == "withdrawn" and known.before == state):
            assert outcome == "repeated"
        else:
            assert outcome == "refused"

    @rule(step=st.sampled_from([1, TTL_MS // 2, TTL_MS - 1, TTL_MS, TTL_MS + 1]))
    def time_passes(self, step: int) -> None:
        self.world.clock.at += step

    @rule()
    def sweep(self) -> None:
        self.run(self.world.sweeper.sweep())
        for known in self.model.values():
            if known.state == "pending" and self.now > known.expires_at:
                known.state = "expired"
            if known.state == "accepted" and self.now > known.lapses_at and len(known.spent) < known.steps:
                known.lapsed = True

    @rule(action=ACTIONS, step=st.integers(0, 1))
    def spend(self, action: str, step: int) -> None:
        """The door spends a step of a grant that stands."""
        known = self.model.get(action)
        if known is None or known.state != "accepted" or self.now > known.lapses_at or step >= known.steps:
            return
        self.run(self.world.redis.hset(self.world.keys.of_session("action", "s1", action), f"s{step}", f"key{step}"))
        known.spent.add(step)

    @invariant()
    def store_and_model_agree(self) -> None:
        stored, inbox, pending = self.run(self._look())
        for (action, known), (state, closed_as) in zip(self.model.items(), stored, strict=True):
            assert state == (known.before if known.state == "withdrawn" else known.state), action
            assert (closed_as == "lapsed") == known.lapsed, action
        # Each decision is one numbered input, and the numbers have no gap.
        assert sorted(inbox) == list(range(1, self.decisions + 1))
        assert len({entry["id"] for entry in inbox.values()}) == self.decisions
        assert pending == self.open_of("restaurant") + self.open_of("cinema")

    async def _look(self) -> tuple[list[tuple[str, str]], dict[int, Any], int]:
        rows = [self._states(action) for action in self.model]
        stored, inbox, pending = await asyncio.gather(
            asyncio.gather(*rows), self.world.inbox(), self.world.actions.pending()
        )
        return list(stored), inbox, pending

    async def _states(self, action: str) -> tuple[str, str]:
        key = self.world.keys.of_session("action", "s1", action)
        state, closed_as = await self.world.store.command("HMGET", key, "state", "closed_as")
        return (state or b"").decode(), (closed_as or b"").decode()

    @invariant()
    def each_is_counted_once(self) -> None:
        for state in ("accepted", "declined", "expired", "superseded"):
            counted = self.world.count("actions_total", outcome=state)
            assert counted == sum(known.state == state for known in self.model.values())

    def teardown(self) -> None:
        self.run(self.opened.__aexit__(None, None, None))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def test_the_scripts_agree_with_a_naive_model(redis_url, seed):
    # Shrinking takes a minute and a half: done when a failure is replayed to be understood.
    phases = [Phase.generate, *([Phase.shrink] if "SEED" in os.environ else [])]
    machine = type("ConsentHere", (Consent,), {"url": redis_url})
    run_state_machine_as_test(
        replay(seed)(machine),
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            database=None,
            phases=phases,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

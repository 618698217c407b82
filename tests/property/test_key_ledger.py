"""The key ledger against a naive model: claims, repeats, crashes, late holders, withdrawals, time and operators.

Everything runs on a real Redis. The model keeps one record a key and what was really sent; the promises that are
checked after every step are G4's: at most one send to a destination that is not keyed, one key for all sends to one
that is, and no answer that changes once it is final.
"""

import asyncio
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from libs.contracts.tools import RunStep
from services.tools.domain import SEAL_AGE_MS, Admitted, admit, after_holder
from services.tools.ports import Held, Known, Told, Turned, Work
from services.tools.store import RedisLedger
from tests.support.door import HOUR_MS, SEAL_KEYS, Door, open_door, seal, step

LEASE_MS = 5_000
SILENT_MS = 1_000
KEYS = ("k1", "k2", "k3", "k4")
TOOLS = ("book", "mail")
STATES = ("committed", "refused", "failed", "unknown")


@dataclass
class Model:
    """What must be known of one key."""

    state: str = "absent"
    call: str = ""
    wish: tuple[str, int] = ("", 0)
    holder: Work | None = None
    lease_until: int = 0
    resolved: bool = False
    sent: int = 0
    """Sends of the attempt that is, or was last, under way."""
    late: list[Work] = field(default_factory=list)


class KeyLedger(RuleBasedStateMachine):
    """Two replicas, a few keys, one session."""

    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opened = open_door(self.redis_url, f"prop-{secrets.token_hex(6)}", steps=1000)
        self.door: Door = self.run(self.opened.__aenter__())
        self.start = self.door.clock.now + 600_000  # ahead of the store's own clock, so that ours alone counts
        self.now = self.start
        self.calls = 0
        self.models = {key: Model() for key in KEYS}
        self.ledgers = {name: self.ledger_of(name, 0) for name in ("a", "b")}
        self.incarnations = dict.fromkeys(("a", "b"), 0)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.opened.__aexit__(None, None, None))
        self.runner.close()

    def ledger_of(self, replica: str, incarnation: int) -> RedisLedger:
        return RedisLedger(
            self.door.store, self.door.keys, self.door.outbox, replica=replica,  # type: ignore[arg-type]
            incarnation=str(incarnation), step_cap=1000,
        )  # fmt: skip

    def step(self, key: str, wish: tuple[str, int]) -> RunStep:
        seals = [seal(at=self.start)]
        return step(wish[0], {"party": wish[1]}, now=self.start, key=key, seals=seals, not_after=self.start + HOUR_MS)

    def claim(self, key: str, wish: tuple[str, int], call: str, replica: str) -> Any:
        made = self.step(key, wish)
        judged = admit(made, "s1", self.door.catalogue, SEAL_KEYS, action=None)
        assert isinstance(judged, Admitted)
        told = Told(call=call)
        return self.run(self.ledgers[replica].claim(made, judged, "s1", told, lease_ms=LEASE_MS, now=self.now))

    @rule(
        key=st.sampled_from(KEYS), tool=st.sampled_from(TOOLS), party=st.integers(1, 2),
        replica=st.sampled_from("ab"), again=st.booleans(),
    )  # fmt: skip
    def call(self, key: str, tool: str, party: int, replica: str, again: bool) -> None:
        """A call arrives: a new one, or the one that the key knows, again."""
        model, wish = self.models[key], (tool, party)
        if again and model.call:
            call, wish = model.call, model.wish
        else:
            self.calls += 1
            call = f"c{self.calls}"
        found = self.claim(key, wish, call, replica)
        over = self.now > self.start + HOUR_MS
        if model.state == "withdrawn":
            assert isinstance(found, Known)
            assert found.state == "withdrawn"
        elif model.state != "absent" and model.wish != wish:
            assert found == Turned("conflict")
        elif model.state == "absent" and over:
            assert found == Turned("expired")
        elif model.state == "pending":
            self.expect_held(model, found, call, replica)
        elif model.state == "absent" or (
            model.state == "failed" and not model.resolved and call != model.call and not over
        ):
            assert isinstance(found, Work)
            self.hold(model, found, wish, call)
        else:
            assert isinstance(found, Known)
            assert (found.state, found.call) == (model.state, model.call)

    def expect_held(self, model: Model, found: Any, call: str, replica: str) -> None:
        assert model.holder is not None
        if call == model.call and model.holder.owner == self.ledgers[replica]._token(call):
            assert isinstance(found, Work), "the same claim by the same process is its own"
            assert found.attempt == model.holder.attempt
        else:
            assert isinstance(found, Held)
            assert found.owner == model.holder.owner
            former = model.holder.owner.split("/")[:2] == [replica, str(self.incarnations[replica] - 1)]
            assert not former or self.ledgers[replica].is_former_self(found.owner)

    def hold(self, model: Model, work: Work, wish: tuple[str, int], call: str) -> None:
        model.state, model.wish, model.call = "pending", wish, call
        model.holder, model.lease_until, model.sent = work, self.now + LEASE_MS, 1

    def pending(self) -> list[str]:
        return [key for key in KEYS if self.models[key].state == "pending"]

    def record(self, key: str, work: Work, state: Any) -> Any:
        _, messages = self.door.answers.outcome(work, state, {"id": "r"}, "", self.now)
        return self.run(self.door.ledger.record(work, state, {"id": "r"}, "", messages, self.now))

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), state=st.sampled_from(STATES))
    def answer(self, data: st.DataObject, state: str) -> None:
        """The holder has its outcome."""
        key = data.draw(st.sampled_from(self.pending()))
        model = self.models[key]
        assert model.holder is not None
        for _ in range(2):
            assert self.record(key, model.holder, state) is None
        model.late.append(model.holder)
        model.state, model.resolved = state, False

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), replica=st.sampled_from("ab"))
    def take_over(self, data: st.DataObject, replica: str) -> None:
        """A sweeper looks at a lease."""
        self.look(data.draw(st.sampled_from(self.pending())), replica)

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def holder_is_killed(self, data: st.DataObject) -> None:
        """The holder's process is killed; its successor under the same name finds what it left."""
        key = data.draw(st.sampled_from(self.pending()))
        holder = self.models[key].holder
        assert holder is not None
        replica = holder.owner.partition("/")[0]
        self.crash(replica)
        self.look(key, replica)

    def look(self, key: str, replica: str) -> None:
        model = self.models[key]
        assert model.holder is not None
        former = self.ledgers[replica].is_former_self(model.holder.owner)
        gone = model.holder.owner if former else ""
        taken = self.run(self.ledgers[replica].take_over("s1", key, gone=gone, lease_ms=LEASE_MS, now=self.now))
        if not former and model.lease_until > self.now:
            assert isinstance(taken, Held)
            return
        assert isinstance(taken, Work)
        assert (taken.tool, taken.args, taken.context.call) == (model.wish[0], {"party": model.wish[1]}, model.call)
        model.late.append(model.holder)
        model.holder, model.lease_until = taken, self.now + LEASE_MS
        if after_holder(self.door.catalogue.tool(taken.tool), taken.keyed_from, taken.now) == "send":
            model.sent += 1
        else:
            assert self.record(key, taken, "unknown") is None
            model.late.append(taken)
            model.state, model.resolved = "unknown", False

    @precondition(lambda self: any(model.late for model in self.models.values()))
    @rule(data=st.data(), state=st.sampled_from(STATES))
    def come_back_late(self, data: st.DataObject, state: str) -> None:
        """A holder that was followed, or has answered, records again: it changes nothing."""
        late = [key for key in KEYS if self.models[key].late]
        # While a successor is at work is when it would do most harm.
        key = data.draw(st.sampled_from([key for key in late if key in self.pending()] or late))
        model = self.models[key]
        work = data.draw(st.sampled_from(model.late))
        holds = model.holder is not None and work.owner == model.holder.owner
        if holds and model.state in (state, "pending"):
            return  # it has not come back late: it is the one that holds, or repeats itself
        before = self.run(self.door.ledger.read("s1", key))
        assert self.record(key, work, state) == model.state
        assert self.run(self.door.ledger.read("s1", key)) == before

    def crash(self, replica: str) -> None:
        """A replica is killed and starts again under its name."""
        self.incarnations[replica] += 1
        self.ledgers[replica] = self.ledger_of(replica, self.incarnations[replica])

    @rule(key=st.sampled_from(KEYS))
    def withdraw(self, key: str) -> None:
        """The session withdraws what may or may not have been claimed."""
        model = self.models[key]
        end = self.start + HOUR_MS
        found = self.run(self.door.ledger.withdraw("s1", key, "O1", end, "w", [], self.now))
        if model.state in ("absent", "withdrawn") or (model.state == "failed" and not model.resolved):
            assert found is None
            model.state = "withdrawn"
        else:
            assert isinstance(found, Known)
            assert found.state == model.state

    @rule(key=st.sampled_from(KEYS), state=st.sampled_from(["committed", "failed"]))
    def resolve(self, key: str, state: Any) -> None:
        """An operator says what became of it."""
        model = self.models[key]
        stands = self.run(self.door.ledger.resolve("s1", key, state, "n", f"op{self.calls}", [], self.now))
        if model.state == "unknown":
            assert stands is None
            model.state, model.resolved = state, True
        elif not (model.resolved and model.state == state):
            assert stands == model.state

    @rule(key=st.sampled_from(KEYS), replica=st.sampled_from("ab"), said=st.sampled_from(["found", "none", "silent"]))
    def look_up(self, key: str, replica: str, said: str) -> None:
        """A replica asks the destination what became of it."""
        model, ledger = self.models[key], self.ledgers[replica]
        begun = self.run(ledger.begin_lookup("s1", key, ask_ms=1000, at_once=True, now=self.now))
        if model.state != "unknown":
            assert begun == model.state
            return
        assert isinstance(begun, Work)
        assert begun.now == self.now
        if said == "silent":
            return
        state: Any = "committed" if said == "found" else "failed"
        early = state == "failed" and self.now <= model.lease_until + SILENT_MS
        for _ in range(2):
            settled = self.run(ledger.settle_lookup(begun, state, None, "", [], silent_ms=SILENT_MS, now=self.now))
            assert settled == ("early" if early else None)
        if not early:
            model.state, model.resolved = state, True

    @rule(key=st.sampled_from(KEYS))
    def trim(self, key: str) -> None:
        """The sweeper looks at an old operation."""
        self.run(self.door.ledger.trim("s1", key, self.now))

    @rule(milliseconds=st.sampled_from([1, LEASE_MS, 10 * LEASE_MS, HOUR_MS]))
    def time_passes(self, milliseconds: int) -> None:
        """Time passes, within the day that seals count."""
        if self.now + milliseconds < self.start + SEAL_AGE_MS // 2:
            self.now += milliseconds

    async def stored(self) -> tuple[list[dict[str, str]], Any, Any]:
        ledger = self.door.ledger
        reads = asyncio.gather(*(ledger.read("s1", key) for key in KEYS))
        return await reads, await ledger.members("unknown"), await ledger.members("lease")

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        operations, unknown, leases = self.run(self.stored())
        for key, stored in zip(KEYS, operations, strict=True):
            model = self.models[key]
            assert stored.get("state", "absent") == model.state
            assert (("s1", key) in unknown) == (model.state == "unknown")
            assert (("s1", key) in leases) == (model.state == "pending")

    @invariant()
    def nothing_is_sent_twice_where_it_could_happen_twice(self) -> None:
        for model in self.models.values():
            if model.wish[0] == "mail":
                assert model.sent <= 1


@pytest.mark.slow
def test_the_ledger_keeps_its_promises(redis_url: str) -> None:
    """Seeds are Hypothesis's own: a failing run prints its steps and is replayed from its example database."""
    machine = type("Machine", (KeyLedger,), {"redis_url": redis_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking against a real store takes minutes; forty steps can be read as they are.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )

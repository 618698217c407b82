"""What is unknown is found out: the door asks a bank that keeps its own ledger, which says what really happened."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from libs.contracts.errors import PermanentError
from libs.contracts.ingress import RegisterSubject
from libs.contracts.tools import LookUpOperation
from libs.runtime.settle import Outcome as Settled
from services.tools.domain import Committed, Failed, Outcome, Refused, Unknown
from services.tools.ports import Call
from services.tools.store import LOOKUP_FIRST_WAIT_MS, LOOKUP_LONGEST_WAIT_MS
from tests.support.door import HOUR_MS, Door, open_door, step

LEASE_MS, TIMEOUT_MS = 4_000, 1_000
AHEAD_MS = 600_000
"""The test's clock is ahead of the store's own, so that it alone counts."""
PAY = {"sum": "10.00"}


@dataclass
class Bank:
    """Charges by idempotency key; how it answers is the test's choice."""

    charges: dict[str, dict[str, Any]] = field(default_factory=dict)
    loses_answers: bool = False
    loses_calls: bool = False
    finds: Outcome | None = None
    """What a look-up comes to, instead of the ledger's word."""
    asked: int = 0

    async def act(self, call: Call) -> Outcome:
        if call.tool == "find_charge":
            self.asked += 1
            found = self.charges.get(str(call.args["key"]))
            return self.finds or Committed({"charges": [found] if found else []})
        if not self.loses_calls:
            self.charges[call.key] = {"id": f"ch_{len(self.charges) + 1}", "sum": call.args["sum"], "refunded": False}
        if self.loses_answers or self.loses_calls:
            raise TimeoutError
        return Committed({"id": self.charges[call.key]["id"]})


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        opened.clock.now += AHEAD_MS
        yield opened


@pytest.fixture
def bank(door: Door) -> Bank:
    bank = Bank()
    door.destination.act = bank.act
    return bank


async def pay(door: Door, bank: Bank, **how: bool) -> None:
    """One charge whose outcome the door does not learn."""
    bank.loses_answers, bank.loses_calls = how.get("answer_lost", False), how.get("call_lost", False)
    await door.send(step("pay", PAY, now=door.clock.now))
    assert door.finished()[-1].state == "unknown"
    bank.loses_answers = bank.loses_calls = False


def states(door: Door) -> list[str]:
    return [answer.state for answer in door.finished()]


async def due(door: Door) -> int:
    """When the next look-up is, in milliseconds from now."""
    score = await door.store.redis.zscore(door.keys.of_session_partition("lookup", "s1"), "s1:key1")
    return round(score) - door.clock.now


def wish(operation: str = "O1", key: str = "key1") -> LookUpOperation:
    return LookUpOperation(operation=operation, key=key)


async def test_a9_a_destination_that_commits_and_then_times_out_charges_once(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    await door.sweeper.count_unknown()
    assert door.registry.get_sample_value("turnkeeper_tools_unknown") == 1
    await door.sweeper.reconcile()
    last = door.finished()[-1]
    assert states(door) == ["unknown", "committed"]
    assert last.result == {"id": "ch_1", "sum": "10.00", "refunded": False}
    assert last.reason == "found by find_charge"
    assert len(bank.charges) == 1
    assert [call.tool for call in door.destination.calls] == ["pay", "find_charge"]
    await door.sweeper.count_unknown()
    assert door.registry.get_sample_value("turnkeeper_tools_unknown") == 0
    assert door.counted("pay", "committed") == 1


async def test_what_a_look_up_finds_registers_its_subject(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    await door.sweeper.reconcile()
    (told,) = [message for _, message in door.messages() if isinstance(message, RegisterSubject)]
    assert told.subject == "charge:ch_1"


async def test_a_call_again_after_it_was_found_out_hears_the_result(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    await door.sweeper.reconcile()
    assert await door.send(step("pay", PAY, now=door.clock.now)) is Settled.REPEATED
    assert door.finished()[-1].state == "committed"
    assert len(bank.charges) == 1


async def test_none_proves_a_failure_only_after_lease_and_timeout(door: Door, bank: Bank) -> None:
    await pay(door, bank, call_lost=True)
    claimed = int((await door.operation("key1"))["claimed_at"])
    while door.clock.now <= claimed + LEASE_MS + TIMEOUT_MS:
        await door.sweeper.reconcile()
        assert (await door.operation("key1"))["state"] == "unknown"
        door.clock.now += max(await due(door), 1)
    asked = bank.asked
    assert asked > 1
    await door.sweeper.reconcile()
    assert states(door) == ["unknown", "failed"]
    assert door.finished()[-1].reason == "not known to find_charge"
    assert await door.ledger.unknown_count() == 0


async def test_a_stopped_holder_that_wakes_before_that_is_found(door: Door, bank: Bank) -> None:
    await pay(door, bank, call_lost=True)
    await door.sweeper.reconcile()
    await bank.act(door.destination.calls[0])  # what was on its way arrives
    door.clock.now += 60_000
    await door.sweeper.reconcile()
    assert states(door) == ["unknown", "committed"]
    assert len(bank.charges) == 1


async def test_what_was_found_to_have_failed_is_never_run_again(door: Door, bank: Bank) -> None:
    await pay(door, bank, call_lost=True)
    door.clock.now += 60_000
    await door.sweeper.reconcile()
    await door.send(step("pay", PAY, now=door.clock.now, operation="O2"), call="another")
    assert states(door) == ["unknown", "failed", "failed"]
    assert bank.charges == {}


@pytest.mark.parametrize(
    "finds",
    [
        Unknown("cut"), Failed("not reached"), Refused("closed"), Committed({"other": "form"}),
    ],
)  # fmt: skip
async def test_a_look_up_that_does_not_say_leaves_it_unknown_and_is_tried_again(
    door: Door, bank: Bank, finds: Outcome
) -> None:
    await pay(door, bank, answer_lost=True)
    bank.finds = finds
    door.clock.now += 60_000
    await door.sweeper.reconcile()
    assert states(door) == ["unknown"]
    bank.finds = None
    door.clock.now += await due(door)
    await door.sweeper.reconcile()
    assert states(door) == ["unknown", "committed"]
    labels = {"tool": "pay", "found": "silent"}
    assert door.registry.get_sample_value("turnkeeper_tools_lookups_total", labels) == 1


async def test_a_look_up_that_breaks_leaves_it_unknown(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)

    async def broken(call: Call) -> Outcome:
        raise OSError("broken")

    door.destination.act = broken
    await door.sweeper.reconcile()
    assert states(door) == ["unknown"]
    assert await due(door) > 0


async def test_it_is_asked_ever_more_seldom_and_never_less_than_every_five_minutes(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    bank.finds = Unknown("cut")
    waits = []
    for _ in range(12):
        await door.sweeper.reconcile()
        waits.append(await due(door))
        door.clock.now += waits[-1]
    assert waits == sorted(waits)
    assert waits[0] < LOOKUP_FIRST_WAIT_MS + 4_000
    assert waits[-1] == waits[-2] < LOOKUP_LONGEST_WAIT_MS + 4_000
    assert bank.asked == 12


async def test_it_is_not_asked_before_it_is_due(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    bank.finds = Unknown("cut")
    for _ in range(3):
        await door.sweeper.reconcile()
    assert bank.asked == 1


async def test_another_process_goes_on_asking(door: Door, bank: Bank, redis_url: str, namespace: str) -> None:
    await pay(door, bank, answer_lost=True)
    async with open_door(redis_url, namespace, incarnation="i2") as restarted:
        restarted.destination.act, restarted.clock.now = bank.act, door.clock.now
        await restarted.sweeper.reconcile()
        assert states(restarted) == ["committed"]
    assert len(bank.charges) == 1


async def test_of_two_replicas_at_once_one_asks(door: Door, bank: Bank, redis_url: str, namespace: str) -> None:
    await pay(door, bank, answer_lost=True)
    async with open_door(redis_url, namespace, replica="1") as other:
        other.destination.act, other.clock.now = bank.act, door.clock.now
        await asyncio.gather(door.sweeper.reconcile(), other.sweeper.reconcile())
        assert sorted(states(door) + states(other)) == ["committed", "unknown"]
    assert bank.asked == 1


async def test_a_look_up_does_not_overrule_an_operator(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)

    async def operator_first(call: Call) -> Outcome:
        await door.ledger.resolve("s1", "key1", "failed", "seen", "olga", [], door.clock.now)
        return await bank.act(call)

    door.destination.act = operator_first
    await door.sweeper.reconcile()
    stored = await door.operation("key1")
    assert (stored["state"], stored["resolved_by"]) == ("failed", "olga")
    assert states(door) == ["unknown"]
    assert await door.ledger.due("lookup", door.clock.now + HOUR_MS, 9) == []


async def test_a_late_holder_cannot_overwrite_what_was_found(
    door: Door, bank: Bank, redis_url: str, namespace: str
) -> None:
    sent, wake = asyncio.Event(), asyncio.Event()

    async def stopped(call: Call) -> Outcome:
        outcome = await bank.act(call)
        sent.set()
        await wake.wait()
        return Refused("so it thinks") if call.tool == "pay" else outcome

    door.destination.act = stopped
    holding = asyncio.create_task(door.send(step("pay", PAY, now=door.clock.now)))
    await asyncio.wait_for(sent.wait(), 5)
    async with open_door(redis_url, namespace, replica="1") as other:
        other.destination.act = bank.act
        other.clock.now = door.clock.now + LEASE_MS + 1
        await other.sweeper.take_over_ended()
        await other.sweeper.reconcile()
        assert states(other) == ["unknown", "committed"]
    wake.set()
    await holding
    assert door.finished() == []
    assert (await door.operation("key1"))["state"] == "committed"
    assert len(bank.charges) == 1


async def test_a_tool_without_a_look_up_waits_for_an_operator(door: Door, bank: Bank) -> None:
    door.destination.always(Unknown("cut"))
    await door.send(step("mail", {}, now=door.clock.now))
    door.clock.now += 24 * HOUR_MS
    await door.sweeper.ask_about_all()
    await door.sweeper.reconcile()
    assert len(door.destination.calls) == 1
    assert await door.ledger.unknown_count() == 1


async def test_what_became_unknown_before_its_tool_had_a_look_up_is_asked_about(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    await door.store.redis.delete(door.keys.of_session_partition("lookup", "s1"))
    await door.sweeper.reconcile()
    assert bank.asked == 0
    await door.sweeper.ask_about_all()
    await door.sweeper.reconcile()
    assert states(door) == ["unknown", "committed"]


async def test_the_session_hears_whether_an_effect_stands(door: Door, bank: Bank) -> None:
    await door.send(step("pay", PAY, now=door.clock.now))
    await door.send(wish())
    (charge,) = bank.charges.values()
    charge["refunded"] = True
    await door.send(wish(), call="later")
    bank.charges.clear()
    await door.send(wish(), call="last")
    bank.finds = Unknown("cut")
    await door.send(wish(), call="silent")
    assert [answer.found for answer in door.looked_up()] == ["stands", "gone", "gone", "unknown"]
    assert door.looked_up()[0].result == {"id": "ch_1", "sum": "10.00", "refunded": False}
    assert (await door.operation("key1"))["state"] == "committed"


async def test_a_look_up_delivered_again_is_answered_by_the_same_message(door: Door, bank: Bank) -> None:
    await door.send(step("pay", PAY, now=door.clock.now))
    for _ in range(2):
        await door.send(wish())
    ids = [id for id, message in door.messages() if message.wire_type() == "tools.looked_up.v1"]
    assert len(ids) == 2
    assert len(set(ids)) == 1


async def test_a_wanted_look_up_finds_out_what_is_unknown_at_once(door: Door, bank: Bank) -> None:
    await pay(door, bank, answer_lost=True)
    bank.finds = Unknown("cut")
    await door.sweeper.reconcile()
    bank.finds = None
    await door.send(wish())
    assert states(door) == ["unknown", "committed"]
    assert [answer.found for answer in door.looked_up()] == ["stands"]


async def test_that_an_unknown_operation_is_not_found_yet_says_nothing(door: Door, bank: Bank) -> None:
    await pay(door, bank, call_lost=True)
    await door.send(wish())
    assert [answer.found for answer in door.looked_up()] == ["unknown"]
    assert states(door) == ["unknown"]


async def test_what_has_no_effect_or_cannot_be_asked_about_is_unknown(door: Door, bank: Bank) -> None:
    await door.send(wish(key="never"))
    door.destination.always(Refused("no"))
    await door.send(step("pay", PAY, now=door.clock.now))
    await door.send(wish(), call="refused")
    door.destination.always(Committed(None))
    await door.send(step("mail", {}, now=door.clock.now, key="key2", operation="O2"))
    await door.send(wish("O2", "key2"))
    assert [answer.found for answer in door.looked_up()] == ["unknown"] * 3
    assert [call.tool for call in door.destination.calls] == ["pay", "mail"]


async def test_a_trimmed_operation_is_not_asked_about(door: Door, bank: Bank) -> None:
    await door.send(step("pay", PAY, now=door.clock.now, not_after=door.clock.now + 1000))
    door.clock.now += 2000
    await door.sweeper.trim()
    await door.send(wish())
    assert [answer.found for answer in door.looked_up()] == ["unknown"]


async def test_a_look_up_under_a_key_that_would_pierce_the_stores_names_is_dead(door: Door) -> None:
    with pytest.raises(PermanentError):
        await door.send(wish(key="a}b"))


@pytest.mark.parametrize("first", ["committed", "unknown"])
async def test_a16_one_key_and_another_amount_is_a_conflict_and_charges_nothing(
    door: Door, bank: Bank, first: str
) -> None:
    bank.loses_answers = first == "unknown"
    await door.send(step("pay", PAY, now=door.clock.now))
    before = await door.operation("key1")
    await door.send(step("pay", {"sum": "99.00"}, now=door.clock.now, operation="O2"))
    assert states(door) == [first, "conflict"]
    assert [charge["sum"] for charge in bank.charges.values()] == ["10.00"]
    assert await door.operation("key1") == before
    assert door.counted("pay", "conflict") == 1

"""What a send may and may not prove: the door on a real Redis, and connectors that do what connectors do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.tools import WithdrawOperation
from libs.runtime.settle import Outcome as Settled
from services.tools.domain import Committed, Failed, Outcome, Unknown
from services.tools.ports import Call, Work
from services.tools.store import RETENTION_MS
from tests.support.door import HOUR_MS, Door, open_door, step
from tests.support.eventually import eventually

AHEAD_MS = 600_000
"""The test's clock is ahead of the store's own, so that it alone counts."""


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        opened.clock.now += AHEAD_MS
        yield opened


def states(door: Door) -> list[str]:
    return [answer.state for answer in door.finished()]


async def leave_sent(door: Door, tool: str, args: dict[str, Any]) -> None:
    """Send a step, and be cancelled before its answer, as at the end of a drain."""
    sent = asyncio.Event()

    async def hang(call: Call) -> Outcome:
        sent.set()
        await asyncio.sleep(60)
        raise AssertionError

    door.destination.act = hang
    handling = asyncio.create_task(door.send(step(tool, args, now=door.clock.now)))
    await asyncio.wait_for(sent.wait(), 5)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    door.destination.act = door.destination.commit


def acting(door: Door, act: Callable[[Call], Awaitable[Outcome]]) -> None:
    door.destination.act = act


async def test_a_step_that_was_cancelled_midway_stays_with_its_lease_and_is_told_nothing(door: Door) -> None:
    await leave_sent(door, "mail", {})
    assert (await door.operation("key1"))["state"] == "pending"
    assert states(door) == []
    door.clock.now += 10_000
    await door.sweeper.take_over_ended()
    assert states(door) == ["unknown"]
    assert len(door.destination.calls) == 1


async def test_a_cancelling_within_the_connector_is_unknown_and_ends_no_task_of_ours(door: Door) -> None:
    async def cancelled(call: Call) -> Outcome:
        raise asyncio.CancelledError

    acting(door, cancelled)
    assert await door.send(step("mail", {}, now=door.clock.now)) is Settled.HANDLED
    assert states(door) == ["unknown"]


async def test_a_cancelling_within_a_look_up_says_nothing(door: Door) -> None:
    async def cancelled(call: Call) -> Outcome:
        raise asyncio.CancelledError

    acting(door, cancelled)
    await door.send(step("pay", {"sum": "1"}, now=door.clock.now))
    door.clock.now += 60_000
    await door.sweeper.reconcile()
    assert states(door) == ["unknown"]
    assert await door.ledger.unknown_count() == 1


async def test_a_function_that_asks_to_exit_ends_its_call_alone(door: Door) -> None:
    async def leave(call: Call) -> Outcome:
        raise SystemExit(3)

    acting(door, leave)
    await door.send(step("mail", {}, now=door.clock.now))
    assert states(door) == ["unknown"]


async def test_a_connector_that_says_failed_when_its_time_was_over_is_not_believed(door: Door) -> None:
    async def swallow(call: Call) -> Outcome:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return Failed("given up")
        raise AssertionError

    acting(door, swallow)
    await door.send(step("mail", {}, now=door.clock.now))
    assert states(door) == ["unknown"]


async def test_that_sending_again_did_not_leave_proves_nothing_about_the_first_time(door: Door) -> None:
    await leave_sent(door, "book", {"party": 4})
    door.destination.always(Failed("not reached"))
    door.clock.now += 10_000
    await door.sweeper.take_over_ended()
    assert states(door) == ["unknown"]
    assert "may have been sent before" in door.finished()[0].reason


async def test_reading_again_in_vain_is_a_failure(door: Door) -> None:
    await leave_sent(door, "look", {})
    door.destination.always(Failed("not reached"))
    door.clock.now += 10_000
    await door.sweeper.take_over_ended()
    assert states(door) == ["failed"]


async def test_who_was_stopped_between_claim_and_send_does_not_send_after_a_successor(
    door: Door, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = door.ledger.claim
    async with open_door(redis_url, namespace, replica="1") as other:
        other.clock.now = door.clock.now + 10_000

        async def stopped(*args: Any, **options: Any) -> Any:
            work = await real(*args, **options)
            await other.sweeper.take_over_ended()
            return replace(work, send_by=0.0)

        monkeypatch.setattr(door.ledger, "claim", stopped)
        await door.send(step("mail", {}, now=door.clock.now))
        assert states(other) == ["unknown"]
    assert door.destination.calls == []
    assert states(door) == []


async def test_who_was_stopped_before_it_sent_goes_on_where_nobody_took_its_place(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = door.ledger.claim

    async def stopped(*args: Any, **options: Any) -> Any:
        work = await real(*args, **options)
        assert isinstance(work, Work)
        return replace(work, send_by=0.0)

    monkeypatch.setattr(door.ledger, "claim", stopped)
    await door.send(step("mail", {}, now=door.clock.now))
    assert states(door) == ["committed"]
    assert len(door.destination.calls) == 1


async def fail_by_look_up(door: Door, tool: str) -> None:
    """An operation that got lost on its way, as the destination says once the call cannot arrive any more."""

    async def nothing(call: Call) -> Outcome:
        return Committed({"charges": []}) if call.tool == "find_charge" else Unknown("cut")

    acting(door, nothing)
    await door.send(step(tool, {"sum": "1"}, now=door.clock.now))
    door.clock.now += 60_000
    await door.sweeper.reconcile()
    assert states(door) == ["unknown", "failed"]
    door.destination.act = door.destination.commit


async def test_what_a_look_up_proved_is_tried_anew_under_its_key_where_the_destination_honours_it(door: Door) -> None:
    await fail_by_look_up(door, "order")
    assert not door.finished()[-1].spent
    await door.send(step("order", {"sum": "1"}, now=door.clock.now, operation="O2"), call="m2")
    assert states(door)[-1] == "committed"
    first, _, again = door.destination.calls
    assert first.key == again.key
    assert await door.ledger.unknown_count() == 0


async def test_after_a_look_up_found_nothing_the_next_attempt_is_a_repeat(door: Door) -> None:
    """The first may still be at work there: that it turns away the second says nothing of it."""
    await fail_by_look_up(door, "order")
    door.destination.always(Failed("a request is outstanding for this key"))
    await door.send(step("order", {"sum": "1"}, now=door.clock.now, operation="O2"), call="m2")
    assert [call.repeat for call in door.destination.calls if call.tool == "order"] == [False, True]
    assert states(door)[-1] == "unknown"


async def test_that_it_was_sent_before_is_not_forgotten_by_a_further_attempt(door: Door) -> None:
    await fail_by_look_up(door, "order")
    door.clock.now += HOUR_MS - 120_000
    await leave_again(door)
    door.clock.now += 90_000
    await door.sweeper.take_over_ended()
    assert states(door)[-1] == "unknown", "the destination has forgotten the key by then"


async def leave_again(door: Door) -> None:
    async def hang(call: Call) -> Outcome:
        await asyncio.sleep(60)
        raise AssertionError

    door.destination.act = hang
    sent = len(door.destination.calls)
    call = step("order", {"sum": "1"}, now=door.clock.now, operation="O2")
    handling = asyncio.create_task(door.send(call, call="m2"))
    await eventually(lambda: len(door.destination.calls) > sent)
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    door.destination.act = door.destination.commit


async def test_the_key_is_spent_once_the_destination_may_have_forgotten_it(door: Door) -> None:
    await fail_by_look_up(door, "order")
    door.clock.now += HOUR_MS
    sent = len(door.destination.calls)
    await door.send(step("order", {"sum": "1"}, now=door.clock.now, operation="O2"), call="m2")
    assert (states(door)[-1], door.finished()[-1].spent) == ("failed", True)
    assert len(door.destination.calls) == sent


async def test_where_no_key_is_honoured_a_proved_failure_spends_it_and_says_so(door: Door) -> None:
    await fail_by_look_up(door, "pay")
    assert door.finished()[-1].spent
    await door.send(step("pay", {"sum": "1"}, now=door.clock.now, operation="O2"), call="m2")
    assert (states(door)[-1], door.finished()[-1].spent) == ("failed", True)
    assert [call.tool for call in door.destination.calls] == ["pay", "find_charge"]


async def test_what_a_look_up_released_can_be_withdrawn(door: Door) -> None:
    await fail_by_look_up(door, "order")
    await door.send(WithdrawOperation(operation="O1", key="key1", not_after=door.clock.now + HOUR_MS))
    assert states(door)[-1] == "withdrawn"


async def test_a_tombstone_lasts_no_longer_than_any_call_can_count(door: Door) -> None:
    await door.send(WithdrawOperation(operation="O1", key="key1", not_after=door.clock.now + 10_000 * HOUR_MS))
    ttl = await door.store.redis.pttl(door.keys.of_session("operation", "s1", "key1"))
    assert ttl <= 24 * HOUR_MS + RETENTION_MS + AHEAD_MS


@pytest.mark.parametrize("tool, args, then, sent", [
    ("mail", {}, "unknown", 0), ("book", {"party": 4}, "committed", 1), ("look", {}, "committed", 1),
])  # fmt: skip
async def test_an_absent_key_of_an_earlier_epoch_is_new_only_where_nothing_can_happen_twice(
    door: Door, tool: str, args: dict[str, Any], then: str, sent: int
) -> None:
    door.composer.epoch = 2
    await door.send(step(tool, args, now=door.clock.now), epoch=1)
    assert states(door) == [then]
    assert len(door.destination.calls) == sent
    await door.send(step(tool, args, now=door.clock.now, operation="O2"), call="m2", epoch=2)
    assert states(door) == [then, then]
    assert len(door.destination.calls) == sent


async def test_a_lost_operation_that_can_be_asked_about_is_found_out(door: Door) -> None:
    async def found(call: Call) -> Outcome:
        return Committed({"charges": [{"id": "ch_1", "refunded": False}]})

    acting(door, found)
    door.composer.epoch = 2
    await door.send(step("pay", {"sum": "1"}, now=door.clock.now), epoch=1)
    await door.sweeper.reconcile()
    assert states(door) == ["unknown", "committed"]
    assert [call.tool for call in door.destination.calls] == ["find_charge"]


@pytest.mark.parametrize("epoch", [0, 2, 3])
async def test_a_call_of_this_epoch_is_new(door: Door, epoch: int) -> None:
    door.composer.epoch = 2
    await door.send(step("mail", {}, now=door.clock.now), epoch=epoch)
    assert states(door) == ["committed"]


async def test_what_failed_before_it_was_sent_is_no_lost_operation(door: Door) -> None:
    door.destination.always(Failed("not reached"))
    await door.send(step("mail", {}, now=door.clock.now), epoch=1)
    door.destination.act = door.destination.commit
    door.composer.epoch = 2
    await door.send(step("mail", {}, now=door.clock.now, operation="O2"), call="m2", epoch=1)
    assert states(door) == ["failed", "committed"]


async def test_one_lease_that_cannot_be_taken_over_does_not_hold_up_the_others(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_sent(door, "mail", {})
    real = door.ledger.due

    async def with_a_broken_one(*args: Any) -> Any:
        return [("s1", "b{roken"), *await real(*args)]

    async def read(session: str, key: str) -> dict[str, str]:
        if key == "b{roken":
            raise ValueError(key)
        return {"tool": "mail"}

    monkeypatch.setattr(door.ledger, "due", with_a_broken_one)
    monkeypatch.setattr(door.ledger, "read", read)
    door.clock.now += 10_000
    await door.sweeper.take_over_ended()
    assert states(door) == ["unknown"]

"""Timers through the door: what is set or cancelled leaves with the record of its outcome, under our attestation."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.contracts.ingress import SetTimer, StopTimer
from libs.contracts.origin import SealKeys, attestation_is_valid
from libs.runtime.settle import Outcome as Settled
from services.tools.timers import timer_id
from tests.support.door import RESTAURANT, SEAL_KEYS, Door, open_door, seal, step

WISH = {"in": "90m", "text": "pick up Ana", "subject": "film:1", "misfire": "skip", "lateness": "1h"}


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        yield opened


def told(door: Door) -> list[SetTimer | StopTimer]:
    return [message for _, message in door.messages() if isinstance(message, SetTimer | StopTimer)]


async def set_timer(door: Door, args: dict[str, Any] = WISH, **options: Any) -> Settled:
    return await door.send(step("set_timer", args, now=door.clock.now, **options))


async def test_a_user_sets_a_timer_and_ingress_is_told_once(door: Door) -> None:
    await set_timer(door)
    (answer,) = door.finished()
    (message,) = told(door)
    assert isinstance(message, SetTimer)
    assert answer.state == "committed"
    assert answer.result == {
        "timer": timer_id("key1"), "due": message.due, "at": answer.result["at"], "subject": "film:1",  # type: ignore[index, call-overload]
    }  # fmt: skip
    assert (message.timer, message.operation, message.setter) == (timer_id("key1"), "O1", "user app ana")
    assert (message.due, message.rule, message.zone) == (door.clock.now + 90 * 60_000, "", "UTC")
    assert (message.misfire, message.lateness, message.subject) == ("skip", 3_600_000, "film:1")
    assert message.data == {"text": "pick up Ana"}


async def test_a_rule_is_told_with_its_zone_from_its_first_instant_on(door: Door) -> None:
    await set_timer(door, {"rule": "FREQ=DAILY;BYHOUR=8", "zone": "Europe/Rome", "text": "wake"})
    (message,) = told(door)
    assert isinstance(message, SetTimer)
    assert (message.rule, message.zone) == ("FREQ=DAILY;BYHOUR=8;BYMINUTE=0;BYSECOND=0", "Europe/Rome")
    assert message.due > door.clock.now


async def test_each_field_of_it_is_attested(door: Door) -> None:
    await set_timer(door)
    (message,) = told(door)
    assert isinstance(message, SetTimer)
    assert attestation_is_valid(SEAL_KEYS, message.attestation, *message.attested("s1"))
    assert not attestation_is_valid(SEAL_KEYS, message.attestation, *message.attested("s2"))
    for change in ({"due": message.due + 1}, {"data": {"text": "other"}}, {"setter": "user app bob"}, {"lateness": 1}):
        changed = message.model_copy(update=change)
        assert not attestation_is_valid(SEAL_KEYS, message.attestation, *changed.attested("s1"))
    other = SealKeys((("k1", b"x" * 32),))
    assert not attestation_is_valid(other, message.attestation, *message.attested("s1"))


async def test_a_step_delivered_again_sets_no_other_timer(door: Door) -> None:
    call = step("set_timer", WISH, now=door.clock.now)
    await door.send(call)
    door.clock.now += 24 * 3_600_000  # its time is past now, and it is done all the same
    assert await door.send(call) is Settled.REPEATED
    assert [answer.state for answer in door.finished()] == ["committed", "committed"]
    assert len(told(door)) == 1


async def test_a_webhooks_turn_sets_no_timer_by_itself(door: Door) -> None:
    await set_timer(door, seals=[seal(origin=RESTAURANT, at=door.clock.now)])
    (answer,) = door.finished()
    assert answer.state == "refused"
    assert "needs an approval" in answer.reason
    assert told(door) == []


async def test_an_accepted_timer_is_set_by_who_accepted_it(door: Door) -> None:
    decision = await door.accept("A1", [{"tool": "set_timer", "args": WISH}], lapses_at=door.clock.now + 60_000)
    await door.send(step("set_timer", {}, now=door.clock.now, action="A1", seals=[decision]))
    (message,) = told(door)
    assert isinstance(message, SetTimer)
    assert message.setter == "user app ana"


async def test_a_timer_that_cannot_be_is_refused_with_the_reason_and_not_told(door: Door) -> None:
    await set_timer(door, {"at": "2020-01-01T00:00:00Z", "text": "too late"})
    (answer,) = door.finished()
    assert (answer.state, answer.reason) == ("refused", "2020-01-01T00:00:00+00:00 is past")
    assert told(door) == []


@pytest.mark.parametrize("args", [{"in": "soon", "text": "x"}, {"in": "1h"}, {"in": "1h", "text": "x", "misfire": "y"}])
async def test_arguments_that_do_not_fit_are_turned_away(door: Door, args: dict[str, Any]) -> None:
    assert await set_timer(door, args) is Settled.REFUSED
    assert told(door) == []


async def test_a_timer_is_cancelled_under_our_attestation(door: Door) -> None:
    await door.send(step("cancel_timer", {"timer": "abc"}, now=door.clock.now))
    (message,) = told(door)
    assert isinstance(message, StopTimer)
    assert (message.timer, message.reason) == ("abc", "cancelled by O1")
    assert attestation_is_valid(SEAL_KEYS, message.attestation, *message.attested("s1"))
    assert not attestation_is_valid(SEAL_KEYS, message.attestation, *message.attested("s2"))
    assert door.finished()[0].result == {"timer": "abc"}


async def test_a_timer_whose_holder_was_killed_is_set_by_whoever_takes_over(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def killed(*args: object, **options: object) -> None:
        reached.set()
        await asyncio.sleep(60)

    with monkeypatch.context() as patched:
        patched.setattr(door.ledger, "record", killed)
        handling = asyncio.create_task(set_timer(door))
        await asyncio.wait_for(reached.wait(), 5)
        handling.cancel()
        await asyncio.gather(handling, return_exceptions=True)
    assert told(door) == []
    door.clock.now += 60_000
    await door.sweeper.take_over_ended()
    assert [answer.state for answer in door.finished()] == ["committed"]
    (message,) = told(door)
    assert isinstance(message, SetTimer)
    assert (message.timer, message.setter) == (timer_id("key1"), "user app ana")

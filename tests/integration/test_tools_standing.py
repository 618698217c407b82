"""Standing approvals at the door, on a real Redis: what a user granted in advance, used by whom and how often (G3, G4).

The destination's own list says what was really sent.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.contracts.tools import RunStep, WithdrawOperation
from libs.runtime.settle import Outcome
from services.tools.domain import Failed, Refused, Unknown
from services.tools.domain import Outcome as ToolOutcome
from services.tools.standing import LOOKED_AT_MS, MARGIN_MS
from tests.support.door import HOUR_MS, RESTAURANT, Door, open_door, seal, step

ARGS = {"party": 4, "day": "Fri"}


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        await opened.own()
        yield opened


def offer(door: Door, args: dict[str, Any] | None = None, *, name: str = "in1", **more: Any) -> RunStep:
    """A webhook's step, offered: its owner would be asked."""
    session = more.pop("session", "s1")
    sealed = seal(session=session, name=name, origin=RESTAURANT, at=door.clock.now)
    return step("rent", ARGS if args is None else args, now=door.clock.now, seals=[sealed], offer=True, **more)


def answers(door: Door) -> list[str]:
    return [answer.state for answer in door.finished()]


async def test_a_webhooks_step_within_what_was_granted_runs_and_is_told_with_its_approval(door: Door) -> None:
    id = await door.grant()
    assert await door.send(offer(door)) is Outcome.HANDLED
    (answer,) = door.finished()
    assert (answer.state, answer.standing) == ("committed", id)
    (use,) = (await door.granted(id)).uses
    assert (use.operation, use.session, use.args, use.source, use.state) == ("O1", "s1", ARGS, "restaurant", "spent")
    assert use.at == door.clock.now


async def test_without_an_approval_the_owner_is_asked_and_nothing_is_sent(door: Door) -> None:
    assert await door.send(offer(door)) is Outcome.REFUSED
    (answer,) = door.finished()
    assert (answer.state, answer.code, answer.status) == ("needs_consent", "needs_consent", 403)
    assert door.destination.calls == []
    assert door.counted("rent", "needs_consent") == 1


@pytest.mark.parametrize(
    "args",
    [{"party": 5, "day": "Fri"}, {"party": 4, "day": "Sun"}, {"party": 4, "day": "Fri", "note": "and the deposit"}],
)
async def test_a_step_outside_the_limits_is_asked_about(door: Door, args: dict[str, Any]) -> None:
    id = await door.grant()
    await door.send(offer(door, args))
    assert answers(door) == ["needs_consent"]
    assert (await door.granted(id)).taken == 0


async def test_an_approval_is_used_as_often_as_it_was_granted(door: Door) -> None:
    id = await door.grant(uses=2)
    for number in range(3):
        await door.send(offer(door, key=f"k{number}", operation=f"O{number}", name=f"in{number}", root=f"T{number}"))
    assert answers(door) == ["committed", "committed", "needs_consent"]
    assert len(door.destination.calls) == 2
    assert (await door.granted(id)).state(door.clock.now) == "used_up"


async def test_another_users_approval_covers_nothing_here(door: Door) -> None:
    await door.grant(user="ben")
    await door.send(offer(door))
    assert answers(door) == ["needs_consent"]


async def test_an_approval_for_one_source_is_not_anothers(door: Door) -> None:
    id = await door.grant(sources=["cinema"])
    await door.send(offer(door))
    assert answers(door) == ["needs_consent"]
    assert (await door.granted(id)).taken == 0


async def test_a_call_without_an_offer_is_refused_although_it_was_granted(door: Door) -> None:
    await door.grant()
    await door.send(offer(door).model_copy(update={"offer": False}))
    assert answers(door) == ["refused"]


async def test_a_tool_that_may_not_be_granted_is_asked_about(door: Door) -> None:
    await door.grant(tool="mail", limits={})
    await door.send(offer(door, {}).model_copy(update={"tool": "mail"}))
    assert answers(door) == ["needs_consent"]


@pytest.mark.parametrize("ends", ["revoked", "over", "not begun"])
async def test_an_approval_counts_neither_before_nor_after_its_time(door: Door, ends: str) -> None:
    id = await door.grant(begins_at=door.clock.now + 1_000) if ends == "not begun" else await door.grant()
    if ends == "revoked":
        await door.revoke(id)
    if ends == "over":
        door.clock.now += HOUR_MS + 1
    await door.send(offer(door))
    assert answers(door) == ["needs_consent"]
    assert door.destination.calls == []


async def test_a_repeat_of_a_step_that_was_asked_about_never_runs_whatever_was_granted_since(door: Door) -> None:
    call = offer(door)
    await door.send(call)
    id = await door.grant()
    assert await door.send(call) is Outcome.REPEATED
    assert answers(door) == ["needs_consent", "needs_consent"]
    assert door.destination.calls == []
    assert (await door.granted(id)).taken == 0


async def test_a_repeat_of_a_step_that_ran_is_one_effect_and_one_use(door: Door) -> None:
    id = await door.grant(uses=3)
    for _ in range(3):
        await door.send(offer(door))
    assert answers(door) == ["committed"] * 3
    assert len(door.destination.calls) == 1
    assert (await door.granted(id)).taken == 1


async def test_copies_at_once_on_several_replicas_are_one_effect_and_one_use(
    door: Door, redis_url: str, namespace: str
) -> None:
    id = await door.grant(uses=3)
    async with open_door(redis_url, namespace, replica="1") as other:
        await asyncio.gather(*(one.send(offer(door)) for one in (door, other) * 10))
        assert len(door.destination.calls) + len(other.destination.calls) == 1
    assert (await door.granted(id)).taken == 1


async def test_twenty_steps_at_once_for_three_uses_are_three_effects(door: Door) -> None:
    id = await door.grant(uses=3)
    calls = [offer(door, key=f"k{n}", operation=f"O{n}", name=f"in{n}", root=f"T{n}") for n in range(20)]
    await asyncio.gather(*(door.send(call) for call in calls))
    assert sorted(answers(door)) == ["committed"] * 3 + ["needs_consent"] * 17
    assert len(door.destination.calls) == 3
    assert [use.state for use in (await door.granted(id)).uses] == ["spent"] * 3


@pytest.mark.parametrize(
    ("outcome", "left"), [(Failed("no route"), 1), (Refused("full"), 0), (Unknown("no answer"), 0)]
)
async def test_a_use_is_free_again_only_where_nothing_was_sent(door: Door, outcome: ToolOutcome, left: int) -> None:
    id = await door.grant()
    door.destination.always(outcome)
    await door.send(offer(door))
    grant = await door.granted(id)
    assert grant.request.uses - grant.taken == left


async def test_what_failed_before_it_was_sent_runs_under_the_same_approval_when_tried_anew(door: Door) -> None:
    id = await door.grant()
    door.destination.always(Failed("no route"))
    await door.send(offer(door))
    door.destination.act = door.destination.commit
    await door.send(offer(door, operation="O2"))
    assert answers(door) == ["failed", "committed"]
    assert (await door.granted(id)).taken == 1


async def test_a_withdrawn_step_leaves_its_use(door: Door) -> None:
    id = await door.grant()
    await door.send(WithdrawOperation(operation="O1", key="key1", not_after=door.clock.now + HOUR_MS))
    await door.send(offer(door))
    assert door.destination.calls == []
    assert (await door.granted(id)).taken == 0


async def reserved_and_gone(door: Door, call: RunStep, name: str = "m1") -> None:
    """Handle a call up to the reservation, and end there as a killed process does."""
    reached = asyncio.Event()

    async def never(*_: Any, **__: Any) -> Any:
        reached.set()
        await asyncio.sleep(60)

    claim, door.ledger.claim = door.ledger.claim, never  # type: ignore[method-assign, assignment]
    handling = asyncio.create_task(door.send(call, call=name))
    await asyncio.wait_for(reached.wait(), 5)
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    door.ledger.claim = claim  # type: ignore[method-assign]


async def test_a_crash_between_reservation_and_claim_is_one_use_when_the_call_comes_again(door: Door) -> None:
    id, call = await door.grant(), offer(door)
    await reserved_and_gone(door, call)
    assert [use.state for use in (await door.granted(id)).uses] == ["reserved"]
    await door.send(call, call="m1")
    assert answers(door) == ["committed"]
    assert [use.state for use in (await door.granted(id)).uses] == ["spent"]
    assert (await door.granted(id)).taken == 1


async def test_a_use_whose_call_never_comes_again_is_free_once_it_can_be_claimed_no_more(door: Door) -> None:
    id = await door.grant(lasts=48 * HOUR_MS)
    await reserved_and_gone(door, offer(door, not_after=door.clock.now + HOUR_MS))
    door.clock.now += LOOKED_AT_MS + 1
    await door.uses.sweep()
    assert (await door.granted(id)).taken == 1, "the call may still come"
    door.clock.now += HOUR_MS + MARGIN_MS
    await door.uses.sweep()
    assert (await door.granted(id)).taken == 0
    assert (await door.granted(id)).uses == ()
    await door.uses.sweep()
    assert await door.grants.due(door.clock.now + 10 * HOUR_MS) == []


async def test_a_crash_after_the_claim_leaves_a_use_that_is_known_to_be_spent(door: Door) -> None:
    id, call = await door.grant(), offer(door)

    async def gone(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError

    settle, door.grants.settle = door.grants.settle, gone  # type: ignore[method-assign, assignment]
    with pytest.raises(asyncio.CancelledError):
        await door.send(call)
    door.grants.settle = settle  # type: ignore[method-assign]
    assert [use.state for use in (await door.granted(id)).uses] == ["reserved"]
    door.clock.now += LOOKED_AT_MS + 1
    await door.uses.sweep()
    assert [use.state for use in (await door.granted(id)).uses] == ["spent"]


@pytest.mark.parametrize("ends", ["revoked", "over"])
async def test_an_approval_that_ends_between_reservation_and_claim_is_asked_about(door: Door, ends: str) -> None:
    id, call = await door.grant(), offer(door)
    await reserved_and_gone(door, call)
    if ends == "revoked":
        await door.revoke(id)
    else:
        door.clock.now += HOUR_MS + 1
    await door.send(call, call="m1")
    assert answers(door) == ["needs_consent"]
    assert door.destination.calls == []
    assert (await door.granted(id)).taken == 0


async def test_a_reserved_use_serves_no_other_arguments_under_its_key(door: Door) -> None:
    id = await door.grant()
    await reserved_and_gone(door, offer(door))
    await door.send(offer(door, {"party": 400, "day": "Fri"}), call="m2")
    await door.send(offer(door, {"party": 2, "day": "Fri"}), call="m3")
    assert door.destination.calls == []
    assert (await door.granted(id)).taken == 1


async def test_a_late_call_that_frees_its_use_leaves_that_of_its_successor(door: Door) -> None:
    """One use, two calls under a key: the first learns that it failed while the second has reserved and not claimed."""
    id = await door.grant()
    door.destination.always(Failed("no route"))
    call = offer(door)
    await door.send(call, call="m1")
    door.destination.act = door.destination.commit
    await reserved_and_gone(door, call.model_copy(update={"operation": "O2"}), "m2")
    await door.send(call, call="m1")  # delivered again: it reserves, hears of its failure, and frees
    assert (await door.granted(id)).taken == 1
    await door.send(call.model_copy(update={"operation": "O2"}), call="m2")
    assert len(door.destination.calls) == 2
    assert (await door.granted(id)).taken == 1


async def test_a_users_own_step_uses_no_approval(door: Door) -> None:
    id = await door.grant()
    await door.send(replace_origin(door))
    assert answers(door) == ["committed"]
    assert (await door.granted(id)).taken == 0


async def test_what_is_for_the_user_alone_is_held_back_when_the_session_offers_it(door: Door) -> None:
    mine = seal(at=door.clock.now)
    await door.send(step("whisper", {}, now=door.clock.now, seals=[mine], offer=True))
    assert answers(door) == ["needs_consent"]
    assert door.destination.calls == []


async def test_whom_a_tool_does_not_let_has_its_owner_asked_and_no_approval_used(door: Door) -> None:
    id = await door.grant("lend")
    lent = offer(door).model_copy(update={"tool": "lend"})
    await door.send(lent)
    await door.send(lent.model_copy(update={"offer": False, "key": "k2", "operation": "O2"}))
    assert [(answer.state, answer.code) for answer in door.finished()] == [
        ("needs_consent", "needs_consent"),
        ("refused", "not_permitted"),
    ]
    assert door.destination.calls == []
    assert (await door.granted(id)).taken == 0


def replace_origin(door: Door) -> RunStep:
    return offer(door).model_copy(update={"seals": (seal(at=door.clock.now),)})


async def test_in_a_session_of_somebody_else_the_approval_of_its_owner_counts(door: Door) -> None:
    id = await door.grant(user="ben")
    await door.own("s2", "ben")
    await door.send(offer(door, session="s2"), session="s2")
    assert answers(door) == ["committed"]
    assert (await door.granted(id, "ben")).taken == 1

"""The scripts of standing approvals on a real Redis: every branch, time to live, a race and a replay."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.standing import KEPT_MS
from services.tools.ports import Told
from services.tools.standing import LOOKED_AT_MS, Reserved, Wanted
from tests.support.door import HOUR_MS, RESTAURANT, Door, open_door, seal, step

ARGS = {"party": 4, "day": "Fri"}


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        yield opened


def wanted(door: Door, key: str = "k1", call: str = "m1", **more: Any) -> Wanted:
    fields: dict[str, Any] = {
        "session": "s1", "key": key, "operation": "O1", "call": call, "tool": "rent", "args": ARGS,
        "source": "restaurant", "not_after": door.clock.now + HOUR_MS, "fingerprint": "f", **more,
    }  # fmt: skip
    return Wanted(**fields)


async def reserve(door: Door, wish: Wanted | None = None) -> Reserved | None:
    return await door.grants.reserve("ana", wish or wanted(door), door.clock.now)


async def settle(door: Door, id: str, fate: Any, call: str = "m1", key: str = "k1") -> str:
    return await door.grants.settle("ana", id, "s1", key, fate, call)


async def dump(door: Door, id: str) -> Any:
    redis, keys = door.store.redis, door.keys
    return (
        await redis.hgetall(keys.of_user("standing", "ana", id)),
        await redis.zrange(keys.of_user_shard("standinguse", "ana"), 0, -1, withscores=True),
    )


async def test_twenty_reservations_at_once_for_three_uses_are_three(door: Door) -> None:
    id = await door.grant(uses=3)
    found = await asyncio.gather(*(reserve(door, wanted(door, f"k{n}", f"m{n}")) for n in range(20)))
    assert len([one for one in found if one is not None]) == 3
    assert (await door.granted(id)).taken == 3


async def test_the_same_reservation_again_changes_nothing_and_answers_the_same(door: Door) -> None:
    id = await door.grant(uses=3)
    first = await reserve(door)
    stored = await dump(door, id)
    assert await reserve(door) == first == Reserved("ana", id, (await door.granted(id)).request.ends_at)
    assert await dump(door, id) == stored


async def test_twenty_calls_of_one_operation_are_one_use(door: Door) -> None:
    id = await door.grant(uses=3)
    await asyncio.gather(*(reserve(door, wanted(door, call=f"m{n}")) for n in range(20)))
    assert (await door.granted(id)).taken == 1


async def test_the_next_approval_serves_where_the_first_is_used_up(door: Door) -> None:
    first, second = await door.grant(name="a"), await door.grant(name="b", lasts=2 * HOUR_MS)
    found = [await reserve(door, wanted(door, f"k{n}", f"m{n}")) for n in range(3)]
    assert [one.grant if one else "" for one in found] == [first, second, ""]


async def test_an_operation_keeps_its_use_although_an_earlier_approval_has_room_again(door: Door) -> None:
    first, second = await door.grant(name="a"), await door.grant(name="b", lasts=2 * HOUR_MS)
    await reserve(door, wanted(door, "k1"))
    await reserve(door, wanted(door, "k2", "m2"))
    await settle(door, first, "freed")
    again = await reserve(door, wanted(door, "k2", "m2"))
    assert again is not None
    assert again.grant == second
    assert (await door.granted(first)).taken == 0


@pytest.mark.parametrize("fate, stands", [("spent", "spent"), ("freed", "freed"), ("void", "freed")])
async def test_a_use_is_settled_once_and_a_replay_changes_nothing(door: Door, fate: str, stands: str) -> None:
    id = await door.grant()
    await reserve(door)
    assert await settle(door, id, fate) == stands
    stored = await dump(door, id)
    assert await settle(door, id, fate) == ("spent" if stands == "spent" else "absent")
    assert await dump(door, id) == stored
    assert stored[1] == []
    assert (await door.granted(id)).taken == (1 if stands == "spent" else 0)


@pytest.mark.parametrize("fate", ["freed", "void"])
async def test_what_is_spent_stays_spent(door: Door, fate: str) -> None:
    id = await door.grant()
    await reserve(door)
    await settle(door, id, "spent")
    assert await settle(door, id, fate) == "spent"
    assert (await door.granted(id)).taken == 1


async def test_a_spent_use_of_a_revoked_approval_lets_nothing_new_be_claimed(door: Door) -> None:
    """Its operation may have failed after all, and its key be free again (G3)."""
    id = await door.grant()
    await reserve(door)
    await settle(door, id, "spent")
    await door.revoke(id)
    again = await reserve(door, wanted(door, call="m2"))
    assert again is not None
    assert again.over


async def test_a_use_that_two_calls_may_claim_is_free_when_both_have_given_it_up(door: Door) -> None:
    id = await door.grant()
    await reserve(door, wanted(door, call="m1"))
    await reserve(door, wanted(door, call="m2"))
    assert await settle(door, id, "freed", "m1") == "held"
    assert await settle(door, id, "freed", "m1") == "held"
    assert await settle(door, id, "freed", "m2") == "freed"


async def test_a_call_whose_name_is_part_of_anothers_frees_only_itself(door: Door) -> None:
    id = await door.grant()
    await reserve(door, wanted(door, call="m1"))
    await reserve(door, wanted(door, call="m11"))
    assert await settle(door, id, "freed", "1") == "held"
    assert await settle(door, id, "freed", "m1") == "held"
    assert await settle(door, id, "freed", "m11") == "freed"


async def test_a_use_reserved_before_its_approval_ended_is_told_so(door: Door) -> None:
    id = await door.grant()
    await reserve(door)
    await door.revoke(id)
    found = await reserve(door, wanted(door, call="m2"))
    assert found is not None
    assert found.over
    assert await reserve(door, wanted(door, "k2", "m3")) is None


async def test_the_stores_clock_counts_where_ours_is_behind(door: Door) -> None:
    id = await door.grant(lasts=-1_000)
    door.clock.now -= HOUR_MS
    assert await reserve(door) is None
    assert (await door.granted(id)).taken == 0


async def test_a_use_is_looked_at_soon_and_until_no_claim_can_come(door: Door) -> None:
    id = await door.grant(lasts=48 * HOUR_MS)
    await reserve(door)
    await reserve(door, wanted(door, call="m2", not_after=door.clock.now + 2 * HOUR_MS))
    assert await door.grants.due(door.clock.now + LOOKED_AT_MS - 1) == []
    assert await door.grants.due(door.clock.now + LOOKED_AT_MS) == [("ana", id, "s1", "k1")]
    assert await door.grants.last_claim("ana", id, "s1", "k1") == door.clock.now + 2 * HOUR_MS


async def test_a_use_lives_as_long_as_its_approval(door: Door) -> None:
    id = await door.grant()
    await reserve(door)
    left = await door.store.redis.pttl(door.keys.of_user("standing", "ana", id))
    assert HOUR_MS < left <= HOUR_MS + KEPT_MS


async def test_a_key_is_closed_once_and_what_was_claimed_never(door: Door) -> None:
    sealed = [seal(origin=RESTAURANT, at=door.clock.now)]
    call = step("rent", ARGS, now=door.clock.now, seals=sealed, offer=True)
    judged = await door.handlers._judge(call, "s1")

    async def close(told: str, state: Any = "needs_consent") -> bool:
        return await door.ledger.close(call, judged, "s1", Told(told), state, None, "", [], door.clock.now)  # type: ignore[arg-type]

    assert await close("m1")
    stored = await door.operation("key1")
    assert await close("m1"), "the reply may have been lost"
    assert await door.operation("key1") == stored
    assert not await close("m2"), "another call hears what is known"
    left = await door.store.redis.pttl(door.keys.of_session("operation", "s1", "key1"))
    assert left > 48 * HOUR_MS
    free = replace(judged, not_after=door.clock.now + HOUR_MS)  # type: ignore[type-var]
    other = call.model_copy(update={"key": "key2"})
    await door.ledger.claim(other, free, "s1", Told("m1"), lease_ms=1_000, now=door.clock.now)  # type: ignore[arg-type]
    call = other
    assert not await close("m1")
    assert (await door.operation("key2"))["state"] == "pending"

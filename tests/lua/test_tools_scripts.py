"""The door's scripts on a real Redis: every branch, time to live, a race and a replay."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import services.tools
from libs.contracts.tools import RunStep, action_key
from services.tools.domain import Admitted, admit
from services.tools.ports import Held, Known, Told, Turned, Work
from services.tools.store import RETENTION_MS, RedisLedger
from tests.support.door import HOUR_MS, RESTAURANT, SEAL_KEYS, Door, open_door, seal, step

SCRIPTS = sorted((Path(services.tools.__file__).parent / "lua").glob("*.lua"))
LEASE_MS = 4000


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace, steps=3) as opened:
        yield opened


async def claim(
    door: Door, call: RunStep, *, told: str = "m1", ledger: RedisLedger | None = None, now: int | None = None
) -> Any:
    action = await door.ledger.action("s1", call.action) if call.action else None
    judged = admit(call, "s1", door.catalogue, SEAL_KEYS, action=action, everybody_is_user=True)
    assert isinstance(judged, Admitted), judged
    at = door.clock.now if now is None else now
    return await (ledger or door.ledger).claim(call, judged, "s1", Told(call=told), lease_ms=LEASE_MS, now=at)


async def claimed(door: Door, **options: Any) -> Work:
    found = await claim(door, step(now=door.clock.now, **options))
    assert isinstance(found, Work)
    return found


async def record(door: Door, work: Work, state: Any = "committed", ledger: RedisLedger | None = None) -> Any:
    _, messages = door.answers.outcome(work, state, {"id": "r"}, "", door.clock.now)
    return await (ledger or door.ledger).record(work, state, {"id": "r"}, "", messages, door.clock.now)


def other(door: Door, *, replica: str = "1", incarnation: str = "i1") -> RedisLedger:
    """Another process on the same store."""
    return RedisLedger(
        door.store, door.keys, door.outbox, replica=replica, incarnation=incarnation, step_cap=3  # type: ignore[arg-type]
    )  # fmt: skip


async def ttl(door: Door, key: str = "key1") -> int:
    return int(await door.store.redis.pttl(door.keys.of_session("operation", "s1", key)))


async def in_family(door: Door, family: str) -> list[tuple[str, str]]:
    return await door.ledger.members(family)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_header_names_every_key_and_argument(script: Path) -> None:
    text = script.read_text()
    header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
    body = re.sub(r"^--.*$", "", text, flags=re.M)
    for kind in ("KEYS", "ARGV"):
        used = max(int(number) for number in re.findall(rf"{kind}\[(\d+)\]", body))
        listed = header.partition(f"-- {kind}")[2].partition("-- RETURNS" if kind == "ARGV" else "-- ARGV")[0]
        told = [int(number) for number in re.findall(r"(?<![\w-])(\d+)(?:-\d+)?\s", listed)]
        told += [int(number) for number in re.findall(r"\d+-(\d+)\s", listed)]
        assert used <= max(told) + 1, f"{kind}[{used}] is not in the header"
    assert "INVARIANT" in header
    assert "Atomic" in header


async def test_an_absent_key_is_claimed_and_stored_before_it_runs(door: Door) -> None:
    work = await claimed(door)
    stored = await door.operation("key1")
    assert (stored["state"], stored["owner"], stored["id"]) == ("pending", work.owner, "O1")
    assert stored["args"] == '{"party":4}'
    assert await ttl(door) == -1, "what is pending never expires"
    assert await in_family(door, "lease") == [("s1", "key1")]
    assert await door.ledger.of_session("s1") == [("O1", "key1")]


async def test_the_same_claim_again_is_ours_and_changes_nothing(door: Door) -> None:
    call = step(now=door.clock.now)
    first = await claim(door, call)
    stored = await door.operation("key1")
    again = await claim(door, call)
    assert replace(again, now=first.now) == first
    assert again.send_by <= first.send_by + 0.1, "asking again is no longer lease"
    assert await door.operation("key1") == stored


async def test_of_two_replicas_at_once_one_claims(door: Door) -> None:
    call = step(now=door.clock.now)
    found = await asyncio.gather(*(claim(door, call, ledger=other(door, replica=str(n))) for n in range(8)))
    assert sorted(type(one).__name__ for one in found) == ["Held"] * 7 + ["Work"]


async def test_a_key_past_its_end_is_never_claimed(door: Door) -> None:
    found = await claim(door, step(now=door.clock.now, not_after=door.clock.now - 1))
    assert found == Turned("expired")
    assert await door.operation("key1") == {}


async def test_the_stores_clock_counts_where_ours_is_behind(door: Door) -> None:
    call = step(now=door.clock.now, not_after=door.clock.now - 1000)
    assert await claim(door, call, now=door.clock.now - HOUR_MS) == Turned("expired")


async def test_a_key_used_for_something_else_is_a_conflict(door: Door) -> None:
    await claimed(door)
    for changed in ({"args": {"party": 5}}, {"tool": "mail"}):
        assert await claim(door, step(now=door.clock.now, **changed)) == Turned("conflict")  # type: ignore[arg-type]


async def test_another_tool_without_arguments_is_a_conflict_too(door: Door) -> None:
    await claimed(door, tool="mail", args={})
    assert await claim(door, step("look", {}, now=door.clock.now)) == Turned("conflict")


async def test_a_held_key_names_its_holder(door: Door) -> None:
    work = await claimed(door)
    found = await claim(door, step(now=door.clock.now), ledger=other(door))
    assert isinstance(found, Held)
    assert (found.owner, found.call) == (work.owner, "m1")
    assert door.clock.now < found.lease_until <= found.now + LEASE_MS


@pytest.mark.parametrize("state", ["committed", "refused", "failed", "unknown"])
async def test_a_finished_key_gives_its_answer_again(door: Door, state: str) -> None:
    await record(door, await claimed(door), state)
    found = await claim(door, step(now=door.clock.now))
    assert isinstance(found, Known)
    assert (found.state, found.result, found.operation, found.call) == (state, {"id": "r"}, "O1", "m1")


async def test_a_failure_before_sending_releases_the_key_for_another_call(door: Door) -> None:
    await record(door, await claimed(door), "failed")
    found = await claim(door, step(now=door.clock.now, operation="O2"), told="m2")
    assert isinstance(found, Work)
    assert found.attempt == 2
    assert "result" not in await door.operation("key1")
    assert await ttl(door) == -1


@pytest.mark.parametrize("state", ["committed", "refused", "unknown"])
async def test_nothing_else_releases_a_key(door: Door, state: str) -> None:
    await record(door, await claimed(door), state)
    assert isinstance(await claim(door, step(now=door.clock.now, operation="O2"), told="m2"), Known)


async def test_a_released_key_is_not_claimed_past_its_end(door: Door) -> None:
    await record(door, await claimed(door, not_after=door.clock.now + HOUR_MS), "failed")
    call = step(now=door.clock.now, operation="O2", not_after=door.clock.now - 50)
    assert isinstance(await claim(door, call, told="m2"), Known)


async def test_a_finished_operation_outlives_its_end_by_two_days(door: Door) -> None:
    await record(door, await claimed(door, not_after=door.clock.now + HOUR_MS))
    assert HOUR_MS + RETENTION_MS - 10_000 < await ttl(door) <= HOUR_MS + RETENTION_MS
    assert await in_family(door, "lease") == []


async def test_what_is_unknown_never_expires_and_is_listed(door: Door) -> None:
    await record(door, await claimed(door), "unknown")
    assert await ttl(door) == -1
    assert await in_family(door, "unknown") == [("s1", "key1")]
    assert await door.ledger.unknown_count() == 1


async def test_recording_again_changes_nothing(door: Door) -> None:
    work = await claimed(door)
    assert await record(door, work) is None
    stored = await door.operation("key1")
    assert await record(door, work) is None
    assert await door.operation("key1") == stored


async def test_an_outcome_is_stored_with_its_messages(door: Door) -> None:
    await record(door, await claimed(door))
    held = await door.store.redis.hkeys(door.outbox.keys("s1")[0])
    assert {raw.decode() for raw in held} == {message.id for message in door.outbox.posted}
    assert len(held) == 3


async def test_a_lease_that_runs_cannot_be_taken(door: Door) -> None:
    await claimed(door)
    taken = await other(door).take_over("s1", "key1", gone="", lease_ms=LEASE_MS, now=door.clock.now)
    assert isinstance(taken, Held)


async def test_an_ended_lease_is_taken_once(door: Door) -> None:
    work = await claimed(door)
    late = door.clock.now + LEASE_MS + 60_000
    takers = [other(door, replica=str(number)) for number in range(1, 5)]
    found = await asyncio.gather(*(t.take_over("s1", "key1", gone="", lease_ms=LEASE_MS, now=late) for t in takers))
    taken = [one for one in found if isinstance(one, Work)]
    assert len(taken) == 1
    assert (taken[0].args, taken[0].context.call, taken[0].attempt) == ({"party": 4}, "m1", 1)
    assert taken[0].owner != work.owner


async def test_a_holder_known_to_be_gone_is_followed_at_once(door: Door) -> None:
    work = await claimed(door)
    taken = await other(door).take_over("s1", "key1", gone=work.owner, lease_ms=LEASE_MS, now=door.clock.now)
    assert isinstance(taken, Work)


async def test_a_late_holder_cannot_overwrite_its_successor(door: Door) -> None:
    """C087."""
    late = await claimed(door)
    heir = await other(door).take_over("s1", "key1", gone=late.owner, lease_ms=LEASE_MS, now=door.clock.now)
    assert await record(door, late) == "pending"
    assert isinstance(heir, Work)
    assert await record(door, heir, "unknown") is None
    assert await record(door, late) == "unknown"
    assert (await door.operation("key1"))["state"] == "unknown"


async def test_taking_what_is_finished_only_clears_the_lease(door: Door) -> None:
    await record(door, await claimed(door))
    lease = door.keys.of_session_partition("lease", "s1")
    await door.store.redis.zadd(lease, {"s1:key1": 1})
    assert await door.ledger.take_over("s1", "key1", gone="", lease_ms=1, now=door.clock.now) == "committed"
    assert await in_family(door, "lease") == []


async def test_withdrawing_an_absent_key_leaves_a_tombstone(door: Door) -> None:
    end = door.clock.now + HOUR_MS
    for _ in range(2):
        assert await door.ledger.withdraw("s1", "key1", "O1", end, "w1", [], door.clock.now) is None
    found = await claim(door, step(now=door.clock.now))
    assert isinstance(found, Known)
    assert found.state == "withdrawn"
    assert RETENTION_MS < await ttl(door) <= HOUR_MS + RETENTION_MS


async def test_withdrawing_what_is_claimed_changes_nothing(door: Door) -> None:
    work = await claimed(door)
    stored = await door.operation("key1")
    found = await door.ledger.withdraw("s1", "key1", "O1", door.clock.now, "w1", [], door.clock.now)
    assert isinstance(found, Known)
    assert found.state == "pending"
    assert await door.operation("key1") == stored
    assert await record(door, work) is None


async def test_withdrawing_a_released_key_closes_it(door: Door) -> None:
    await record(door, await claimed(door), "failed")
    assert await door.ledger.withdraw("s1", "key1", "O1", door.clock.now, "w1", [], door.clock.now) is None
    found = await claim(door, step(now=door.clock.now, operation="O2"), told="m2")
    assert isinstance(found, Known)
    assert found.state == "withdrawn"


async def test_an_input_belongs_to_one_root_turn(door: Door) -> None:
    await claimed(door)
    found = await claim(door, step(now=door.clock.now, key="key2", root="T2", turn="T2"))
    assert found == Turned("refused", "an input belongs to another turn")
    assert await door.operation("key2") == {}


async def test_a_root_turn_has_one_origin(door: Door) -> None:
    await claimed(door, seals=[seal(at=door.clock.now, origin=RESTAURANT)])
    users = [seal(name="in2", at=door.clock.now)]
    found = await claim(door, step(now=door.clock.now, key="key2", seals=users))
    assert found == Turned("refused", "the turn was begun by somebody else")


async def test_a_turns_origin_holds_over_midnight(door: Door) -> None:
    now = door.clock.now
    await claimed(door, seals=[seal(at=now, origin=RESTAURANT)], not_after=now + 48 * HOUR_MS)
    users = [seal(name="in2", at=now + 23 * HOUR_MS)]
    later = step(now=now, key="key2", seals=users, not_after=now + 48 * HOUR_MS)
    found = await claim(door, later, now=now + 23 * HOUR_MS)
    assert found == Turned("refused", "the turn was begun by somebody else")


async def test_a_merged_input_joins_its_turn(door: Door) -> None:
    await claimed(door)
    both = [seal(at=door.clock.now), seal(name="in2", at=door.clock.now, number=2)]
    assert isinstance(await claim(door, step(now=door.clock.now, key="key2", seals=both)), Work)


async def test_an_input_has_a_largest_number_of_steps(door: Door) -> None:
    for number in range(3):
        await claimed(door, key=f"k{number}")
    found = await claim(door, step(now=door.clock.now, key="k3"))
    assert found == Turned("refused", "too many steps for one input")
    again = await claim(door, step(now=door.clock.now, key="k2"))
    assert isinstance(again, Work), "a claim that is repeated is no further step"


async def test_bindings_outlive_the_seals_that_they_bind(door: Door) -> None:
    await claimed(door)
    bucket = door.keys.binding_bucket("s1", "in1", door.clock.now)
    assert 24 * HOUR_MS < await door.store.redis.pttl(bucket) <= 72 * HOUR_MS


async def granted(door: Door, *, lapses_in: int = 60_000, steps: int = 2) -> Any:
    chosen = [{"tool": "wire", "args": {"n": number}} for number in range(steps)]
    return await door.accept("A1", chosen, lapses_at=door.clock.now + lapses_in)


async def test_a_granted_step_is_spent_by_its_own_key(door: Door) -> None:
    decision = await granted(door, steps=1)
    found = await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    assert isinstance(found, Work)
    spent = await door.store.redis.hgetall(door.keys.of_session("action", "s1", "A1"))
    assert spent[b"s0"].decode() == action_key("A1", 0)
    assert int(spent[b"done"]) >= door.clock.now - 1000
    stored = await door.operation(action_key("A1", 0))
    assert (stored["action"], stored["step"]) == ("A1", "0")


async def test_a_step_that_another_key_spent_is_refused(door: Door) -> None:
    decision = await granted(door)
    await door.store.redis.hset(door.keys.of_session("action", "s1", "A1"), "s0", "another")
    found = await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    assert found == Turned("refused", "the step is spent")


async def test_steps_of_an_action_run_in_their_order(door: Door) -> None:
    decision = await granted(door)
    second = step(now=door.clock.now, action="A1", number=1, seals=[decision])
    assert await claim(door, second) == Turned("refused", "an earlier step is not committed")
    first = await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    assert await claim(door, second) == Turned("refused", "an earlier step is not committed")
    await record(door, first)
    assert isinstance(await claim(door, second), Work)


async def test_a_step_after_one_that_was_refused_never_runs(door: Door) -> None:
    decision = await granted(door)
    await record(door, await claim(door, step(now=door.clock.now, action="A1", seals=[decision])), "refused")
    found = await claim(door, step(now=door.clock.now, action="A1", number=1, seals=[decision]))
    assert found == Turned("refused", "an earlier step is not committed")


async def test_a_grant_lapses(door: Door) -> None:
    decision = await granted(door, lapses_in=-1)
    found = await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    assert found == Turned("refused", "the approval has lapsed")


async def test_a_grant_that_was_said_to_have_lapsed_opens_nothing(door: Door) -> None:
    decision = await granted(door)
    await door.store.redis.hset(door.keys.of_session("action", "s1", "A1"), "closed_as", "lapsed")
    found = await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    assert found == Turned("refused", "the approval has lapsed")


@pytest.mark.parametrize("state", ["pending", "declined", "expired", "superseded", "cancelled"])
async def test_only_an_accepted_action_opens_the_door(door: Door, state: str) -> None:
    decision = await granted(door)
    await door.store.redis.hset(door.keys.of_session("action", "s1", "A1"), "state", state)
    found = await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    assert found == Turned("refused", f"the action is {state}")
    assert "s0" not in {k.decode() for k in await door.store.redis.hkeys(door.keys.of_session("action", "s1", "A1"))}


async def test_a_refused_claim_stores_nothing(door: Door) -> None:
    decision = await granted(door, lapses_in=-1)
    await claim(door, step(now=door.clock.now, action="A1", seals=[decision]))
    kept = [key async for key in door.store.redis.scan_iter(f"tk:{door.keys.namespace}:*")]
    assert [key.decode() for key in kept] == [door.keys.of_session("action", "s1", "A1")]


@pytest.mark.parametrize("state", ["committed", "failed"])
async def test_an_operator_resolves_what_is_unknown_once(door: Door, state: Any) -> None:
    await record(door, await claimed(door), "unknown")
    for _ in range(2):
        assert await door.ledger.resolve("s1", "key1", state, "seen", "olga", [], door.clock.now) is None
    assert await door.ledger.resolve("s1", "key1", "committed", "no", "oleg", [], door.clock.now) == state
    assert (await door.operation("key1"))["resolved_by"] == "olga"
    assert await ttl(door) > RETENTION_MS
    assert await door.ledger.unknown_count() == 0


async def test_an_operators_failure_does_not_release_the_key(door: Door) -> None:
    await record(door, await claimed(door), "unknown")
    await door.ledger.resolve("s1", "key1", "failed", "seen", "olga", [], door.clock.now)
    assert isinstance(await claim(door, step(now=door.clock.now, operation="O2"), told="m2"), Known)
    found = await door.ledger.withdraw("s1", "key1", "O1", door.clock.now, "w1", [], door.clock.now)
    assert isinstance(found, Known)


async def test_what_is_absent_cannot_be_resolved(door: Door) -> None:
    assert await door.ledger.resolve("s1", "key1", "failed", "n", "olga", [], door.clock.now) == "absent"


async def test_a_late_holder_cannot_overwrite_an_operator(door: Door) -> None:
    late = await claimed(door)
    heir = await other(door).take_over("s1", "key1", gone=late.owner, lease_ms=LEASE_MS, now=door.clock.now)
    await record(door, heir, "unknown")  # type: ignore[arg-type]
    await door.ledger.resolve("s1", "key1", "failed", "seen", "olga", [], door.clock.now)
    assert await record(door, late) == "failed"
    assert await record(door, heir) == "failed"  # type: ignore[arg-type]


async def test_an_old_operation_becomes_a_tombstone(door: Door) -> None:
    await record(door, await claimed(door, not_after=door.clock.now + 1000))
    await door.ledger.trim("s1", "key1", door.clock.now + 2000)
    stored = await door.operation("key1")
    assert stored["state"] == "committed"
    assert not {"args", "result", "context"} & set(stored)
    assert await door.store.redis.zcard(door.keys.of_session_partition("trim", "s1")) == 0
    found = await claim(door, step(now=door.clock.now))
    assert isinstance(found, Known)
    assert found.state == "committed"


@pytest.mark.parametrize("state", [None, "unknown"])
async def test_what_is_not_finished_is_not_trimmed(door: Door, state: str | None) -> None:
    work = await claimed(door, not_after=door.clock.now + 1000)
    if state:
        await record(door, work, state)
    await door.ledger.trim("s1", "key1", door.clock.now + 2000)
    assert "args" in await door.operation("key1")
    assert await door.store.redis.zcard(door.keys.of_session_partition("trim", "s1")) == 1


async def test_a_sessions_index_keeps_the_newest(door: Door) -> None:
    index = door.keys.of_session("operations", "s1")
    await door.store.redis.zadd(index, {f"O{n}:k{n}": n for n in range(500)})
    await claimed(door)
    found = await door.ledger.of_session("s1")
    assert len(found) == 500
    assert found[-1] == ("O1", "key1")
    assert ("O0", "k0") not in found

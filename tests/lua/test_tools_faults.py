"""Faults on purpose, on a real Redis: in trials only, at the call that they name, once, on whichever replica."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from libs.contracts.faults import ERROR, TIMEOUT, Fault, Trial
from services.tools.domain import Committed, Refused
from services.tools.execution import ANSWER_LOST
from services.tools.faults import _COUNT
from services.tools.ports import Call
from tests.support.door import Door, open_door, seal, step

CAP = 20


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace, trials=True, steps=CAP) as opened:
        yield opened


@pytest.fixture
async def other(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace, replica="1", incarnation="j1", trials=True, steps=CAP) as opened:
        yield opened


async def mark(door: Door, *faults: dict[str, Any], session: str = "s1") -> None:
    """What ingress writes when an operator makes a trial."""
    trial = Trial.of([Fault.model_validate(fault) for fault in faults])
    await door.store.redis.set(door.keys.of_session("trial", session), trial.model_dump_json())


async def call(door: Door, number: int = 1, tool: str = "book", args: Any = None, *, told: str = "") -> Any:
    """Handle one call; the answer."""
    seals = [seal(name=f"in{number}", at=door.clock.now)]
    message = step(
        tool, args, now=door.clock.now, key=f"key{number}", operation=f"O{number}", root=f"T{number}", seals=seals
    )
    await door.send(message, call=told)
    return door.finished()[-1]


async def ledger(door: Door, number: int = 1) -> tuple[str, str, str]:
    stored = await door.operation(f"key{number}")
    return stored["state"], stored.get("fault", ""), stored.get("call_number", "")


async def test_a_timeout_before_commit_sends_nothing_and_releases_the_key(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "timeout_before_commit"})
    told = await call(door)
    assert (told.state, told.reason) == ("unknown", TIMEOUT)
    assert door.destination.calls == []
    assert await ledger(door) == ("failed", "timeout_before_commit", "1")
    assert (await call(door, told="again")).state == "committed", "a repeat claims and runs"
    assert len(door.destination.calls) == 1


async def test_a_timeout_after_commit_is_done_once_and_a_keyed_retry_gets_the_result(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "timeout_after_commit"})
    told = await call(door)
    assert (told.state, told.reason, told.result) == ("unknown", TIMEOUT, None)
    assert await ledger(door) == ("committed", "timeout_after_commit", "1")
    assert ANSWER_LOST in (await door.operation("key1"))["reason"]
    assert any(message.wire_type() == "ingress.register_subject.v1" for _, message in door.messages())
    again = await call(door, told="again")
    assert (again.state, again.replay, again.result) == ("committed", True, {"id": "rsv_1"})
    assert len(door.destination.calls) == 1


async def test_both_timeouts_sound_alike(door: Door) -> None:
    await mark(
        door, {"action": "book", "mode": "timeout_before_commit"},
        {"action": "book", "on_call": 2, "mode": "timeout_after_commit"},
    )  # fmt: skip
    one, two = await call(door, 1), await call(door, 2)
    assert (one.state, one.reason, one.result) == (two.state, two.reason, two.result)


async def test_an_error_sends_nothing_and_says_that_it_was_injected(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "error"})
    told = await call(door)
    assert (told.state, told.reason) == ("failed", ERROR)
    assert door.destination.calls == []


async def test_a_refusal_of_the_world_stays_one(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "timeout_after_commit"})
    door.destination.always(Refused("full"))
    told = await call(door)
    assert (told.state, told.reason) == ("refused", "full")


async def test_slow_within_its_time_is_committed_and_beyond_it_unknown(door: Door) -> None:
    await mark(
        door, {"action": "book", "mode": "slow", "delay_seconds": 0.01},
        {"action": "book", "on_call": 2, "mode": "slow", "delay_seconds": 30},
    )  # fmt: skip
    assert (await call(door, 1)).state == "committed"
    told = await call(door, 2)
    assert (told.state, told.reason) == ("unknown", "injected: no answer within 1 s")
    assert len(door.destination.calls) == 2


async def test_only_the_call_that_is_named_meets_it(door: Door) -> None:
    await mark(door, {"action": "book", "on_call": 3, "mode": "error"})
    assert [(await call(door, number)).state for number in range(1, 6)] == [
        "committed", "committed", "failed", "committed", "committed",
    ]  # fmt: skip


async def test_duplicates_use_no_number(door: Door) -> None:
    await mark(door, {"action": "book", "on_call": 2, "mode": "error"})
    for told in ("a", "b", "c"):
        await call(door, 1, told=told)
    assert (await call(door, 2)).state == "failed"


async def test_a_refusal_at_the_door_uses_no_number(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "error"})
    assert (await call(door, 1, args={"party": 0})).state == "refused"
    assert (await call(door, 2)).state == "failed"


async def test_another_tool_and_other_arguments_are_not_counted(door: Door) -> None:
    await mark(door, {"action": "mail", "args": {"to": "a*", "n": 1}, "mode": "error"})
    states = [
        (await call(door, number, tool, args)).state
        for number, (tool, args) in enumerate(
            [("book", None), ("mail", {"to": "ben", "n": 1}), ("mail", {"to": "ana", "n": 2}), ("mail", {"n": 1}),
             ("mail", {"to": "ana", "n": 1, "more": True}), ("mail", {"to": "ada", "n": 1})], 1,
        )
    ]  # fmt: skip
    assert states == ["committed", "committed", "committed", "committed", "failed", "committed"]


async def test_a_session_that_is_no_trial_meets_none(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "error"}, session="s2")
    assert (await call(door)).state == "committed"
    assert await door.store.redis.exists(door.keys.of_session("faultcount", "s1")) == 0


async def test_without_trials_a_mark_is_not_even_read(redis_url: str, namespace: str) -> None:
    async with open_door(redis_url, namespace) as production:
        await mark(production, {"action": "book", "mode": "error"})
        assert (await call(production)).state == "committed"


async def test_of_calls_to_two_replicas_at_once_one_is_hit(door: Door, other: Door) -> None:
    await mark(door, {"action": "book", "on_call": 7, "mode": "error"})
    await asyncio.gather(*(call(one, number) for number, one in enumerate([door, other] * 8, 1)))
    states = [one.state for one in [*door.finished(), *other.finished()]]
    assert (states.count("failed"), states.count("committed")) == (1, 15)


async def test_a_changed_set_counts_from_one(door: Door) -> None:
    await mark(door, {"action": "book", "on_call": 2, "mode": "error"})
    assert (await call(door, 1)).state == "committed"
    await mark(door, {"action": "book", "on_call": 2, "mode": "timeout_before_commit"})
    assert [(await call(door, number)).state for number in (2, 3)] == ["committed", "unknown"]


async def test_a_set_that_changes_while_it_is_counted_is_read_again(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "error"})
    run, changed = door.store.run, False

    async def slowly(script: Any, keys: Any, args: Any) -> Any:
        nonlocal changed
        if script.name == "count_call" and not changed:
            changed = True
            await mark(door)
        return await run(script, keys, args)

    door.store.run = slowly  # type: ignore[method-assign]
    assert (await call(door)).state == "committed"


async def test_a_lost_reply_to_the_count_gives_the_same_number(door: Door) -> None:
    await mark(door)
    keys = [door.keys.of_session(name, "s1") for name in ("trial", "faultcount")]
    raw = await door.store.redis.get(keys[0])
    numbers = [
        (await door.store.run(_COUNT, keys, [raw, "v", call, 60_000, 1, "sel"])).int(0) for call in ("a", "a", "b", "a")
    ]
    assert numbers == [1, 1, 2, 1]
    assert (await door.store.run(_COUNT, keys, ["other", "v", "c", 60_000, 1, "sel"])).tag == "changed"
    assert 0 < await door.store.redis.pttl(keys[1]) <= 60_000


async def test_what_is_taken_over_meets_no_fault(door: Door, other: Door) -> None:
    """The first holder ends in the middle of its call; whoever follows it must not be hit again."""
    await mark(door, {"action": "book", "on_call": 2, "mode": "error"})
    hangs = asyncio.Event()

    async def act(call: Call) -> Any:
        hangs.set()
        await asyncio.Event().wait()

    door.destination.act = act
    running = asyncio.create_task(call(door))
    await hangs.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    other.clock.now += 10_000
    await other.sweeper.take_over_ended()
    assert other.finished()[-1].state == "committed"
    door.destination.act = door.destination.commit
    assert (await call(door, 2)).state == "failed"


async def test_an_injected_fault_is_counted_apart(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "timeout_after_commit"})
    await call(door)
    labels = {"tool": "book", "mode": "timeout_after_commit"}
    assert door.registry.get_sample_value("turnkeeper_tools_faults_total", labels) == 1
    assert [door.counted("book", outcome) for outcome in ("committed", "unknown", "failed")] == [0, 0, 0]


async def test_the_destinations_result_is_kept_as_it_is(door: Door) -> None:
    await mark(door, {"action": "book", "mode": "timeout_after_commit"})
    door.destination.always(Committed({"id": "r"}))
    await call(door)
    assert orjson.loads((await door.operation("key1"))["result"]) == {"id": "r"}

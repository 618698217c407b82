"""Timers on a real Redis: set, stopped, fired and skipped, each once, whoever is faster."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from libs.contracts.codec import to_json
from libs.contracts.ingress import Input
from libs.contracts.keys import DAY_MS
from libs.contracts.origin import seal_is_valid
from libs.runtime.settle import Outcome
from services.ingress.misfire import MOST_LATE, fired_event, next_move
from services.ingress.ports import Appended, Refused, Waiting
from services.ingress.timer_store import TOMBSTONE_MS
from tests.support.ingress import (
    HOUR_MS,
    NOW,
    SEAL_KEYS,
    MovableClock,
    Replica,
    a_stop,
    a_timer,
    an_event,
    ingress_replica,
)

MINUTE_MS = 60_000
MINUTELY = "FREQ=MINUTELY"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def one(redis_url: str, namespace: str, clock: MovableClock) -> AsyncIterator[Replica]:
    async with ingress_replica(redis_url, namespace, clock=clock, cap=3) as replica:
        await replica.store.create_session("s1", "ana", NOW)
        yield replica


@pytest.fixture
async def two(redis_url: str, namespace: str, clock: MovableClock) -> AsyncIterator[Replica]:
    async with ingress_replica(redis_url, namespace, clock=clock, cap=3) as replica:
        yield replica


async def put(one: Replica, id: str = "tm1", *, depth: int = 0, **fields: Any) -> Outcome:
    message = a_timer(id, **fields)
    return await one.handler.on_set_timer(message, one.context(message, depth=depth))


async def stop(one: Replica, id: str = "tm1", *, attested: bool = True) -> Outcome:
    message = a_stop(id, attested=attested)
    return await one.handler.on_stop_timer(message, one.context(message))


async def inputs(one: Replica, session: str = "s1") -> list[Input]:
    return [Input.model_validate_json(raw) for raw in await one.inbox(session)]


async def events(one: Replica) -> list[str]:
    return [input.event for input in await inputs(one)]


async def told(one: Replica, session: str = "s1") -> list[dict[str, Any]]:
    """The TimerSkipped messages that lie in the outbox, by instant."""
    messages, _ = one.keys.outbox("ingress", one.keys.partition(session))
    found = [orjson.loads(packed[packed.index(b"{") :]) for packed in (await one.ask("HGETALL", messages)).values()]
    bodies = [one["body"] for one in found if one["type"] == "ingress.timer_skipped.v1"]
    return sorted(bodies, key=lambda body: body["instant"])


def key(one: Replica, id: str = "tm1", session: str = "s1") -> str:
    return one.keys.of_session("timer", session, id)


async def state(one: Replica, id: str = "tm1") -> str | None:
    found = await one.ask("HGET", key(one, id), "state")
    return found.decode() if found else None


async def listed(one: Replica) -> tuple[int, int]:
    """How many timers the partition's index and the session's have."""
    return (
        int(await one.ask("ZCARD", one.keys.of_session_partition("timers", "s1"))),
        int(await one.ask("ZCARD", one.keys.of_session("pendingtimers", "s1"))),
    )


# set


async def test_a_timer_is_pending_until_its_session_could_be_gone(one: Replica) -> None:
    assert await put(one) is Outcome.HANDLED
    assert (await state(one), await listed(one)) == ("pending", (1, 1))
    whole = MINUTE_MS + one.limits.session_ttl_ms
    assert whole - MINUTE_MS < await one.ask("PTTL", key(one)) <= whole
    assert 0 < await one.ask("PTTL", one.keys.of_session("pendingtimers", "s1")) <= whole
    assert one.timers_counted() == {"set": 1}


async def test_setting_a_timer_again_changes_nothing(one: Replica) -> None:
    await put(one)
    before = await one.ask("HGETALL", key(one))
    assert await put(one, due=NOW + HOUR_MS) is Outcome.REPEATED
    assert await one.ask("HGETALL", key(one)) == before
    assert one.timers_counted() == {"set": 1}


@pytest.mark.parametrize(
    "changed", [{"data": {"text": "other"}}, {"lateness": 1}, {"zone": "Asia/Tokyo"}, {"subject": "x"}, {"due": NOW}]
)
async def test_a_timer_of_which_one_field_was_changed_on_the_way_is_forged(
    one: Replica, changed: dict[str, Any]
) -> None:
    genuine = a_timer()
    assert await put(one, attestation=genuine.attestation, **changed) is Outcome.REFUSED
    assert (await state(one), one.timers_counted()) == (None, {"forged": 1})


async def test_a_timer_attested_for_another_session_is_forged(one: Replica) -> None:
    assert await put(one, session="s2") is Outcome.REFUSED
    assert (await state(one), one.timers_counted()) == (None, {"forged": 1})


async def test_a_timer_above_the_cap_is_refused_told_and_stays_refused(one: Replica) -> None:
    for number in range(3):
        await put(one, f"tm{number}")
    assert await put(one, "more") is Outcome.REFUSED
    assert await told(one) == [{"timer": "more", "instant": NOW + MINUTE_MS, "reason": "too_many_timers", "count": 1}]
    await stop(one, "tm0")
    assert await put(one, "more") is Outcome.REPEATED, "it was told that there is none"
    assert (await state(one, "more"), await listed(one)) == ("refused", (2, 2))
    assert 0 < await one.ask("PTTL", key(one, "more")) <= TOMBSTONE_MS
    assert one.timers_counted() == {"set": 3, "too_many": 1, "stopped": 1}


async def test_of_many_set_at_once_by_two_replicas_no_more_than_the_cap_are_pending(one: Replica, two: Replica) -> None:
    done = await asyncio.gather(*(put((one, two)[n % 2], f"tm{n}") for n in range(20)))
    assert sorted(done) == [Outcome.HANDLED] * 3 + [Outcome.REFUSED] * 17
    assert await listed(one) == (3, 3)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"due": NOW + 10_000 * DAY_MS}, "too_far"),
        ({"data": "x" * 20_000}, "too_large"),
        ({"rule": "FREQ=NEVER"}, "bad_timer"),
        ({"rule": "FREQ=DAILY", "zone": "Moon/Crater"}, "bad_timer"),
        ({"lateness": -1}, "bad_timer"),
        ({"subject": "x" * 300}, "bad_timer"),
    ],
)
async def test_a_timer_that_cannot_be_is_refused_and_told(one: Replica, fields: dict[str, Any], reason: str) -> None:
    assert await put(one, **fields) is Outcome.REFUSED
    assert [body["reason"] for body in await told(one)] == [reason]
    assert await listed(one) == (0, 0)


async def test_a_timer_of_no_session_is_refused_and_leaves_nothing(one: Replica) -> None:
    message = a_timer(session="gone")
    assert await one.handler.on_set_timer(message, one.context(message, session="gone")) is Outcome.REFUSED
    assert await one.ask("EXISTS", key(one, session="gone")) == 0


# stop


async def test_a_stopped_timer_never_fires_and_is_never_set_again(one: Replica, clock: MovableClock) -> None:
    await put(one)
    assert await stop(one) is Outcome.HANDLED
    assert await stop(one) is Outcome.REPEATED
    assert await put(one) is Outcome.REPEATED
    clock.now += HOUR_MS
    await one.firing.sweep()
    assert (await events(one), await listed(one), await state(one)) == ([], (0, 0), "stopped")
    assert 0 < await one.ask("PTTL", key(one)) <= TOMBSTONE_MS


async def test_a_stop_that_comes_before_its_timer_holds(one: Replica) -> None:
    assert await stop(one) is Outcome.HANDLED
    assert await put(one) is Outcome.REPEATED
    assert await listed(one) == (0, 0)


async def test_the_session_can_end_a_timer_of_its_own_and_of_no_other(one: Replica) -> None:
    await one.store.create_session("s2", "ben", NOW)
    await put(one)
    other = a_stop(attested=False)
    await one.handler.on_stop_timer(other, one.context(other, session="s2"))
    assert await state(one) == "pending"
    assert await stop(one, attested=False) is Outcome.HANDLED
    assert await state(one) == "superseded"


async def test_a_stop_with_a_word_that_nobody_gave_is_forged(one: Replica) -> None:
    await put(one)
    message = a_stop(session="s2")
    assert await one.handler.on_stop_timer(message, one.context(message)) is Outcome.REFUSED
    assert await state(one) == "pending"
    assert one.timers_counted() == {"set": 1, "forged": 1}


# fire


async def test_a_timer_fires_as_a_sealed_input_of_its_own_origin(one: Replica, clock: MovableClock) -> None:
    await put(one, subject="film:f1", depth=2)
    clock.now = NOW + MINUTE_MS - 1
    await one.firing.sweep()
    assert await events(one) == []
    clock.now += 1
    await one.firing.sweep()
    (input,) = await inputs(one)
    assert (input.kind, input.source, input.type) == ("timer", "timer", "timer.fired")
    assert (input.event, input.subject, input.data) == (
        "tm1@2027-01-15T08:01:00Z", "film:f1", {"text": "pick up Ana"}
    )  # fmt: skip
    assert input.origin.model_dump() == {
        "kind": "timer", "source": "timer", "principal": "tm1", "verified": "door", "written_by": ""
    }  # fmt: skip
    assert seal_is_valid(SEAL_KEYS, input.seal)
    assert input.seal.origin == input.origin
    assert input.depth == 3, "a loop that is fed by timers comes to the causation depth"
    assert (await state(one), await listed(one)) == ("done", (0, 0))
    assert one.timers_counted() == {"set": 1, "fired": 1}
    assert [session for session, _ in one.outbox.posted] == ["s1"]


async def test_a_timer_that_has_fired_is_not_set_again_by_a_late_copy(one: Replica, clock: MovableClock) -> None:
    await put(one)
    clock.now = NOW + MINUTE_MS
    await one.firing.sweep()
    assert await put(one) is Outcome.REPEATED
    await one.firing.sweep()
    assert len(await events(one)) == 1


async def test_a_recurring_timer_goes_on_from_due_and_ends_with_its_rule(one: Replica, clock: MovableClock) -> None:
    await put(one, rule="FREQ=MINUTELY;INTERVAL=2;COUNT=3")
    for _ in range(10):
        clock.now += MINUTE_MS
        await one.firing.sweep()
    assert await events(one) == [f"tm1@2027-01-15T08:0{minute}:00Z" for minute in (1, 3, 5)]
    assert await state(one) == "done"


async def test_no_instant_fires_twice_with_two_replicas_at_once(
    one: Replica, two: Replica, clock: MovableClock
) -> None:
    for number in range(3):
        await put(one, f"tm{number}", rule=MINUTELY)
    for _ in range(8):
        clock.now += MINUTE_MS
        await asyncio.gather(*(replica.firing.sweep() for replica in (one, two, one, two)))
    found = await events(one)
    assert len(found) == len(set(found)) == 24
    assert [input.number for input in await inputs(one)] == list(range(1, 25))
    total = sum(replica.timers_counted().get("fired", 0) for replica in (one, two))
    assert total == 24


async def test_a_replica_that_stopped_between_its_look_and_its_write_changes_nothing(
    one: Replica, two: Replica, clock: MovableClock
) -> None:
    await put(one, rule=MINUTELY)
    clock.now += MINUTE_MS
    seen = await one.timers.load("s1", "tm1")
    assert seen is not None
    await two.firing.sweep()
    clock.now += MINUTE_MS
    move = next_move(seen, now=clock.now, grace_ms=0)
    assert move is not None
    assert not await one.firing._fire(seen, move, clock.now)
    assert not await one.firing._skip(seen, replace(move, reason="missed"), clock.now)
    assert await events(one) == ["tm1@2027-01-15T08:01:00Z"]
    assert await told(one) == []


async def test_an_answer_that_was_lost_is_no_second_firing(one: Replica, clock: MovableClock) -> None:
    await put(one, rule=MINUTELY)
    clock.now += MINUTE_MS
    timer = await one.timers.load("s1", "tm1")
    assert timer is not None
    move = next_move(timer, now=clock.now, grace_ms=0)
    assert move is not None
    event = fired_event(timer, move, now=clock.now)
    sealed = to_json((await _an_input(one)).model_copy(update={"id": event.id}))
    doorbell = one.outbox.posted[0][1]
    number = 2
    assert await one.timers.fire(timer, move, event, "s1", sealed, 7, doorbell, clock.now) == Waiting(number)
    assert await one.timers.fire(timer, move, event, "s1", sealed, number, doorbell, clock.now) == Appended(
        number, True
    )
    before = await one.ask("HGETALL", key(one))
    assert await one.timers.fire(timer, move, event, "s1", sealed, number, doorbell, clock.now) is Refused.MOVED
    assert await one.ask("HGETALL", key(one)) == before


async def _an_input(one: Replica) -> Input:
    await one.admissions.admit(an_event(hold_ms=0), "t1", b"{}")
    (input,) = await inputs(one)
    return input


async def test_what_is_in_the_inbox_already_moves_the_timer_on_and_is_not_appended_again(
    one: Replica, clock: MovableClock
) -> None:
    """As after a restore of the timer from an older copy: the input's id decides."""
    await put(one, rule=MINUTELY)
    before = await one.ask("HGET", key(one), "next")
    clock.now += MINUTE_MS
    await one.firing.sweep()
    await one.ask("HSET", key(one), "next", before)
    await one.ask("ZADD", one.keys.of_session_partition("timers", "s1"), before, "s1 tm1")
    await one.firing.sweep()
    assert len(await events(one)) == 1
    assert int(await one.ask("HGET", key(one), "next")) == NOW + 2 * MINUTE_MS


async def test_a_full_outbox_keeps_the_timer_due(redis_url: str, namespace: str, clock: MovableClock) -> None:
    async with ingress_replica(redis_url, namespace, clock=clock, outbox_limit=1) as one:
        await one.store.create_session("s1", "ana", NOW)
        await one.admissions.admit(an_event(hold_ms=0), "t1", b"{}")
        await put(one)
        await put(one, "skips", misfire="skip")
        clock.now += HOUR_MS
        await one.firing.sweep()
        assert (await events(one), await told(one), await state(one)) == (["e1"], [], "pending")
        messages, due = one.keys.outbox("ingress", one.keys.partition("s1"))
        for _ in range(2):
            await one.ask("DEL", messages, due)
            await one.firing.sweep()
        assert await events(one) == ["e1", "tm1@2027-01-15T08:01:00Z"]
        assert [await state(one, id) for id in ("tm1", "skips")] == ["done", "done"]


async def test_events_that_wait_for_the_session_go_before_a_timer(one: Replica, clock: MovableClock) -> None:
    await put(one)
    await one.ask("DEL", one.keys.of_session("owner", "s1"))
    await one.admissions.admit(an_event(), "t1", b"{}")
    await one.store.create_session("s1", "ana", NOW)
    clock.now += MINUTE_MS
    await one.firing.sweep()
    assert await events(one) == []
    await one.releases.session("s1")
    await one.firing.sweep()
    assert await events(one) == ["e1", "tm1@2027-01-15T08:01:00Z"]


async def test_a_timer_of_a_session_that_is_gone_ends(one: Replica, clock: MovableClock) -> None:
    await put(one, rule=MINUTELY)
    await one.ask("DEL", one.keys.of_session("owner", "s1"))
    clock.now += MINUTE_MS
    await one.firing.sweep()
    assert (await state(one), await listed(one)) == ("lost", (0, 0))
    assert one.timers_counted() == {"set": 1, "refused": 1}


async def test_a_timer_whose_facts_expired_leaves_no_entry_behind(one: Replica, clock: MovableClock) -> None:
    await put(one)
    await one.ask("DEL", key(one))
    clock.now += MINUTE_MS
    await one.firing.sweep()
    assert await listed(one) == (0, 0)


async def test_a_timer_that_cannot_be_read_keeps_nobody_from_firing(one: Replica, clock: MovableClock) -> None:
    await put(one)
    await put(one, "tm2")
    await one.ask("HSET", key(one), "def", "{}")
    clock.now += MINUTE_MS
    await one.firing.sweep()
    assert await events(one) == ["tm2@2027-01-15T08:01:00Z"]
    assert await state(one) == "unreadable"


# misfire


async def test_run_late_fires_each_missed_instant_in_order_and_skips_more_than_a_few(
    one: Replica, clock: MovableClock
) -> None:
    await put(one, rule=MINUTELY)
    clock.now += 13 * MINUTE_MS + 30_000
    await one.firing.sweep()
    assert await events(one) == [f"tm1@2027-01-15T08:{minute:02}:00Z" for minute in range(4, 14)]
    assert await told(one) == [
        {"timer": "tm1", "instant": NOW + MINUTE_MS, "reason": "too_many_missed", "count": 13 - MOST_LATE}
    ]
    assert one.timers_counted() == {"set": 1, "fired": 10, "skipped": 3}


async def test_coalesce_fires_the_newest_for_all_and_says_for_how_many(one: Replica, clock: MovableClock) -> None:
    await put(one, rule=MINUTELY, misfire="coalesce")
    clock.now += 13 * MINUTE_MS + 30_000
    await one.firing.sweep()
    (input,) = await inputs(one)
    assert input.event == "tm1@2027-01-15T08:13:00Z"
    assert input.data == {"text": "pick up Ana", "coalesced": 13}
    assert await told(one) == []
    clock.now = NOW + 14 * MINUTE_MS
    await one.firing.sweep()
    assert (await inputs(one))[1].data == {"text": "pick up Ana"}


async def test_skip_fires_none_of_the_missed_and_tells_once(one: Replica, clock: MovableClock) -> None:
    await put(one, rule=MINUTELY, misfire="skip")
    clock.now += 13 * MINUTE_MS + 1_000
    await one.firing.sweep()
    assert await events(one) == ["tm1@2027-01-15T08:13:00Z"], "the last is within the grace: it was not missed"
    assert await told(one) == [{"timer": "tm1", "instant": NOW + MINUTE_MS, "reason": "missed", "count": 12}]


@pytest.mark.parametrize("misfire", ["run-late", "coalesce", "skip"])
async def test_an_instant_later_than_its_lateness_never_fires(one: Replica, clock: MovableClock, misfire: str) -> None:
    await put(one, misfire=misfire, lateness=10_000)
    clock.now += MINUTE_MS + 10_001
    await one.firing.sweep()
    assert (await events(one), await state(one)) == ([], "done")
    assert [body["reason"] for body in await told(one)] == ["too_late"]


async def test_skipping_is_told_once_by_two_replicas(one: Replica, two: Replica, clock: MovableClock) -> None:
    await put(one, rule=MINUTELY, misfire="skip")
    clock.now += 20 * MINUTE_MS + 30_000
    await asyncio.gather(*(replica.firing.sweep() for replica in (one, two, one, two)))
    assert [body["count"] for body in await told(one)] == [20]
    assert sum(replica.timers_counted().get("skipped", 0) for replica in (one, two)) == 20


# clocks


@pytest.mark.parametrize("skew", [-HOUR_MS, HOUR_MS], ids=["behind", "ahead"])
async def test_the_stores_time_decides_and_not_a_replicas_clock(redis_url: str, namespace: str, skew: int) -> None:
    wrong = MovableClock()
    async with ingress_replica(redis_url, namespace, clock=wrong, store_time=True) as one:
        real = await one.timers.time()
        wrong.now = real + skew
        await one.store.create_session("s1", "ana", real)
        await put(one, "due", due=real - 1_000)
        await put(one, "soon", due=real + HOUR_MS // 2)
        await one.firing.sweep()
        (input,) = await inputs(one)
        assert input.event.startswith("due@")
        assert abs(input.accepted_at - real) < HOUR_MS // 2
        assert await state(one, "soon") == "pending"


async def test_the_gauge_counts_the_pending_of_the_whole_store(one: Replica) -> None:
    await one.store.create_session("s2", "ben", NOW)
    await put(one)
    message = a_timer("tm2", session="s2")
    await one.handler.on_set_timer(message, one.context(message, session="s2"))
    await one.firing.sweep()
    assert one.registry.get_sample_value("turnkeeper_ingress_timers_pending") == 2

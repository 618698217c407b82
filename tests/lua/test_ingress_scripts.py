"""Ingress's scripts on a real Redis: each branch, tag and lifetime, races, and every script twice."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from libs.contracts.errors import StoreAway
from libs.contracts.ingress import Input
from libs.contracts.keys import DAY_MS
from libs.contracts.origin import seal_is_valid
from libs.runtime.scripts import load_script
from services.ingress.domain import Misfit
from services.ingress.ports import (
    Accepted,
    Appended,
    Created,
    Duplicate,
    Held,
    HeldFull,
    Other,
    Pending,
    Record,
    Refused,
    Registered,
    Taken,
)
from services.ingress.sweepers import RELAY_BATCH
from tests.support.ingress import HOUR_MS, NOW, SEAL_KEYS, Replica, an_event, ingress_replica

LUA = Path("services/ingress/lua")


@pytest.fixture
async def one(redis_url: str, namespace: str) -> AsyncIterator[Replica]:
    async with ingress_replica(redis_url, namespace) as replica:
        yield replica


@pytest.fixture
async def two(redis_url: str, namespace: str) -> AsyncIterator[Replica]:
    async with ingress_replica(redis_url, namespace) as replica:
        yield replica


# admit


async def test_a_new_event_is_stored_with_its_dedupe_entry_and_both_live_as_long_as_the_window(one: Replica) -> None:
    event = an_event()
    assert await one.store.admit(event, "t1", NOW) == Accepted()
    _, today, *_ = one.keys.dedupe_days("restaurant", event.id, NOW, event.window_ms)
    assert await one.ask("HGET", today, event.id) == b"d" * 32
    assert event.window_ms + DAY_MS < await one.ask("PTTL", today) <= event.window_ms + 2 * DAY_MS
    assert 0 < await one.ask("PTTL", one.keys.of_event("event", event.id, event.id)) <= event.window_ms
    assert (await one.store.admitted_before(NOW, 10))[0] == [event]


async def test_a_copy_of_a_pending_event_gives_the_first_so_that_it_is_finished(one: Replica) -> None:
    """C071."""
    await one.store.admit(an_event(), "t1", NOW)
    copy = an_event(accepted_at=NOW + 5)
    assert await one.store.admit(copy, "t2", NOW + 5) == Pending(an_event())


async def test_the_same_attempt_again_is_ours_and_changes_nothing(one: Replica) -> None:
    assert [await one.store.admit(an_event(), "t1", NOW) for _ in range(3)] == [Accepted()] * 3
    assert len((await one.store.admitted_before(NOW, 10))[0]) == 1


async def test_a_copy_of_a_finished_event_is_a_duplicate(one: Replica) -> None:
    await one.store.admit(an_event(), "t1", NOW)
    await one.store.forget([an_event().id])
    assert await one.store.admit(an_event(), "t2", NOW) == Duplicate()
    assert (await one.store.admitted_before(NOW, 10))[0] == []


async def test_another_body_under_a_known_id_is_told_with_the_first_mark(one: Replica) -> None:
    await one.store.admit(an_event(), "t1", NOW)
    assert await one.store.admit(an_event(mark="e" * 32), "t2", NOW) == Other("d" * 32, an_event())
    await one.store.forget([an_event().id])
    assert await one.store.admit(an_event(mark="e" * 32), "t3", NOW) == Other("d" * 32, None)


@pytest.mark.parametrize("later", [5 * 60_000, 24 * HOUR_MS, 73 * HOUR_MS, 95 * HOUR_MS])
async def test_a_copy_is_known_for_the_whole_window(one: Replica, later: int) -> None:
    await one.store.admit(an_event(), "t1", NOW)
    await one.store.forget([an_event().id])
    assert await one.store.admit(an_event(), "t2", NOW + later) == Duplicate()


async def test_two_clocks_on_either_side_of_midnight_accept_once(one: Replica, two: Replica) -> None:
    midnight = (NOW // DAY_MS + 1) * DAY_MS
    assert await one.store.admit(an_event(), "ahead", midnight + 1) == Accepted()
    assert await two.store.admit(an_event(), "behind", midnight - 1) == Pending(an_event())


async def test_of_two_hundred_copies_at_once_to_two_replicas_one_is_accepted(one: Replica, two: Replica) -> None:
    calls = [replica.store.admit(an_event(), f"{id(replica)}-{n}", NOW) for n in range(100) for replica in (one, two)]
    answers = await asyncio.gather(*calls)
    assert answers.count(Accepted()) == 1
    assert answers.count(Pending(an_event())) == 199


async def test_the_same_id_of_another_source_is_another_event(one: Replica) -> None:
    """C079."""
    await one.store.admit(an_event(), "t1", NOW)
    assert await one.store.admit(an_event(id="identity-2", source="cinema"), "t2", NOW) == Accepted()


# append


async def test_inputs_are_numbered_from_one_without_a_gap_and_sealed_for_their_number(one: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    for number in range(1, 4):
        assert (await one.admissions.place(an_event(f"e{number}"))).number == number
    for number, packed in enumerate(await one.inbox("s1"), start=1):
        sealed = Input.model_validate_json(packed)
        assert (sealed.number, sealed.event) == (number, f"e{number}")
        assert (sealed.seal.input, sealed.seal.number, sealed.seal.session) == (sealed.id, number, "s1")
        assert seal_is_valid(SEAL_KEYS, sealed.seal)


async def test_an_append_again_changes_nothing_and_names_its_number(one: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    await one.admissions.place(an_event("e1"))
    await one.admissions.place(an_event("e2"))
    assert (await one.admissions.place(an_event("e1"))).number == 1
    assert len(await one.inbox("s1")) == 2
    assert await one.ask("GET", one.keys.of_session("number", "s1")) == b"2"


async def test_an_append_leaves_its_doorbell_in_the_outbox_and_its_mark_in_the_bucket(one: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    await one.admissions.place(an_event())
    messages, due = one.keys.outbox("ingress", one.keys.partition("s1"))
    ((session, doorbell),) = one.outbox.posted
    assert session == "s1"
    assert await one.ask("HGET", messages, doorbell.id) == doorbell.pack()
    assert await one.ask("ZCARD", due) == 1
    bucket = one.keys.outcome_bucket("s1", an_event().id, NOW)
    assert await one.ask("HGET", bucket, an_event().id) == b"s1 1 -"
    assert await one.ask("PTTL", bucket) > an_event().window_ms
    assert await one.ask("ZSCORE", one.keys.of_session_partition("sessions", "s1"), "s1") is not None
    for family in ("owner", "number", "inbox"):
        assert 0 < await one.ask("PTTL", one.keys.of_session(family, "s1")) <= one.limits.session_ttl_ms


async def test_a_wrong_number_is_answered_with_the_right_one_and_writes_nothing(one: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    other = one.admissions
    await other.place(an_event("e1"))
    keys = one.keys
    reply = await one.raw.run(
        load_script("services.ingress", "append"),
        [
            *(keys.of_session(family, "s1") for family in ("owner", "number", "inbox")),
            keys.outcome_bucket("s1", "x", NOW),
            keys.of_session_partition("sessions", "s1"),
            *keys.outbox("ingress", keys.partition("s1")),
            keys.of_session("waiting", "s1"),
            keys.of_session_partition("waitingindex", "s1"),
        ],
        [NOW, "s1", "x", "{}", 7, HOUR_MS, HOUR_MS, 100, 0],
    )
    assert (reply.tag, reply.int(0)) == ("number", 2)
    assert len(await one.inbox("s1")) == 1


async def test_an_outbox_above_its_bound_takes_no_more(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace, outbox_limit=1) as one:
        await one.store.create_session("s1", "ana", NOW)
        await one.admissions.place(an_event("e1"))
        with pytest.raises(StoreAway, match="above its bound"):
            await one.admissions.place(an_event("e2"))
        assert len(await one.inbox("s1")) == 1


async def test_many_appends_of_two_replicas_at_once_leave_no_gap_and_no_double(one: Replica, two: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    places = [(one, two)[n % 2].admissions.place(an_event(f"e{n}")) for n in range(200)]
    numbers = [placed.number for placed in await asyncio.gather(*places)]
    assert sorted(numbers) == list(range(1, 201))
    assert [Input.model_validate_json(packed).number for packed in await one.inbox("s1")] == list(range(1, 201))


async def test_what_was_answered_first_is_numbered_first(one: Replica, two: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    for n in range(20):
        assert (await (one, two)[n % 2].admissions.place(an_event(f"e{n}"))).number == n + 1


# sessions


async def test_an_owner_is_written_once(one: Replica) -> None:
    assert await one.store.create_session("s1", "ana", NOW) == Created(True, 0)
    assert await one.store.create_session("s1", "ana", NOW) == Created(False, 0)
    assert await one.store.create_session("s1", "bob", NOW) == Taken("ana")
    assert await one.store.owner("s1") == "ana"


async def test_of_two_that_claim_a_session_one_owns_it(one: Replica, two: Replica) -> None:
    claims = [replica.store.create_session("s1", f"u{n}", NOW) for n, replica in enumerate((one, two) * 10)]
    made = await asyncio.gather(*claims)
    assert sum(isinstance(answer, Created) for answer in made) == 1


async def test_an_event_for_a_session_to_come_waits_and_is_first_when_it_is_made(one: Replica) -> None:
    for n in (1, 2, 3):
        assert (await one.admissions.place(an_event(f"e{n}"))).where == "held"
    assert await one.store.create_session("s1", "ana", NOW) == Created(True, 3)
    # What comes before the release goes behind it.
    assert (await one.admissions.place(an_event("e4"))).where == "held"
    assert await one.releases.session("s1") == 4
    assert [Input.model_validate_json(packed).event for packed in await one.inbox("s1")] == ["e1", "e2", "e3", "e4"]
    assert (await one.admissions.place(an_event("e5"))).number == 5
    assert await one.ask("EXISTS", one.keys.of_session("waiting", "s1")) == 0
    assert await one.store.waiting_sessions("+inf") == []


async def test_two_releases_at_once_deliver_each_event_once_and_in_order(one: Replica, two: Replica) -> None:
    for n in range(30):
        await one.admissions.place(an_event(f"e{n}"))
    await one.store.create_session("s1", "ana", NOW)
    await asyncio.gather(one.releases.session("s1"), two.releases.session("s1"), one.sweepers.waiting())
    events = [Input.model_validate_json(packed).event for packed in await one.inbox("s1")]
    assert events == [f"e{n}" for n in range(30)]


async def test_waiting_in_vain_ends_in_an_outcome_that_is_told(one: Replica) -> None:
    await one.store.admit(an_event(), "t1", NOW)
    await one.admissions.place(an_event())
    await one.forgetting.flush()
    one.clock.now = an_event().deadline - 1
    await one.sweepers.waiting()
    assert len(await one.store.waiting("s1")) == 1
    one.clock.now += 1
    await one.sweepers.waiting()
    assert await one.store.waiting("s1") == []
    record = await one.store.record("restaurant", an_event().id, one.clock.now, an_event().window_ms)
    assert record == Record("d" * 32, "held_expired", "s1", 0, "held_expired")
    assert one.ring.lines()[-1]["outcome"] == "held_expired"
    # A late relay must not bring it back, even when the session is made after all.
    await one.store.create_session("s1", "ana", NOW)
    assert (await one.admissions.place(an_event())).where == "expired"
    assert await one.inbox("s1") == []


async def test_more_than_the_bound_may_not_wait(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace, held=2) as one:
        for n in (1, 2):
            await one.admissions.place(an_event(f"e{n}"))
        assert (await one.admissions.place(an_event("e3"))).where == "full"
        with pytest.raises(HeldFull):
            await one.admissions.admit(an_event("e4"), "t4", b"{}")
        assert await one.store.record("restaurant", an_event("e4").id, NOW, an_event().window_ms) is None
        # A copy of one that waits is no further one; and what has its session needs no room.
        await one.store.admit(an_event("e1"), "t1", NOW)
        assert (await one.admissions.admit(an_event("e1"), "t5", b"{}")).status == "duplicate"
        await one.store.create_session("s2", "ana", NOW)
        assert (await one.admissions.admit(an_event("e5", session="s2"), "t6", b"{}")).status == "accepted"


async def test_of_many_at_once_those_above_the_bound_are_held_by_the_relay_or_expire(
    redis_url: str, namespace: str
) -> None:
    async with ingress_replica(redis_url, namespace, held=2) as one:
        events = [an_event(f"e{n}") for n in range(5)]
        for n, event in enumerate(events):
            await one.store.admit(event, f"t{n}", NOW)
        one.clock.now = NOW + 2_000
        await one.sweepers.relay()
        await one.forgetting.flush()
        assert (len(await one.store.waiting("s1")), len((await one.store.admitted_before(one.clock.now, 10))[0])) == (
            2,
            3,
        )
        one.clock.now = events[0].deadline + 1
        await one.sweepers.relay()
        await one.forgetting.flush()
        assert (await one.store.admitted_before(one.clock.now, 10))[0] == []
        assert one.ring.lines()[-1]["outcome"] == "held_expired"


async def test_the_relay_goes_past_what_it_must_postpone(redis_url: str, namespace: str) -> None:
    async with ingress_replica(redis_url, namespace, held=1) as one:
        for n in range(4 * RELAY_BATCH + 40):
            await one.store.admit(an_event(f"e{n}", session="nobody"), f"t{n}", NOW)
        await one.store.create_session("s1", "ana", NOW)
        await one.store.admit(an_event("last"), "last", NOW + 1)
        one.clock.now = NOW + 2_001
        await one.sweepers.relay()
        assert len(await one.inbox("s1")) == 1


async def test_one_partition_that_cannot_be_written_stops_no_other_and_no_look(one: Replica) -> None:
    broken = next(f"x{n}" for n in range(100) if one.keys.partition(f"x{n}") != one.keys.partition("s1"))
    for session in (broken, "s1"):
        await one.store.create_session(session, "ana", NOW)
    first, second = an_event("e1", session=broken), an_event("e2", accepted_at=NOW + 1)
    await one.ask("SET", one.keys.outcome_bucket(broken, first.id, NOW), "x")
    await one.ask("SET", one.keys.outcome_bucket(broken, second.id, NOW), "x")
    for event in (first, second):
        await one.store.admit(event, f"token-{event.event}", NOW)
    one.clock.now = NOW + 2_000
    await one.sweepers.relay()
    assert len(await one.inbox("s1")) == 1
    record = await one.store.record("restaurant", second.id, NOW, second.window_ms)
    assert record is not None
    assert record.status == "accepted"


async def test_a_subject_whose_queue_cannot_be_read_keeps_no_other_from_expiring(one: Replica) -> None:
    for n in range(6):
        await one.admissions.place(an_event(f"e{n}", session="", route_subject=f"reservation:{n}"))
    for n in (0, 3):
        key = one.keys.of_subject("held", f"reservation:{n}")
        await one.ask("DEL", key)
        await one.ask("SET", key, "x")
    one.clock.now = about().deadline + 1
    await one.sweepers.held()
    assert sorted(await one.store.held_subjects("+inf")) == ["reservation:0", "reservation:3"]


# subjects


def about(id: str = "e1", **fields: object):  # type: ignore[no-untyped-def]
    return an_event(id, session="", route_subject="reservation:r1", **fields)


async def test_an_event_before_its_subject_is_held_and_delivered_once(one: Replica, two: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    for n in (1, 2):
        assert (await one.admissions.place(about(f"e{n}"))).where == "held"
    assert await one.store.register("reservation:r1", "s1", "O1") == Registered(True, 2)
    assert (await two.admissions.place(about("e3"))).where == "held"
    await asyncio.gather(one.releases.subject("reservation:r1", "s1"), two.sweepers.held())
    assert (await two.admissions.place(about("e4"))).number == 4
    events = [Input.model_validate_json(packed).event for packed in await one.inbox("s1")]
    assert events == ["e1", "e2", "e3", "e4"]
    assert await one.store.held_subjects("+inf") == []


async def test_a_subject_is_written_once(one: Replica) -> None:
    assert await one.store.register("reservation:r1", "s1", "O1") == Registered(True, 0)
    assert await one.store.register("reservation:r1", "s1", "O1") == Registered(False, 0)
    assert await one.store.register("reservation:r1", "s2", "O1") == Taken("s1")
    assert await one.store.session_of("reservation:r1") == "s1"
    ttl = await one.ask("PTTL", one.keys.of_subject("subject", "reservation:r1"))
    assert 0 < ttl <= one.limits.subject_ttl_ms


async def test_of_two_sessions_that_claim_a_subject_one_has_it(one: Replica, two: Replica) -> None:
    claims = [r.store.register("reservation:r1", f"s{n}", "O1") for n, r in enumerate((one, two) * 10)]
    made = await asyncio.gather(*claims)
    assert sum(isinstance(answer, Registered) for answer in made) == 1


async def test_a_source_that_does_not_hold_is_refused_without_a_trace(one: Replica) -> None:
    assert await one.store.route_or_hold(about(hold_ms=0)) is Refused.ABSENT
    assert (await one.admissions.admit(about(hold_ms=0), "t1", b"{}")).status == "unrouted"
    assert (await one.store.admitted_before(NOW, 10))[0] == []
    assert await one.store.held_subjects("+inf") == []


async def test_holding_again_changes_nothing(one: Replica) -> None:
    for _ in range(3):
        assert await one.store.route_or_hold(about()) == Held(expired=False)
    live, expired = await one.store.held("reservation:r1")
    assert (live, expired) == ([about()], [])


async def test_held_in_vain_ends_in_an_outcome_even_when_the_sweeper_dies_half_way(one: Replica, two: Replica) -> None:
    await one.store.admit(about(), "t1", NOW)
    await one.admissions.place(about())
    await one.forgetting.flush()
    late = about().deadline
    assert not await one.store.expire_held(about(), "reservation:r1", late - 1)
    assert await one.store.expire_held(about(), "reservation:r1", late)
    assert await one.store.expire_held(about(), "reservation:r1", late), "the same again, since the reply may be lost"
    # Here the first sweeper died. Registered now, it is too late: one outcome, not two.
    await one.store.create_session("s1", "ana", NOW)
    await one.store.register("reservation:r1", "s1", "O1")
    two.clock.now = late + 1
    await two.sweepers.held()
    await one.releases.subject("reservation:r1", "s1")
    assert await one.inbox("s1") == []
    record = await one.store.record("restaurant", about().id, late, about().window_ms)
    assert record is not None
    assert record.outcome == "held_expired"
    assert (await one.admissions.place(about())).where == "expired"
    assert await one.store.held_subjects("+inf") == []


async def test_a_registered_subject_keeps_its_events_from_expiring(one: Replica) -> None:
    await one.admissions.place(about())
    await one.store.register("reservation:r1", "s1", "O1")
    assert not await one.store.expire_held(about(), "reservation:r1", about().deadline + 1)


async def test_the_earliest_deadline_of_a_subject_is_the_one_that_is_swept(one: Replica) -> None:
    await one.admissions.place(about("slow", hold_ms=900_000))
    await one.admissions.place(about("fast", hold_ms=1_000))
    assert await one.store.held_subjects(NOW + 999) == []
    one.clock.now = NOW + 1_000
    await one.sweepers.held()
    assert [event.event for event in (await one.store.held("reservation:r1"))[0]] == ["slow"]
    assert await one.store.held_subjects(NOW + 899_999) == [], "the next deadline counts now"


# the relay


async def test_the_relay_finishes_what_was_admitted_and_not_appended(one: Replica, two: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    await one.store.admit(an_event(), "t1", NOW)
    await two.sweepers.relay()
    assert await one.inbox("s1") == [], "it may still be on its way"
    two.clock.now = NOW + 2_000
    await two.sweepers.relay()
    await two.forgetting.flush()
    assert len(await one.inbox("s1")) == 1
    assert (await one.store.admitted_before(NOW, 10))[0] == []
    assert (await one.admissions.admit(an_event(), "t2", b"{}")).status == "duplicate"


async def test_a_duplicate_is_answered_only_after_the_first_is_in_its_session(one: Replica, two: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    await one.store.admit(an_event(), "t1", NOW)  # and its process dies
    assert (await two.admissions.admit(an_event(), "t2", b"{}")).status == "duplicate"
    assert len(await one.inbox("s1")) == 1


# quarantine


async def test_a_second_body_is_kept_beside_the_first_digest_and_listed(one: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    await one.admissions.admit(an_event(), "t1", b'{"a":1}')
    second = an_event(mark="e" * 32, digest="e" * 64)
    assert (await one.admissions.admit(second, "t2", b'{"a":2}')).status == "quarantined"
    (entry,) = await one.store.quarantined()
    assert (entry["reason"], entry["first"], entry["digest"]) == ("other_body", "d" * 32, "e" * 64)
    assert entry["body"] == '{"a":2}'
    assert len(await one.inbox("s1")) == 1


async def test_at_most_ten_bodies_an_id_are_kept(one: Replica) -> None:
    await one.admissions.admit(an_event(), "t0", b"0")
    for n in range(15):
        body = f"{n:02}" * 32
        await one.admissions.admit(an_event(mark=body[:32], digest=body), f"t{n}", b"x")
        await one.admissions.admit(an_event(mark=body[:32], digest=body), f"u{n}", b"x")
    assert len(await one.store.quarantined()) == 10


async def test_quarantine_keeps_the_newest_of_each_shard(one: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.ingress.store.QUARANTINE_PER_SHARD", 2)
    for n in range(20):
        event = an_event(f"e{n}", digest=f"{n:02}" * 32)
        await one.store.quarantine(Misfit("no_route", event), "", b"{}", NOW + n)
    await one.store.trim_quarantine(NOW - 1)
    kept = await one.store.quarantined()
    assert 0 < len(kept) <= 8
    assert kept[0]["at"] == NOW + 19


# outcomes


async def test_a_record_follows_an_event_from_pending_to_its_outcome(one: Replica) -> None:
    async def record() -> Record | None:
        return await one.store.record("restaurant", an_event().id, NOW, an_event().window_ms)

    assert await record() is None
    await one.store.admit(an_event(), "t1", NOW)
    assert await record() == Record("d" * 32, "pending")
    await one.admissions.place(an_event())
    await one.forgetting.flush()
    assert await record() == Record("d" * 32, "held")
    await one.store.create_session("s1", "ana", NOW)
    await one.releases.session("s1")
    assert await record() == Record("d" * 32, "accepted", "s1", 1, "-")
    await one.ask("HSET", one.keys.outcome_bucket("s1", an_event().id, NOW), an_event().id, "s1 1 acted")
    assert await record() == Record("d" * 32, "accepted", "s1", 1, "acted")


async def test_an_outcome_is_written_once(one: Replica) -> None:
    await one.store.write_outcome(an_event(), "held_expired")
    await one.store.write_outcome(an_event(), "rejected")
    bucket = one.keys.outcome_bucket(an_event().id, an_event().id, NOW)
    assert await one.ask("HGET", bucket, an_event().id) == b"- 0 held_expired"


# all


@pytest.mark.parametrize("path", sorted(LUA.glob("*.lua")), ids=lambda path: path.stem)
def test_a_header_says_all_keys_and_arguments_that_are_used(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    header = "".join(line for line in text.splitlines(True) if line.startswith("--"))
    code = "".join(line for line in text.splitlines(True) if not line.startswith("--"))
    for word in ("KEYS", "ARGV", "RETURNS", "INVARIANT", "Atomic"):
        assert word in header, f"{path.stem}: the header lacks {word}"
    for word in ("KEYS", "ARGV"):
        used = max((int(n) for n in re.findall(rf"{word}\[(\d+)\]", code)), default=0)
        said = re.search(rf"-- {word}(.*?)(?=\n-- (?:ARGV|RETURNS))", header, re.DOTALL)
        assert said is not None
        numbers = [int(n) for n in re.findall(r"(?:^|  |\n--\s+)\s*(\d+)(?= |…)", said[1])]
        assert max(numbers) >= used, f"{path.stem}: {word}[{used}] is not in the header"


def test_stored_events_come_back_as_they_were() -> None:
    event = an_event(data={"text": "snow ☃ and {braces}", "n": [1, 2.5, None]})
    assert type(event).unpack(event.pack()) == event
    assert b"\n" not in event.pack()
    assert orjson.loads(event.pack())["event"] == "e1"


async def test_a_replayed_append_with_the_same_arguments_answers_already(one: Replica) -> None:
    await one.store.create_session("s1", "ana", NOW)
    event = an_event()
    doorbell = one.outbox
    await one.admissions.place(event)
    ((_, message),) = doorbell.posted
    packed = await one.raw.command("HGET", one.keys.of_session("inbox", "s1"), "1")
    again = await one.store.append(event, "s1", packed, 1, message, NOW)
    assert again == Appended(1, new=False)

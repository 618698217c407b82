"""Which instants of a timer fire, pure: over daylight saving, after any downtime, and none of them twice or lost."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from libs.contracts.recurrence import instants, next_instant
from services.ingress.misfire import (
    MOST_LATE,
    MOST_WALKED,
    Move,
    Timer,
    fired_event,
    first_instant,
    instant_text,
    next_move,
)
from tests.support.ingress import NOW, a_timer

GRACE = 5_000
DAY = 86_400_000
MINUTE = 60_000
BERLIN = "Europe/Berlin"


def timer(**fields: Any) -> Timer:
    """A timer that is set at its due time."""
    message = a_timer(**({"due": NOW} | fields))
    made = Timer.of(message, "s1", digest="d" * 64, depth=1, now=message.due)
    first = first_instant(made, now=message.due, horizon_ms=400 * DAY)
    assert isinstance(first, int), first
    return replace(made, next=first)


def played(one: Timer, now: int) -> tuple[list[Move], Timer | None]:
    """All moves up to now, and what is left."""
    moves: list[Move] = []
    left: Timer | None = one
    while left is not None and (move := next_move(left, now=now, grace_ms=GRACE)) is not None:
        moves.append(move)
        left = replace(left, next=move.next) if move.next is not None else None
    return moves, left


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def fires(one: Timer, until: int) -> list[str]:
    """The instants that fire when somebody looks at each."""
    found = []
    left: Timer | None = one
    while left is not None and left.next <= until:
        move = next_move(left, now=left.next, grace_ms=GRACE)
        assert move is not None
        assert (move.count, move.reason) == (1, "")
        found.append(instant_text(move.last))
        left = replace(left, next=move.next) if move.next is not None else None
    return found


def test_a_timer_is_not_due_a_millisecond_before_and_is_due_at_its_instant() -> None:
    one = timer()
    assert next_move(one, now=NOW - 1, grace_ms=GRACE) is None
    assert next_move(one, now=NOW, grace_ms=GRACE) == Move(NOW, NOW, 1, None)


def test_at_eight_stays_at_eight_when_the_clocks_change() -> None:
    one = timer(rule="FREQ=DAILY", zone=BERLIN, due=at("2027-03-27T08:00:00+01:00"))
    assert fires(one, one.due + 3 * DAY) == [
        "2027-03-27T07:00:00Z", "2027-03-28T06:00:00Z", "2027-03-29T06:00:00Z", "2027-03-30T06:00:00Z"
    ]  # fmt: skip


def test_a_time_that_does_not_exist_or_exists_twice_fires_once_that_day() -> None:
    spring = timer(rule="FREQ=DAILY", zone=BERLIN, due=at("2027-03-27T02:30:00+01:00"))
    assert fires(spring, spring.due + 2 * DAY) == [
        "2027-03-27T01:30:00Z", "2027-03-28T01:30:00Z", "2027-03-29T00:30:00Z"
    ]  # fmt: skip
    autumn = timer(rule="FREQ=DAILY", zone=BERLIN, due=at("2027-10-30T02:30:00+02:00"))
    assert fires(autumn, autumn.due + 2 * DAY + MINUTE * 60) == [
        "2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"
    ]  # fmt: skip


@pytest.mark.parametrize("zone", [BERLIN, "America/New_York", "Pacific/Apia", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY;BYHOUR=2,3;BYMINUTE=15,45",
        "FREQ=MINUTELY;INTERVAL=20",
        "FREQ=HOURLY",
        "FREQ=HOURLY;COUNT=30",
        "FREQ=WEEKLY;BYDAY=SU,MO;BYHOUR=0,2",
    ],
)
@pytest.mark.parametrize(
    "start",
    ["2027-03-27T01:10:00", "2027-10-30T01:10:00", "2011-12-29T01:10:00", "2027-03-13T01:10:00", "2027-04-03T01:10:00"],
)
def test_looking_at_many_instants_finds_what_looking_at_one_after_another_finds(
    rule: str, zone: str, start: str
) -> None:
    begin = at(start + "+00:00")
    many = list(islice(instants(rule, zone, begin, begin - 1), 200))
    each, last = [], begin - 1
    while len(each) < 200 and (last := next_instant(rule, zone, begin, last) or 0):  # type: ignore[assignment]
        each.append(last)
    assert many == each
    assert many == sorted(set(many))


def test_run_late_fires_the_newest_few_of_those_missed_each_once_and_in_order() -> None:
    moves, left = played(timer(rule="FREQ=MINUTELY"), NOW + 20 * MINUTE + 30_000)
    assert moves[0] == Move(NOW, NOW + 10 * MINUTE, 11, NOW + 11 * MINUTE, "too_many_missed")
    assert [(move.last, move.reason) for move in moves[1:]] == [(NOW + n * MINUTE, "") for n in range(11, 21)]
    assert len(moves) == 1 + MOST_LATE
    assert left is not None
    assert left.next == NOW + 21 * MINUTE


def test_coalesce_leaves_what_is_on_time_alone() -> None:
    moves, _ = played(timer(rule="FREQ=MINUTELY", misfire="coalesce"), NOW + 3 * MINUTE)
    assert [(move.last, move.count) for move in moves] == [(NOW + 2 * MINUTE, 3), (NOW + 3 * MINUTE, 1)]


def test_an_instant_within_the_grace_was_not_missed() -> None:
    for misfire in ("run-late", "skip", "coalesce"):
        one = timer(misfire=misfire)
        assert next_move(one, now=NOW + GRACE, grace_ms=GRACE) == Move(NOW, NOW, 1, None), misfire
    late = next_move(timer(misfire="skip"), now=NOW + GRACE + 1, grace_ms=GRACE)
    assert late == Move(NOW, NOW, 1, None, "missed")


@pytest.mark.parametrize("misfire", ["run-late", "skip", "coalesce"])
def test_what_is_older_than_the_lateness_is_passed_over_first(misfire: str) -> None:
    one = timer(rule="FREQ=MINUTELY", misfire=misfire, lateness=3 * MINUTE)
    moves, _ = played(one, NOW + 10 * MINUTE)
    assert moves[0] == Move(NOW, NOW + 6 * MINUTE, 7, NOW + 7 * MINUTE, "too_late")
    assert all(move.reason != "too_late" for move in moves[1:])


@pytest.mark.parametrize("misfire", ["run-late", "skip", "coalesce"])
def test_a_year_of_downtime_is_passed_over_in_few_steps(misfire: str) -> None:
    one = timer(rule="FREQ=MINUTELY;INTERVAL=30", misfire=misfire, lateness=10**12)
    moves, left = played(one, NOW + 365 * DAY + 1_000)
    assert sum(move.count for move in moves) == 365 * 48 + 1
    assert len(moves) < 365 * 48 / MOST_WALKED + MOST_LATE + 3
    assert left is not None


def test_every_instant_fires_or_is_passed_over_once_whatever_the_downtime(seed: int) -> None:
    """Looked at at random times, with crashes in between, against a list of all instants."""
    rng = random.Random(seed)
    for _ in range(60):
        misfire = rng.choice(["run-late", "skip", "coalesce"])
        rule = rng.choice(["FREQ=MINUTELY;INTERVAL=7", "FREQ=HOURLY;COUNT=30", "FREQ=DAILY;BYHOUR=2,3"])
        one = timer(rule=rule, zone=BERLIN, misfire=misfire, lateness=rng.choice([0, 3_600_000, DAY]), due=NOW)
        left: Timer | None = one
        now, seen = NOW, list[int]()
        while left is not None and now < NOW + 3 * DAY:
            now += rng.choice([1_000, 40_000, 3_600_000, 20_000_000])
            move = next_move(left, now=now, grace_ms=GRACE)
            if move is None:
                continue
            own = [move.first, *islice(left.after(move.first), move.count - 1)]
            assert own[-1] == move.last <= now
            if not move.reason:
                assert now - move.last <= one.lateness
                assert move.count == 1 or misfire == "coalesce"
                assert misfire != "skip" or now - move.last <= GRACE
            seen += own
            left = replace(left, next=move.next) if move.next is not None else None
        assert seen == list(islice(instants(rule, BERLIN, NOW, NOW - 1), len(seen)))


def test_each_instant_is_an_input_of_its_own_and_the_same_on_every_replica() -> None:
    one = timer(rule="FREQ=MINUTELY")
    first, second = Move(NOW, NOW, 1, None), Move(NOW + MINUTE, NOW + MINUTE, 1, None)
    assert fired_event(one, first, now=NOW).id == fired_event(one, first, now=NOW + 99_000).id
    ids = {
        fired_event(which, move, now=NOW).id
        for which in (one, replace(one, session="s2"), replace(one, timer="tm2"))
        for move in (first, second)
    }
    assert len(ids) == 6


@pytest.mark.parametrize(
    "data, shown",
    [
        ({"text": "t"}, {"text": "t", "coalesced": 4}),
        (None, {"coalesced": 4}),
        ("text", {"data": "text", "coalesced": 4}),
    ],
)
def test_what_fires_for_several_says_for_how_many(data: Any, shown: Any) -> None:
    one = timer(data=data)
    assert fired_event(one, Move(NOW, NOW + 3, 4, None), now=NOW).data == shown
    assert fired_event(one, Move(NOW, NOW, 1, None), now=NOW).data == data


@pytest.mark.parametrize(
    "fields, first",
    [
        ({"due": NOW - DAY}, NOW - DAY),
        ({"due": NOW + 999, "rule": "FREQ=DAILY"}, NOW),
        ({"rule": "FREQ=DAILY;BYHOUR=9"}, NOW + 3_600_000),
        ({"rule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29"}, "too_far"),
        ({"rule": "FREQ=DAILY;UNTIL=20000101T000000Z"}, "bad_timer"),
        ({"due": NOW + 401 * DAY}, "too_far"),
        ({"due": -1}, "bad_timer"),
        ({"data": ["x" * 17_000]}, "too_large"),
    ],
)
def test_when_a_timer_is_due_first_or_why_it_cannot_be(fields: dict[str, Any], first: int | str) -> None:
    message = a_timer(**({"due": NOW} | fields))
    one = Timer.of(message, "s1", digest="d", depth=1, now=NOW)
    assert first_instant(one, now=NOW, horizon_ms=400 * DAY) == first


def test_an_instant_is_written_as_rfc_3339() -> None:
    assert instant_text(NOW) == "2027-01-15T08:00:00Z"
    assert instant_text(NOW + 5) == "2027-01-15T08:00:00.005Z"
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    assert datetime.fromisoformat(instant_text(NOW + 123)) - begin == timedelta(milliseconds=NOW + 123)


def test_what_is_stored_of_a_timer_is_read_again() -> None:
    one = replace(timer(subject="film:f1", rule="FREQ=DAILY"), fired=3, skipped=2)
    assert Timer.unpack(one.pack(), next=one.next, fired=3, skipped=2) == one

"""When a recurring timer is due (design §4.4, RFC 5545)."""

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from libs.contracts.recurrence import check_rule, next_instant, starting_at

ROME = "Europe/Rome"


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def told(instant: int | None, zone: str = ROME) -> str:
    assert instant is not None
    return datetime.fromtimestamp(instant / 1000, ZoneInfo(zone)).isoformat()


def instants(rule: str, start: str, number: int, zone: str = ROME) -> list[str]:
    found, after = [], ms(start) - 1
    for _ in range(number):
        instant = next_instant(rule, zone, ms(start), after)
        if instant is None:
            break
        found.append(told(instant, zone))
        after = instant
    return found


def test_a_rule_gives_its_instants_in_order_and_ends() -> None:
    assert instants("FREQ=DAILY;BYHOUR=8;BYMINUTE=0;COUNT=3", "2026-11-30T07:00:00+01:00", 9) == [
        "2026-11-30T08:00:00+01:00", "2026-12-01T08:00:00+01:00", "2026-12-02T08:00:00+01:00",
    ]  # fmt: skip


def test_an_instant_comes_strictly_after_the_one_before() -> None:
    start = ms("2026-11-30T08:00:00+01:00")
    assert next_instant("FREQ=DAILY", ROME, start, start - 1) == start
    assert told(next_instant("FREQ=DAILY", ROME, start, start)) == "2026-12-01T08:00:00+01:00"


def test_the_wall_time_is_kept_over_daylight_saving() -> None:
    assert instants("FREQ=DAILY", "2026-03-28T08:00:00+01:00", 3) == [
        "2026-03-28T08:00:00+01:00", "2026-03-29T08:00:00+02:00", "2026-03-30T08:00:00+02:00",
    ]  # fmt: skip


def test_a_time_that_does_not_exist_is_moved_forward_by_the_gap() -> None:
    assert instants("FREQ=DAILY", "2026-03-28T02:30:00+01:00", 3) == [
        "2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00",
    ]  # fmt: skip


def test_a_time_that_exists_twice_comes_once() -> None:
    assert instants("FREQ=DAILY", "2026-10-24T02:30:00+02:00", 3) == [
        "2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00",
    ]  # fmt: skip


def test_times_moved_out_of_a_gap_stay_in_order_and_come_once() -> None:
    found = instants("FREQ=MINUTELY;INTERVAL=30", "2026-03-29T01:30:00+01:00", 5)
    assert found == [
        "2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00",
        "2026-03-29T04:00:00+02:00", "2026-03-29T04:30:00+02:00",
    ]  # fmt: skip


def test_until_is_utc_local_or_a_date_that_counts_to_its_end() -> None:
    start = "2026-11-30T08:00:00+01:00"
    assert len(instants("FREQ=DAILY;UNTIL=20261202T070000Z", start, 9)) == 3
    assert len(instants("FREQ=DAILY;UNTIL=20261202T065959Z", start, 9)) == 2
    assert len(instants("FREQ=DAILY;UNTIL=20261202T080000", start, 9)) == 3
    assert len(instants("FREQ=DAILY;UNTIL=20261202", start, 9)) == 3


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY;INTERVAL=3", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,TH", "FREQ=MONTHLY;BYDAY=-1FR",
        "FREQ=MONTHLY;BYMONTHDAY=31", "FREQ=MONTHLY;INTERVAL=5", "FREQ=YEARLY;INTERVAL=3;BYMONTH=2;BYMONTHDAY=-1",
        "FREQ=HOURLY;INTERVAL=7", "FREQ=MINUTELY;INTERVAL=50",
    ],
)  # fmt: skip
def test_looking_from_a_later_instant_finds_what_counting_from_the_start_finds(rule: str) -> None:
    start = ms("2024-01-31T08:00:00+01:00")
    counted = [start - 1]
    while len(counted) < 60:
        found = next_instant(rule + ";COUNT=400", "UTC", start, counted[-1])
        assert found is not None
        counted.append(found)
    assert [next_instant(rule, "UTC", start, after) for after in counted[:-1]] == counted[1:]


def test_a_rule_of_minutes_costs_the_same_years_later() -> None:
    began = time.perf_counter()
    assert told(
        next_instant("FREQ=MINUTELY", "UTC", ms("2016-01-01T00:00:00Z"), ms("2026-01-01T00:00:30Z")), "UTC"
    ) == ("2026-01-01T00:01:00+00:00")
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("FREQ=SECONDLY", "more often than once a minute"),
        ("FREQ=DAILY;BYSECOND=0,30", "more often than once a minute"),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "no instant"),
        ("FREQ=MINUTELY;BYMONTH=2;BYMONTHDAY=30", "no instant"),
        ("FREQ=DAILY;UNTIL=20200101T000000Z", "no instant"),
        ("FREQ=DAILY;UNTIL=20261301", "UNTIL cannot be"),
        ("FREQ=MINUTELY;BYSETPOS=5", "BYSETPOS"),
        ("FREQ=OFTEN", "FREQ is one of"),
        ("daily at eight", "NAME=VALUE"),
        ("", "NAME=VALUE"),
        ("FREQ=DAILY;FREQ=DAILY", "each once"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL is a number from 1"),
        ("FREQ=DAILY;COUNT=10001", "COUNT is a number"),
        ("FREQ=DAILY;BYEASTER=0", "no part"),
        ("FREQ=DAILY;BYHOUR=25", "do not go together"),
        ("FREQ=DAILY;BYDAY=XX", "BYDAY cannot be"),
        ("FREQ=HOURLY;INTERVAL=24;BYHOUR=7", "do not go together"),
        ("FREQ=DAILY\nDTSTART:20200101T000000", "cannot be|NAME=VALUE|FREQ"),
        ("FREQ=DAILY;" + "BYHOUR=8;" * 60, "at most 500"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused_with_the_reason(rule: str, fault: str) -> None:
    found = check_rule(rule, ROME, ms("2026-11-30T08:00:00+01:00"))
    assert found is not None
    assert any(text in found for text in fault.split("|"))


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "", "Europe", "/etc/passwd", "x" * 500])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    assert "no time zone" in str(check_rule("FREQ=DAILY", zone, 0))


def test_good_rules_pass() -> None:
    for rule in ("FREQ=DAILY;BYHOUR=8", "RRULE:FREQ=WEEKLY;BYDAY=MO,FR", "freq=monthly;byday=-1fr"):
        assert check_rule(rule, ROME, ms("2026-11-30T08:00:00+01:00")) is None


def test_hours_without_minutes_mean_the_full_hour() -> None:
    now = ms("2026-11-30T09:23:45+01:00")
    for rule, first in (
        ("FREQ=DAILY;BYHOUR=8", "2026-12-01T08:00:00+01:00"),
        ("FREQ=DAILY", "2026-12-01T09:23:00+01:00"),
    ):
        assert told(next_instant(rule, ROME, starting_at(rule, ROME, now), now)) == first


def test_a_rule_over_for_good_has_no_next_instant() -> None:
    assert next_instant("FREQ=YEARLY;COUNT=1", ROME, 0, 1) is None
    assert next_instant("FREQ=DAILY", "UTC", 0, ms("9990-01-01T00:00:00Z") * 1000) is None

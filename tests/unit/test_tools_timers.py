"""What the door judges of a timer that somebody wishes for (design §4.4)."""

import re
from datetime import datetime
from typing import Any

import pytest

from libs.contracts.keys import DAY_MS
from services.tools.timers import lateness_ms, timer_id, when

NOW = round(datetime.fromisoformat("2026-11-30T09:23:45+01:00").timestamp() * 1000)
HOUR_MS = 3_600_000


def due(**args: Any) -> int:
    found = when({"text": "t", **{name.rstrip("_"): value for name, value in args.items()}}, NOW)["due"]
    assert isinstance(found, int)
    return found


def test_a_time_is_taken_with_its_offset() -> None:
    assert due(at="2026-11-30T10:23:45+01:00") == NOW + HOUR_MS
    assert due(at="2026-11-30T09:23:45z") == NOW + HOUR_MS


def test_a_span_counts_from_now() -> None:
    assert due(in_="90m") == NOW + 90 * 60_000


def test_a_rule_comes_next_in_its_zone() -> None:
    eight = datetime.fromisoformat("2026-12-01T08:00:00+01:00").timestamp() * 1000
    assert due(rule="FREQ=DAILY;BYHOUR=8", zone="Europe/Rome") == eight
    assert due(rule="FREQ=DAILY;BYHOUR=8") == eight + HOUR_MS  # UTC where no zone is said


def test_a_rule_is_told_with_its_time_of_day_spelled_out() -> None:
    told = when({"text": "t", "rule": "FREQ=DAILY;BYHOUR=8", "zone": "Europe/Rome"}, NOW)
    assert (told["rule"], told["zone"]) == ("FREQ=DAILY;BYHOUR=8;BYMINUTE=0;BYSECOND=0", "Europe/Rome")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "one of at, in and rule"),
        ({"at": "2026-12-01T08:00:00Z", "in": "1h"}, "one of at, in and rule"),
        ({"at": "2026-11-30T08:00:00Z"}, "2026-11-30T08:00:00+00:00 is past"),
        ({"at": "2026-12-01T08:00:00"}, "with its offset"),
        ({"at": "tomorrow"}, "with its offset"),
        ({"at": "2026-02-30T08:00:00Z"}, "with its offset"),
        ({"at": "0001-01-01T00:00:00+14:00"}, "is past"),
        ({"at": "9999-12-31T23:59:59Z"}, "more than 400 days away"),
        ({"in": "401d"}, "more than 400 days away"),
        ({"in": "0s"}, "is past"),
        ({"in": "1h", "zone": "Europe/Rome"}, "a zone is that of a rule"),
        ({"in": "1h", "lateness": "0s"}, "at least a millisecond"),
        ({"in": "1h", "subject": "film:\u0000"}, "a subject"),
        ({"in": "1h", "subject": "é" * 200}, "a subject"),
        ({"rule": "FREQ=DAILY", "zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"rule": "FREQ=SECONDLY"}, "more often than once a minute"),
        ({"rule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "no instant"),
        ({"rule": "FREQ=DAILY;UNTIL=20261130T082300Z"}, "no instant"),
        ({"rule": "FREQ=DAILY;COUNT=0"}, "COUNT is a number"),
        ({"rule": "every day"}, "NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(args: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        when({"text": "t", **args}, NOW)


def test_lateness_is_a_day_where_none_is_said() -> None:
    assert lateness_ms({}) == DAY_MS
    assert lateness_ms({"lateness": "90s"}) == 90_000


def test_a_timers_id_follows_from_its_operation() -> None:
    assert timer_id("key1") == timer_id("key1") != timer_id("key2")
    assert len(timer_id("key1")) == 16

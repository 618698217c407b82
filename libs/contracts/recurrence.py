"""When a recurring timer is due: RFC 5545 recurrence rules over the wall time of one zone, as pure functions.

The door checks a rule before it seals a timer, ingress asks for the next instant after each that it fired (design
§4.4). The wall time is kept over daylight saving: a local time that does not exist is moved forward by the gap, one
that exists twice is its first instant (RFC 5545 §3.3.5). So an instant fires once.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

LONGEST = 500
MOST_INSTANTS = 10_000
"""Of `COUNT`: they are counted anew for each instant."""
_MOST_INTERVAL = 1_000_000
_CALENDAR = 400
"""Years after which the Gregorian calendar repeats, weekdays and all."""
_LAST_START = 9_899
_BEFORE = timedelta(days=1)
"""No zone ever skipped more of its local time at once."""
_STEPS = {
    "MINUTELY": timedelta(minutes=1), "HOURLY": timedelta(hours=1), "DAILY": timedelta(days=1),
    "WEEKLY": timedelta(weeks=1),
}  # fmt: skip
_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")
_LISTS = ("BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO", "BYHOUR", "BYMINUTE", "BYSECOND", "BYSETPOS")
_DAY = re.compile(r"[+-]?\d{0,2}(MO|TU|WE|TH|FR|SA|SU)")
_NUMBERS = re.compile(r"[+-]?\d{1,3}(,[+-]?\d{1,3})*")
_UNTIL = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")


def zone_fault(zone: str) -> str | None:
    """What is wrong with the name of an IANA time zone, or None."""
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return f"there is no time zone {zone[:64]!r}"
    return None


def check_rule(rule: str, zone: str, start: int) -> str | None:
    """What is wrong with a recurrence rule, as a sentence, or None.

    Refused are, beside what RFC 5545 §3.3.10 does not know: what comes more often than once a minute, what has no
    instant from `start` (milliseconds, Unix) on, and what would take long to evaluate.
    """
    if fault := zone_fault(zone) or _syntax_fault(rule):
        return fault
    try:
        first = next_instant(rule, zone, start, start - 1)
    except (ValueError, TypeError, OverflowError):
        return "the rule's parts do not go together"
    return "the rule has no instant" if first is None else None


def next_instant(rule: str, zone: str, start: int, after: int) -> int | None:
    """The first instant of a checked rule that is later than `after`, or None when it is over.

    `start`, which is the rule's DTSTART, `after` and the answer are in milliseconds (Unix), whole seconds. Raises
    ValueError for a rule or a zone that `check_rule` refuses.
    """
    place = ZoneInfo(zone)
    found: list[int] = []
    for local in _local_times(_parts(rule), place, start, after):
        instant = _instant(local, place)
        if instant > after:
            found.append(instant)
            if _exists(local, place):
                break  # what was moved out of a gap may come after what follows it on the clock
    return min(found, default=None)


def instants(rule: str, zone: str, start: int, after: int) -> Iterator[int]:
    """All instants later than `after` in order, as `next_instant` would give them one after another, at a fraction of
    the cost: for who looks at many. Raises as `next_instant` does."""
    place = ZoneInfo(zone)
    last, moved = after, list[int]()
    for local in _local_times(_parts(rule), place, start, after):
        heappush(moved, _instant(local, place))
        # Until one comes that exists, those that were moved out of a gap may still be overtaken.
        while _exists(local, place) and moved and moved[0] <= _instant(local, place):
            if (instant := heappop(moved)) > last:
                yield instant
                last = instant
    yield from sorted({instant for instant in moved if instant > last})


def starting_at(rule: str, zone: str, now: int) -> int:
    """DTSTART (milliseconds) of a checked rule that is set `now` without a start: on the full minute, or on the full
    hour where the rule names hours and no minutes, as a person means it."""
    parts = _parts(rule)
    local = datetime.fromtimestamp(now / 1000, ZoneInfo(zone)).replace(second=0, microsecond=0)
    if "BYHOUR" in parts and "BYMINUTE" not in parts:
        local = local.replace(minute=0)
    return round(local.timestamp() * 1000)


def pinned(rule: str, zone: str, start: int) -> str:
    """A checked rule that says itself at what time of day it comes, which it has from its start otherwise.

    So its instants do not move for good where the first of them, which becomes its start, is moved out of a gap.
    """
    parts, local = _parts(rule), _local(start, ZoneInfo(zone))
    if parts["FREQ"] not in ("HOURLY", "MINUTELY"):
        parts.setdefault("BYHOUR", str(local.hour))
    if parts["FREQ"] != "MINUTELY":
        parts.setdefault("BYMINUTE", str(local.minute))
    parts.setdefault("BYSECOND", str(local.second))
    return ";".join(f"{name}={value}" for name, value in parts.items())


def _parts(rule: str) -> dict[str, str]:
    text = rule.strip().upper().removeprefix("RRULE:").rstrip(";")
    return {name: value for name, _, value in (part.partition("=") for part in text.split(";"))}


def _syntax_fault(rule: str) -> str | None:
    if len(rule) > LONGEST:
        return f"a rule has at most {LONGEST} characters"
    parts = _parts(rule)
    if rule.count("=") != len(parts):
        return "a rule is parts NAME=VALUE with ; between, each once"
    if parts.get("FREQ") == "SECONDLY" or "," in parts.get("BYSECOND", ""):
        return "the rule comes more often than once a minute"
    if parts.get("FREQ") not in _FREQUENCIES:
        return f"FREQ is one of {', '.join(_FREQUENCIES)}"
    if "BYSETPOS" in parts and parts["FREQ"] in ("HOURLY", "MINUTELY"):
        return "BYSETPOS is for rules that are DAILY or longer"
    return next((fault for name, value in parts.items() if (fault := _part_fault(name, value))), None)


def _part_fault(name: str, value: str) -> str | None:
    match name:
        case "FREQ":
            good = True
        case "INTERVAL" | "COUNT":
            most = _MOST_INTERVAL if name == "INTERVAL" else MOST_INSTANTS
            if re.fullmatch(r"[0-9]{1,9}", value) is None or not 1 <= int(value) <= most:
                return f"{name} is a number from 1 to {most}"
            good = True
        case "UNTIL":
            good = _until_is_good(value)
        case "BYDAY":
            good = all(_DAY.fullmatch(day) for day in value.split(","))
        case "WKST":
            good = re.fullmatch(r"MO|TU|WE|TH|FR|SA|SU", value) is not None
        case _ if name in _LISTS:
            good = _NUMBERS.fullmatch(value) is not None
        case _:
            return f"a rule has no part {name[:20]!r}"
    return None if good else f"{name} cannot be {value[:40]!r}"


def _until_is_good(value: str) -> bool:
    if (match := _UNTIL.fullmatch(value)) is None:
        return False
    try:
        datetime.strptime(match[1] + (match[2] or "000000"), "%Y%m%d%H%M%S")  # noqa: DTZ007 - only whether it is one
    except ValueError:
        return False
    return True


def _local_times(parts: dict[str, str], place: ZoneInfo, start: int, after: int) -> Iterator[datetime]:
    """The rule's wall times without their zone, in order, from shortly before `after` on.

    Evaluated in a year near the calendar's end that has the same days: so a rule that never comes ends after some
    hundred years and not after eight thousand.
    """
    try:
        first = _local(start, place)
        begin = first if "COUNT" in parts else _forward(parts, first, _looked_at_from(max(after, start), place))
    except (ValueError, OverflowError, OSError):
        return
    years = (_LAST_START - begin.year) // _CALENDAR * _CALENDAR
    until = _until(parts["UNTIL"], place) if "UNTIL" in parts else None
    text = ";".join(f"{name}={value}" for name, value in parts.items() if name != "UNTIL")
    for moved in rrulestr(text, dtstart=begin.replace(year=begin.year + years)):
        local = moved.replace(year=moved.year - years)
        if until is not None and local > until:
            return
        if local >= first:
            yield local


def _looked_at_from(ms: int, place: ZoneInfo) -> datetime:
    """The wall time from which a later instant may come: where clocks were changed since, what was moved out of the
    gap comes after what follows it."""
    local = _local(ms, place)
    before = _local(ms - round(_BEFORE.total_seconds() * 1000), place)
    return local if local - before == _BEFORE else min(before, local - _BEFORE)


def _forward(parts: dict[str, str], first: datetime, target: datetime) -> datetime:
    """The latest start not after `target` from which the rule is the same: whole intervals later, at a day that its
    month has. Without it each instant would cost all those before."""
    interval = int(parts.get("INTERVAL", "1"))
    if target <= first:
        return first
    if (step := _STEPS.get(parts["FREQ"])) is not None:
        return first + (target - first) // (step * interval) * (step * interval)
    # A whole number of years keeps the rule's months; of four hundred, every day.
    for years in range((target.year - first.year - 1) // interval * interval, 0, -interval):
        try:
            return first.replace(year=first.year + years)
        except ValueError:
            continue
    return first


def _until(value: str, place: ZoneInfo) -> datetime:
    """The last wall time: UNTIL is UTC, local, or a date, which counts to its end."""
    day, time, utc = _UNTIL.fullmatch(value).groups()  # type: ignore[union-attr]
    at = datetime.strptime(day + (time or "235959"), "%Y%m%d%H%M%S")  # noqa: DTZ007 - wall time
    return at.replace(tzinfo=UTC).astimezone(place).replace(tzinfo=None) if utc else at


def _local(ms: int, place: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(ms // 1000, place).replace(tzinfo=None, fold=0)


def _instant(local: datetime, place: ZoneInfo) -> int:
    return round(local.replace(tzinfo=place).timestamp() * 1000)


def _exists(local: datetime, place: ZoneInfo) -> bool:
    return _local(_instant(local, place), place) == local

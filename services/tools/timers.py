"""What the door judges of a timer that somebody wishes for, as pure functions (design §4.4)."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from libs.contracts.application import seconds
from libs.contracts.canonical import JSON
from libs.contracts.ids import derive_id, is_text_id
from libs.contracts.keys import DAY_MS, SESSION_TTL_MS
from libs.contracts.recurrence import check_rule, next_instant, pinned, starting_at, zone_fault

TIMER_ID_DIGITS = 16
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)")


def timer_id(key: str) -> str:
    """The timer of an operation's key: the same however often the operation is told of."""
    return derive_id("timer", key)[:TIMER_ID_DIGITS]


def lateness_ms(args: Mapping[str, JSON]) -> int:
    """The largest lateness that the arguments say, in milliseconds; a day where they say none."""
    return round(seconds(args["lateness"]) * 1000) if "lateness" in args else DAY_MS


def when(args: Mapping[str, JSON], now: int) -> dict[str, JSON]:
    """Due time, rule, zone and subject of a timer that is wished for `now` (milliseconds), as its operation's result.

    Raises ValueError with a sentence for people where it cannot be."""
    if len([name for name in ("at", "in", "rule") if name in args]) != 1:
        raise ValueError("give one of at, in and rule")
    if "zone" in args and "rule" not in args:
        raise ValueError("a zone is that of a rule; at has its own offset")
    if lateness_ms(args) < 1:
        raise ValueError("lateness is at least a millisecond")
    subject = str(args.get("subject", ""))
    if subject and not is_text_id(subject):
        raise ValueError("a subject is up to 256 bytes that can be printed")
    rule, zone = str(args.get("rule", "")), str(args.get("zone", "UTC"))
    if rule:
        rule, due = _recurring(rule, zone, now)
    else:
        due = _at(str(args["at"])) if "at" in args else now + round(seconds(args["in"]) * 1000)
    if due <= now:
        raise ValueError(f"{_text(due)} is past")
    if due > now + SESSION_TTL_MS:
        raise ValueError(f"that is more than {SESSION_TTL_MS // DAY_MS} days away")
    told: dict[str, JSON] = {"due": due, "at": _text(due), "subject": subject}
    return {**told, "rule": rule, "zone": zone} if rule else told


def _recurring(rule: str, zone: str, now: int) -> tuple[str, int]:
    """The rule with its times spelled out, and its first instant (milliseconds)."""
    if fault := zone_fault(zone) or check_rule(rule, zone, now):
        raise ValueError(fault)
    start = starting_at(rule, zone, now)
    due = next_instant(rule, zone, start, now)
    if due is None:
        raise ValueError("the rule has no instant")
    return pinned(rule, zone, start), due


def _at(text: str) -> int:
    try:
        if _RFC3339.fullmatch(text) is None:
            raise ValueError
        return round(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("at is a time such as 2026-12-01T08:00:00+01:00, with its offset") from None


def _text(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return "that time"

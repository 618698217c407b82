"""The order of a subject's events: what is older than what was applied is history, not action (design §4.1)."""

import re
from decimal import Decimal

from libs.contracts.times import rfc3339_seconds

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")

Mark = tuple[str, int]
"""A sequence as its source wrote it, and when its event was accepted (ms, Unix)."""


def is_newer(mark: Mark, applied: Mark) -> bool:
    """Whether an event comes after what was applied. Numbers compare as numbers, RFC 3339 times as instants, anything
    else, and what is not alike, as text.

    A time in the future counts as the time of its acceptance: one wrong clock must not silence a subject for years.
    """
    if (number := _number(mark[0])) is not None and (other := _number(applied[0])) is not None:
        return number > other
    if (time := rfc3339_seconds(mark[0])) is not None and (before := rfc3339_seconds(applied[0])) is not None:
        # Where both were clamped to one millisecond, their own times still tell them apart.
        return (min(time, _ms(mark[1])), time) > (min(before, _ms(applied[1])), before)
    return mark[0] > applied[0]


def _number(text: str) -> Decimal | None:
    # Not what Decimal takes beyond that: NaN has no place in an order, and "1_0" is no number to anybody else.
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _ms(at: int) -> Decimal:
    return Decimal(at) / 1000

"""Times as other people write them."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}):([0-9]{2})(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def rfc3339_seconds(text: str) -> Decimal | None:
    """Seconds since 1970 of an RFC 3339 time, to its last digit, or None. A leap second is the end of its minute."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    day, minute, seconds, fraction, zone = match.groups()
    if int(seconds) > 60:
        return None
    try:
        start = datetime.fromisoformat(f"{day}T{minute}:00{'+00:00' if zone in 'Zz' else zone}")
    except ValueError:
        return None
    # Subtracted as they are: in UTC the first and the last day that Python knows would be out of its range.
    whole = (start - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
    return Decimal(whole) + int(seconds) + Decimal(fraction or 0)

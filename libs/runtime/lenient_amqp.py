"""Make the AMQP decoders total: a foreign message with odd properties must not kill the connection it comes over.

The driver decodes properties and routing key before we see the message, and an exception there ends the whole
connection; the broker then delivers the same message again, for ever. RabbitMQ itself checks neither that short
strings are UTF-8 nor that a timestamp is a date (AMQP 0-9-1, 4.2.5).
"""

import datetime
from collections.abc import Callable
from typing import Any

from pamqp import decode

_TABLE_LENGTH_BYTES = 4


def short_str(value: bytes) -> tuple[int, str]:
    """Bytes consumed and the text; what is not UTF-8 is shown as `\\xNN`."""
    end = 1 + value[0]
    return end, value[1:end].decode("utf-8", "backslashreplace")


def timestamp(value: bytes) -> tuple[int, datetime.datetime | None]:
    """Bytes consumed and the time; None where it is outside of the calendar."""
    try:
        return decode.timestamp(value)
    except (ValueError, OverflowError, OSError):
        return 8, None


def field_table(value: bytes) -> tuple[int, dict[str, Any]]:
    """Bytes consumed and the table; an empty one where a name or a value in it cannot be read."""
    end = _TABLE_LENGTH_BYTES + int.from_bytes(value[:_TABLE_LENGTH_BYTES], "big")
    try:
        return end, decode.field_table(value)[1]
    except Exception:  # whatever it is, among it too deep a nesting: the length alone says where the table ends
        return end, {}


def install() -> None:
    """Let the driver use these decoders, in the whole process. Doing it again changes nothing."""
    methods: dict[str, Callable[..., Any]] = decode.METHODS
    methods.update(shortstr=short_str, timestamp=timestamp, table=field_table)
    inner: dict[bytes, Callable[..., Any]] = decode.TABLE_MAPPING
    inner[b"T"] = timestamp

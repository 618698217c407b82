"""Canonical JSON and digests.

RFC 8785 asks for sorted keys, no spaces and ECMAScript numbers. Arguments here are JSON values whose money is
decimal text and whose integers stay within 2**53, for which sorted orjson output is that form.
"""

import hashlib
import math
from typing import Any

import orjson

from libs.contracts.errors import ContractError

JSON = Any
"""A JSON value: None, bool, int, float, str, list or dict with text keys."""


def canonical(value: JSON) -> bytes:
    """The one byte string of a JSON value: keys sorted, no white space (after RFC 8785).

    Raises ContractError for what JSON cannot hold, such as an integer above 2**53 - 1 or infinity.
    """
    try:
        raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError as error:
        raise ContractError(f"not canonical JSON: {error}") from error
    if b"null" in raw and _holds_no_number(value):
        raise ContractError("not canonical JSON: NaN or infinity")
    return raw


def _holds_no_number(value: JSON) -> bool:
    """Whether NaN or infinity is somewhere in it, which would be written as null and so have null's digest."""
    match value:
        case float():
            return not math.isfinite(value)
        case dict():
            return any(_holds_no_number(item) for item in value.values())
        case list() | tuple():
            return any(_holds_no_number(item) for item in value)
        case _:
            return False


def digest(value: JSON) -> str:
    """SHA-256 over the canonical form, as 64 hexadecimal digits."""
    return digest_bytes(canonical(value))


def digest_bytes(raw: bytes) -> str:
    """SHA-256 over raw bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()

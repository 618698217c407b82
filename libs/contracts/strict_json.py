"""JSON that every reader reads alike, or a refusal (RFC 8259 with the advice of RFC 7493)."""

import json
from typing import Any

import orjson

from libs.contracts.canonical import JSON

MAX_DEPTH = 100
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


class Malformed(ValueError):
    """A body that is not acceptable. The text says what is wrong, without the body."""


def parse(raw: bytes) -> JSON:
    """The value of a body. Raises Malformed.

    Refused: what is not UTF-8 or not JSON, a byte order mark, NaN and numbers out of range, lone surrogates, more than
    100 levels, and an object with the same key twice, which readers take differently (C090).
    """
    try:
        # orjson is the strict one about bytes; it keeps the last of two equal keys, so json looks at the keys.
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise Malformed("not JSON") from None
    # Openers inside texts count too: the tree is walked only when the bytes could be deep at all.
    deep = raw.count(b"[") + raw.count(b"{") > MAX_DEPTH
    try:
        value = _DECODER.decode(raw.decode())
    except RecursionError:
        raise Malformed("too deep") from None
    if deep and _depth(value) > MAX_DEPTH:
        raise Malformed("too deep")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Malformed("a key stands twice in one object")
    return value


def _integer(text: str) -> int:
    # Beyond 64 bits readers round silently; orjson would too.
    number = int(text) if len(text) <= 20 else _LARGEST + 1
    if not _SMALLEST <= number <= _LARGEST:
        raise Malformed("a whole number beyond 64 bits")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer)


def _depth(value: Any) -> int:
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, level = todo.pop()
        deepest = max(deepest, level)
        if isinstance(item, dict):
            todo.extend((child, level + 1) for child in item.values())
        elif isinstance(item, list):
            todo.extend((child, level + 1) for child in item)
    return deepest

"""JSON that every reader reads alike, or a refusal."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.strict_json import MAX_DEPTH, Malformed, parse


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":1,"a":2}',
        b'{"x":{"a":1,"\\u0061":2}}',
        b'[{"a":1,"a":1}]',
        b'{"n":18446744073709551616}',
        b'{"n":-9223372036854775809}',
        b'{"n":' + b"9" * 5000 + b"}",
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"{'a':1}",
        b'{"a":01}',
    ],
)
def test_what_readers_take_differently_is_malformed(raw: bytes) -> None:
    """C090."""
    with pytest.raises(Malformed):
        parse(raw)


@pytest.mark.parametrize(
    "raw, value",
    [
        (b'{"a":{"b":1},"c":{"b":2}}', {"a": {"b": 1}, "c": {"b": 2}}),
        (b'{"n":18446744073709551615,"m":-9223372036854775808}', {"n": 2**64 - 1, "m": -(2**63)}),
        (b'"\xe2\x98\x83"', "☃"),
        (b"[1.50, 0.1]", [1.5, 0.1]),
        (b'{"brackets":"' + b"[{" * 200 + b'"}', {"brackets": "[{" * 200}),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, None),
    ],
)
def test_what_is_plain_is_read_exactly(raw: bytes, value: Any) -> None:
    found = parse(raw)
    assert value is None or found == value


def test_a_fault_does_not_show_the_body() -> None:
    with pytest.raises(Malformed) as caught:
        parse(b'{"secret":1,"secret":2}')
    assert "secret" not in str(caught.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_every_value_that_orjson_writes_comes_back(value: Any) -> None:
    try:
        raw = orjson.dumps(value)
    except orjson.JSONEncodeError:
        return  # lone surrogates
    assert parse(raw) == orjson.loads(raw)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_malformed(raw: bytes) -> None:
    try:
        parse(raw)
    except Malformed:
        return

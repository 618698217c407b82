"""Canonical JSON: one byte string a value, and an error for what JSON cannot hold."""

import pytest

from libs.contracts.canonical import canonical, digest, digest_bytes
from libs.contracts.errors import ContractError


def test_keys_are_sorted_and_nothing_is_spaced():
    assert canonical({"b": [1, {"d": 1, "c": None}], "a": "ä"}) == '{"a":"ä","b":[1,{"c":null,"d":1}]}'.encode()


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})


def test_the_digest_is_sha256_of_the_canonical_bytes():
    assert digest({}) == digest_bytes(b"{}") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize(
    "value", [2**53, -(2**53), float("nan"), [float("inf")], {"a": {"b": (1, -float("inf"))}}, {1: "a"}, "\ud800", {1}]
)
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ContractError):
        canonical(value)


def test_null_beside_numbers_is_no_fault():
    assert canonical({"a": None, "b": 1.5}) == b'{"a":null,"b":1.5}'

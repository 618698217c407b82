"""Which of two events about one subject is the newer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.times import rfc3339_seconds
from services.session.domain.order import is_newer

AT = 1_764_496_800_000  # 2025-11-30T10:00:00Z


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("10", "9"),
        ("1.11", "1.10"),
        ("0", "-1"),
        ("1e3", "999"),
        ("100000000000000000000001", "100000000000000000000000"),
        ("0.1000000000000000000001", "0.1"),
        ("b", "a"),
        ("v10x", "v10"),
        ("NaN", "1"),  # text, as what is not alike is
        ("1_1", "1"),
        ("٢", "1"),  # a digit of another script is no number here
        ("2025-11-30T10:00:00Z", "2025-11-30T09:59:59Z"),
        ("2025-11-30T09:59:59.0000000002Z", "2025-11-30T09:59:59.0000000001Z"),
        ("2025-11-30T10:30:00+01:00", "2025-11-30T09:29:59Z"),
        ("2025-11-30t09:00:00z", "2025-11-30T10:00:00+02:00"),
        ("0001-01-01T00:00:01+23:59", "0001-01-01T00:00:00+23:59"),
    ],
)
def test_one_comes_after_the_other(newer, older):
    assert is_newer((newer, AT), (older, AT))
    assert not is_newer((older, AT), (newer, AT))


@pytest.mark.parametrize(
    ("one", "other"),
    [("2", "2.0"), ("1e1", "10"), ("2025-11-30T10:00:00Z", "2025-11-30T11:00:00+01:00"), ("a", "a"), ("+1", "1")],
)
def test_neither_comes_after_the_other(one, other):
    assert not is_newer((one, AT), (other, AT))
    assert not is_newer((other, AT), (one, AT))


def test_a_time_in_the_future_counts_as_the_time_of_its_acceptance():
    wrong, right = ("2099-01-01T00:00:00Z", AT), ("2025-11-30T10:00:01Z", AT + 1_000)
    assert is_newer(right, wrong)
    assert not is_newer(("2025-11-30T09:59:59Z", AT + 2_000), wrong)


def test_two_future_times_of_one_millisecond_are_told_apart():
    assert is_newer(("2099-01-02T00:00:00Z", AT), ("2099-01-01T00:00:00Z", AT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2025-11-30",
        "2025-13-30T10:00:00Z",
        "2025-11-30T10:00:61Z",
        "2025-11-30T10:00Z",
        "2025-11-30T10:00:00",
        "2025-11-30T25:00:00Z",
        "2025-11-30T10:00:00+99:00",
    ],
)
def test_what_is_no_rfc_3339_time_is_none(text):
    assert rfc3339_seconds(text) is None


def test_a_leap_second_is_the_end_of_its_minute():
    assert rfc3339_seconds("2016-12-31T23:59:60Z") == rfc3339_seconds("2017-01-01T00:00:00Z")


_TEXTS = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
)


@given(_TEXTS, _TEXTS, st.integers(0, 2**53), st.integers(0, 2**53))
def test_any_two_can_be_compared_and_at_most_one_is_newer(one, other, at, then):
    assert not (is_newer((one, at), (other, then)) and is_newer((other, then), (one, at)))

"""Ids: what may be one, and that derived ones are stable, distinct and fit for keys and routing keys."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.ids import derive_id, is_slug, is_text_id, partition_of, shard_of


@pytest.mark.parametrize("text", ["a", "A-b_9", "x" * 64])
def test_letters_digits_dash_and_underscore_make_a_slug(text):
    assert is_slug(text)


@pytest.mark.parametrize("text", ["", "x" * 65, "a.b", "a{b", "a}b", "a:b", "a b", "a\n", "ä", "a/b", "*", "١"])
def test_what_would_pierce_a_key_or_a_routing_key_is_no_slug(text):
    assert not is_slug(text)


@pytest.mark.parametrize("text", ["evt_1", "reservation:rsv_8f2", "ä" * 128, "a b"])
def test_printable_text_of_at_most_256_bytes_is_a_text_id(text):
    assert is_text_id(text)


@pytest.mark.parametrize("text", ["", "x" * 257, "ä" * 129, "a\nb", "a\x00", "\u200b", "\ud800", "a\u202eb"])
def test_what_is_empty_long_or_invisible_is_no_text_id(text):
    assert not is_text_id(text)


def test_the_same_parts_give_the_same_id_on_every_replica():
    assert derive_id("event", "restaurant", "evt_1") == "628bd667c5264b9874e9d86401f7a8f7"
    assert derive_id("a", 1) == derive_id("a", "1")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.lists(st.text(st.characters(max_codepoint=99))))
def test_other_parts_give_another_id(left, right):
    assert (derive_id(*left) == derive_id(*right)) == (left == right)


def test_moving_a_letter_from_one_part_to_the_next_gives_another_id():
    assert derive_id("ab", "c") != derive_id("a", "bc")


def test_a_derived_id_is_a_slug_of_32_characters():
    assert re.fullmatch(r"[0-9a-f]{32}", derive_id("x"))


@pytest.mark.parametrize(("session", "partition"), [("s1", 4), ("s2", 10), ("dinner", 2)])
def test_the_partition_of_a_session_is_fixed_for_ever(session, partition):
    assert partition_of(session, 16) == partition


def test_sessions_spread_over_all_partitions():
    found = [partition_of(f"s{number}", 16) for number in range(2_000)]
    assert set(found) == set(range(16))
    assert max(found.count(number) for number in range(16)) < 2 * 2_000 / 16


def test_shards_stay_within_their_count():
    assert {shard_of(f"x{number}", 3) for number in range(100)} == {0, 1, 2}

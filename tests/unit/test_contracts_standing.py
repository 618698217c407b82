"""What a standing approval covers: only what was said, and a rule that does not apply never lets through (G3)."""

import pytest
from pydantic import ValidationError

from libs.contracts.standing import GrantRequest, Limit, covers, grant_id, pack_use, read_grant


def granted(limits, **more):
    return GrantRequest.model_validate({"tool": "rent", "limits": limits, "uses": 1, "ends_at": 10, **more})


def fits(limits, args, *, tool="rent", source="restaurant", **more):
    return covers(granted(limits, **more), tool=tool, args=args, source=source)


@pytest.mark.parametrize(
    "limits, args, so",
    [
        ({"party": {"const": 4}}, {"party": 4}, True),
        ({"party": {"const": 4}}, {"party": 5}, False),
        ({"party": {"const": None}}, {"party": None}, True),
        ({"party": {"const": None}}, {"party": 4}, False),
        ({"day": {"enum": ["Fri", "Sat"]}}, {"day": "Sat"}, True),
        ({"day": {"enum": ["Fri", "Sat"]}}, {"day": "Sun"}, False),
        ({"party": {"maximum": 4}}, {"party": 4}, True),
        ({"party": {"maximum": 4}}, {"party": 4.5}, False),
        ({"party": {"maximum": 4}}, {"party": "400"}, False),
        ({"party": {"maximum": 4}}, {"party": True}, False),
        ({"party": {"maximum": 4}}, {"party": None}, False),
        ({"party": {"minimum": 2}}, {"party": 1}, False),
        ({"time": {"pattern": "2[01]:[0-5][0-9]"}}, {"time": "20:30"}, True),
        ({"time": {"pattern": "2[01]:[0-5][0-9]"}}, {"time": "20:30 and the deposit"}, False),
        ({"time": {"pattern": "20:30"}}, {"time": "20:30\n"}, False),
        ({"time": {"pattern": "a|b"}}, {"time": "ab"}, False),
        ({"time": {"pattern": ".*"}}, {"time": 20}, False),
        ({"note": {}}, {"note": {"any": ["thing"]}}, True),
        ({"note": {}}, {}, True),
        ({"party": {"maximum": 4}}, {}, False),
        ({}, {}, True),
        ({}, {"party": 4}, False),
        ({"party": {"maximum": 4}}, {"party": 4, "note": "more"}, False),
    ],
)
def test_a_step_is_covered_by_what_was_said_of_each_argument(limits, args, so):
    assert fits(limits, args) is so


def test_another_tool_or_another_source_is_not_covered():
    assert not fits({}, {}, tool="buy")
    assert fits({}, {}, sources=["restaurant"])
    assert not fits({}, {}, sources=["cinema"])


def test_a_pattern_that_would_run_away_ends_in_time():
    assert not fits({"t": {"pattern": "(a+)+b"}}, {"t": "a" * 50_000})


@pytest.mark.parametrize(
    "rule",
    [
        {
            "pattern": "[",
        },
        {"pattern": r"(a)\1"},
        {"pattern": "a)|(b"},
        {"enum": []},
        {"maximum": float("inf")},
    ],
)
def test_a_rule_that_cannot_be_met_as_it_reads_is_refused(rule):
    with pytest.raises(ValidationError):
        Limit.model_validate(rule)


def test_the_same_wish_has_the_same_id_for_its_user_alone():
    assert grant_id("ana", "k") == grant_id("ana", "k") != grant_id("ben", "k")
    assert grant_id("ana", "k") != grant_id("ana", "l")


def test_a_stored_approval_is_read_back_with_its_uses_and_state():
    request = granted({"party": {"maximum": 4}})
    use = pack_use(operation="O1", at=5, source="restaurant", args={"party": 4}).decode()
    fields = {"request": request.content().decode(), "made_at": "1", "taken": "1", "u:s1:k": use, "c:s1:k": " m1 "}
    grant = read_grant("S1", fields)
    assert grant is not None
    assert grant.request == request
    assert [(one.session, one.operation, one.state) for one in grant.uses] == [("s1", "O1", "reserved")]
    assert grant.state(5) == "used_up"
    assert read_grant("S1", {**fields, "taken": "0"}).state(5) == "live"
    assert read_grant("S1", {**fields, "taken": "0"}).state(11) == "ended"
    assert read_grant("S1", {**fields, "revoked_at": "3"}).state(11) == "revoked"
    assert read_grant("S1", {}) is None


def test_long_arguments_of_a_use_are_cut_where_they_are_listed():
    packed = pack_use(operation="O1", at=5, source="restaurant", args={"text": "x" * 100_000})
    assert len(packed) < 6_000
    assert b'"bytes":100011' in packed

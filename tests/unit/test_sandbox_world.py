"""The rules of the sandbox's world."""

from typing import Any

import pytest

from libs.contracts.application import World as Collection
from turnkeeper.sandbox.world import Entry, Request, World

TABLES = Collection(
    prefix="R",
    unique=("day, time",),
    rules={"no table seats more than eight": "{{ record.party <= 8 }}"},
    record={
        "type": "object",
        "properties": {"day": {"type": "string"}, "time": {"type": "string"}, "party": {"type": "integer"}},
        "required": ["party"],
        "additionalProperties": False,
    },
    show="{% if party > 0 %}{{ id }} x{{ party }}{% endif %}",
)


@pytest.fixture
def world() -> World:
    return World({"tables": TABLES, "notes": Collection(prefix="N")})


def act(world: World, verb: Any, collection: str = "tables", *, key: str = "", **body: Any) -> Entry:
    entry = world.judge(Request(key=key, collection=collection, verb=verb, body=body, at=1))
    world.apply(entry)
    return entry


def put(world: World, **fields: Any) -> Entry:
    return act(world, "put", record=fields)


def test_ids_count_up_in_each_collection(world: World) -> None:
    assert [put(world, party=n).records[0]["id"] for n in (1, 2)] == ["R1", "R2"]
    assert act(world, "put", "notes", record={}).records[0]["id"] == "N1"


def test_nobody_picks_an_id(world: World) -> None:
    assert put(world, id="R99", party=1).records[0]["id"] == "R1"


def test_a_record_without_its_fields_is_refused_by_path(world: World) -> None:
    assert put(world, party="four").reason.startswith("party: ")


def test_a_broken_rule_is_the_reason(world: World) -> None:
    entry = put(world, party=9)
    assert (entry.outcome, entry.reason) == ("refused", "no table seats more than eight")
    assert world.records("tables") == []


def test_a_unique_group_is_taken_once(world: World) -> None:
    put(world, party=1, day="Fri", time="19:00")
    assert "day and time" in put(world, party=2, day="Fri", time="19:00").reason
    assert put(world, party=2, day="Fri", time="20:00").outcome == "committed"


def test_a_change_keeps_to_the_rules(world: World) -> None:
    put(world, party=1)
    assert act(world, "change", where={"id": "R1"}, set={"party": 9}).outcome == "refused"
    changed = act(world, "change", where={"id": "R1"}, set={"party": 2, "id": "R7"})
    assert changed.records == ({"id": "R1", "party": 2},)


def test_a_change_of_nothing_is_refused(world: World) -> None:
    assert act(world, "change", where={"id": "R1"}, set={}).reason == "no record matches"


def test_an_empty_where_is_refused(world: World) -> None:
    put(world, party=1)
    assert "everything" in act(world, "change", where={}, set={"party": 2}).reason


def test_find_knows_the_key_that_made_a_record(world: World) -> None:
    act(world, "put", key="k1", record={"party": 1})
    put(world, party=1)
    assert world.find("tables", {"key": "k1"}) == [{"id": "R1", "party": 1}]
    assert world.find("tables", {"key": ""}) == []
    assert [record["id"] for record in world.find("tables", {"party": 1})] == ["R1", "R2"]


def test_a_change_by_another_key_leaves_who_made_it(world: World) -> None:
    act(world, "put", key="k1", record={"party": 1})
    act(world, "change", key="k2", where={"id": "R1"}, set={"party": 2})
    assert world.find("tables", {"key": "k1"}) == [{"id": "R1", "party": 2}]


def test_find_knows_the_key_of_each_change(world: World) -> None:
    put(world, party=1)
    act(world, "change", key="k2", where={"id": "R1"}, set={"party": 2})
    act(world, "change", key="k3", where={"id": "R1"}, set={"party": 9})  # against the rules
    assert world.find("tables", {"key": "k2"}) == [{"id": "R1", "party": 2}]
    assert world.find("tables", {"key": "k3"}) == []
    assert world.find("tables", {"key": ["k2"]}) == []


def test_what_is_shown_as_nothing_is_left_out(world: World) -> None:
    put(world, party=0)
    put(world, party=2)
    assert world.lines("tables") == ["R2 x2"]


def test_the_world_follows_from_its_entries(world: World) -> None:
    act(world, "put", key="k1", record={"party": 1})
    put(world, party=9)
    act(world, "change", where={"id": "R1"}, set={"party": 2})
    again = World(world.collections)
    for entry in world.entries:
        again.apply(Entry.model_validate(entry.model_dump()))
    assert again.records("tables") == world.records("tables")
    assert again.known("k1") == world.known("k1")
    assert put(again, party=3).records == put(world, party=3).records


def test_an_entry_out_of_order_is_refused(world: World) -> None:
    entry = put(world, party=1)
    with pytest.raises(ValueError, match="follow"):
        world.apply(entry)

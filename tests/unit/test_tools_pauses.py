"""Pauses as values: what they cover, when a holder may still send,
and what a thread does not begin."""

import asyncio

import pytest

from services.tools.connectors.python import PythonConnector
from services.tools.pauses import LEASE_MARGIN_MS, Holding, Kind, Pause, Seen, Stops, may_still_send, shown
from services.tools.ports import Call, Stopped

ORIGIN = "webhook restaurant restaurant"
HELD = Holding("s1", "k1", "O1", "book", ORIGIN, "a", "i1", 1_000)


@pytest.mark.parametrize(
    ("kind", "name", "covers"),
    [
        ("all", "", True),
        ("tool", "book", True),
        ("tool", "mail", False),
        ("session", "s1", True),
        ("session", "s2", False),
        ("source", "restaurant", True),
        ("source", "webhook", False),
        ("source", "app", False),
    ],
)
def test_a_pause_covers_what_it_names(kind: Kind, name: str, covers: bool) -> None:
    pause = Pause(kind, name)
    assert pause.covers("book", "s1", ORIGIN) is covers
    stops = Stops([pause], 1)
    if covers:
        with pytest.raises(Stopped, match=shown(pause.field)):
            stops.check("book", "s1", ORIGIN)
    else:
        stops.check("book", "s1", ORIGIN)


def test_what_has_no_turn_is_of_no_source() -> None:
    assert not Pause("source", "").covers("book", "s1", "webhook x y")
    Stops([Pause("source", "restaurant")], 1).check("find", "s1")


@pytest.mark.parametrize(
    ("held", "seen", "now", "may"),
    [
        (HELD, None, 0, True),
        (HELD, Seen("i1", 6), 0, True),
        (HELD, Seen("i1", 7), 0, False),
        (HELD, Seen("i1", 8), 0, False),
        (HELD, Seen("i2", 0), 0, False),
        (HELD, None, 1_000 + LEASE_MARGIN_MS, True),
        (HELD, None, 1_001 + LEASE_MARGIN_MS, False),
        (Holding("s1", "k1", "O1", "book", ORIGIN, "", "", 9_999), None, 0, False),
    ],
    ids=["silent", "older", "this", "newer", "another process", "lease", "lease over", "nobody"],
)
def test_a_holder_may_send_until_it_obeys_or_cannot(held: Holding, seen: Seen | None, now: int, may: bool) -> None:
    assert may_still_send(held, {} if seen is None else {"a": seen}, 7, now) is may


async def test_a_function_that_waited_for_its_thread_is_not_begun_when_paused() -> None:
    called: list[int] = []

    def function(n: int) -> None:
        called.append(n)

    def stop() -> None:
        raise Stopped("paused: all")

    connector = PythonConnector(function)
    with pytest.raises(Stopped):
        await asyncio.wait_for(connector.run(Call("s1", "O1", "t", {"n": 1}, "k", 1.0, before_send=stop)), 5)
    assert called == []

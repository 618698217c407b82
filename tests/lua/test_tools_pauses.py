"""Pauses on a real Redis: what is paused is not sent, costs nothing, is not lost, and goes on in order."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from libs.contracts.codec import decode
from libs.contracts.tools import RunStep, WithdrawOperation
from libs.runtime.settle import Outcome
from services.tools.domain import Committed, Failed, Unknown
from services.tools.pauses import Pause
from services.tools.ports import Call, Stopped, Work
from services.tools.stops import _APPLY, _SET, MOST_PARKED
from tests.support.door import HOUR_MS, RESTAURANT, USER, Door, open_door, seal, step

BOOK = Pause("tool", "book", "ana", "they charge twice", 1)


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace, steps=3) as opened:
        yield opened


@pytest.fixture
async def other(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    """Another replica."""
    async with open_door(redis_url, namespace, replica="1", incarnation="j1", steps=3) as opened:
        yield opened


def steps_sent_on(door: Door) -> list[RunStep]:
    return [message for _, message in door.messages() if isinstance(message, RunStep)]


async def wake(door: Door) -> int:
    return await door.pauses.unpark(door.clock.now)


async def arrive_again(door: Door) -> None:
    """What was let go on comes back over the broker, with its own ids."""
    for outgoing in [one for one in door.outbox.posted if one.routing_key == "tools"]:
        envelope, message = decode(orjson.loads(outgoing.body))
        door.outbox.posted.remove(outgoing)
        assert outgoing.id == envelope.id
        await door.send(message, session=envelope.session, call=envelope.id)  # type: ignore[arg-type]


def paused_after_the_claim(door: Door, pause: Pause = BOOK) -> None:
    """Let a pause come between a claim and its send."""
    claim = door.ledger.claim

    async def claimed(*args: Any, **options: Any) -> Any:
        found = await claim(*args, **options)
        door.ledger.claim = claim  # type: ignore[method-assign]
        await door.pauses.begin(pause)
        return found

    door.ledger.claim = claimed  # type: ignore[method-assign]


async def test_what_is_paused_is_not_sent_and_goes_on_at_resume(door: Door, other: Door) -> None:
    assert await other.pauses.begin(BOOK) == ("set", BOOK)
    call = step(now=door.clock.now)
    assert await door.send(call) == Outcome.IN_PROGRESS
    assert door.destination.calls == []
    assert await door.operation("key1") == {}, "its key is as free as before"
    assert [(one.state, one.reason) for one in door.finished()] == [("in_progress", "paused: tool book")]
    assert await wake(door) == 0
    assert await other.pauses.end("tool:book") == BOOK
    assert await wake(door) == 1
    await arrive_again(door)
    assert len(door.destination.calls) == 1
    assert door.finished()[-1].state == "committed"
    assert await wake(door) == 0


async def test_a_replica_that_has_not_heard_of_a_pause_claims_nothing_that_is_paused(door: Door, other: Door) -> None:
    await other.pauses.begin(Pause("all"))
    assert door.stops.pauses == ()
    await door.send(step(now=door.clock.now))
    assert door.destination.calls == []


@pytest.mark.parametrize(
    ("pause", "stops"),
    [
        (Pause("all"), {"book s1 user", "mail s1 user", "book s2 user", "book s1 webhook"}),
        (Pause("tool", "book"), {"book s1 user", "book s2 user", "book s1 webhook"}),
        (Pause("session", "s1"), {"book s1 user", "mail s1 user", "book s1 webhook"}),
        (Pause("source", "restaurant"), {"book s1 webhook"}),
        (Pause("source", "app"), {"book s1 user", "mail s1 user", "book s2 user"}),
        (Pause("tool", "boo"), set()),
    ],
)
async def test_a_pause_stops_what_it_names_and_nothing_else(
    redis_url: str, namespace: str, pause: Pause, stops: set[str]
) -> None:
    async with open_door(redis_url, namespace, by_role=True) as door:
        await door.pauses.begin(pause)
        door.stops.take((), door.stops.version)  # the script alone, as on a replica that has not heard of it
        await _stopped_alike(door, pause, stops)


async def _stopped_alike(door: Door, pause: Pause, stops: set[str]) -> None:
    found = set()
    for number, name in enumerate(["book s1 user", "mail s1 user", "book s2 user", "book s1 webhook"]):
        tool, session, kind = name.split()
        origin = USER if kind == "user" else RESTAURANT
        seals = [seal(session=session, name=f"in{number}", origin=origin, at=door.clock.now)]
        call = step(tool, now=door.clock.now, key=f"k{number}", root=f"T{number}", seals=seals)
        await door.send(call, session=session)
        if not await door.operation(f"k{number}", session):
            found.add(name)
        principal = f"{origin.kind} {origin.source} {origin.principal}"
        assert pause.covers(tool, session, principal) == (name in found), "memory and script agree"
    assert found == stops


async def test_pausing_again_changes_nothing(door: Door) -> None:
    await door.pauses.begin(BOOK)
    _, version = await door.pauses.read()
    assert await door.pauses.begin(Pause("tool", "book", "ben", "too", 2)) == ("same", BOOK)
    assert await door.pauses.read() == ([BOOK], version)
    assert await door.pauses.end("tool:book") == BOOK
    assert await door.pauses.end("tool:book") is None
    assert await door.pauses.read() == ([], version + 1)


async def test_what_waits_goes_on_in_the_order_in_which_it_came(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tools.stops.AT_ONCE", 3)
    await door.pauses.begin(BOOK)
    for number in range(10):
        await door.send(step(now=door.clock.now, key=f"k{9 - number}", operation=f"O{number}"))
    assert [one.session for one in await door.pauses.waiting()] == ["s1"] * 10
    await door.pauses.end("tool:book")
    assert await wake(door) == 10
    assert [one.operation for one in steps_sent_on(door)] == [f"O{number}" for number in range(10)]


async def test_what_another_pause_keeps_waits_on(door: Door) -> None:
    await door.pauses.begin(BOOK)
    await door.pauses.begin(Pause("session", "s2"))
    for session in ("s1", "s2"):
        await door.send(step(now=door.clock.now, seals=[seal(session=session, at=door.clock.now)]), session=session)
    await door.pauses.end("tool:book")
    assert await wake(door) == 1
    assert [one.session for one in await door.pauses.waiting()] == ["s2"]
    await door.pauses.end("session:s2")
    assert await wake(door) == 1


async def test_a_repeated_call_waits_once(door: Door) -> None:
    await door.pauses.begin(BOOK)
    call = step(now=door.clock.now)
    for _ in range(3):
        await door.send(call)
    assert await door.pauses.waiting_count() == 1
    assert len({id for id, _ in door.messages()}) == 2, "the word to session and applications, each the same again"


async def test_a_call_does_not_wait_beyond_its_not_after(door: Door) -> None:
    await door.pauses.begin(BOOK)
    await door.send(step(now=door.clock.now, not_after=door.clock.now + 1000))
    await door.send(step(now=door.clock.now, key="key2", operation="O2"))
    door.clock.now += 1001
    assert await wake(door) == 1
    await arrive_again(door)
    assert [(one.operation, one.state) for one in door.finished()][-1] == ("O1", "expired")
    assert await door.pauses.waiting_count() == 1
    assert door.destination.calls == []


async def test_a_withdrawn_call_never_runs_although_it_waited(door: Door) -> None:
    await door.pauses.begin(BOOK)
    await door.send(step(now=door.clock.now))
    await door.send(WithdrawOperation(operation="O1", key="key1", not_after=door.clock.now + HOUR_MS))
    await door.pauses.end("tool:book")
    assert await wake(door) == 1
    await arrive_again(door)
    assert door.destination.calls == []
    assert door.finished()[-1].state == "withdrawn"


async def test_too_many_are_answered_and_not_kept(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_PARKED > 1
    monkeypatch.setattr("services.tools.stops.MOST_PARKED", 1)
    await door.pauses.begin(BOOK)
    await door.send(step(now=door.clock.now))
    await door.send(step(now=door.clock.now, key="key2", operation="O2"))
    assert [one.state for one in door.finished()] == ["in_progress", "failed"]
    assert await door.operation("key2") == {}


async def test_what_was_claimed_and_not_sent_is_stopped_and_costs_nothing(door: Door) -> None:
    """The cap is three steps an input: were the stopped claim counted, the third step would be one too many."""
    paused_after_the_claim(door)
    await door.send(step(now=door.clock.now))
    assert door.destination.calls == []
    assert await door.operation("key1") == {}
    assert await door.ledger.members("lease") == []
    await door.pauses.end("tool:book")
    await wake(door)
    await arrive_again(door)
    for number in (2, 3):
        await door.send(step(now=door.clock.now, key=f"key{number}", operation=f"O{number}"))
    assert [one.state for one in door.finished()] == ["in_progress", "committed", "committed", "committed"]


async def test_a_stopped_step_of_an_action_is_still_granted(door: Door) -> None:
    lapses_at = door.clock.now + HOUR_MS
    decision = await door.accept("A1", [{"tool": "book", "args": {"party": 4}}], lapses_at=lapses_at)
    call = step(now=door.clock.now, action="A1", seals=[decision])
    paused_after_the_claim(door)
    await door.send(call)
    record = await door.store.redis.hgetall(door.keys.of_session("action", "s1", "A1"))
    assert not {b"s0", b"done"} & set(record)
    await door.pauses.end("tool:book")
    await wake(door)
    await arrive_again(door)
    assert door.finished()[-1].state == "committed"


async def test_a_grant_that_lapses_while_paused_is_over(door: Door) -> None:
    decision = await door.accept("A1", [{"tool": "book", "args": {"party": 4}}], lapses_at=door.clock.now + 1000)
    await door.pauses.begin(BOOK)
    await door.send(step(now=door.clock.now, action="A1", seals=[decision]))
    door.clock.now += 1001
    await door.pauses.end("tool:book")
    await wake(door)
    await arrive_again(door)
    assert (door.finished()[-1].state, door.finished()[-1].reason) == ("refused", "the approval has lapsed")
    assert door.destination.calls == []


async def test_a_stopped_claim_of_a_released_key_is_released_again(door: Door) -> None:
    door.destination.always(Failed("no connection"))
    await door.send(step(now=door.clock.now), call="first")
    door.destination.act = door.destination.commit
    paused_after_the_claim(door)
    await door.send(step(now=door.clock.now), call="second")
    assert (await door.operation("key1"))["state"] == "failed"
    await door.pauses.end("tool:book")
    await wake(door)
    await arrive_again(door)
    assert door.finished()[-1].state == "committed"


async def test_what_was_sent_is_told_as_it_is(door: Door, other: Door) -> None:
    sent, answer = asyncio.Event(), asyncio.Event()

    async def act(call: Call) -> Any:
        sent.set()
        await answer.wait()
        return Committed({"id": "r"})

    door.destination.act = act
    running = asyncio.create_task(door.send(step(now=door.clock.now)))
    await sent.wait()
    await other.pauses.begin(BOOK)
    stopped, flying = await other.pauses.progress(BOOK, door.clock.now)
    assert (stopped, [one.operation for one in flying]) == (False, ["O1"]), "its holder has not said that it stops"
    await door.pauses.look()
    stopped, flying = await other.pauses.progress(BOOK, door.clock.now)
    assert (stopped, [one.operation for one in flying]) == (True, ["O1"])
    answer.set()
    await running
    assert door.finished()[-1].state == "committed"
    assert await other.pauses.progress(BOOK, door.clock.now) == (True, [])


async def left_pending(door: Door, tool: str) -> None:
    """A holder that ends between claim and record."""
    hangs = asyncio.Event()

    async def act(call: Call) -> Any:
        hangs.set()
        await asyncio.Event().wait()

    door.destination.act = act
    running = asyncio.create_task(door.send(step(tool, now=door.clock.now)))
    await hangs.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    door.destination.act = door.destination.commit


async def test_a_holder_that_is_gone_is_followed_only_after_the_pause(door: Door, other: Door) -> None:
    await left_pending(door, "book")
    await other.pauses.begin(BOOK)
    assert (await other.pauses.progress(BOOK, door.clock.now))[0] is False, "it may have claimed and not sent yet"
    other.clock.now = door.clock.now + 10_000
    assert (await other.pauses.progress(BOOK, other.clock.now))[0] is True, "its lease is over"
    other.stops.take((), other.stops.version)  # the script alone, as on a replica that has not heard of it
    await other.sweeper.take_over_ended()
    assert other.destination.calls == []
    assert (await other.operation("key1"))["state"] == "pending"
    await other.pauses.end("tool:book")
    other.clock.now += 10_000
    await other.sweeper.take_over_ended()
    (call,) = other.destination.calls
    assert call.key == door.destination.calls[0].key
    assert (await other.operation("key1"))["state"] == "committed"


async def test_what_must_not_be_sent_again_is_unknown_at_once_although_paused(door: Door, other: Door) -> None:
    await left_pending(door, "mail")
    await other.pauses.begin(Pause("all"))
    other.clock.now = door.clock.now + 10_000
    await other.sweeper.take_over_ended()
    assert other.destination.calls == []
    assert (await other.operation("key1"))["state"] == "unknown"


async def test_a_pause_between_taking_over_and_sending_hands_back(door: Door, other: Door) -> None:
    await left_pending(door, "book")
    take_over = other.ledger.take_over

    async def taken(*args: Any, **options: Any) -> Any:
        found = await take_over(*args, **options)
        await door.pauses.begin(BOOK)
        await other.pauses.look()
        return found

    other.clock.now += 10_000
    other.ledger.take_over = taken  # type: ignore[method-assign]
    await other.sweeper.take_over_ended()
    other.ledger.take_over = take_over  # type: ignore[method-assign]
    assert other.destination.calls == []
    assert (await other.operation("key1"))["owner"] == ""
    assert await other.pauses.progress(BOOK, other.clock.now) == (True, []), "nobody holds it"
    await door.pauses.end("tool:book")
    await other.pauses.look()
    other.clock.now += 10_000
    await other.sweeper.take_over_ended()
    assert len(other.destination.calls) == 1


async def test_what_must_be_sent_again_is_left_alone_until_its_tool_is_tried_again(door: Door, other: Door) -> None:
    await left_pending(door, "book")

    async def breaker(call: Call) -> Any:
        raise Stopped("book has a pause after failures in a row", call.tool, wait=30.0)

    other.destination.act = breaker
    other.clock.now += 10_000
    await other.sweeper.take_over_ended()
    assert len(other.destination.calls) == 1
    other.clock.now += 29_000
    await other.sweeper.take_over_ended()
    assert len(other.destination.calls) == 1, "not asked again and again"
    other.clock.now += 2_000
    other.destination.act = other.destination.commit
    await other.sweeper.take_over_ended()
    assert len(other.destination.calls) == 2
    assert (await other.operation("key1"))["state"] == "committed"


async def test_a_holder_whose_lease_is_over_begins_no_send(door: Door) -> None:
    look = door.executor._under_lease

    async def slow(work: Work) -> Any:
        held = await look(work)
        door.executor._under_lease = look  # type: ignore[method-assign]
        assert isinstance(held, Work)
        return replace(held, send_by=0.0)  # as a process that is stopped after its look, and wakes

    door.executor._under_lease = slow  # type: ignore[method-assign]
    await door.send(step(now=door.clock.now))
    assert door.destination.calls == []
    await wake(door)
    await arrive_again(door)
    assert len(door.destination.calls) == 1


async def test_a_resume_that_a_replica_has_not_heard_of_stops_nothing(door: Door, other: Door) -> None:
    await door.pauses.begin(BOOK)
    await other.pauses.end("tool:book")
    assert door.stops.pauses == (BOOK,)
    await door.send(step(now=door.clock.now))
    assert [one.state for one in door.finished()] == ["committed"]


async def test_a_look_up_stops_with_its_tool(door: Door) -> None:
    door.destination.always(Unknown("cut"))
    await door.send(step("pay", {"sum": "5"}, now=door.clock.now))
    calls = len(door.destination.calls)
    await door.pauses.begin(Pause("tool", "find_charge"))
    door.clock.now += 1000
    await door.sweeper.reconcile()
    assert len(door.destination.calls) == calls
    assert "looked_up" not in await door.operation("key1"), "no attempt is spent"
    await door.pauses.end("tool:find_charge")
    door.clock.now += 10_000
    await door.sweeper.reconcile()
    assert len(door.destination.calls) == calls + 1


async def test_a_slow_replica_does_not_undo_a_newer_pause(door: Door) -> None:
    await door.pauses.begin(BOOK)
    key = door.keys.of_session_partition("pauses", "s1")
    assert (await door.store.run(_APPLY, [key], [0, 0])).int(0) == 1
    await door.send(step(now=door.clock.now))
    assert door.destination.calls == []


async def test_a_pause_whose_replica_ended_halfway_is_completed_by_any_other(door: Door, other: Door) -> None:
    await other.store.run(_SET, [other.keys.meta("pauselist")], [BOOK.field, b'{"by":"","note":"","at":1}', 500])
    await door.pauses.look()
    assert [pause.field for pause in door.stops.pauses] == ["tool:book"]
    stopped, _ = await door.pauses.progress(BOOK, door.clock.now)
    assert stopped


async def test_there_is_a_bound_to_pauses(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.tools.stops.MOST_PAUSES", 2)
    became = [(await door.pauses.begin(Pause("session", name)))[0] for name in ("a", "b", "c")]
    assert became == ["set", "set", "full"]


async def test_a_step_that_relies_on_what_is_paused_waits_and_is_read_afterwards(door: Door) -> None:
    door.destination.always(Committed({"price": 10}))
    await door.pauses.begin(Pause("tool", "price"))
    sealed = seal(name="event", origin=RESTAURANT, at=door.clock.now)
    await door.send(step("buy", {"of": "wine"}, now=door.clock.now, seals=[sealed], offer=True))
    assert [one.state for one in door.finished()] == ["in_progress"]
    assert door.destination.calls == []
    assert await wake(door) == 0
    await door.pauses.end("tool:price")
    assert await wake(door) == 1
    await arrive_again(door)
    assert door.finished()[-1].state == "needs_consent"
    assert [call.tool for call in door.destination.calls] == ["price"]

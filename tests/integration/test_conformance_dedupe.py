"""What other systems got wrong about duplicates (conformance, section B), as far as no test of ours is about it alone.
Real Redis; for the edge a real process."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from libs.contracts.keys import DAY_MS
from libs.contracts.session import Step
from services.ingress.domain import Event
from services.ingress.ports import Accepted, Duplicate, Pending
from services.ingress.schemes import Verified
from services.session.domain.plan import Plan
from services.tools.domain import Committed, Failed, Unknown
from services.tools.domain import Outcome as ToolOutcome
from services.tools.ports import Call
from tests.support.door import Door, open_door, step
from tests.support.eventually import eventually
from tests.support.ingress import HOUR_MS, NOW, Replica, an_event, ingress_replica
from tests.support.ingress_process import OPERATOR_HEADERS, signed, start_ingress
from tests.support.session import CINEMA, Talk, make_rules, one_plan
from tests.unit.test_ingress_domain import hmac, read

MINUTE_MS = 60_000


@pytest.fixture
async def ingress(redis_url: str, namespace: str) -> AsyncIterator[Replica]:
    async with ingress_replica(redis_url, namespace) as replica:
        yield replica


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        yield opened


# --- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [
    0, MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS, 73 * HOUR_MS, 29 * DAY_MS,
])  # fmt: skip
async def test_a_copy_is_a_duplicate_for_as_long_as_its_source_may_send_it_again(ingress: Replica, later: int) -> None:
    """C075, C141: the window is the source's own; a start event that comes again begins nothing, after a month too."""
    event = an_event(window_ms=30 * DAY_MS)
    assert await ingress.store.admit(event, "t1", NOW) == Accepted()
    await ingress.store.forget([event.id])
    assert await ingress.store.admit(event, "t2", NOW + later) == Duplicate()


async def test_an_event_whose_worker_died_is_finished_by_the_next_copy(ingress: Replica) -> None:
    """C071: nobody holds it, however long ago that was; the sender is never told to come back for ever."""
    await ingress.store.create_session("s1", "ana", NOW)
    assert await ingress.store.admit(an_event(), "dead", NOW) == Accepted()
    ingress.clock.now = NOW + DAY_MS
    assert await ingress.store.admit(an_event(), "copy", ingress.clock.now) == Pending(an_event())
    placed = await ingress.admissions.place(an_event())
    assert (placed.number, len(await ingress.inbox("s1"))) == (1, 1)


def test_one_id_for_two_events_is_told_apart_by_what_the_source_says_its_id_is() -> None:
    """C078: a message's id and its state together, where the sender reuses the id for each state."""
    identity = hmac(id="{{ MessageSid }}:{{ MessageStatus }}")

    def status(state: str) -> Event:
        body = {"MessageSid": "SM1", "MessageStatus": state, "data": {"reservation": "r1"}}
        return read(body, Verified(None, None, state.ljust(64, "0")), verify=identity)

    sent, delivered = status("sent"), status("delivered")
    assert (sent.event, delivered.event) == ("SM1:sent", "SM1:delivered")
    assert sent.id != delivered.id


def test_two_ids_for_one_event_are_one_turn_by_its_place_in_the_order_of_its_subject() -> None:
    """C078: the same message under two event ids has one time, and the second is not after the first."""
    look = Step(tool="look", args={})
    talk = Talk(one_plan(Plan(steps=(look,))), rules=make_rules())
    same: dict[str, Any] = {"subject": "slack:T1:C1", "sequence": "1700000000.000100", "type": "message"}
    talk.event({"text": "hi"}, CINEMA, event="Ev1", **same)
    talk.finish()
    talk.event({"text": "hi"}, CINEMA, event="Ev2", **same)
    assert talk.runs() == [("look", {})]
    assert [became for _, became in talk.became()] == ["acted", "stale"]


async def test_a_webhook_is_answered_before_anybody_works_on_it_and_retry_headers_are_no_identity(
    redis_url: str, amqp_url: str, namespace: str, tmp_path: Path
) -> None:
    """C092: no session service runs at all; each retry, whatever number it says, is a duplicate of the first."""
    (process,) = await start_ingress(redis_url, amqp_url, namespace, tmp_path)
    try:
        async with httpx2.AsyncClient(base_url=process.url) as client:
            owner = {"owner": "ana"}
            assert (await client.put("/v1/sessions/s1", json=owner, headers=OPERATOR_HEADERS)).status_code == 201
            body = json.dumps({"type": "message", "data": {"session": "s1"}}).encode()
            said, took = [], []
            for retry in range(4):
                headers = signed("Ev1", body) | ({"X-Slack-Retry-Num": str(retry)} if retry else {})
                began = time.monotonic()
                said.append((await client.post("/v1/events/direct", content=body, headers=headers)).json()["status"])
                took.append(time.monotonic() - began)
            assert said == ["accepted", "duplicate", "duplicate", "duplicate"]
            assert max(took) < 1.0
    finally:
        process.stop()


# --- operations -------------------------------------------------------------------------------------------------------


async def test_a_holder_that_is_slower_than_its_lease_is_not_helped_by_a_second_call(
    door: Door, redis_url: str, namespace: str
) -> None:
    """C081, C082: past the lease the outcome is unknown, and visible; nothing is sent again, nothing said to have
    failed."""
    go = asyncio.Event()

    async def slow(call: Call) -> ToolOutcome:
        await go.wait()
        return Committed({"id": "w1"})

    door.destination.act = slow
    call = step("mail", {"sum": 7}, now=door.clock.now)
    handling = asyncio.create_task(door.send(call))
    await eventually(lambda: bool(door.destination.calls))
    async with open_door(redis_url, namespace, replica="1") as other:
        other.clock.now += 10_000  # its lease is four seconds
        for again in range(3):
            await other.send(call, call=f"again-{again}")
        assert other.destination.calls == []
        assert {answer.state for answer in other.finished()} == {"unknown"}
    go.set()
    await handling
    assert len(door.destination.calls) == 1
    assert (await door.operation("key1"))["state"] == "unknown"


@pytest.mark.parametrize("first, again, calls", [
    (Failed("connection refused"), "committed", 2), (Committed({"id": "w1"}), "committed", 1),
    (Unknown("cut"), "unknown", 1),
])  # fmt: skip
async def test_only_what_provably_was_not_sent_is_tried_again_under_its_key(
    door: Door, first: ToolOutcome, again: str, calls: int
) -> None:
    """C083: a failure before sending releases the key, what was done is answered again, the unknown is left alone."""
    door.destination.always(first)
    await door.send(step("mail", {}, now=door.clock.now))
    door.destination.act = door.destination.commit
    await door.send(step("mail", {}, now=door.clock.now, operation="O2"), call="m2")
    assert door.finished()[-1].state == again
    assert len(door.destination.calls) == calls


async def test_each_that_loses_the_race_for_a_key_is_told_the_truth(door: Door, redis_url: str, namespace: str) -> None:
    """C085: in progress while the winner works, its result afterwards; never an outage, never a second run."""
    go = asyncio.Event()

    async def slow(call: Call) -> ToolOutcome:
        await go.wait()
        return Committed({"id": "w1"})

    door.destination.act = slow
    call = step("mail", {}, now=door.clock.now)
    async with open_door(redis_url, namespace, replica="1") as other:
        winner = asyncio.create_task(door.send(call))
        await eventually(lambda: bool(door.destination.calls))
        await other.send(call, call="loser-1")
        assert [(answer.state, answer.code) for answer in other.finished()] == [("in_progress", "in_progress")]
        go.set()
        await winner
        await other.send(call, call="loser-2")
        assert [(answer.state, answer.result) for answer in other.finished()][-1] == ("committed", {"id": "w1"})
        assert other.destination.calls == []


async def test_who_held_a_lease_does_not_end_that_of_its_successor(door: Door, redis_url: str, namespace: str) -> None:
    """C087, C088: the late one's record and its release are both refused; the successor's lease runs on."""
    go, taken = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> ToolOutcome:
        await go.wait()
        return Committed({"id": "late"})

    async def slower(call: Call) -> ToolOutcome:
        taken.set()
        await asyncio.sleep(60)
        raise AssertionError

    door.destination.act = slow
    late = asyncio.create_task(door.send(step("book", {"party": 4}, now=door.clock.now)))
    await eventually(lambda: bool(door.destination.calls))
    async with open_door(redis_url, namespace, replica="1") as heir:
        heir.destination.act = slower
        heir.clock.now += 10_000
        taking = asyncio.create_task(heir.sweeper.take_over_ended())
        await asyncio.wait_for(taken.wait(), 5)
        held = await door.operation("key1")
        go.set()
        await late
        assert await door.operation("key1") == held
        assert await door.ledger.members("lease") == [("s1", "key1")]
        assert door.finished() == []
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)

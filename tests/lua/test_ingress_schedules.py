"""Random schedules over a real Redis: whatever happens in whatever order, each event ends in exactly one outcome."""

import asyncio
import random
from collections import Counter

import pytest

from libs.contracts.ingress import Input
from services.ingress.domain import Event
from tests.support.ingress import NOW, MovableClock, Replica, an_event, ingress_replica

SUBJECTS = ("reservation:r1", "reservation:r2")
SESSIONS = ("s1", "s2", "s3")


def wishes(dice: random.Random, count: int) -> list[Event]:
    """Events about subjects and for sessions, some with a short patience."""
    events = []
    for n in range(count):
        where = (
            {"session": "", "route_subject": dice.choice(SUBJECTS)}
            if dice.random() < 0.5
            else {"session": dice.choice(SESSIONS), "route_subject": ""}
        )
        events.append(an_event(f"e{n}", hold_ms=dice.choice((5_000, 600_000)), **where))
    return events


async def step(dice: random.Random, replica: Replica, clock: MovableClock, events: list[Event], done: set[str]) -> None:
    """One thing that happens: a delivery, a copy, a crash after `admit`, a registration, a sweep, time."""
    event = dice.choice(events)
    match dice.randrange(10):
        case 0:
            await replica.store.admit(event, f"crashed-{dice.random()}", clock.now)
            done.add(event.id)
        case 1:
            clock.now += dice.choice((1, 1_000, 6_000))
        case 2:
            await replica.store.create_session(dice.choice(SESSIONS), "ana", clock.now)
        case 3:
            subject = dice.choice(SUBJECTS)
            await replica.store.register(subject, "s1" if subject == SUBJECTS[0] else "s2", "O1")
        case 4:
            await asyncio.gather(replica.sweepers.held(), replica.sweepers.waiting(), replica.sweepers.relay())
        case 5:
            await replica.forgetting.flush()
        case _:
            await replica.admissions.admit(event, f"{dice.random()}", b"{}")
            done.add(event.id)


async def settle(replicas: list[Replica], clock: MovableClock) -> None:
    """Let everything come to its end: time passes, and the sweepers have run."""
    for _ in range(4):
        for replica in replicas:
            await replica.sweepers.relay()
            await replica.sweepers.held()
            await replica.sweepers.waiting()
            await replica.forgetting.flush()
        clock.now += 700_000


@pytest.mark.parametrize("round", range(6))
async def test_each_event_ends_in_exactly_one_outcome(redis_url: str, namespace: str, seed: int, round: int) -> None:
    """G1 and G2, with crashes between `admit` and `append`, copies to both replicas, and time that runs out."""
    dice = random.Random(f"{seed}-{round}")
    clock = MovableClock()
    async with (
        ingress_replica(redis_url, namespace, clock=clock) as one,
        ingress_replica(redis_url, namespace, clock=clock) as two,
    ):
        events, done = wishes(dice, 25), set[str]()
        for _ in range(40):
            chosen = [step(dice, dice.choice((one, two)), clock, events, done) for _ in range(dice.randint(1, 6))]
            await asyncio.gather(*chosen)
        await settle([one, two], clock)

        inputs = [Input.model_validate_json(packed) for session in SESSIONS for packed in await one.inbox(session)]
        appended = Counter(given.id for given in inputs)
        assert set(appended.values()) <= {1}, "an event is in at most one inbox, once"
        for session in SESSIONS:
            numbers = [given.number for given in inputs if given.session == session]
            assert numbers == list(range(1, len(numbers) + 1)), "no gap"
        for event in events:
            if event.id not in done:
                assert appended[event.id] == 0
                continue
            record = await one.store.record("restaurant", event.id, clock.now, event.window_ms)
            assert record is not None
            expired = record.outcome == "held_expired"
            assert expired + appended[event.id] == 1, f"{event.event}: {record}, in {appended[event.id]} inboxes"
        assert (await one.store.admitted_before(clock.now + NOW, 1_000))[0] == []
        assert await one.store.held_subjects("+inf") == []
        assert await one.store.waiting_sessions("+inf") == []


async def test_what_expired_before_its_subject_was_registered_is_in_no_inbox(redis_url: str, namespace: str) -> None:
    """A copy finishes what was admitted, on a replica that knows the subject from a later event (G1)."""
    clock = MovableClock()
    async with (
        ingress_replica(redis_url, namespace, clock=clock) as one,
        ingress_replica(redis_url, namespace, clock=clock) as two,
    ):
        about = {"session": "", "route_subject": SUBJECTS[0], "hold_ms": 5_000}
        early, late = an_event("early", **about), an_event("late", **about, accepted_at=clock.now + 7_000)
        await one.admissions.admit(early, "t1", b"{}")
        clock.now += 6_000
        await one.sweepers.held()
        await one.store.create_session("s1", "ana", clock.now)
        await one.store.register(SUBJECTS[0], "s1", "O1")
        await two.admissions.admit(late, "t2", b"{}")
        await two.admissions.admit(early, "t3", b"{}")
        assert [Input.model_validate_json(packed).event for packed in await one.inbox("s1")] == ["late"]


@pytest.mark.parametrize("round", range(3))
async def test_what_was_answered_before_another_was_sent_is_before_it(
    redis_url: str, namespace: str, seed: int, round: int
) -> None:
    """G5, while the subject is registered and released at some moment in between."""
    dice = random.Random(f"order-{seed}-{round}")
    async with ingress_replica(redis_url, namespace) as one, ingress_replica(redis_url, namespace) as two:
        await one.store.create_session("s1", "ana", NOW)
        moment = dice.randrange(20)
        release: asyncio.Task[int] | None = None
        for n in range(20):
            if n == moment:
                await two.store.register(SUBJECTS[0], "s1", "O1")
                release = asyncio.ensure_future(two.releases.subject(SUBJECTS[0], "s1"))
            event = an_event(f"e{n:02}", session="", route_subject=SUBJECTS[0])
            await dice.choice((one, two)).admissions.admit(event, f"t{n}", b"{}")
        assert release is not None
        await release
        await one.sweepers.held()
        stored = [Input.model_validate_json(packed).event for packed in await one.inbox("s1")]
        assert stored == [f"e{n:02}" for n in range(20)]

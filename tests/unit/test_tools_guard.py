"""A tool's circuit breaker and its retries: what is not sent, when it is tried again, and what that may cost."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from libs.contracts.application import Breaker, Connector, PythonConnector, Retries, Tool
from services.tools.circuit import Budget, Circuit, Pass
from services.tools.connectors.guard import Guard
from services.tools.domain import Committed, Failed, NotSent, Outcome, Refused, Unknown, of_repeat
from services.tools.metrics import ToolMetrics
from services.tools.ports import Call, Stopped
from tests.support.eventually import eventually

CALL = Call("s1", "O1", "book", {}, "key", 2.0)


class World:
    """A guarded tool on a clock of the test's own."""

    def __init__(self, breaker: Breaker | None = None, retries: Retries | None = None) -> None:
        self.now = 100.0
        self.answers: list[Outcome | BaseException] = []
        self.calls: list[Call] = []
        self.told: list[tuple[str, str]] = []
        self.registry = CollectorRegistry()
        connector = Connector(python=PythonConnector(function="a:b"))
        tool = Tool(connector=connector, breaker=breaker, retries=retries)
        self.guard = Guard("book", tool, self, ToolMetrics(self.registry, ["book"]), self.tell, lambda: self.now)

    async def run(self, call: Call) -> Outcome:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else Committed()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def tell(self, call: Call, change: str, reason: str) -> None:
        self.told.append((change, reason))

    async def each(self, *answers: Outcome) -> list[Outcome]:
        self.answers += answers
        return [await self.guard.run(CALL) for _ in answers]

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"turnkeeper_tools_{name}", {"tool": "book", **labels})


THREE = Breaker(failures=3, pause=30.0)
BAD: list[Outcome] = [Unknown("cut"), Failed("401"), NotSent("refused")]


async def test_so_many_bad_outcomes_in_a_row_stop_the_sending() -> None:
    world = World(THREE)
    assert await world.each(*BAD) == BAD
    found = await world.guard.run(CALL)
    assert type(found) is Failed
    assert found.reason == "not sent: book has a pause after failures in a row (last: refused); tried again in 30 s"
    assert len(world.calls) == 3
    assert (world.sample("circuit_open"), world.sample("circuit_opened_total")) == (1, 1)
    await eventually(lambda: world.told == [("opened", "refused")])


@pytest.mark.parametrize("good", [Committed(1), Refused("full")])
async def test_a_destination_that_answers_is_well(good: Outcome) -> None:
    world = World(THREE)
    await world.each(BAD[0], BAD[1], good, BAD[0], BAD[1])
    assert await world.each(good) == [good]
    assert len(world.calls) == 6


async def test_after_the_pause_one_call_tries_and_closes_it() -> None:
    world = World(THREE)
    await world.each(*BAD)
    world.now += 29.9
    assert isinstance(await world.guard.run(CALL), Failed)
    world.now += 0.1
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    slow = world.run

    async def waits(call: Call) -> Outcome:
        await gate
        return await slow(call)

    world.run = waits  # type: ignore[method-assign]
    probe = asyncio.create_task(world.guard.run(CALL))
    await asyncio.sleep(0)
    beside = await asyncio.wait_for(world.guard.run(CALL), 2)
    assert isinstance(beside, Failed)
    assert beside.reason.endswith("tried again when the call that tries it has ended")
    gate.set_result(None)
    assert await probe == Committed()
    assert await world.guard.run(CALL) == Committed()
    assert world.sample("circuit_open") == 0
    await eventually(lambda: [change for change, _ in world.told] == ["opened", "closed"])


@pytest.mark.parametrize("ending", [Unknown("cut"), asyncio.CancelledError(), ValueError("broke")])
async def test_a_bad_try_opens_it_again(ending: Outcome | BaseException) -> None:
    world = World(THREE)
    await world.each(*BAD)
    world.now += 30
    world.answers.append(ending)
    if isinstance(ending, BaseException):
        with pytest.raises(type(ending)):
            await world.guard.run(CALL)
    else:
        await world.guard.run(CALL)
    assert isinstance(await world.guard.run(CALL), Failed)
    world.now += 30
    assert await world.guard.run(CALL) == Committed()


async def test_a_time_out_counts_as_bad() -> None:
    world = World(Breaker(failures=1, pause=30.0))

    async def hangs(call: Call) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    world.run = hangs  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await world.guard.run(CALL)
    assert isinstance(await world.guard.run(CALL), Failed)


def test_a_call_from_before_says_nothing_of_after() -> None:
    circuit = Circuit(Breaker(failures=1, pause=10.0))
    first, second, third = (circuit.enter(0.0) for _ in range(3))
    assert isinstance(first, Pass)
    assert isinstance(second, Pass)
    assert isinstance(third, Pass)
    assert circuit.leave(first, bad=True, why="cut", now=1.0) == "opened"
    assert circuit.leave(second, bad=False, why="", now=2.0) is None
    assert circuit.is_open, "a success that was begun before does not close it"
    assert circuit.leave(third, bad=True, why="late", now=9.0) is None
    probe = circuit.enter(11.0)
    assert isinstance(probe, Pass), "nor does a failure prolong the pause"
    assert probe.probe


async def test_a_teller_that_fails_changes_no_outcome() -> None:
    world = World(Breaker(failures=1))

    async def fails(call: Call, change: str, reason: str) -> None:
        raise ConnectionError

    world.guard._tell = fails
    assert await world.each(BAD[0]) == [BAD[0]]


async def test_without_a_breaker_every_call_is_made() -> None:
    world = World()
    await world.each(*BAD * 5)
    assert len(world.calls) == 15


RETRIES = Retries(times=2, wait=0.001, budget=3, per=60.0)


async def test_what_was_not_sent_is_tried_again_within_its_time() -> None:
    world = World(retries=RETRIES)
    world.answers += [NotSent("refused"), NotSent("refused")]
    assert await world.guard.run(CALL) == Committed()
    assert [call.key for call in world.calls] == ["key"] * 3
    assert all(call.timeout <= CALL.timeout for call in world.calls)
    assert world.sample("retries_total", outcome="retried") == 2


@pytest.mark.parametrize("outcome", [Unknown("cut"), Failed("401"), Refused("full")])
async def test_what_may_have_been_sent_is_never_tried_again(outcome: Outcome) -> None:
    world = World(retries=RETRIES)
    assert await world.each(outcome) == [outcome]
    assert len(world.calls) == 1


async def test_the_budget_bounds_what_all_calls_spend() -> None:
    world = World(retries=RETRIES)
    world.answers += [NotSent("refused")] * 100
    found = [await world.guard.run(CALL) for _ in range(5)]
    assert len(world.calls) == 5 + 3
    assert found[-1] == NotSent("refused; the tool's budget of retries is spent")
    world.now += 20  # a third of `per`: one more
    await world.guard.run(CALL)
    assert len(world.calls) == 8 + 2
    assert world.sample("retries_total", outcome="budget_spent") == 5


async def test_with_no_time_left_it_is_not_tried_again() -> None:
    world = World(retries=Retries(times=2, wait=10.0))
    assert await world.each(NotSent("refused")) == [NotSent("refused")]
    assert len(world.calls) == 1


def test_a_bucket_holds_no_more_than_its_budget() -> None:
    budget = Budget(Retries(budget=2, per=10.0), 0.0)
    taken: Callable[[float], bool] = budget.take
    assert [taken(1000.0), taken(1000.0), taken(1000.0), taken(1004.9), taken(1005.0)] == [
        True,
        True,
        False,
        False,
        True,
    ]


async def test_a_repeat_during_the_pause_waits_for_its_end() -> None:
    world = World(THREE)
    await world.each(*BAD)
    sent = len(world.calls)
    with pytest.raises(Stopped, match="not sent: book has a pause") as stopped:
        await world.guard.run(replace(CALL, repeat=True))
    assert 0 < stopped.value.wait <= THREE.pause
    assert len(world.calls) == sent


async def test_a_repeat_that_could_not_be_sent_is_unknown() -> None:
    world = World()
    world.answers = [NotSent("no route")]
    found = await world.guard.run(replace(CALL, repeat=True))
    assert found == Unknown("it may have been sent before, and could not be sent again: no route")


def test_a_repeat_that_was_not_sent_does_not_prove_that_nothing_was() -> None:
    for outcome in (Failed("x"), NotSent("x")):
        assert of_repeat(outcome) == Unknown("it may have been sent before, and could not be sent again: x")
    assert of_repeat(Committed(1)) == Committed(1)
    assert of_repeat(Refused("full")) == Refused("full")

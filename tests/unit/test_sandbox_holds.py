"""A slow destination: calls to a held collection wait until they are let go."""

import asyncio

from tests.support.eventually import eventually
from turnkeeper.sandbox.holds import Holds


async def test_what_is_not_held_passes_at_once() -> None:
    holds = Holds()
    holds.hold("messages")
    await holds.passed("reservations")
    assert holds.waiting() == {"messages": 0}


async def test_calls_are_let_go_oldest_first_and_then_all() -> None:
    holds, passed = Holds(), list[int]()

    async def call(number: int) -> None:
        await holds.passed("messages")
        passed.append(number)

    holds.hold("messages")
    async with asyncio.TaskGroup() as group:
        for number in range(1, 4):
            group.create_task(call(number))
        await eventually(lambda: holds.waiting() == {"messages": 3})
        holds.release("messages", 1)
        await eventually(lambda: passed == [1])
        assert holds.waiting() == {"messages": 2}
        holds.release("messages")
    assert passed == [1, 2, 3]
    assert holds.waiting() == {}
    await holds.passed("messages")


async def test_holding_twice_forgets_no_call_and_releasing_what_is_not_held_is_nothing() -> None:
    holds = Holds()
    holds.release("messages")
    holds.hold("messages")
    waiting = asyncio.create_task(holds.passed("messages"))
    await eventually(lambda: holds.waiting() == {"messages": 1})
    holds.hold("messages")
    holds.release("messages", 5)
    await waiting
    assert holds.waiting() == {"messages": 0}

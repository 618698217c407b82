"""Wait for a condition instead of sleeping."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.02


async def eventually(condition: Callable[[], T | Awaitable[T]], within: float = 30.0) -> T:
    """Ask `condition` again and again until it is truthy; what it gave.

    An AssertionError that it raises counts as "not yet". After `within` seconds that error is raised, or one that
    shows the last value.
    """
    deadline = time.monotonic() + within
    while True:
        value, failed = await _ask(condition)
        if failed is None and value:
            return value
        if time.monotonic() >= deadline:
            raise failed or AssertionError(f"not within {within} s; the condition last gave {value!r}")
        await asyncio.sleep(POLL_SECONDS)


def eventually_sync(condition: Callable[[], T], within: float = 30.0) -> T:
    """The same for tests without an event loop."""
    return asyncio.run(eventually(condition, within))


async def _ask(condition: Callable[[], T | Awaitable[T]]) -> tuple[T | None, AssertionError | None]:
    try:
        value = condition()
        return (await value if inspect.isawaitable(value) else value), None
    except AssertionError as failed:
        return None, failed

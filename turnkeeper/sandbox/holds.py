"""A destination that takes its time: calls to a held collection wait, unjudged, until they are let go."""

import asyncio
from collections import deque


class Holds:
    """Which collections are held, and the calls that wait, oldest first. A new process holds nothing."""

    def __init__(self) -> None:
        self._held: dict[str, deque[asyncio.Event]] = {}

    def hold(self, collection: str) -> None:
        """From now on calls to it wait."""
        self._held.setdefault(collection, deque())

    def release(self, collection: str, calls: int | None = None) -> None:
        """Let so many of the waiting calls go on, the oldest first; None: all of them, and it is held no more."""
        waiting = self._held.get(collection, deque()) if calls is not None else self._held.pop(collection, deque())
        for _ in range(len(waiting) if calls is None else min(calls, len(waiting))):
            waiting.popleft().set()

    async def passed(self, collection: str) -> None:
        """Wait while the collection is held, until this call is let go."""
        if collection in self._held:
            turn = asyncio.Event()
            self._held[collection].append(turn)
            await turn.wait()

    def waiting(self) -> dict[str, int]:
        """Held collection → how many calls wait."""
        return {collection: len(waiting) for collection, waiting in self._held.items()}

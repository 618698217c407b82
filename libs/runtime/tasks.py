"""What a long-lived task must know of its own end."""

import asyncio


def cancelling() -> bool:
    """Whether the current task was told to end.

    A loop asks, besides being raised to: before Python 3.12 `asyncio.wait_for`, in which the clients of the broker and
    of Redis wait, loses a cancelling that comes together with the answer (CPython issue 86296).
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0

"""The destination of both chains: a ledger that keeps a line of every call, so that effects can be counted outside."""

import os
import time
from functools import cache

PATH = "BENCH_LEDGER"
"""Environment variable that names the file."""


@cache
def _file() -> int:
    return os.open(os.environ[PATH], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def write_entry(entry: str, key: str) -> None:
    """Keep one line: the entry, the key that it came with, and when (nanoseconds, Unix)."""
    os.write(_file(), f"{entry} {key} {time.time_ns()}\n".encode())


async def post_entry(entry: str, amount: str, idempotency_key: str) -> dict[str, str]:
    """The tool. It does not look at the key, so that an effect that happened twice is there twice."""
    write_entry(entry, idempotency_key)
    return {"id": entry, "amount": amount}

"""The tools of this application: plain functions. `python orders.py` shows what was really ordered."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import turnkeeper

MOST = 100


def place_order(item: str, count: int, idempotency_key: str) -> dict[str, Any] | None:
    """Place an order, once for each key, however often it is asked for under that key."""
    if count > MOST:
        raise turnkeeper.Refusal(f"at most {MOST} at once")
    with _database() as orders:
        row = (idempotency_key, item, count)
        orders.execute("INSERT OR IGNORE INTO orders (key, item, count) VALUES (?, ?, ?)", row)
    return find_order(idempotency_key)


def find_order(key: str) -> dict[str, Any] | None:
    """The order that was placed under a key, None where there is none."""
    with _database() as orders:
        row = orders.execute("SELECT number, item, count FROM orders WHERE key = ?", (key,)).fetchone()
    return dict(zip(("number", "item", "count"), row, strict=True)) if row else None


def all_orders() -> list[tuple[str, int]]:
    """What was ordered, in order: item and count."""
    with _database() as orders:
        return list(orders.execute("SELECT item, count FROM orders ORDER BY number"))


@contextlib.contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    # Another path for tests, so that they order nothing here.
    path = os.environ.get("ORDERS_DB") or Path(__file__).with_name("orders.db")
    columns = "number INTEGER PRIMARY KEY, key TEXT UNIQUE, item TEXT, count INTEGER"
    with contextlib.closing(sqlite3.connect(path, timeout=5)) as database, database:  # committed, then closed
        database.execute(f"CREATE TABLE IF NOT EXISTS orders ({columns})")
        yield database


if __name__ == "__main__":
    for item, count in all_orders():
        print(f"{count} {item}")

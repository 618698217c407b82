"""Whether what came out is what was recorded. Times are no part of it."""

import difflib
from collections.abc import Sequence

from turnkeeper.demo.scenario import Expected

RECOVERY = frozenset({"tool.replayed", "tool.unknown"})
"""Kinds of lines that a crash may add: an outcome that was looked for, or told again. They change no outcome."""


def differences(expected: Expected, came: Expected) -> list[str]:
    """Each difference as lines of a diff; none if all is as recorded."""
    found: list[str] = []
    for part in ("timeline", "answers", "effects", "world", "deliveries"):
        wanted, got = list(getattr(expected, part)), list(getattr(came, part))
        if wanted != got:
            diff = difflib.unified_diff(wanted, got, f"recorded {part}", f"{part} now", lineterm="", n=1)
            found += [line for line in diff if not line.startswith("@@")]
    return found


def differences_after_crashes(expected: Expected, came: Expected) -> list[str]:
    """As `differences`, for a run with crashes: the recorded outcomes in their order, with lines of recovery between
    them at most, the same effects, each once, and the same world. Answers and ingress's log, which a kill forgets, are
    not compared."""
    world = {"timeline": (), "answers": (), "deliveries": ()}
    return [
        *_unrecovered(expected.timeline, came.timeline),
        *differences(expected.model_copy(update=world), came.model_copy(update=world)),
    ]


def _unrecovered(expected: Sequence[str], came: Sequence[str]) -> list[str]:
    wanted = [_unnumbered(line) for line in expected]
    for line in came:
        kind, _, text = _unnumbered(line).partition(" ")
        if wanted and _same(wanted[0], kind, text):
            wanted.pop(0)
        elif kind not in RECOVERY:
            return [f"not in the recorded timeline at this place: {line}", *(f"still due: {one}" for one in wanted)]
    return [f"never came: {line}" for line in wanted]


def _same(wanted: str, kind: str, text: str) -> bool:
    # A result whose first telling was lost in a crash is told again by the ledger, as a replay of itself.
    told_again = wanted == f"tool.committed {text}" and kind == "tool.replayed"
    return told_again or wanted == f"{kind} {text}".rstrip()


def _unnumbered(line: str) -> str:
    return line.partition(" ")[2]

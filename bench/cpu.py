"""Processor time of processes: what a turn costs, also on a machine that has other things to do."""

import os
from collections.abc import Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def used(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds of processor time (user and system) that each process has used so far, by name."""
    return {name: _of(pid) for name, pid in pids.items()}


def per_turn(before: Mapping[str, float], after: Mapping[str, float], turns: int) -> dict[str, float]:
    """Milliseconds of processor time a turn, by name."""
    return {name: round((after[name] - before[name]) / turns * 1000, 3) for name in before}


def _of(pid: int) -> float:
    # The name in parentheses may hold spaces and parentheses itself: fields are counted from the last one.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

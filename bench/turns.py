"""Turns a second from publish to committed effect and `done`, beside a bare bundled chain of the same hops.

    python -m bench.turns                     # 3 rounds of 5,000 events over 200 sessions
    python -m bench.turns --events 1000 --rounds 1 --no-latency

Both chains run in turn on the same Redis and RabbitMQ: A B A B. Every run ends with a count of effects at the
destination, and no figure is given for one in which an event had none or two. Writes `bench/results/turns.json`.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
from rich.console import Console

from bench.app import ledger
from bench.load import LoadError, quantile
from bench.sides import BareSide, Measured, Side, TurnkeeperSide, Wanted
from turnkeeper import engines
from turnkeeper.stack import Stack, StackError, start_stack, stop_stack

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "turns.json"
GOAL = 0.4
"""Of the bare chain's turns a second."""
WARM_UP_EVENTS = 1_000
LATENCY_RATE = 50.0
LATENCY_SECONDS = 10

say = Console(stderr=True, highlight=False).print


def main() -> None:
    """Measure and say what came out. Exit 1 where a run was not exactly once, or could not be run."""
    given = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends the stack too
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-bench-"))
    state = given.state or folder / "stack"
    effects = folder / "turns.ledger"
    lab = {"tools": {ledger.PATH: str(effects)}, "TURNKEEPER_LOG_LEVEL": given.log_level}
    try:
        stack = start_stack(
            state, given.engine, 0, HERE / "app" / "turnkeeper.yaml", lab=lab, partitions=given.partitions, say=say
        )
        try:
            result = uvloop.run(measure(stack, given, folder, effects))
        finally:
            stop_stack(state, say=say)
    except (LoadError, StackError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted, nothing measured")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(_table(result))
    print(_last_line(result))


async def measure(stack: Stack, given: argparse.Namespace, folder: Path, effects: Path) -> dict[str, Any]:
    """All runs. Rates in turns a second, latencies in milliseconds."""
    sides: list[Side] = [TurnkeeperSide(stack, effects), BareSide(stack, folder)]
    windows = {side.name: await _best_window(side, given.windows, given.sessions) for side in sides}
    samples: dict[str, list[float]] = {side.name: [] for side in sides}
    spent: dict[str, list[Mapping[str, float]]] = {side.name: [] for side in sides}
    for number in range(given.rounds):
        for side in sides:
            wanted = Wanted(given.events, given.sessions, window=windows[side.name])
            found = await side.run(wanted)
            say(f"round {number + 1}: {side.name} {found.rate:.0f} turns/s")
            samples[side.name].append(round(found.rate, 1))
            spent[side.name].append(found.cpu)
    ratios = [turns / bare for turns, bare in zip(samples["turns"], samples["bare"], strict=True)]
    return {
        "commit": _commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "engine": stack.engine},
        "windows": windows,
        "samples": samples,
        "medians": {name: median(rates) for name, rates in samples.items()},
        "ratios": {"turns/bare": round(median(ratios), 3)},
        "cpu_ms_per_turn": {name: _medians(found) for name, found in spent.items()},
        "latency": {side.name: await _latency(side, given) for side in sides} if given.latency else {},
    }


async def _best_window(side: Side, windows: Sequence[int], sessions: int) -> int:
    """Warm the chain up with each window and keep the fastest one."""
    rates = {}
    for window in windows:
        rates[window] = (await side.run(Wanted(WARM_UP_EVENTS, sessions, window=window))).rate
        say(f"warm-up: {side.name} with {window} in flight {rates[window]:.0f} turns/s")
    return max(rates, key=lambda window: rates[window])


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By process, the median of the rounds."""
    return {name: round(median(one[name] for one in found), 3) for name in found[0]}


async def _latency(side: Side, given: argparse.Namespace) -> dict[str, float]:
    wanted = Wanted(round(LATENCY_RATE * LATENCY_SECONDS), given.sessions, rate=LATENCY_RATE)
    found: Measured = await side.run(wanted)
    named = {"effect": found.effect, "done": found.done}
    return {
        f"{name}_p{percent}_ms": round(quantile(values, percent / 100) * 1000, 1)
        for name, values in named.items()
        for percent in (50, 99)
    }


def _table(result: dict[str, Any]) -> str:
    lines = [
        "| chain | in flight | turns/s, each round | median |",
        "|---|---|---|---|",
        *(
            f"| {name} | {result['windows'][name]} | {' '.join(f'{rate:.0f}' for rate in rates)} "
            f"| {result['medians'][name]:.0f} |"
            for name, rates in result["samples"].items()
        ),
        "",
        "| processor time of a turn | ms | of which |",
        "|---|---|---|",
        *(_spent(name, by) for name, by in result["cpu_ms_per_turn"].items()),
    ]
    if result["latency"]:
        lines += [
            "",
            f"| at {LATENCY_RATE:.0f} events/s | effect p50 ms | p99 | done p50 ms | p99 |",
            "|---|---|---|---|---|",
            *(
                f"| {name} | " + " | ".join(f"{value:.1f}" for value in values.values()) + " |"
                for name, values in result["latency"].items()
            ),
        ]
    return "\n".join(lines)


def _spent(chain: str, by_process: Mapping[str, float]) -> str:
    shown = ", ".join(f"{process} {ms:.2f}" for process, ms in by_process.items() if ms >= 0.005)
    return f"| {chain} | {sum(by_process.values()):.2f} | {shown} |"


def _last_line(result: dict[str, Any]) -> str:
    ratio = result["ratios"]["turns/bare"]
    verdict = "reached" if ratio >= GOAL else "missed"
    return (
        f"bench: {result['medians']['turns']:.0f} turns/s, {ratio:.2f} of the bare chain's "
        f"{result['medians']['bare']:.0f} (goal {GOAL}: {verdict}); each event had exactly one effect; "
        f"{RESULTS.relative_to(HERE.parent)}"
    )


def _commit() -> str:
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000, help="events of each run (%(default)s)")
    parser.add_argument("--sessions", type=int, default=200, help="sessions that they belong to (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs; the median counts (%(default)s)")
    parser.add_argument(
        "--windows", type=int, nargs="+", default=[128, 256, 512], help="events in flight; each chain gets its best"
    )
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--engine", choices=engines.KINDS, default="local", help="where the servers come from")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    parser.add_argument("--state", type=Path, help="folder of the stack, to look at its logs afterwards")
    parser.add_argument("--no-latency", dest="latency", action="store_false", help="leave out the run at a slow rate")
    return parser.parse_args()


if __name__ == "__main__":
    main()

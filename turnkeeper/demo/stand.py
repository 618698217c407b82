"""A throw-away stack for a scenario: on free ports, in a folder of its own, gone at the end whatever happens."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import yaml

from turnkeeper.demo.scenario import Settings, laid_over
from turnkeeper.engines.base import Say
from turnkeeper.stack import Stack, start_stack, stop_stack
from turnkeeper.target import DINNER

PARTITIONS = 4
"""Each costs a quorum queue, and so a moment at the start; one session needs no more."""


@contextlib.contextmanager
def throw_away(settings: Settings, *, engine: str | None = None, say: Say) -> Iterator[Stack]:
    """A stack with these settings. Where the block raises, its logs are kept and their place is told.

    Raises StackError if it does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-demo-"))
    state = folder / "state"
    kept = False
    try:
        with _ended_by_signals():
            try:
                yield start_stack(
                    state,
                    engine,
                    0,
                    _application(folder / "application", settings),
                    lab=_environment(settings),
                    partitions=PARTITIONS,
                    say=say,
                )
            except BaseException:
                kept = (state / "logs").is_dir()
                raise
            finally:
                with _undisturbed():
                    stop_stack(state, say=say)
    finally:
        if kept:
            say(f"demo: the logs are in {state / 'logs'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _application(folder: Path, settings: Settings) -> Path:
    """A copy of the example, since its file is changed by the settings and its rules and functions lie beside it."""
    shutil.copytree(DINNER.parent, folder, ignore=shutil.ignore_patterns("scenarios", "__pycache__"))
    path = folder / DINNER.name
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(laid_over(raw, settings.application), sort_keys=False), encoding="utf-8")
    return path


def _environment(settings: Settings) -> dict[str, str]:
    lab = {"TURNKEEPER_LAB": ",".join(settings.lab), "TURNKEEPER_LAB_DEMO": "1"} if settings.lab else {}
    return {**settings.env, **lab}


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that the stack goes with whoever started it."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(end, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half a stack."""
    with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handling(handler: "signal._HANDLER", *numbers: signal.Signals) -> Iterator[None]:
    try:
        before = {number: signal.signal(number, handler) for number in numbers}
    except ValueError:  # not in the main thread: whoever runs us there handles its signals
        yield
        return
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)

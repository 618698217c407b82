"""A throw-away stack for a scenario: on free ports, in a folder of its own, gone at the end whatever happens."""

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from libs.contracts.topology import Topology
from turnkeeper.demo.leavings import remove
from turnkeeper.demo.scenario import Settings, laid_over
from turnkeeper.engines.base import Say
from turnkeeper.engines.external import NAMESPACE
from turnkeeper.stack import Stack, interruptible, start_stack, stop_stack
from turnkeeper.target import DINNER

PARTITIONS = 4
"""Each costs a quorum queue, and so a moment at the start; one session needs no more."""


@contextlib.contextmanager
def throw_away(settings: Settings, *, engine: str | None = None, say: Say) -> Iterator[Stack]:
    """A stack with these settings. Where the block raises, its logs are kept and their place is told.

    Raises StackError if it does not start.
    """
    with throw_away_of(
        lambda folder: _application(folder / "application", settings), _environment(settings), engine=engine, say=say
    ) as stack:
        yield stack


@contextlib.contextmanager
def throw_away_of(
    application: Callable[[Path], Path], lab: Mapping[str, str], *, engine: str | None = None, say: Say
) -> Iterator[Stack]:
    """The same for an application file, which `application` names and may write into the stack's folder; `lab` is
    extra environment. Raises StackError if it does not start."""
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-demo-"))
    state = folder / "state"
    config = application(folder)
    kept, stack = False, None
    with _interruptible():
        try:
            with _own_namespace():
                stack = start_stack(state, engine, 0, config, lab=lab, partitions=PARTITIONS, say=say)
            yield stack
        except Exception:
            kept = (state / "logs").is_dir()
            raise
        finally:
            try:
                stop_stack(state, say=say)
                if stack is not None and stack.engine == "external":
                    remove(stack.redis_url, stack.amqp_url, Topology(stack.namespace, stack.partitions))
            finally:
                _clear(folder, state, kept, say)


def _clear(folder: Path, state: Path, kept: bool, say: Say) -> None:
    """Remove everything, or everything but the logs: the servers' data is large, and secrets are among it."""
    if kept:
        logs = folder.with_name(f"{folder.name}-logs")
        shutil.move(state / "logs", logs)
        say(f"demo: the logs are in {logs}")
    shutil.rmtree(folder, ignore_errors=True)


def _interruptible() -> contextlib.AbstractContextManager[None]:
    """Signals can be handled in the main thread alone; elsewhere whoever runs us handles them."""
    return interruptible() if threading.current_thread() is threading.main_thread() else contextlib.nullcontext()


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
def _own_namespace() -> Iterator[None]:
    """On servers that somebody else runs a throw-away stack must touch nothing but what it makes itself."""
    before = os.environ.get(NAMESPACE)
    os.environ[NAMESPACE] = f"demo-{secrets.token_hex(6)}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NAMESPACE]
        else:
            os.environ[NAMESPACE] = before

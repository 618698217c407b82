"""Where Redis and RabbitMQ come from: `external`, `docker` or `local`, by choice or found in this order."""

import signal
from pathlib import Path
from types import ModuleType
from typing import get_args

from turnkeeper import processes
from turnkeeper.engines import docker, external, local
from turnkeeper.engines.base import (
    SERVERS,
    Engine,
    EngineError,
    EngineUnavailable,
    Kind,
    Say,
    Server,
    silent,
)

__all__ = [
    "KINDS",
    "SERVERS",
    "Engine",
    "EngineError",
    "EngineUnavailable",
    "Kind",
    "Server",
    "kill",
    "kind_of",
    "restart",
    "start",
    "stop",
]

KINDS: tuple[Kind, ...] = get_args(Kind)
_MODULES = {"external": external, "docker": docker, "local": local}


def start(state: Path, kind: str | None = None, *, say: Say = silent) -> Engine:
    """Start the engine of that kind, or the first that this machine has: external, docker, local.

    Raises EngineError for an unknown kind or a server that does not come up, and EngineUnavailable when there is none;
    the text says in one line what to do.
    """
    processes.private_folder(state)
    if kind is not None:
        return _start_named(state, kind, say)
    if external.is_given():
        return _remember(state, external.start(state, say=say))
    try:
        return _remember(state, docker.start(state, say=say, at_once=True))
    except EngineError as error:
        # Also one that was found and failed: the containers of another host are not reached over our loopback.
        no_docker = str(error).partition("\n")[0]
    try:
        return _remember(state, local.start(state, say=say))
    except EngineUnavailable as error:
        raise EngineUnavailable(f"{error} (also tried: {no_docker})") from error


def stop(state: Path) -> None:
    """End the engine that was started in this state folder, and everything that carries the folder's mark."""
    if docker.was_started(state):
        docker.stop(state)
    if (state / "run").exists():
        local.stop(state)
    _kind_file(state).unlink(missing_ok=True)


def kill(state: Path, server: Server, number: int = signal.SIGKILL) -> None:
    """Send a signal to one server of this state folder's engine; after SIGKILL it is gone when this returns."""
    _module(state).kill(state, server, number)


def restart(state: Path, server: Server) -> None:
    """Start one server of this state folder's engine again, on the same port and with the same data."""
    _module(state).restart(state, server)


def kind_of(state: Path) -> Kind | None:
    """Kind of the engine that was started in this state folder and not stopped, or None."""
    try:
        kind = _kind_file(state).read_text().strip()
    except OSError:
        return None
    return next((known for known in KINDS if known == kind), None)


def _start_named(state: Path, kind: str, say: Say) -> Engine:
    match kind:
        case "external":
            return _remember(state, external.start(state, say=say))
        case "docker":
            return _remember(state, docker.start(state, say=say))
        case "local":
            return _remember(state, local.start(state, say=say))
        case _:
            raise EngineError(f"unknown engine {kind!r}: one of {', '.join(KINDS)}")


def _remember(state: Path, engine: Engine) -> Engine:
    processes.write_private(_kind_file(state), engine.kind + "\n")
    return engine


def _kind_file(state: Path) -> Path:
    return state / "engine"


def _module(state: Path) -> ModuleType:
    kind = kind_of(state)
    if kind is None:
        raise EngineError(f"no engine runs in {state}")
    return _MODULES[kind]

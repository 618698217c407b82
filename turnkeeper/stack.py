"""A stack: engine, topology, sandbox and the four services as processes of one state folder.

Everything about a running stack is in the folder: `stack.json` for those who use it, `run/` for those who end it,
`logs/` for those who ask why. So any later command can stop it, whatever became of the one that started it.
"""

import asyncio
import contextlib
import fcntl
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from libs.contracts.application import Application, ApplicationError, load_application
from libs.contracts.keys import SERVICES
from libs.contracts.topology import Topology, checked_age
from libs.runtime import topology
from turnkeeper import engines, processes
from turnkeeper.engines import Engine, EngineError
from turnkeeper.engines.base import Say, silent
from turnkeeper.processes import ProcessError, Record
from turnkeeper.stack_plan import (
    SANDBOX,
    Lab,
    PlanError,
    Planned,
    Secrets,
    application_faults,
    load_secrets,
    plan_ports,
    plan_processes,
    replica_counts,
)

DEFAULT_PORT_BASE = 8080
DEFAULT_PARTITIONS = 16
_READY_SECONDS = 60.0
_RECOVERY_SECONDS = 60.0
"""For the queues of a broker that was stopped with its data: so long they may take to come up again."""
_LAST_WORDS_SECONDS = 3.0
"""So long others are waited for once one has ended at its start: what is wrong with one is often so with more."""
_ATTEMPTS = 3
_PORT_TAKEN = "address already in use"
_GRACE_SECONDS = 15.0
_LOCK_SECONDS = 180.0
_POLL_SECONDS = 0.1
_WATCH_SECONDS = 0.5
_PROBE_SECONDS = 2.0


class StackError(Exception):
    """The stack could not be started, changed or stopped. The first line says what to do; log lines may follow."""


class PortTakenError(StackError):
    """A port that was free a moment ago was somebody's when it was bound."""


@dataclass(frozen=True)
class Stack:
    """A running stack, as `stack.json` tells it."""

    state: Path
    engine: str
    redis_url: str = field(repr=False)
    amqp_url: str = field(repr=False)
    namespace: str
    partitions: int
    config: Path
    urls: Mapping[str, Sequence[str]]
    """Base URLs of each service's replicas, by service name."""
    sandbox_url: str | None
    sandbox_log: Path | None
    user_token_secret: str = field(repr=False)
    operator_token: str = field(repr=False)
    source_secrets: Mapping[str, str] = field(repr=False)
    """By the environment variable that the application file names."""
    pids: Mapping[str, int]
    """Of the services, the sandbox and a local engine's servers, when the file was written."""

    def url(self, service: str, replica: int = 0) -> str:
        """Base URL of one replica of a service."""
        return self.urls[service][replica]

    def start_service(self, name: str) -> int:
        """Start a process of the stack that is gone again, with the same environment; its pid."""
        return start_service(self.state, name)

    def restart_service(self, name: str) -> None:
        """End one process in good order and start it again."""
        restart_service(self.state, name)

    def kill_service(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send one process a signal; after SIGKILL it is gone when this returns."""
        kill_service(self.state, name, number)

    def stop(self) -> None:
        """Stop the whole stack."""
        stop_stack(self.state)


def start_stack(
    state: Path,
    engine: str | None = None,
    port_base: int = DEFAULT_PORT_BASE,
    config: Path = Path("turnkeeper.yaml"),
    replicas: int | Mapping[str, int] = 1,
    lab: Lab | None = None,
    *,
    partitions: int | None = None,
    say: Say = silent,
) -> Stack:
    """Start a stack in `state` and return when every process is ready.

    `engine` is a kind or None for the first one found; `port_base` 0 takes free ports; `lab` is extra environment;
    `partitions` defaults to `TURNKEEPER_PARTITIONS` or 16; `say` gets a line at each step. The stack outlives the
    caller. Raises StackError, with nothing left running, saying what failed and the last lines of its log; what can be
    seen to be wrong before anything starts is told all at once, and then nothing is made.
    """
    config = config.resolve()
    with _as_stack_error():
        application = load_checked(config, engine, lab or {})
    state = processes.private_folder(state).resolve()
    with _locked(state), _as_stack_error():
        _refuse_second(state)
        _stop(state, silent)  # what a crash left behind
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return _start(state, engine, port_base, config, application, replicas, lab or {}, partitions, say)
            except PortTakenError:
                _stop(state, silent)
                if port_base != 0 or attempt == _ATTEMPTS:
                    raise
                say("stack: a port was taken meanwhile, trying others")
            except BaseException:
                say("stack: not started, cleaning up")
                _stop(state, silent)
                raise
    raise AssertionError("the last attempt returns or raises")


def stop_stack(state: Path, *, say: Say = silent) -> None:
    """Stop everything that was started in `state`, by whomever. Raises StackError if something does not end."""
    state = state.resolve()
    if not is_state(state):
        return
    with _locked(state), _as_stack_error():
        _stop(state, say)


def is_state(state: Path) -> bool:
    """Whether a stack was ever started in this folder."""
    return (state / "lock").is_file()


def read_stack(state: Path) -> Stack:
    """The stack of a state folder. Raises StackError, saying how to start one, if none runs there."""
    try:
        fields = json.loads((state / "stack.json").read_text())
        return _from_fields(fields)
    except FileNotFoundError:
        raise StackError(f"no stack runs in {state}: start one with turnkeeper up") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StackError(f"cannot read {state / 'stack.json'}: {error}") from error


def running(state: Path) -> dict[str, bool]:
    """Whether each process of the stack still runs, by name; servers in containers are not among them."""
    return {record.name: processes.is_running(record) for record in processes.read_all(state)}


def start_service(state: Path, name: str) -> int:
    """Start a process again, with the same command and environment, and wait until it is ready; its pid.

    Also `redis` and `rabbitmq`, with their data; the pid is 0 for one in a container. Raises StackError if it is
    unknown, runs already, or does not become ready.
    """
    state = state.resolve()
    with _as_stack_error():
        if name in engines.SERVERS:
            engines.restart(state, name)
        else:
            _spawn_again(state, name)
        _note_pids(state)
    record = processes.read(state, name)
    return record.pid if record else 0


def restart_service(state: Path, name: str) -> None:
    """End one process in good order, if it runs, and start it again. Raises as `start_service`."""
    state = state.resolve()
    with _as_stack_error():
        if name not in engines.SERVERS:
            processes.end([_record(state, name)], grace=_GRACE_SECONDS)
    start_service(state, name)


def kill_service(state: Path, name: str, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process; after SIGKILL it is gone when this returns. Raises StackError if it is not there.

    Names are `session-0`, `sandbox`, and for the engine's servers `redis` and `rabbitmq`.
    """
    state = state.resolve()
    with _as_stack_error():
        if name in engines.SERVERS:
            engines.kill(state, name, number)
            return
        record = _record(state, name)
        if not processes.send(record, number):
            raise StackError(f"{name} does not run")
        if number == signal.SIGKILL and processes.wait_gone([record], 10):
            raise StackError(f"{name} (pid {record.pid}) does not end")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within it the first Ctrl-C, SIGTERM or SIGHUP raises KeyboardInterrupt, and later ones are ignored.

    So what began to clean up comes to its end: a second Ctrl-C must not leave half a stack.
    """
    asked = threading.Event()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if not asked.is_set():
            asked.set()
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hold(state: Path, start: Callable[[], object] | None = None, *, say: Say = silent) -> None:
    """Stay with the stack of `state` until Ctrl-C, SIGTERM or SIGHUP, then stop it; or until somebody else stops it.

    With `start`, begin by starting it: then a signal at any moment finds somebody to clean up. Tells when a process
    ends, and restarts none: whether to is the operator's to decide. Raises what `start` raises, KeyboardInterrupt if
    it was interrupted while it started; the stack is down then.
    """
    state = state.resolve()
    others = (state / "stack.json").exists()
    up = False
    with interruptible():
        try:
            if start is not None:
                start()
            up = True
            say("stack: up until Ctrl-C")
            _watch(state, say)
        except KeyboardInterrupt:
            if not up:
                raise
        finally:
            # Not where another stack lives in the folder, which is why ours did not start.
            if up or not others:
                stop_stack(state, say=say)


def _watch(state: Path, say: Say) -> None:
    told: set[int] = set()
    while (state / "stack.json").exists():
        for record in processes.read_all(state):
            if record.pid not in told and not processes.is_running(record):
                told.add(record.pid)
                say(f"{record.name} (pid {record.pid}) ended; log: {record.log}")
        time.sleep(_WATCH_SECONDS)


def _start(
    state: Path,
    kind: str | None,
    port_base: int,
    config: Path,
    application: Application,
    replicas: int | Mapping[str, int],
    lab: Lab,
    partitions: int | None,
    say: Say,
) -> Stack:
    count = _partitions(partitions)
    ports = plan_ports(port_base, replica_counts(replicas))
    made = load_secrets(state, application)
    engine = engines.start(state, kind, say=say)
    say(f"topology: declaring {count} partitions")
    _declare(engine, count)
    planned = plan_processes(state, config, application, engine, ports, made, count, lab)
    records = [_spawn(state, one) for one in planned]
    _await_ready(records, say)
    stack = _describe(state, config, application, engine, count, planned, made)
    _write(stack)
    say(f"stack: ready in {state}")
    return stack


def load_checked(config: Path, engine: str | None, lab: Lab) -> Application:
    """The application, once everything is looked at that would end a service at its start and can be seen before.

    Raises PlanError with every fault, ApplicationError for a file that cannot be read or is wrong.
    """
    if engine is not None and engine not in engines.KINDS:
        raise PlanError(f"unknown engine {engine!r}: one of {', '.join(engines.KINDS)}")
    application = load_application(config)
    if faults := application_faults(config, application, lab):
        raise ApplicationError(str(config), faults)
    return application


def _spawn_again(state: Path, name: str) -> None:
    record = _record(state, name)
    if processes.is_running(record):
        raise StackError(f"{name} runs already (pid {record.pid})")
    log, cwd = Path(record.log), Path(record.cwd)
    again = processes.spawn(state, name, record.argv, record.env, log=log, url=record.url, cwd=cwd)
    _await_ready([again], silent)


def _spawn(state: Path, planned: Planned) -> Record:
    log = state / "logs" / f"{planned.name}.log"
    return processes.spawn(state, planned.name, planned.argv, planned.env, log=log, url=planned.url)


def _partitions(given: int | None) -> int:
    text = os.environ.get("TURNKEEPER_PARTITIONS") or str(DEFAULT_PARTITIONS)
    if given is None and not text.isdigit():
        raise PlanError(f"TURNKEEPER_PARTITIONS is {text!r}: give a number from 1 to 100")
    count = int(text) if given is None else given
    if not 1 <= count <= 100:
        raise PlanError(f"{count} partitions are not possible: give a number from 1 to 100")
    return count


def _declare(engine: Engine, partitions: int) -> None:
    try:
        age = checked_age(os.environ.get("TURNKEEPER_ARCHIVE_MAX_AGE", ""))
        _run_apart(topology.declare(engine.amqp_url, Topology(engine.namespace, partitions, age), _RECOVERY_SECONDS))
    except ValueError as error:
        raise StackError(str(error)) from error
    except Exception as error:  # whatever the broker refused: the client has many kinds of errors
        raise StackError(f"cannot declare the topology on RabbitMQ: {type(error).__name__}: {error}") from error


def _run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own, so that callers with an event loop can start stacks too."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def _await_ready(records: Sequence[Record], say: Say) -> None:
    """Wait until each says that it is ready. Raises StackError for all that ended, or that did not in time."""
    deadline = time.monotonic() + _READY_SECONDS
    waiting = {record.name: (record, "") for record in records}
    ended: list[Record] = []
    while waiting and time.monotonic() <= deadline:
        for record, _ in list(waiting.values()):
            fault = _ready_fault(record)
            if fault is None:
                say(f"{record.name}: ready at {record.url} (pid {record.pid})")
                del waiting[record.name]
            elif not processes.is_running(record):
                ended.append(record)
                deadline = min(deadline, time.monotonic() + _LAST_WORDS_SECONDS)
                del waiting[record.name]
            else:
                waiting[record.name] = (record, fault)
        if waiting:
            time.sleep(_POLL_SECONDS)
    if ended:
        raise _failed([(record, "ended at its start") for record in ended])
    if waiting:
        late = f"is not ready after {_READY_SECONDS:.0f} s"
        raise _failed([(record, f"{late}: {fault}") for record, fault in waiting.values()])


def _failed(wrong: Sequence[tuple[Record, str]]) -> StackError:
    texts = [f"{one.name} {what}; its log {one.log} says:\n{processes.last_lines(one)}" for one, what in wrong]
    taken = any(_PORT_TAKEN in processes.logged(one).lower() for one, _ in wrong)
    return (PortTakenError if taken else StackError)("\n".join(texts))


def _ready_fault(record: Record) -> str | None:
    """Why a process is not ready, in its own words where it has any; None when it is."""
    parts = urlsplit(record.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"no answer ({error})"
    finally:
        connection.close()
    return None if answer.status == 200 else f"{answer.status} {body}"


def _refuse_second(state: Path) -> None:
    if not (state / "stack.json").exists():
        return
    alive = sorted(name for name, runs in running(state).items() if runs)
    if alive:
        raise StackError(f"a stack runs in {state} ({', '.join(alive)}): stop it with turnkeeper down --state {state}")


def _stop(state: Path, say: Say) -> None:
    records = [record for record in processes.read_all(state) if record.name not in (*engines.SERVERS, "epmd")]
    services = [record for record in records if record.name != SANDBOX]
    for record in records:
        processes.send(record, signal.SIGCONT)  # one that was paused cannot end in good order
    if any(processes.is_running(record) for record in records):
        say("stack: stopping the services")
    processes.end(services, grace=_GRACE_SECONDS)
    # Last, so that what the services still hand off finds its destination.
    processes.end([record for record in records if record.name == SANDBOX], grace=_GRACE_SECONDS)
    if engines.kind_of(state) is not None:
        say("stack: stopping the engine")
    engines.stop(state)
    for record in records:
        processes.forget(state, record.name)
    (state / "stack.json").unlink(missing_ok=True)


def _record(state: Path, name: str) -> Record:
    record = processes.read(state, name)
    if record is None:
        known = ", ".join(sorted(found.name for found in processes.read_all(state))) or "none"
        raise StackError(f"no process {name!r} in {state}; there are: {known}")
    return record


def _describe(
    state: Path,
    config: Path,
    application: Application,
    engine: Engine,
    partitions: int,
    planned: Sequence[Planned],
    made: Secrets,
) -> Stack:
    sandbox = next((one.url for one in planned if one.name == SANDBOX), None)
    return Stack(
        state=state,
        engine=engine.kind,
        redis_url=engine.redis_url,
        amqp_url=engine.amqp_url,
        namespace=engine.namespace,
        partitions=partitions,
        config=config,
        urls={service: [one.url for one in planned if one.name.rpartition("-")[0] == service] for service in SERVICES},
        sandbox_url=sandbox,
        sandbox_log=state / "sandbox.jsonl" if sandbox else None,
        user_token_secret=made.user_token_secret,
        operator_token=made.operator_token,
        source_secrets=made.sources,
        pids={record.name: record.pid for record in processes.read_all(state)},
    )


def _write(stack: Stack) -> None:
    fields = asdict(stack)
    for name in ("state", "config", "sandbox_log"):
        fields[name] = str(fields[name]) if fields[name] else None
    for service in SERVICES:
        fields[f"{service}_url"] = stack.url(service)
    processes.write_private(stack.state / "stack.json", json.dumps(fields, indent=1) + "\n")


def _from_fields(fields: Mapping[str, Any]) -> Stack:
    known = {name: fields[name] for name in Stack.__dataclass_fields__}
    for name in ("state", "config", "sandbox_log"):
        known[name] = Path(known[name]) if known[name] else None
    return Stack(**known)


def _note_pids(state: Path) -> None:
    """Write the pids of today into `stack.json`."""
    fields = json.loads((state / "stack.json").read_text())
    fields["pids"] = {record.name: record.pid for record in processes.read_all(state)}
    processes.write_private(state / "stack.json", json.dumps(fields, indent=1) + "\n")


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    """One command at a time may start or stop a stack. Raises StackError if another one does not come to an end."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with (state / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StackError(f"another command is still starting or stopping {state}") from None
                time.sleep(_POLL_SECONDS)
        yield


@contextlib.contextmanager
def _as_stack_error() -> Iterator[None]:
    """Give callers one kind of error to show."""
    try:
        yield
    except (EngineError, ProcessError, PlanError, ApplicationError) as error:
        raise StackError(str(error)) from error

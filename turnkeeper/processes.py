"""Processes that a state folder owns: started in their own session, recorded on disk, ended by pid and start time.

Whoever calls `stop_all` later need not be whoever started them: the record files say what runs, and a mark in each
process's environment finds what a parent that was killed had no time to record.
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

MARK = "TURNKEEPER_STARTED_IN"
"""Environment variable that every process of a stack carries; its value is the state folder's real path."""

OPEN_FILES = 65_536
_POLL_SECONDS = 0.05
_ERROR = re.compile(r'"level":\s*"(?:error|critical)"')
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Handles of our own children, kept so that their end is reaped and does not look like a running process."""


class ProcessError(Exception):
    """A process could not be started or ended. The text is one line and says what to do next."""


@dataclass(frozen=True)
class Record:
    """One process of a state folder: how it was started, and which process that became."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    log: str
    pid: int
    started: int
    """Start time in clock ticks after boot (`/proc/PID/stat`, field 22): with the boot id it makes a pid unique."""
    boot: str
    cwd: str
    url: str = field(default="", repr=False)
    log_from: int = 0
    """Where in the log this process begins, bytes: what stands before it others wrote."""


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may read, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner alone: a reader sees the old text or the new."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def allow_more_open_files() -> None:
    """Raise our soft limit of open files, which children inherit, as far as the hard limit allows.

    The usual 1024 is too few: every quorum queue takes file handles from RabbitMQ's share, and when that is used up
    it lets new connections wait for ever, without a word in its log (RabbitMQ 3.10.8).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def spawn(
    state: Path,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    log: Path,
    url: str = "",
    cwd: Path | None = None,
) -> Record:
    """Start `argv` in a session of its own, output appended to `log`, and record it as `name`.

    `cwd` is the folder in which it works, ours unless given.
    A session of its own keeps the terminal's Ctrl-C away from it: whoever started the stack ends it in order.
    Raises ProcessError if the program is missing or may not be run.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    run = private_folder(state / "run")  # before the process, so that whoever stops the stack looks for it
    allow_more_open_files()
    marked = {**env, MARK: mark_of(state)}
    folder = str(cwd or Path.cwd())
    with log.open("ab") as output:
        log_from = output.seek(0, os.SEEK_END)
        try:
            child = subprocess.Popen(
                list(argv),
                env=marked,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(f"cannot start {name}: {argv[0]}: {error.strerror}") from error
    _children[child.pid] = child
    started = _start_time(child.pid) or 0
    record = Record(name, tuple(argv), dict(env), str(log), child.pid, started, _boot_id(), folder, url, log_from)
    write_private(run / f"{name}.json", json.dumps(asdict(record)))
    return record


def read(state: Path, name: str) -> Record | None:
    """The record of `name` in this state folder, or None."""
    try:
        fields = json.loads((state / "run" / f"{name}.json").read_text())
        return Record(**{**fields, "argv": tuple(fields["argv"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # absent, or cut short by a crash: the mark finds its process


def read_all(state: Path) -> list[Record]:
    """All records of this state folder, in order of start."""
    records = [read(state, path.stem) for path in (state / "run").glob("*.json")]
    return sorted((record for record in records if record), key=lambda record: (record.started, record.pid))


def forget(state: Path, name: str) -> None:
    """Remove the record of `name`."""
    (state / "run" / f"{name}.json").unlink(missing_ok=True)


def is_running(record: Record) -> bool:
    """Whether this very process still runs: its pid, with the same start time, in the same boot."""
    return record.boot == _boot_id() and _start_time(record.pid) == record.started


def send(record: Record, number: int) -> bool:
    """Send a signal to this very process; False if it is gone. Never reaches another process with its pid."""
    if not is_running(record):
        return False
    return _signal_exactly(record.pid, record.started, number)


def wait_gone(records: Iterable[Record], seconds: float) -> list[Record]:
    """Wait up to `seconds` for the processes to end; those that still run."""
    deadline = time.monotonic() + seconds
    left = [record for record in records if is_running(record)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        left = [record for record in left if is_running(record)]
    return left


def end(records: Sequence[Record], *, grace: float) -> None:
    """Ask the processes to end, and kill those that have not within `grace` seconds."""
    for record in records:
        send(record, signal.SIGTERM)
    stubborn = wait_gone(records, grace)
    for record in stubborn:
        send(record, signal.SIGKILL)
    if left := wait_gone(stubborn, 10):
        raise ProcessError(f"{left[0].name} (pid {left[0].pid}) does not end")


def sweep(state: Path) -> list[int]:
    """Kill everything that carries this state folder's mark, until nothing does; the pids.

    It finds what no record names: helpers of the servers, and what was started just before its parent was killed.
    """
    swept: list[int] = []
    for _ in range(100):
        found = marked(state)
        if not found:
            return swept
        for pid in found:
            started = _start_time(pid)
            if started is not None and _signal_exactly(pid, started, signal.SIGKILL):
                swept.append(pid)
        time.sleep(_POLL_SECONDS)
    raise ProcessError(f"processes of {state} do not end: {marked(state)}")


def marked(state: Path) -> list[int]:
    """Pids of the running processes that were started in this state folder, ourselves left out."""
    wanted = f"{MARK}={mark_of(state)}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            environment = (entry / "environ").read_bytes()
            if wanted in environment.split(b"\0") and _start_time(int(entry.name)) is not None:
                found.append(int(entry.name))
    return found


def mark_of(state: Path) -> str:
    """What the mark's value is for this state folder."""
    return str(state.resolve())


def logged(record: Record) -> str:
    """What a process wrote to its log since it was started."""
    try:
        with Path(record.log).open("rb") as file:
            file.seek(record.log_from)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(record: Record, count: int = 20) -> str:
    """Why a process failed, as its log says since its start: its own last word (`turnkeeper NAME: …`) where it had
    one, else its last error, else its last lines."""
    lines = logged(record).splitlines()
    own = [number for number, line in enumerate(lines) if line.startswith("turnkeeper ")]
    if own:
        return "\n".join(lines[own[-1] :][:count])
    errors = [line for line in lines if _ERROR.search(line)]
    if errors and not any(line.startswith("Traceback ") for line in lines):
        return errors[-1]
    return "\n".join(lines[-count:]) or "(nothing in the log)"


def has_proc() -> bool:
    """Whether this system tells about processes as Linux does."""
    return Path("/proc/self/stat").exists()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _start_time(pid: int) -> int | None:
    """Start time of a running process; None if it is gone or only waits to be reaped."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
    try:
        # The name in parentheses may hold spaces and parentheses itself: fields are counted from the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _signal_exactly(pid: int, started: int, number: int) -> bool:
    """Signal a pid, holding it by descriptor while its start time is checked, so that it cannot be another's."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if _start_time(pid) != started:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True

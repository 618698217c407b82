"""Private `redis-server` and `rabbitmq-server` processes in a state folder, on free loopback ports.

They run as the current user and touch nothing of the machine's own servers: data, logs, cookie, configuration and the
Erlang port mapper (`epmd`) are the state folder's. Data, ports and passwords stay in the folder, so that a stack that
is started there again goes on where it stopped.
"""

import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from libs.contracts import rights
from libs.contracts.topology import BROKER_USERS
from turnkeeper import processes
from turnkeeper.engines import probe
from turnkeeper.engines.base import SERVERS, Engine, EngineError, EngineUnavailable, Say, Server, login_url, silent
from turnkeeper.ports import free_port, is_free
from turnkeeper.processes import Record

INSTALL = "apt-get install -y --no-install-recommends redis-server rabbitmq-server"
_SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_RABBITMQ_HOMES = ("/usr/lib/rabbitmq/lib", "/opt/rabbitmq", "/usr/local/lib/rabbitmq/lib")
_EPMD = "epmd"
_NODE = "tk@localhost"
_ADMIN = "turnkeeper"
"""Of the broker; the stack's owner has its password and declares the topology with it, no service does."""
_REDIS_SECONDS = 30
_RABBITMQ_SECONDS = 120
_GRACE_SECONDS = 15
_ATTEMPTS = 3
_PASSWORD = re.compile(r"[A-Za-z0-9_-]*")
_PORT_TAKEN = ("in use", "eaddrinuse")


@dataclass(frozen=True)
class Programs:
    """Paths of what we start."""

    redis: str
    rabbitmq: str
    epmd: str


@dataclass(frozen=True)
class Settings:
    """Ports and password of one state folder's servers, kept in it."""

    redis_port: int
    amqp_port: int
    epmd_port: int
    distribution_port: int
    password: str = field(repr=False)
    logins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords of the users with few rights, by `redis_<user>` and `rabbitmq_<user>`."""
    namespace: str = ""
    """Whose keys and queues these users may touch: the stack's own, or `rights.ANY_NAMESPACE`."""

    @property
    def redis_url(self) -> str:
        """URL of Redis; without a password if there is none."""
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.redis_port}/0"

    @property
    def amqp_url(self) -> str:
        """URL of RabbitMQ's default virtual host."""
        return f"amqp://{_ADMIN}:{self.broker_password}@127.0.0.1:{self.amqp_port}/"

    @property
    def broker_password(self) -> str:
        """Of the broker's administrator."""
        return self.password or _ADMIN

    @property
    def redis_logins(self) -> Mapping[str, str]:
        """URL of Redis by user."""
        return {user: login_url(self.redis_url, user, self.logins[f"redis_{user}"]) for user in rights.REDIS_USERS}

    @property
    def amqp_logins(self) -> Mapping[str, str]:
        """URL of RabbitMQ by user."""
        return {user: login_url(self.amqp_url, user, self.logins[f"rabbitmq_{user}"]) for user in BROKER_USERS}


def find_programs(servers: Sequence[Server] = SERVERS) -> Programs:
    """Find the servers' programs. Raises EngineUnavailable, saying in one line what to install."""
    if not processes.has_proc():
        raise EngineUnavailable("engine local needs Linux: use --engine docker or external")
    redis, rabbitmq, epmd = _which("redis-server"), _rabbitmq_server(), _epmd()
    missing = [
        *(["redis-server"] if "redis" in servers and not redis else []),
        *(["rabbitmq-server"] if "rabbitmq" in servers and not (rabbitmq and epmd) else []),
    ]
    if missing:
        raise EngineUnavailable(f"engine local: no {' and '.join(missing)} here; install with: {INSTALL}")
    return Programs(redis or "", rabbitmq or "", epmd or "")


def start(state: Path, *, say: Say = silent, password: str | None = None, namespace: str = "") -> Engine:
    """Start both servers in `state` and wait until they serve.

    `password` is drawn at the folder's first start unless given; empty means Redis without one. It is the stack
    owner's; each service has a login of its own, with the rights of `libs.contracts.rights` in `namespace`.
    Raises EngineUnavailable if a program is missing, EngineError with the last log lines if a server does not come up.
    """
    return _start(state, SERVERS, say, password, namespace)


def start_redis(state: Path, *, say: Say = silent, password: str | None = None, namespace: str = "") -> str:
    """Start Redis alone in `state`; its URL. Raises as `start`."""
    return _start(state, ("redis",), say, password, namespace).redis_url


def start_rabbitmq(state: Path, *, say: Say = silent, password: str | None = None, namespace: str = "") -> str:
    """Start RabbitMQ alone in `state`; its URL. Raises as `start`."""
    return _start(state, ("rabbitmq",), say, password, namespace).amqp_url


def stop(state: Path) -> None:
    """End everything that was started in `state`, by whomever. Data, ports and passwords stay."""
    records = [record for name in ("rabbitmq", "redis", _EPMD) if (record := processes.read(state, name))]
    servers = [record for record in records if record.name != _EPMD]
    for record in servers:
        processes.send(record, signal.SIGCONT)  # one that was paused cannot end in good order
    processes.end(servers, grace=_GRACE_SECONDS)
    processes.end([record for record in records if record.name == _EPMD], grace=2)
    processes.sweep(state)
    for name in (*SERVERS, _EPMD):
        processes.forget(state, name)


def kill(state: Path, server: Server, number: int = signal.SIGKILL) -> None:
    """Send one server a signal; after SIGKILL it is gone when this returns. Raises EngineError if it does not run."""
    record = processes.read(state, server)
    if record is None or not processes.send(record, number):
        raise EngineError(f"{server} does not run in {state}")
    if number == signal.SIGKILL and processes.wait_gone([record], 10):
        raise EngineError(f"{server} (pid {record.pid}) does not end")


def restart(state: Path, server: Server, *, say: Say = silent) -> None:
    """Start one server again, on its ports and with its data; ended in good order first if it still runs."""
    settings = _load(state)
    if settings is None:
        raise EngineError(f"no local engine was started in {state}")
    settings = replace(settings, logins=_logins(settings))
    if record := processes.read(state, server):
        processes.end([record], grace=_GRACE_SECONDS)
    programs = find_programs((server,))
    _spawn(state, server, programs, settings)
    _await(state, server, settings, say)


def _start(state: Path, servers: Sequence[Server], say: Say, password: str | None, namespace: str) -> Engine:
    programs = find_programs(servers)
    for server in servers:
        record = processes.read(state, server)
        if record and processes.is_running(record):
            raise EngineError(f"{server} already runs in {state}: stop it first (turnkeeper down)")
    processes.private_folder(state)
    for attempt in range(1, _ATTEMPTS + 1):
        settings = _prepare(state, servers, password, namespace)
        try:
            return _start_once(state, servers, programs, settings, say)
        except EngineError as error:
            # Between choosing a port and binding it another process may have taken it: choose again.
            if attempt == _ATTEMPTS or not any(sign in str(error).lower() for sign in _PORT_TAKEN):
                raise
            say("engine: a port was taken meanwhile, trying others")
    raise AssertionError("unreachable")


def _start_once(state: Path, servers: Sequence[Server], programs: Programs, settings: Settings, say: Say) -> Engine:
    say(f"engine: local, in {state}")
    started: list[Record] = []
    try:
        for server in servers:
            started.append(_spawn(state, server, programs, settings))
        for server in servers:
            _await(state, server, settings, say)
    except BaseException:
        # What came up is ended again; another server of this folder is left as it was.
        if "rabbitmq" in servers and (epmd := processes.read(state, _EPMD)):
            started.append(epmd)
        processes.end(started, grace=2)
        raise
    pids = {record.name: record.pid for record in processes.read_all(state) if record.name in (*SERVERS, _EPMD)}
    return _engine(settings, pids)


def engine_of(state: Path) -> Engine:
    """The engine of a folder in which servers were started. Raises EngineError where none was."""
    settings = _load(state)
    if settings is None:
        raise EngineError(f"no local engine was started in {state}")
    return _engine(settings, {})


def _engine(settings: Settings, pids: Mapping[str, int]) -> Engine:
    return Engine(
        redis_url=settings.redis_url,
        amqp_url=settings.amqp_url,
        kind="local",
        pids=pids,
        redis_logins=settings.redis_logins,
        amqp_logins=settings.amqp_logins,
    )


def _prepare(state: Path, servers: Sequence[Server], password: str | None, namespace: str = "") -> Settings:
    """The folder's settings, with other ports for servers to be started whose former ones are taken."""
    settings = _load(state)
    if settings is None:
        drawn = secrets.token_urlsafe(24) if password is None else password
        if not _PASSWORD.fullmatch(drawn):
            raise EngineError("engine local: a password may have letters, digits, '-' and '_' only")
        settings = Settings(free_port(), free_port(), free_port(), free_port(), drawn)
    mine = {"redis": ["redis_port"], "rabbitmq": ["amqp_port", "distribution_port"]}
    names = [name for server in servers for name in mine[server]]
    epmd = processes.read(state, _EPMD)
    if "rabbitmq" in servers and not (epmd and processes.is_running(epmd)):
        names.append("epmd_port")
    moved = {name: free_port() for name in names if not is_free(getattr(settings, name))}
    settings = Settings(**{**asdict(settings), **moved})
    settings = replace(settings, logins=_logins(settings), namespace=namespace)
    processes.write_private(_settings_file(state), json.dumps(asdict(settings)))
    return settings


def _logins(settings: Settings) -> dict[str, str]:
    """A password for each login, also those that a later version added to a folder of an earlier one."""
    return {name: settings.logins.get(name) or secrets.token_urlsafe(24) for name in rights.login_names()}


def _load(state: Path) -> Settings | None:
    try:
        return Settings(**json.loads(_settings_file(state).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise EngineError(f"cannot read {_settings_file(state)}: {error}; remove the folder to begin anew") from error


def _settings_file(state: Path) -> Path:
    return state / "local.json"


def _spawn(state: Path, server: Server, programs: Programs, settings: Settings) -> Record:
    log = state / "logs" / f"{server}.log"
    log.unlink(missing_ok=True)  # what failed at an earlier start must not be read as today's
    # Erlang does not start in a folder that it may not read, as when root's shell became another user.
    cwd = processes.private_folder(state / "home")
    if server == "redis":
        argv, env = _redis(state, programs, settings)
        return processes.spawn(state, "redis", argv, env, log=log, url=settings.redis_url, cwd=cwd)
    _ensure_epmd(state, programs, settings)
    argv, env = _rabbitmq(state, programs, settings)
    return processes.spawn(state, "rabbitmq", argv, env, log=log, url=settings.amqp_url, cwd=cwd)


def _await(state: Path, server: Server, settings: Settings, say: Say) -> None:
    record = processes.read(state, server)
    assert record is not None  # noqa: S101 - written by _spawn just before
    ask = {
        "redis": lambda: probe.redis_fault(settings.redis_url),
        "rabbitmq": lambda: probe.rabbitmq_fault(settings.amqp_url),
    }[server]
    seconds = {"redis": _REDIS_SECONDS, "rabbitmq": _RABBITMQ_SECONDS}[server]
    fault = probe.wait_for(ask, seconds, lambda: processes.is_running(record))
    # A port that answers proves nothing if our process is gone: then it is another's.
    if fault is None and processes.is_running(record):
        say(f"engine: {server} serves at {probe.place(record.url)} (pid {record.pid})")
        return
    what = fault if processes.is_running(record) else f"{server} ended at its start"
    raise EngineError(f"engine local: {what}; its last log lines:\n{processes.last_lines(record)}")


def _redis(state: Path, programs: Programs, settings: Settings) -> tuple[list[str], Mapping[str, str]]:
    folder = processes.private_folder(state / "redis")
    configuration, acl = folder / "redis.conf", folder / "users.acl"
    owner = f"on #{rights.redis_digest(settings.password)}" if settings.password else "on nopass"
    processes.write_private(acl, rights.redis_acl_file(settings.logins, settings.namespace, default=owner))
    lines = [
        "bind 127.0.0.1",
        f"port {settings.redis_port}",
        f"dir {json.dumps(str(folder.resolve()))}",
        "appendonly yes",
        "appendfsync always",
        "maxmemory-policy noeviction",
        'save ""',
        "daemonize no",
        "set-proc-title no",  # the command line keeps naming the state folder
        f"aclfile {json.dumps(str(acl.resolve()))}",
    ]
    processes.write_private(configuration, "\n".join(lines) + "\n")
    return [programs.redis, str(configuration.resolve())], _environment(state)


def _rabbitmq(state: Path, programs: Programs, settings: Settings) -> tuple[list[str], Mapping[str, str]]:
    folder = processes.private_folder(state / "rabbitmq").resolve()
    (folder / "enabled_plugins").write_text("[].\n")
    definitions = folder / "definitions.json"
    users = rights.broker_users(settings.logins, settings.namespace, (_ADMIN, settings.broker_password))
    processes.write_private(definitions, json.dumps(users))
    lines = [
        f"listeners.tcp.1 = 127.0.0.1:{settings.amqp_port}",
        # With definitions to load there is neither the user guest nor any other of the server's own.
        f"load_definitions = {definitions}",
        "heartbeat = 5",
    ]
    processes.write_private(folder / "rabbitmq.conf", "\n".join(lines) + "\n")
    # Busy waiting of the Erlang schedulers would take the cores from the services that share them.
    erlang = "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
    env = {
        **_environment(state),
        "ERL_EPMD_PORT": str(settings.epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": _NODE,
        "RABBITMQ_NODE_PORT": str(settings.amqp_port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(settings.distribution_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),  # else where the command was typed
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        # Named so that the machine's own files in /etc/rabbitmq are not read.
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang,
        # Without a shell in between, so that the process we know is the server itself.
        "RABBITMQ_ALLOW_INPUT": "1",
    }
    return [programs.rabbitmq, "-noinput"], env


def _ensure_epmd(state: Path, programs: Programs, settings: Settings) -> None:
    """Run our own port mapper: the one that Erlang would start by itself outlives the server, unrecorded."""
    record = processes.read(state, _EPMD)
    if record and processes.is_running(record):
        return
    argv = [programs.epmd, "-address", "127.0.0.1", "-port", str(settings.epmd_port)]
    log = state / "logs" / "epmd.log"
    processes.spawn(state, _EPMD, argv, _environment(state), log=log, cwd=state / "home")


def _environment(state: Path) -> Mapping[str, str]:
    """Nothing of the caller's settings for Redis, RabbitMQ or Erlang may reach our servers."""
    home = processes.private_folder(state / "home")
    return {
        "PATH": os.pathsep.join(_search_path()),
        "HOME": str(home.resolve()),
        "LANG": "C.UTF-8",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108 - only where the caller names none
    }


def _search_path() -> list[str]:
    given = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    return given + [folder for folder in _SEARCH if folder not in given]


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join(_search_path()))


def _rabbitmq_server() -> str | None:
    """The server's own script: Debian's wrapper refuses ordinary users, and for root it becomes another user."""
    for home in _RABBITMQ_HOMES:
        found = sorted(Path(home).glob("rabbitmq_server-*/sbin/rabbitmq-server"), key=_version_in_path)
        if found:
            return str(found[-1])
    return None


def _version_in_path(script: Path) -> list[int]:
    version = script.parts[-3].partition("-")[2]
    return [int(part) for part in version.split(".") if part.isdigit()]


def _epmd() -> str | None:
    if found := _which("epmd"):
        return found
    within = sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))
    return str(within[-1]) if within else None

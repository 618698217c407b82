"""Redis and RabbitMQ in two containers, published on loopback, named after the state folder, removed at stop."""

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from libs.contracts import rights
from libs.contracts.topology import BROKER_USERS
from turnkeeper import processes
from turnkeeper.engines import probe
from turnkeeper.engines.base import SERVERS, Engine, EngineError, EngineUnavailable, Say, Server, login_url, silent
from turnkeeper.ports import free_port

IMAGE_VARIABLES: Mapping[Server, str] = {"redis": "TURNKEEPER_REDIS_IMAGE", "rabbitmq": "TURNKEEPER_RABBITMQ_IMAGE"}
_DEFAULT_IMAGES: Mapping[Server, str] = {"redis": "redis:8", "rabbitmq": "rabbitmq:4"}
_INNER_PORTS: Mapping[Server, int] = {"redis": 6379, "rabbitmq": 5672}
_ANSWER_SECONDS = 5
_PULL_AT_ONCE_SECONDS = 30
_PULL_SECONDS = 600
_RUN_SECONDS = 60
_SERVE_SECONDS = 90
_LABEL = "turnkeeper.state"

# What the servers read comes by environment and holds passwords as hashes only: `docker inspect` shows it.
_REDIS_COMMAND = (
    "umask 077; printf '%s' \"$TURNKEEPER_ACL\" > /tmp/users.acl; "
    "exec redis-server --aclfile /tmp/users.acl --port 6379 --protected-mode no --save '' "
    "--appendonly yes --appendfsync always --maxmemory-policy noeviction"
)
_RABBITMQ_COMMAND = (
    "umask 022; printf '%s' \"$TURNKEEPER_DEFINITIONS\" > /tmp/definitions.json; "
    "echo 'load_definitions = /tmp/definitions.json' > /tmp/rabbitmq.conf; "
    "export RABBITMQ_CONFIG_FILE=/tmp/rabbitmq.conf; "
    # the official image's entry point gives up root; another image is not root to begin with
    "if command -v docker-entrypoint.sh >/dev/null; then exec docker-entrypoint.sh rabbitmq-server; fi; "
    "exec rabbitmq-server"
)
_ADMIN = "turnkeeper"


@dataclass(frozen=True)
class Settings:
    """Ports on loopback and password of one state folder's containers."""

    redis_port: int
    amqp_port: int
    password: str = field(repr=False)
    """Of the stack's owner, at both servers."""
    logins: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords of the users with few rights, by `redis_<user>` and `rabbitmq_<user>`."""

    @property
    def urls(self) -> Mapping[Server, str]:
        """URL of each server."""
        return {
            "redis": f"redis://:{self.password}@127.0.0.1:{self.redis_port}/0",
            "rabbitmq": f"amqp://{_ADMIN}:{self.password}@127.0.0.1:{self.amqp_port}/",
        }


def image(server: Server) -> str:
    """The image to use, by variable or default."""
    return os.environ.get(IMAGE_VARIABLES[server]) or _DEFAULT_IMAGES[server]


def check(*, at_once: bool) -> None:
    """Make sure that an engine answers and both images are here, pulling them if need be.

    With `at_once` a pull may take only a moment. Raises EngineUnavailable, saying in one line what is missing.
    """
    if shutil.which("docker") is None:
        raise EngineUnavailable("engine docker: no docker command here")
    answer = _try(["version", "--format", "{{.Server.Version}}"], _ANSWER_SECONDS)
    if answer is None or answer.returncode != 0:
        raise EngineUnavailable("engine docker: no container engine answers (docker version)")
    for server in SERVERS:
        _need_image(image(server), _PULL_AT_ONCE_SECONDS if at_once else _PULL_SECONDS)


def start(state: Path, *, say: Say = silent, at_once: bool = False) -> Engine:
    """Start both containers and wait until they serve.

    Raises EngineUnavailable if no engine or image is there, EngineError with the last log lines if a server does not
    come up; the containers are removed then.
    """
    check(at_once=at_once)
    if running := [server for server in SERVERS if _is_running(state, server)]:
        raise EngineError(f"{running[0]} already runs for {state}: stop it first (turnkeeper down)")
    stop(state)
    logins = {name: secrets.token_urlsafe(24) for name in rights.login_names()}
    settings = Settings(free_port(), free_port(), secrets.token_urlsafe(24), logins)
    processes.write_private(_settings_file(processes.private_folder(state)), json.dumps(asdict(settings)))
    try:
        for server in SERVERS:
            say(f"engine: docker, {image(server)} as {container(state, server)}")
            _run(state, server, settings)
        for server in SERVERS:
            _await(state, server, settings, say)
    except BaseException:
        stop(state)
        raise
    redis, rabbitmq = settings.urls["redis"], settings.urls["rabbitmq"]
    return Engine(
        redis_url=redis,
        amqp_url=rabbitmq,
        kind="docker",
        redis_logins={user: login_url(redis, user, logins[f"redis_{user}"]) for user in rights.REDIS_USERS},
        amqp_logins={user: login_url(rabbitmq, user, logins[f"rabbitmq_{user}"]) for user in BROKER_USERS},
    )


def stop(state: Path) -> None:
    """Remove this state folder's containers with their data. Raises EngineError if the engine refuses."""
    for server in SERVERS:
        done = _try(["rm", "--force", "--volumes", container(state, server)], _RUN_SECONDS)
        if done is None or (done.returncode != 0 and "no such container" not in done.stderr.lower()):
            raise EngineError(f"engine docker: cannot remove {container(state, server)}: {_why(done)}")
    _settings_file(state).unlink(missing_ok=True)


def was_started(state: Path) -> bool:
    """Whether containers of this state folder may exist, even if starting them was cut short."""
    return _settings_file(state).exists()


def kill(state: Path, server: Server, number: int = signal.SIGKILL) -> None:
    """Send one server a signal; after SIGKILL it is gone when this returns, its container and data stay.

    Raises EngineError if it does not run.
    """
    _must(["kill", "--signal", signal.Signals(number).name, container(state, server)], _RUN_SECONDS)
    if number == signal.SIGKILL:
        _must(["wait", container(state, server)], _RUN_SECONDS)


def restart(state: Path, server: Server, *, say: Say = silent) -> None:
    """Start one server again, on its port and with its data; ended in good order first if it still runs."""
    try:
        settings = Settings(**json.loads(_settings_file(state).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise EngineError(f"no docker engine was started in {state}") from error
    _must(["restart", "--time", "15", container(state, server)], _RUN_SECONDS)
    _await(state, server, settings, say)


def container(state: Path, server: Server) -> str:
    """Name of a state folder's container."""
    return f"turnkeeper-{hashlib.sha256(processes.mark_of(state).encode()).hexdigest()[:12]}-{server}"


def _run(state: Path, server: Server, settings: Settings) -> None:
    port = {"redis": settings.redis_port, "rabbitmq": settings.amqp_port}[server]
    common = ["run", "--detach", "--name", container(state, server)]
    common += ["--label", f"{_LABEL}={processes.mark_of(state)}"]
    common += ["--publish", f"127.0.0.1:{port}:{_INNER_PORTS[server]}"]
    if server == "redis":
        owner = f"on #{rights.redis_digest(settings.password)}"
        users = {"TURNKEEPER_ACL": rights.redis_acl_file(settings.logins, "", default=owner)}
        _must([*common, "--env", "TURNKEEPER_ACL", image(server), "sh", "-c", _REDIS_COMMAND], _RUN_SECONDS, users)
        return
    # The broker names its data folder by the host name: a fixed one lets it find its data after a restart.
    definitions = rights.broker_users(settings.logins, "", (_ADMIN, settings.password))
    command = [*common, "--hostname", "tk", "--env", "TURNKEEPER_DEFINITIONS", image(server)]
    _must([*command, "sh", "-c", _RABBITMQ_COMMAND], _RUN_SECONDS, {"TURNKEEPER_DEFINITIONS": json.dumps(definitions)})


def _await(state: Path, server: Server, settings: Settings, say: Say) -> None:
    url = settings.urls[server]
    ask = {"redis": lambda: probe.redis_fault(url), "rabbitmq": lambda: probe.rabbitmq_fault(url)}[server]
    if fault := probe.wait_for(ask, _SERVE_SECONDS, lambda: _is_running(state, server)):
        logs = _try(["logs", "--tail", "20", container(state, server)], _ANSWER_SECONDS)
        lines = f"{logs.stdout}{logs.stderr}" if logs else ""
        raise EngineError(f"engine docker: {fault}; its last log lines:\n{lines}")
    say(f"engine: {server} serves at {probe.place(url)}")


def _need_image(name: str, pull_seconds: float) -> None:
    here = _try(["image", "inspect", name], _ANSWER_SECONDS)
    if here is not None and here.returncode == 0:
        return
    pulled = _try(["pull", "--quiet", name], pull_seconds)
    if pulled is None or pulled.returncode != 0:
        raise EngineUnavailable(f"engine docker: no image {name} here and cannot pull it: {_why(pulled)}")


def _is_running(state: Path, server: Server) -> bool:
    answer = _try(["inspect", "--format", "{{.State.Running}}", container(state, server)], _ANSWER_SECONDS)
    return answer is not None and answer.stdout.strip() == "true"


def _must(arguments: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> None:
    done = _try(arguments, seconds, env)
    if done is None or done.returncode != 0:
        raise EngineError(f"engine docker: docker {arguments[0]} failed: {_why(done)}")


def _try(
    arguments: Sequence[str], seconds: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run the docker command; None if it took longer than `seconds` or could not be run."""
    try:
        return subprocess.run(
            ["docker", *arguments],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None


def _why(done: subprocess.CompletedProcess[str] | None) -> str:
    if done is None:
        return "it took too long"
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _settings_file(state: Path) -> Path:
    return state / "docker.json"

"""One compose deployment as a person has it: secrets made, brought up, looked at from the host, taken down."""

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnkeeper.cli.secrets import init_secrets
from turnkeeper.client import Client
from turnkeeper.ports import free_port
from turnkeeper.target import find_target

ROOT = Path(__file__).parents[2]
APPLICATION = ROOT / "examples/dinner/turnkeeper.yaml"
SERVICES = ("ingress", "session-1", "session-2", "consent", "tools", "sandbox")
FRONT = {"ingress": "ingress", "session": "session-1", "consent": "consent", "tools": "tools"}
"""The replica of each service that the command line is pointed at."""
SECRET_FILES = {
    "TURNKEEPER_USER_TOKEN_SECRET_FILE": "user_token_secret",
    "TURNKEEPER_OPERATOR_TOKEN_FILE": "operator_token",
    "TURNKEEPER_AMQP_PASSWORD_FILE": "rabbitmq_publisher_password",
    "RESTAURANT_SECRET_FILE": "restaurant_secret",
}
PORTS = {
    "amqp": "TURNKEEPER_AMQP_PORT",
    "ingress": "TURNKEEPER_INGRESS_PORT",
    "session-1": "TURNKEEPER_SESSION_PORT",
    "session-2": "TURNKEEPER_SESSION_2_PORT",
    "consent": "TURNKEEPER_CONSENT_PORT",
    "tools": "TURNKEEPER_TOOLS_PORT",
    "session-3": "TURNKEEPER_SESSION_3_PORT",
    "prometheus": "TURNKEEPER_PROMETHEUS_PORT",
}


@dataclass(frozen=True)
class Deployment:
    """A compose project. `ports` are on 127.0.0.1; `secrets` is the folder that `turnkeeper secrets init` wrote."""

    project: str
    secrets: Path
    ports: Mapping[str, int]
    images: Mapping[str, str]
    files: Sequence[Path] = (ROOT / "docker-compose.yml", ROOT / "tests/compose/third-session.yml")

    @classmethod
    def prepare(cls, folder: Path) -> "Deployment":
        """Engine, images and secrets; nothing runs yet. Raises AssertionError with what a script said."""
        prepared = run([str(ROOT / "deploy/offline/prepare.sh")], within=900, show=True)
        images = dict(line.split("=", 1) for line in prepared.split())
        init_secrets(folder / "secrets", application=APPLICATION)
        name = f"tk-compose-test-{secrets.token_hex(3)}"
        ports = {service: free_port() for service in PORTS}
        return cls(name, folder / "secrets", ports, images | {"TURNKEEPER_IMAGE": "turnkeeper:compose-test"})

    def compose(self, *arguments: str, within: float = 60, stdin: str = "") -> str:
        """Run `docker compose ...` for this project; its stdout. Raises AssertionError with its stderr."""
        files = [part for file in self.files for part in ("--file", str(file))]
        command = ["docker", "compose", "--project-directory", str(ROOT), *files, *arguments]
        return run(command, within=within, environment=self.environment(), stdin=stdin)

    def environment(self) -> dict[str, str]:
        """What the compose file is told by variables."""
        published = {PORTS[service]: str(port) for service, port in self.ports.items()}
        own = {"COMPOSE_PROJECT_NAME": self.project, "TURNKEEPER_SECRETS": str(self.secrets)}
        return {**self.images, **published, **own}

    def cli(self, *arguments: str) -> str:
        """What `turnkeeper ...` prints when its environment tells where this deployment is."""
        command = str(Path(sys.executable).with_name("turnkeeper"))
        return run([command, *arguments], environment=self.outside())

    def client(self) -> Client:
        """The Python client, told by the same environment."""
        return Client(find_target(Path(self.outside()["TURNKEEPER_STATE"]), self.outside()))

    def outside(self) -> dict[str, str]:
        """What somebody on the host sets to use this deployment: its doors, and secrets as files."""
        urls = {f"TURNKEEPER_{name.upper()}_URL": self.url(port) for name, port in FRONT.items()}
        files = {variable: str(self.secrets / name) for variable, name in SECRET_FILES.items()}
        broker = f"amqp://publisher@127.0.0.1:{self.ports['amqp']}/"
        nowhere = str(self.secrets.parent / "no-stack-here")
        own = {"TURNKEEPER_AMQP_URL": broker, "TURNKEEPER_CONFIG": str(APPLICATION), "TURNKEEPER_STATE": nowhere}
        return {**urls, **files, **own}

    def secret(self, name: str) -> str:
        """The content of one secret file."""
        return (self.secrets / name).read_text().strip()

    def url(self, service: str, path: str = "") -> str:
        """Where a service answers on the host."""
        return f"http://127.0.0.1:{self.ports[service]}{path}"

    def amqp_url(self, user: str, password: str | None = None) -> str:
        """How a broker user connects from the host."""
        word = self.secret(f"rabbitmq_{user}_password") if password is None else password
        return f"amqp://{user}:{word}@127.0.0.1:{self.ports['amqp']}/"

    def get(self, service: str, path: str) -> str:
        """The body of a GET from the host."""
        with urllib.request.urlopen(self.url(service, path), timeout=10) as answer:
            return str(answer.read().decode())

    def effects(self) -> list[dict[str, Any]]:
        """What was really done, from the sandbox's own log. It is on the inner network alone: asked from inside."""
        ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8070/v1/log').read().decode())"
        entries: list[dict[str, Any]] = json.loads(self.compose("exec", "-T", "sandbox", "python", "-c", ask))[
            "entries"
        ]
        return entries

    def redis(self, user: str, *command: str) -> str:
        """What Redis answers one of its users."""
        shell = 'read -r REDISCLI_AUTH && export REDISCLI_AUTH && exec redis-cli --user "$@"'
        call = ("exec", "-T", "redis", "sh", "-c", shell, "sh", user, *command)
        return self.compose(*call, stdin=self.secret(f"redis_{user}_password") + "\n").strip()

    def redis_each(self, user: str, commands: Sequence[Sequence[str]]) -> list[str]:
        """What Redis answers one of its users to each of these commands, over one connection."""
        marks = [f"answered-{number}" for number in range(len(commands))]
        lines = [f"{shlex.join(command)}\nPING {mark}" for command, mark in zip(commands, marks, strict=True)]
        # What is left of the standard input after the password are redis-cli's commands.
        shell = 'read -r REDISCLI_AUTH && export REDISCLI_AUTH && exec redis-cli --user "$1"'
        stdin = "\n".join([self.secret(f"redis_{user}_password"), *lines, ""])
        said = self.compose("exec", "-T", "redis", "sh", "-c", shell, "sh", user, within=120, stdin=stdin)
        answers = []
        for mark in marks:
            answer, found, said = said.partition(mark)
            assert found, f"no answer to {commands[len(answers)]}"
            answers.append(answer.strip())
        return answers

    def rabbitmqctl(self, *arguments: str) -> list[dict[str, Any]]:
        """A table of rabbitmqctl as rows."""
        call = ("exec", "-T", "rabbitmq", "rabbitmqctl", "-q", "--formatter=json", *arguments)
        rows: list[dict[str, Any]] = json.loads(self.compose(*call))
        return rows

    def states(self) -> dict[str, str]:
        """Each container's service and its health, or its state where it has no health check."""
        lines = self.compose("ps", "--all", "--format", "json").splitlines()
        rows = (json.loads(line) for line in lines)
        return {row["Service"]: row["Health"] or row["State"] for row in rows}

    def inspect(self, service: str) -> dict[str, Any]:
        """Docker's description of a service's container."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        found: list[dict[str, Any]] = json.loads(run(["docker", "inspect", container]))
        return found[0]

    def left(self) -> list[str]:
        """Containers, volumes and networks of this project."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
        return [name for kind in kinds for name in run(["docker", *kind, "--quiet", "--filter", label]).split()]

    def remove(self) -> None:
        """Take down everything with its data and our own image, whatever state it is in."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", within=120)
        if run(["docker", "image", "ls", "--quiet", self.images["TURNKEEPER_IMAGE"]]):
            run(["docker", "image", "rm", self.images["TURNKEEPER_IMAGE"]])


def engine_answers() -> bool:
    """Whether a container engine runs already."""
    command = ["docker", "version", "--format", "ok"]
    return shutil.which("docker") is not None and subprocess.run(command, capture_output=True).returncode == 0


def stop_engine() -> None:
    """Stop the container engine that preparing has started."""
    run([str(ROOT / "deploy/offline/engine.sh"), "down"])


def run(
    command: Sequence[str],
    *,
    within: float = 60,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    show: bool = False,
) -> str:
    """Run a command, `within` seconds; its stdout. Raises AssertionError with what it wrote to stderr.

    `show` lets stderr through, for what takes long and says how far it is.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=sys.__stderr__ if show else subprocess.PIPE,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} ended {done.returncode}:\n{done.stderr or ''}{done.stdout}"
    return done.stdout

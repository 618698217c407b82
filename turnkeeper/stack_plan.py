"""What a stack is made of, decided before anything starts: its secrets, and each process with its environment."""

import base64
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from libs.contracts.application import Application, Hmac, StandardWebhooks, resolve_secret
from libs.contracts.evidence import SEED_BYTES
from libs.contracts.keys import SERVICES
from turnkeeper import processes
from turnkeeper.engines import Engine, external
from turnkeeper.ports import free_port, is_free

SANDBOX = "sandbox"
Lab = Mapping[str, str | Mapping[str, str]]
"""Extra environment for a stack: `NAME: value` for every process, `session` or `session-1` with a mapping for those."""

_SEALERS = ("ingress", "consent", "tools")
"""The session service carries seals and must not be able to make one (design §3.1, G3)."""
_FOR_USERS = ("ingress", "session", "consent")
"""These have doors for users; the door to side effects has none."""
_OURS = (
    "TURNKEEPER_SEAL_KEYS",
    "TURNKEEPER_EVIDENCE_KEY",
    "TURNKEEPER_USER_TOKEN_SECRET",
    "TURNKEEPER_OPERATOR_TOKENS",
    "TURNKEEPER_OPERATOR_TOKEN",
    "TURNKEEPER_SANDBOX_URL",
    # The logins of the stack's owner and of each service: the engine has read them.
    external.REDIS_URL,
    external.AMQP_URL,
    "TURNKEEPER_REDIS_USER",
    "TURNKEEPER_REDIS_PASSWORD",
    "TURNKEEPER_AMQP_PASSWORD",
    *(external.redis_variable(service) for service in SERVICES),
    *(external.amqp_variable(service) for service in SERVICES),
)


_IMPORT_SECONDS = 20.0
_FOUND = "faults found: "
_IMPORT = f"""
import importlib, json, sys
found = []
sys.path.append(sys.argv[2])
for tool, reference in json.loads(sys.argv[1]).items():
    module, _, name = reference.partition(":")
    try:
        getattr(importlib.import_module(module), name)
    except Exception as error:
        found.append(f"tools.{{tool}}.connector.python: cannot load {{reference}}: {{error}}")
print("{_FOUND}" + json.dumps(found))
"""


class PlanError(Exception):
    """The stack cannot be started as asked. The text is one line and says what to change."""


@dataclass(frozen=True)
class Secrets:
    """The secrets of a stack, drawn once for its state folder: what is stored there was sealed with them."""

    seal_keys: str = field(repr=False)
    user_token_secret: str = field(repr=False)
    operator_token: str = field(repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the environment variable that the application file names (`env:NAME`)."""
    evidence_key: str = field(default="", repr=False)
    """The door alone signs the evidence."""

    @property
    def operator_tokens(self) -> str:
        """What the services are given of the operator's token: name, scopes and hash."""
        return f"operator:*:{hashlib.sha256(self.operator_token.encode()).hexdigest()}"


@dataclass(frozen=True)
class Planned:
    """One process to be started."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    url: str


def application_faults(config: Path, application: Application, lab: Lab) -> list[str]:
    """What the services would not start with though the file itself is well: each as `path: what is wrong`."""
    scripted = application.planner.scripted
    rules = config.parent / scripted.rules if scripted else None
    faults = [f"planner.scripted.rules: there is no file {rules}"] if rules and not rules.is_file() else []
    functions = {
        name: tool.connector.python.function
        for name, tool in application.tools.items()
        if tool.connector.python is not None
    }
    faults += _secret_faults(application.planner.secrets, {**os.environ, **_lab_of(lab, "session", "session-0")})
    faults += _secret_faults(application.tool_secrets, {**os.environ, **_lab_of(lab, "tools", "tools-0")})
    return faults + (_import_faults(functions, config.parent, lab) if functions else [])


def _secret_faults(references: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """A planner's or a tool's secret is somebody else's: it cannot be drawn, as a source's can."""
    faults = []
    for where, reference in references.items():
        try:
            resolve_secret(reference, environment)
        except ValueError as error:
            faults.append(f"{where}: {error}")
    return faults


def _import_faults(functions: Mapping[str, str], folder: Path, lab: Lab) -> list[str]:
    """Try the tools' functions in a process like that of the service, since importing is running somebody's code."""
    env = {**os.environ, **_lab_of(lab, "tools", "tools-0")}
    command = [sys.executable, "-P", "-c", _IMPORT, json.dumps(dict(functions)), str(folder)]
    try:
        tried = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False)
        found: list[str] = json.loads(tried.stdout.rpartition(_FOUND)[2])
    except subprocess.TimeoutExpired:
        return [f"tools: importing their functions took more than {_IMPORT_SECONDS:.0f} s"]
    except ValueError:
        return [f"tools: importing their functions ended the process: {tried.stderr.strip()[-200:]}"]
    return found


def load_secrets(state: Path, application: Application) -> Secrets:
    """The state folder's secrets, with new ones drawn for what it has none for yet.

    A source's secret that is in our environment is taken from there, so that a real sender's can be used.
    Raises PlanError if the file cannot be read.
    """
    path = state / "secrets.json"
    try:
        known = Secrets(**json.loads(path.read_text()))
    except FileNotFoundError:
        seal = base64.b64encode(secrets.token_bytes(32)).decode()
        known = Secrets(f"k1:{seal}", secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    except (OSError, ValueError, TypeError) as error:
        raise PlanError(f"cannot read {path}: {error}; remove {state} to begin anew") from error
    sources = {
        name: os.environ.get(name) or known.sources.get(name) or _draw(scheme)
        for name, scheme in _source_secrets(application)
    }
    evidence = known.evidence_key or draw_evidence_key()
    made = Secrets(known.seal_keys, known.user_token_secret, known.operator_token, sources, evidence)
    processes.write_private(path, json.dumps(asdict(made)))
    return made


def replica_counts(replicas: int | Mapping[str, int]) -> dict[str, int]:
    """Replicas of each service. Raises PlanError for an unknown service or a count outside 1 to 50."""
    given: dict[str, int] = {**dict.fromkeys(SERVICES, replicas)} if isinstance(replicas, int) else {**replicas}
    if unknown := set(given) - set(SERVICES):
        raise PlanError(f"replicas: no service is called {', '.join(sorted(unknown))}; they are {', '.join(SERVICES)}")
    if wrong := [name for name, count in given.items() if not 1 <= count <= 50]:
        raise PlanError(f"replicas: {wrong[0]} needs 1 to 50, not {given[wrong[0]]}")
    return {service: given.get(service, 1) for service in SERVICES}


def plan_ports(port_base: int, counts: Mapping[str, int]) -> dict[str, int]:
    """Port of each replica: `base + i + 10k`, or free ones for base 0. Raises PlanError if one is taken."""
    if port_base == 0:
        return {f"{service}-{k}": free_port() for service in SERVICES for k in range(counts[service])}
    ports = {
        f"{service}-{k}": port_base + i + 10 * k for i, service in enumerate(SERVICES) for k in range(counts[service])
    }
    for name, port in ports.items():
        if not 1 <= port <= 65535:
            raise PlanError(f"port {port} for {name} does not exist: choose another --port-base")
        if not is_free(port):
            raise PlanError(f"port {port} for {name} is taken: choose another --port-base (0 finds free ports)")
    return ports


def plan_processes(
    state: Path,
    config: Path,
    application: Application,
    engine: Engine,
    ports: Mapping[str, int],
    made: Secrets,
    partitions: int,
    lab: Lab,
) -> list[Planned]:
    """Every process of the stack, the sandbox (if the application uses one) first."""
    lent = {"session": planner_variables(application), "tools": tool_variables(application)}
    inherited = _inherited(made, {name for variables in lent.values() for name in variables})
    common = {
        **inherited,
        "TURNKEEPER_NAMESPACE": engine.namespace,
        "TURNKEEPER_PARTITIONS": str(partitions),
        "TURNKEEPER_CONFIG": str(config),
        "TURNKEEPER_HTTP_HOST": "127.0.0.1",
        "TURNKEEPER_STATE": str(state),
    }
    planned = []
    if uses_sandbox(application):
        planned.append(_plan_sandbox(state, config, inherited, lab))
        common["TURNKEEPER_SANDBOX_URL"] = planned[0].url
    for name, port in ports.items():
        service = name.rpartition("-")[0]
        env = {
            **common,
            **_secrets_of(service, made),
            **lent.get(service, {}),
            "TURNKEEPER_REDIS_URL": engine.redis_of(service),
            "TURNKEEPER_AMQP_URL": engine.amqp_of(service),
            "TURNKEEPER_REPLICA": name,
            "TURNKEEPER_HTTP_PORT": str(port),
            **_lab_of(lab, service, name),
        }
        # -P: a folder called `services` where the command was typed must not be taken for ours.
        argv = (sys.executable, "-P", "-m", f"services.{service}")
        planned.append(Planned(name, argv, env, f"http://127.0.0.1:{port}"))
    return planned


def uses_sandbox(application: Application) -> bool:
    """Whether a tool of the application acts in the sandbox world."""
    return any(tool.connector.sandbox is not None for tool in application.tools.values())


def _plan_sandbox(state: Path, config: Path, inherited: Mapping[str, str], lab: Lab) -> Planned:
    port = free_port()
    log = state / "sandbox.jsonl"
    argv = (sys.executable, "-P", "-m", "turnkeeper.sandbox", "--config", str(config), "--log", str(log))
    env = {**inherited, **_lab_of(lab, SANDBOX, SANDBOX)}
    return Planned(SANDBOX, (*argv, "--port", str(port)), env, f"http://127.0.0.1:{port}")


def planner_variables(application: Application) -> dict[str, str]:
    """What our environment holds of the planner's secrets, `NAME` and `NAME_FILE`: for the session service alone."""
    return _variables(application.planner.secrets.values())


def tool_variables(application: Application) -> dict[str, str]:
    """What our environment holds of the tools' secrets, `NAME` and `NAME_FILE`: for the tools service alone."""
    return _variables(application.tool_secrets.values())


def _variables(references: Iterable[str]) -> dict[str, str]:
    names = [reference.removeprefix("env:") for reference in references if reference.startswith("env:")]
    return {name: os.environ[name] for of in names for name in (of, f"{of}_FILE") if name in os.environ}


def _inherited(made: Secrets, lent: Collection[str]) -> dict[str, str]:
    """Our environment without secrets: each service is given those that it needs and no other."""
    dropped = {*_OURS, *made.sources, *(f"{name}_FILE" for name in made.sources), *lent}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _secrets_of(service: str, made: Secrets) -> dict[str, str]:
    env = {"TURNKEEPER_OPERATOR_TOKENS": made.operator_tokens}
    if service in _FOR_USERS:
        env["TURNKEEPER_USER_TOKEN_SECRET"] = made.user_token_secret
    if service in _SEALERS:
        env["TURNKEEPER_SEAL_KEYS"] = made.seal_keys
    if service == "tools":
        env["TURNKEEPER_EVIDENCE_KEY"] = made.evidence_key
    return {**env, **made.sources} if service == "ingress" else env


def _lab_of(lab: Lab, service: str, name: str) -> dict[str, str]:
    env = {key: value for key, value in lab.items() if isinstance(value, str)}
    for scope in dict.fromkeys((service, name)):
        chosen = lab.get(scope)
        if isinstance(chosen, Mapping):
            env.update(chosen)
    return env


def _source_secrets(application: Application) -> Iterator[tuple[str, str]]:
    """(environment variable, scheme) of every secret that a source names as `env:NAME`."""
    for source in application.sources.values():
        if isinstance(source.verify, StandardWebhooks | Hmac):
            for reference in source.verify.secrets:
                if reference.startswith("env:"):
                    yield reference.removeprefix("env:"), source.verify.scheme


def draw_evidence_key() -> str:
    """A new Ed25519 key as `TURNKEEPER_EVIDENCE_KEY` has it. Its id is drawn too, so that no two keys share one."""
    return f"e{secrets.token_hex(4)}:{base64.b64encode(secrets.token_bytes(SEED_BYTES)).decode()}"


def _draw(scheme: str) -> str:
    if scheme == "standard-webhooks":
        return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    # As hex it can be read in each of the encodings that an application may configure for the scheme `hmac`.
    return secrets.token_hex(32)

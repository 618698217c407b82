"""Which deployment a command speaks to, and with which secrets: a state folder's stack, or the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from libs.contracts.application import Application, load_application
from libs.contracts.keys import SERVICES
from libs.contracts.topology import Topology
from libs.runtime.connections import with_password
from turnkeeper.stack import Stack, StackError, read_stack

DEFAULT_STATE = Path(".turnkeeper")
DINNER = Path(__file__).resolve().parent.parent / "examples" / "dinner" / "turnkeeper.yaml"


class TargetError(Exception):
    """Something that the command needs is not known. The text is one line and says how to give it."""


@dataclass(frozen=True)
class Target:
    """Where a deployment is. What is not known is empty, and asking for it raises TargetError."""

    urls: Mapping[str, str]
    """Base URL of one replica of each service, by service name."""
    config: Path
    amqp: str = field(default="", repr=False)
    namespace: str = ""
    partitions: int = 16
    user_secret: str = field(default="", repr=False)
    operator: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the application's secret references (`env:NAME`) are read from."""
    sandbox: str = ""
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """All base URLs of each service, where they are known."""

    def url(self, service: str) -> str:
        """Base URL of a service. Raises TargetError."""
        return _needed(self.urls.get(service, ""), f"where {service} is", f"TURNKEEPER_{service.upper()}_URL")

    def all_urls(self, service: str) -> tuple[str, ...]:
        """Base URLs of all known replicas of a service; none where nothing is known."""
        one = self.urls.get(service, "")
        return self.replicas.get(service, (one,) if one else ())

    def amqp_url(self) -> str:
        """RabbitMQ. Raises TargetError."""
        return _needed(self.amqp, "where RabbitMQ is", "TURNKEEPER_AMQP_URL")

    def user_token_secret(self) -> str:
        """The shared secret of users' tokens. Raises TargetError."""
        return _needed(self.user_secret, "the secret of users' tokens", "TURNKEEPER_USER_TOKEN_SECRET or …_FILE")

    def operator_token(self) -> str:
        """The operator's token. Raises TargetError."""
        return _needed(self.operator, "the operator's token", "TURNKEEPER_OPERATOR_TOKEN or …_FILE")

    def sandbox_url(self) -> str:
        """The sandbox world. Raises TargetError."""
        return _needed(self.sandbox, "where the sandbox is", "TURNKEEPER_SANDBOX_URL")

    def topology(self) -> Topology:
        """Names of exchanges and queues."""
        return Topology(self.namespace, self.partitions)

    def application(self) -> Application:
        """The application that is deployed. Raises ApplicationError."""
        return load_application(self.config)


def of_stack(stack: Stack) -> Target:
    """The target that a running stack is."""
    return Target(
        urls={service: stack.url(service) for service in SERVICES},
        replicas={service: tuple(stack.urls[service]) for service in SERVICES},
        config=stack.config,
        amqp=stack.amqp_url,
        namespace=stack.namespace,
        partitions=stack.partitions,
        user_secret=stack.user_token_secret,
        operator=stack.operator_token,
        environment={**os.environ, **stack.source_secrets},
        sandbox=stack.sandbox_url or "",
    )


def find_target(state: Path, environment: Mapping[str, str] | None = None) -> Target:
    """The deployment that the environment names, else the stack of the state folder.

    Single variables override the stack's. Raises TargetError, saying how to start or name one, if there is neither.
    """
    given = os.environ if environment is None else environment
    named: dict[str, str] = {
        service: given.get(f"TURNKEEPER_{service.upper()}_URL", "").rstrip("/") for service in SERVICES
    }
    try:
        base = of_stack(read_stack(state))
    except StackError as error:
        if not any(named.values()) and not given.get("TURNKEEPER_AMQP_URL"):
            raise TargetError(f"{error}, or set TURNKEEPER_INGRESS_URL and so on to name a deployment") from error
        base = Target(urls={}, config=find_config(None, given), environment=given)
    return Target(
        urls={service: named[service] or base.urls.get(service, "") for service in SERVICES},
        replicas={service: urls for service, urls in base.replicas.items() if not named[service]},
        config=find_config(None, given) if given.get("TURNKEEPER_CONFIG") else base.config,
        amqp=_amqp(given) or base.amqp,
        namespace=given.get("TURNKEEPER_NAMESPACE", base.namespace),
        partitions=partitions_of(given) or base.partitions,
        user_secret=_secret(given, "TURNKEEPER_USER_TOKEN_SECRET") or base.user_secret,
        operator=_secret(given, "TURNKEEPER_OPERATOR_TOKEN") or base.operator,
        environment={**base.environment, **given},
        sandbox=given.get("TURNKEEPER_SANDBOX_URL", "").rstrip("/") or base.sandbox,
    )


def find_config(chosen: Path | None, environment: Mapping[str, str] | None = None) -> Path:
    """The application file: the chosen one, `TURNKEEPER_CONFIG`, `./turnkeeper.yaml`, else the dinner example."""
    given = os.environ if environment is None else environment
    if chosen is not None:
        return chosen
    if named := given.get("TURNKEEPER_CONFIG"):
        return Path(named)
    here = Path("turnkeeper.yaml")
    return here if here.is_file() else DINNER


def _needed(value: str, what: str, name: str) -> str:
    if not value:
        raise TargetError(f"it is not known {what}: set {name}, or TURNKEEPER_STATE to a running stack's folder")
    return value


def _secret(given: Mapping[str, str], name: str) -> str:
    """A secret from the environment, or from the file that `NAME_FILE` names."""
    if path := given.get(f"{name}_FILE"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TargetError(f"{name}_FILE: {path} cannot be read: check the path and its permissions") from error
    return given.get(name, "")


def _amqp(given: Mapping[str, str]) -> str:
    url = given.get("TURNKEEPER_AMQP_URL", "")
    return with_password(url, _secret(given, "TURNKEEPER_AMQP_PASSWORD")) if url else ""


def partitions_of(given: Mapping[str, str]) -> int | None:
    """The partition count that variables name, None where they do not. Raises TargetError for what is none."""
    text = given.get("TURNKEEPER_PARTITIONS", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100:
        raise TargetError(f"TURNKEEPER_PARTITIONS is {text!r}: give the deployment's number, from 1 to 100")
    return int(text)

"""`turnkeeper secrets`: the random secrets of a deployment as files, and the two files that are rendered from them."""

import base64
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from libs.contracts.application import Hmac, StandardWebhooks, load_application
from libs.contracts.evidence import Signer
from libs.contracts.rights import REDIS_USERS, redis_acl_file
from libs.contracts.topology import ARCHIVE_AGE, BROKER_USERS, checked_age, definitions
from turnkeeper.printing import print_line
from turnkeeper.stack import DEFAULT_PARTITIONS
from turnkeeper.stack_plan import draw_evidence_key
from turnkeeper.target import TargetError, find_config, partitions_of

_ENV_LINE = re.compile(
    r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*"
    r"(?:(?P<quote>[\"'])(?P<quoted>.*)(?P=quote)|(?P<plain>[^\"'#\s].*?)?)(?:\s+#.*|\s*)"
)


def init_secrets(
    directory: Path,
    force: bool = False,
    *,
    application: Path | None = None,
    namespace: str = "",
    partitions: int = 16,
    archive_age: str = ARCHIVE_AGE,
) -> list[Path]:
    """Write the secrets of a deployment into `directory` and return every file of it, sorted.

    A secret that is there is kept unless `force`; `redis.acl` and `definitions.json` are rendered anew each time, so
    running this again after an upgrade brings new users and queues and changes no password. `application` names the
    `turnkeeper.yaml` whose webhook secrets (`env:NAME`) are made too, as files `name`. The folder is open to its owner
    alone; the files in it can be read by any user, since each is mounted singly into containers that run under
    another user id. Raises OSError if the folder cannot be written, ApplicationError if `application` has faults.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    makers = _makers() | _webhook_makers(application)
    values = {name: _keep_or_make(directory / name, make, force) for name, make in makers.items()}
    operator = hashlib.sha256(values["operator_token"].encode()).hexdigest()
    rendered = {
        "operator_tokens": f"operator:*:{operator}",
        "redis.acl": _render_acl(values, namespace),
        "definitions.json": _render_definitions(values, namespace, partitions, archive_age),
        "evidence_key.pub": _public_keys(values["evidence_key"]),
    }
    for name, text in rendered.items():
        _write(directory / name, text)
    return sorted(directory / name for name in (*values, *rendered))


def _makers() -> dict[str, Callable[[], str]]:
    redis = {f"redis_{user}_password": _password for user in REDIS_USERS}
    broker = {f"rabbitmq_{user}_password": _password for user in BROKER_USERS}
    return {
        **redis,
        **broker,
        "evidence_key": draw_evidence_key,
        "seal_keys": lambda: "k1:" + base64.b64encode(secrets.token_bytes(32)).decode(),
        "user_token_secret": _password,
        "operator_token": _password,
    }


def _password() -> str:
    # URL-safe, so that it can stand in a connection URL unescaped
    return secrets.token_urlsafe(32)


def _standard_webhooks_secret() -> str:
    # Standard Webhooks: base64 of 24 to 64 random bytes behind `whsec_`
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _hmac_secret() -> str:
    # hex reads the same as text, base64 and hex: whatever encoding the application configures
    return secrets.token_hex(32)


def _webhook_makers(application: Path | None) -> dict[str, Callable[[], str]]:
    """A maker for each secret that the sources of an application name as `env:NAME`, by file name."""
    if application is None:
        return {}
    makers: dict[str, Callable[[], str]] = {}
    for source in load_application(application).sources.values():
        if isinstance(source.verify, StandardWebhooks | Hmac):
            make = _standard_webhooks_secret if isinstance(source.verify, StandardWebhooks) else _hmac_secret
            names = (name for kind, _, name in (ref.partition(":") for ref in source.verify.secrets) if kind == "env")
            makers |= {name.lower(): make for name in names}
    return makers


def _keep_or_make(path: Path, make: Callable[[], str], force: bool) -> str:
    if path.exists() and not force:
        return path.read_text().strip()
    value = make()
    _write(path, value)
    return value


def _write(path: Path, text: str) -> None:
    """Replace a file at once: a container that starts meanwhile reads the old secret or the new, never half of one."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o644)
        file.write(text)
    draft.replace(path)


def _render_acl(values: dict[str, str], namespace: str) -> str:
    logins = {f"redis_{user}": values[f"redis_{user}_password"] for user in REDIS_USERS}
    return redis_acl_file(logins, namespace)


def _render_definitions(values: dict[str, str], namespace: str, partitions: int, archive_age: str) -> str:
    users = {user: values[f"rabbitmq_{user}_password"] for user in BROKER_USERS}
    return json.dumps(definitions(namespace, partitions, users, archive_age), indent=1)


def _public_keys(evidence_key: str) -> str:
    """What `turnkeeper verify --key` reads: to be kept where nobody can change it who can write to the store."""
    return "".join(f"{name}:{key}\n" for name, key in Signer.parse(evidence_key).public.items())


app = typer.Typer(help="The secrets of a deployment.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The secrets of a deployment."""


@app.command("init")
def init(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to write them. Without: TURNKEEPER_SECRETS, else ./secrets.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="The application whose webhook secrets are made too. Without: turnkeeper.yaml in "
            "TURNKEEPER_APPLICATION, TURNKEEPER_CONFIG, ./turnkeeper.yaml, else the dinner example."
        ),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Without: TURNKEEPER_NAMESPACE, else none.")] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=100, help="Without: TURNKEEPER_PARTITIONS, else 16.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Make new secrets even where there are some.")] = False,
) -> None:
    """Write random secrets as files, and the Redis and RabbitMQ user files that are rendered from them.

    The variables are read from the environment, else from ./.env, as docker compose reads them: so both speak of the
    same folder, application, namespace and partitions.

    **Examples**

      turnkeeper secrets init

      turnkeeper secrets init --dir secrets --config my/turnkeeper.yaml
    """
    given = {**read_env_file(Path(".env")), **os.environ}
    chosen = directory or Path(given.get("TURNKEEPER_SECRETS") or "secrets")
    application = _application(config, given)
    try:
        files = init_secrets(
            chosen,
            force,
            application=application,
            namespace=given.get("TURNKEEPER_NAMESPACE", "") if namespace is None else namespace,
            partitions=(partitions_of(given) or DEFAULT_PARTITIONS) if partitions is None else partitions,
            archive_age=checked_age(given.get("TURNKEEPER_ARCHIVE_MAX_AGE", "")),
        )
    except ValueError as error:
        raise TargetError(str(error)) from error
    except OSError as error:
        raise TargetError(
            f"{error.filename or chosen}: {error.strerror}: check the path and its permissions"
        ) from error
    public = (chosen / "evidence_key.pub").read_text(encoding="utf-8").strip()
    print_line(f"public key of the evidence, to be kept elsewhere too: {public}")
    print_line(f"{len(files)} files in {chosen} for {application}: next, docker compose up --build --wait")


def read_env_file(path: Path) -> dict[str, str]:
    """The plain `KEY=VALUE` lines of a file, quotes around a value taken off; nothing where there is no such file.

    Raises TargetError where it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: check its permissions, and that it is text in UTF-8") from error
    found = (_ENV_LINE.fullmatch(line) for line in lines)
    return {line["name"]: line["quoted"] if line["quote"] else line["plain"] for line in found if line}


def _application(config: Path | None, given: Mapping[str, str]) -> Path:
    folder = given.get("TURNKEEPER_APPLICATION")
    return Path(folder) / "turnkeeper.yaml" if config is None and folder else find_config(config, given)

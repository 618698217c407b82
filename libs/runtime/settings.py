"""What every service is told by its environment or by secret files. Read once, in `main.py`."""

import os
import re
import socket
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, StringConstraints, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from libs.contracts.origin import SealKeys
from libs.runtime.auth import Operators

SECRETS_DIR = "/run/secrets"


class SettingsError(Exception):
    """Wrong settings: `faults` lists each as `NAME: what is wrong`, without values."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("the settings have faults:\n" + "\n".join(f"  {fault}" for fault in faults))
        self.faults = faults


def this_host() -> str:
    """The host's name as a replica's name. Two replicas of one name would take each other for their own past."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64] or "0"


class RuntimeSettings(BaseSettings):
    """Settings common to the services. Every name has the prefix `TURNKEEPER_`."""

    model_config = SettingsConfigDict(
        env_prefix="TURNKEEPER_",
        frozen=True,
        extra="ignore",
        secrets_dir=SECRETS_DIR if os.path.isdir(SECRETS_DIR) else None,
    )

    redis_url: str = Field(description="Redis, the store of record, such as redis://host:6379/0")
    redis_user: str | None = Field(None, description="Redis ACL user, where the URL names none")
    redis_password: SecretStr | None = Field(None, description="Redis password, where the URL holds none")
    redis_appendfsync: Literal["always", ""] = Field(
        "", description="The operator's word that Redis has appendfsync always, where CONFIG is forbidden to us"
    )
    amqp_url: str = Field(description="RabbitMQ, such as amqp://user@host:5672/")
    amqp_password: SecretStr | None = Field(None, description="RabbitMQ password, where the URL holds none")
    namespace: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{0,40}$")] = Field(
        "", description="Prefix of keys and queues, so that several deployments live on one server"
    )
    partitions: int = Field(16, ge=1, le=100, description="Partitions; fixed at the first deployment")
    replica: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = Field(
        default_factory=this_host,
        description="Name of this replica, unique in its service and kept over restarts; by default the host's",
    )
    config: Path = Field(Path("turnkeeper.yaml"), description="The application file")
    http_host: str = Field("127.0.0.1", description="Address to listen on")
    http_port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    allow_volatile_store: bool = Field(
        False, description="Accept a Redis that can lose or evict what it acknowledged (development only)"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged")
    user_token_secret: SecretStr | None = Field(None, description="Shared secret of users' JWTs (HS256)")
    user_token_jwks_url: str | None = Field(None, description="JWKS of users' JWTs, instead of a shared secret")
    operator_tokens: SecretStr = Field(
        SecretStr(""), description="Operators as name:scope+scope:sha256 of the token, by commas"
    )
    trials: bool = Field(
        False, description="Allow sessions that are trials, and faults on purpose in them (tests only)"
    )
    lab: str = Field("", description="Wrong rules for demonstrations, by commas; only `turnkeeper demo` sets them")
    lab_demo: bool = Field(False, description="Set by `turnkeeper demo` on its throw-away stack")
    drain_seconds: float = Field(10.0, gt=0, description="Longest time for the current hand-offs when stopping")
    outbox_limit: int = Field(50_000, ge=1, description="Unconfirmed messages a partition may hold; above, 503")

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, url: str) -> str:
        return _checked_url(url, ("redis", "rediss", "unix"))

    @field_validator("amqp_url")
    @classmethod
    def _amqp(cls, url: str) -> str:
        return _checked_url(url, ("amqp", "amqps"))

    @field_validator("lab")
    @classmethod
    def _known_lab(cls, text: str) -> str:
        given = set(filter(None, text.split(",")))
        unknown = {switch for switch in given - set(LAB_SWITCHES) if not switch.startswith(_LAB_OF_TOOLS)}
        if unknown:
            raise ValueError(f"there are no lab switches {', '.join(sorted(unknown))}")
        return text

    @field_validator("operator_tokens")
    @classmethod
    def _operators(cls, tokens: SecretStr) -> SecretStr:
        Operators.parse(tokens.get_secret_value())
        return tokens

    @model_validator(mode="after")
    def _lab_is_for_demos(self) -> Self:
        if self.lab and not self.lab_demo:
            raise ValueError("TURNKEEPER_LAB breaks a rule on purpose and is for `turnkeeper demo` only")
        return self

    @property
    def labs(self) -> frozenset[str]:
        """The lab switches that are on."""
        return frozenset(filter(None, self.lab.split(",")))

    def secrets(self) -> list[str]:
        """Every secret of the settings: for masking what is written. Also the parts of those that are lists, and the
        passwords of URLs, as they stand there and as they are sent."""
        found = [
            value.get_secret_value()
            for name in type(self).model_fields
            if isinstance(value := getattr(self, name), SecretStr)
        ]
        # `name:scope:hash,…` and `id:base64,…`: what follows the last colon
        found += [part.rpartition(":")[2] for value in found for part in value.split(",") if ":" in part]
        for url in (self.redis_url, self.amqp_url):
            password = urlsplit(url).password
            found += [password, unquote(password)] if password else []
        return [secret for secret in found if secret]

    def lab_values(self, switch: str) -> frozenset[str]:
        """The values of a lab switch that takes one, as in `lose_answer:reserve_table`."""
        return frozenset(lab.removeprefix(f"{switch}:") for lab in self.labs if lab.startswith(f"{switch}:"))


LOSE_ANSWER = "lose_answer"
"""`lose_answer:TOOL`: the sandbox does what the tool asks, and its answer is lost."""
LATE_CALL = "late_call"
"""`late_call:TOOL`: a session's first call of the tool reaches the door only after its withdrawal has."""
_LAB_OF_TOOLS = (f"{LOSE_ANSWER}:", f"{LATE_CALL}:")
LAB_SWITCHES = ("authority_by_role", "question_by_note", "keys_by_turn", "keys_by_step")
"""Each switches one rule to its wrong form, to show what the rule is for (scenarios marked lab)."""


def _checked_url(url: str, schemes: tuple[str, ...]) -> str:
    try:
        parts = urlsplit(url)
        fits = parts.scheme in schemes and bool(parts.hostname or parts.scheme == "unix")
        _ = parts.port
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"not a URL of the form {schemes[0]}://host:port/")
    return url


class SealedSettings(RuntimeSettings):
    """Settings of the services that hold the seal keys: all but session, which carries seals and can make none."""

    seal_keys: SecretStr = Field(
        description="Seal keys as id:base64 of 32 bytes, by commas; the first one signs, each verifies"
    )

    @field_validator("seal_keys")
    @classmethod
    def _seal_keys(cls, keys: SecretStr) -> SecretStr:
        SealKeys.parse(keys.get_secret_value())
        return keys

    @cached_property
    def keys_of_seals(self) -> SealKeys:
        """The parsed seal keys."""
        return SealKeys.parse(self.seal_keys.get_secret_value())


S = TypeVar("S", bound=RuntimeSettings)


def read_settings(kind: type[S]) -> S:
    """The settings of this process. Raises SettingsError with every fault, never with a value."""
    try:
        return kind()
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_input=False, include_url=False, include_context=False):
            name = "_".join(str(part) for part in fault["loc"]).upper()
            where = f"TURNKEEPER_{name}" if name else "settings"
            faults.append(f"{where}: {fault['msg'].removeprefix('Value error, ')}")
        raise SettingsError(faults) from None

"""Settings of the door."""

from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from libs.contracts.evidence import Signer
from libs.runtime.settings import SealedSettings


class ToolsSettings(SealedSettings):
    """What the door needs beside the common settings."""

    sandbox_url: str | None = Field(None, description="The sandbox, where tools act in it, such as http://host:8090")
    tools_lease_grace_seconds: float = Field(
        3.0, gt=0, le=600, description="How long a holder may be silent beyond its tool's timeout before it is gone"
    )
    tools_sweep_seconds: float = Field(1.0, gt=0, le=60, description="How often ended leases are looked for")

    evidence_key: SecretStr = Field(
        SecretStr(""),
        description="Ed25519 keys of the evidence as id:base64 of 32 bytes, by commas; the first one signs its heads. "
        "Empty: heads are not signed",
    )
    tools_evidence_seconds: float = Field(
        5.0, gt=0, le=3600, description="How often new evidence is linked, signed, published and archived"
    )

    @field_validator("evidence_key")
    @classmethod
    def _evidence_key(cls, key: SecretStr) -> SecretStr:
        Signer.parse(key.get_secret_value())
        return key

    @field_validator("sandbox_url")
    @classmethod
    def _http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("not a URL of the form http://host:port")
        return url

    @model_validator(mode="after")
    def _sweep_within_grace(self) -> Self:
        if self.tools_sweep_seconds > self.tools_lease_grace_seconds:
            raise ValueError("TURNKEEPER_TOOLS_SWEEP_SECONDS must not exceed TURNKEEPER_TOOLS_LEASE_GRACE_SECONDS")
        return self

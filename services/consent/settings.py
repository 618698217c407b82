"""What the consent service is told beside the common settings."""

from pydantic import Field, SecretStr, field_validator

from libs.contracts.origin import SealKeys
from libs.runtime.settings import RuntimeSettings


class ConsentSettings(RuntimeSettings):
    """Settings of the consent service."""

    seal_keys: SecretStr = Field(description="Seal keys as id:base64, by commas; the first signs, each verifies")
    consent_sweep_seconds: float = Field(
        1.0, ge=0, description="Pause between looks for overdue questions and grants; 0 turns the sweeper off"
    )

    @field_validator("seal_keys")
    @classmethod
    def _keys_can_be_read(cls, keys: SecretStr) -> SecretStr:
        SealKeys.parse(keys.get_secret_value())
        return keys

    @property
    def keys(self) -> SealKeys:
        """The seal keys, parsed."""
        return SealKeys.parse(self.seal_keys.get_secret_value())

"""What the consent service is told beside the common settings."""

from pydantic import Field

from libs.runtime.settings import SealedSettings


class ConsentSettings(SealedSettings):
    """Settings of the consent service."""

    consent_sweep_seconds: float = Field(
        1.0, ge=0, description="Pause between looks for overdue questions and grants; 0 turns the sweeper off"
    )

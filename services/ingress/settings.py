"""What ingress is told by its environment, beside what every service is told."""

from pydantic import Field, SecretStr, field_validator

from libs.contracts.keys import SESSION_TTL_MS
from libs.runtime.auth import MIN_SECRET_BYTES
from libs.runtime.settings import SealedSettings

DAY_SECONDS = 86_400


class IngressSettings(SealedSettings):
    """Settings of ingress. A fault names the field and never shows the value."""

    ingress_max_body_bytes: int = Field(1024 * 1024, ge=1024, description="Largest body of an event or a message")
    ingress_body_seconds: float = Field(
        10.0, gt=0, le=300, description="Longest time that a body may take to arrive over HTTP; then 408"
    )
    ingress_events_per_second: float = Field(
        0.0, ge=0, description="Deliveries a second that a source may send to one replica over HTTP; 0 for no limit"
    )
    ingress_burst: int = Field(200, ge=1, description="How many may come at once where there is such a limit")
    ingress_held_limit: int = Field(
        1_000,
        ge=1,
        le=10_000,
        description="Most events that wait for one subject or session; more get 503, or quarantine over AMQP",
    )
    ingress_log_lines: int = Field(500, ge=1, description="Refused and dropped deliveries that GET /v1/log shows")
    ingress_prefetch: int = Field(
        256, ge=1, le=65535, description="Deliveries that RabbitMQ hands out before an acknowledgement"
    )
    subject_ttl_seconds: int = Field(
        90 * DAY_SECONDS,
        ge=DAY_SECONDS,
        le=SESSION_TTL_MS // 1000,
        description="How long a subject leads to its session; no longer than a session lives",
    )

    ingress_timer_grace_seconds: float = Field(
        5.0, ge=1, le=3600, description="A timer's instant that is later than this was missed: `misfire` says what then"
    )

    @field_validator("user_token_secret")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value().encode()) < MIN_SECRET_BYTES:
            raise ValueError(f"needs at least {MIN_SECRET_BYTES} bytes")
        return value

    @field_validator("user_token_jwks_url")
    @classmethod
    def _jwks(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            raise ValueError("not a URL of the form https://host/path")
        return value

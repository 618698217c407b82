"""Settings of the session service."""

from pydantic import Field

from libs.runtime.settings import RuntimeSettings


class SessionSettings(RuntimeSettings):
    """What only the session service is told. It has no seal key: it carries origins and cannot make one."""

    operation_wait_seconds: float = Field(
        900.0, gt=0, description="Longest wait of a turn for one operation; then its outcome is told as unknown"
    )
    operation_not_after_hours: float = Field(
        24.0, gt=0, description="How long a committed call may still be claimed at the door"
    )
    session_record: bool = Field(
        True, description="Record what each commit was decided from, so that `turnkeeper replay` can decide it again"
    )
    session_prefetch: int = Field(64, ge=1, le=65535, description="Unacknowledged messages (bundles) per partition")
    session_planner_calls: int = Field(
        2_000, ge=1_000, le=65_535, description="Plans that one replica asks for at once (planners http and openai)"
    )
    session_streams: int = Field(
        200, ge=1, description="Timelines that one replica streams at the same time; above, 503"
    )

"""The exception tree. A refusal is a value, not an exception; these are for what could not be judged.

- TurnkeeperError
  - ContractError: bytes we cannot read
  - PermanentError: can never work; carries a reason
  - TransientError: may work later; may say when
    - StoreAway: Redis gave no answer, so whether the command ran is unknown
    - BrokerAway: RabbitMQ gave no confirm, so whether the message was queued is unknown
  - LostOwnership: another owner committed first
"""


class TurnkeeperError(Exception):
    """Everything that Turnkeeper raises on purpose."""


class ContractError(TurnkeeperError):
    """Bytes we cannot read: not JSON, an unknown wire type, fields that do not fit."""


class PermanentError(TurnkeeperError):
    """It can never work. `reason` is a short code for logs, dead letters and metrics."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class TransientError(TurnkeeperError):
    """It may work later. `retry_after` is in seconds, or None when nothing is known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreAway(TransientError):
    """Redis gave no answer: whether the command ran is unknown."""


class BrokerAway(TransientError):
    """RabbitMQ gave no confirm: whether the message was queued is unknown."""


class LostOwnership(TurnkeeperError):
    """Another owner committed first; reload and decide again."""

"""From what came back to what is done with the delivery: one table (design §3, 3-style)."""

import asyncio
from enum import StrEnum

from libs.contracts.errors import BrokerAway, ContractError, LostOwnership, PermanentError, StoreAway


class Outcome(StrEnum):
    """What a handler did. Each is acknowledged: "already done" is an answer, not an error."""

    HANDLED = "handled"
    REPEATED = "repeated"
    REFUSED = "refused"
    IN_PROGRESS = "in_progress"


class Settlement(StrEnum):
    """What the consumer does next."""

    ACKNOWLEDGE = "acknowledge"
    BURY = "bury"
    """Copy to the dead queue with the reason, mark, acknowledge; the bundle goes on."""
    PAUSE = "pause"
    """Store or broker is away: keep the delivery, wait, handle it again. Not counted as an attempt."""
    RETRY = "retry"
    """Again in place, jittered, the lane held, counted."""
    YIELD = "yield"
    """Another owner committed first, and again after reloading: close the partition's channel."""
    NOTHING = "nothing"
    """Cancelled: the closing channel returns the delivery."""


def settlement(result: Outcome | BaseException) -> Settlement:
    """The row of the table for an outcome or an exception."""
    match result:
        case Outcome():
            return Settlement.ACKNOWLEDGE
        case ContractError() | PermanentError():
            return Settlement.BURY
        case StoreAway() | BrokerAway():
            return Settlement.PAUSE
        case LostOwnership():
            return Settlement.YIELD
        case asyncio.CancelledError():
            return Settlement.NOTHING
        case _:
            return Settlement.RETRY


def reason(error: BaseException) -> str:
    """A short code for a dead letter, a log field and a metric."""
    match error:
        case PermanentError():
            return error.reason
        case ContractError():
            return "unreadable"
        case _:
            return "attempts_spent"

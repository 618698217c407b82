"""What the door owns: operations, from the claim of their key to the outcome."""

from typing import ClassVar, Literal

from libs.contracts.canonical import JSON, digest
from libs.contracts.envelope import Destination, Message
from libs.contracts.evidence import Block
from libs.contracts.ids import Slug, derive_id
from libs.contracts.origin import Seal
from libs.contracts.reasons import OperationState
from libs.contracts.session import Step


class RunStep(Message):
    """Do one step. With `action` set, tool and arguments are those of the action record, not of this call."""

    TO: ClassVar[Destination] = "tools"

    operation: Slug
    """`O3`: what people call it; counts up within its session."""
    key: str
    turn: Slug
    root: Slug
    """The root turn: lineage of the key, kept by restart, resume and revision (design §3.4)."""
    tool: Slug
    args: dict[str, JSON]
    action: str = ""
    step: int = 0
    seals: tuple[Seal, ...]
    not_after: int
    """Milliseconds (Unix): an absent key is not claimed after this."""
    offer: bool = False
    """Its owner would be asked: run it only where a standing approval covers it, else answer `needs_consent` with
    what the question needs."""
    then: tuple[Step, ...] = ()
    """Of an offer: the steps that the question would be about beside this one."""


class LookUpOperation(Message):
    """Ask the destination what became of an operation (its tool's `lookup`), or whether its effect still stands."""

    TO: ClassVar[Destination] = "tools"

    operation: Slug
    key: str


class LookedUp(Message):
    """What the destination says now of a committed operation: `stands`, `gone`, or `unknown` where it did not say."""

    TO: ClassVar[Destination] = "session"

    operation: Slug
    key: str
    found: Literal["stands", "gone", "unknown"]
    result: JSON = None


class WithdrawOperation(Message):
    """What is not claimed shall never run: leaves a tombstone under an absent key."""

    TO: ClassVar[Destination] = "tools"

    operation: Slug
    key: str
    not_after: int


class StepFinished(Message):
    """What the ledger says of an operation. States only advance, so a repeat is recognised by (operation, state)."""

    TO: ClassVar[Destination] = "session"

    operation: Slug
    key: str
    state: OperationState
    result: JSON = None
    reason: str = ""
    replay: bool = False
    code: str = ""
    """Which check turned the call away (`door.CHECKS`); "" where none did."""
    status: int = 0
    """The HTTP status that says the same as the code; 0 without one."""
    spent: bool = False
    """It failed, and its key is not released: to try anew takes another key."""
    standing: str = ""
    """The standing approval that it ran under."""


class EvidenceSealed(Message):
    """Entries of a session's evidence with their links and the signed head, for the archive."""

    TO: ClassVar[Destination] = "archive"

    block: Block


def operation_key(root: str, tool: str, args: dict[str, JSON], occurrence: int) -> str:
    """The idempotency key of a free step: (lineage, tool, canonical arguments, occurrence) (design §3.4)."""
    return derive_id("step", root, tool, digest(args), occurrence)


def action_key(action: str, step: int) -> str:
    """The idempotency key of an accepted action's step."""
    return derive_id("action", action, step)

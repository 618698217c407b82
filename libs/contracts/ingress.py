"""What ingress owns: accepted inputs, and the subjects that events find their session by."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import JSON
from libs.contracts.envelope import Destination, Message
from libs.contracts.ids import Slug
from libs.contracts.origin import Origin, Seal

InputKind = Literal["message", "event", "decision", "cancel"]


class Input(BaseModel):
    """An accepted event in a session's inbox. Immutable; its number gives the order of the session (G5)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: InputKind
    session: Slug
    number: int
    source: Slug
    event: str
    """The sender's id of the event, or the Idempotency-Key of a user's message."""
    type: str = ""
    subject: str = ""
    data: JSON = None
    origin: Origin
    seal: Seal
    accepted_at: int
    """Milliseconds (Unix); also names the day bucket in which its marks are kept."""
    depth: int = 0
    trace: str = ""


class InputAccepted(Message):
    """A doorbell: this input has this number in its session's inbox. The inbox, not this message, is the fact."""

    TO: ClassVar[Destination] = "session"

    input: Input


class RegisterSubject(Message):
    """The door tells ingress that a committed operation made this subject the session's.

    `attestation` is made with the seal key over ("subject", subject, session, operation), since the session
    service may write to the same exchange and must not be able to claim a subject.
    """

    TO: ClassVar[Destination] = "ingress"

    subject: str
    operation: str
    attestation: str

"""What ingress owns: accepted inputs, and the subjects that events find their session by."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import JSON, digest
from libs.contracts.envelope import Destination, Message
from libs.contracts.ids import Slug
from libs.contracts.origin import Origin, Seal

InputKind = Literal["message", "event", "decision", "cancel", "timer"]


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
    sequence: str = ""
    """The event's place in the order of its subject: a number, an RFC 3339 time, or text; "" where it has none."""
    stream: str = ""
    """Sequences of different streams are not compared."""


class InputAccepted(Message):
    """A doorbell: this input has this number in its session's inbox. The inbox, not this message, is the fact."""

    TO: ClassVar[Destination] = "session"

    input: Input


class SetTimer(Message):
    """The door tells ingress to fire a timer. Once is `due`; again and again is `rule`, from `due` on.

    `attestation` is made with the seal key over `attested(session)`: the session service may write to the same
    exchange and must not be able to set a timer.
    """

    TO: ClassVar[Destination] = "ingress"

    timer: Slug
    """Unique in its session, from the operation that set it."""
    operation: str
    setter: str
    """Kind, source and principal of who set it."""
    due: int
    """Milliseconds (Unix)."""
    rule: str = ""
    """RFC 5545 recurrence rule, without DTSTART."""
    zone: str = "UTC"
    misfire: Literal["run-late", "skip", "coalesce"] = "run-late"
    lateness: int = 86_400_000
    """Milliseconds: an instant that is later than this is skipped, whatever `misfire` says."""
    subject: str = ""
    data: JSON = None
    attestation: str

    def attested(self, session: str) -> tuple[str, ...]:
        """What the door vouches for: ("timer", timer, session, setter, rule, due, digest), the digest over all that is
        not named, so that no field can be changed on the way. Raises ContractError for data that JSON cannot hold."""
        rest = [self.operation, self.zone, self.misfire, self.lateness, self.subject, self.data]
        return ("timer", self.timer, session, self.setter, self.rule, str(self.due), digest(rest))


class StopTimer(Message):
    """End a timer: cancelled through the door (then with an attestation over `attested(session)`), or because its
    subject is moot (then sent by the session, which can only end timers of its own)."""

    TO: ClassVar[Destination] = "ingress"

    timer: Slug
    reason: str
    attestation: str = ""

    def attested(self, session: str) -> tuple[str, ...]:
        """What the door vouches for: ("stop", timer, session)."""
        return ("stop", self.timer, session)


class TimerSkipped(Message):
    """Instants of a timer that did not fire: by its misfire rule, or since it was refused. `instant`, in milliseconds
    (Unix), is the first of them, `reason` one of `TimerSkip`."""

    TO: ClassVar[Destination] = "session"

    timer: Slug
    instant: int
    reason: str
    count: int = 1
    """How many instants this is about."""


class RegisterSubject(Message):
    """The door tells ingress that a committed operation made this subject the session's.

    `attestation` is made with the seal key over ("subject", subject, session, operation), since the session
    service may write to the same exchange and must not be able to claim a subject.
    """

    TO: ClassVar[Destination] = "ingress"

    subject: str
    operation: str
    attestation: str

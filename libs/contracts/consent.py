"""What consent owns: pending actions from the asking to the end of their grant."""

import re
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import digest
from libs.contracts.envelope import Destination, Message
from libs.contracts.ids import Slug
from libs.contracts.origin import Seal, SealKeys, attest, attestation_is_valid
from libs.contracts.reasons import DecisionOutcome
from libs.contracts.session import Step

Verdict = Literal["accept", "decline", "cancel"]
DECISION_TEXT = re.compile(r"(yes|no) (A[1-9][0-9]{0,8})")
"""The one text that decides, exactly (design §3.3)."""


class World(BaseModel):
    """The digest of what a step relies on, as the door read it for the question (`Tool.precondition`). `read_at` in
    milliseconds (Unix). The door attests it, so that nobody between it and consent can make one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    read_at: int
    attestation: str

    @classmethod
    def attested(cls, keys: SealKeys, session: str, step: Step, digest: str, read_at: int) -> "World":
        """Made by the door for one step of a session."""
        fields = _of_world(session, step, digest, read_at)
        return cls(digest=digest, read_at=read_at, attestation=attest(keys, *fields))

    def is_of(self, keys: SealKeys, session: str, step: Step) -> bool:
        """Whether the door made it for this very step of this session."""
        fields = _of_world(session, step, self.digest, self.read_at)
        return attestation_is_valid(keys, self.attestation, *fields)


def _of_world(session: str, step: Step, read: str, read_at: int) -> tuple[str, ...]:
    return ("world", session, step.tool, digest(step.args), read, str(read_at))


class IssueAction(Message):
    """Ask the session's owner about these literal steps. Idempotent by (session, action).

    `seals` are those of the inputs of the asking turn; consent takes "who asks" from them, not from the caller.
    """

    TO: ClassVar[Destination] = "consent"

    action: Slug
    turn: Slug
    steps: tuple[Step, ...]
    seals: tuple[Seal, ...]
    supersedes: tuple[Slug, ...] = ()
    """Open questions that this one takes the place of. Where one was accepted meanwhile, this one is not opened."""
    note: str = ""
    """The planner's own words. Never shown: only the lab switch `question_by_note` puts them into the question."""
    worlds: tuple[World | None, ...] = ()
    """For each step in order: what the door read of the world for it, where its tool has a precondition."""


class CancelAction(Message):
    """The asking turn no longer wants it: close the question if it is still open."""

    TO: ClassVar[Destination] = "consent"

    action: Slug
    reason: str


class SupersedeActions(Message):
    """A newer event makes these open questions wrong: close them as superseded. What was decided stays decided."""

    TO: ClassVar[Destination] = "consent"

    actions: tuple[Slug, ...]
    reason: str


class DecideByText(Message):
    """The approver typed `yes A1` or `no A1`. Consent reads the text itself and checks it against the seal."""

    TO: ClassVar[Destination] = "consent"

    text: str
    seal: Seal


class ActionAsked(Message):
    """The question is stored and open. `expires_at` in milliseconds (Unix), store time."""

    TO: ClassVar[Destination] = "session"

    action: Slug
    question: str
    question_digest: str
    approver: Slug
    expires_at: int


class ActionNotAsked(Message):
    """Consent refused to ask: too many open questions, or steps that cannot be shown."""

    TO: ClassVar[Destination] = "session"

    action: Slug
    reason: str
    limit: Literal["", "open_questions"] = ""
    """The limit that was reached, if that is why."""


class ActionClosed(Message):
    """The question is closed without a decision of the approver, or a grant ran out before it was used up."""

    TO: ClassVar[Destination] = "session"

    action: Slug
    state: Literal["expired", "superseded", "cancelled", "lapsed"]
    reason: str = ""


class DecisionRefused(Message):
    """A decision that came too late or did not fit; nothing ran. Shown as `action.refused`."""

    TO: ClassVar[Destination] = "session"

    action: Slug
    outcome: DecisionOutcome
    by: Slug
    text: str = ""

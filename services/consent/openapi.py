"""The HTTP interface of consent: its calls, and the models of what they take and give."""

from typing import Literal

from pydantic import BaseModel

from libs.contracts.canonical import JSON
from libs.contracts.ids import Slug
from libs.contracts.session import Step
from libs.contracts.standing import GrantRequest, GrantState
from libs.runtime.openapi import Operation, Parameter, document
from services.consent.edge import Decision


class ActionShown(BaseModel):
    """A consent request: what is asked of whom, and what became of it. Times in milliseconds (Unix)."""

    action: Slug
    session: Slug
    state: Literal["pending", "accepted", "declined", "expired", "superseded", "cancelled"]
    question: str
    question_digest: str
    approver: str
    source: str
    turn: str
    steps: list[Step]
    asked_at: int
    expires_at: int


class ActionsShown(BaseModel):
    """Oldest first."""

    actions: list[ActionShown]


class Receipt(BaseModel):
    """What the approver gets for a decision, and gets again when they repeat it."""

    session: Slug
    action: Slug
    decision: Literal["accept", "decline", "cancel"]
    state: Literal["accepted", "declined", "cancelled"]
    by: str
    decided_at: int
    question: str
    question_digest: str
    input: str


class UseShown(BaseModel):
    """One use of a standing approval."""

    operation: str
    session: str
    source: str
    at: int
    args: JSON
    state: str


class StandingShown(BaseModel):
    """What a user granted in advance. Times in milliseconds (Unix)."""

    id: str
    tool: Slug
    limits: dict[str, JSON]
    sources: list[str]
    uses: int
    left: int
    begins_at: int
    ends_at: int
    made_at: int
    revoked_at: int
    state: GrantState
    used: list[UseShown]


class StandingList(BaseModel):
    """Oldest first; those that ended are shown for a week."""

    standing: list[StandingShown]


_ACTIONS = "/v1/sessions/{session}/actions"
_STANDING = "/v1/users/{user}/standing"
_KEY = Parameter("Idempotency-Key", "header", {"type": "string", "minLength": 1, "maxLength": 256}, True,
                 "the same when you try again")  # fmt: skip

DOCUMENT = document(
    "consent",
    {
        ("GET", _ACTIONS): Operation(
            "The actions of a session", {200: ActionsShown}, who="user or operator", scope="read",
            problems=(400, 403, 404, 503),
        ),
        ("GET", _ACTIONS + "/{action}"): Operation(
            "One action", {200: ActionShown}, who="user or operator", scope="read", problems=(400, 403, 404, 503)
        ),
        ("POST", _ACTIONS + "/{action}/decision"): Operation(
            "Accept, decline or cancel; a repeat by the same person gets the same receipt",
            {200: Receipt},
            who="user",
            body=Decision,
            problems=(400, 403, 404, 409, 410, 412, 413, 503),
        ),
        ("GET", _STANDING): Operation(
            "What a user granted in advance, with each use", {200: StandingList}, who="user", problems=(400, 403, 503)
        ),
        ("POST", _STANDING): Operation(
            "Grant a tool in advance",
            {200: StandingShown, 201: StandingShown},
            who="user",
            body=GrantRequest,
            parameters=(_KEY,),
            problems=(400, 403, 404, 409, 413, 422, 503),
        ),
        ("DELETE", _STANDING): Operation(
            "Revoke all standing approvals of a user", {200: StandingList}, who="user", problems=(400, 403, 503)
        ),
        ("GET", _STANDING + "/{id}"): Operation(
            "One standing approval", {200: StandingShown}, who="user", problems=(400, 403, 404, 503)
        ),
        ("DELETE", _STANDING + "/{id}"): Operation(
            "Revoke one standing approval", {200: StandingShown}, who="user", problems=(400, 403, 404, 503)
        ),
    },
)  # fmt: skip

"""The HTTP interface of the session service: its calls, and the models of what they take and give."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import JSON
from libs.contracts.ids import Slug
from libs.contracts.session import TimelineLine
from libs.runtime.openapi import Operation, Parameter, document


class SessionNames(BaseModel):
    """The newest first."""

    sessions: list[Any]


class TurnShown(BaseModel):
    """The turn that runs, waits or is paused."""

    id: Slug
    origin: str
    status: str


class OperationShown(BaseModel):
    """An intended effect of the session."""

    id: str
    tool: Slug
    state: str
    subject: str
    gone: str | bool


class SessionShown(BaseModel):
    """A session's state. `applied` is the number of the last input that it took."""

    session: Slug
    owner: str
    version: int
    applied: int
    turn: TurnShown | None
    queued: int
    open_actions: list[Slug]
    operations: list[OperationShown]


class Timeline(BaseModel):
    """Lines in order."""

    lines: list[TimelineLine]


class History(BaseModel):
    """Chat messages, as a planner would get them now."""

    messages: list[dict[str, JSON]]


class Wish(BaseModel):
    """An event: `source`, `type`, `data`, for a CloudEvent its attributes in `ce`; a user's message: `text`, `as`; or a
    cancel: `cancel`, `as`."""

    model_config = ConfigDict(extra="allow")


class Found(BaseModel):
    """One thing that would be so, and the rule's place in the application file."""

    about: str
    says: str
    rule: str


class Explained(BaseModel):
    """What would become of it."""

    session: Slug
    findings: list[Found]


_NUMBER = {"type": "string", "pattern": "^[0-9]{1,18}$"}
_READ = (403, 404, 503)

DOCUMENT = document(
    "session",
    {
        ("GET", "/v1/sessions"): Operation(
            "Known sessions", {200: SessionNames}, who="operator", scope="read", problems=(503,)
        ),
        ("GET", "/v1/sessions/{session}"): Operation(
            "One session's state", {200: SessionShown}, who="user or operator", scope="read", problems=_READ
        ),
        ("GET", "/v1/sessions/{session}/timeline"): Operation(
            "Lines after a number; a stream of events where the client accepts text/event-stream",
            {200: Timeline},
            who="user or operator",
            scope="read",
            parameters=(
                Parameter("after", "query", _NUMBER, says="the seq of the last line that you have"),
                Parameter("Last-Event-ID", "header", _NUMBER, says="the same, as browsers send it"),
            ),
            more_media=("text/event-stream",),
            problems=(400, *_READ),
        ),
        ("GET", "/v1/sessions/{session}/history"): Operation(
            "What a planner is shown of the past", {200: History}, who="operator", scope="read", problems=_READ
        ),
        ("GET", "/v1/sessions/{session}/record"): Operation(
            "What the newest commits were decided from, for turnkeeper replay",
            {200: Any},
            who="operator",
            scope="read",
            problems=_READ,
        ),
        ("POST", "/v1/sessions/{session}/explain"): Operation(
            "What would become of an event or a message, and by which rule; changes nothing",
            {200: Explained},
            who="user or operator",
            scope="read",
            body=Wish,
            problems=(400, 413, *_READ),
        ),
    },
)

"""The HTTP interface of ingress: its calls, and the models of what they take and give."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from libs.contracts.canonical import JSON
from libs.contracts.cloudevents import REQUIRED, STRUCTURED
from libs.contracts.ids import Slug
from libs.runtime.openapi import SLUG, TEXT, Operation, Parameter, document

_KEY = Parameter("Idempotency-Key", "header", {"type": "string", "minLength": 1, "maxLength": 256}, True,
                 "quoted or bare; the same when you try again")  # fmt: skip
_ID = {"type": "string", "minLength": 1, "maxLength": 256}


class Delivered(BaseModel):
    """What became of a delivery."""

    status: Literal["accepted", "duplicate", "held", "quarantined"]
    id: str
    reason: str = ""


class Message(BaseModel):
    """What the owner says."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1)


class EventFound(BaseModel):
    """What became of an event."""

    source: Slug
    event: str
    id: str
    status: str
    mark: str
    outcome: str | None
    session: str = ""
    number: int = 0


class SessionWish(BaseModel):
    """Whose session it shall be. `trial` is for tests."""

    owner: Slug
    trial: JSON = None


class SessionMade(BaseModel):
    """The session, and how many events had waited for it."""

    session: Slug
    owner: Slug
    released: int


class HeldEvent(BaseModel):
    """An event that waits for a subject or a session until `deadline`, in milliseconds (Unix)."""

    id: str
    source: str
    event: str
    type: str
    subject: str
    session: str
    accepted_at: int
    deadline: int


class HeldEvents(BaseModel):
    """What waits, by deadline."""

    held: list[HeldEvent]


class ReleaseWish(BaseModel):
    """A subject, and the session that it belongs to for good; `force` registers one for which nothing waits."""

    subject: str = Field(min_length=1, max_length=256)
    session: Slug
    force: bool = False


class Released(BaseModel):
    """How many events went on."""

    subject: str
    session: Slug
    released: int


class QuarantineEntry(BaseModel):
    """An event that is not acted on as it is, and why."""

    id: str
    reason: str


class Quarantine(BaseModel):
    """The entries, newest first, without their bodies."""

    quarantine: list[QuarantineEntry]


class LetIn(BaseModel):
    """The session, where the event names none."""

    session: str = ""


class LogLine(BaseModel):
    """One delivery that did not go the usual way."""

    seq: int
    at: int
    kind: str
    source: str
    text: str


class LogLines(BaseModel):
    """The lines of this replica, oldest first."""

    lines: list[LogLine]


class TimerShown(BaseModel):
    """A pending timer. Times in milliseconds (Unix)."""

    timer: Slug
    next: int
    rule: str
    zone: str
    due: int
    misfire: str
    lateness: int
    subject: str
    data: JSON
    setter: str
    operation: str
    set_at: int
    fired: int
    skipped: int


class Timers(BaseModel):
    """The next to fire first."""

    timers: list[TimerShown]


_CLOUD_EVENT: dict[str, Any] = {
    "type": "object",
    "required": list(REQUIRED),
    "properties": {
        "specversion": {"const": "1.0"},
        **{name: {"type": "string", "minLength": 1} for name in ("id", "source", "type", "subject")},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": TEXT,
        "dataschema": {"type": "string", "format": "uri"},
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
    "propertyNames": {"pattern": "^([a-z0-9]{1,64}|data_base64)$"},
}
_AFTER = Parameter("after", "query", {"type": "string", "pattern": "^[0-9]{1,18}$"}, says="lines with a higher number")
_SPEAKING = (400, 401, 403, 404, 408, 413, 415, 429, 503)
_OFFICE = (400, 408, 413, 503)

DOCUMENT = document(
    "ingress",
    {
        ("POST", "/v1/events/{source}"): Operation(
            "A sender's event, verified over its raw bytes by the scheme of the source",
            {200: Delivered, 202: Delivered},
            body={"application/json": {"schema": {}}, STRUCTURED: {"schema": _CLOUD_EVENT}},
            problems=(400, 401, 404, 408, 413, 415, 422, 429, 503),
        ),
        ("GET", "/v1/events/{source}/{event_id}"): Operation(
            "What became of an event",
            {200: EventFound},
            who="operator",
            scope="read",
            path={"event_id": _ID},
            parameters=(Parameter("ce_source", "query", TEXT, says="for a CloudEvent: its source attribute"),),
            problems=(404, 503),
        ),
        ("PUT", "/v1/sessions/{session}"): Operation(
            "Make a session with its owner, once",
            {200: SessionMade, 201: SessionMade},
            who="operator",
            scope="sessions",
            body=SessionWish,
            problems=(*_OFFICE, 409),
        ),
        ("POST", "/v1/sessions/{session}/messages"): Operation(
            "The owner speaks",
            {200: Delivered, 202: Delivered},
            who="user",
            body=Message,
            parameters=(_KEY,),
            problems=_SPEAKING,
        ),
        ("POST", "/v1/sessions/{session}/cancel"): Operation(
            "The owner stops the running turn",
            {200: Delivered, 202: Delivered},
            who="user",
            parameters=(_KEY,),
            problems=_SPEAKING,
        ),
        ("GET", "/v1/sessions/{session}/timers"): Operation(
            "Pending timers",
            {200: Timers},
            who="user or operator",
            scope="read",
            problems=(403, 404, 503),
        ),
        ("GET", "/v1/held"): Operation(
            "What waits for a subject or a session", {200: HeldEvents}, who="operator", scope="read", problems=(503,)
        ),
        ("POST", "/v1/held/release"): Operation(
            "Register a subject by hand and release what waits for it",
            {200: Released},
            who="operator",
            scope="release",
            body=ReleaseWish,
            problems=(*_OFFICE, 404, 409),
        ),
        ("GET", "/v1/quarantine"): Operation(
            "What must not be acted on as it is", {200: Quarantine}, who="operator", scope="read", problems=(503,)
        ),
        ("GET", "/v1/quarantine/{id}"): Operation(
            "One entry with its body",
            {200: QuarantineEntry},
            who="operator",
            scope="read",
            path={"id": SLUG},
            problems=(404, 503),
        ),
        ("POST", "/v1/quarantine/{id}/release"): Operation(
            "Let it in, as an event of its own",
            {200: Delivered, 202: Delivered},
            who="operator",
            scope="release",
            body=LetIn,
            body_required=False,
            problems=(*_OFFICE, 404),
        ),
        ("GET", "/v1/log"): Operation(
            "The newest deliveries of this replica that did not go the usual way",
            {200: LogLines},
            who="operator",
            scope="read",
            parameters=(_AFTER,),
            problems=(400,),
        ),
    },
)

"""What a client asks of a deployment, apart from how: each call as a value, so that the two clients send the same."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NotRequired, TypedDict, TypeVar
from urllib.parse import quote

import httpx2
import orjson

from libs.contracts.canonical import JSON
from libs.contracts.consent import Verdict
from libs.contracts.faults import Fault
from libs.contracts.ids import is_slug, is_text_id
from libs.contracts.session import TimelineLine
from turnkeeper.signing import Outward

T = TypeVar("T")


class ClientError(Exception):
    """What was asked did not happen. The text is one line and says what to do next."""


class Unreachable(ClientError):
    """No answer: whether the request was handled is not known. Sending it again with its id is safe."""


class Refused(ClientError):
    """The service said no: `status`, the problem's `code` (last part of its type) and its `title`."""

    def __init__(self, status: int, code: str, title: str, detail: str = "") -> None:
        super().__init__(f"{title} ({status} {code})" + (f": {detail}" if detail else ""))
        self.status = status
        self.code = code
        self.title = title
        self.detail = detail


@dataclass(frozen=True)
class Answer:
    """What a service answered to something that was sent to it."""

    status: int
    body: Mapping[str, Any]
    event: str = ""
    """Of what was published: its id."""

    @property
    def said(self) -> str:
        """The answer in a word: `accepted`, `duplicate`, `held`, or the problem's code."""
        code = str(self.body.get("type", "")).rpartition("/")[2]
        return str(self.body["status"]) if isinstance(self.body.get("status"), str) else code or str(self.status)


class ActionStep(TypedDict):
    """A step that a yes would approve: tool and literal arguments."""

    tool: str
    args: dict[str, Any]


class Action(TypedDict):
    """A question to the approver, as consent shows it. Times are in milliseconds (Unix)."""

    action: str
    session: str
    state: str
    """`pending accepted declined expired superseded cancelled`"""
    question: str
    question_digest: str
    approver: str
    source: str
    turn: str
    steps: list[ActionStep]
    asked_at: int
    expires_at: int
    decided_at: NotRequired[int]
    decided_by: NotRequired[str]
    reason: NotRequired[str]
    relies_on: NotRequired[Any]
    grant: NotRequired[dict[str, Any]]


class Receipt(TypedDict):
    """What a decision came to; the same again for whoever repeats it. `decided_at` in milliseconds (Unix)."""

    session: str
    action: str
    decision: str
    state: str
    by: str
    decided_at: int
    question: str
    question_digest: str
    input: str
    """The input that the decision became."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request to one service, and how its answer is read."""

    service: str
    method: str
    path: str
    read: Callable[[Answer], T]
    user: str | None = None
    """Whose token goes with it; None: the operator's, unless `open`."""
    open: bool = False
    """Nobody's token goes with it: what it carries is signed, or it is for everybody."""
    key: str | None = None
    """Its Idempotency-Key."""
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str | int] = field(default_factory=dict)
    refusable: bool = False
    """A refusal is an answer like another, and not raised."""

    def request(self, token: str | None) -> dict[str, Any]:
        """Keyword arguments of the request, with a bearer token."""
        headers = dict(self.headers)
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if self.key is not None:
            headers["idempotency-key"] = self.key
        what: dict[str, Any] = {"headers": headers, "params": dict(self.params)}
        if self.content is not None:
            what["content"] = self.content
        if self.json is not None:
            what["json"] = self.json
        return what

    def answered(self, response: httpx2.Response) -> T:
        """What it came to. Raises Refused."""
        return self.read(answer_of(response) if self.refusable else accepted(response))


# -- events


def deliver(outward: Outward) -> Call[Answer]:
    """A signed event, as it is. A refusal is its answer."""
    return Call(
        "ingress", "POST", path("events", slug(outward.source, "source")),
        lambda answer: Answer(answer.status, answer.body, outward.event),
        open=True, content=outward.body, headers=outward.headers, refusable=True,
    )  # fmt: skip


def let_in(answer: Answer, source: str) -> Answer:
    """The answer to an event, unless it was turned away. Raises Refused, which names the event."""
    if answer.status >= 400:
        title = str(answer.body.get("title") or "rejected")
        detail = str(answer.body.get("detail") or "")
        raise Refused(answer.status, answer.said, f"{source} {answer.event}: {title}", detail)
    return answer


def event_outcome(source: str, event: str) -> Call[dict[str, Any]]:
    """What became of an event."""
    return Call("ingress", "GET", path("events", slug(source, "source"), text_id(event, "event's id")), body_of)


# -- users


def say(session: str, text: str, user: str, key: str | None) -> Call[Answer]:
    """A user's message."""
    return sent("ingress", in_session(session, "messages"), {"text": text}, user, key, whole)


def cancel(session: str, user: str, key: str | None) -> Call[Answer]:
    """The owner's cancel."""
    return sent("ingress", in_session(session, "cancel"), {}, user, key, whole)


def decide(session: str, action: str, verdict: Verdict, user: str, question_digest: str) -> Call[Receipt]:
    """A user's decision."""
    body = {"decision": verdict, "question_digest": question_digest}
    where = in_session(session, "actions", slug(action, "action"), "decision")
    return sent("consent", where, body, user, None, body_of)


# -- sessions


def create_session(session: str, owner: str, trial: bool | Sequence[Fault] = False) -> Call[Answer]:
    """A session with its owner."""
    body: dict[str, Any] = {"owner": slug(owner, "user")}
    if trial is True:
        body["trial"] = True
    elif trial is not False:
        body["trial"] = {"faults": [fault.model_dump() for fault in trial]}
    return Call("ingress", "PUT", in_session(session), whole, json=body)


def sessions() -> Call[list[str]]:
    """Known sessions."""
    return Call("session", "GET", "/v1/sessions", lambda answer: list(answer.body["sessions"]))


def session(name: str, user: str | None) -> Call[dict[str, Any]]:
    """A session's state."""
    return Call("session", "GET", in_session(name), body_of, user=user)


def timeline(session: str, after: int, user: str | None) -> Call[list[TimelineLine]]:
    """Lines after a number."""
    return Call("session", "GET", in_session(session, "timeline"), _lines, user=user, params={"after": after})


def stream(session: str, after: int, user: str | None) -> Call[Answer]:
    """The same lines as server-sent events, for as long as somebody listens."""
    headers = {"accept": "text/event-stream", "last-event-id": str(after)}
    return Call("session", "GET", in_session(session, "timeline"), whole, user=user, headers=headers)


def line_of(text: str) -> TimelineLine | None:
    """The timeline line in a line of a stream, None where it holds none."""
    found = text.removeprefix("data: ")
    return TimelineLine.model_validate_json(found) if found != text else None


# -- consent


def actions(session: str, user: str | None) -> Call[list[Action]]:
    """A session's actions."""
    return Call(
        "consent", "GET", in_session(session, "actions"), lambda answer: list(answer.body["actions"]), user=user
    )


def action(session: str, id: str, user: str | None) -> Call[Action]:
    """One action."""
    return Call("consent", "GET", in_session(session, "actions", slug(id, "action")), body_of, user=user)


# -- the ledger


def operations(session: str | None, state: str | None) -> Call[list[dict[str, Any]]]:
    """Operations of a session, or of all."""
    chosen = {"session": slug(session, "session")} if session is not None else {}
    if state is not None:
        chosen["state"] = state
    return Call("tools", "GET", "/v1/operations", lambda answer: list(answer.body["operations"]), params=chosen)


def operation(session: str, id: str) -> Call[dict[str, Any]]:
    """One operation."""
    return Call("tools", "GET", path("operations", slug(session, "session"), slug(id, "operation")), body_of)


# -- how answers are read


def sent(
    service: str, where: str, body: Mapping[str, JSON], user: str, key: str | None, read: Callable[[Answer], T]
) -> Call[T]:
    """What a user sends, with an Idempotency-Key, drawn if None."""
    chosen = f"msg_{secrets.token_hex(8)}" if key is None else text_id(key, "key")
    return Call(service, "POST", where, read, user=user, key=chosen, json=dict(body))


def whole(answer: Answer) -> Answer:
    return answer


def body_of(answer: Answer) -> Any:
    return dict(answer.body)


def _lines(answer: Answer) -> list[TimelineLine]:
    return [TimelineLine.model_validate(line) for line in answer.body["lines"]]


def answer_of(response: httpx2.Response) -> Answer:
    """An answer, whatever it says."""
    body = json_of(response)
    return Answer(response.status_code, body if isinstance(body, dict) else {})


def accepted(response: httpx2.Response) -> Answer:
    """The answer, unless it is a refusal: then Refused is raised with its problem."""
    told = answer_of(response)
    if response.is_success:
        return told
    code = str(told.body.get("type", "")).rpartition("/")[2] or "http"
    title = str(told.body.get("title") or response.reason_phrase or "refused")
    raise Refused(response.status_code, code, title, str(told.body.get("detail") or ""))


def json_of(response: httpx2.Response) -> Any:
    """The JSON value of an answer, None where it is none."""
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None


# -- paths


def path(*parts: str) -> str:
    """A path below /v1, each part as one segment of it."""
    return "/".join(("/v1", *(quote(part, safe="") for part in parts)))


def in_session(session: str, *parts: str) -> str:
    """A path below a session's."""
    return path("sessions", slug(session, "session"), *parts)


def slug(text: str, what: str) -> str:
    """The text, if it may be such an id. Raises ClientError."""
    if not is_slug(text):
        raise ClientError(f"{text!r} cannot be {_a(what)}'s id: letters, digits, - and _ only, 1 to 64 of them")
    return text


def text_id(text: str, what: str) -> str:
    """The text, if it may be an event's id or a key. Raises ClientError."""
    if not is_text_id(text):
        shown = "nothing" if not text else repr(text[:40])
        raise ClientError(f"{shown} cannot be {_a(what)}: 1 to 256 bytes of UTF-8 without control characters")
    return text


def _a(what: str) -> str:
    return f"an {what}" if what[0] in "aeo" else f"a {what}"

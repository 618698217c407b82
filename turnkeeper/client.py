"""A small client of a deployment: its four services over HTTP, its exchange over AMQP.

Synchronous, since scripts and the command line are; each call is one request. A refusal raises `Refused` with the
problem that the service told (RFC 9457); a service that does not answer raises `Unreachable`.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import aio_pika
import httpx2
import orjson

from libs.contracts.application import ApplicationError, Source
from libs.contracts.canonical import JSON
from libs.contracts.consent import Verdict
from libs.contracts.faults import Fault
from libs.contracts.ids import is_slug, is_text_id
from libs.contracts.session import TimelineLine
from turnkeeper.engines import probe
from turnkeeper.signing import Outward, sign_event, user_token
from turnkeeper.target import Target, TargetError

Via = Literal["http", "amqp"]
TIMEOUT_SECONDS = 10.0
CONFIRM_SECONDS = 10.0
SEALS_AT_ONCE = 200
MOST_SESSIONS = 1_000
"""The session service lists so many, the newest."""
T = TypeVar("T")
_NOT_SENT = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, UnicodeError)
"""What is raised before anything is sent: the request cannot be written down."""


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

    @property
    def said(self) -> str:
        """The answer in a word: `accepted`, `duplicate`, `held`, or the problem's code."""
        code = str(self.body.get("type", "")).rpartition("/")[2]
        return str(self.body["status"]) if isinstance(self.body.get("status"), str) else code or str(self.status)


class Client:
    """One deployment. Close it, or use it as a context manager."""

    def __init__(self, target: Target, http: httpx2.Client | None = None) -> None:
        self.target = target
        # No proxies from the environment: what we speak to is named by its URL.
        self._http = http or httpx2.Client(timeout=TIMEOUT_SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # -- events

    def sign(
        self, source: str, *, event: str | None = None, type: str = "", data: JSON = None, seconds: int | None = None
    ) -> Outward:
        """An event of a source, signed with its scheme as of `seconds` (Unix, now if None).

        Raises ClientError for an unknown source, SigningError for one that cannot be signed for.
        """
        return sign_event(
            source,
            self.source(source),
            self.target.environment,
            event=f"evt_{secrets.token_hex(8)}" if event is None else _text_id(event, "event's id"),
            type=type,
            data={} if data is None else data,
            seconds=int(time.time()) if seconds is None else seconds,
        )

    def source(self, name: str) -> Source:
        """A source of the application file. Raises ClientError."""
        try:
            sources = self.target.application().sources
        except ApplicationError as error:
            raise ClientError(f"the application file has faults: {'; '.join(error.faults)}") from error
        if name not in sources:
            raise ClientError(f"there is no source {name!r}: {self.target.config} has {', '.join(sources)}")
        return sources[name]

    def deliver(self, outward: Outward, via: Via = "http") -> Answer:
        """Send a signed event as it is. Over HTTP the answer is ingress's, a refusal included; over AMQP it is the
        broker's confirm: status 202, `published`."""
        if via == "amqp":
            over_amqp(self.target, _publish(self.target, outward))
            return Answer(202, {"status": "published", "id": outward.event})
        if self.source(outward.source).verify.scheme == "broker-user":
            raise ClientError(f"{outward.source} is verified by the broker: use --via amqp")
        url = _path("events", _slug(outward.source, "source"))
        return _answer(self._send("ingress", "POST", url, content=outward.body, headers=outward.headers))

    def event_outcome(self, source: str, event: str) -> dict[str, Any]:
        """What became of an event (operator). Raises Refused 404 for one that was never let in."""
        return self._get("ingress", _path("events", _slug(source, "source"), _text_id(event, "event's id")))

    # -- users

    def say(self, session: str, text: str, user: str, key: str | None = None) -> Answer:
        """A user's message; `key` is its Idempotency-Key, drawn if None. Raises Refused."""
        return self._as_user(user, "ingress", _in_session(session, "messages"), {"text": text}, key)

    def cancel(self, session: str, user: str, key: str | None = None) -> Answer:
        """The owner's cancel. Raises Refused."""
        return self._as_user(user, "ingress", _in_session(session, "cancel"), {}, key)

    def decide(self, session: str, action: str, verdict: Verdict, user: str, question_digest: str) -> dict[str, Any]:
        """A user's decision; the receipt. Raises Refused."""
        body = {"decision": verdict, "question_digest": question_digest}
        path = _in_session(session, "actions", _slug(action, "action"), "decision")
        answer = self._as_user(user, "consent", path, body)
        return dict(answer.body)

    def standing(self, user: str) -> list[dict[str, Any]]:
        """A user's standing approvals with each use, oldest first. Raises Refused."""
        answer = self._send("consent", "GET", _standing(user), headers=self._bearer(user))
        return list(_accepted(answer).body["standing"])

    def grant_standing(self, user: str, wish: Mapping[str, JSON], key: str | None = None) -> dict[str, Any]:
        """Grant a tool in advance; `key` is the wish's Idempotency-Key, drawn if None. Raises Refused."""
        return dict(self._as_user(user, "consent", _standing(user), wish, key).body)

    def revoke_standing(self, user: str, id: str) -> dict[str, Any]:
        """Take a standing approval back. Raises Refused 404 where there is none."""
        path = _standing(user, _slug(id, "approval"))
        return dict(_accepted(self._send("consent", "DELETE", path, headers=self._bearer(user))).body)

    def user_token(self, user: str) -> str:
        """A token for a user. Raises TargetError where the secret is not known, ClientError for no user's id."""
        return user_token(self.target.user_token_secret(), _slug(user, "user"), int(time.time()))

    # -- sessions

    def create_session(self, session: str, owner: str, trial: bool | Sequence[Fault] = False) -> Answer:
        """Make a session; its owner is written once. `trial`, for tests only: with the faults of the application file,
        or with these. Raises Refused."""
        body: dict[str, Any] = {"owner": _slug(owner, "user")}
        if trial is True:
            body["trial"] = True
        elif trial is not False:
            body["trial"] = {"faults": [fault.model_dump() for fault in trial]}
        return _accepted(self._send("ingress", "PUT", _in_session(session), json=body, headers=self._operator()))

    def sessions(self) -> list[str]:
        """Known sessions, newest first."""
        return list(self._get("session", "/v1/sessions")["sessions"])

    def session(self, session: str) -> dict[str, Any]:
        """A session's state. Raises Refused."""
        return self._get("session", _in_session(session))

    def history(self, session: str) -> list[dict[str, Any]]:
        """What the planner is shown of a session, as chat messages. Raises Refused."""
        return list(self._get("session", _in_session(session, "history"))["messages"])

    def record(self, session: str) -> bytes:
        """What each of a session's newest commits was decided from, as JSON for a replay. Raises Refused."""
        answer = self._send("session", "GET", _in_session(session, "record"), headers=self._operator())
        _accepted(answer)
        return answer.content

    def explain(self, session: str, event: Mapping[str, JSON]) -> list[dict[str, Any]]:
        """What would become of an event, `{"source", "type", "data"}` or `{"text", "as"}`. Raises Refused."""
        path = _in_session(session, "explain")
        answer = _accepted(self._send("session", "POST", path, json=dict(event), headers=self._operator()))
        return list(answer.body["findings"])

    def timeline(self, session: str, after: int = 0) -> list[TimelineLine]:
        """Lines with a higher number than `after`. Raises Refused."""
        lines = self._get("session", _in_session(session, "timeline"), after=after)["lines"]
        return [TimelineLine.model_validate(line) for line in lines]

    def follow(self, session: str, after: int = 0) -> Iterator[TimelineLine]:
        """Lines as they come, for ever; a lost connection is made again after the last line seen. Raises Refused."""
        self.session(session)  # so that a wrong name is told at once
        while True:
            with contextlib.suppress(Unreachable):
                for line in self._stream(session, after):
                    after = line.seq
                    yield line
            time.sleep(0.5)

    def _stream(self, session: str, after: int) -> Iterator[TimelineLine]:
        url = self.target.url("session") + _in_session(session, "timeline")
        headers = {**self._operator(), "accept": "text/event-stream", "last-event-id": str(after)}
        try:
            with self._http.stream("GET", url, headers=headers, timeout=httpx2.Timeout(30.0)) as answer:
                if answer.status_code != 200:
                    answer.read()
                    _accepted(answer)
                for text in answer.iter_lines():
                    if text.startswith("data: "):
                        yield TimelineLine.model_validate_json(text.removeprefix("data: "))
        except _NOT_SENT as error:
            raise _not_sent("session", self.target.url("session"), error) from error
        except httpx2.TransportError as error:
            raise _away("session", self.target.url("session"), error) from error

    def timers(self, session: str) -> list[dict[str, Any]]:
        """A session's pending timers, the next to fire first. Raises Refused."""
        return list(self._get("ingress", _in_session(session, "timers"))["timers"])

    # -- consent

    def actions(self, session: str) -> list[dict[str, Any]]:
        """A session's actions, oldest first. Raises Refused."""
        return list(self._get("consent", _in_session(session, "actions"))["actions"])

    def action(self, session: str, action: str) -> dict[str, Any]:
        """One action. Raises Refused."""
        return self._get("consent", _in_session(session, "actions", _slug(action, "action")))

    # -- the ledger

    def operations(self, session: str | None = None, state: str | None = None) -> list[dict[str, Any]]:
        """Operations of a session, or of all where they are unknown or pending. Raises Refused."""
        chosen = {"session": _slug(session, "session")} if session is not None else {}
        if state is not None:
            chosen["state"] = state
        return list(self._get("tools", "/v1/operations", **chosen)["operations"])

    def operation(self, session: str, operation: str) -> dict[str, Any]:
        """One operation, by its id (`O3`) or key. Raises Refused."""
        named = _slug(operation, "operation")
        return self._get("tools", _path("operations", _slug(session, "session"), named))

    def evidence(self, session: str) -> dict[str, Any]:
        """A session's evidence as it is stored (operator), sealed up to now. Raises Refused."""
        return self._get("tools", _in_session(session, "evidence"))

    def judge_seals(self, session: str, seals: Mapping[str, JSON]) -> dict[str, bool]:
        """Whether seals, by input, are ours: only who holds the seal keys can say (operator). Raises Refused."""
        url, found = _in_session(session, "evidence", "seals"), {}
        names = list(seals)
        for at in range(0, len(names), SEALS_AT_ONCE):
            body = {"seals": {name: seals[name] for name in names[at : at + SEALS_AT_ONCE]}}
            found.update(_accepted(self._send("tools", "POST", url, json=body, headers=self._operator())).body["seals"])
        return found

    def resolve(self, session: str, operation: str, state: str, note: str) -> dict[str, Any]:
        """An operator's word on an unknown outcome. Raises Refused."""
        body = {"state": state, "note": note}
        url = _in_session(session, "operations", _slug(operation, "operation"), "resolve")
        return dict(_accepted(self._send("tools", "POST", url, json=body, headers=self._operator())).body)

    # -- the kill switch

    def pause(self, kind: str, name: str = "", note: str = "", wait_seconds: float = 2.0) -> dict[str, Any]:
        """Stop sends; `stopped` says whether none begins any more. Raises Refused for what is not there."""
        body: dict[str, JSON] = {"kind": kind, "name": name, "note": note, "wait_seconds": wait_seconds}
        return dict(_accepted(self._send("tools", "POST", "/v1/pauses", json=body, headers=self._operator())).body)

    def pauses(self) -> list[dict[str, Any]]:
        """What is paused, oldest first."""
        return list(self._get("tools", "/v1/pauses")["pauses"])

    def resume(self, kind: str, name: str = "") -> dict[str, Any]:
        """Let sends begin again; `ended` says whether they were paused."""
        named = [_slug(name, kind)] if name else []
        path = _path("pauses", _slug(kind, "kind"), *named)
        return dict(_accepted(self._send("tools", "DELETE", path, headers=self._operator())).body)

    # -- what did not go the usual way

    def held(self) -> list[dict[str, Any]]:
        """Events that wait for their subject or session."""
        return list(self._get("ingress", "/v1/held")["held"])

    def release_held(self, body: Mapping[str, JSON]) -> dict[str, Any]:
        """Deliver held events now. Raises Refused."""
        return dict(
            _accepted(self._send("ingress", "POST", "/v1/held/release", json=body, headers=self._operator())).body
        )

    def quarantine(self) -> list[dict[str, Any]]:
        """Events that must not be acted on as they are."""
        return list(self._get("ingress", "/v1/quarantine")["quarantine"])

    def quarantined(self, id: str) -> dict[str, Any]:
        """One of them, with its body. Raises Refused."""
        return self._get("ingress", _path("quarantine", _text_id(id, "quarantined event's id")))

    def release_quarantined(self, id: str, session: str | None = None) -> dict[str, Any]:
        """Let one in as an event of its own. Raises Refused."""
        body = {} if session is None else {"session": _slug(session, "session")}
        url = _path("quarantine", _text_id(id, "quarantined event's id"), "release")
        return dict(_accepted(self._send("ingress", "POST", url, json=body, headers=self._operator())).body)

    def ingress_log(self) -> list[dict[str, Any]]:
        """Recent deliveries that were rejected, dropped, held or quarantined, of every known replica, by time."""
        lines: list[dict[str, Any]] = []
        for url in self.target.all_urls("ingress"):
            answer = self._request("ingress", url, "GET", "/v1/log", headers=self._operator())
            lines += _accepted(answer).body["lines"]
        return sorted(lines, key=lambda line: (line["at"], line["seq"]))

    # -- how it is

    def metrics(self, service: str) -> str:
        """The metrics of all known replicas of a service, as text."""
        return "\n".join(self._request(service, url, "GET", "/metrics").text for url in self.target.all_urls(service))

    def readiness(self, service: str, url: str) -> tuple[bool, dict[str, Any]]:
        """Whether one replica is ready, and what it says: `faults`, `warnings`. Raises Unreachable."""
        answer = self._request(service, url, "GET", "/readyz")
        body = _json(answer)
        return answer.status_code == 200, body if isinstance(body, dict) else {}

    # -- the sandbox, as people of the demo's world use it

    def world(self) -> dict[str, Any]:
        """The sandbox's records, and lines for people."""
        return dict(_accepted(self._request("sandbox", self.target.sandbox_url(), "GET", "/v1/world")).body)

    def effects(self) -> list[dict[str, Any]]:
        """The sandbox's log: every effect and refusal, in order."""
        answer = self._request("sandbox", self.target.sandbox_url(), "GET", "/v1/log")
        return list(_accepted(answer).body["entries"])

    def change_world(self, actor: str, collection: str, where: Mapping[str, JSON], set: Mapping[str, JSON]) -> None:
        """Somebody of that world changes their own records. Raises Refused."""
        _accepted(
            self._request(
                "sandbox",
                self.target.sandbox_url(),
                "POST",
                _path(collection, "change"),
                json={"where": dict(where), "set": dict(set)},
                headers={"turnkeeper-actor": actor},
            )
        )

    def hold(self, collection: str) -> None:
        """Let the sandbox's effects in a collection wait. Raises Refused for one that is not there."""
        self._holds("POST", collection)

    def release(self, collection: str, calls: int | None = None) -> None:
        """Let the oldest so many of them go on; None: all, and the collection is held no more. Raises Refused."""
        self._holds("DELETE", collection, **({} if calls is None else {"calls": calls}))

    def waiting(self) -> dict[str, int]:
        """Held collections of the sandbox, and how many calls wait in each."""
        return self._holds("GET")

    def _holds(self, method: str, *collection: str, **query: int) -> dict[str, int]:
        answer = self._request("sandbox", self.target.sandbox_url(), method, _path("holds", *collection), params=query)
        return dict(_accepted(answer).body["waiting"])

    # -- how it is asked

    def _get(self, service: str, path: str, **query: str | int) -> dict[str, Any]:
        return dict(_accepted(self._send(service, "GET", path, params=query, headers=self._operator())).body)

    def _operator(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.target.operator_token()}"}

    def _bearer(self, user: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.user_token(user)}"}

    def _as_user(self, user: str, service: str, path: str, body: Mapping[str, JSON], key: str | None = None) -> Answer:
        headers = {
            **self._bearer(user),
            "idempotency-key": f"msg_{secrets.token_hex(8)}" if key is None else _text_id(key, "key"),
        }
        return _accepted(self._send(service, "POST", path, json=dict(body), headers=headers))

    def _send(self, service: str, method: str, path: str, **what: Any) -> httpx2.Response:
        return self._request(service, self.target.url(service), method, path, **what)

    def _request(self, service: str, base: str, method: str, path: str, **what: Any) -> httpx2.Response:
        try:
            return self._http.request(method, base + path, **what)
        except _NOT_SENT as error:
            raise _not_sent(service, base, error) from error
        except httpx2.TransportError as error:
            raise _away(service, base, error) from error


def over_amqp(target: Target, work: Coroutine[Any, Any, T]) -> T:
    """Run one exchange with the broker to its end. Raises Unreachable where it does not answer or refuses, ClientError
    for what AMQP cannot carry or a queue that is not there."""
    try:
        return asyncio.run(work)
    except aio_pika.exceptions.ChannelNotFoundEntity as error:
        raise ClientError(_missing(target, str(error))) from error
    except (UnicodeError, ValueError) as error:
        raise ClientError(
            f"AMQP cannot carry this ({error}): a source and type of at most 255 bytes together"
        ) from error
    except (TimeoutError, OSError, aio_pika.exceptions.AMQPError) as error:
        where = probe.place(target.amqp_url())
        raise Unreachable(
            f"RabbitMQ at {where} did not do it ({type(error).__name__}): is it up? turnkeeper doctor"
        ) from error


async def _publish(target: Target, outward: Outward) -> None:
    """Publish to the events exchange as any publisher does, and wait for the broker's confirm."""
    connection = await aio_pika.connect(target.amqp_url(), timeout=CONFIRM_SECONDS)
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.get_exchange(target.topology().events, ensure=False)
        routing_key = f"{outward.source}.{outward.type}" if outward.type else outward.source
        message = aio_pika.Message(
            outward.body,
            headers=dict(outward.headers),
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await exchange.publish(message, routing_key, mandatory=True, timeout=CONFIRM_SECONDS)


def _missing(target: Target, told: str) -> str:
    """Which queue or exchange the broker does not have, in its words: `NOT_FOUND - no queue 'x' in vhost '/'`."""
    what = told.partition("NOT_FOUND - ")[2].partition(" in vhost")[0] or told
    namespace = f"namespace {target.namespace!r}" if target.namespace else "no namespace"
    return (
        f"RabbitMQ at {probe.place(target.amqp_url())} has {what}: this command goes by {namespace}, "
        "is that the deployment's TURNKEEPER_NAMESPACE?"
    )


def _not_sent(service: str, url: str, error: Exception) -> ClientError:
    return ClientError(
        f"HTTP cannot carry this to {service} at {url} ({' '.join(str(error).split())}): "
        "check the URL, and use plain ASCII for ids and tokens"
    )


def _away(service: str, url: str, error: Exception) -> Unreachable:
    return Unreachable(
        f"{service} at {url} does not answer ({type(error).__name__}): is it up? turnkeeper status, turnkeeper doctor"
    )


def _json(answer: httpx2.Response) -> Any:
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None


def _answer(answer: httpx2.Response) -> Answer:
    body = _json(answer)
    return Answer(answer.status_code, body if isinstance(body, dict) else {})


def _accepted(answer: httpx2.Response) -> Answer:
    """The answer, unless it is a refusal: then Refused is raised with its problem."""
    told = _answer(answer)
    if answer.is_success:
        return told
    code = str(told.body.get("type", "")).rpartition("/")[2] or "http"
    title = str(told.body.get("title") or answer.reason_phrase or "refused")
    raise Refused(answer.status_code, code, title, str(told.body.get("detail") or ""))


def _path(*parts: str) -> str:
    """A path below /v1, each part as one segment of it."""
    return "/".join(("/v1", *(quote(part, safe="") for part in parts)))


def _in_session(session: str, *parts: str) -> str:
    """A path below a session's."""
    return _path("sessions", _slug(session, "session"), *parts)


def _standing(user: str, *parts: str) -> str:
    """A path below a user's standing approvals."""
    return _path("users", _slug(user, "user"), "standing", *parts)


def _a(what: str) -> str:
    return f"an {what}" if what[0] in "aeo" else f"a {what}"


def _slug(text: str, what: str) -> str:
    """The text, if it may be such an id. Raises ClientError."""
    if not is_slug(text):
        raise ClientError(f"{text!r} cannot be {_a(what)}'s id: letters, digits, - and _ only, 1 to 64 of them")
    return text


def _text_id(text: str, what: str) -> str:
    """The text, if it may be an event's id or a key. Raises ClientError."""
    if not is_text_id(text):
        shown = "nothing" if not text else repr(text[:40])
        raise ClientError(f"{shown} cannot be {_a(what)}: 1 to 256 bytes of UTF-8 without control characters")
    return text


__all__ = [
    "Answer",
    "Client",
    "ClientError",
    "Refused",
    "TargetError",
    "Unreachable",
    "Via",
    "over_amqp",
]

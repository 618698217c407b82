"""The Python client of a deployment: its four services over HTTP, its exchange over AMQP.

`Client` is synchronous, since scripts and the command line are; `AsyncClient` (turnkeeper.async_client) sends the same
requests from an event loop. Each call is one request. A refusal raises `Refused` with the problem that the service told
(RFC 9457); a service that does not answer raises `Unreachable`.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import aio_pika
import httpx2

from libs.contracts.application import ApplicationError, Source
from libs.contracts.canonical import JSON
from libs.contracts.consent import Verdict
from libs.contracts.faults import Fault
from libs.contracts.session import TimelineLine
from turnkeeper import calls
from turnkeeper.calls import Action, Answer, Call, ClientError, Receipt, Refused, Unreachable
from turnkeeper.calls import accepted as _accepted
from turnkeeper.calls import in_session as _in_session
from turnkeeper.calls import path as _path
from turnkeeper.calls import slug as _slug
from turnkeeper.calls import text_id as _text_id
from turnkeeper.engines import probe
from turnkeeper.signing import Outward, sign_event, user_token
from turnkeeper.target import DEFAULT_STATE, Target, TargetError, find_target

Via = Literal["http", "amqp"]
TIMEOUT_SECONDS = 10.0
CONFIRM_SECONDS = 10.0
STREAM_SECONDS = 30.0
"""Without a byte for so long a stream is made anew; the service sends a sign of life every 15 s."""
AGAIN_SECONDS = 0.5
POLL_SECONDS = 0.1
SEALS_AT_ONCE = 200
MOST_SESSIONS = 1_000
"""The session service lists so many, the newest."""
T = TypeVar("T")
_NOT_SENT = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, UnicodeError)
"""What is raised before anything is sent: the request cannot be written down."""


class Speaker:
    """What both clients know: where the deployment is, and with which tokens and secrets one speaks to it."""

    def __init__(self, target: Target | None = None, tokens: Callable[[str], str] | None = None) -> None:
        """`target` is the stack of `TURNKEEPER_STATE` (default `.turnkeeper`), or what the environment names, if None.

        `tokens` gives a user's bearer token; without it one is made by the deployment's shared secret, as only trusted
        programs can. Raises TargetError where no deployment is known.
        """
        state = Path(os.environ.get("TURNKEEPER_STATE") or DEFAULT_STATE)
        self.target = find_target(state) if target is None else target
        self._tokens = tokens

    def sign(
        self, source: str, *, event: str | None = None, type: str = "", data: JSON = None, seconds: int | None = None
    ) -> Outward:
        """An event of a source, signed with its scheme as of `seconds` (Unix, now if None); its id is drawn if None.

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

    def user_token(self, user: str) -> str:
        """A token for a user. Raises TargetError where the secret is not known, ClientError for no user's id."""
        if self._tokens is not None:
            return self._tokens(_slug(user, "user"))
        return user_token(self.target.user_token_secret(), _slug(user, "user"), int(time.time()))

    def _token_for(self, call: Call[Any]) -> str | None:
        if call.open:
            return None
        return self.target.operator_token() if call.user is None else self.user_token(call.user)

    def _over_http(self, outward: Outward) -> Call[Answer]:
        if self.source(outward.source).verify.scheme == "broker-user":
            raise ClientError(f"{outward.source} is verified by the broker: use --via amqp")
        return calls.deliver(outward)


class Client(Speaker):
    """One deployment. Close it, or use it as a context manager.

    >>> import turnkeeper
    >>> with turnkeeper.Client() as client:              # the stack of TURNKEEPER_STATE, default .turnkeeper
    ...     _ = client.create_session("docs", owner="ana")
    ...     _ = client.say("docs", "Book Fri 19:00 for 4", user="ana")
    ...     print(client.until("docs", "reply").text)
    ...     held = client.operations("docs")[0]["result"]["id"]
    ...     offer = {"reservation": held, "offer": {"party": 4, "day": "Sat", "time": "20:30"}}
    ...     _ = client.publish("restaurant", "offer.other", offer)      # signed, as the restaurant would
    ...     asked = client.action("docs", client.until("docs", "action.asked").action)
    ...     print(asked["question"])
    ...     receipt = client.decide("docs", asked["action"], "accept", "ana", asked["question_digest"])
    ...     print(receipt["state"])
    Booked: Fri at 19:00 for 4.
    A1 (from restaurant): book a table for 4 people on Sat at 20:30. Approve within 10 minutes?
    accepted
    """

    def __init__(
        self,
        target: Target | None = None,
        http: httpx2.Client | None = None,
        tokens: Callable[[str], str] | None = None,
    ) -> None:
        """As `Speaker`; `http` sends the requests if given. Raises TargetError where no deployment is known."""
        super().__init__(target, tokens)
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

    def publish(
        self, source: str, type: str = "", data: JSON = None, *, id: str | None = None, via: Via = "http"
    ) -> Answer:
        """Sign an event as its source does and send it; `id` is drawn if None. The same id again is a duplicate.

        Over AMQP the answer is the broker's confirm. Raises Refused for an event that was turned away, Unreachable,
        ClientError for an unknown source, SigningError for one that cannot be signed for.
        """
        return calls.let_in(self.deliver(self.sign(source, event=id, type=type, data=data), via), source)

    def deliver(self, outward: Outward, via: Via = "http") -> Answer:
        """Send a signed event as it is. Over HTTP the answer is ingress's, a refusal included; over AMQP it is the
        broker's confirm: status 202, `published`."""
        if via == "amqp":
            over_amqp(self.target, publish_confirmed(self.target, outward))
            return published(outward)
        return self._do(self._over_http(outward))

    def event_outcome(self, source: str, event: str) -> dict[str, Any]:
        """What became of an event (operator). Raises Refused 404 for one that was never let in."""
        return self._do(calls.event_outcome(source, event))

    # -- users

    def say(self, session: str, text: str, user: str, key: str | None = None) -> Answer:
        """A user's message; `key` is its Idempotency-Key, drawn if None. Raises Refused."""
        return self._do(calls.say(session, text, user, key))

    def cancel(self, session: str, user: str, key: str | None = None) -> Answer:
        """The owner's cancel. Raises Refused."""
        return self._do(calls.cancel(session, user, key))

    def decide(self, session: str, action: str, verdict: Verdict, user: str, question_digest: str) -> Receipt:
        """A user's decision, bound to the question that they were shown; the receipt, the same again for a repeat.

        Raises Refused: 403 not the approver, 409 decided otherwise or superseded, 410 too late, 412 another question.
        """
        return self._do(calls.decide(session, action, verdict, user, question_digest))

    def standing(self, user: str) -> list[dict[str, Any]]:
        """A user's standing approvals with each use, oldest first. Raises Refused."""
        return self._do(
            Call("consent", "GET", _standing(user), lambda answer: list(answer.body["standing"]), user=user)
        )

    def grant_standing(self, user: str, wish: Mapping[str, JSON], key: str | None = None) -> dict[str, Any]:
        """Grant a tool in advance; `key` is the wish's Idempotency-Key, drawn if None. Raises Refused."""
        return self._do(calls.sent("consent", _standing(user), wish, user, key, calls.body_of))

    def revoke_standing(self, user: str, id: str) -> dict[str, Any]:
        """Take a standing approval back. Raises Refused 404 where there is none."""
        path = _standing(user, _slug(id, "approval"))
        return self._do(Call("consent", "DELETE", path, calls.body_of, user=user))

    # -- sessions

    def create_session(self, session: str, owner: str, trial: bool | Sequence[Fault] = False) -> Answer:
        """Make a session; its owner is written once. `trial`, for tests only: with the faults of the application file,
        or with these. Raises Refused."""
        return self._do(calls.create_session(session, owner, trial))

    def sessions(self) -> list[str]:
        """Known sessions, newest first."""
        return self._do(calls.sessions())

    def session(self, session: str, user: str | None = None) -> dict[str, Any]:
        """A session's state, asked for by its owner, or by the operator if None. Raises Refused."""
        return self._do(calls.session(session, user))

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

    def timeline(self, session: str, after: int = 0, user: str | None = None) -> list[TimelineLine]:
        """Lines with a higher number than `after`, asked for by the owner, or by the operator if None. Raises
        Refused."""
        return self._do(calls.timeline(session, after, user))

    def follow(self, session: str, after: int = 0, user: str | None = None) -> Iterator[TimelineLine]:
        """Lines as they come, for ever; a lost connection is made again after the last line seen. Raises Refused."""
        self.session(session, user)  # so that a wrong name is told at once
        while True:
            with contextlib.suppress(Unreachable):
                for line in self._stream(calls.stream(session, after, user)):
                    after = line.seq
                    yield line
            time.sleep(AGAIN_SECONDS)

    def until(
        self, session: str, kind: str, after: int = 0, within: float = 30.0, user: str | None = None
    ) -> TimelineLine:
        """The first line of a kind with a higher number than `after`, waited for `within` seconds.

        Raises ClientError where none came, Refused.
        """
        end = time.monotonic() + within
        while True:
            lines = self.timeline(session, after, user)
            if found := next((line for line in lines if line.kind == kind), None):
                return found
            if time.monotonic() >= end:
                raise not_come(session, kind, within, lines)
            time.sleep(POLL_SECONDS)

    def _stream(self, call: Call[Answer]) -> Iterator[TimelineLine]:
        base = self.target.url(call.service)
        what = {**call.request(self._token_for(call)), "timeout": httpx2.Timeout(STREAM_SECONDS)}
        with told(call.service, base), self._http.stream(call.method, base + call.path, **what) as answer:
            if answer.status_code != 200:
                answer.read()
                _accepted(answer)
            for text in answer.iter_lines():
                if line := calls.line_of(text):
                    yield line

    def timers(self, session: str) -> list[dict[str, Any]]:
        """A session's pending timers, the next to fire first. Raises Refused."""
        return list(self._get("ingress", _in_session(session, "timers"))["timers"])

    # -- consent

    def actions(self, session: str, user: str | None = None) -> list[Action]:
        """A session's actions, oldest first, asked for by the owner, or by the operator if None. Raises Refused."""
        return self._do(calls.actions(session, user))

    def action(self, session: str, action: str, user: str | None = None) -> Action:
        """One action. Raises Refused."""
        return self._do(calls.action(session, action, user))

    # -- the ledger

    def operations(self, session: str | None = None, state: str | None = None) -> list[dict[str, Any]]:
        """Operations of a session, or of all where they are unknown or pending. Raises Refused."""
        return self._do(calls.operations(session, state))

    def operation(self, session: str, operation: str) -> dict[str, Any]:
        """One operation, by its id (`O3`) or key. Raises Refused."""
        return self._do(calls.operation(session, operation))

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
        body = calls.json_of(answer)
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

    def _do(self, call: Call[T]) -> T:
        what = call.request(self._token_for(call))
        return call.answered(self._send(call.service, call.method, call.path, **what))

    def _get(self, service: str, path: str, **query: str | int) -> dict[str, Any]:
        return dict(_accepted(self._send(service, "GET", path, params=query, headers=self._operator())).body)

    def _operator(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.target.operator_token()}"}

    def _send(self, service: str, method: str, path: str, **what: Any) -> httpx2.Response:
        return self._request(service, self.target.url(service), method, path, **what)

    def _request(self, service: str, base: str, method: str, path: str, **what: Any) -> httpx2.Response:
        with told(service, base):
            return self._http.request(method, base + path, **what)


@contextlib.contextmanager
def told(service: str, base: str) -> Iterator[None]:
    """What HTTP raises, told as ClientError or Unreachable."""
    try:
        yield
    except _NOT_SENT as error:
        raise _not_sent(service, base, error) from error
    except httpx2.TransportError as error:
        raise _away(service, base, error) from error


def not_come(session: str, kind: str, within: float, lines: Sequence[TimelineLine]) -> ClientError:
    """Nothing of a kind came: the fault, which names what came last."""
    last = f"the last line is {lines[-1].kind}: {lines[-1].text}" if lines else "nothing came"
    return ClientError(f"no line {kind} in {session} within {within:g} s: {last}")


def published(outward: Outward) -> Answer:
    """The answer to what a broker confirmed."""
    return Answer(202, {"status": "published", "id": outward.event}, outward.event)


def over_amqp(target: Target, work: Coroutine[Any, Any, T]) -> T:
    """Run one exchange with the broker to its end. Raises Unreachable where it does not answer or refuses, ClientError
    for what AMQP cannot carry or a queue that is not there."""
    with told_of_amqp(target):
        return asyncio.run(work)


@contextlib.contextmanager
def told_of_amqp(target: Target) -> Iterator[None]:
    """What AMQP raises, told as ClientError or Unreachable."""
    try:
        yield
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


async def publish_confirmed(target: Target, outward: Outward) -> None:
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


def _standing(user: str, *parts: str) -> str:
    """A path below a user's standing approvals."""
    return _path("users", _slug(user, "user"), "standing", *parts)


__all__ = [
    "Action",
    "Answer",
    "Client",
    "ClientError",
    "Receipt",
    "Refused",
    "TargetError",
    "Unreachable",
    "Via",
    "over_amqp",
]

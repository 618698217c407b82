"""What a verified delivery is: its identity, where it goes, and whether its envelope tells the truth. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from libs.contracts.application import Hmac, Source
from libs.contracts.canonical import JSON, digest
from libs.contracts.cloudevents import CloudEvent, identity, identity_of
from libs.contracts.consent import DECISION_TEXT
from libs.contracts.ids import derive_id, is_slug, is_text_id
from libs.contracts.ingress import InputKind
from libs.contracts.meaning import NOTHING, About, about, body_data, names_in, names_of, written_by
from libs.contracts.origin import Origin, OriginKind
from libs.contracts.templates import TemplateError, render
from services.ingress.schemes import Verified
from services.ingress.strict_json import Malformed

MARK_LENGTH = 32
"""Hexadecimal digits of a digest kept beside each identity: 128 bits."""
_CE_PREFIXES = (b"ce-", b"cloudevents:", b"cloudevents_")


@dataclass(frozen=True, slots=True)
class Event:
    """An admitted event: all of an Input but its number and seal, and what to do while it has no session.

    `session` is "" where `route_subject` finds it. `hold_ms` 0 means that it is refused rather than held. `mark` is
    what copies of it have in common. Times in milliseconds.
    """

    id: str
    kind: InputKind
    source: str
    event: str
    type: str
    subject: str
    data: JSON
    origin_kind: OriginKind
    principal: str
    verified: str
    digest: str
    mark: str
    session: str
    route_subject: str
    hold_ms: int
    window_ms: int
    accepted_at: int
    by_body: bool = False
    depth: int = 0
    """Causation depth: an event from outside begins anew, what a timer fires does not."""
    sequence: str = ""
    stream: str = ""
    written_by: str = ""
    """Who wrote it, as its signed data says."""

    @property
    def origin(self) -> Origin:
        """Who it is from, as verified."""
        return Origin.model_construct(
            kind=self.origin_kind, source=self.source, principal=self.principal, verified=self.verified,
            written_by=self.written_by,
        )  # fmt: skip

    @property
    def where(self) -> str:
        """Where it goes, for people."""
        return self.session or self.route_subject

    @property
    def deadline(self) -> int:
        """Until when it may be held."""
        return self.accepted_at + self.hold_ms

    def pack(self) -> bytes:
        """As it is stored."""
        return orjson.dumps(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "Event":
        """From the store."""
        return cls(**orjson.loads(packed))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A verified event that must not be acted on as it is. `reason` is a short code; it goes into quarantine."""

    reason: str
    event: Event


@dataclass(frozen=True, slots=True)
class Claims:
    """What the unsigned envelope says of the event: routing key and `ce-` headers. Never used, only compared."""

    id: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    source: tuple[str, ...] = ()


NO_CLAIMS = Claims()


def claims_of(headers: Sequence[tuple[bytes, bytes]], routed_type: str = "") -> Claims:
    """Read the claims. `routed_type` is what follows the source in a routing key. Other attributes are dropped."""
    found: dict[str, list[str]] = {"id": [], "type": [routed_type] if routed_type else []}
    found |= {"subject": [], "source": []}
    for name, value in headers:
        if not name.startswith(_CE_PREFIXES):
            continue
        for prefix in _CE_PREFIXES:
            attribute = name[len(prefix) :].decode("ascii", "replace") if name.startswith(prefix) else ""
            if attribute in found:
                found[attribute].append(value.decode("utf-8", "replace"))
    if not any(found.values()):
        return NO_CLAIMS
    return Claims(*(tuple(found[attribute]) for attribute in ("id", "type", "subject", "source")))


def interpret(
    name: str,
    source: Source,
    verified: Verified,
    body: JSON,
    claims: Claims = NO_CLAIMS,
    *,
    now: int,
    cloud: CloudEvent | None = None,
) -> Event | Misfit:
    """The event that a verified body is. `now` in milliseconds (Unix); `cloud` is the CloudEvent that it is, if any.

    Everything used comes from what the signature covers; where the envelope says otherwise the event is a Misfit
    (design §3.1). Raises Malformed for an event without a usable id.
    """
    data = body_data(body) if cloud is None else cloud.data
    whole = names_in(body, data, name) if cloud is None else cloud.names() | {"source": name}
    trusted = verified.principal is not None and cloud is None
    event_id = cloud.id if cloud else _event_id(source, verified, body, whole, claims if trusted else NO_CLAIMS)
    type_ = _type(source, whole, claims if trusted else NO_CLAIMS)
    context = names_of(data, type_, event_id, name) | ({"ce": dict(cloud.attributes)} if cloud else {})
    by_body = not verified.id_is_signed and cloud is None
    way = _way(source, type_, context)
    author = written_by(source, context)
    event = Event(
        id=identity(name, cloud)
        if cloud
        else derive_id("body", name, verified.digest)
        if by_body
        else derive_id("event", name, event_id),
        kind="event",
        source=name,
        event=event_id,
        type=type_,
        subject=way.about.subject,
        data=data,
        origin_kind=source.kind,
        principal=verified.principal or name,
        verified=source.verify.scheme,
        digest=verified.digest,
        mark=_mark(verified, event_id if by_body else "", cloud)[:MARK_LENGTH],
        session=way.session,
        route_subject=way.route_subject,
        hold_ms=0 if source.unrouted.reject else int((source.unrouted.hold or 0) * 1000),
        window_ms=int(source.dedupe.window * 1000),
        accepted_at=now,
        by_body=by_body,
        sequence=way.about.sequence,
        stream=way.about.stream,
        written_by=author or "",
    )
    fault = way.fault or ("no_author" if author is None else "") or _contradiction(event, body, claims, cloud)
    return Misfit(fault, event) if fault else event


def _mark(verified: Verified, unsigned_id: str, cloud: CloudEvent | None) -> str:
    """What copies have in common. A CloudEvent's may come in another mode or order of keys, and are copies still."""
    if cloud is not None:
        return cloud.content_digest
    return digest(unsigned_id) if unsigned_id else verified.digest


def _event_id(source: Source, verified: Verified, body: JSON, whole: Mapping[str, Any], claims: Claims) -> str:
    found: object = verified.event_id
    if isinstance(source.verify, Hmac) and source.verify.id is not None:
        found = _rendered(source.verify.id, whole)
    elif verified.principal is not None:
        # The broker vouches for the whole message: a CloudEvents id, in its headers or in its body.
        found = claims.id[0] if claims.id else body.get("id") if isinstance(body, dict) else None
    if not isinstance(found, str) or not is_text_id(found):
        raise Malformed("no usable event id: 1 to 256 bytes of printable text")
    return found


def _type(source: Source, whole: Mapping[str, Any], claims: Claims) -> str:
    found = _rendered(source.type, whole) or (claims.type[0] if claims.type else "")
    if found and not is_text_id(found):
        raise Malformed("no usable event type: at most 256 bytes of printable text")
    return found


def _rendered(template: str, context: Mapping[str, Any]) -> str:
    try:
        return render(template, context)
    except TemplateError:
        return ""


@dataclass(frozen=True, slots=True)
class _Way:
    """Where an event goes and what it is about; `fault` where its data does not say."""

    session: str = ""
    route_subject: str = ""
    about: About = NOTHING
    fault: str = ""


def _way(source: Source, type_: str, context: Mapping[str, Any]) -> _Way:
    route = source.route
    try:
        session = render(route.session, context) if route is not None and route.session is not None else ""
        routed = render(route.subject, context) if route is not None and route.subject is not None else ""
    except TemplateError:
        return _Way(fault="no_route")
    if not (is_slug(session) or is_text_id(routed)):
        return _Way(fault="no_route")
    found = about(source, type_, context, routed)
    return _Way(session, routed, found, found.fault)


def _contradiction(event: Event, body: JSON, claims: Claims, cloud: CloudEvent | None) -> str:
    """The first attribute in which the envelope disagrees with what was signed, or ""."""
    if claims is NO_CLAIMS:
        return ""
    own = body.get("subject") if isinstance(body, dict) else None
    signed = {"id": event.event, "type": event.type, "subject": own if isinstance(own, str) else ""}
    if cloud is not None:
        signed |= {"type": cloud.type, "source": cloud.source}
    for attribute, value in signed.items():
        # What the signed content leaves open is not believed from outside, but it is no contradiction either.
        if value and any(claim != value for claim in getattr(claims, attribute)):
            return f"{attribute}_disagrees"
    return ""


def user_input(
    kind: InputKind, source: str, user: str, session: str, key: str, data: JSON, *, now: int, window_ms: int
) -> Event:
    """A user's own message or cancel. `key` is the Idempotency-Key, which identifies it for this user and session."""
    whole = digest(data)
    return Event(
        id=derive_id(kind, source, user, session, key),
        kind=kind,
        source=source,
        event=key,
        type="",
        subject="",
        data=data,
        origin_kind="user",
        principal=user,
        verified="user-token",
        digest=whole,
        mark=whole[:MARK_LENGTH],
        session=session,
        route_subject="",
        hold_ms=0,
        window_ms=window_ms,
        accepted_at=now,
    )


def sealed_kind(event: Event) -> str:
    """What an input's seal says that it is. A user's exact answer to a question is a decision, though it is typed as a
    message: no turn begins with it, so its seal must open none."""
    text = event.data.get("text") if isinstance(event.data, dict) else None
    if event.kind == "message" and isinstance(text, str) and DECISION_TEXT.fullmatch(text):
        return "decision"
    return event.kind


def event_identity(source: str, event_id: str, cloud_source: str = "") -> str:
    """The identity that a signed event id gives; with `cloud_source`, a CloudEvent's `source`, that of the two."""
    return identity_of(source, cloud_source, event_id) if cloud_source else derive_id("event", source, event_id)


def out_of_time(verified: Verified, *, now: int, past_seconds: float, future_seconds: float) -> str:
    """Why a message that the broker kept for us is outside its time, or "" (design §3.1)."""
    if verified.timestamp is None:
        return ""
    age = now // 1000 - verified.timestamp
    if age > past_seconds:
        return "too_old"
    return "from_the_future" if -age > future_seconds else ""


def released(event: Event, quarantine_id: str, *, now: int, session: str = "") -> Event:
    """A quarantined event that an operator lets in: an event of its own, so that it is no copy of the first."""
    id = derive_id("released", quarantine_id)
    where = replace(event, session=session, route_subject="") if session else event
    return replace(where, id=id, mark=event.digest[:MARK_LENGTH], accepted_at=now, by_body=False)

"""What a sender signs and what a user carries: events in each source's scheme, and users' tokens.

Written from the schemes' documents and apart from the verifiers of ingress, so that one mistake cannot hide in both.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never
from urllib.parse import quote

import jwt
import orjson
from pydantic import ValidationError

from libs.contracts.application import (
    BrokerUser,
    Hmac,
    Source,
    StandardWebhooks,
    UserToken,
    resolve_secret,
)
from libs.contracts.canonical import JSON
from libs.contracts.templates import TemplateError, render

USER_TOKEN_SECONDS = 600
STANDARD_WEBHOOKS: Mapping[str, JSON] = {"scheme": "standard-webhooks"}


class SigningError(ValueError):
    """This event cannot be signed for this source. The text is one line and says what to do."""


@dataclass(frozen=True)
class Outward:
    """An event on its way to a source's door: `headers` carry the signature, `body` is exactly what was signed."""

    source: str
    event: str
    type: str
    headers: Mapping[str, str]
    body: bytes

    def with_id(self, scheme_header: str, event: str) -> "Outward":
        """The same bytes and signature under another id, as somebody would who captured it."""
        return Outward(self.source, event, self.type, {**self.headers, scheme_header: event}, self.body)


def sign_event(
    name: str,
    source: Source,
    environment: Mapping[str, str],
    *,
    event: str,
    type: str,
    data: JSON,
    seconds: int,
) -> Outward:
    """Sign an event for the source `name` with its first secret, as of `seconds` (Unix).

    `environment` holds what the source's references (`env:NAME`) name. Raises SigningError for a source that signs
    nothing over HTTP, a secret that is not there, or an id that this source's template would read differently.
    """
    match source.verify:
        case StandardWebhooks() as scheme:
            body = _body(type, data)
            headers = _standard(_secret(name, scheme.secrets, environment), event, seconds, body)
        case Hmac(covers=(_, *_)) as scheme:
            return _attributes_signed(name, scheme, environment, event=event, type=type, data=data, seconds=seconds)
        case Hmac() as scheme:
            body = _body(type, data, id=event if scheme.id is not None else None)
            _check_id(name, scheme, body, event)
            headers = _keyed(_secret(name, scheme.secrets, environment), scheme, event, seconds, body)
        case BrokerUser():
            # The broker vouches for the publisher; the id is a CloudEvents attribute outside the body.
            body, headers = _body(type, data), {"ce-id": event, "ce-type": type}
        case UserToken():
            raise SigningError(f"{name} is where users speak: use turnkeeper say SESSION TEXT --as USER")
        case _:
            assert_never(source.verify)
    return Outward(name, event, type, {"content-type": "application/json", **headers}, body)


def sign(
    secret: str,
    type: str = "",
    data: JSON = None,
    *,
    id: str | None = None,
    seconds: int | None = None,
    verify: Mapping[str, JSON] = STANDARD_WEBHOOKS,
    source: str = "source",
) -> Outward:
    """An event as a sender signs it, for tests of one's own: by the code of `turnkeeper publish`.

    `verify` is the source's block of the application file, without its secrets; Standard Webhooks by default. `id` is
    drawn if None; `seconds` (Unix) is when it was signed, now if None. Send `body` and `headers` as they are. Raises
    SigningError for a block that is none, a scheme that signs nothing, or a secret that is not encoded as it says.

    >>> import turnkeeper
    >>> secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    >>> event = turnkeeper.sign(secret, "order.gone", {"order": 7}, id="e1", seconds=0)
    >>> event.body
    b'{"type":"order.gone","data":{"order":7}}'
    >>> event.headers["webhook-id"], event.headers["webhook-signature"][:3]
    ('e1', 'v1,')
    """
    block = {**verify, "secrets": ["env:SECRET"]}
    try:
        chosen = Source.model_validate({"verify": block, "route": {"session": "s"}, "unrouted": {"reject": True}})
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(str(part) for part in fault["loc"])
        raise SigningError(f"{at}: {fault['msg']}") from None
    return sign_event(
        source,
        chosen,
        {"SECRET": secret},
        event=f"evt_{secrets.token_hex(8)}" if id is None else id,
        type=type,
        data={} if data is None else data,
        seconds=int(time.time()) if seconds is None else seconds,
    )


def _attributes_signed(
    name: str, scheme: Hmac, environment: Mapping[str, str], *, event: str, type: str, data: JSON, seconds: int
) -> Outward:
    """A CloudEvent in binary mode, whose attributes are signed with its body. Raises SigningError."""
    if not type:
        raise SigningError(f"{name} takes CloudEvents, which have a type: give --type")
    values = {"specversion": "1.0", "id": event, "source": f"/{name}", "type": type}
    headers = {"content-type": "application/json"}
    # HTTP binding, section 3.1.3.2: printable ASCII stays, but for quotes and percent signs
    headers |= {f"ce-{key}": quote(value, safe="!#$&'()*+,/:;<=>?@[\\]^`{|}~") for key, value in values.items()}
    lines = [f"{key}:{headers.get(key, '')}\n" for key in ("content-type", *(f"ce-{at}" for at in scheme.covers))]
    body = orjson.dumps(data)
    signed = "".join(lines).encode() + body
    keyed = _keyed(_secret(name, scheme.secrets, environment), scheme, event, seconds, signed)
    return Outward(name, event, type, {**headers, **keyed}, body)


def id_header(source: Source) -> str | None:
    """The header that carries an event's id, or None where the id is inside the body."""
    match source.verify:
        case StandardWebhooks():
            return "webhook-id"
        case Hmac() as scheme:
            return "ce-id" if scheme.covers else scheme.id_header.lower() if scheme.id_header else None
        case BrokerUser():
            return "ce-id"
        case UserToken():
            return None
        case _:
            assert_never(source.verify)


def user_token(secret: str, user: str, seconds: int, valid: int = USER_TOKEN_SECONDS) -> str:
    """A user's JWT (HS256) from `seconds` (Unix) for `valid` seconds, as the services check it."""
    return jwt.encode({"sub": user, "iat": seconds, "exp": seconds + valid}, secret, algorithm="HS256")


def _body(type: str, data: JSON, id: str | None = None) -> bytes:
    fields: dict[str, JSON] = {"type": type, "data": data}
    return orjson.dumps(fields if id is None else {**fields, "id": id})


def _secret(name: str, references: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        return resolve_secret(references[0], environment)
    except ValueError as error:
        raise SigningError(f"no secret to sign for {name}: {error}") from error


def _standard(secret: str, event: str, seconds: int, body: bytes) -> dict[str, str]:
    """Standard Webhooks 1.0, `v1`: HMAC-SHA256 over `id.timestamp.body`."""
    if "." in event:
        raise SigningError("an event id of Standard Webhooks holds no dot: choose another --id")
    key = _decoded(secret.removeprefix("whsec_"), base64.b64decode)
    mac = hmac.digest(key, b".".join((event.encode(), str(seconds).encode(), body)), hashlib.sha256)
    signature = f"v1,{base64.b64encode(mac).decode()}"
    return {"webhook-id": event, "webhook-timestamp": str(seconds), "webhook-signature": signature}


def _keyed(secret: str, scheme: Hmac, event: str, seconds: int, body: bytes) -> dict[str, str]:
    signed = b""
    rest = scheme.signed
    parts = {"{id}": event.encode(), "{timestamp}": str(seconds).encode(), "{body}": body}
    while rest:
        at, found = min(((rest.find(part), part) for part in parts if part in rest), default=(len(rest), ""))
        signed += rest[:at].encode() + (parts[found] if found else b"")
        rest = rest[at + len(found) :]
    mac = hmac.digest(_key(secret, scheme.secret_encoding), signed, scheme.algorithm)
    text = mac.hex() if scheme.encoding == "hex" else base64.b64encode(mac).decode()
    headers = {scheme.header: scheme.prefix + text}
    if scheme.timestamp_header:
        headers[scheme.timestamp_header] = str(seconds)
    if scheme.id_header:
        headers[scheme.id_header] = event
    return headers


def _key(secret: str, encoding: str) -> bytes:
    match encoding:
        case "base64":
            return _decoded(secret, base64.b64decode)
        case "hex":
            return _decoded(secret, bytes.fromhex)
        case _:
            return secret.encode()


def _decoded(text: str, decode: Callable[[str], bytes]) -> bytes:
    try:
        return decode(text)
    except (binascii.Error, ValueError) as error:
        raise SigningError("the source's secret is not encoded as its scheme says") from error


def _check_id(name: str, scheme: Hmac, body: bytes, event: str) -> None:
    """The source reads its id out of the body: make sure that it would read the one that was asked for."""
    if scheme.id is None:
        return
    fields = orjson.loads(body)
    try:
        found = render(scheme.id, {**fields, "source": name})
    except TemplateError as error:
        raise SigningError(f"{name} reads its event id as {scheme.id}: put it into --data ({error})") from error
    if found != event:
        raise SigningError(f"{name} reads its event id as {scheme.id}, which is {found!r}: give that as --id")

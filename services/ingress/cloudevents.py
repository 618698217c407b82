"""A delivery as a CloudEvent: structured or binary, over HTTP or AMQP (CloudEvents 1.0.2 and its bindings).

Only what is vouched for counts. A structured event is inside the signed bytes. The attributes of a binary one are
headers: they are used where the source's scheme covers them, and elsewhere only compared with what is signed.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from libs.contracts.application import BrokerUser, Hmac, Verify
from libs.contracts.canonical import JSON
from libs.contracts.cloudevents import STRUCTURED, CloudEvent, binary, looks_structured, media_type, structured
from services.ingress.schemes import Headers
from services.ingress.schemes.base import single
from services.ingress.strict_json import Malformed, parse

PREFIXES = (b"ce-", b"cloudevents:", b"cloudevents_")
"""Of HTTP and RabbitMQ headers, and the two of AMQP 1.0 as bridges hand them on."""
_CLOUDEVENTS = "application/cloudevents"
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Content:
    """A body as it was read. `event` is None for what is no CloudEvent; `headers` are as `claims_of` reads them."""

    body: JSON
    headers: Headers
    event: CloudEvent | None = None


def read_content(verify: Verify, headers: Headers, body: bytes, content_type: str, *, percent: bool) -> Content:
    """Read a verified body. `percent` says that header values are percent-encoded (HTTP binding, section 3.1.3.2).

    Raises Malformed, which tells the sender what is wrong, and never repeats what was sent.
    """
    if isinstance(verify, Hmac) and verify.covers:
        return _signed_attributes(verify.covers, headers, body)
    media = media_type(content_type)
    if media.startswith(_CLOUDEVENTS) and media != STRUCTURED:
        raise Malformed(f"of CloudEvents as a whole only {STRUCTURED} is taken, one at a time")
    claimed = _claimed(headers) if percent else headers
    if media == STRUCTURED:
        value = parse(body)
        return Content(value, claimed, structured(value))
    if isinstance(verify, BrokerUser) and any(_attribute(name) == "specversion" for name, _ in claimed):
        return _binary([(_attribute(name), text) for name, text in claimed], claimed, content_type, body)
    value = parse(body)
    return Content(value, claimed, structured(value) if looks_structured(value) else None)


def _signed_attributes(covers: Collection[str], headers: Headers, body: bytes) -> Content:
    """Always binary mode, read alike over both doors: were it left to what is not signed, such as another header or the
    door, a captured delivery could be sent again as another event."""
    content_type = (single(headers, b"content-type") or b"").decode("latin-1")
    if media_type(content_type).startswith(_CLOUDEVENTS):
        raise Malformed("this source signs the attributes of binary mode: send them as headers")
    claimed = _claimed(headers)
    signed = [(_attribute(name), text) for name, text in claimed if name.startswith(b"ce-")]
    return _binary([(name, text) for name, text in signed if name in covers], claimed, content_type, body)


def _binary(given: Iterable[tuple[str, bytes]], headers: Headers, content_type: str, body: bytes) -> Content:
    found: dict[str, str] = {}
    for name, value in given:
        if not name:
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise Malformed("no CloudEvent: an attribute is not UTF-8") from None
        if found.setdefault(name, text) != text:
            raise Malformed("no CloudEvent: an attribute is there twice with different values")
    event = binary(found, content_type, body)
    return Content({**event.attributes, "data": event.data}, headers, event)


def _claimed(headers: Headers) -> Headers:
    return [(name, _decoded(value) if name.startswith(PREFIXES) else value) for name, value in headers]


def _attribute(header: bytes) -> str:
    """The attribute that a header is, or ""."""
    for prefix in PREFIXES:
        if header.startswith(prefix):
            return header[len(prefix) :].decode("ascii", "replace")
    return ""


def _decoded(value: bytes) -> bytes:
    """A header's value as the HTTP binding writes it: in quotes or not, percent-encoded."""
    quoted = _QUOTED.fullmatch(value)
    return unquote_to_bytes(re.sub(rb"\\(.)", rb"\1", quoted[1]) if quoted else value)

"""CloudEvents 1.0.2: what an event that came as one says, and how a notice leaves as one. Pure.

Written out, since the official SDK is made for senders who mean well: it makes up an id where none is given, keeps the
last of two equal keys, and takes times that RFC 3339 does not know. The tests read what it writes, and it reads ours.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from libs.contracts.canonical import JSON, digest
from libs.contracts.ids import derive_id, is_text_id
from libs.contracts.strict_json import Malformed, parse
from libs.contracts.times import rfc3339_seconds

SPEC_VERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
"""Media type of structured mode (CloudEvents JSON format, section 3)."""
REQUIRED = ("id", "source", "specversion", "type")
_IDENTITY = ("authtype", "authid", "authclaims")
_NAME = re.compile(r"[a-z0-9]{1,64}")
_URI_REFERENCE = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]{1,1024}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(\s*;.*)?")
_JSON_TYPE = re.compile(r"[a-z]+/([a-z0-9.!#$&^_-]+\+)?json")
_LONGEST = 1024
_INTEGERS = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """`attributes` as the sender named them, without those that claim an identity; `data` is {} where there is none.

    Data that is no JSON is text, or {"base64": …} where it is not UTF-8.
    """

    attributes: Mapping[str, str | int | bool]
    data: JSON

    @property
    def id(self) -> str:
        """Unique within `source`."""
        return str(self.attributes["id"])

    @property
    def source(self) -> str:
        """The context in which it happened: a URI reference, not a configured source."""
        return str(self.attributes["source"])

    @property
    def type(self) -> str:
        """What kind of thing happened."""
        return str(self.attributes["type"])

    @property
    def subject(self) -> str:
        """What it is about within its source, or ""."""
        return str(self.attributes.get("subject", ""))

    @property
    def content_digest(self) -> str:
        """What copies have in common, whichever mode each was sent in and in whatever order its keys are."""
        kept = {name: value for name, value in self.attributes.items() if name != "datacontenttype"}
        return digest({"attributes": kept, "data": self.data})

    def names(self) -> dict[str, Any]:
        """For templates about the whole event: its attributes at the top, and all of them in `ce`."""
        # "self" is no name in a template: the engine uses it.
        top = {name: value for name, value in self.attributes.items() if name not in ("self", "data", "ce")}
        return top | {"ce": dict(self.attributes), "data": self.data}


def identity(source: str, event: CloudEvent) -> str:
    """What copies of it are recognised by: a CloudEvent's `source` and `id` together (CloudEvents 1.0.2, section
    3.1.1), within the configured source that delivered it."""
    return identity_of(source, event.source, event.id)


def identity_of(source: str, event_source: str, event_id: str) -> str:
    """The identity of the CloudEvent that has this `source` attribute and this id."""
    return derive_id("cloudevent", source, event_source, event_id)


def looks_structured(body: JSON) -> bool:
    """Whether a body says itself that it is a CloudEvent. Only the body is asked: the media type is not signed, so a
    captured delivery under another one must not be another event."""
    return isinstance(body, dict) and all(isinstance(body.get(name), str) and body[name] for name in REQUIRED)


def structured(body: JSON) -> CloudEvent:
    """The event of a body in the JSON format. Raises Malformed, which says what is wrong."""
    if not isinstance(body, dict):
        raise Malformed("no CloudEvent: a structured one is a JSON object")
    # null is unset (JSON format, section 2.2)
    given = {name: value for name, value in body.items() if value is not None and name not in ("data", "data_base64")}
    attributes = _checked(given)
    if body.get("data_base64") is None:
        return CloudEvent(attributes, body.get("data", {}))
    if "data" in body:
        raise Malformed("no CloudEvent: data and data_base64 exclude each other")
    text = body["data_base64"]
    try:
        raw = base64.b64decode(text if isinstance(text, str) else "!", validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("no CloudEvent: data_base64 is not base64") from None
    return CloudEvent(attributes, _data(raw, str(attributes.get("datacontenttype", ""))))


def binary(attributes: Mapping[str, str], content_type: str, raw: bytes) -> CloudEvent:
    """The event of a message in binary mode: its attributes by name, and its content as data. Raises Malformed."""
    given: dict[str, JSON] = {**attributes}
    if content_type:
        given["datacontenttype"] = content_type
    return CloudEvent(_checked(given), _data(raw, content_type))


def _checked(given: Mapping[str, JSON]) -> dict[str, str | int | bool]:
    version = given.get("specversion")
    if version is not None and version != SPEC_VERSION:
        raise Malformed(f"no CloudEvent: specversion is not {SPEC_VERSION}, the one that is understood here")
    if missing := [name for name in REQUIRED if not given.get(name)]:
        raise Malformed(f"no CloudEvent: {', '.join(missing)} missing or empty")
    kept: dict[str, str | int | bool] = {}
    for name, value in given.items():
        if not _NAME.fullmatch(name):
            raise Malformed("no CloudEvent: attributes are named by lower-case letters and digits")
        fits = isinstance(value, str | bool) or (isinstance(value, int) and value in _INTEGERS)
        if not fits or (isinstance(value, str) and not _is_text(value)):
            raise Malformed(
                f"no CloudEvent: {name} is no text of at most {_LONGEST} bytes, whole number or true or false"
            )
        if not _is_claim(name):
            assert isinstance(value, str | bool | int)  # noqa: S101 - looked at above
            kept[name] = value
    if fault := _fault(kept):
        raise Malformed(f"no CloudEvent: {fault}")
    return kept


def _is_text(value: str) -> bool:
    """No control characters, no surrogates (CloudEvents, section 2: String)."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return False
    return size <= _LONGEST and not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in value)


def _is_claim(name: str) -> bool:
    """Who somebody is, is not for the sender to say; our own attributes are ours (5-facts)."""
    return name in _IDENTITY or name.startswith("turnkeeper")


def _fault(attributes: Mapping[str, str | int | bool]) -> str:
    """What is wrong with the attributes of the core specification, or ""."""
    texts = (*REQUIRED, "subject", "time", "datacontenttype", "dataschema")
    for name in texts:
        if name in attributes and not (isinstance(attributes[name], str) and attributes[name]):
            return f"{name} is a text that is not empty"
    if not is_text_id(str(attributes["id"])) or not is_text_id(str(attributes["type"])):
        return "id and type are 1 to 256 bytes of printable text"
    if not _URI_REFERENCE.fullmatch(str(attributes["source"])):
        return "source is no URI reference"
    if "time" in attributes and rfc3339_seconds(str(attributes["time"])) is None:
        return "time is no RFC 3339 time"
    schema = str(attributes.get("dataschema", "x:"))
    if not _URI_REFERENCE.fullmatch(schema) or not _SCHEME.match(schema):
        return "dataschema is no absolute URI"
    if not _MEDIA_TYPE.fullmatch(str(attributes.get("datacontenttype", "a/b"))):
        return "datacontenttype is no media type"
    return ""


def _data(raw: bytes, content_type: str) -> JSON:
    """Bytes by their media type; without one they are JSON (CloudEvents, section 3.1.1.4). Raises Malformed."""
    if not raw:
        return {}
    if not content_type or _JSON_TYPE.fullmatch(media_type(content_type)):
        return parse(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def media_type(content_type: str) -> str:
    """`type/subtype` in lower case, without parameters."""
    return content_type.partition(";")[0].strip().lower()


NOTICE_TYPE = "dev.turnkeeper.notice"


def notice_attributes(envelope: Mapping[str, Any], topic: str, deployment: str) -> dict[str, str]:
    """A notice's attributes, for the headers of a message whose content is the envelope.

    `source` names the deployment, and `id` is the envelope's, the same however often it is sent: so `source` and `id`
    together are what a subscriber may drop copies by. `at` is milliseconds (Unix).
    """
    at = datetime.fromtimestamp(envelope["at"] / 1000, UTC).isoformat(timespec="milliseconds")
    # What the envelope says too is not said twice: each header costs the broker's encoder two microseconds.
    attributes = {
        "specversion": SPEC_VERSION,
        "id": envelope["id"],
        "source": f"/{deployment}" if deployment else "/turnkeeper",
        "type": f"{NOTICE_TYPE}.{topic}.v1",
        "subject": envelope["session"],
        "time": at.removesuffix("+00:00") + "Z",
    }
    if envelope.get("trace"):
        attributes["traceparent"] = envelope["trace"]  # the distributed tracing extension
    return attributes

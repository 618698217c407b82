"""What an event is about, from its data: the subject, and its place in the subject's order (design §4.1).

One rendering for all: ingress writes it into the input, and `turnkeeper explain` shows what ingress would write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.contracts.application import Source
from libs.contracts.canonical import JSON
from libs.contracts.ids import is_text_id
from libs.contracts.principals import is_author
from libs.contracts.templates import TemplateError, evaluate, render


@dataclass(frozen=True, slots=True)
class About:
    """`subject`, and its `sequence` in a `stream`; "" where the file does not say. `fault` is a short code: what was
    asked for is not in the data, so the event must not be acted on."""

    subject: str = ""
    sequence: str = ""
    stream: str = ""
    fault: str = ""


NOTHING = About()


_DROPPED = ("authtype", "authid", "authclaims")
"""Identity attributes of CloudEvents; those from outside say nothing (5-facts)."""


def body_data(body: JSON) -> JSON:
    """The payload: `data` where the body is an object with an object of that name, else the body itself."""
    if isinstance(body, dict) and isinstance(body.get("data"), dict):
        return body["data"]
    if isinstance(body, dict) and "specversion" in body:
        return {key: value for key, value in body.items() if not _is_identity(key)}
    return body


def _is_identity(attribute: str) -> bool:
    return attribute in _DROPPED or attribute.startswith("turnkeeper")


def names_in(body: JSON, data: JSON, source: str) -> dict[str, Any]:
    """The names that a template about a whole body may use: its top level ("self" is none: the engine uses it)."""
    top = {key: value for key, value in body.items() if key != "self"} if isinstance(body, dict) else {}
    return top | {"data": data, "source": source}


def names_of(data: JSON, type: str, id: str, source: str) -> dict[str, Any]:
    """The names that templates about an event may use."""
    return {"data": data, "type": type, "id": id, "source": source}


def about(source: Source, type: str, names: Mapping[str, Any], routed: str = "") -> About:
    """What an event of this type is about; `routed` is the subject that found its session, if one did."""
    meaning = source.meaning(type)
    subject = routed
    if meaning.subject is not None:
        subject = _text(meaning.subject, names) or ""
        if not subject:
            # What the event is about decides what it may undo: it must not be guessed.
            return About(fault="no_subject")
    if meaning.sequence is None:
        return About(subject)
    sequence = _text(meaning.sequence, names)
    stream = _text(meaning.stream, names) if meaning.stream is not None else ""
    if sequence is None or stream is None:
        # Nor where it belongs: taken for new it could undo what is newer.
        return About(subject, fault="no_sequence")
    return About(subject, sequence, stream)


def written_by(source: Source, names: Mapping[str, Any]) -> str | None:
    """Who wrote an event, by its source's `written_by`: "" where the source or the data names nobody, None where what
    is named cannot be shown as a name, or the data does not have it."""
    if source.written_by is None:
        return ""
    try:
        # As the text "none" a null would be somebody's name.
        named = not isinstance(evaluate(source.written_by, names), bool | dict | list | None)
        found = render(source.written_by, names) if named else None
    except TemplateError:
        return None
    return found if not found or is_author(found) else None


def _text(template: str, names: Mapping[str, Any]) -> str | None:
    """The template's text: "" where it says nothing, None where the data does not have it or it is no text or number.

    A null is no place in an order: as the text "none" it would come after every number.
    """
    try:
        if isinstance(evaluate(template, names), bool | dict | list | None):
            return None
        text = render(template, names)
    except TemplateError:
        return None
    return text if not text or is_text_id(text) else None

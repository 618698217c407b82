"""The HTTP interface as an OpenAPI 3.1 document, written here once and shown at `/docs`."""

import html
from typing import Any

_TEXT = {"type": "string"}
_SLUG = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}


def _in(place: str, name: str, *, required: bool = True) -> dict[str, Any]:
    return {"name": name, "in": place, "required": required, "schema": _TEXT}


def _answers(**answers: str) -> dict[str, Any]:
    """`_202="…"` becomes the answer 202; what begins with 4 or 5 is a problem document (RFC 9457)."""
    found: dict[str, Any] = {}
    for name, description in answers.items():
        media = "application/problem+json" if name[1] in "45" else "application/json"
        found[name[1:]] = {"description": description, "content": {media: {"schema": {"type": "object"}}}}
    return found


def _call(summary: str, who: str, parameters: list[dict[str, Any]], body: Any, answers: dict[str, Any]) -> Any:
    call: dict[str, Any] = {"summary": summary, "parameters": parameters, "responses": answers}
    if body is not None:
        call["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if who:
        call["security"] = [{who: []}]
    return call


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


_LATER = {"_503": "store or outbox cannot take it; Retry-After says when"}
_OPERATOR = {"_401": "no valid token", "_403": "the token lacks the scope"}
_USER = {
    "_202": "accepted",
    "_200": "duplicate",
    "_400": "no Idempotency-Key, or malformed",
    "_401": "no valid token",
    "_403": "another user's session",
    "_404": "no such session",
    "_408": "too slow",
    "_413": "too large",
    "_415": "compressed",
    "_429": "too many",
    **_LATER,
}

DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Turnkeeper ingress", "version": "1"},
    "components": {
        "securitySchemes": {
            "user": {"type": "http", "scheme": "bearer", "description": "A user's JWT; sub is the user"},
            "operator": {"type": "http", "scheme": "bearer", "description": "A configured operator token"},
        }
    },
    "paths": {
        "/v1/events/{source}": {
            "post": _call(
                "A sender's event, verified over its raw bytes by the scheme of the source",
                "",
                [_in("path", "source")],
                {},
                _answers(
                    _202="accepted, held or quarantined",
                    _200="duplicate",
                    _400="malformed, or no event id",
                    _401="signature or time",
                    _404="unknown source",
                    _408="too slow",
                    _413="too large",
                    _415="compressed",
                    _422="no session, and the source does not hold",
                    _429="too many",
                    **_LATER,
                ),
            )
        },
        "/v1/events/{source}/{event_id}": {
            "get": _call(
                "What became of an event (scope read)",
                "operator",
                [_in("path", "source"), _in("path", "event_id")],
                None,
                _answers(_200="status and outcome", _404="not known", **_OPERATOR, **_LATER),
            )
        },
        "/v1/sessions/{session}": {
            "put": _call(
                "Make a session with its owner, once; for tests a trial (scope sessions)",
                "operator",
                [_in("path", "session")],
                _object(owner=_SLUG),
                _answers(
                    _201="made",
                    _200="was there",
                    _400="malformed",
                    _409="another owner or no trial",
                    **_OPERATOR,
                    **_LATER,
                ),
            )
        },
        "/v1/sessions/{session}/messages": {
            "post": _call(
                "The owner speaks",
                "user",
                [_in("path", "session"), _in("header", "Idempotency-Key")],
                _object(text=_TEXT),
                _answers(**_USER),
            )
        },
        "/v1/sessions/{session}/cancel": {
            "post": _call(
                "The owner stops the running turn",
                "user",
                [_in("path", "session"), _in("header", "Idempotency-Key")],
                None,
                _answers(**_USER),
            )
        },
        "/v1/sessions/{session}/timers": {
            "get": _call(
                "Pending timers, the next to fire first: for the session's owner, or an operator (scope read)",
                "user",
                [_in("path", "session")],
                None,
                _answers(
                    _200="the timers",
                    _401="no valid token",
                    _403="another user's session, or the scope is missing",
                    _404="no such session",
                    **_LATER,
                ),
            )
        },
        "/v1/held": {
            "get": _call(
                "What waits for a subject or a session (scope read)",
                "operator",
                [],
                None,
                _answers(_200="by deadline", **_OPERATOR, **_LATER),
            )
        },
        "/v1/held/release": {
            "post": _call(
                "Register a subject by hand and release what waits for it (scope release)",
                "operator",
                [],
                {
                    **_object(subject=_TEXT, session=_SLUG),
                    "properties": {"subject": _TEXT, "session": _SLUG, "force": {"type": "boolean"}},
                },
                _answers(
                    _200="released",
                    _400="malformed",
                    _404="no such session",
                    _409="another session's",
                    **_OPERATOR,
                    **_LATER,
                ),
            )
        },
        "/v1/quarantine": {
            "get": _call(
                "What must not be acted on, newest first (scope read)",
                "operator",
                [],
                None,
                _answers(_200="without bodies", **_OPERATOR, **_LATER),
            )
        },
        "/v1/quarantine/{id}": {
            "get": _call(
                "One entry with its body (scope read)",
                "operator",
                [_in("path", "id")],
                None,
                _answers(_200="the entry", _404="not there", **_OPERATOR, **_LATER),
            )
        },
        "/v1/quarantine/{id}/release": {
            "post": _call(
                "Let it in as an event of its own (scope release); session where its data names none",
                "operator",
                [_in("path", "id")],
                {"type": "object", "properties": {"session": _SLUG}},
                _answers(
                    _202="accepted or held",
                    _200="was released before",
                    _400="no session",
                    _404="not there",
                    **_OPERATOR,
                    **_LATER,
                ),
            )
        },
        "/v1/log": {
            "get": _call(
                "Newest deliveries of this replica that did not go the usual way (scope read)",
                "operator",
                [_in("query", "after", required=False)],
                None,
                _answers(_200="oldest first", **_OPERATOR),
            )
        },
    },
}


def page() -> str:
    """The document as one page without scripts, for a browser that reaches no other server."""
    rows = []
    for path, calls in DOCUMENT["paths"].items():
        for method, call in calls.items():
            answers = "<br>".join(
                f"<b>{code}</b> {html.escape(answer['description'])}" for code, answer in call["responses"].items()
            )
            rows.append(
                f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td>"
                f"<td>{html.escape(call['summary'])}</td><td>{answers}</td></tr>"
            )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Turnkeeper ingress</title>'
        "<style>body{font:15px sans-serif;margin:2em}td{padding:.5em 1em;vertical-align:top;border-top:1px solid #ccc}"
        '</style><h1>Turnkeeper ingress</h1><p><a href="/openapi.json">OpenAPI 3.1</a></p>'
        f"<table>{''.join(rows)}</table></html>"
    )

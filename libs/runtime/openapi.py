"""A service's HTTP interface as an OpenAPI 3.1 document, made from a table of its calls and the models of what they
take and give; and the same as a page for people."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from libs.contracts.ids import SLUG_PATTERN

VERSION = "1"
REFERENCE = "#/components/schemas/{model}"
Who = Literal["", "user", "operator", "user or operator"]
SLUG: dict[str, Any] = {"type": "string", "pattern": SLUG_PATTERN}
TEXT: dict[str, Any] = {"type": "string"}
PROBLEMS: Mapping[int, str] = {
    400: "malformed",
    401: "no valid credentials",
    403: "not allowed to these credentials",
    404: "not there",
    408: "the body came too slowly",
    409: "it contradicts what stands",
    410: "its time is over",
    412: "it names another state than the present one",
    413: "too large",
    415: "compressed, or of a type that is not taken",
    422: "understood, but it cannot be done",
    429: "too many; Retry-After says when",
    503: "the store or the outbox cannot take it; Retry-After says when",
}


class ProblemDocument(BaseModel):
    """Why a call was refused (RFC 9457). The last part of `type` is a heading of docs/problems.md."""

    type: str
    title: str
    status: int
    detail: str = ""


@dataclass(frozen=True)
class Parameter:
    """What a call takes beside its path and body."""

    name: str
    place: Literal["query", "header"]
    schema: Mapping[str, Any]
    required: bool = False
    says: str = ""


@dataclass(frozen=True)
class Operation:
    """One call. `answers` are the good ones, each with its media type's model; `scope` is what an operator needs.

    `body` is a model, or a whole `content` map by media type where a model cannot say it.
    """

    summary: str
    answers: Mapping[int, Any]
    who: Who = ""
    scope: str = ""
    body: type[BaseModel] | Mapping[str, Any] | None = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    path: Mapping[str, Mapping[str, Any]] | None = None
    """Schemas of names in the path that are no slugs."""
    media: str = "application/json"
    more_media: tuple[str, ...] = ()
    """Other media types that the good answers may have, as text."""


Operations = Mapping[tuple[str, str], Operation]
"""By method and path."""


class Status(BaseModel):
    """A process that lives."""

    status: Literal["alive"]


class Readiness(BaseModel):
    """Whether a replica can do its work, and what is wrong: by check, in one sentence."""

    status: Literal["ready", "not ready"]
    faults: dict[str, str]
    warnings: list[str]


HEALTH: Operations = {
    ("GET", "/livez"): Operation("Whether the process lives", {200: Status}),
    ("GET", "/readyz"): Operation(
        "Whether it can do its work: 503 says what is wrong", {200: Readiness, 503: Readiness}
    ),
    ("GET", "/metrics"): Operation("Metrics in Prometheus' exposition format", {200: str}, media="text/plain"),
}


def document(service: str, operations: Operations) -> dict[str, Any]:
    """The OpenAPI document of a service; its health calls are added."""
    whole = {**HEALTH, **operations}
    schemas = _schemas(whole)
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in whole.items():
        paths.setdefault(path, {})[method.lower()] = _call(f"{method} {path}", path, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Turnkeeper {service}",
            "version": VERSION,
            "description": "Errors are problem documents (RFC 9457): docs/problems.md. What begins with /v1 changes "
            "only so that older clients go on.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "user": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "sub is the user"},
                "operator": {"type": "http", "scheme": "bearer", "description": "a configured token with scopes"},
            },
        },
    }


def _schemas(operations: Operations) -> dict[str, Any]:
    """The models of all bodies and answers by name."""
    taken = {op.body for op in operations.values() if isinstance(op.body, type)}
    given = {model for op in operations.values() for model in op.answers.values() if _is_model(model)}
    models = sorted(taken | given | {ProblemDocument}, key=lambda model: model.__name__)
    # For answers too: what has a default may be missing in them.
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=REFERENCE)
    return dict(sorted(schemas.get("$defs", {}).items()))


def _is_model(answer: Any) -> bool:
    return isinstance(answer, type) and issubclass(answer, BaseModel)


def _schema_of(answer: Any) -> dict[str, Any]:
    if _is_model(answer):
        return {"$ref": REFERENCE.format(model=answer.__name__)}
    return TypeAdapter(answer).json_schema()


def _call(name: str, path: str, operation: Operation) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    own = operation.path or {}
    parameters: list[dict[str, Any]] = [
        {"name": at, "in": "path", "required": True, "schema": dict(own.get(at, SLUG))} for at in names
    ] + [
        {"name": one.name, "in": one.place, "required": one.required, "schema": dict(one.schema)}
        | ({"description": one.says} if one.says else {})
        for one in operation.parameters
    ]
    call: dict[str, Any] = {"operationId": name, "summary": operation.summary, "responses": _answers(operation)}
    if parameters:
        call["parameters"] = parameters
    if operation.body is not None:
        content = (
            {"application/json": {"schema": _schema_of(operation.body)}}
            if isinstance(operation.body, type)
            else dict(operation.body)
        )
        call["requestBody"] = {"required": operation.body_required, "content": content}
    if operation.who:
        call["security"] = [{who: []} for who in operation.who.split(" or ")]
    if operation.scope:
        call["description"] = f"An operator's token needs the scope `{operation.scope}`."
    return call


def _answers(operation: Operation) -> dict[str, Any]:
    problems = set(operation.problems) | ({401} if operation.who else set())
    problems |= {403} if operation.who == "operator" else set()
    found: dict[str, Any] = {}
    for status, answer in operation.answers.items():
        content: dict[str, Any] = {operation.media: {"schema": _schema_of(answer)}}
        content |= {media: {"schema": TEXT} for media in operation.more_media}
        found[str(status)] = {"description": _says(answer), "content": content}
    problem = {"application/problem+json": {"schema": _schema_of(ProblemDocument)}}
    for status in sorted(problems):
        entry = found.setdefault(str(status), {"description": PROBLEMS[status], "content": {}})
        entry["content"] |= problem
    return dict(sorted(found.items()))


def _says(answer: Any) -> str:
    return " ".join((answer.__doc__ or "").split()) if _is_model(answer) else "as text"


def publish(app: FastAPI, document: dict[str, Any]) -> None:
    """Let a FastAPI application show this document in the place of the one that it would make of its functions."""
    app.openapi = lambda: document  # type: ignore[method-assign]


def page(document: Mapping[str, Any]) -> str:
    """The document as one page without scripts, for a browser that reaches no other server."""
    title = html.escape(document["info"]["title"])
    rows = []
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            answers = "<br>".join(
                f"<b>{code}</b> {html.escape(answer['description'])}" for code, answer in call["responses"].items()
            )
            told = html.escape(" ".join((call["summary"] + ".", call.get("description", ""))).strip())
            rows.append(
                f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td><td>{told}</td><td>{answers}</td></tr>"
            )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px sans-serif;margin:2em}td{padding:.5em 1em;vertical-align:top;border-top:1px solid #ccc}"
        f'</style><h1>{title}</h1><p><a href="/openapi.json">OpenAPI 3.1</a></p><table>{"".join(rows)}</table></html>'
    )

"""One operation of a description as one tool of the application file."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import orjson

from libs.contracts.http_call import header_faults, split_url
from turnkeeper.openapi.document import Document, LeftOut, line
from turnkeeper.openapi.schemas import Schemas, kinds

METHODS = ("get", "head", "post", "put", "patch", "delete")
BODY = "body"
KEY_HEADER = "idempotency-key"
_PARAMETER = re.compile(r"[A-Za-z0-9_.$@:\[\]-]{1,100}")
_PLACE = re.compile(r"\{([^{}]*)\}")
_LITERAL = "-._~!$&'()*+,;=:@/%"
_ANY_JSON = ("application/json", "*/*", "application/*")
_OF_THE_MESSAGE = frozenset({"accept", "content-type", "authorization"})
"""Header parameters that a description may not describe (OpenAPI 3.1, Parameter Object)."""


@dataclass(frozen=True)
class Operation:
    """Where an operation stands."""

    path: str
    method: str
    item: Mapping[str, Any] = field(repr=False)
    said: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """Its `operationId`, "" without one."""
        found = self.said.get("operationId")
        return found if isinstance(found, str) else ""

    @property
    def place(self) -> str:
        """`GET /pets/{id}`, in one line."""
        return f"{self.method.upper()} {line(self.path)}"

    @property
    def about(self) -> str:
        """What it says of itself, in one line."""
        for name in ("summary", "description"):
            if isinstance(self.said.get(name), str) and line(self.said[name]):
                return line(self.said[name], 100)
        return ""


def operations(document: Document) -> Iterator[Operation]:
    """All of them, in the file's order. Raises LeftOut for a path that is none."""
    paths = document.root.get("paths", {})
    if not isinstance(paths, dict):
        raise LeftOut("`paths` is no object")
    for path, raw in paths.items():
        item = document.object_at(raw, f"the path {line(path)}")
        for method in METHODS:
            if method in item:
                yield Operation(path, method, item, document.object_at(item[method], f"{method} {line(path)}"))


@dataclass
class _Request:
    """A tool's arguments, and where each goes."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    key_header: str = ""

    def add(self, name: str, schema: Any, *, required: bool, where: str) -> str:
        """Take an argument; the name that it is called by."""
        called = name if name not in self.properties and name != BODY else f"{where}_{name}"
        if called in self.properties:
            raise LeftOut(f"it has the parameter {line(name)} twice")
        self.properties[called] = schema
        if required:
            self.required.append(called)
        return called

    @property
    def args(self) -> dict[str, Any]:
        """As a schema."""
        required = {"required": self.required} if self.required else {}
        return {"type": "object", "properties": self.properties, **required, "additionalProperties": False}


def tool_of(
    document: Document, operation: Operation, schemas: Schemas, server: str
) -> tuple[dict[str, Any], list[str]]:
    """The tool, as it stands in the application file, and notes for whoever reviews it. Raises LeftOut."""
    schemas.begin_tool()
    request = _Request()
    for parameter in _parameters(document, operation):
        _take(document, request, parameter, schemas)
    http: dict[str, Any] = {"url": _url(document, operation, request, server), "method": operation.method.upper()}
    content = _content(document, operation, request, schemas)
    headers = {**_security(document, operation), **content, **request.headers}
    if faults := header_faults(headers, request.key_header or KEY_HEADER):
        raise LeftOut(f"headers: {faults[0]}")
    if headers:
        http["headers"] = headers
    if request.query or operation.method in ("get", "head", "delete"):
        http["query"] = request.query
    http |= _body(operation, request)
    if request.key_header:
        http["idempotency_header"] = request.key_header
    http |= _reads(document, operation)
    writes = operation.method not in ("get", "head")
    if writes:
        said = " It takes one." if request.key_header else ""
        request.notes.append(f"keyed: {{for: 24h}} only where the destination honours a key for so long.{said}")
    tool = {
        "effect": "write" if writes else "read",
        **({"keyed": False, "consent": "unless-user"} if writes else {"consent": "never"}),
        "args": request.args,
        "connector": {"http": http},
    }
    return tool, request.notes


def _parameters(document: Document, operation: Operation) -> list[dict[str, Any]]:
    """Those of the path and those of the operation, which override them (by name and place)."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for holder in (operation.item, operation.said):
        given = holder.get("parameters", [])
        if not isinstance(given, list):
            raise LeftOut("`parameters` is no list")
        for raw in given:
            parameter = document.object_at(raw, "a parameter")
            found[str(parameter.get("in")), str(parameter.get("name"))] = parameter
    return list(found.values())


def _take(document: Document, request: _Request, parameter: Mapping[str, Any], schemas: Schemas) -> None:
    name, where = str(parameter.get("name")), str(parameter.get("in"))
    if where == "header" and name.lower() in _OF_THE_MESSAGE:
        return
    if where == "header" and name.lower() == KEY_HEADER:
        request.key_header = name
        return
    required = where == "path" or parameter.get("required") is True
    try:
        _place(document, request, parameter, name, where, required, schemas)
    except LeftOut as why:
        if required:
            raise
        request.notes.append(f"without its parameter {line(name, 60)}: {why}")


def _place(
    document: Document, request: _Request, parameter: Mapping[str, Any], name: str, where: str, required: bool,
    schemas: Schemas,
) -> None:  # fmt: skip
    if where not in ("path", "query", "header"):
        raise LeftOut(f"a parameter in {line(where, 20)} ({line(name, 60)}) cannot be sent")
    if not _PARAMETER.fullmatch(name):
        raise LeftOut(f"the parameter {line(name, 60)} has characters that a template cannot name")
    schema = schemas.convert(_schema_of(document, parameter))
    if isinstance(schema, dict) and "description" not in schema and isinstance(parameter.get("description"), str):
        told = line(parameter["description"], 200)
        schema = {**schema, "description": told} if told else schema
    shape = kinds(schema)
    style, plain = parameter.get("style"), {"path": "simple", "query": "form", "header": "simple"}[where]
    if "object" in shape or (style is not None and style != plain) or (where == "path" and "array" in shape):
        raise LeftOut(f"the parameter {line(name, 60)} is written in a style that the connector does not have")
    called = request.add(name, schema, required=required, where=where)
    value = f"args[{orjson.dumps(called).decode()}]"
    if "array" in shape and (where == "header" or parameter.get("explode") is False):
        value = f'{value} | join(",")' if required else f'{value} | join(",") if {value} is defined else none'
    elif not required:
        value = f"{value} | default(none)"
    {"path": request.places, "query": request.query, "header": request.headers}[where][name] = f"{{{{ {value} }}}}"


def _schema_of(document: Document, parameter: Mapping[str, Any]) -> Any:
    content = parameter.get("content")
    if content:
        raise LeftOut(f"the parameter {line(str(parameter.get('name')), 60)} is written as content of its own type")
    return parameter.get("schema", {})


def _url(document: Document, operation: Operation, request: _Request, server: str) -> str:
    base = server or _server(document, operation)
    used, made, end = set(), "", 0
    for place in _PLACE.finditer(operation.path):
        if place[1] not in request.places:
            raise LeftOut(f"its path names {line(place[0], 60)}, and no parameter does")
        used.add(place[1])
        made += quote(operation.path[end : place.start()], safe=_LITERAL) + request.places[place[1]]
        end = place.end()
    made += quote(operation.path[end:], safe=_LITERAL)
    if unused := set(request.places) - used:
        raise LeftOut(f"its path does not name {line(min(unused), 60)}")
    url = base.rstrip("/") + made
    try:
        split_url(url)
    except ValueError as error:
        raise LeftOut(f"its URL: {error}") from None
    return url


def _server(document: Document, operation: Operation) -> str:
    """The first server that counts for it, its variables at their defaults."""
    for holder in (operation.said, operation.item, document.root):
        servers = holder.get("servers")
        if isinstance(servers, list) and servers and isinstance(servers[0], dict):
            url = str(servers[0].get("url", ""))
            variables = servers[0].get("variables")
            for name, variable in variables.items() if isinstance(variables, dict) else ():
                default = variable.get("default", "") if isinstance(variable, dict) else ""
                url = url.replace(f"{{{name}}}", str(default))
            if url.startswith(("http://", "https://")):
                return url
            break
    raise LeftOut("it names no server with a host: give --server URL")


def _content(document: Document, operation: Operation, request: _Request, schemas: Schemas) -> dict[str, str]:
    """Take the request's content as an argument; the header that names its type, where that is not plain JSON."""
    raw = operation.said.get("requestBody")
    if raw is None or operation.method in ("get", "head"):
        return {}
    body = document.object_at(raw, "its content")
    content: Any = body.get("content")
    types = list(content) if isinstance(content, dict) else []
    chosen = next((name for name in types if _is_json(name)), None)
    if chosen is None:
        raise LeftOut(f"its content is {line(', '.join(types), 60) or 'of no type'}, and only JSON can be sent")
    media = document.object_at(content[chosen], "its content")
    schema = schemas.convert(media.get("schema", {}))
    request.properties[BODY] = schema
    if body.get("required") is True:
        request.required.append(BODY)
    bare = chosen.partition(";")[0].strip().lower()
    return {} if bare in _ANY_JSON else {"Content-Type": bare}


def _body(operation: Operation, request: _Request) -> dict[str, Any]:
    if operation.method in ("get", "head"):
        return {}
    if BODY not in request.properties:
        return {"body": None} if operation.method != "delete" else {}
    return {"body": "{{ args.body }}" if BODY in request.required else "{{ args.body | default(none) }}"}


def _is_json(media_type: str) -> bool:
    bare = media_type.partition(";")[0].strip().lower()
    return bare in _ANY_JSON or re.fullmatch(r"[\w.-]+/[\w.-]+\+json", bare) is not None


def _reads(document: Document, operation: Operation) -> dict[str, str]:
    """How the answer's content is read, by what the answers of success are said to have."""
    responses = operation.said.get("responses")
    types: list[str] = []
    for status, raw in responses.items() if isinstance(responses, dict) else ():
        if str(status)[:1] == "2" or (status == "default" and not types):
            content = document.object_at(raw, "an answer").get("content")
            types += list(content) if isinstance(content, dict) else []
    if any(_is_json(name) for name in types):
        return {}
    return {"reads": "text" if any(name.strip().lower().startswith("text/") for name in types) else "nothing"}


def _security(document: Document, operation: Operation) -> dict[str, str]:
    """References to the secrets that it wants, by header. The first way in that headers suffice for."""
    wanted = operation.said.get("security", document.root.get("security"))
    if not isinstance(wanted, list) or not wanted:
        return {}
    why: LeftOut | None = None
    for requirement in wanted:
        try:
            return _headers_of(document, requirement if isinstance(requirement, dict) else {})
        except LeftOut as fault:
            why = why or fault
    raise why or LeftOut("its security cannot be read")


def _headers_of(document: Document, requirement: Mapping[str, Any]) -> dict[str, str]:
    components = document.root.get("components")
    known = components.get("securitySchemes") if isinstance(components, dict) else None
    info = document.root.get("info")
    prefix = _variable(str(info.get("title", "")) if isinstance(info, dict) else "") or "API"
    headers = {}
    for name in requirement:
        if not isinstance(known, dict) or name not in known:
            raise LeftOut(f"it wants the security {line(name, 60)}, which is not described")
        scheme = document.object_at(known[name], "a security scheme")
        match scheme.get("type"):
            case "http" | "oauth2" | "openIdConnect":
                headers["Authorization"] = f"env:{prefix}_AUTHORIZATION"
            case "apiKey" if scheme.get("in") == "header":
                header = str(scheme.get("name"))
                headers[header] = f"env:{prefix}_{_variable(header) or 'KEY'}"
            case kind:
                place = line(str(scheme.get("in", kind)), 20)
                raise LeftOut(f"it wants a secret in {place}, and the connector has secrets in headers only")
    return headers


def _variable(text: str) -> str:
    return "_".join(re.findall(r"[A-Z0-9]+", line(text, 60).upper()))[:40].strip("_").lstrip("0123456789_")

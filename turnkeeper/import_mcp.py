"""The tools of an MCP server as YAML for a person to review: what `turnkeeper tools import mcp` writes.

A server's texts are somebody else's. They are written as comments, one line each and nothing hidden in it, and are kept
out of the schemas that planners are shown (G7). Its hints lower nothing: each tool is a write that asks its owner until
the person who reviews it says otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import jsonschema_rs
import yaml

from libs.contracts.application import BUILT_IN
from libs.contracts.errors import ContractError
from libs.contracts.mcp import plain
from libs.runtime.mcp_server import Listed

_MOST_DEPTH = 32
_MOST_PROPERTIES = 40
_MOST_TEXT = 160
_HEAD = """\
# Tools of the MCP server {server}. Review each before you put it into turnkeeper.yaml:
# - The comments are the server's own words. They are for you: no planner is shown them.
# - Each tool writes and asks its owner (consent: unless-user), whatever the server says of itself. Where you have
#   checked that one changes nothing: effect: read.
# - keyed: {{for: 24h}} only where the server does a call once for each key in its _meta (docs/connectors-mcp.md).
# - errors: refused only where the server reports an error for what it did not do at all.
"""
_WORDS = frozenset({
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties",
    "minProperties", "required", "dependentRequired", "format", "$ref",
})  # fmt: skip
"""Keywords of JSON Schema that are kept as they are. What is no keyword checks nothing, and is left out."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_ONE = frozenset({
    "items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})


@dataclass(frozen=True)
class Imported:
    """`text` is YAML with a comment for each tool; `faults` says what was left out, each by its tool."""

    text: str
    tools: tuple[str, ...]
    faults: tuple[str, ...]


def import_tools(
    server: str, reached: Mapping[str, Any], listed: Sequence[Listed], only: Sequence[str] = ()
) -> Imported:
    """Tools as they are declared. `server` is its name for people, `reached` how the connector reaches it (`url` and
    so on), `only` their names at the server, all without."""
    parts, names, faults = [], list[str](), []
    for missing in sorted(set(only) - {tool.name for tool in listed}):
        faults.append(f"{plain(missing)}: the server has no such tool")
    for tool in listed:
        if only and tool.name not in only:
            continue
        try:
            args = _arguments(tool)
            digest = tool.digest
        except (ValueError, ContractError) as error:
            faults.append(f"{plain(tool.name, 100)}: {plain(str(error))}")
            continue
        name = _own_name(tool.name, names)
        names.append(name)
        connector = {**reached, "tool": tool.name, "schema": digest, "timeout": "10s"}
        declared = {"effect": "write", "consent": "unless-user", "args": args, "connector": {"mcp": connector}}
        parts.append(indent(_comment(tool) + _yaml({name: declared}), "  "))
    text = _HEAD.format(server=plain(server, 120)) + "tools:\n" + "\n".join(parts) if parts else ""
    return Imported(text, tuple(names), tuple(faults))


def _yaml(value: Any) -> str:
    # Without letters beyond ASCII: what could be hidden in a name or an enumeration is escaped.
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=110)


def _comment(tool: Listed) -> str:
    lines = [plain(tool.description or "The server says nothing of it.")]
    if tool.hints.said:
        lines.append("hints: " + ", ".join(f"{name} {str(value).lower()}" for name, value in tool.hints.said.items()))
    properties = tool.input_schema.get("properties")
    for name, schema in list(properties.items() if isinstance(properties, dict) else ())[:_MOST_PROPERTIES]:
        said = schema.get("description") if isinstance(schema, dict) else None
        if isinstance(said, str) and said:
            lines.append(f"  {plain(name, 60)}: {plain(said, _MOST_TEXT)}")
    return "".join(f"# {line}\n" for line in lines)


def _own_name(name: str, taken: Sequence[str]) -> str:
    """A name as tools have here, none of those that are taken or reserved."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:56].strip("_") or "tool"
    number, found = 1, base
    while found in taken or found in BUILT_IN:
        number += 1
        found = f"{base}_{number}"
    return found


def _arguments(tool: Listed) -> dict[str, Any]:
    """The arguments' schema without the server's texts. Raises ValueError for one that cannot be used."""
    args: dict[str, Any] = _stripped(dict(tool.input_schema), 0)
    args.setdefault("type", "object")
    if args["type"] != "object":
        raise ValueError("its arguments are no object")
    for what, schema in (("inputSchema", args), ("outputSchema", tool.output_schema)):
        if schema is None:
            continue
        try:
            jsonschema_rs.validator_for(dict(schema), retriever=_nothing_outside)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            raise ValueError(f"its {what} is no JSON Schema of its own: {str(error).splitlines()[0]}") from error
    return args


def _nothing_outside(uri: str) -> Any:
    raise ValueError("it refers to something outside itself")


def _stripped(schema: Any, depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise ValueError(f"its schema is nested more than {_MOST_DEPTH} deep")
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _WORDS:
            kept[word] = value
        elif word in _NAMED and isinstance(value, dict):
            kept[word] = {name: _stripped(below, depth + 1) for name, below in value.items()}
        elif word in _SEVERAL and isinstance(value, list):
            kept[word] = [_stripped(below, depth + 1) for below in value]
        elif word in _ONE:
            several = isinstance(value, list)  # `items` of older drafts
            kept[word] = [_stripped(below, depth + 1) for below in value] if several else _stripped(value, depth + 1)
    return kept

"""The schemas of a description as JSON Schema of a tool's arguments: references resolved, known keywords alone."""

from collections.abc import Mapping
from typing import Any

from turnkeeper.openapi.document import Document, LeftOut, line

MOST_OF_A_TOOL = 3_000
MOST_IN_ALL = 300_000
"""Schemas, references resolved: a small file can stand for any number of them."""
MOST_LEVELS = 60
MOST_VALUES = 1_000
_DESCRIPTION = 200

_PLAIN = frozenset({
    "type", "enum", "const", "format", "pattern", "multipleOf", "maximum", "minimum", "exclusiveMaximum",
    "exclusiveMinimum", "maxLength", "minLength", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired", "default",
})  # fmt: skip
_ONE = frozenset({
    "additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else", "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
_CANNOT = frozenset({"$dynamicRef", "$recursiveRef"})


class Schemas:
    """Converts the schemas of one document, within limits."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MOST_IN_ALL
        self._of_tool = 0

    def begin_tool(self) -> None:
        """What follows counts for the next tool."""
        self._of_tool = MOST_OF_A_TOOL

    def convert(self, schema: Any) -> Any:
        """A schema as JSON Schema 2020-12 that refers to nothing. Raises LeftOut."""
        return self._convert(schema, ())

    def _convert(self, schema: Any, within: tuple[str, ...]) -> Any:
        self._count(within)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise LeftOut("a schema is no object")
        found, references = self._document.follow(schema)
        for reference in references:
            if reference in within:
                told = " in ".join(line(name.rpartition("/")[2], 40) for name in (reference, *reversed(within)) if name)
                raise LeftOut(f"its arguments contain themselves ({line(told, 200)}): write this tool by hand")
        if not references:
            return self._keywords(schema, (*within, ""))
        resolved = self._convert(found, (*within, *references))
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        if self._document.is_3_0 or not set(beside) & (_PLAIN | _ONE | _MANY | _NAMED):
            return resolved  # in 3.0 nothing counts beside a reference
        return {"allOf": [resolved, self._keywords(beside, (*within, ""))]}

    def _count(self, within: tuple[str, ...]) -> None:
        self._left -= 1
        self._of_tool -= 1
        if self._left < 0:
            raise LeftOut("the whole file stands for too many schemas: choose some with --only")
        if self._of_tool < 0:
            raise LeftOut(f"its arguments stand for more than {MOST_OF_A_TOOL} schemas: write this tool by hand")
        if len(within) > MOST_LEVELS:
            raise LeftOut("its arguments are nested too deep: write this tool by hand")

    def _keywords(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in schema.items():
            if name in _CANNOT:
                raise LeftOut(f"its arguments use {name}")
            if name in _PLAIN:
                made[name] = _plain(name, value)
            elif name in _ONE and not isinstance(value, list):
                made[name] = self._convert(value, within)
            elif name in _MANY and isinstance(value, list):
                made[name] = [self._convert(item, within) for item in value]
            elif name in _NAMED and isinstance(value, dict):
                kept = {key: item for key, item in value.items() if not _is_read_only(item)}
                made[name] = {key: self._convert(item, within) for key, item in kept.items()}
            elif name == "description" and isinstance(value, str) and line(value):
                made[name] = line(value, _DESCRIPTION)
        self._drop_read_only(schema, made)
        return _of_3_0(schema, made) if self._document.is_3_0 else made

    def _drop_read_only(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """What only the destination sets is no argument."""
        properties, required = schema.get("properties"), made.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return
        left = [name for name in required if not _is_read_only(properties.get(name))]
        if left:
            made["required"] = left
        else:
            del made["required"]


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("readOnly") is True


def _plain(name: str, value: Any) -> Any:
    """A keyword's own value. Raises LeftOut where it is large enough to hide something in."""
    if isinstance(value, list | dict) and len(value) > MOST_VALUES:
        raise LeftOut(f"`{name}` has more than {MOST_VALUES} values")
    return value


def _of_3_0(schema: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The two keywords that OpenAPI 3.0 has in its own way."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(made.get(exclusive), bool) and made.pop(exclusive) and bound in made:
            made[exclusive] = made.pop(bound)
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
    return made


def kinds(schema: Any) -> set[str]:
    """The JSON types that a converted schema names."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    found = {item for item in (named if isinstance(named, list) else [named]) if isinstance(item, str)}
    if "properties" in schema:
        found.add("object")
    return found.union(*(kinds(item) for part in ("allOf", "anyOf", "oneOf") for item in schema.get(part, ())))

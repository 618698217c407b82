"""The documents that are published for machines, and whether a change of one breaks who relies on it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from libs.contracts import asyncapi
from libs.contracts.topology import Topology
from services.consent.openapi import DOCUMENT as CONSENT
from services.ingress.openapi import DOCUMENT as INGRESS
from services.session.openapi import DOCUMENT as SESSION
from services.tools.openapi import DOCUMENT as TOOLS
from tests.support.schemas import Schema, breaks

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "api"
OPENAPI: dict[str, dict[str, Any]] = {"ingress": INGRESS, "session": SESSION, "consent": CONSENT, "tools": TOOLS}
DOCUMENTS: dict[str, dict[str, Any]] = {
    **{f"openapi-{service}": document for service, document in OPENAPI.items()},
    "asyncapi": asyncapi.document(Topology()),
}


def breaking(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Each change, by its place, with which a client, subscriber or agent written for `old` may fail."""
    return list(_messages(old, new) if "asyncapi" in old else _calls(old, new))


def _calls(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    defs = (old["components"]["schemas"], new["components"]["schemas"])
    for path, methods in old["paths"].items():
        for method, call in methods.items():
            name = f"{method.upper()} {path}"
            other = new["paths"].get(path, {}).get(method)
            if other is None:
                yield f"{name}: was removed"
                continue
            yield from _call(name, call, other, *defs)


def _call(name: str, old: Schema, new: Schema, old_defs: Schema, new_defs: Schema) -> Iterator[str]:
    if not {str(way) for way in old.get("security", [{}])} <= {str(way) for way in new.get("security", [{}])}:
        yield f"{name}: credentials that were enough are no longer"
    yield from _parameters(name, old, new, old_defs, new_defs)
    before, after = old.get("requestBody"), new.get("requestBody")
    if after is not None and after["required"] and not (before and before["required"]):
        yield f"{name} body: is now required"
    if before is not None and after is not None:
        for media, content in before["content"].items():
            if media not in after["content"]:
                yield f"{name} body {media}: was removed"
            else:
                taken = after["content"][media]["schema"]
                yield from (f"{name} body{at}" for at in _narrowed(content["schema"], taken, old_defs, new_defs))
    elif before is not None:
        yield f"{name} body: was removed"
    for status, answer in old["responses"].items():
        if status not in new["responses"]:
            yield f"{name} {status}: was removed"
            continue
        for media, content in answer["content"].items():
            given = new["responses"][status]["content"].get(media)
            if given is None:
                yield f"{name} {status} {media}: was removed"
                continue
            yield from (f"{name} {status}{at}" for at in lost(content["schema"], given["schema"], old_defs, new_defs))


def _parameters(name: str, old: Schema, new: Schema, old_defs: Schema, new_defs: Schema) -> Iterator[str]:
    before = {(one["in"], one["name"]): one for one in old.get("parameters", [])}
    after = {(one["in"], one["name"]): one for one in new.get("parameters", [])}
    for key, one in after.items():
        if one["required"] and not before.get(key, {"required": False})["required"]:
            yield f"{name} {key[1]}: is now required"
    for key, one in before.items():
        if key not in after:
            yield f"{name} {key[1]}: was removed"
        else:
            yield from (
                f"{name} {key[1]}{at}" for at in _narrowed(one["schema"], after[key]["schema"], old_defs, new_defs)
            )


def _narrowed(old: Schema, new: Schema, old_defs: Schema, new_defs: Schema) -> list[str]:
    """What was taken and is no longer, or is needed now."""
    return breaks({**old, "$defs": old_defs}, {**new, "$defs": new_defs}) + [
        at for at in lost(old, new, old_defs, new_defs) if at.endswith("was removed")
    ]


def lost(old: Schema, new: Schema, old_defs: Schema, new_defs: Schema, seen: tuple[str, ...] = ()) -> list[str]:
    """What was promised in an answer and is no longer: fields, values, types."""
    reference = old.get("$ref", "")
    if reference and reference in seen:
        return []
    old, new = _resolved(old, old_defs), _resolved(new, new_defs)
    seen = (*seen, reference)
    faults = []
    if "type" in old and new.get("type") != old["type"]:
        faults.append(f": type was {old['type']}, is {new.get('type')}")
    if gone := set(map(str, old.get("enum", []))) - set(map(str, new.get("enum", old.get("enum", [])))):
        faults.append(f": {', '.join(sorted(gone))} was removed")
    for name, value in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            faults.append(f".{name}: was removed")
            continue
        if name in old.get("required", []) and name not in new.get("required", []):
            faults.append(f".{name}: may be missing now")
        faults += [f".{name}{at}" for at in lost(value, new["properties"][name], old_defs, new_defs, seen)]
    for inside in ("items", "additionalProperties"):
        if isinstance(old.get(inside), dict) and isinstance(new.get(inside), dict):
            faults += [f"[]{at}" for at in lost(old[inside], new[inside], old_defs, new_defs, seen)]
    return faults


def _resolved(schema: Schema, defs: Schema) -> Schema:
    reference = schema.get("$ref")
    return defs[reference.rpartition("/")[2]] if reference else schema


def _messages(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("channels", "operations"):
        for name, one in old[kind].items():
            other = new[kind].get(name)
            if other is None:
                yield f"{kind} {name}: was removed"
                continue
            for field in ("address", "action", "channel"):
                if one.get(field) != other.get(field):
                    yield f"{kind} {name}: {field} was {one.get(field)}, is {other.get(field)}"
            messages = {str(message) for message in one["messages"]}
            for gone in sorted(messages - {str(message) for message in other["messages"]}):
                yield f"{kind} {name}: {gone} was removed"
    before, after = old["components"]["schemas"], new["components"]["schemas"]
    for name, schema in before.items():
        if name not in after:
            yield f"schema {name}: was removed"
            continue
        yield from (f"schema {name}{at}" for at in _narrowed(schema, after[name], before, after))
    for name, message in old["components"]["messages"].items():
        if name in new["components"]["messages"]:
            now = new["components"]["messages"][name].get("contentType")
            if now != message.get("contentType"):
                yield f"message {name}: contentType was {message.get('contentType')}, is {now}"

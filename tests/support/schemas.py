"""Whether a message written by an older version could still be read: two JSON Schemas compared."""

from typing import Any

Schema = dict[str, Any]
_LIMITS = ("pattern", "maxLength", "minLength", "maximum", "minimum", "maxItems", "minItems", "const", "format")


def breaks(old: Schema, new: Schema) -> list[str]:
    """Each change by path that makes some valid old message invalid; empty when none does."""
    return _compare("", old, new, old.get("$defs", {}), new.get("$defs", {}))


def _compare(path: str, old: Schema, new: Schema, old_defs: Schema, new_defs: Schema) -> list[str]:
    old, new = _resolved(old, old_defs), _resolved(new, new_defs)
    faults = [
        f"{path or '.'}: {name} is new or other" for name in _LIMITS if name in new and new[name] != old.get(name)
    ]
    if "type" in new and new["type"] != old.get("type"):
        faults.append(f"{path or '.'}: type was {old.get('type')}, is {new['type']}")
    if "enum" in new and (lost := set(old.get("enum", ["anything"])) - set(new["enum"])):
        faults.append(f"{path or '.'}: no longer allowed: {', '.join(sorted(lost))}")
    for name in set(new.get("required", [])) - set(old.get("required", [])):
        faults.append(f"{path}.{name}: is now required")
    faults += _properties(path, old, new, old_defs, new_defs)
    for name in ("items", "additionalProperties"):
        if isinstance(old.get(name), dict) and isinstance(new.get(name), dict):
            faults += _compare(f"{path}[]", old[name], new[name], old_defs, new_defs)
    if "anyOf" in new:
        faults += _choices(path, old, new, old_defs, new_defs)
    return faults


def _properties(path: str, old: Schema, new: Schema, old_defs: Schema, new_defs: Schema) -> list[str]:
    faults = []
    for name, value in old.get("properties", {}).items():
        if name in new.get("properties", {}):
            faults += _compare(f"{path}.{name}", value, new["properties"][name], old_defs, new_defs)
        elif new.get("additionalProperties") is False:
            faults.append(f"{path}.{name}: was removed")
    return faults


def _choices(path: str, old: Schema, new: Schema, old_defs: Schema, new_defs: Schema) -> list[str]:
    """Each old choice must still be one of the new."""
    faults = []
    for choice in old.get("anyOf", [old]):
        if all(_compare(path, choice, other, old_defs, new_defs) for other in new["anyOf"]):
            faults.append(f"{path or '.'}: a choice was removed")
    return faults


def _resolved(schema: Schema, defs: Schema) -> Schema:
    reference = schema.get("$ref")
    return defs[reference.rpartition("/")[2]] if reference else schema

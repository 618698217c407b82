"""An OpenAPI file, and what its references lead to."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from libs.contracts.strict_json import Malformed, parse

MAX_JSON_BYTES = 32 * 1024 * 1024
MAX_YAML_BYTES = 8 * 1024 * 1024
"""YAML is slower to read by far."""
MOST_HOPS = 50
_SHOWN = 120


class OpenapiError(ValueError):
    """A description that cannot be used. One line for people."""


class LeftOut(ValueError):
    """An operation, or a part of one, that cannot become a tool; why."""


class Document:
    """The root of a description."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.is_3_0 = str(root.get("openapi", "")).startswith("3.0")

    def follow(self, value: Any) -> tuple[Any, list[str]]:
        """What a value is once its references are followed, and the references in their order. Raises LeftOut."""
        followed: list[str] = []
        while isinstance(value, dict) and isinstance(value.get("$ref"), str):
            reference = value["$ref"]
            if reference in followed or len(followed) >= MOST_HOPS:
                raise LeftOut(f"{line(reference)} refers to itself")
            followed.append(reference)
            value = self._at(reference)
        return value, followed

    def object_at(self, value: Any, what: str) -> dict[str, Any]:
        """The same, where only an object will do. Raises LeftOut."""
        found, _ = self.follow(value)
        if not isinstance(found, dict):
            raise LeftOut(f"{what} is no object")
        return found

    def _at(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            raise LeftOut(f"it refers to another file ({line(reference)}): bundle the description into one file first")
        found: Any = self.root
        for part in reference[2:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")  # RFC 6901 §4
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
                found = found[int(name[:9])]
            else:
                raise LeftOut(f"it refers to {line(reference)}, which is not there")
        return found


def read_document(path: Path) -> Document:
    """Read an OpenAPI 3.0 or 3.1 description, JSON or YAML. Raises OpenapiError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise OpenapiError(f"{path}: {error.strerror}") from error
    root = _json(path, raw) if raw.lstrip()[:1] == b"{" else _yaml(path, raw)
    if not isinstance(root, dict):
        raise OpenapiError(f"{path}: not an OpenAPI description: no object")
    if "swagger" in root:
        raise OpenapiError(f"{path}: Swagger {line(str(root['swagger']))}: convert it to OpenAPI 3 first")
    version = str(root.get("openapi", ""))
    if not version.startswith(("3.0.", "3.1.")):
        told = f"its version is {line(version)}" if version else "it has no `openapi`"
        raise OpenapiError(f"{path}: OpenAPI 3.0 and 3.1 can be read, and {told}")
    return Document(root)


def _json(path: Path, raw: bytes) -> Any:
    _check_size(path, raw, MAX_JSON_BYTES)
    try:
        return parse(raw)
    except Malformed as malformed:
        raise OpenapiError(f"{path}: {malformed}") from None


def _yaml(path: Path, raw: bytes) -> Any:
    _check_size(path, raw, MAX_YAML_BYTES)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.load(raw.decode(), Loader=loader)  # noqa: S506 - both are safe loaders
    except UnicodeDecodeError:
        raise OpenapiError(f"{path}: not UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        why = line(getattr(error, "problem", None) or type(error).__name__)
        raise OpenapiError(f"{path}: not YAML{where}: {why}") from None
    _make_json(root)
    return root


def _check_size(path: Path, raw: bytes, most: int) -> None:
    if len(raw) > most:
        raise OpenapiError(f"{path}: larger than {most // 1024 // 1024} MB; take out what you do not need")


def _make_json(root: Any) -> None:
    """Keys as text and times as text, in place. Each object once, however many aliases lead to it."""
    seen, todo = {id(root)}, [root]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            for key in [key for key in value if not isinstance(key, str)]:
                value[str(key).lower() if isinstance(key, bool) else str(key)] = value.pop(key)
        places: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for place in places:
            item = value[place]
            if isinstance(item, datetime.date):
                value[place] = item.isoformat()
            elif isinstance(item, dict | list) and id(item) not in seen:
                seen.add(id(item))
                todo.append(item)


def line(text: str, most: int = _SHOWN) -> str:
    """Somebody else's text in one line: every character visible, no longer than `most`."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"

"""All tools of a description as YAML, with what could not be imported and why."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from libs.contracts.application import BUILT_IN, Tool
from libs.contracts.http_call import split_url
from turnkeeper.openapi.document import Document, LeftOut, OpenapiError, line
from turnkeeper.openapi.operations import Operation, operations, tool_of
from turnkeeper.openapi.schemas import Schemas

_HEAD = """\
# From {title}, imported for review; nothing of it is in force before it stands in your turnkeeper.yaml.
# Of each tool check: its effect (a GET that changes something is a write), who is asked (consent), whether the
# destination honours an idempotency key (keyed), which answers mean what (answers), and every text: planners read it.
"""


@dataclass(frozen=True)
class Imported:
    """The YAML, the names of its tools, and what was left out, each as `GET /pets: why`."""

    text: str
    tools: tuple[str, ...]
    left_out: tuple[str, ...]


def import_tools(document: Document, *, only: Collection[str] = (), server: str = "") -> Imported:
    """The operations of a description (those named by `only`, where given) as tools under `tools:`.

    `server` takes the place of the description's own servers. Raises OpenapiError where none can be imported, or one
    that was asked for.
    """
    if server:
        try:
            split_url(server.rstrip("/"))
        except ValueError as error:
            raise OpenapiError(f"--server: {error}") from None
    schemas = Schemas(document)
    blocks: dict[str, str] = {}
    left_out = []
    for operation in _chosen(document, only):
        try:
            tool, notes = tool_of(document, operation, schemas, server)
            _check(tool)
        except LeftOut as why:
            left_out.append(f"{operation.place}: {why}")
            continue
        name = _name(operation, blocks)
        blocks[name] = _block(name, operation, tool, notes)
    if left_out and only:
        raise OpenapiError(left_out[0])
    if not blocks:
        raise OpenapiError(left_out[0] if left_out else "the description has no operation")
    text = _HEAD.format(title=_title(document)) + "tools:\n" + "\n".join(blocks.values())
    return Imported(text, tuple(blocks), tuple(left_out))


def _chosen(document: Document, only: Collection[str]) -> list[Operation]:
    try:
        found = list(operations(document))
    except LeftOut as why:
        raise OpenapiError(str(why)) from None
    if not only:
        return found
    known = {key: operation for operation in found for key in (_slug(operation), operation.id) if key}
    if missing := sorted(set(only) - set(known)):
        raise OpenapiError(f"there is no operation {line(missing[0], 60)}: see the operationId of each in the file")
    chosen = {id(known[name]) for name in only}
    return [operation for operation in found if id(operation) in chosen]


def _check(tool: dict[str, Any]) -> None:
    """That the application file takes it. Raises LeftOut."""
    try:
        Tool.model_validate(tool)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise LeftOut(line(f"{place} {fault['msg'].removeprefix('Value error, ')}".strip(), 200)) from None


def _slug(operation: Operation) -> str:
    text = operation.id or f"{operation.method}_{operation.path}"
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:60] or operation.method


def _name(operation: Operation, taken: Collection[str]) -> str:
    first = name = _slug(operation)
    number = 1
    while name in taken or name in BUILT_IN:
        number += 1
        name = f"{first[:58]}_{number}"
    return name


def _block(name: str, operation: Operation, tool: dict[str, Any], notes: list[str]) -> str:
    comments = [f"{operation.place}: {operation.about}" if operation.about else operation.place, *notes]
    # ASCII alone: what is hidden or reorders is then seen by whoever reviews it.
    dumped = yaml.dump({name: tool}, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=False)
    lines = [*(f"# {line(comment, 200)}" for comment in comments), *dumped.splitlines()]
    return "".join(f"  {text}\n" for text in lines)


class _Plain(yaml.SafeDumper):
    """Without anchors: what two tools have in common stands in both, so that each can be read alone."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _title(document: Document) -> str:
    info = document.root.get("info")
    named = [str(info.get(part, "")) for part in ("title", "version")] if isinstance(info, dict) else []
    return line(" ".join(named), 80) or "an OpenAPI description"

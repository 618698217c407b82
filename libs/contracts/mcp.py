"""What a tool of an MCP server is to us, as pure functions: the digest of its schema, and what its hints change.

A server says what it likes: its hints may raise a gate, never lower it, and its texts are shown as data (G7).
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.contracts.application import Tool
from libs.contracts.canonical import JSON, digest

KEY_META = "turnkeeper.dev/idempotency-key"
"""The key of a request's `_meta` under which the server is told the operation's idempotency key (MCP names keys of
`_meta` by a reversed or plain domain, then a slash)."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True)
class Hints:
    """A tool's annotations as its server gave them; None where it said nothing (the specification's defaults are
    then not taken for its word)."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None

    @property
    def said(self) -> dict[str, bool]:
        """Those that were given, by their names in MCP."""
        named = {
            "readOnlyHint": self.read_only,
            "destructiveHint": self.destructive,
            "idempotentHint": self.idempotent,
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def writes(self) -> bool:
        """Whether the server itself says that the tool changes something. `destructiveHint` counts only where
        `readOnlyHint` is not true."""
        return self.read_only is False or (self.destructive is True and self.read_only is not True)


def schema_digest(input_schema: Mapping[str, Any], output_schema: Mapping[str, Any] | None) -> str:
    """The digest that a call is approved under, `sha256:…`, of both schemas as the server lists them.

    Raises ContractError for what is not JSON.
    """
    schemas: JSON = {"input": dict(input_schema), "output": None if output_schema is None else dict(output_schema)}
    return "sha256:" + digest(schemas)


def raised(tool: Tool, hints: Hints) -> Tool | None:
    """The tool with the gate that its server's hints ask for; None where they ask for no more than the file does.

    What the server says that it writes is a write here, so it is neither sent twice nor used to look something up; it
    asks as a write does by default, and what the server says is destructive asks although the file says never.
    """
    if not hints.writes:
        return None
    wanted: dict[str, Any] = {}
    if tool.effect != "write":
        wanted["effect"] = "write"
    if tool.gate == "never" and (tool.effect != "write" or hints.destructive is True):
        wanted["consent"] = "unless-user"
    return tool.model_copy(update=wanted) if wanted else None


def plain(text: str, most: int = 300) -> str:
    """A server's text as data for a log, a reason or a comment: one line, hidden and reordering characters shown by
    their number, at most so many characters, the cut said."""
    shown = "".join(f"\\u{{{ord(char):X}}}" if unicodedata.category(char) in _HIDDEN else char for char in text[:most])
    return shown if len(text) <= most else f"{shown} … ({len(text)} characters)"

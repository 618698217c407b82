"""Lua scripts as values, and their tagged replies as types. Replies are indexed only here."""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """One Lua script: its name for logs, its text, its SHA-1 for EVALSHA."""

    name: str
    text: str
    sha: str


@dataclass(frozen=True)
class Reply:
    """A tagged reply: `{"tag", value…}` of a script."""

    tag: str
    values: tuple[Any, ...]

    def raw(self, index: int) -> bytes:
        """A value as bytes."""
        value = self.values[index]
        return value if isinstance(value, bytes) else str(value).encode()

    def text(self, index: int) -> str:
        """A value as text."""
        return self.raw(index).decode()

    def int(self, index: int) -> int:
        """A value as a whole number."""
        return int(self.values[index])


@cache
def load_script(package: str, name: str) -> Script:
    """Read `<package>/lua/<name>.lua`, its `--@include` lines replaced by files of the runtime's `lua` folder."""
    text = _INCLUDE.sub(lambda match: _read("libs.runtime", match[1]), _read(package, name))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _read(package: str, name: str) -> str:
    return files(package).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def parse_reply(script: Script, raw: Any) -> Reply:
    """The reply of a script. Raises TypeError when it is not a tagged array: a fault of the script."""
    if not isinstance(raw, list) or not raw or not isinstance(raw[0], bytes):
        raise TypeError(f"{script.name}.lua did not answer with a tagged array")
    return Reply(raw[0].decode(), tuple(raw[1:]))

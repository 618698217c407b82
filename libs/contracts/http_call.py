"""How an HTTP tool's request is written in the application file, and what its answers mean: pure functions.

A template may fill a segment of the path, a value of the query, a header or the body. Scheme, host and port are literal
text of the file, and no value can add a segment, a query or another host.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from libs.contracts.canonical import JSON
from libs.contracts.templates import evaluate, syntax_fault

Meaning = Literal["committed", "refused", "failed", "unknown"]
"""What a status says of an operation, in the words of the ledger."""

_DEFAULTS: dict[Meaning, tuple[int, ...]] = {
    # The destination judged the request and did nothing: asking again with the same arguments changes nothing.
    "refused": (400, 402, 403, 404, 409, 410, 412, 413, 414, 422, 423, 451),
    # It turned away whoever asked, or how: ours to mend, and nothing was done.
    "failed": (401, 405, 406, 407, 411, 415, 417, 421, 426, 428, 431),
}
_BY_DEFAULT: dict[int, Meaning] = {status: meaning for meaning, all_ in _DEFAULTS.items() for status in all_}
STATUS = re.compile(r"[1-5](?:[0-9]{2}|xx)")
"""A key of `answers`: one status, or a class of them."""

BODILESS = frozenset({"GET", "HEAD"})
"""Methods whose content has no meaning (RFC 9110 §9.3.1, §9.3.2)."""
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
"""RFC 9110 §5.1."""
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""Printable ASCII: the part of RFC 9110 §5.5 that every destination reads alike."""
_OURS = frozenset({
    "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive",
    "accept-encoding", "cookie2", "proxy-connection",
})  # fmt: skip
_SECRET_NAME = re.compile(r"authorization|cookie|token|secret|passw|credential|signature|api-?key|(?:^|-)key$", re.I)
_REFERENCE = re.compile(r"(?:env|file):\S.*")
_PARTS = re.compile(r"(\{\{.*?\}\})", re.DOTALL)
_PATH_LITERAL = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})*")
"""A segment of a path (RFC 3986 §3.3)."""
_BASE = re.compile(r"(https?)://([^/?#\\{}\s]+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DOTS = frozenset({".", ".."})


class Unfit(ValueError):
    """Arguments that cannot be sent. The text says where, without the value."""


def meaning_of(status: int, answers: Mapping[str, Meaning]) -> Meaning:
    """What a status means: as the file says of it, of its class, else what it proves by itself.

    2xx is committed (RFC 9110 §15.3). What the destination judged is refused, what it turned away is failed. Everything
    else may have been done: a redirect (a 303 answers what was done, §15.4.4), 408, 425 and 429 (a proxy may say so for
    what it had passed on), and 5xx.
    """
    said = answers.get(str(status)) or answers.get(f"{status // 100}xx") or _BY_DEFAULT.get(status)
    return said or ("committed" if 200 <= status < 300 else "unknown")


def is_reference(value: str) -> bool:
    """Whether a header's value names a secret (`env:NAME`, `file:PATH`) instead of being text."""
    return _REFERENCE.fullmatch(value) is not None


def split_url(url: str) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Scheme and authority, and the segments of the path, each as its literal and template parts in their order.

    Raises ValueError with what is wrong, for people.
    """
    base = _BASE.match(url)
    if base is None:
        raise ValueError("a URL begins with http:// or https:// and a host, which is literal: no template in it")
    try:
        parts = urlsplit(base[0])
        port = parts.port
    except ValueError:
        raise ValueError("its host or port cannot be read") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("a password does not belong into the file; give a header by reference instead")
    if not parts.hostname or port == 0:
        raise ValueError("it names no host, or a port that there is not")
    return base[0], _segments(url[base.end() :])


def _segments(path: str) -> tuple[tuple[str, ...], ...]:
    if path and not path.startswith("/"):
        raise ValueError("after the host comes a path, literally")
    segments: list[list[str]] = []
    for piece in _PARTS.split(path):
        if _is_template(piece):
            if fault := syntax_fault(piece):
                raise ValueError(f"template: {fault}")
            segments[-1].append(piece)
            continue
        first, *more = piece.split("/")
        if segments:
            segments[-1].append(first)
        segments += [[name] for name in more]
        _check_literals(piece)
    done = tuple(tuple(part for part in segment if part) for segment in segments)
    if any("".join(segment) in _DOTS for segment in done):
        raise ValueError("the path has a segment of dots, which a destination would resolve to another path")
    return done


def _check_literals(piece: str) -> None:
    if "?" in piece:
        raise ValueError("what follows a question mark goes into `query`")
    if "#" in piece:
        raise ValueError("a fragment is never sent")
    if not all(_PATH_LITERAL.fullmatch(name) for name in piece.split("/")):
        raise ValueError("a path holds letters, digits, -._~!$&'()*+,;=:@ and {{ templates }}; encode the rest as %XX")


def _is_template(piece: str) -> bool:
    return piece.startswith("{{")


def has_templates(segments: tuple[tuple[str, ...], ...]) -> bool:
    """Whether a path takes any argument."""
    return any(_is_template(part) for segment in segments for part in segment)


def fill_path(segments: tuple[tuple[str, ...], ...], context: Mapping[str, Any]) -> str:
    """The path, each value percent-encoded. Raises Unfit and TemplateError."""
    return "".join(f"/{_segment(segment, context)}" for segment in segments) or "/"


def _segment(parts: tuple[str, ...], context: Mapping[str, Any]) -> str:
    shown, encoded = "", ""
    for part in parts:
        text = scalar(evaluate(part, context), "the path") if _is_template(part) else part
        shown += text
        encoded += _quoted(text) if _is_template(part) else part
    if any(_is_template(part) for part in parts):
        if not shown:
            raise Unfit("a segment of the path would be empty")
        # A destination may decode before it splits, so that an encoded ../ would still lead elsewhere.
        if _CONTROL.search(shown) or _DOTS & set(re.split(r"[/\\]", shown)):
            raise Unfit("a segment of the path would lead elsewhere")
    return encoded


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise Unfit("a value is no Unicode text") from None


def fill_query(query: Mapping[str, JSON], context: Mapping[str, Any]) -> str:
    """The query without its question mark: a null is left out, a list repeats its name. Raises Unfit, TemplateError."""
    pairs = []
    for name, template in query.items():
        value = evaluate(template, context) if isinstance(template, str) else template
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                pairs.append(f"{_quoted(name)}={_quoted(scalar(item, f'the query ({name})'))}")
    return "&".join(pairs)


def scalar(value: JSON, where: str) -> str:
    """Text of a text, number or boolean. Raises Unfit for anything else."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            raise Unfit(f"{where} takes a text, a number or a boolean")


def header_faults(headers: Mapping[str, str], reserved: str) -> list[str]:
    """What is wrong with the headers of a file, each as `name: what`. No value is told, it may be a secret."""
    faults, seen = [], set()
    for name, value in headers.items():
        lower = name.lower()
        if not HEADER_NAME.fullmatch(name):
            faults.append("a name that is no header's")
        elif lower in _OURS or lower.startswith("turnkeeper-") or lower == reserved.lower():
            faults.append(f"{name}: is set by the runtime")
        elif lower in seen:
            faults.append(f"{name}: stands twice")
        elif is_reference(value):
            pass
        elif _SECRET_NAME.search(name):
            faults.append(f"{name}: a secret is a reference, env:NAME or file:PATH, not the secret itself")
        elif "{{" in value or "{%" in value:
            if fault := syntax_fault(value):
                faults.append(f"{name}: template: {fault}")
        elif not HEADER_VALUE.fullmatch(value):
            faults.append(f"{name}: a value is printable ASCII without spaces around it")
        seen.add(lower)
    return faults


def template_faults(value: JSON, path: str) -> list[str]:
    """What is wrong with the templates of a JSON value, each by path."""
    match value:
        case str():
            fault = syntax_fault(value) if "{{" in value or "{%" in value else None
            return [f"{path}: template: {fault}"] if fault else []
        case dict():
            return [fault for name, item in value.items() for fault in template_faults(item, f"{path}.{name}")]
        case list():
            return [fault for place, item in enumerate(value) for fault in template_faults(item, f"{path}.{place}")]
        case _:
            return []

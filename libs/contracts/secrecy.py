"""The secrets that this process holds, so that they can be taken out of whatever it writes for people.

A secret gets into a log by ways that nobody thought of: the text of a library's exception, a URL, a function's error.
So every secret is remembered when it is read, settings and references alike, and logs are masked as the last step.
"""

import json
from urllib.parse import quote

MASK = "***"
MIN_LENGTH = 6
"""Shorter ones are not masked: they would be found in ordinary words, and are no secrets to anybody."""
_forms: list[tuple[bytes, str]] = []
"""How a remembered secret may look in a text, the longest first."""


def remember(*secrets: str) -> None:
    """Take these out of what is written from now on: as they are, as JSON and in a URL."""
    known = {form for _, form in _forms}
    for secret in secrets:
        if len(secret) >= MIN_LENGTH:
            known |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, "")}
    _forms[:] = sorted(((form.encode(), form) for form in known), key=lambda pair: (-len(pair[0]), pair[0]))


def masked(line: bytes) -> bytes:
    """The line without the secrets that are remembered."""
    for form, _ in _forms:
        if form in line:
            line = line.replace(form, MASK.encode())
    return line


def masked_text(text: str) -> str:
    """The same for text."""
    for _, form in _forms:
        if form in text:
            text = text.replace(form, MASK)
    return text


def forget_all() -> None:
    """Remember nothing: for tests, which read the secrets of many processes in one."""
    _forms.clear()

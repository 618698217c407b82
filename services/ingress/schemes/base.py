"""What all schemes share: the verdict, the check of the time, and reading headers without trusting them."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case and values, as on the wire; a repeated header is there twice."""

_TIMESTAMP = re.compile(rb"[1-9][0-9]{0,14}")
"""Unix seconds: no sign, no underscore, no other script's digits, all of which int() takes (C008)."""


class SchemeFault(ValueError):
    """A configuration with which nothing could be verified safely. Stops the start; never holds a secret.

    `faults` lists each as `field: what is wrong`.
    """

    def __init__(self, field: str, *wrong: str) -> None:
        self.faults = [f"{field}: {what}" for what in wrong]
        super().__init__("; ".join(self.faults))


class Refusal(StrEnum):
    """Why a delivery is not believed. The sender is told neither."""

    SIGNATURE = "signature"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Verified:
    """What a valid signature says. `event_id` is None where the id is inside the body or nowhere.

    `timestamp` is the signed time in Unix seconds, or None for schemes without one. `digest` is the SHA-256 (hex) of
    the raw body. `id_is_signed` is False where the id is a header outside the signature: it only points (C077).
    `principal` is who published, where the scheme knows more than the source's name.
    """

    event_id: str | None
    timestamp: int | None
    digest: str
    id_is_signed: bool = True
    principal: str | None = None


class Verifier(Protocol):
    """One source's scheme with its secrets."""

    def verify(self, headers: Headers, body: bytes, publisher: str | None) -> Verified | None:
        """The verdict over exactly these bytes; None for a signature that does not fit. May raise anything.

        `publisher` is the user name that RabbitMQ validated, or None.
        """
        ...


def check(
    verifier: Verifier,
    headers: Headers,
    body: bytes,
    *,
    now_ms: int,
    tolerance_seconds: float | None,
    publisher: str | None = None,
) -> Verified | Refusal:
    """Signature, then time, which is only worth a look when it is signed. Any exception is "invalid" (5-facts).

    `tolerance_seconds` holds both ways and is inclusive (C006, C028); None leaves the time to the caller.
    """
    try:
        verified = verifier.verify(headers, body, publisher)
    except Exception:
        return Refusal.SIGNATURE
    if verified is None:
        return Refusal.SIGNATURE
    if (
        tolerance_seconds is not None
        and verified.timestamp is not None
        and abs(now_ms // 1000 - verified.timestamp) > tolerance_seconds
    ):
        return Refusal.TIME
    return verified


def body_digest(body: bytes) -> str:
    """SHA-256 of the raw body, as 64 hexadecimal digits."""
    return hashlib.sha256(body).hexdigest()


def single(headers: Headers, name: bytes) -> bytes | None:
    """The one value of a security header; None when it is absent, empty or repeated (C011, C039)."""
    found = None
    for key, value in headers:
        if key == name:
            if found is not None:
                return None
            found = value
    return found or None


def unix_seconds(text: bytes) -> int | None:
    """A timestamp header as a number, or None when it is anything but plain digits (C008)."""
    return int(text) if _TIMESTAMP.fullmatch(text) else None


def keys_of(secrets: Sequence[str], decode: Callable[[str], bytes]) -> list[bytes]:
    """The keys of a list of secrets, each tried in turn (C004). Raises SchemeFault with every secret that is none."""
    keys, faults = [], []
    for index, secret in enumerate(secrets):
        try:
            keys.append(decode(secret))
        except ValueError as error:
            faults.append(f"number {index + 1}: {error}")
    if faults or not keys:
        raise SchemeFault("secrets", *(faults or ["none given"]))
    return keys


def header_pairs(headers: Mapping[str, Any] | Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of HTTP or of an AMQP message in one form: lower-case names, bytes.

    AMQP values may be text, bytes or whole numbers; anything else is no header of a signature and is left out.
    """
    if not isinstance(headers, Mapping):
        return [(name.lower(), value) for name, value in headers]
    pairs = []
    for name, value in headers.items():
        match value:
            case bytes() | bytearray():
                pairs.append((name.lower().encode(), bytes(value)))
            case str():
                pairs.append((name.lower().encode(), value.encode("utf-8", "surrogateescape")))
            case int() if not isinstance(value, bool):
                pairs.append((name.lower().encode(), str(value).encode()))
    return pairs

"""A keyed hash whose every part is configured and nothing guessed (C063)."""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Sequence

from libs.contracts.application import Hmac
from services.ingress.schemes.base import Headers, SchemeFault, Verified, body_digest, keys_of, single, unix_seconds

MIN_KEY_BYTES = 16
"""Keys of fewer than 128 bits stop the start."""
_PLACE = re.compile(r"\{(\w*)\}")
_PARTS = ("id", "timestamp", "body")


class HmacVerifier:
    """Verifies what the configuration says is signed. The header's value must be the canonical text, whole."""

    def __init__(self, config: Hmac, secrets: Sequence[str]) -> None:
        """Raises SchemeFault, without a secret, when something could not be verified safely."""
        self._keys = keys_of(secrets, lambda secret: _key(secret, config.secret_encoding))
        self._hash = config.algorithm
        self._encode = _ENCODINGS[config.encoding]
        self._header = config.header.lower().encode()
        self._prefix = config.prefix.encode()
        self._time_header = config.timestamp_header.lower().encode() if config.timestamp_header else None
        self._id_header = config.id_header.lower().encode() if config.id_header else None
        self._template = _template(config.signed)
        self._id_is_signed = config.id is not None or "{id}" in config.signed
        # An id that may hold the text after it could be split in two ways (C013).
        self._after_id = _literal_after(self._template, "id")

    def verify(self, headers: Headers, body: bytes, publisher: str | None) -> Verified | None:
        """The verdict; a part that is configured is mandatory (C064)."""
        given = single(headers, self._header)
        if given is None:
            return None
        timestamp, seconds = b"", None
        if self._time_header is not None:
            timestamp = single(headers, self._time_header) or b""
            seconds = unix_seconds(timestamp)
            if seconds is None:
                return None
        event_id = single(headers, self._id_header) if self._id_header else None
        if self._after_id and (event_id is None or self._after_id in event_id):
            return None
        signed = self._signed({"id": event_id or b"", "timestamp": timestamp, "body": body})
        for key in self._keys:
            expected = self._prefix + self._encode(hmac.digest(key, signed, self._hash))
            if hmac.compare_digest(expected, given):
                return Verified(event_id.decode() if event_id else None, seconds, body_digest(body), self._id_is_signed)
        return None

    def _signed(self, parts: dict[str, bytes]) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else parts[piece] for piece in self._template)


def _hex(mac: bytes) -> bytes:
    return binascii.hexlify(mac)


_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {"hex": _hex, "base64": base64.b64encode}


def _template(signed: str) -> list[bytes | str]:
    """Literals as bytes, parts as text. Raises SchemeFault for a part that does not exist or is ambiguous."""
    pieces: list[bytes | str] = []
    position = 0
    for match in _PLACE.finditer(signed):
        if match[1] not in _PARTS:
            raise SchemeFault("signed", f"there is no {match[0]}; there are {{id}}, {{timestamp}} and {{body}}")
        if match.start() > position:
            pieces.append(signed[position : match.start()].encode())
        pieces.append(match[1])
        position = match.end()
    if position < len(signed):
        pieces.append(signed[position:].encode())
    if any(pieces.count(part) > 1 for part in _PARTS):
        raise SchemeFault("signed", "each part may stand there once")
    return pieces


def _literal_after(pieces: list[bytes | str], part: str) -> bytes:
    """The literal after a part, or b"" where the part is not signed. Raises SchemeFault for a part without an end."""
    if part not in pieces:
        return b""
    following = pieces[pieces.index(part) + 1 : pieces.index(part) + 2]
    if following and isinstance(following[0], str):
        raise SchemeFault("signed", f"put a separator between {{{part}}} and {{{following[0]}}}")
    return following[0] if following and isinstance(following[0], bytes) else b""


def _key(secret: str, encoding: str) -> bytes:
    """The key of a secret; text is UTF-8 (C068). Raises ValueError, without the secret."""
    try:
        match encoding:
            case "base64":
                key = base64.b64decode(secret, validate=True)
            case "hex":
                key = bytes.fromhex(secret)
            case _:
                key = secret.encode()
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the secret is not {encoding}, as secret_encoding says") from error
    if len(key.strip()) < MIN_KEY_BYTES:
        # An empty one lets anybody compute its signatures (C066), a short one lets anybody find it.
        raise ValueError(f"the secret has fewer than {MIN_KEY_BYTES} bytes")
    return key

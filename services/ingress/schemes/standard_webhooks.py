"""Standard Webhooks 1.0, symmetric signatures (`v1`).

Written out instead of calling the official library, which raises on unknown tokens and on bodies that are not UTF-8,
and takes signatures in non-canonical base64 (C005, C016, C018).
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from services.ingress.schemes.base import Headers, Verified, body_digest, keys_of, single, unix_seconds

MIN_KEY_BYTES = 24
"""The specification's minimum; shorter keys stop the start (C022)."""
_PREFIX = "whsec_"


class StandardWebhooksVerifier:
    """Verifies `webhook-id`, `webhook-timestamp` and the raw body. Any (secret, signature) pair may match (C004)."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """Raises SchemeFault for secrets that cannot be keys."""
        self._keys = keys_of(secrets, decode_secret)

    def verify(self, headers: Headers, body: bytes, publisher: str | None) -> Verified | None:
        """The verdict; None when any part is missing, repeated or does not fit."""
        event_id = single(headers, b"webhook-id")
        timestamp = single(headers, b"webhook-timestamp")
        signatures = single(headers, b"webhook-signature")
        if event_id is None or timestamp is None or signatures is None:
            return None
        seconds = unix_seconds(timestamp)
        # A dot in the id would let one signature stand for two splits of the signed text (C013).
        if seconds is None or b"." in event_id:
            return None
        signed = event_id + b"." + timestamp + b"." + body
        # Exact tokens only: `v1a,` and unknown versions never count, and are no error (C005).
        given = [token for token in signatures.split(b" ") if token.startswith(b"v1,")]
        for key in self._keys:
            expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
            for token in given:
                if hmac.compare_digest(expected, token):
                    return Verified(event_id.decode(), seconds, body_digest(body))
        return None


def decode_secret(secret: str) -> bytes:
    """The key of a secret: base64, padded or not, with or without `whsec_` (C020).

    Raises ValueError, without the secret, for anything else: it must not silently become another key (C022, C023).
    """
    encoded = secret.removeprefix(_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not a Standard Webhooks secret: whsec_ and base64, nothing before or after") from error
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"the key has {len(key)} bytes; Standard Webhooks wants at least {MIN_KEY_BYTES}")
    return key

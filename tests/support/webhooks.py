"""A genuine sender of Standard Webhooks, written from the specification and not from our verifier."""

import base64
import hashlib
import hmac


def sign_webhook(secret: str, event_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of one attempt at `seconds` (Unix). `secret` is `whsec_` and base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((event_id.encode(), str(seconds).encode(), body))
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {"webhook-id": event_id, "webhook-timestamp": str(seconds), "webhook-signature": f"v1,{mac}"}

"""A scheme that signs the attributes of a CloudEvent in binary mode together with its body."""

from collections.abc import Sequence
from dataclasses import replace

from services.ingress.schemes.base import Headers, Verified, Verifier, body_digest, single

OPTIONAL = (b"ce-subject", b"ce-time", b"ce-dataschema")


class CoveringVerifier:
    """Gives another verifier, in the place of the body, one line `name:value` for each covered header, with the values
    as they are on the wire, and then the body.

    The lines are as many as the configuration says, in its order, and no header holds a line feed: so what was signed
    can be taken apart in one way only.
    """

    def __init__(self, inner: Verifier, attributes: Sequence[str]) -> None:
        self._inner = inner
        self._names = [b"content-type", *(f"ce-{name}".encode() for name in attributes)]

    def verify(self, headers: Headers, body: bytes, publisher: str | None) -> Verified | None:
        """The verdict; None too for a header that is repeated, or missing though it is not optional."""
        lines = []
        for name in self._names:
            value = single(headers, name)
            if value is None and (name not in OPTIONAL or any(key == name for key, _ in headers)):
                return None
            if value is not None and b"\n" in value:
                return None
            lines.append(name + b":" + (value or b"") + b"\n")
        verified = self._inner.verify(headers, b"".join(lines) + body, publisher)
        return replace(verified, digest=body_digest(body)) if verified is not None else None

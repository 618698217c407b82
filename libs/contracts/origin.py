"""Origin and its seal, as pure functions.

The seal is an HMAC over who an input came from. Ingress, consent and the door hold the key; the session service
does not, so it can carry an origin but never make one (design §3.1, G3).
"""

import base64
import binascii
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import canonical
from libs.contracts.ids import Slug

OriginKind = Literal["user", "webhook", "system", "timer", "actor"]
MIN_KEY_BYTES = 32


class Origin(BaseModel):
    """The verified principal that started a turn. Set once by whoever verified it, never from content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: OriginKind
    source: Slug
    principal: Slug
    verified: str
    written_by: str = ""
    """Who wrote what the principal signed, as the signed data says ("" where it does not say): a ticket system signs,
    anybody writes. Gives no authority."""

    def same_as(self, other: "Origin") -> bool:
        """Whether two inputs speak for the same principal of the same source (design §4.2), in the same writer's words:
        what ben wrote must not join the turn that cem's words began."""
        return self._who == (other.kind, other.source, other.principal, other.written_by)

    @property
    def _who(self) -> tuple[str, ...]:
        return (self.kind, self.source, self.principal, self.written_by)


class Seal(BaseModel):
    """What ingress, consent or the door attests about one input of a session. Times in milliseconds (Unix)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_id: str
    input: str
    session: Slug
    number: int
    origin: Origin
    digest: str
    accepted_at: int
    mac: str = ""
    kind: str = ""
    """What kind of input it is: a decision or a cancel asks for nothing. "" in seals of before it was sealed."""


@dataclass(frozen=True)
class SealKeys:
    """Named seal keys. The first signs; each of them verifies, so that keys can be rotated."""

    keys: tuple[tuple[str, bytes], ...]

    @classmethod
    def parse(cls, text: str) -> "SealKeys":
        """Read `id:base64[,id:base64…]`. Raises ValueError, without the key, for a bad form or < 32 bytes."""
        keys = []
        for number, part in enumerate(filter(None, (piece.strip() for piece in text.split(","))), 1):
            name, _, encoded = part.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                # Not named: whoever swaps id and key would find the key in a log.
                raise ValueError(f"seal key {number} is not base64 after its id and a colon") from None
            if not name or len(key) < MIN_KEY_BYTES:
                raise ValueError(f"a seal key needs a name and at least {MIN_KEY_BYTES} bytes")
            keys.append((name, key))
        if not keys:
            raise ValueError("no seal key given")
        return cls(tuple(keys))

    def get(self, key_id: str) -> bytes | None:
        """The key of that id, or None."""
        return next((key for name, key in self.keys if name == key_id), None)


def make_seal(
    keys: SealKeys,
    *,
    input_id: str,
    session: str,
    number: int,
    origin: Origin,
    digest: str,
    accepted_at: int,
    kind: str = "",
) -> Seal:
    """Seal one input with the first key. `digest` is SHA-256 (hex) of the bytes that were verified, `kind` what the
    input is."""
    unsigned = Seal(
        key_id=keys.keys[0][0],
        input=input_id,
        session=session,
        number=number,
        origin=origin,
        digest=digest,
        accepted_at=accepted_at,
        kind=kind,
    )
    return unsigned.model_copy(update={"mac": _mac(keys.keys[0][1], unsigned)})


def seal_is_valid(keys: SealKeys, seal: Seal) -> bool:
    """Whether one of our keys made this seal over exactly these fields. Constant time in the MAC."""
    key = keys.get(seal.key_id)
    return key is not None and hmac.compare_digest(_mac(key, seal).encode(), seal.mac.encode())


def _mac(key: bytes, seal: Seal) -> str:
    origin = seal.origin
    return _tag(
        key,
        [
            "seal.v1",
            seal.key_id,
            seal.input,
            seal.session,
            str(seal.number),
            origin.kind,
            origin.source,
            origin.principal,
            origin.verified,
            seal.digest,
            str(seal.accepted_at),
            # Named, and left out where empty: a seal of before is still valid, and no field can stand for another.
            *([f"kind:{seal.kind}"] if seal.kind else []),
            *([f"written_by:{origin.written_by}"] if origin.written_by else []),
        ],
    )


def attest(keys: SealKeys, *fields: str) -> str:
    """`key id:mac` over a list of texts: the door's word to ingress about a subject (design §6)."""
    name, key = keys.keys[0]
    return f"{name}:{_tag(key, ['attest.v1', *fields])}"


def attestation_is_valid(keys: SealKeys, attestation: str, *fields: str) -> bool:
    """Whether one of our keys made this attestation over exactly these fields."""
    name, _, mac = attestation.partition(":")
    key = keys.get(name)
    return key is not None and hmac.compare_digest(_tag(key, ["attest.v1", *fields]).encode(), mac.encode())


def _tag(key: bytes, fields: Sequence[str]) -> str:
    # A JSON list cannot be split in two ways, unlike fields joined by a separator (C013).
    return hmac.digest(key, canonical(list(fields)), "sha256").hex()

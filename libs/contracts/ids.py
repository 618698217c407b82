"""Identifiers: which are allowed, how they are derived, and which partition a session belongs to."""

import hashlib
import re
from functools import lru_cache
from typing import Annotated

from pydantic import StringConstraints

SLUG_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
_SLUG = re.compile(r"[A-Za-z0-9_-]{1,64}")
TEXT_ID_BYTES = 256

Slug = Annotated[str, StringConstraints(pattern=SLUG_PATTERN)]
"""Session, user, source, tool and action ids: a brace would pierce store permissions, a dot routing keys."""


def is_slug(text: str) -> bool:
    """Whether `text` may name a session, user, source, tool or action."""
    return _SLUG.fullmatch(text) is not None


def is_text_id(text: str) -> bool:
    """Whether `text` may be an event id or a subject: 1 to 256 bytes of UTF-8 without control characters."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= TEXT_ID_BYTES and text.isprintable()


def derive_id(*parts: object) -> str:
    """A stable id of 32 hexadecimal digits from its parts: the same parts give the same id on every replica (G2)."""
    # A length before each part keeps ("ab", "c") apart from ("a", "bc").
    texts = [str(part).encode() for part in parts]
    framed = b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    return hashlib.blake2b(framed, digest_size=16).hexdigest()


@lru_cache(maxsize=16_384)
def partition_of(session: str, partitions: int) -> int:
    """The partition of a session: blake2b(session) mod N (design §3.2). Fixed for the life of a deployment."""
    return int.from_bytes(hashlib.blake2b(session.encode(), digest_size=8).digest(), "big") % partitions


def shard_of(text: str, shards: int) -> int:
    """The shard of any other text (an event's identity, a subject), spread like sessions."""
    return partition_of(text, shards)

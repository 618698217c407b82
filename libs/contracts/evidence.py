"""The chain of evidence of a session, as pure functions: entries, links, signed heads (design §6).

An *entry* tells one thing that was stored: an input, a turn's commit, a question, a decision, an attempt of an
operation, its outcome. It is written in the script that stores the thing itself. A *link* binds an entry to all before
it, by SHA-256. A *head* is a link that was signed with Ed25519 and published: whoever kept one can show later that
something before it was changed.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import JSON, canonical, digest_bytes

EntryKind = Literal[
    "session", "input", "turn", "question", "not_asked", "decision", "closed", "attempt", "takeover", "outcome",
    "turned_away", "held_back", "withdrawn", "released", "handed_back", "looked_up", "resolved",
]  # fmt: skip
NO_NOTE = "-"
SEED_BYTES = 32


@dataclass(frozen=True)
class Entry:
    """One entry as it is stored: `at` is the store's time (ms, Unix), `note` what the script alone knew (an attempt's
    number, "-" for nothing), `digest` the SHA-256 of `raw`, the entry's canonical JSON."""

    at: int
    note: str
    digest: str
    raw: bytes

    @classmethod
    def parse(cls, line: bytes) -> "Entry":
        """From its stored line, `at note digest json`. Raises ValueError for what is no such line."""
        at, note, digest, raw = line.split(b" ", 3)
        return cls(int(at.decode("ascii")), note.decode(), digest.decode("ascii"), raw)

    @property
    def is_whole(self) -> bool:
        """Whether its text is the one that was digested."""
        return digest_bytes(self.raw) == self.digest

    @property
    def body(self) -> dict[str, JSON]:
        """What it tells. Raises ValueError for what is no JSON object."""
        body = orjson.loads(self.raw)
        if not isinstance(body, dict):
            raise ValueError("an entry that is no object")
        return body


def pack_entry(tag: str, body: Mapping[str, JSON]) -> bytes:
    """One entry for `evidence_add`: `tag digest json`. `tag` is the case in which the script is to write it."""
    raw = canonical(dict(body))
    return f"{tag} {digest_bytes(raw)} ".encode() + raw


def group(*values: object) -> str:
    """One SHA-256 over the texts of several stored fields, in their order: what a record's fields are compared with."""
    parts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    # A length before each part keeps ("ab", "c") apart from ("a", "bc").
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def genesis(session: str) -> str:
    """What the first entry of a session is linked to."""
    return digest_bytes(canonical(["turnkeeper.evidence.v1", session]))


def link(previous: str, number: int, entry: Entry) -> str:
    """The link of an entry: SHA-256 over its number, the link before it, and the entry. Bodies are not needed for it,
    only their digests, so that a chain can be checked by somebody who may not read them."""
    return digest_bytes(canonical(["link.v1", number, previous, entry.at, entry.note, entry.digest]))


def extend(previous: str, first: int, entries: Iterable[Entry]) -> list[str]:
    """The links of entries that follow one another from number `first` on."""
    links = []
    for number, entry in enumerate(entries, first):
        previous = link(previous, number, entry)
        links.append(previous)
    return links


class Head(BaseModel):
    """A session's chain up to entry `number`, signed at `at` (ms, Unix). Without a key the signature is empty."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    number: int
    hash: str
    at: int
    key: str = ""
    signature: str = ""

    @property
    def signed(self) -> bytes:
        """What the signature covers: every other field."""
        return canonical(["head.v1", self.session, self.number, self.hash, self.at, self.key])


class Block(BaseModel):
    """What goes to the archive: entries `first` to the head's number, the link before them, their links, the head.

    `lines` are the stored lines as text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: int
    previous: str
    lines: tuple[str, ...]
    links: tuple[str, ...]
    head: Head


@dataclass(frozen=True)
class Signer:
    """Named Ed25519 keys. The first signs; each of them verifies, so that keys can be rotated."""

    keys: tuple[tuple[str, Ed25519PrivateKey], ...]

    @classmethod
    def parse(cls, text: str) -> "Signer":
        """Read `id:base64[,id:base64…]` of 32-byte seeds (RFC 8032). Raises ValueError, without the key."""
        keys = []
        for number, part in enumerate(filter(None, (piece.strip() for piece in text.split(","))), 1):
            name, _, encoded = part.partition(":")
            try:
                seed = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError(f"evidence key {number} is not base64 after its id and a colon") from None
            if not name or len(seed) != SEED_BYTES:
                raise ValueError(f"an evidence key needs a name and {SEED_BYTES} bytes")
            keys.append((name, Ed25519PrivateKey.from_private_bytes(seed)))
        return cls(tuple(keys))

    def sign(self, session: str, number: int, hash: str, at: int) -> Head:
        """The signed head; unsigned where there is no key."""
        if not self.keys:
            return Head(session=session, number=number, hash=hash, at=at)
        name, key = self.keys[0]
        head = Head(session=session, number=number, hash=hash, at=at, key=name)
        return head.model_copy(update={"signature": base64.b64encode(key.sign(head.signed)).decode()})

    @property
    def public(self) -> dict[str, str]:
        """Each key's public half by its id, in base64: 32 raw bytes (RFC 8032)."""
        return {name: base64.b64encode(key.public_key().public_bytes_raw()).decode() for name, key in self.keys}


def head_is_signed(head: Head, public: Mapping[str, str]) -> bool:
    """Whether one of these public keys (base64 by id) signed exactly this head."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public[head.key], validate=True))
        key.verify(base64.b64decode(head.signature, validate=True), head.signed)
    except (KeyError, ValueError, InvalidSignature):
        return False
    # Base64 has spare bits at its end: one head has one text, or a byte of it could be changed unseen.
    return base64.b64encode(base64.b64decode(head.signature)).decode() == head.signature


@dataclass(frozen=True)
class Chain:
    """A session's evidence as it was found. `base` entries before the first line are only in the archive, `previous`
    is the link before the first line; `links` may be fewer than `lines`: the rest is not sealed yet."""

    session: str
    base: int
    previous: str
    lines: Sequence[bytes]
    links: Sequence[str]
    heads: Sequence[str] = ()
    """As stored: each the JSON of a head, oldest first."""
    sealed: int = 0
    hash: str = ""
    """How many are sealed, and the last link, as the store says."""


@dataclass(frozen=True)
class Break:
    """A link that does not hold: which, and what is wrong with it."""

    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


def check_chain(chain: Chain, public: Mapping[str, str], kept: Sequence[Head] = ()) -> list[Break]:
    """Everything that is broken in a chain by itself, the first first. `kept` are heads from elsewhere: published ones
    that somebody kept, or those of the archive."""
    breaks: list[Break] = []
    if chain.base == 0 and chain.previous != genesis(chain.session):
        breaks.append(Break("chain", "it does not begin at the session's beginning"))
    found, entry_breaks = _check_entries(chain)
    breaks += entry_breaks
    if chain.sealed != chain.base + len(chain.links):
        breaks.append(Break("chain", f"{chain.sealed} entries were sealed, {chain.base + len(chain.links)} are here"))
    if chain.sealed and chain.hash != found.get(chain.sealed):
        breaks.append(Break("chain", "its last link is not the one that was stored as the last"))
    heads, head_breaks = _read_heads(chain)
    breaks += head_breaks
    if chain.sealed and not head_breaks and (not heads or heads[-1].number != chain.sealed):
        breaks.append(Break(f"head {chain.sealed}", "the newest entries have no head"))
    named = [(f"head {head.number}", head) for head in heads]
    named += [(f"kept head {head.number}", head) for head in kept]
    for name, head in named:
        breaks += _check_head(name, head, chain, found, public)
    return breaks


def check_kept(chain: Chain, kept: Sequence[Head]) -> list[Break]:
    """What is broken in a chain by heads of which only number and hash were kept."""
    found = {chain.base: chain.previous, **{chain.base + at: link for at, link in enumerate(chain.links, 1)}}
    return [fault for head in kept for fault in _check_head(f"kept head {head.number}", head, chain, found, {})]


def _check_entries(chain: Chain) -> tuple[dict[int, str], list[Break]]:
    found: dict[int, str] = {chain.base: chain.previous}
    breaks: list[Break] = []
    previous = chain.previous
    for at, line in enumerate(chain.lines):
        number = chain.base + at + 1
        where = f"entry {number}"
        try:
            entry = Entry.parse(line)
            kind = str(entry.body.get("kind", ""))
            where = f"entry {number} ({kind})" if entry.is_whole else where
        except ValueError:
            breaks.append(Break(where, "it cannot be read"))
            entry = None
        if entry is not None and not entry.is_whole:
            breaks.append(Break(where, "its text is not the one that was digested"))
        if at >= len(chain.links):
            continue
        stored = chain.links[at]
        if entry is not None and link(previous, number, entry) != stored:
            breaks.append(Break(where, "its link is not that of this entry after the ones before it"))
        found[number] = previous = stored
    if len(chain.links) > len(chain.lines):
        breaks.append(Break(f"entry {chain.base + len(chain.lines) + 1}", "it is gone, its link is there"))
    return found, breaks


def _read_heads(chain: Chain) -> tuple[list[Head], list[Break]]:
    heads: list[Head] = []
    breaks: list[Break] = []
    for at, raw in enumerate(chain.heads, 1):
        try:
            head = Head.model_validate_json(raw)
        except ValueError:
            breaks.append(Break(f"stored head {at}", "it cannot be read"))
            continue
        # One head has one text, or a byte of it could be changed unseen.
        if head.model_dump_json() != raw:
            breaks.append(Break(f"head {head.number}", "its text is not its own"))
        heads.append(head)
    return heads, breaks


def _check_head(
    name: str, head: Head, chain: Chain, found: Mapping[int, str], public: Mapping[str, str]
) -> list[Break]:
    if head.session != chain.session:
        return [Break(name, f"it is of session {head.session}")]
    breaks = []
    if public and not head_is_signed(head, public):
        breaks.append(Break(name, "its signature is not valid"))
    if head.number > chain.base + len(chain.links):
        breaks.append(Break(name, f"the chain ends at entry {chain.base + len(chain.links)}: its tail is cut off"))
    elif head.number >= chain.base and found.get(head.number) != head.hash:
        breaks.append(Break(name, f"the chain has another link at entry {head.number} than the one that was signed"))
    return breaks

"""Links, signs and publishes what was told to the sessions' evidence, and gives it to the archive.

Off the hot path: a script fixes the order of entries when it writes them, and the chain is made from that order a
little later. Until then an entry has its own digest only; what a head covers cannot be changed unseen any more.
"""

import asyncio

import structlog

from libs.contracts.evidence import Block, Chain, Entry, Signer, extend, genesis
from libs.contracts.keys import SESSION_TTL_MS, Keys
from libs.contracts.session import Notice
from libs.contracts.tools import EvidenceSealed
from libs.runtime.batch import Arg, Store
from libs.runtime.clock import Clock
from libs.runtime.composer import Composer
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script

log = structlog.get_logger(__name__)

KEPT_ENTRIES = 500
KEPT_HEADS = 50
BLOCK_ENTRIES = 200
"""At most so many entries a head: with their texts far below what a message may hold."""
BLOCK_BYTES = 1024 * 1024
_DUE = 64
_AT_ONCE = 8
"""Few: sealing must not hold up operations."""
_SEAL = load_script("services.tools", "seal_evidence")


class Evidence:
    """The sessions' chains in the store, and the one who seals them. Runs in every replica: one of them wins each."""

    def __init__(
        self, store: Store, keys: Keys, outbox: Outbox, composer: Composer, clock: Clock, signer: Signer
    ) -> None:
        self._store = store
        self._keys = keys
        self._outbox = outbox
        self._composer = composer
        self._clock = clock
        self._signer = signer
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def seal_due(self) -> None:
        """Seal what waits, the longest waiting sessions of each partition first. One that fails stops no other."""
        found = await asyncio.gather(
            *(
                self._store.command(
                    "ZRANGEBYSCORE", self._keys.in_partition("evidencedue", number), "-inf", "+inf", "LIMIT", 0, _DUE
                )
                for number in range(self._keys.partitions)
            )
        )
        sessions = [name.decode() for names in found for name in names]
        done = await asyncio.gather(*(self._in_turn(session) for session in sessions), return_exceptions=True)
        for session, failed in zip(sessions, done, strict=True):
            if isinstance(failed, Exception):
                log.warning("evidence.not_sealed", session=session, error=repr(failed)[:300])

    async def _in_turn(self, session: str) -> None:
        async with self._slots:
            await self.seal(session)

    async def seal(self, session: str) -> None:
        """Seal all of a session's entries."""
        while await self._seal_block(session):
            pass

    async def seal_waiting(self, session: str) -> None:
        """The same where some are known to wait; a chain at rest is not touched."""
        due = self._keys.of_session_partition("evidencedue", session)
        if await self._store.command("ZSCORE", due, session) is not None:
            await self.seal(session)

    async def _seal_block(self, session: str) -> bool:
        """One block; whether more is left."""
        sealed, last, base, previous = await self._where(session)
        key = self._keys.of_session("evidence", session)
        at = sealed - base
        lines = _fitting(await self._store.command("LRANGE", key, at, at + BLOCK_ENTRIES - 1))
        if not lines:
            await self._store.command("ZREM", self._keys.of_session_partition("evidencedue", session), session)
            return False
        links = extend(last, sealed + 1, [Entry.parse(line) for line in lines])
        head = self._signer.sign(session, sealed + len(lines), links[-1], self._clock.now_ms())
        block = Block(
            first=sealed + 1, previous=last, lines=tuple(line.decode("latin-1") for line in lines), links=tuple(links),
            head=head,
        )  # fmt: skip
        messages = self._messages(block)
        cut, cut_link = await self._cut(session, head.number, base)
        of = self._keys.of_session
        keys = [
            key, of("links", session), of("chain", session), of("heads", session),
            self._keys.of_session_partition("evidencedue", session), *self._outbox.keys(session),
        ]  # fmt: skip
        args: list[Arg] = [
            self._clock.now_ms(), session, sealed, head.number, head.hash, head.model_dump_json(), KEPT_ENTRIES,
            KEPT_HEADS, SESSION_TTL_MS, " ".join(links), previous, cut_link, cut, *self._outbox.args(messages),
        ]  # fmt: skip
        reply = await self._store.run(_SEAL, keys, args)
        if reply.tag == "broken":
            log.error("evidence.broken", session=session, sealed=sealed)
            return False
        if reply.tag != "sealed":
            return False  # another replica was faster, and goes on
        self._outbox.post(session, messages)
        return reply.int(0) > 0

    async def _where(self, session: str) -> tuple[int, str, int, str]:
        """How many are sealed, the last link, how many are no longer kept, and the link before the kept ones."""
        key = self._keys.of_session("chain", session)
        number, last, base, previous = await self._store.command("HMGET", key, "n", "hash", "base", "previous")
        start = genesis(session)
        return int(number or 0), _text(last) or start, int(base or 0), _text(previous) or start

    async def _cut(self, session: str, sealed: int, base: int) -> tuple[int, str]:
        """How many of the oldest may go, and the link of the last of them. Those of this block stay till the next."""
        cut = min(sealed - base - KEPT_ENTRIES, BLOCK_ENTRIES)
        if cut <= 0:
            return 0, ""
        found = await self._store.command("LRANGE", self._keys.of_session("links", session), cut - 1, cut - 1)
        return (cut, _text(found[0])) if found else (0, "")

    def _messages(self, block: Block) -> list[Outgoing]:
        head = block.head
        told = Notice(topic="evidence", text=f"evidence up to entry {head.number}: {head.hash}", data=head.model_dump())
        return [
            self._composer.compose(message, session=head.session, id_parts=(head.number,), now=head.at)
            for message in (EvidenceSealed(block=block), told)
        ]

    async def chain(self, session: str) -> Chain:
        """All that is kept of a session's evidence, read so that links are never newer than what they link."""
        of = self._keys.of_session
        heads, chained, links, lines = await asyncio.gather(
            self._store.command("LRANGE", of("heads", session), 0, -1),
            self._store.command("HMGET", of("chain", session), "n", "hash", "base", "previous"),
            self._store.command("LRANGE", of("links", session), 0, -1),
            self._store.command("LRANGE", of("evidence", session), 0, -1),
        )
        number, last, base, previous = (_raw(value) for value in chained)
        return Chain(
            session=session, base=_number(base), previous=previous or genesis(session), lines=lines,
            links=[_raw(link) for link in links], heads=[_raw(head) for head in heads], sealed=_number(number),
            hash=last,
        )  # fmt: skip

    @property
    def public(self) -> dict[str, str]:
        """The public keys by id."""
        return self._signer.public


def _fitting(lines: list[bytes]) -> list[bytes]:
    """As many as a block may hold, at least one."""
    size, count = 0, 0
    for line in lines:
        size += len(line)
        if count and size > BLOCK_BYTES:
            break
        count += 1
    return lines[:count]


def _number(text: str) -> int:
    # A number that was tampered with is found out by the chain's check; it must not stop the reading.
    return int(text) if text.isascii() and text.isdigit() else 0


def _text(raw: bytes | None) -> str:
    return raw.decode() if raw else ""


def _raw(raw: bytes | None) -> str:
    """Bytes as text, one character each: what was tampered with need not be UTF-8."""
    return raw.decode("latin-1") if raw else ""

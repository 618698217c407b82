"""Evidence on a real Redis: written with the change it tells of, sealed once and in order, kept within bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from libs.contracts.evidence import Entry, Head, Signer, genesis, head_is_signed, pack_entry
from libs.contracts.tools import EvidenceSealed
from services.tools import notary
from services.tools.domain import Admitted, admit
from services.tools.notary import Evidence
from services.tools.ports import Told, Work
from tests.support.door import SEAL_KEYS, Door, open_door, step
from tests.support.evidence import SIGNER
from turnkeeper.evidence.records import check_records, readable
from turnkeeper.evidence.source import verify

SESSION = "s1"


@dataclass
class Place:
    door: Door
    evidence: Evidence

    async def lines(self) -> list[bytes]:
        found: list[bytes] = await self.door.store.command("LRANGE", self.key("evidence"), 0, -1)
        return found

    async def kinds(self) -> list[str]:
        return [Entry.parse(line).body["kind"] for line in await self.lines()]

    def key(self, family: str) -> str:
        return self.door.keys.of_session(family, SESSION)

    async def due(self) -> bool:
        key = self.door.keys.of_session_partition("evidencedue", SESSION)
        return await self.door.store.command("ZSCORE", key, SESSION) is not None

    async def claim(self, number: int = 1) -> Work:
        now = self.door.clock.now
        call = step(now=now, key=f"key{number}", operation=f"O{number}")
        judged = admit(call, SESSION, self.door.catalogue, SEAL_KEYS, action=None, everybody_is_user=True)
        assert isinstance(judged, Admitted)
        found = await self.door.ledger.claim(call, judged, SESSION, Told(call=f"m{number}"), lease_ms=4_000, now=now)
        assert isinstance(found, Work)
        return found

    async def record(self, work: Work, state: Any = "committed") -> Any:
        _, messages = self.door.answers.outcome(work, state, {"id": "r"}, "", self.door.clock.now)
        return await self.door.ledger.record(work, state, {"id": "r"}, "", messages, self.door.clock.now)

    async def tell(self, count: int) -> None:
        """So many refusals at the door, each an entry."""
        for number in range(count):
            line = pack_entry("queued", {"kind": "turned_away", "n": number})
            await self.door.ledger.answer(SESSION, [], self.door.clock.now, line)


@pytest.fixture
async def place(redis_url: str, namespace: str) -> AsyncIterator[Place]:
    async with open_door(redis_url, namespace, steps=1_000) as door:
        yield Place(door, notary_of(door, SIGNER))


def notary_of(door: Door, signer: Signer) -> Evidence:
    return Evidence(door.store, door.keys, door.outbox, door.composer, door.clock, signer)  # type: ignore[arg-type]


async def test_an_attempt_and_its_outcome_are_two_entries_written_with_what_they_tell(place: Place) -> None:
    work = await place.claim()
    assert await place.kinds() == ["attempt"]
    assert await place.record(work) is None
    assert await place.kinds() == ["attempt", "outcome"]
    entry = Entry.parse((await place.lines())[0])
    assert entry.note == f"1/{entry.at}", "the attempt, and since when its key may have been sent"
    assert await place.due()


async def test_a_script_that_changes_nothing_tells_nothing(place: Place) -> None:
    work = await place.claim()
    assert (await place.claim()).attempt == 1
    await place.record(work)
    await place.record(work)
    assert await place.kinds() == ["attempt", "outcome"]


async def test_a_holder_that_comes_late_tells_nothing(place: Place) -> None:
    work = await place.claim()
    place.door.clock.now += 10_000
    taken = await place.door.ledger.take_over(SESSION, "key1", gone="", lease_ms=4_000, now=place.door.clock.now)
    assert isinstance(taken, Work)
    assert await place.record(work) == "pending"
    assert await place.record(taken, "unknown") is None
    assert await place.kinds() == ["attempt", "takeover", "outcome"]


async def test_every_way_an_operation_ends_holds_against_its_record(place: Place) -> None:
    ledger, clock = place.door.ledger, place.door.clock
    await place.record(await place.claim(1))
    await place.record(await place.claim(2), "unknown")
    assert await ledger.resolve(SESSION, "key2", "committed", "seen", "operator", [], clock.now) is None
    await place.record(await place.claim(3), "unknown")
    asked = await ledger.begin_lookup(SESSION, "key3", ask_ms=1_000, at_once=True, now=clock.now)
    assert isinstance(asked, Work)
    assert await ledger.settle_lookup(asked, "committed", {"id": "r"}, "", [], silent_ms=1, now=clock.now) is None
    assert await ledger.withdraw(SESSION, "key4", "O4", clock.now + 1, "m4", [], clock.now) is None
    work = await place.claim(5)
    clock.now += 10_000
    taken = await ledger.take_over(SESSION, work.key, gone="", lease_ms=4_000, now=clock.now)
    assert isinstance(taken, Work)
    await place.record(taken, "refused")
    await place.record(await place.claim(6), "failed")
    told = readable(await place.evidence.chain(SESSION))
    names = [f"operation:key{number}" for number in range(1, 7)]
    records = {name: await ledger.record_of(SESSION, name) for name in names}
    assert all(records.values())
    assert check_records(told, records, base=0, now=clock.now) == []


async def test_a_released_key_that_is_claimed_again_holds_too(place: Place) -> None:
    await place.record(await place.claim(), "failed")
    now = place.door.clock.now
    call = step(now=now, key="key1", operation="O2")
    judged = admit(call, SESSION, place.door.catalogue, SEAL_KEYS, action=None, everybody_is_user=True)
    assert isinstance(judged, Admitted)
    again = await place.door.ledger.claim(call, judged, SESSION, Told(call="m2"), lease_ms=4_000, now=now)
    assert isinstance(again, Work)
    told = readable(await place.evidence.chain(SESSION))
    records = {"operation:key1": await place.door.ledger.record_of(SESSION, "operation:key1")}
    assert check_records(told, records, base=0, now=now) == []


async def test_sealing_links_signs_publishes_and_archives(place: Place) -> None:
    await place.record(await place.claim())
    await place.evidence.seal_due()
    chain = await place.evidence.chain(SESSION)
    (raw,) = chain.heads
    head = Head.model_validate_json(raw)
    assert (head.number, head.hash, chain.sealed, chain.previous) == (2, chain.links[-1], 2, genesis(SESSION))
    assert head_is_signed(head, SIGNER.public)
    assert not await place.due()
    posted = {message.routing_key: json.loads(message.body)["body"] for _, message in sent(place)}
    assert posted[f"{SESSION}.evidence"]["data"] == json.loads(raw)
    block = EvidenceSealed.model_validate(posted[""]).block
    assert [line.encode("latin-1") for line in block.lines] == await place.lines()


def sent(place: Place) -> list[tuple[str, Any]]:
    topology = place.door.composer._topology
    wanted = (topology.archive, topology.notices)
    return [(one.exchange, one) for one in place.door.outbox.posted if one.exchange in wanted and (
        one.exchange == topology.archive or one.routing_key.endswith(".evidence"))]  # fmt: skip


async def test_of_two_notaries_one_seals(place: Place) -> None:
    await place.tell(50)
    others = [notary_of(place.door, SIGNER) for _ in range(6)]
    await asyncio.gather(*(one.seal(SESSION) for one in others))
    chain = await place.evidence.chain(SESSION)
    assert (chain.sealed, len(chain.links), len(chain.heads)) == (50, 50, 1)
    assert await whole(place)


async def whole(place: Place) -> bool:
    from turnkeeper.evidence.source import Evidence as Found

    chain = await place.evidence.chain(SESSION)
    return verify(Found(chain, {}, {}, SIGNER.public), place.door.clock.now) == []


async def test_entries_that_are_told_while_it_is_sealed_are_sealed_next(place: Place) -> None:
    await place.tell(3)
    await asyncio.gather(place.tell(20), place.evidence.seal(SESSION), place.tell(20))
    await place.evidence.seal_due()
    assert (await place.evidence.chain(SESSION)).sealed == 43
    assert not await place.due()
    assert await whole(place)


async def test_only_so_many_sealed_entries_are_kept_and_the_chain_still_holds(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notary, "KEPT_ENTRIES", 20)
    monkeypatch.setattr(notary, "BLOCK_ENTRIES", 15)
    monkeypatch.setattr(notary, "KEPT_HEADS", 3)
    for _ in range(8):
        await place.tell(11)
        await place.evidence.seal_due()
    chain = await place.evidence.chain(SESSION)
    assert chain.sealed == 88
    assert 20 <= len(chain.lines) <= 20 + 15
    assert (chain.base, len(chain.links), len(chain.heads)) == (88 - len(chain.lines), len(chain.lines), 3)
    assert await whole(place)


async def test_what_is_not_sealed_is_never_trimmed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notary, "KEPT_ENTRIES", 5)
    await place.tell(40)
    assert len(await place.lines()) == 40
    await place.evidence.seal_due()
    archived = [EvidenceSealed.model_validate(json.loads(one.body)["body"]).block for name, one in sent(place)
                if name == place.door.composer._topology.archive]  # fmt: skip
    assert [line for block in archived for line in block.lines] != []
    assert sum(len(block.lines) for block in archived) == 40


@pytest.mark.parametrize("tamper", ["link", "length", "hash"])
async def test_nothing_is_signed_on_top_of_a_chain_that_was_tampered_with(place: Place, tamper: str) -> None:
    await place.tell(3)
    await place.evidence.seal_due()
    command = place.door.store.command
    match tamper:
        case "link":
            await command("LTRIM", place.key("links"), 0, -2)
            await command("RPUSH", place.key("links"), "0" * 64)
        case "length":
            await command("LTRIM", place.key("links"), 1, -1)
        case "hash":
            await command("HSET", place.key("chain"), "hash", "0" * 64)
    await place.tell(1)
    await place.evidence.seal_due()
    chain = await place.evidence.chain(SESSION)
    assert (chain.sealed, len(chain.heads)) == (3, 1)
    assert not await whole(place)


async def test_every_key_of_a_sessions_evidence_has_a_time_to_live(place: Place) -> None:
    await place.tell(1)
    await place.evidence.seal_due()
    for family in ("evidence", "links", "chain", "heads"):
        assert await place.door.store.command("PTTL", place.key(family)) > 399 * 86_400_000


async def test_without_a_key_heads_are_published_unsigned(place: Place) -> None:
    await place.tell(1)
    await notary_of(place.door, Signer.parse("")).seal_due()
    head = Head.model_validate_json((await place.evidence.chain(SESSION)).heads[0])
    assert (head.key, head.signature, head.number) == ("", "", 1)


async def test_one_session_that_cannot_be_sealed_stops_no_other(place: Place) -> None:
    await place.tell(1)
    other = "s9"
    line = pack_entry("queued", {"kind": "turned_away"})
    await place.door.ledger.answer(other, [], place.door.clock.now, line)
    await place.door.store.command("RPUSH", place.door.keys.of_session("evidence", other), "no entry")
    await place.evidence.seal_due()
    assert (await place.evidence.chain(SESSION)).sealed == 1

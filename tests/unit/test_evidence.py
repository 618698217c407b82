"""The chain of evidence: whatever byte of it is changed, `verify` names the link; what it proves beyond that."""

from dataclasses import replace

import pytest

from libs.contracts.evidence import Block, Head, Signer, head_is_signed, pack_entry
from tests.support.evidence import (
    ACTION,
    KEY,
    NOW,
    OPERATION,
    SESSION,
    SIGNER,
    bodies,
    evidence,
    lines_of,
    sealed,
)
from turnkeeper.evidence.source import Evidence, verify, with_archive
from turnkeeper.evidence.story import why

WHOLE = evidence()
ENTRIES = len(WHOLE.chain.lines)


def flipped(text: str, at: int) -> str:
    return text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]


def broken(of: Evidence, now: int = NOW) -> list[str]:
    return [found.where for found in verify(of, now)]


def with_chain(of: Evidence, **changes: object) -> Evidence:
    return replace(of, chain=replace(of.chain, **changes))  # type: ignore[arg-type]


def with_line(number: int, text: bytes) -> Evidence:
    lines = list(WHOLE.chain.lines)
    lines[number - 1] = text
    return with_chain(WHOLE, lines=lines)


def test_whole_evidence_holds() -> None:
    assert verify(WHOLE, NOW) == []


@pytest.mark.parametrize("number", range(1, ENTRIES + 1))
def test_any_byte_of_an_entry_that_is_changed_names_the_entry(number: int) -> None:
    text = WHOLE.chain.lines[number - 1].decode("latin-1")
    for at in range(len(text)):
        first = broken(with_line(number, flipped(text, at).encode("latin-1")))[0]
        assert first.split(" (")[0] == f"entry {number}", (at, text[at])


@pytest.mark.parametrize("number", range(1, ENTRIES + 1))
def test_any_byte_of_a_link_that_is_changed_names_its_entry(number: int) -> None:
    text = WHOLE.chain.links[number - 1]
    for at in range(len(text)):
        links = list(WHOLE.chain.links)
        links[number - 1] = flipped(text, at)
        assert broken(with_chain(WHOLE, links=links))[0].split(" (")[0] == f"entry {number}"


@pytest.mark.parametrize("at_head", [0, 1])
def test_any_byte_of_a_head_that_is_changed_names_a_head(at_head: int) -> None:
    text = WHOLE.chain.heads[at_head]
    for at in range(len(text)):
        heads = list(WHOLE.chain.heads)
        heads[at_head] = flipped(text, at)
        assert "head " in broken(with_chain(WHOLE, heads=heads))[0], (at, text[at])


@pytest.mark.parametrize("changes", [{"sealed": ENTRIES - 1}, {"hash": "0" * 64}, {"base": 1}, {"previous": "0" * 64}])
def test_where_the_chain_stands_cannot_be_changed(changes: dict[str, object]) -> None:
    assert broken(with_chain(WHOLE, **changes))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        *((f"operation:{KEY}", name) for name in OPERATION),
        *(("action:A1", name) for name in ACTION),
        ("session", "owner"),
    ],
)
def test_a_field_of_a_live_record_that_is_changed_or_gone_is_named(record: str, field: str) -> None:
    fields = WHOLE.records[record]
    for at in range(len(fields[field])):
        changed = {**WHOLE.records, record: {**fields, field: flipped(fields[field], at)}}
        (first, *_) = broken(replace(WHOLE, records=changed))
        assert first.startswith(f"{record} ")
        assert field in first
    gone = {name: value for name, value in fields.items() if name != field}
    if gone:
        assert field in broken(replace(WHOLE, records={**WHOLE.records, record: gone}))[0]


def test_an_operation_that_no_entry_tells_of_is_named() -> None:
    stranger = {**WHOLE.records, "operation:other": dict(OPERATION)}
    assert broken(replace(WHOLE, records=stranger)) == ["operation:other"]


def test_a_tombstone_that_time_left_is_no_break() -> None:
    left = {name: value for name, value in OPERATION.items() if name not in ("args", "result", "owner", "lease_until")}
    records = {**WHOLE.records, f"operation:{KEY}": left}
    assert broken(replace(WHOLE, records=records), now=NOW) != []
    assert broken(replace(WHOLE, records=records), now=NOW + 2) == []


@pytest.mark.parametrize("number", range(1, ENTRIES + 1))
def test_an_entry_that_is_taken_out_is_named_where_it_was(number: int) -> None:
    lines = [*WHOLE.chain.lines[: number - 1], *WHOLE.chain.lines[number:]]
    assert broken(with_chain(WHOLE, lines=lines))[0].split(" (")[0] == f"entry {number}"


@pytest.mark.parametrize("number", range(1, ENTRIES))
def test_two_entries_that_change_places_are_named(number: int) -> None:
    lines = list(WHOLE.chain.lines)
    lines[number - 1], lines[number] = lines[number], lines[number - 1]
    assert broken(with_chain(WHOLE, lines=lines))[0].split(" (")[0] == f"entry {number}"


@pytest.mark.parametrize("left", range(1, ENTRIES))
def test_a_tail_that_is_cut_off_in_all_places_is_seen_by_a_kept_head(left: int) -> None:
    kept = Head.model_validate_json(WHOLE.chain.heads[-1])
    cut = sealed(list(WHOLE.chain.lines[:left]), heads=())
    bare = replace(cut, records={"session": {"owner": "ana"}})
    assert not [found for found in verify(bare, NOW) if found.where.startswith("kept")]
    first = verify(replace(bare, heads=(kept,)), NOW)[0]
    assert (first.where, "cut off" in first.why) == (f"kept head {ENTRIES}", True)


def test_a_history_that_is_made_anew_without_the_key_fails_at_its_heads() -> None:
    told = bodies()
    told[4][1]["who"] = "ben"
    forged = sealed(lines_of(told))
    mine = Signer.parse("e1:" + "QkJC" * 10 + "QkI=")
    heads = [Head.model_validate_json(raw) for raw in forged.chain.heads]
    signed = [mine.sign(SESSION, head.number, head.hash, head.at).model_dump_json() for head in heads]
    assert broken(with_chain(forged, heads=signed))[0] == "head 4"


def test_a_history_that_is_made_anew_with_the_key_fails_at_a_kept_head() -> None:
    told = bodies()
    told[1][1]["bytes"] = "c" * 64
    kept = Head.model_validate_json(WHOLE.chain.heads[0])
    assert verify(sealed(lines_of(told)), NOW) == []
    assert broken(replace(sealed(lines_of(told)), heads=(kept,)))[0] == "kept head 4"


def test_a_plain_number_and_hash_is_compared_like_a_head() -> None:
    right = Head(session=SESSION, number=3, hash=WHOLE.chain.links[2], at=0)
    assert verify(replace(WHOLE, plain=(right,)), NOW) == []
    wrong = right.model_copy(update={"hash": "0" * 64})
    assert broken(replace(WHOLE, plain=(wrong,))) == ["kept head 3"]


@pytest.mark.parametrize(
    ("entry", "changes", "named"),
    [
        (2, {"asks": []}, "entry 4 (question)"),
        (3, {"steps": "6" * 64}, "entry 4 (question)"),
        (3, {"approver": "ben"}, "entry 4 (question)"),
        (4, {"who": "ben"}, "entry 5 (decision)"),
        (4, {"question": "8" * 64}, "entry 5 (decision)"),
        (4, {"outcome": "declined"}, "entry 8 (attempt)"),
        (4, {"input": "i9"}, "entry 8 (attempt)"),
        (6, {"sends": []}, "entry 8 (attempt)"),
        (7, {"inputs": ["i3"]}, "entry 8 (attempt)"),
        (8, {"key": "other"}, "entry 9 (outcome)"),
    ],
)
def test_entries_that_do_not_follow_from_each_other_are_named_though_the_chain_holds(
    entry: int, changes: dict[str, object], named: str
) -> None:
    told = bodies()
    told[entry][1].update(changes)
    assert named in broken(sealed(lines_of(told)))


def test_a_seal_that_is_not_ours_names_its_input() -> None:
    assert broken(replace(WHOLE, seals={"i1": False, "i2": True})) == ["entry 2 (input)"]


def test_a_dedupe_entry_with_another_mark_is_named() -> None:
    assert broken(replace(WHOLE, marks={"i1": "e" * 32})) == ["dedupe i1"]


def archived(first: int, last: int) -> Block:
    chain = WHOLE.chain
    previous = chain.links[first - 2] if first > 1 else chain.previous
    lines = tuple(line.decode("latin-1") for line in chain.lines[first - 1 : last])
    head = SIGNER.sign(SESSION, last, chain.links[last - 1], NOW)
    return Block(first=first, previous=previous, lines=lines, links=tuple(chain.links[first - 1 : last]), head=head)


def test_the_archive_fills_in_what_the_store_no_longer_keeps() -> None:
    chain = WHOLE.chain
    short = with_chain(WHOLE, base=5, previous=chain.links[4], lines=chain.lines[5:], links=chain.links[5:])
    assert verify(short, NOW) == []
    whole = with_archive(short, [archived(1, 3), archived(4, 6)])
    assert (whole.chain.base, len(whole.chain.lines)) == (0, ENTRIES)
    assert verify(whole, NOW) == []


def test_the_archive_speaks_against_a_store_that_was_made_anew() -> None:
    told = bodies()
    told[1][1]["bytes"] = "c" * 64
    found = verify(with_archive(sealed(lines_of(told)), [archived(1, 6)]), NOW)
    assert "entry 2" in [one.where for one in found]
    assert "kept head 6" in [one.where for one in found]


def test_a_chain_that_is_gone_from_the_store_is_seen_by_the_archive() -> None:
    empty = with_chain(WHOLE, lines=[], links=[], heads=[], sealed=0, hash="")
    found = verify(with_archive(replace(empty, records={}), [archived(1, 6)]), NOW)
    assert found[0].where == "kept head 6"


def test_a_head_of_another_session_proves_nothing_here() -> None:
    other = SIGNER.sign("other", 4, WHOLE.chain.links[3], NOW)
    assert broken(replace(WHOLE, heads=(other,))) == ["kept head 4"]


def test_a_signature_has_one_text() -> None:
    head = SIGNER.sign(SESSION, 1, "0" * 64, NOW)
    assert head_is_signed(head, SIGNER.public)
    last = head.signature[-3]
    near = chr(ord(last) + 1)
    assert not head_is_signed(head.model_copy(update={"signature": head.signature[:-3] + near + "=="}), SIGNER.public)


@pytest.mark.parametrize("text", ["e1", "e1:!!", "e1:QUFB", ":" + "QUFB" * 10 + "QUE="])
def test_a_bad_key_is_refused_without_telling_it(text: str) -> None:
    with pytest.raises(ValueError, match="evidence key") as caught:
        Signer.parse(text)
    assert "QUFB" not in str(caught.value)


def test_a_key_that_is_no_longer_first_still_verifies() -> None:
    old = SIGNER.sign(SESSION, 1, "0" * 64, NOW)
    both = Signer.parse("e2:" + "QkJC" * 10 + "QkI=" + ",e1:" + "QUFB" * 10 + "QUE=")
    assert both.sign(SESSION, 1, "0" * 64, NOW).key == "e2"
    assert head_is_signed(old, both.public)


def test_an_entry_is_one_line() -> None:
    assert b"\n" not in pack_entry("case", {"text": "a\nb"})


def test_why_tells_every_link_from_the_effect_to_the_bytes() -> None:
    links = why(WHOLE.told, WHOLE.records, WHOLE.seals, "O1", [], {"i1": "acted"})
    assert [link.what for link in links] == [
        "effect", "attempt", "reconciliation", "approver", "question", "proposal", "turn",
        "event", "signature", "dedupe", "bytes", "event", "signature", "dedupe", "bytes",
    ]  # fmt: skip
    assert [link for link in links if link.fault] == []
    text = "\n".join(link.text for link in links)
    for part in ("ana accepted A1", "A1: book?", "evt_1", "acted", "d" * 32, "b" * 64):
        assert part in text


def test_why_marks_the_link_that_does_not_hold() -> None:
    tampered = replace(WHOLE, records={**WHOLE.records, "action:A1": {**ACTION, "question": "A1: book it?"}})
    links = why(tampered.told, tampered.records, tampered.seals, KEY, verify(tampered, NOW), {})
    assert {link.what for link in links if link.fault} == {"approver", "question"}


def test_why_knows_nothing_of_what_never_was() -> None:
    assert why(WHOLE.told, WHOLE.records, WHOLE.seals, "O9", [], {}) == []

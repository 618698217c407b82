"""The seal: only who holds a key makes one, and it covers every field that authority is read from (G3)."""

import base64
import hmac

import pytest

from libs.contracts.canonical import canonical
from libs.contracts.origin import Origin, Seal, SealKeys, attest, attestation_is_valid, make_seal, seal_is_valid

OLD = ("k1", b"1" * 32)
NEW = ("k2", b"2" * 32)
KEYS = SealKeys((OLD,))
ORIGIN = Origin(kind="webhook", source="restaurant", principal="restaurant", verified="standard-webhooks")


@pytest.fixture
def seal() -> Seal:
    return make_seal(KEYS, input_id="i1", session="s1", number=7, origin=ORIGIN, digest="d", accepted_at=1_000)


def test_a_seal_of_ours_is_valid(seal):
    assert seal_is_valid(KEYS, seal)


FLIPPED = {
    "input": "i2",
    "session": "s2",
    "number": 8,
    "digest": "e",
    "accepted_at": 1_001,
    "mac": "0" * 64,
    "key_id": "k2",
    "kind": "message",
}


@pytest.mark.parametrize(("name", "value"), FLIPPED.items())
def test_a_seal_with_any_other_field_is_invalid(seal, name, value):
    keys = SealKeys((OLD, NEW))
    assert not seal_is_valid(keys, seal.model_copy(update={name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "user"), ("source", "app"), ("principal", "ana"), ("verified", "user-token"), ("written_by", "ana")],
)
def test_a_seal_with_another_origin_is_invalid(seal, name, value):
    origin = seal.origin.model_copy(update={name: value})
    assert not seal_is_valid(KEYS, seal.model_copy(update={"origin": origin}))


def test_every_field_of_a_seal_is_covered_by_these_tests():
    assert set(Seal.model_fields) == {*FLIPPED, "origin"}
    assert set(Origin.model_fields) == {"kind", "source", "principal", "verified", "written_by"}


def test_what_kind_of_input_it_is_cannot_be_taken_off_nor_changed():
    sealed = make_seal(
        KEYS, input_id="i", session="s", number=1, origin=ORIGIN, digest="d", accepted_at=1, kind="decision"
    )
    assert seal_is_valid(KEYS, sealed)
    for kind in ("", "message", "cancel"):
        assert not seal_is_valid(KEYS, sealed.model_copy(update={"kind": kind}))


def test_who_wrote_it_cannot_be_taken_off_nor_changed_nor_told_as_the_kind():
    by_ben = ORIGIN.model_copy(update={"written_by": "ben"})
    sealed = make_seal(KEYS, input_id="i", session="s", number=1, origin=by_ben, digest="d", accepted_at=1)
    assert seal_is_valid(KEYS, sealed)
    for author in ("", "cem"):
        other = by_ben.model_copy(update={"written_by": author})
        assert not seal_is_valid(KEYS, sealed.model_copy(update={"origin": other}))
    assert not seal_is_valid(KEYS, sealed.model_copy(update={"origin": ORIGIN, "kind": "ben"}))


def test_a_seal_of_before_kinds_and_writers_were_sealed_is_still_valid():
    old = {"key_id": "k1", "input": "i1", "session": "s1", "number": 7, "digest": "d", "accepted_at": 1_000}
    fields = [
        "seal.v1", "k1", "i1", "s1", "7", "webhook", "restaurant", "restaurant", "standard-webhooks", "d", "1000"
    ]  # fmt: skip
    mac = hmac.digest(OLD[1], canonical(fields), "sha256").hex()
    assert seal_is_valid(
        KEYS, Seal.model_validate({**old, "origin": ORIGIN.model_dump(exclude={"written_by"}), "mac": mac})
    )


def test_a_letter_moved_between_fields_is_noticed():
    seal = make_seal(KEYS, input_id="ab", session="c", number=1, origin=ORIGIN, digest="d", accepted_at=1)
    assert not seal_is_valid(KEYS, seal.model_copy(update={"input": "a", "session": "bc"}))


def test_the_first_key_signs_and_every_key_verifies(seal):
    rotated = SealKeys((NEW, OLD))
    fresh = make_seal(rotated, input_id="i1", session="s1", number=7, origin=ORIGIN, digest="d", accepted_at=1_000)
    assert fresh.key_id == "k2"
    assert seal_is_valid(rotated, seal)
    assert seal_is_valid(rotated, fresh)
    assert not seal_is_valid(SealKeys((NEW,)), seal)


@pytest.mark.parametrize("mac", ["", "ü", "0" * 64])
def test_a_seal_without_a_true_mac_is_invalid(seal, mac):
    assert not seal_is_valid(KEYS, seal.model_copy(update={"mac": mac}))


def test_an_attestation_is_over_exactly_its_fields():
    word = attest(KEYS, "subject", "reservation:r1", "s1", "O1")
    assert attestation_is_valid(KEYS, word, "subject", "reservation:r1", "s1", "O1")
    assert not attestation_is_valid(KEYS, word, "subject", "reservation:r2", "s1", "O1")
    assert not attestation_is_valid(KEYS, word, "subject", "reservation:r1", "s1")
    assert not attestation_is_valid(KEYS, word, "subject", "reservation:r1s1", "", "O1")
    assert not attestation_is_valid(SealKeys((("k1", b"x" * 32),)), word, "subject", "reservation:r1", "s1", "O1")
    assert not attestation_is_valid(KEYS, "no colon", "subject")


def test_a_seal_is_no_attestation_nor_the_other_way():
    seal = make_seal(KEYS, input_id="i", session="s", number=1, origin=ORIGIN, digest="d", accepted_at=1)
    fields = ["seal.v1", "k1", "i", "s", "1", "webhook", "restaurant", "restaurant", "standard-webhooks", "d", "1"]
    assert not attestation_is_valid(KEYS, f"k1:{seal.mac}", *fields)
    assert not attestation_is_valid(KEYS, f"k1:{seal.mac}", *fields[1:])


def test_keys_are_read_in_order():
    text = f"k2:{base64.b64encode(b'2' * 32).decode()}, k1:{base64.b64encode(b'1' * 32).decode()}"
    assert SealKeys.parse(text).keys == (NEW, OLD)


SECRET = base64.b64encode(b"very-secret-bytes-of-a-seal-key!").decode()


@pytest.mark.parametrize(
    "text",
    ["", " , ", SECRET, f"{SECRET}:k1", f"k1:{SECRET}!", f":{SECRET}", f"k1:{SECRET[:20]}", f"k1:ä{SECRET}", "k1:"],
)
def test_a_wrong_key_is_refused_without_being_told(text):
    with pytest.raises(ValueError) as refused:
        SealKeys.parse(text)
    assert SECRET[:8] not in str(refused.value)


def test_the_same_principal_of_another_kind_or_source_is_another_origin():
    assert ORIGIN.same_as(ORIGIN.model_copy(update={"verified": "hmac"}))
    for change in ({"kind": "actor"}, {"source": "cinema"}, {"principal": "x"}, {"written_by": "ben"}):
        assert not ORIGIN.same_as(ORIGIN.model_copy(update=change))

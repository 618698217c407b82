"""What is encoded is read back as it was, whatever it holds; what is not ours is a ContractError and nothing else."""

import base64
from typing import Any, Literal, get_args, get_origin

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from libs.contracts.codec import MESSAGES, decode, encode, join, split
from libs.contracts.consent import World
from libs.contracts.envelope import Envelope, Message
from libs.contracts.errors import ContractError
from libs.contracts.evidence import Block, Head
from libs.contracts.ids import SLUG_PATTERN
from libs.contracts.ingress import Input
from libs.contracts.origin import Origin, Seal
from libs.contracts.session import Step
from libs.runtime.publisher import Outgoing

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
slug = st.from_regex(SLUG_PATTERN.replace("$", r"\Z"))
whole = st.integers(0, 2**53 - 1)
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
json_object = st.dictionaries(text, json_value, max_size=3)
origin = st.builds(
    Origin,
    kind=st.sampled_from(["user", "webhook", "system", "timer", "actor"]),
    source=slug,
    principal=slug,
    verified=text,
)
seal = st.builds(
    Seal, key_id=text, input=text, session=slug, number=whole, origin=origin, digest=text, accepted_at=whole, mac=text
)
step = st.builds(Step, tool=slug, args=json_object)
input_ = st.builds(
    Input, id=text, kind=st.sampled_from(["message", "event", "decision", "cancel", "timer"]), session=slug,
    number=whole,
    source=slug, event=text, type=text, subject=text, data=json_value, origin=origin, seal=seal, accepted_at=whole,
    depth=whole, trace=text, sequence=text, stream=text,
)  # fmt: skip
steps = st.lists(step, max_size=3).map(tuple)
worlds = st.lists(st.none() | st.builds(World, digest=text, read_at=whole, attestation=text), max_size=2).map(tuple)
head = st.builds(Head, session=text, number=whole, hash=text, at=whole, key=text, signature=text)
texts = st.lists(text, max_size=2).map(tuple)
block = st.builds(Block, first=whole, previous=text, lines=texts, links=texts, head=head)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "seal": seal, "seals": st.lists(seal, max_size=2).map(tuple), "steps": steps, "then": steps,
    "worlds": worlds, "block": block,
    "supersedes": st.lists(slug, max_size=2).map(tuple), "actions": st.lists(slug, max_size=2).map(tuple),
    "view": json_object, "input": input_, "args": json_object, "data": json_object, "result": json_value,
}  # fmt: skip


def strategy_of(name: str, field: FieldInfo) -> st.SearchStrategy[Any]:
    """Values of one field of a message."""
    if name in SPECIAL:
        return SPECIAL[name]
    if get_origin(field.annotation) is Literal:
        return st.sampled_from(get_args(field.annotation))
    if field.annotation is int:
        return whole
    if field.annotation is bool:
        return st.booleans()
    assert field.annotation is str, f"say how to make {name}"
    return slug if field.metadata else text


def a_message() -> st.SearchStrategy[Message]:
    return st.sampled_from(sorted(MESSAGES)).flatmap(
        lambda name: st.builds(
            MESSAGES[name], **{key: strategy_of(key, field) for key, field in MESSAGES[name].model_fields.items()}
        )
    )


@st.composite
def an_envelope(draw: st.DrawFn) -> tuple[Envelope, Message]:
    message = draw(a_message())
    envelope = Envelope(
        id=draw(text), type=message.wire_type(), session=draw(text), cause=draw(text), correlation=draw(text),
        depth=draw(whole), trace=draw(text), epoch=draw(whole), at=draw(whole), body=message.model_dump(),
    )  # fmt: skip
    return envelope, message


@settings(max_examples=60, deadline=None)
@given(st.lists(an_envelope(), min_size=1, max_size=4))
def test_a_bundle_is_read_back_member_by_member(members):
    read = [decode(raw) for raw in split(join(encode(envelope) for envelope, _ in members))]
    assert [message for _, message in read] == [message for _, message in members]
    assert [envelope.model_dump(exclude={"body"}) for envelope, _ in read] == [
        envelope.model_dump(exclude={"body"}) for envelope, _ in members
    ]


@settings(max_examples=100, deadline=None)
@given(an_envelope())
def test_a_message_in_place_of_its_body_is_the_same_envelope(member):
    envelope, message = member
    read, body = decode(orjson.loads(encode(envelope.model_copy(update={"body": {}}), message)))
    assert body == message
    assert read.model_dump(exclude={"body"}) == envelope.model_dump(exclude={"body"})


@settings(max_examples=60, deadline=None)
@given(json_value)
def test_what_is_no_message_of_ours_is_a_contract_error(value):
    with pytest.raises(ContractError):
        decode(value)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_are_a_list_or_a_contract_error(raw):
    try:
        members = split(raw)
    except ContractError:
        return
    assert members == orjson.loads(raw)


@settings(max_examples=30, deadline=None)
@given(an_envelope(), text)
def test_an_unknown_field_or_type_is_refused(member, name):
    envelope, _ = member
    raw = orjson.loads(encode(envelope))
    for wrong in (
        {**raw, "x" + name: 1},
        {**raw, "type": "x" + raw["type"]},
        {**raw, "body": {**raw["body"], "x" + name: 1}},
    ):
        with pytest.raises(ContractError):
            decode(wrong)


@settings(max_examples=30, deadline=None)
@given(text, slug, slug, st.binary(max_size=200))
def test_an_outgoing_message_comes_out_of_the_outbox_as_it_went_in(id, exchange, key, body):
    outgoing = Outgoing(id, exchange, key, body)
    assert Outgoing.unpack(id, outgoing.pack()) == outgoing


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1", b"1", b"null", b"\xff", base64.b64encode(b"x" * 50)])
def test_what_is_no_json_array_is_a_contract_error(raw):
    with pytest.raises(ContractError):
        split(raw)

"""The record: every stimulus survives it, an entry is bounded, and what it says can be decided again."""

import dataclasses
import typing

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.errors import ContractError
from libs.runtime.publisher import Outgoing
from services.session.domain import Arrived, DeadlineReached, Planned, Stimulus, decide
from services.session.domain.plan import Plan
from services.session.domain.state import SessionState
from services.session.record import (
    KEPT,
    MOST_BYTES,
    MOST_STATE_BYTES,
    STATE_EVERY,
    Entry,
    Recorder,
    decode,
    encode,
    leads_to,
    settings_of,
    under,
)
from services.session.snapshot import Snapshot
from tests.support.session import ANA, BOOK, NOW, make_input, make_rules

STIMULI = typing.get_args(Stimulus)


def entry_of(stimulus, *, version=0, recorded=False, state=None, rules=None):
    rules = rules or make_rules()
    state = state or SessionState(session="s1")
    decision = decide(state, stimulus, NOW, rules, "why")
    after = orjson.dumps({})
    sent = [Outgoing(f"m{n}", "", "", b"") for n, _ in enumerate(decision.sends)]
    encoded = Recorder(rules).entry(Snapshot(state, version, [], recorded=recorded), decision, sent, after)
    return encoded, Entry.model_validate_json(encoded.raw)


@pytest.mark.parametrize("kind", STIMULI, ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_stimulus_survives_the_record(kind, data):
    """Drawn from its own type, so that a new one is tried without a word here."""
    stimulus = data.draw(instances(kind))
    assert decode(kind.__name__, orjson.loads(encode(stimulus))) == stimulus


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab<\u202e", max_size=3), inner, max_size=3),
    max_leaves=6,
)


def instances(kind):
    """Values of a type by its annotations: dataclasses, models, and what their fields are made of."""
    hints = typing.get_type_hints(kind, include_extras=True)
    names = (
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else list(kind.model_fields)
    )
    return st.builds(kind, **{name: values(hints[name]) for name in names})


def values(hint):
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any:
        return JSON_VALUES
    if origin is typing.Annotated:  # an id
        return st.text("abcXYZ_-09", min_size=1, max_size=12) if inside[0] is str else values(inside[0])
    if origin is typing.Literal:
        return st.sampled_from(inside)
    if origin is dict:
        return st.dictionaries(st.text("abc", min_size=1, max_size=3), values(inside[1]), max_size=3)
    if origin in (tuple, list):
        return st.lists(values(inside[0]), max_size=3).map(origin)
    if origin is not None and type(None) in inside:
        return st.none() | st.one_of([values(one) for one in inside if one is not type(None)])
    if origin is not None:
        return st.one_of([values(one) for one in inside])
    if dataclasses.is_dataclass(hint) or hasattr(hint, "model_fields"):
        return instances(hint)
    plain = {
        str: st.text(st.characters(codec="utf-8"), max_size=8),
        int: st.integers(0, 2**53),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }
    return plain[hint]


def test_a_stimulus_that_todays_code_does_not_know_is_told():
    with pytest.raises(ContractError, match="there is no stimulus Woke"):
        decode("Woke", {})
    with pytest.raises(ContractError, match=r"Planned: plan\.mood"):
        decode("Planned", {"plan": {"mood": "good"}})


def test_the_first_entry_and_one_in_a_hundred_hold_the_state_before():
    arrived = Arrived(make_input(1, "message", ANA, {"text": "hi"}))
    versions = [v for v in range(301) if entry_of(arrived, version=v, recorded=v > 0)[1].before is not None]
    assert versions == [0, 100, 200, 300]
    assert STATE_EVERY * 2 <= KEPT, "of the kept entries some would hold no state"


def test_an_entry_that_does_not_follow_the_record_holds_the_state_before():
    arrived = Arrived(make_input(1, "message", ANA, {"text": "hi"}))
    assert entry_of(arrived, version=7, recorded=False)[1].before == {"session": "s1"}


def test_an_entry_holds_what_was_decided_from_and_what_came():
    encoded, entry = entry_of(Arrived(make_input(1, "message", ANA, {"text": "hi"})))
    assert encoded.whole
    assert (entry.at, entry.cause) == (NOW, "why")
    assert entry.settings == settings_of(make_rules())
    assert entry.settings["operation_wait_ms"] == 900_000
    ((kind, fields),) = entry.given
    assert decode(kind, fields) == Arrived(make_input(1, "message", ANA, {"text": "hi"}))
    assert [kind for kind, _ in entry.came.lines] == ["input", "turn.start"]


def test_a_large_stimulus_is_left_out_but_for_its_digest():
    encoded, entry = entry_of(Arrived(make_input(1, "message", ANA, {"text": "x" * MOST_BYTES})))
    assert not encoded.whole
    assert entry.given == ()
    assert entry.left_out.bytes > MOST_BYTES
    assert len(entry.left_out.digest) == 64
    assert not leads_to(encoded.raw, 1), "the next entry must hold the state"
    assert "xxxx" not in str(entry.left_out)


def test_what_json_cannot_hold_is_left_out_and_stops_no_commit():
    _, entry = entry_of(Planned(Plan(note="\ud800")), state=running())
    assert "could not be written down" in entry.left_out.why


def running():
    return decide(
        SessionState(session="s1"), Arrived(make_input(1, "message", ANA, {"text": "a"})), NOW, make_rules()
    ).state


def test_a_huge_state_is_left_out():
    state = SessionState(session="s1", subjects={f"s{n}": "x" * 1000 for n in range(MOST_STATE_BYTES // 1000)})
    encoded, entry = entry_of(DeadlineReached(), state=state)
    assert entry.before is None
    assert encoded.whole


def test_an_entry_leads_to_the_version_after_its_own():
    encoded, _ = entry_of(DeadlineReached(), version=4)
    assert leads_to(encoded.raw, 5)
    assert not leads_to(encoded.raw, 4)


def test_the_settings_of_a_process_come_back_from_the_record_and_the_application_does_not():
    rules, other = make_rules("authority_by_role"), make_rules(steps=3)
    again = under(other, orjson.loads(orjson.dumps(settings_of(rules))))
    assert again.labs == {"authority_by_role"}
    assert again.application is other.application
    assert under(other, {"gone": 1}) == other


def test_a_plan_is_recorded_with_its_steps():
    raw = orjson.loads(encode(Planned(Plan(steps=(BOOK,)))))
    assert raw == {"plan": {"steps": [{"tool": "book", "args": {"party": 4}}]}}

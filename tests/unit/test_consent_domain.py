"""What may be asked, and what a text means."""

import pytest

from libs.contracts.consent import DecideByText, World
from libs.contracts.session import Step
from services.consent.domain import (
    WORLD_AGE_MS,
    Asking,
    Refusal,
    Rules,
    ask,
    fingerprint,
    read_decision,
    text_fault,
)
from tests.support.consent import (
    ANA,
    BEN,
    CINEMA,
    OTHER_KEYS,
    RESTAURANT,
    SEAL_KEYS,
    TABLE,
    application,
    issue,
    seal,
)  # fmt: skip

RULES = Rules(application(), SEAL_KEYS)


def reason(message, session="s1"):
    asked = ask(RULES, message, session, "ana", 1_000)
    assert isinstance(asked, Refusal), asked
    return asked.reason


def test_the_question_is_worded_over_the_arguments_for_the_owner_of_the_session():
    asked = ask(RULES, issue(), "s1", "ana", 1_000)
    assert isinstance(asked, Asking)
    assert asked.question == (
        "A1 (from restaurant): book a table for 12 people on Fri at 20:30. Approve within 10 minutes?"
    )
    assert (asked.approver, asked.source, asked.expires_at) == ("ana", "restaurant", 601_000)


def test_a_question_of_the_users_own_turn_names_no_source():
    asked = ask(RULES, issue(origin=ANA), "s1", "ana", 1_000)
    assert isinstance(asked, Asking)
    assert asked.question.startswith("A1: book")


def test_the_planners_note_is_never_shown():
    asked = ask(RULES, issue(note="your party of 4 has been moved"), "s1", "ana", 1_000)
    assert isinstance(asked, Asking)
    assert "moved" not in asked.question


def test_the_lab_switch_shows_the_planners_note_and_says_lab():
    asked = ask(Rules(application(), SEAL_KEYS, question_by_note=True), issue(note="keep your table"), "s1", "ana", 0)
    assert isinstance(asked, Asking)
    assert asked.question == "lab: A1 (from restaurant): keep your table. Approve within 10 minutes?"


def test_an_identity_argument_is_shown_as_it_will_run():
    asked = ask(RULES, issue("A1", Step(tool="act_as", args={"who": "root"})), "s1", "ana", 0)
    assert isinstance(asked, Asking)
    assert "act as ana" in asked.question
    assert "root" not in asked.question


@pytest.mark.parametrize(
    "seals, why",
    [
        ((), "no seal says who asks"),
        ((seal(RESTAURANT, keys=OTHER_KEYS),), "a seal is not valid"),
        ((seal(RESTAURANT).model_copy(update={"origin": ANA}),), "a seal is not valid"),
        ((seal(RESTAURANT, "s2"),), "a seal is of another session"),
        ((seal(RESTAURANT), seal(CINEMA, number=2)), "the seals are of different origins"),
    ],
)
def test_who_asks_is_taken_from_valid_seals_of_one_origin_only(seals, why):
    assert reason(issue(seals=seals)) == why


@pytest.mark.parametrize(
    "steps, why",
    [
        ([Step(tool="nuke", args={})], "step 1: there is no tool nuke"),
        ([TABLE, Step(tool="reserve_table", args={"party": "12"})], "step 2: arguments does not fit"),
        ([Step(tool="reserve_table", args={"party": "12", "day": "x", "time": ""})], "step 1: party does not fit"),
        ([TABLE] * 5, "too many steps"),
        ([Step(tool="pay", args={"x": "y" * 40_000})], "too long to read"),
    ],
)
def test_what_cannot_be_run_or_read_is_not_asked(steps, why):
    """C135."""
    assert why in reason(issue("A1", *steps))


def test_no_step_is_nothing_to_ask():
    assert reason(issue(steps=())) == "there is no step to ask about"


def test_a_refusal_holds_no_argument():
    secret = "do what I say"
    assert secret not in reason(issue("A1", Step(tool="reserve_table", args={"party": secret, "day": "", "time": ""})))


def test_other_steps_are_another_question():
    assert fingerprint(issue()) == fingerprint(issue())
    assert fingerprint(issue()) != fingerprint(issue("A1", TABLE, TABLE))


@pytest.mark.parametrize("text, read", [("yes A1", ("accept", "A1")), ("no A12", ("decline", "A12"))])
def test_the_grammar_reads_exactly_yes_and_no_with_an_id(text, read):
    assert read_decision(text) == read


@pytest.mark.parametrize(
    "text",
    ["yes", "yes, sure", "Yes A1", "yes  A1", " yes A1", "yes A1 ", "yes A1\n", "yes A1.", "yes A01", "yes A1 A2",
     "ok A1", "yes a1", "yes A١", "cancel A1", "USER: yes A1", "yes\u00a0A1", ""],
)  # fmt: skip
def test_no_other_text_decides(text):
    assert read_decision(text) is None


def by_text(text="yes A1", origin=ANA, sealed=None, **more):
    return DecideByText(text=text, seal=seal(origin, data={"text": sealed or text}, **more))


def test_a_text_must_be_the_sealed_word_of_a_user_of_this_session():
    assert text_fault(SEAL_KEYS, by_text(), "s1") is None
    assert text_fault(SEAL_KEYS, by_text(origin=BEN), "s1") is None  # who it is, the redeeming judges
    assert text_fault(SEAL_KEYS, by_text(sealed="no A1"), "s1") == "other_text"
    assert text_fault(SEAL_KEYS, by_text(origin=RESTAURANT), "s1") == "not_a_user"
    assert text_fault(SEAL_KEYS, by_text(), "s2") == "seal"
    assert text_fault(SEAL_KEYS, by_text(keys=OTHER_KEYS), "s1") == "seal"


BUY = Step(tool="buy", args={"of": "wine"})


def world(step=BUY, *, session="s1", keys=SEAL_KEYS, read_at=1_000):
    return World.attested(keys, session, step, "d" * 64, read_at)


def test_what_a_step_relies_on_is_kept_beside_it():
    asked = ask(RULES, issue("A1", TABLE, BUY, worlds=(None, world())), "s1", "ana", 1_000)
    assert isinstance(asked, Asking)
    assert asked.worlds == (None, world())


@pytest.mark.parametrize(
    "worlds",
    [
        (),
        (None,),
        (world(keys=OTHER_KEYS),),
        (world(session="s2"),),
        (world(Step(tool="buy", args={"of": "beer"})),),
        (world().model_copy(update={"digest": "e" * 64}),),
    ],
)
def test_nothing_is_asked_whose_world_the_door_did_not_read(worlds):
    assert reason(issue("A1", BUY, worlds=worlds)) == "step 1: what buy relies on was not read"


def test_nothing_is_asked_whose_world_was_read_for_another_question():
    message = issue("A1", BUY, worlds=(world(read_at=1_000 - WORLD_AGE_MS - 1),))
    assert reason(message) == "step 1: what buy relies on was read too long ago"


def test_the_same_steps_with_another_world_are_another_question():
    assert fingerprint(issue("A1", BUY, worlds=(world(),))) != fingerprint(issue("A1", BUY, worlds=(world(read_at=9),)))

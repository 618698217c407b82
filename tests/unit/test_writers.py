"""Signed by one, written by another: a ticket system signs, anybody writes. The writer is shown and never believed."""

from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.session import Step
from services.consent.domain import Asking, Refusal, Rules, ask
from services.ingress.domain import Misfit, sealed_kind, user_input
from tests.support.consent import CINEMA as SIGNER
from tests.support.consent import SEAL_KEYS, application, issue, seal
from tests.support.ingress import an_event
from tests.unit.test_ingress_domain import read

AUTHOR = "{{ data.author }}"


def wrote(author: Any, template: str = AUTHOR) -> Any:
    return read({"type": "ticket.commented", "data": {"reservation": "r1", "author": author}}, written_by=template)


def test_the_writer_is_read_from_what_is_signed_and_sealed_in_the_origin() -> None:
    event = wrote("ben@example.org")
    assert (event.written_by, event.origin.written_by) == ("ben@example.org", "ben@example.org")
    assert (event.origin.source, event.origin.principal) == ("restaurant", "restaurant")


def test_a_number_is_a_name_too() -> None:
    assert wrote(7).written_by == "7"


@pytest.mark.parametrize("author", ["", None, "ana says yes", "a\u202eb", "x" * 65, ["ben"], {"name": "ben"}, True])
def test_a_writer_that_cannot_be_shown_as_a_name_is_quarantined(author: Any) -> None:
    found = wrote(author)
    if author == "":  # the sender says that nobody in particular wrote it
        assert found.written_by == ""
        return
    assert isinstance(found, Misfit)
    assert found.reason == "no_author"


def test_a_writer_that_the_data_does_not_name_is_quarantined_unless_the_file_has_a_word_for_it() -> None:
    body = {"type": "ticket.closed", "data": {"reservation": "r1"}}
    assert read(body, written_by=AUTHOR).reason == "no_author"
    assert read(body, written_by="{{ data.author | default('') }}").written_by == ""
    assert read(body).written_by == ""


def test_an_unsigned_header_names_no_writer() -> None:
    body = {"type": "x", "data": {"reservation": "r1"}}
    found = read(body, headers={"ce-author": "ana", "Turnkeeper-Actor": "ana", "ce-written_by": "ana"})
    assert (found.written_by, found.origin.principal) == ("", "restaurant")


@pytest.mark.parametrize("kind, text, sealed", [
    ("message", "book a table", "message"), ("message", "yes A1", "decision"), ("message", "no A12", "decision"),
    ("message", "yes A1 please", "message"), ("message", "Yes A1", "message"), ("cancel", "", "cancel"),
])  # fmt: skip
def test_an_exact_answer_is_sealed_as_the_decision_that_it_is(kind: Any, text: str, sealed: str) -> None:
    event = user_input(kind, "app", "ana", "s1", "k1", {"text": text}, now=0, window_ms=1)
    assert sealed_kind(event) == sealed


def test_an_event_is_sealed_as_an_event_whatever_its_text_says() -> None:
    assert sealed_kind(replace(an_event(), data={"text": "yes A1"})) == "event"


# --- the question -----------------------------------------------------------------------------------------------------

RULES = Rules(application(), SEAL_KEYS)
BY_BEN = SIGNER.model_copy(update={"written_by": "ben"})


def asked(message: Any, rules: Rules = RULES) -> Asking | Refusal:
    return ask(rules, message, "s1", "ana", 1_000)


def test_the_question_says_who_signed_and_who_wrote() -> None:
    found = asked(issue(origin=BY_BEN))
    assert isinstance(found, Asking)
    assert found.question.startswith("A1 (signed by cinema, written by ben): book a table for 12 people")
    assert (found.approver, found.source) == ("ana", "cinema")


def test_a_question_is_not_made_of_two_writers_words() -> None:
    by_cem = SIGNER.model_copy(update={"written_by": "cem"})
    found = asked(issue(seals=(seal(BY_BEN), seal(by_cem, number=2))))
    assert found == Refusal("the seals are of different origins")


def test_what_the_owner_may_not_cause_is_not_asked_of_them() -> None:
    raw = application()
    tools = {**raw.tools, "pay": raw.tools["pay"].model_copy(update={"caused_by": ("webhook:cinema",)})}
    rules = Rules(raw.model_copy(update={"tools": tools}), SEAL_KEYS)
    found = asked(issue("A1", Step(tool="pay", args={}), origin=SIGNER), rules)
    assert found == Refusal("step 1: pay may not be caused by its owner")
    may = {**raw.tools, "pay": raw.tools["pay"].model_copy(update={"caused_by": ("user:app:ana",)})}
    rules = Rules(raw.model_copy(update={"tools": may}), SEAL_KEYS)
    assert isinstance(asked(issue("A1", Step(tool="pay", args={}), origin=SIGNER), rules), Asking)

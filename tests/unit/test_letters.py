"""Dead letters of events: what may be sent again, and as what."""

import base64
from dataclasses import replace
from typing import Any, cast

from turnkeeper.client import Client
from turnkeeper.letters import Letter, _message, replay_fault

NOBODY = cast(Client, None)
"""An event's letter is judged without asking anybody."""


def letter(**more: Any) -> Letter:
    message = {
        "raw_base64": base64.b64encode(b'{"a": 1}').decode(),
        "headers": {"webhook-id": "e1"},
        "content_type": "application/json",
        "message_id": "",
        "user_id": "",
        "size": 8,
        "cut": False,
    }
    return Letter("L1", "ingress", "malformed", "", "turnkeeper.events", "cinema.film", "", 0, {**message, **more})


def test_an_event_is_sent_again_byte_for_byte_with_its_headers() -> None:
    sent = _message(letter())
    assert (sent.body, sent.headers, sent.content_type) == (b'{"a": 1}', {"webhook-id": "e1"}, "application/json")
    assert sent.user_id is None
    assert replay_fault(NOBODY, letter()) is None
    assert letter().type == "event"


def test_an_event_that_was_cut_is_not_sent_again() -> None:
    assert "only the beginning of its 2000 bytes" in (replay_fault(NOBODY, letter(cut=True, size=2000)) or "")


def test_an_event_that_the_broker_vouched_for_is_not_sent_again_by_another_user() -> None:
    assert "vouched for billing" in (replay_fault(NOBODY, letter(user_id="billing")) or "")


def test_what_is_neither_event_nor_envelope_cannot_be_read() -> None:
    assert "cannot be read" in (replay_fault(NOBODY, replace(letter(), message={"unreadable": "x"})) or "")

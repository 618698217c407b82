"""The state machine of `session_machine.py` where a turn resumes, is revised or is cancelled."""

from tests.property.session_machine import STATES, keeps_its_promises


def test_a_turn_that_changes_its_course_keeps_its_promises_whatever_the_order(seed, monkeypatch):
    keeps_its_promises(STATES[3:], seed, monkeypatch)

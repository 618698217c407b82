"""The state machine of `session_machine.py` where a turn is planned, waits or is paused."""

from tests.property.session_machine import STATES, keeps_its_promises


def test_a_session_keeps_its_promises_whatever_the_order(seed, monkeypatch):
    keeps_its_promises(STATES[:3], seed, monkeypatch)

"""What a session says of a call that the door keeps, and how it repeats what met a fault on purpose."""

from libs.contracts.faults import TIMEOUT
from libs.contracts.session import Step
from libs.contracts.tools import RunStep
from services.session.domain.plan import Plan
from tests.support.session import Talk

BOOK = Step(tool="book", args={"party": 4})


def booking() -> Talk:
    talk = Talk(
        lambda turn, _: Plan(reply=turn.failing or "done") if turn.position or turn.failing else Plan(steps=(BOOK,))
    )
    talk.say("book")
    return talk


def test_a_call_that_waits_at_the_door_is_told_once_and_goes_on() -> None:
    talk = booking()
    for _ in range(3):
        talk.finish("in_progress", reason="paused: tool book")
    assert talk.texts("notice") == ["book waits: paused: tool book"]
    talk.finish("committed")
    assert talk.kinds()[-1] == "turn.done"


def test_a_call_that_is_merely_in_progress_is_no_news() -> None:
    talk = booking()
    talk.finish("in_progress")
    assert talk.texts("notice") == []


def test_a_session_waits_no_longer_for_a_paused_call_than_for_any_other() -> None:
    talk = booking()
    assert talk.state.turn is not None
    deadline = talk.state.turn.deadline
    talk.finish("in_progress", reason="paused: all")
    assert talk.state.turn.deadline == deadline
    talk.wait(deadline - talk.now)
    assert talk.state.turn is None
    talk.finish("committed", operation="O1")
    assert talk.replies()[-1].startswith("Now I know: book"), "resumed later, it is told as it is"


def test_what_met_a_timeout_on_purpose_is_tried_again_under_its_own_key() -> None:
    talk = Talk(lambda turn, _: Plan(steps=(BOOK,)))
    talk.say("book")
    talk.finish("unknown", reason=TIMEOUT)
    first, second = talk.sent(RunStep)
    assert first.key == second.key

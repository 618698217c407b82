"""How many turns an origin may begin within an hour."""

from prometheus_client import CollectorRegistry

from services.session.domain import Arrived
from services.session.domain.limits import BUCKET_MS, KEPT_ORIGINS
from services.session.domain.plan import Plan
from services.session.metrics import SessionMetrics
from tests.support.session import ANA, BOOK, CINEMA, MAIL, NOW, RESTAURANT, Talk, make_input, make_rules, one_plan

HOUR_MS = 3_600_000


def capped(turns: int = 2, **more) -> Talk:
    return Talk(rules=make_rules(turns_per_origin_per_hour=turns), **more)


def dropped(talk: Talk) -> list[str]:
    return [line.event for line in talk.lines if line.kind == "input.dropped"]


def test_an_origin_begins_so_many_turns_within_an_hour_and_what_is_over_ends_visibly():
    talk = capped()
    talk.event()
    talk.event()
    over = talk.event()
    assert dropped(talk) == [over.event]
    assert talk.lines[-1].text == "its origin has begun 2 turns within an hour"
    assert talk.became()[-1] == (over.number, "failed")
    assert over.number in talk.trimmed
    assert talk.kinds().count("turn.start") == 2


def test_other_origins_are_counted_on_their_own():
    talk = capped(1)
    talk.event()
    talk.event(origin=CINEMA)
    talk.event(origin=CINEMA.model_copy(update={"principal": "other"}))
    talk.say("hello")
    assert dropped(talk) == []


def test_an_hour_later_it_may_begin_turns_again():
    talk = capped()
    talk.event()
    talk.now += HOUR_MS // 2
    talk.event()
    talk.now = NOW + HOUR_MS - 1
    assert talk.event().event in dropped(talk)
    talk.now = NOW + HOUR_MS + BUCKET_MS
    talk.event()
    assert len(dropped(talk)) == 1
    talk.event()
    assert len(dropped(talk)) == 2


def test_a_user_is_told():
    talk = capped(1)
    talk.say("hello")
    talk.say("hello?")
    assert ["limit" in reply for reply in talk.replies()] == [True]


def test_what_waited_and_is_over_the_limit_lets_the_next_begin():
    talk = capped(1, planner=one_plan(Plan(steps=(MAIL,))))
    talk.say("mail")
    talk.event()
    over = [talk.event() for _ in range(3)]
    last = talk.event(origin=CINEMA)
    talk.planner = lambda turn, body: Plan()
    talk.finish()
    assert dropped(talk) == [input.event for input in over]
    assert talk.state.turn is None
    assert talk.state.queue == ()
    assert talk.became()[-1] == (last.number, "acted")


def test_a_grant_passes_the_limit():
    talk = capped(1, planner=one_plan(Plan(steps=(BOOK,))))
    talk.event()
    talk.asked()
    talk.say("hello")
    talk.finish()
    talk.decision()
    assert talk.runs()[-1] == ("book", {"party": 4})
    assert dropped(talk) == []


def test_what_is_counted_is_bounded_and_forgotten():
    talk = capped(1)
    for number in range(KEPT_ORIGINS + 5):
        talk.event(origin=RESTAURANT.model_copy(update={"principal": f"p{number}"}))
    assert len(talk.state.begun) == KEPT_ORIGINS
    talk.now += 2 * HOUR_MS
    talk.arrive("message", ANA, {"text": "hello"})
    assert list(talk.state.begun) == ["user app ana"]


def test_a_reached_limit_is_counted():
    talk = capped(1)
    talk.event()
    decision = talk.give(Arrived(make_input(2, "event", RESTAURANT, {})))
    assert decision.limits == ("turns_per_origin_per_hour",)
    assert decision.dispositions == ("dropped",)
    registry = CollectorRegistry()
    metrics, labels = SessionMetrics(registry), {"limit": "turns_per_origin_per_hour"}
    assert registry.get_sample_value("turnkeeper_session_limits_total", labels) == 0
    metrics.committed(decision)
    assert registry.get_sample_value("turnkeeper_session_limits_total", labels) == 1

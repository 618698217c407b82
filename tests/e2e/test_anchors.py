"""The sixteen anchors: what users of other systems suffered, told end to end on real services, Redis and RabbitMQ.

Everything here is judged by what is visible from outside: answers over HTTP, the timeline, metrics, what the planner
was shown, and the destination's own ledger. `docs/testing.md` names the rule behind each, and the patch that breaks it.
"""

from collections.abc import Iterator

import pytest

from tests.support.anchors import OWNER, Plan, Stage, View, staged
from tests.support.eventually import eventually_sync

NOTHING: Plan = {}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, redis_url: str, amqp_url: str) -> Iterator[Stage]:
    """One stack for all: each test has sessions of its own, and whoever ends a process starts it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNKEEPER_REDIS_URL", redis_url)
        patch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
        folder = tmp_path_factory.mktemp("anchors")
        patch.setenv("TURNKEEPER_NAMESPACE", f"anchors-{folder.parent.name}-{folder.name}")
        with staged(folder, redis_url, amqp_url) as running:
            yield running


def steps(view: View, *wanted: tuple[str, str]) -> Plan:
    """A plan of these steps for a turn's first plan, and nothing after."""
    if view["results"] or view["running"]:
        return NOTHING
    return {"steps": [{"tool": tool, "args": {"text" if tool == "comment" else "sum": value}} for tool, value in wanted]}


def test_a05_another_signed_in_person_clicks(stage: Stage) -> None:
    """A5: 403, the question stays open, `wrong_person` is counted."""
    session = stage.session("a05", lambda view: steps(view, ("order", "a05")))
    stage.event("wish", "a05", session=session)
    action = stage.asked(session)
    before = stage.metric("consent", "turnkeeper_consent_decisions_total", outcome="wrong_person")
    assert stage.click(session, action, "bob").status_code == 403
    assert stage.asked(session)["action"] == action["action"]
    assert stage.metric("consent", "turnkeeper_consent_decisions_total", outcome="wrong_person") == before + 1
    assert stage.world.did("order", "a05") == []

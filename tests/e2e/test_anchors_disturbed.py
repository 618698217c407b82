"""The anchors once more, with duplicates and other orders on every hop, by seed; the pass conditions are the same.

`tests/support/disturbance.py` says what is done to the traffic. `SEED=…` draws the same again.
"""

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.conftest import SEED
from tests.e2e import test_anchors
from tests.e2e.test_anchors import INGRESS_POINTS, POINTS, at_first
from tests.support.anchors import Stage, View, staged
from tests.support.disturbance import Noise
from tests.support.eventually import eventually_sync
from turnkeeper.letters import letters
from turnkeeper.target import of_stack

globals().update({name: told for name, told in vars(test_anchors).items() if name.startswith("test_a")})
HOPS = {
    "ingress.input_accepted.v1",
    "ingress.register_subject.v1",
    "session.plan_requested.v1",
    "session.plan_made.v1",
    "consent.issue_action.v1",
    "consent.action_asked.v1",
    "tools.run_step.v1",
    "tools.step_finished.v1",
    "session.notice.v1",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A1, A4 and A7 are told for every point between two moves."""
    for name, points in (("place", INGRESS_POINTS), ("point", POINTS)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, points)


@pytest.fixture(scope="module")
def noise() -> Noise:
    """The disturbance of this run."""
    return Noise(int(os.environ.get(SEED) or secrets.randbits(32)))


@pytest.fixture(autouse=True)
def _replayable(noise: Noise, request: pytest.FixtureRequest) -> None:
    print(f"replay with SEED={noise.seed}")
    request.node.user_properties.append(("seed", noise.seed))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, redis_url: str, amqp_url: str, noise: Noise) -> Iterator[Stage]:
    """One stack for all, each process of which is disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNKEEPER_REDIS_URL", redis_url)
        patch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
        folder = tmp_path_factory.mktemp("disturbed")
        patch.setenv("TURNKEEPER_NAMESPACE", f"{folder.parent.name}-{folder.name}")
        with staged(folder, redis_url, amqp_url, noise) as running:
            yield running


def _missing(noise: Noise) -> list[tuple[str, str]]:
    """What was not yet done to messages of some type."""
    return [(type_, move) for type_ in sorted(HOPS) for move in ("held", "copied") if not noise.done[type_, move]]


def test_every_hop_is_disturbed_and_nothing_is_buried(stage: Stage, noise: Noise) -> None:
    """Each type of message is held back and sent twice at least once, and no copy becomes a dead letter."""

    def planner(view: View) -> dict[str, object]:
        wanted = ("comment", "hops") if view["input"]["kind"] == "message" else ("order", "hops")
        return at_first(wanted)(view)

    session = stage.session("hops", planner)
    stage.event("wish", "hops", session=session)
    assert stage.click(session, stage.asked(session)).status_code == 200
    stage.until(session, "turn.done")
    stage.say(session, "comment")
    stage.until(session, "turn.done", 2)
    print(f"{sorted(noise.done.items())}")
    eventually_sync(lambda: _missing(noise) == [], 5)
    assert letters(of_stack(stage.stack)) == []
    assert stage.world.did("order", "hops") == stage.world.did("comment", "hops") == ["hops"]

"""Stop and start of the whole deployment: in good order, and the session goes on (G9)."""

import json

import pytest

from tests.compose.deployment import SERVICES, Deployment
from tests.compose.dinner import EVENT, SESSION, USER, Dinner
from tests.support.eventually import eventually

pytestmark = pytest.mark.slow
ENDED_BY_SIGTERM = 143
"""A process that has nothing to hand off may just end (128 + SIGTERM)."""


def test_everything_stops_in_good_order_and_goes_on_where_it_was(dinner: Dinner) -> None:
    deployment = dinner.deployment
    before = deployment.client().timeline(SESSION)
    deployment.compose("--profile", "*", "stop", within=120)
    statuses = {name: deployment.inspect(name)["State"]["ExitCode"] for name in SERVICES}
    assert {name: status for name, status in statuses.items() if status not in (0, ENDED_BY_SIGTERM)} == {}
    deployment.compose("up", "--detach", "--wait", within=180)
    assert deployment.client().timeline(SESSION) == before
    assert "duplicate" in _publish_again(deployment, dinner)
    assert dinner.effects() == dinner.done


async def test_a_deployment_works_on_after_a_restart(dinner: Dinner) -> None:
    dinner.deployment.cli("say", SESSION, "tell Sam: see you", "--as", USER)
    await eventually(lambda: len(dinner.effects()) > len(dinner.done), within=30)


def _publish_again(deployment: Deployment, dinner: Dinner) -> str:
    offer = json.dumps(dinner.offer)
    return deployment.cli("publish", "restaurant", "--id", EVENT, "--type", "offer.gone", "--data", offer)

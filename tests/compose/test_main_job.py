"""From the host: publish to the exchange, use the command line, read the metrics. The main job of a deployment."""

import json
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.compose.deployment import FRONT, SERVICES, Deployment
from tests.compose.dinner import EVENT, SESSION, USER, Dinner
from tests.support.eventually import eventually

pytestmark = pytest.mark.slow
SCRAPE_SECONDS = 60
"""Two scrapes and an evaluation, ten seconds apart each, with room."""


def sample(deployment: Deployment, service: str, name: str, **labels: str) -> float:
    """One sample of a service's /metrics. Raises AssertionError if there is none."""
    for family in text_string_to_metric_families(deployment.get(service, "/metrics")):
        for found in family.samples:
            if found.name == name and labels.items() <= found.labels.items():
                return found.value
    raise AssertionError(f"{service} has no {name}{labels}")


def test_every_container_is_healthy(deployment: Deployment) -> None:
    names = ("redis", "rabbitmq", "prometheus", *SERVICES)
    assert deployment.states() == dict.fromkeys(names, "healthy")


def test_nothing_is_done_in_the_users_name_before_the_user_is_asked(dinner: Dinner) -> None:
    assert [effect["collection"] for effect in dinner.asked] == ["reservations", "messages"]
    assert dinner.question["approver"] == USER
    assert "20:30" in dinner.question["question"]


def test_an_accepted_action_has_its_effects_once(dinner: Dinner) -> None:
    assert [effect["collection"] for effect in dinner.done[2:]] == ["reservations", "messages"]
    assert dinner.done[2]["records"][0]["time"] == "20:30"
    assert {effect["outcome"] for effect in dinner.done} == {"committed"}


def test_the_timeline_tells_it_on_the_command_line(dinner: Dinner) -> None:
    lines = dinner.deployment.cli("timeline", SESSION, "--json").splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    story = ["effect.gone", "turn.ask", "action.asked", "action.accepted", "tool.committed"]
    assert [kind for kind in story if kind not in kinds] == []
    assert kinds.index("action.asked") < kinds.index("action.accepted")


async def test_a_copy_over_the_other_door_is_a_duplicate_and_changes_nothing(dinner: Dinner) -> None:
    deployment = dinner.deployment
    before = sample(deployment, "ingress", "turnkeeper_ingress_events_total", source="restaurant", outcome="duplicate")
    printed = deployment.cli(
        *("publish", "restaurant", "--id", EVENT, "--type", "offer.gone", "--data", json.dumps(dinner.offer))
    )
    assert "duplicate" in printed
    await dinner.publish(EVENT, dinner.offer)
    await eventually(lambda: _restaurant(deployment, "duplicate") == before + 2, within=20)
    assert dinner.effects() == dinner.done


def test_a_forged_event_is_counted_and_changes_nothing(dinner: Dinner) -> None:
    forged = urllib.request.Request(
        dinner.deployment.url("ingress", "/v1/events/restaurant"),
        json.dumps({"type": "offer.gone", "data": dinner.offer}).encode(),
        {"webhook-id": "evt_forged", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"},
        method="POST",
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(forged, timeout=10)
    assert dinner.effects() == dinner.done


@pytest.mark.parametrize("service", [*FRONT.values(), "session-2"])
def test_a_service_tells_what_it_did(dinner: Dinner, service: str) -> None:
    assert sample(dinner.deployment, service, "turnkeeper_build_info") == 1


def test_the_metrics_give_the_dedupe_and_consent_figures(dinner: Dinner) -> None:
    deployment = dinner.deployment
    assert _restaurant(deployment, "accepted") == 1
    for outcome, count in {"asked": 1, "accepted": 1, "declined": 0, "expired": 0}.items():
        assert sample(deployment, "consent", "turnkeeper_consent_actions_total", outcome=outcome) == count
    assert sample(deployment, "tools", "turnkeeper_tools_unknown") == 0


async def test_prometheus_records_both_ratios(dinner: Dinner) -> None:
    accepted = await eventually(lambda: query(dinner.deployment, "turnkeeper:consent_accept_ratio:5m"), SCRAPE_SECONDS)
    assert accepted == 1
    deduped = await eventually(lambda: query(dinner.deployment, "turnkeeper:dedupe_ratio:5m"), SCRAPE_SECONDS)
    assert 0 < deduped < 1


def test_prometheus_reaches_all_replicas_and_the_broker(dinner: Dinner) -> None:
    body = json.loads(dinner.deployment.get("prometheus", "/api/v1/targets?state=active"))
    up = {target["labels"]["instance"]: target["health"] for target in body["data"]["activeTargets"]}
    places = ("ingress:8080", "session-1:8081", "session-2:8091", "consent:8082", "tools:8083", "rabbitmq:15692")
    assert up == dict.fromkeys(places, "up")


def query(deployment: Deployment, expression: str) -> float:
    """A recording rule's value. Raises AssertionError while it has none."""
    result = json.loads(deployment.get("prometheus", f"/api/v1/query?query={expression}"))["data"]["result"]
    assert result, f"{expression} has no value"
    return float(result[0]["value"][1])


def _restaurant(deployment: Deployment, outcome: str) -> float:
    labels = {"source": "restaurant", "outcome": outcome}
    return sample(deployment, "ingress", "turnkeeper_ingress_events_total", **labels)

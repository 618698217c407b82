"""The recording and alert rules, judged by Prometheus' own tool."""

import json

import pytest

from tests.compose.deployment import ROOT, Deployment, run

pytestmark = pytest.mark.slow


def promtool(stores: Deployment, *arguments: str) -> str:
    rules = f"{ROOT / 'deploy/prometheus'}:/rules:ro"
    command = ["docker", "run", "--rm", "--network", "none", "--volume", rules, "--workdir", "/rules"]
    image = stores.images["TURNKEEPER_PROMETHEUS_IMAGE"]
    return run([*command, "--entrypoint", "promtool", image, *arguments])


def test_the_configuration_is_valid(stores: Deployment) -> None:
    assert "SUCCESS" in promtool(stores, "check", "config", "prometheus.yml")


def test_the_rules_give_the_ratios_and_alerts_that_they_state(stores: Deployment) -> None:
    assert "SUCCESS" in promtool(stores, "test", "rules", "rules.test.yml")


def test_secrets_and_paths_of_this_machine_are_in_no_image(deployment: Deployment) -> None:
    image = deployment.images["TURNKEEPER_IMAGE"]
    environment = json.loads(run(["docker", "image", "inspect", "--format", "{{json .Config.Env}}", image]))
    assert not [variable for variable in environment if variable.startswith(("PIP_", "SSL_", "http_proxy"))]
    listing = run(["docker", "run", "--rm", "--network", "none", image, "sh", "-c", "ls /wheels /etc/pip.conf || true"])
    assert listing == ""

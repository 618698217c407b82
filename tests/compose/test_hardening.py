"""What each container may do, as Docker sees it, and what of the deployment can be reached from outside."""

from ipaddress import ip_address

import pytest

from tests.compose.deployment import SERVICES, Deployment

pytestmark = pytest.mark.slow
CONTAINERS = ("redis", "rabbitmq", *SERVICES)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_runs_without_rights(deployment: Deployment, name: str) -> None:
    about = deployment.inspect(name)
    host = about["HostConfig"]
    assert about["Config"]["User"].split(":")[0] not in ("", "0", "root")
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["Init"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_sees_only_its_own_secrets(deployment: Deployment, name: str) -> None:
    mounted = {
        mount["Destination"].removeprefix("/run/secrets/")
        for mount in deployment.inspect(name)["Mounts"]
        if mount["Destination"].startswith("/run/secrets/")
    }
    assert mounted == EXPECTED_SECRETS[name]


def test_ports_are_published_on_loopback_only(deployment: Deployment) -> None:
    for name in CONTAINERS:
        for bindings in (deployment.inspect(name)["NetworkSettings"]["Ports"] or {}).values():
            assert all(ip_address(binding["HostIp"]).is_loopback for binding in bindings or ())


def test_the_store_and_the_sandbox_are_on_the_inner_network_alone(deployment: Deployment) -> None:
    for name in ("redis", "sandbox"):
        assert list(deployment.inspect(name)["NetworkSettings"]["Networks"]) == [f"{deployment.project}_backend"]


def test_no_password_is_in_an_environment(deployment: Deployment) -> None:
    values = {file.read_text().strip() for file in deployment.secrets.iterdir()}
    for name in CONTAINERS:
        environment = "\n".join(deployment.inspect(name)["Config"]["Env"])
        assert not [value for value in values if value in environment]


_SERVICE = {"turnkeeper_redis_password", "turnkeeper_amqp_password"}
_DOOR = {"turnkeeper_user_token_secret", "turnkeeper_operator_tokens"}
EXPECTED_SECRETS = {
    "redis": {"redis.acl", "redis_health_password"},
    "rabbitmq": {"definitions.json"},
    "ingress": _SERVICE | _DOOR | {"turnkeeper_seal_keys", "restaurant_secret", "cinema_secret", "chat_secret"},
    # not the seal: a session service cannot make an input (design 3.1)
    "session-1": _SERVICE | _DOOR,
    "session-2": _SERVICE | _DOOR,
    "consent": _SERVICE | _DOOR | {"turnkeeper_seal_keys"},
    # no user token: users do not come to the door of side effects
    "tools": _SERVICE | {"turnkeeper_operator_tokens", "turnkeeper_seal_keys", "turnkeeper_evidence_key"},
    "sandbox": set(),
}

"""Where a command speaks to: the state folder's stack, single variables over it, or the environment alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.target import DINNER, TargetError, find_config, find_target

STACK: dict[str, Any] = {
    "engine": "local",
    "redis_url": "redis://127.0.0.1:1/0",
    "amqp_url": "amqp://tk@127.0.0.1:2/",
    "namespace": "",
    "partitions": 4,
    "config": str(DINNER),
    "urls": {
        name: [f"http://127.0.0.1:{port}"] for port, name in enumerate(("ingress", "session", "consent", "tools"))
    },
    "sandbox_url": "http://127.0.0.1:9",
    "sandbox_log": None,
    "user_token_secret": "u" * 32,
    "operator_token": "the operator",
    "source_secrets": {"RESTAURANT_SECRET": "whsec_x"},
    "pids": {},
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "stack.json").write_text(json.dumps({**STACK, "state": str(tmp_path)}))
    return tmp_path


def test_a_stack_says_everything(state: Path) -> None:
    target = find_target(state, {})
    assert target.url("session") == "http://127.0.0.1:1"
    assert target.amqp_url() == "amqp://tk@127.0.0.1:2/"
    assert (target.user_token_secret(), target.operator_token()) == ("u" * 32, "the operator")
    assert target.environment["RESTAURANT_SECRET"] == "whsec_x"
    assert target.topology().partitions == 4


def test_a_variable_overrides_what_the_stack_says(state: Path) -> None:
    target = find_target(state, {"TURNKEEPER_TOOLS_URL": "http://there:8083/", "TURNKEEPER_OPERATOR_TOKEN": "mine"})
    assert target.url("tools") == "http://there:8083"
    assert target.all_urls("tools") == ("http://there:8083",)
    assert target.url("consent") == "http://127.0.0.1:2"
    assert target.operator_token() == "mine"


def test_the_environment_alone_names_a_deployment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    (tmp_path / "password").write_text("pa/ss\n")
    environment = {
        "TURNKEEPER_INGRESS_URL": "http://there:8080",
        "TURNKEEPER_AMQP_URL": "amqp://publisher@there:5672/",
        "TURNKEEPER_AMQP_PASSWORD_FILE": str(tmp_path / "password"),
        "TURNKEEPER_OPERATOR_TOKEN_FILE": str(tmp_path / "token"),
        "TURNKEEPER_PARTITIONS": "32",
        "RESTAURANT_SECRET": "whsec_y",
    }
    target = find_target(tmp_path / "none", environment)
    assert target.operator_token() == "from a file"
    assert target.amqp_url() == "amqp://publisher:pa%2Fss@there:5672/"
    assert target.topology().partitions == 32
    assert target.environment["RESTAURANT_SECRET"] == "whsec_y"


def test_what_is_missing_is_named_with_its_variable(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"turnkeeper up.*TURNKEEPER_INGRESS_URL"):
        find_target(tmp_path, {})
    target = find_target(tmp_path, {"TURNKEEPER_INGRESS_URL": "http://there:8080"})
    for ask, name in (
        (lambda: target.url("tools"), "TURNKEEPER_TOOLS_URL"),
        (target.amqp_url, "TURNKEEPER_AMQP_URL"),
        (target.operator_token, "TURNKEEPER_OPERATOR_TOKEN"),
        (target.user_token_secret, "TURNKEEPER_USER_TOKEN_SECRET"),
        (target.sandbox_url, "TURNKEEPER_SANDBOX_URL"),
    ):
        with pytest.raises(TargetError, match=name):
            ask()


@pytest.mark.parametrize("text", ["many", "0", "101", "-1"])
def test_a_wrong_partition_count_is_told(state: Path, text: str) -> None:
    with pytest.raises(TargetError, match="TURNKEEPER_PARTITIONS"):
        find_target(state, {"TURNKEEPER_PARTITIONS": text})


def test_a_secret_file_that_cannot_be_read_is_told_without_a_value(state: Path) -> None:
    with pytest.raises(TargetError, match=r"TURNKEEPER_OPERATOR_TOKEN_FILE: \S+ cannot be read"):
        find_target(state, {"TURNKEEPER_OPERATOR_TOKEN_FILE": str(state / "absent")})


def test_no_secret_is_in_what_is_printed_of_a_target(state: Path) -> None:
    shown = repr(find_target(state, {}))
    assert not any(secret in shown for secret in ("the operator", "u" * 32, "whsec_x", "amqp://"))


def test_the_application_file_is_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None, {}) == DINNER
    (tmp_path / "turnkeeper.yaml").write_text("")
    assert find_config(None, {}) == Path("turnkeeper.yaml")
    assert find_config(None, {"TURNKEEPER_CONFIG": "named.yaml"}) == Path("named.yaml")
    assert find_config(Path("chosen.yaml"), {"TURNKEEPER_CONFIG": "named.yaml"}) == Path("chosen.yaml")

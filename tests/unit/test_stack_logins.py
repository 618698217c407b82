"""Each process of a stack has its own login at the servers, and nobody else's in its environment (G10)."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from libs.contracts.application import load_application
from libs.contracts.keys import SERVICES
from turnkeeper.engines import Engine, docker, external
from turnkeeper.stack_plan import Planned, load_secrets, plan_processes
from turnkeeper.target import DINNER

ENGINE = Engine(
    redis_url="redis://:owner-of-redis@h/0",
    amqp_url="amqp://turnkeeper:owner-of-rabbitmq@h/",
    kind="local",
    redis_logins={service: f"redis://{service}:redis-{service}@h/0" for service in SERVICES},
    amqp_logins={service: f"amqp://{service}:rabbitmq-{service}@h/" for service in (*SERVICES, "publisher")},
)


def planned(state: Path, engine: Engine) -> dict[str, Planned]:
    application = load_application(DINNER)
    ports = {f"{service}-0": 8080 + number for number, service in enumerate(SERVICES)}
    made = load_secrets(state, application)
    found = plan_processes(state, DINNER, application, engine, ports, made, 4, {})
    return {one.name.removesuffix("-0"): one for one in found}


def test_a_service_gets_its_own_login_and_no_other(tmp_path: Path) -> None:
    found = planned(tmp_path, ENGINE)
    for service in SERVICES:
        env = found[service].env
        assert env["TURNKEEPER_REDIS_URL"] == ENGINE.redis_logins[service]
        assert env["TURNKEEPER_AMQP_URL"] == ENGINE.amqp_logins[service]
        others = {login for name in SERVICES if name != service for login in (f"redis-{name}", f"rabbitmq-{name}")}
        assert not [login for login in (*others, "owner-of-redis", "owner-of-rabbitmq") if login in str(env.values())]


def test_without_logins_of_their_own_services_have_the_owners(tmp_path: Path) -> None:
    found = planned(tmp_path, Engine("redis://:p@h/0", "amqp://u:p@h/", "external"))
    assert {found[service].env["TURNKEEPER_REDIS_URL"] for service in SERVICES} == {"redis://:p@h/0"}


def test_the_variables_that_name_logins_reach_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [variable(service) for service in SERVICES for variable in (external.redis_variable, external.amqp_variable)]
    others = ["TURNKEEPER_OPERATOR_TOKEN", "TURNKEEPER_REDIS_PASSWORD", "TURNKEEPER_AMQP_PASSWORD"]
    for name in (*mine, *others, external.REDIS_URL, external.AMQP_URL):
        monkeypatch.setenv(name, "of-our-own-shell")
    for one in planned(tmp_path, ENGINE).values():
        assert "of-our-own-shell" not in one.env.values(), one.name


def test_the_environment_names_a_login_for_each_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(external.redis_variable("ingress"), "redis://ingress:x@h/0")
    monkeypatch.setenv(external.amqp_variable("tools"), "amqp://tools:y@h/")
    assert external._own_logins(external.redis_variable) == {"ingress": "redis://ingress:x@h/0"}
    assert external._own_logins(external.amqp_variable) == {"tools": "amqp://tools:y@h/"}


def test_a_login_is_in_nothing_that_is_printed() -> None:
    assert "owner-of" not in repr(ENGINE)
    assert "redis-ingress" not in repr(ENGINE)


def test_a_container_is_told_no_password_that_docker_inspect_could_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(docker, "check", lambda **_: None)
    monkeypatch.setattr(docker, "stop", lambda _: None)
    monkeypatch.setattr(docker, "_is_running", lambda *_: False)
    monkeypatch.setattr(docker, "_await", lambda *_: None)
    monkeypatch.setattr(docker, "_must", lambda command, _, env: told.append(f"{command} {env}"))
    engine = docker.start(tmp_path)
    urls = [engine.redis_url, engine.amqp_url, *engine.redis_logins.values(), *engine.amqp_logins.values()]
    passwords = [urlsplit(url).password for url in urls]
    assert len(told) == 2
    assert not [password for password in passwords if password is None or password in " ".join(told)]

"""`turnkeeper secrets init`: what it writes, what it keeps, and who can read it."""

import json
from pathlib import Path

import pytest

from libs.contracts.application import ApplicationError
from libs.contracts.topology import BROKER_USERS, password_hash
from turnkeeper import cli
from turnkeeper.cli.secrets import init_secrets

APPLICATION = """
sources:
  restaurant:
    verify: {scheme: standard-webhooks, secrets: ["env:RESTAURANT_SECRET", "env:RESTAURANT_SECRET_OLD"]}
    route: {session: "{{ data.session }}"}
  chat:
    verify: {scheme: hmac, secrets: ["env:CHAT_SECRET"], header: x-signature, id: "{{ id }}"}
    route: {session: "{{ data.session }}"}
  bank:
    verify: {scheme: standard-webhooks, secrets: ["file:/run/secrets/bank"]}
    route: {session: "{{ data.session }}"}
  app: {verify: {scheme: user-token}}
tools: {}
planner: {scripted: {rules: rules.yaml}}
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    file = tmp_path / "turnkeeper.yaml"
    file.write_text(APPLICATION)
    return file


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_no_two_secrets_are_the_same(tmp_path: Path, application: Path) -> None:
    init_secrets(tmp_path / "secrets", application=application)
    values = list(contents(tmp_path / "secrets").values())
    assert len(set(values)) == len(values)


def test_it_returns_every_file_that_it_wrote(tmp_path: Path, application: Path) -> None:
    files = init_secrets(tmp_path / "secrets", application=application)
    assert {file.name for file in files} == set(contents(tmp_path / "secrets"))


def test_secrets_that_are_there_are_kept(tmp_path: Path, application: Path) -> None:
    init_secrets(tmp_path / "secrets", application=application)
    before = contents(tmp_path / "secrets")
    init_secrets(tmp_path / "secrets", application=application)
    assert contents(tmp_path / "secrets") == before


def test_force_makes_new_ones(tmp_path: Path, application: Path) -> None:
    init_secrets(tmp_path / "secrets", application=application)
    before = contents(tmp_path / "secrets")
    init_secrets(tmp_path / "secrets", force=True, application=application)
    after = contents(tmp_path / "secrets")
    assert not [name for name in before if before[name] == after[name]]


def test_the_folder_is_its_owners_alone_and_a_mounted_file_can_be_read_by_the_containers_user(
    tmp_path: Path, application: Path
) -> None:
    files = init_secrets(tmp_path / "secrets", application=application)
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files} == {0o644}


def test_a_source_gets_a_secret_in_the_form_of_its_scheme(tmp_path: Path, application: Path) -> None:
    init_secrets(tmp_path / "secrets", application=application)
    made = contents(tmp_path / "secrets")
    assert made["restaurant_secret"].startswith("whsec_")
    assert made["restaurant_secret_old"].startswith("whsec_")
    assert not made["chat_secret"].startswith("whsec_")
    assert "bank" not in made


def test_the_broker_gets_hashes_of_the_passwords_and_no_guest(tmp_path: Path) -> None:
    init_secrets(tmp_path / "secrets")
    made = contents(tmp_path / "secrets")
    users = {user["name"]: user["password_hash"] for user in json.loads(made["definitions.json"])["users"]}
    assert users == {user: password_hash(made[f"rabbitmq_{user}_password"]) for user in BROKER_USERS}


def test_no_password_is_in_the_files_that_the_stores_read(tmp_path: Path) -> None:
    init_secrets(tmp_path / "secrets")
    made = contents(tmp_path / "secrets")
    passwords = [value for name, value in made.items() if name.endswith("_password")]
    assert not [word for word in passwords if word in made["redis.acl"] + made["definitions.json"]]


def test_nobody_can_be_redis_default_user_which_keeps_the_rights_to_read_its_own_log(tmp_path: Path) -> None:
    init_secrets(tmp_path / "secrets")
    rules = contents(tmp_path / "secrets")["redis.acl"].splitlines()[0].split()
    assert rules[:3] == ["user", "default", "off"]
    assert "resetpass" in rules
    assert "+@all" in rules


def test_an_application_with_faults_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "turnkeeper.yaml"
    broken.write_text("sources: [")
    with pytest.raises(ApplicationError, match="not YAML"):
        init_secrets(tmp_path / "secrets", application=broken)


def test_it_reads_the_file_that_compose_reads(
    tmp_path: Path, application: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SECRETS", "APPLICATION", "CONFIG", "PARTITIONS", "NAMESPACE"):
        monkeypatch.delenv(f"TURNKEEPER_{name}", raising=False)
    folder = tmp_path / "mine"
    folder.mkdir()
    application.rename(folder / "turnkeeper.yaml")
    (tmp_path / ".env").write_text(
        "# a remark\n#TURNKEEPER_NAMESPACE=no\nTURNKEEPER_SECRETS=./hidden # where\nTURNKEEPER_APPLICATION='./mine'\n"
        'export TURNKEEPER_NAMESPACE="staging"\nTURNKEEPER_PARTITIONS=3\n\nnonsense\n'
    )
    assert cli.run(["secrets", "init"]) == 0
    written = contents(tmp_path / "hidden")
    assert "chat_secret" in written
    queues = {queue["name"] for queue in json.loads(written["definitions.json"])["queues"]}
    assert {"staging.turnkeeper.session.00", "staging.turnkeeper.session.02"} <= queues
    assert "staging.turnkeeper.session.03" not in queues
    monkeypatch.setenv("TURNKEEPER_SECRETS", str(tmp_path / "other"))
    assert cli.run(["secrets", "init", "--namespace", ""]) == 0
    assert "staging" not in contents(tmp_path / "other")["definitions.json"]
    assert "other" in capsys.readouterr().out


def test_what_is_wrong_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNKEEPER_APPLICATION", raising=False)
    (tmp_path / "file").write_text("")
    for arguments in (["--config", "nope.yaml"], ["--dir", "file/below"]):
        assert cli.run(["secrets", "init", *arguments]) == 1
        told = capsys.readouterr().err
        assert told.startswith("turnkeeper: ")
        assert told.count("\n") == 1
    (tmp_path / ".env").write_text("TURNKEEPER_PARTITIONS=many\n")
    assert cli.run(["secrets", "init"]) == 1
    assert "TURNKEEPER_PARTITIONS is 'many'" in capsys.readouterr().err

"""Faults for tests: which calls they select, and that no production configuration has them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.contracts.application import ApplicationError, parse_application
from libs.contracts.faults import Fault, Trial, due
from libs.runtime.settings import SettingsError
from libs.runtime.trials import read_application
from turnkeeper.target import DINNER

ROOT = Path(__file__).parents[2]


def fault(**fields: Any) -> Fault:
    return Fault.model_validate({"action": "book", "mode": "error", **fields})


@pytest.mark.parametrize(
    ("pattern", "args", "selects"),
    [
        ({}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {}, False),
        ({"a": "x*"}, {"a": "xyz"}, True),
        ({"a": "x*"}, {"a": "yx"}, False),
        ({"a": {"b": "?"}}, {"a": {"b": "z", "c": 1}}, True),
        ({"a": {"b": "?"}}, {"a": "b"}, False),
        ({"a": [1, 2]}, {"a": [1, 2]}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
    ],
)
def test_arguments_select_as_a_pattern(pattern: Any, args: Any, selects: bool) -> None:
    assert fault(args=pattern).selects(["book"], args, "agent") is selects


def test_another_action_or_actor_is_not_selected() -> None:
    assert fault(action="tables.put").selects(["book", "tables.put"], {}, "agent")
    assert not fault(action="put").selects(["book", "tables.put"], {}, "agent"), "the last part alone is for display"
    assert not fault(actor="sam").selects(["book"], {}, "agent")


def test_faults_of_the_same_calls_share_a_counter_and_the_first_counts() -> None:
    one, two, three = fault(), fault(on_call=2), fault(args={"a": 1})
    assert one.selector == two.selector != three.selector
    assert due([one, two], {one.selector: 2}) == two
    assert due([one, two], {one.selector: 3}) is None
    assert due([one], {}) is None


def test_a_set_has_a_version_also_when_empty() -> None:
    assert Trial.of([]).version != Trial.of([fault()]).version != Trial.of([fault(on_call=2)]).version
    assert Trial.model_validate_json(Trial.of([fault()]).model_dump_json()) == Trial.of([fault()])


def application(**fields: Any) -> Any:
    return {**yaml.safe_load(DINNER.read_text()), **fields}


def test_a_fault_names_an_action_that_there_is() -> None:
    parse_application(application(faults=[{"action": "reserve_table", "mode": "error"}]), "test")
    for wrong in ({"action": "reserve", "mode": "error"}, {"action": "reserve_table", "mode": "explode"},
                  {"action": "reserve_table", "mode": "error", "on_call": 0}):  # fmt: skip
        with pytest.raises(ApplicationError, match=r"faults\.0\."):
            parse_application(application(faults=[wrong]), "test")


class Settings:
    def __init__(self, config: Path, trials: bool) -> None:
        self.config, self.trials = config, trials


def test_a_configuration_with_faults_does_not_start_without_trials(tmp_path: Path) -> None:
    file = tmp_path / "turnkeeper.yaml"
    file.write_text(yaml.safe_dump(application(faults=[{"action": "reserve_table", "mode": "error"}])))
    with pytest.raises(SettingsError, match="TURNKEEPER_TRIALS"):
        read_application(Settings(file, False))  # type: ignore[arg-type]
    assert len(read_application(Settings(file, True)).faults) == 1  # type: ignore[arg-type]


def test_every_service_reads_its_application_so() -> None:
    for service in ("ingress", "session", "consent", "tools"):
        text = (ROOT / "services" / service / "main.py").read_text()
        assert "read_application(settings)" in text
        assert "load_application" not in text


def test_no_deployment_switches_trials_on() -> None:
    files = [
        ROOT / "docker-compose.yml",
        ROOT / ".env.example",
        *(ROOT / "deploy").rglob("*"),
        *ROOT.glob("examples/**/*.yaml"),
    ]
    for file in files:
        if file.is_file() and file.suffix in ("", ".yml", ".yaml", ".example"):
            text = file.read_text(errors="replace")
            assert not re.search(r"^faults:|TURNKEEPER_TRIALS(=1|:)", text, re.MULTILINE), file

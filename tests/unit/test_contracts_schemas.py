"""Golden JSON Schemas: a message that an older reader could no longer read needs a new version.

`WRITE_SCHEMAS=1 pytest tests/unit/test_contracts_schemas.py` writes them after a change that breaks nothing.
"""

import copy
import json
import os
from pathlib import Path

import pytest

import libs.contracts
from libs.contracts.codec import MESSAGES
from libs.contracts.envelope import Envelope
from libs.contracts.ingress import Input
from libs.contracts.session import TimelineLine
from tests.support.schemas import breaks

FOLDER = Path(libs.contracts.__file__).parent / "schemas"
MODELS = {**MESSAGES, "envelope.v1": Envelope, "input.v1": Input, "timeline_line.v1": TimelineLine}
SWITCH = "WRITE_SCHEMAS"


def golden(name):
    return FOLDER / f"{name}.json"


@pytest.mark.parametrize("name", MODELS)
def test_the_golden_schema_is_that_of_the_message(name):
    schema = MODELS[name].model_json_schema()
    if os.environ.get(SWITCH):
        if golden(name).exists():
            assert breaks(json.loads(golden(name).read_text()), schema) == [], "raise VERSION for a breaking change"
        golden(name).write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
    written = json.loads(golden(name).read_text())
    assert breaks(written, schema) == [], "a breaking change: raise VERSION and write a new schema"
    assert written == schema, f"changed without breaking: run with {SWITCH}=1"


def test_every_golden_schema_belongs_to_a_message():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(MODELS), "a message was removed or renamed"


@pytest.mark.parametrize("name", MESSAGES)
def test_a_wire_type_is_owner_name_and_version(name):
    message = MESSAGES[name]
    owner = message.__module__.rpartition(".")[2]
    assert name.startswith(f"{owner}.")
    assert name.endswith(f".v{message.VERSION}")


STEP = MESSAGES["tools.step_finished.v1"].model_json_schema()


def edited(change):
    schema = copy.deepcopy(STEP)
    change(schema)
    return schema


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["properties"].pop("reason"),
        lambda s: s["properties"].update(why=s["properties"].pop("reason")),
        lambda s: s["required"].append("reason"),
        lambda s: (s["properties"].update(new={"type": "string"}), s["required"].append("new")),
        lambda s: s["properties"]["reason"].update(type="integer"),
        lambda s: s["properties"]["state"]["enum"].remove("unknown"),
        lambda s: s["properties"]["operation"].update(pattern="^O"),
        lambda s: s["properties"]["reason"].update(maxLength=3),
    ],
    ids=["removed", "renamed", "now required", "new required", "type", "narrowed enum", "pattern", "narrowed length"],
)
def test_a_breaking_change_is_found(change):
    assert breaks(STEP, edited(change))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["properties"].update(new={"type": "string", "default": ""}),
        lambda s: s["properties"]["state"]["enum"].append("paused"),
        lambda s: s.update(description="other words"),
        lambda s: s["required"].remove("state"),
    ],
    ids=["new optional", "wider enum", "description", "no longer required"],
)
def test_what_breaks_no_older_message_is_allowed(change):
    assert breaks(STEP, edited(change)) == []

"""OpenAPI and AsyncAPI documents as they are published under docs/api: valid, of now, and breaking nobody.

`WRITE_CONTRACTS=1 pytest tests/unit/test_published_contracts.py` writes them after a change that breaks nobody;
`WRITE_CONTRACTS=breaking` after one that does, which the changelog then has to tell.
"""

import copy
import json
import os
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from libs.contracts.codec import MESSAGES
from libs.contracts.topology import Topology
from tests.support.contracts import DOCUMENTS, FOLDER, OPENAPI, breaking
from tests.support.http_rights import every_route

SWITCH = "WRITE_CONTRACTS"
ASYNCAPI_SCHEMA = FOLDER.parents[1] / "tests" / "data" / "asyncapi" / "3.1.0.json"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_published_document_is_that_of_the_code_and_a_change_of_it_breaks_nobody(name: str) -> None:
    path, document = FOLDER / f"{name}.json", DOCUMENTS[name]
    published = json.loads(path.read_text()) if path.exists() else None
    if published is not None and os.environ.get(SWITCH) != "breaking":
        told = f"a breaking change: keep what was, or accept it with {SWITCH}=breaking"
        assert breaking(published, document) == [], told
    if os.environ.get(SWITCH):
        path.write_text(json.dumps(document, indent=1) + "\n")
        published = document
    assert published == json.loads(json.dumps(document)), f"changed without breaking: run with {SWITCH}=1"


@pytest.mark.parametrize("service", OPENAPI)
def test_the_openapi_document_is_valid(service: str) -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(OPENAPI[service]).iter_errors()] == []


def test_the_asyncapi_document_is_valid() -> None:
    validator = jsonschema_rs.validator_for(json.loads(ASYNCAPI_SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(DOCUMENTS["asyncapi"])] == []
    broken = copy.deepcopy(DOCUMENTS["asyncapi"])
    del broken["channels"]["events"]["messages"]["event"]["$ref"]
    broken["operations"]["publishEvent"]["action"] = "shout"
    assert not validator.is_valid(broken), "the schema is applied at all"


def test_every_call_is_in_its_services_document_and_nothing_else_is() -> None:
    shown = {
        (service, method.upper(), path)
        for service, document in OPENAPI.items()
        for path, calls in document["paths"].items()
        for method in calls
    }
    pages = ("/docs", "/openapi.json", "/docs/oauth2-redirect")
    routes = {(service, method, path.replace(":path}", "}")) for service, method, path in every_route()
              if path not in pages}  # fmt: skip
    assert shown == routes


def test_every_message_queue_and_exchange_is_in_the_asyncapi_document() -> None:
    document, topology = DOCUMENTS["asyncapi"], Topology()
    carried = {message["$ref"] for channel in document["channels"].values() for message in channel["messages"].values()}
    assert {f"#/components/messages/{name}" for name in MESSAGES} <= carried
    bindings = [channel["bindings"]["amqp"] for channel in document["channels"].values()]
    named = {binding[kind]["name"] for binding in bindings for kind in ("queue", "exchange") if kind in binding}
    partitions = {topology.partition_queue(number) for number in range(topology.partitions)}
    queues = {queue.name for queue in topology.queues()} - partitions - {topology.events_in}
    assert queues | {topology.events, topology.notices, topology.sessions} <= named


CONSENT, MESSAGES_DOCUMENT = OPENAPI["consent"], DOCUMENTS["asyncapi"]
DECISION = "/v1/sessions/{session}/actions/{action}/decision"


def edited(document: dict[str, Any], change: Any) -> dict[str, Any]:
    copied = copy.deepcopy(document)
    change(copied)
    return copied


def model(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"][name]
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["paths"].pop(DECISION),
        lambda d: d["paths"][DECISION]["post"]["responses"].pop("410"),
        lambda d: d["paths"]["/livez"]["get"].update(security=[{"user": []}]),
        lambda d: d["paths"][DECISION]["post"]["parameters"].append(
            {"name": "X", "in": "header", "required": True, "schema": {}}
        ),
        lambda d: model(d, "Decision")["required"].append("reason"),
        lambda d: model(d, "Decision")["properties"].pop("decision"),
        lambda d: model(d, "Decision")["properties"]["decision"]["enum"].remove("cancel"),
        lambda d: model(d, "GrantRequest")["properties"]["uses"].update(maximum=10),
        lambda d: model(d, "GrantRequest")["properties"]["uses"].update(type="string"),
        lambda d: model(d, "Receipt")["properties"].pop("state"),
        lambda d: model(d, "Receipt")["required"].remove("state"),
        lambda d: model(d, "ActionShown")["properties"]["steps"].update(type="object"),
    ],
    ids=["call", "status", "credentials", "parameter", "new required field", "field of a body", "value", "bound",
         "type", "field of an answer", "field that may be missing", "type in an answer"],
)  # fmt: skip
def test_a_breaking_change_of_a_call_is_found(change: Any) -> None:
    assert breaking(CONSENT, edited(CONSENT, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["channels"].pop("notices"),
        lambda d: d["channels"]["events"].update(address="{source}"),
        lambda d: d["channels"]["notices"]["messages"].clear(),
        lambda d: d["operations"].pop("hearNotice"),
        lambda d: d["components"]["messages"]["session.notice.v1"].update(contentType="text/plain"),
        lambda d: model(d, "Notice")["properties"].pop("text"),
        lambda d: model(d, "Notice")["properties"]["topic"]["enum"].remove("reply"),
        lambda d: model(d, "PlanMade")["required"].append("reply"),
        lambda d: model(d, "NoticeHeaders")["properties"].pop("ce-id"),
    ],
    ids=["channel", "address", "message", "operation", "media type", "field", "value", "required", "header"],
)
def test_a_breaking_change_of_a_message_is_found(change: Any) -> None:
    assert breaking(MESSAGES_DOCUMENT, edited(MESSAGES_DOCUMENT, change))


@pytest.mark.parametrize(
    "document, change",
    [
        (CONSENT, lambda d: d["paths"].update({"/v1/new": {"get": {"responses": {}}}})),
        (CONSENT, lambda d: model(d, "Receipt")["properties"].update(more={"type": "string"})),
        (CONSENT, lambda d: model(d, "GrantRequest")["properties"].update(more={"type": "string", "default": ""})),
        (CONSENT, lambda d: d["info"].update(description="other words")),
        (MESSAGES_DOCUMENT, lambda d: model(d, "Notice")["properties"].update(more={"type": "string"})),
        (MESSAGES_DOCUMENT, lambda d: model(d, "Notice")["properties"]["topic"]["enum"].append("more")),
    ],
    ids=["call", "field of an answer", "optional field of a body", "words", "field of a notice", "topic"],
)
def test_what_breaks_nobody_is_allowed(document: dict[str, Any], change: Any) -> None:
    assert breaking(document, edited(document, change)) == []

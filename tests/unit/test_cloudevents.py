"""CloudEvents 1.0.2: what is read in each mode, what is refused with a reason, and what identifies one."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http as sdk_http
from cloudevents.core.bindings import rabbitmq as sdk_rabbitmq
from cloudevents.core.v1.event import CloudEvent as SdkEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from libs.contracts.application import Hmac, Source, Verify
from libs.contracts.cloudevents import NOTICE_TYPE, identity, notice_attributes, structured
from libs.contracts.strict_json import Malformed
from services.ingress.cloudevents import read_content
from services.ingress.domain import Event, Misfit, claims_of, interpret
from services.ingress.schemes import Verified, build_verifier, check, header_pairs
from turnkeeper.signing import sign_event

NOW = 1_800_000_000_000
STRUCTURED = "application/cloudevents+json"
EVENT = {"specversion": "1.0", "id": "e1", "source": "/kitchen", "type": "table.gone", "data": {"table": 7}}
WEBHOOKS = {"scheme": "standard-webhooks", "secrets": ["env:S"]}
BROKER = {"scheme": "broker-user", "users": ["kitchen"]}
COVERS = ["specversion", "id", "source", "type", "subject"]
COVERING = {"scheme": "hmac", "secrets": ["env:S"], "header": "x-sig", "covers": COVERS}
ENVIRONMENT = {"S": "a-secret-that-we-made-up-for-this"}


def verify(config: dict[str, Any]) -> Any:
    return TypeAdapter(Verify).validate_python(config)


def read(
    body: Any,
    headers: dict[str, str] | None = None,
    media: str = STRUCTURED,
    scheme: dict[str, Any] = WEBHOOKS,
    percent: bool = False,
    **config: Any,
) -> Event | Misfit:
    """The event of one delivery, whose signature is taken for valid."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    pairs = header_pairs({"content-type": media, **(headers or {})})
    source = Source.model_validate({"verify": scheme, "route": {"session": "s1"}, **config})
    content = read_content(source.verify, pairs, raw, media, percent=percent)
    verified = Verified("w1", None, "d" * 64, principal="kitchen" if scheme is BROKER else None)
    return interpret("k", source, verified, content.body, claims_of(content.headers), now=NOW, cloud=content.event)


def binary(**attributes: str) -> dict[str, str]:
    return {f"ce-{name}": value for name, value in {**EVENT, **attributes}.items() if name != "data" and value}


def test_a_structured_event_gives_id_type_and_data_from_the_signed_body() -> None:
    event = read(EVENT)
    assert isinstance(event, Event)
    assert (event.event, event.type, event.data) == ("e1", "table.gone", {"table": 7})


def test_source_and_id_together_identify_a_cloudevent_whatever_id_the_scheme_has() -> None:
    one, other = read(EVENT), read({**EVENT, "source": "/bar"})
    assert isinstance(one, Event)
    assert one.id == identity("k", structured(EVENT))
    assert isinstance(other, Event)
    assert one.id != other.id


def test_the_same_bytes_under_another_media_type_are_the_same_event() -> None:
    one, other = read(EVENT), read(EVENT, media="application/json")
    assert isinstance(one, Event)
    assert isinstance(other, Event)
    assert (one.id, one.mark) == (other.id, other.mark)


def test_one_event_in_both_modes_is_one_event() -> None:
    one, other = read(EVENT, scheme=BROKER), read(EVENT["data"], binary(), "application/json", BROKER)
    assert isinstance(one, Event)
    assert isinstance(other, Event)
    assert (one.id, one.mark) == (other.id, other.mark)


def test_attributes_may_be_used_in_templates() -> None:
    body = {**EVENT, "subject": "table/7", "time": "2026-11-30T10:00:00Z", "partition": 3}
    event = read(body, types={"table.gone": {"subject": "{{ ce.subject }}", "sequence": "{{ ce.time }}"}})
    assert isinstance(event, Event)
    assert (event.subject, event.sequence) == ("table/7", "2026-11-30T10:00:00Z")
    typed = read(body, type="{{ ce.type }}.{{ ce.partition }}")
    assert isinstance(typed, Event)
    assert typed.type == "table.gone.3"


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents:", "cloudEvents_"])
def test_the_broker_vouches_for_attributes_in_headers_of_each_binding(prefix: str) -> None:
    headers = {name.replace("ce-", prefix): value for name, value in binary().items()}
    event = read({"table": 7}, headers, "application/json", BROKER)
    assert isinstance(event, Event)
    assert (event.event, event.type, event.data) == ("e1", "table.gone", {"table": 7})


def test_attributes_outside_the_signature_are_compared_and_never_used() -> None:
    alone = read({"table": 7}, binary(id="w1"), "application/json")
    assert isinstance(alone, Event)
    assert (alone.event, alone.type) == ("w1", "")
    beside = read(EVENT, binary(source="/elsewhere"))
    assert isinstance(beside, Misfit)
    assert beside.reason == "source_disagrees"


def test_claims_of_identity_are_dropped_in_both_modes() -> None:
    claims = {"authid": "root", "authtype": "user", "turnkeeperorigin": "user"}
    for event in (
        read({**EVENT, **claims}, route={"session": "{{ ce.authid | default('s1') }}"}),
        read({}, binary(**claims), "application/json", BROKER, route={"session": "{{ ce.authid | default('s1') }}"}),
    ):
        assert isinstance(event, Event)
        assert event.session == "s1"


def test_values_over_http_are_percent_decoded_and_unquoted() -> None:
    headers = binary(subject='"a \\"b\\" %E2%82%AC"') | {"ce-id": "%65%31"}
    beside = read({**EVENT, "subject": 'a "b" €'}, headers, percent=True)
    assert isinstance(beside, Event)


@pytest.mark.parametrize(
    "content, media, data",
    [
        ({"data_base64": "eyJ0YWJsZSI6N30="}, None, {"table": 7}),
        ({"data_base64": "aGk=", "datacontenttype": "text/plain"}, None, "hi"),
        ({"data_base64": "/w==", "datacontenttype": "application/octet-stream"}, None, {"base64": "/w=="}),
        ({"data": "<a/>", "datacontenttype": "application/xml"}, None, "<a/>"),
        ({"data": None}, None, None),
        ({}, None, {}),
    ],
)
def test_data_is_read_by_its_content_type(content: dict[str, Any], media: Any, data: Any) -> None:
    event = read({**{name: value for name, value in EVENT.items() if name != "data"}, **content})
    assert isinstance(event, Event)
    assert event.data == data


@pytest.mark.parametrize(
    "change, says",
    [
        ({"specversion": "0.3"}, "specversion is not 1.0"),
        ({"id": ""}, "id missing"),
        ({"source": None}, "source missing"),
        ({"type": "x" * 257}, "256 bytes"),
        ({"source": "not a uri"}, "source is no URI reference"),
        ({"time": "yesterday"}, "time is no RFC 3339 time"),
        ({"subject": ""}, "subject is a text"),
        ({"subject": "a\x00b"}, "subject is no text"),
        ({"dataschema": "relative"}, "dataschema is no absolute URI"),
        ({"datacontenttype": "json"}, "datacontenttype is no media type"),
        ({"Upper": "x"}, "lower-case letters"),
        ({"a\n": "x"}, "lower-case letters"),
        ({"nested": {"a": 1}}, "nested is no text"),
        ({"number": 2**31}, "number is no text"),
        ({"number": 1.5}, "number is no text"),
        ({"data_base64": "eA=="}, "exclude each other"),
        ({"data": None, "data_base64": "?"}, "exclude each other"),
    ],
)
def test_a_refused_one_says_why(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Malformed, match=says):
        read({**EVENT, **change})


@pytest.mark.parametrize("media", ["application/cloudevents-batch+json", "application/cloudevents+avro"])
def test_batches_and_other_formats_are_refused_by_name(media: str) -> None:
    with pytest.raises(Malformed, match="one at a time"):
        read([EVENT], media=media)


@pytest.mark.parametrize("body", [[], "text", {"type": "x"}])
def test_what_the_media_type_promises_must_be_there(body: Any) -> None:
    with pytest.raises(Malformed, match="no CloudEvent"):
        read(body)


def test_a_binary_event_that_is_vouched_for_must_be_whole_and_say_one_thing() -> None:
    with pytest.raises(Malformed, match="type missing"):
        read({}, binary(type=""), "application/json", BROKER)
    with pytest.raises(Malformed, match="twice"):
        read({}, {**binary(), "cloudEvents:id": "e2"}, "application/json", BROKER)


def covered(headers: dict[str, str], body: bytes) -> bool:
    """Whether a source that signs attributes believes this delivery."""
    verifier, faults = build_verifier(verify(COVERING), lambda _: ENVIRONMENT["S"])
    assert faults == []
    assert verifier is not None
    return isinstance(check(verifier, header_pairs(headers), body, now_ms=NOW, tolerance_seconds=None), Verified)


def genuine() -> tuple[dict[str, str], bytes]:
    source = Source.model_validate({"verify": COVERING, "route": {"session": "s1"}})
    sent = sign_event("k", source, ENVIRONMENT, event="é 1", type="table.gone", data={"table": 7}, seconds=1)
    return dict(sent.headers), sent.body


def test_attributes_that_a_source_signs_are_believed() -> None:
    headers, body = genuine()
    assert covered(headers, body)
    event = read(body, headers, "application/json", COVERING, percent=True)
    assert isinstance(event, Event)
    assert (event.event, event.type, event.data) == ("é 1", "table.gone", {"table": 7})


@pytest.mark.parametrize("name", ["content-type", "ce-id", "ce-source", "ce-type", "ce-specversion", "ce-subject"])
def test_no_signed_attribute_may_be_changed_added_removed_or_repeated(name: str) -> None:
    headers, body = genuine()
    assert covered(headers, body)
    assert not covered({**headers, name: "other"}, body)
    assert name == "ce-subject" or not covered({key: value for key, value in headers.items() if key != name}, body)
    verifier, _ = build_verifier(verify(COVERING), lambda _: ENVIRONMENT["S"])
    assert verifier is not None
    twice = [*header_pairs(headers), (name.encode(), headers.get(name, "x").encode())]
    twice += [twice[-1]] if name == "ce-subject" else []
    assert not isinstance(check(verifier, twice, body, now_ms=NOW, tolerance_seconds=None), Verified)


def test_a_captured_delivery_is_the_same_event_over_each_door_and_with_headers_added() -> None:
    headers, body = genuine()
    first = read(body, headers, "application/json", COVERING, percent=True)
    assert isinstance(first, Event)
    for more, percent in (({}, False), ({"cloudEvents:subject": "x"}, True), ({"ce-time": "x"}, True)):
        again = read(body, {**headers, **more}, STRUCTURED, COVERING, percent) if not more else read(
            body, {**headers, **more}, "application/json", COVERING, percent
        )  # fmt: skip
        found = again.event if isinstance(again, Misfit) else again
        assert (found.id, found.mark) == (first.id, first.mark)


@pytest.mark.parametrize(
    "covers, says",
    [
        (["id", "source", "type"], "specversion"),
        ([*COVERS, "Bad"], "lower case"),
        ([*COVERS, "id"], "each once"),
    ],
)
def test_a_source_that_signs_too_few_attributes_does_not_start(covers: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Hmac.model_validate({**COVERING, "covers": covers})


TEXTS = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Zs", "Cf", "Cn", "Co")), min_size=1, max_size=40
)
SDK_EVENTS = st.builds(
    lambda id, type, subject, table: SdkEvent(
        {"id": id, "source": "/kitchen", "type": type, "subject": subject, "datacontenttype": "application/json",
         "time": datetime(2026, 11, 30, tzinfo=UTC)},
        {"table": table},
    ),
    TEXTS, TEXTS, TEXTS, st.integers(0, 99),
)  # fmt: skip


@given(SDK_EVENTS)
def test_what_the_official_sdk_writes_is_read_in_each_mode_as_one_event(event: SdkEvent) -> None:
    over_http, whole = sdk_http.to_binary_event(event), sdk_http.to_structured_event(event)
    over_amqp = sdk_rabbitmq.to_binary_event(event)
    found = [
        read(whole.body, dict(whole.headers), STRUCTURED, BROKER),
        read(over_http.body, dict(over_http.headers), "application/json", BROKER, percent=True),
        read(over_amqp.body, dict(over_amqp.headers), "application/json", BROKER),
    ]
    assert {(one.id, one.mark) for one in found if isinstance(one, Event)} == {(found[0].id, found[0].mark)}  # type: ignore[union-attr]
    assert all(isinstance(one, Event) and one.event == event.get_id() for one in found)


def test_the_official_sdk_reads_a_notice() -> None:
    envelope = {"id": "a" * 32, "session": "dinner", "at": NOW, "trace": "00-1-2-01"}
    attributes = notice_attributes(envelope, "question", "tests")
    message = sdk_rabbitmq.RabbitMQMessage(
        {f"ce-{name}": value for name, value in attributes.items()}, "application/json", json.dumps(envelope).encode()
    )
    event = sdk_rabbitmq.from_rabbitmq_event(message)
    assert (event.get_id(), event.get_source(), event.get_subject()) == ("a" * 32, "/tests", "dinner")
    assert event.get_type() == f"{NOTICE_TYPE}.question.v1"
    assert event.get_time() == datetime.fromtimestamp(NOW / 1000, UTC)
    assert structured({**attributes, "data": envelope}).attributes == attributes, "and so do we"

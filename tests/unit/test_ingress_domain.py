"""What a verified delivery is: identity, type, subject, route, and whether its envelope tells the truth."""

from typing import Any

import pytest

from libs.contracts.application import Source
from libs.contracts.canonical import digest
from libs.contracts.ids import derive_id
from services.ingress.domain import Event, Misfit, claims_of, interpret, out_of_time, released, user_input
from services.ingress.schemes import Verified
from services.ingress.strict_json import Malformed

NOW = 1_800_000_000_000
DIGEST = "d" * 64


def source(**fields: Any) -> Source:
    given: dict[str, Any] = {
        "verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]},
        "route": {"subject": "reservation:{{ data.reservation }}"},
        "unrouted": {"hold": "10m"},
    }
    return Source.model_validate(given | fields)


def hmac(**fields: Any) -> dict[str, Any]:
    return {"scheme": "hmac", "secrets": ["env:S"], "header": "x-sig", **fields}


def read(body: Any, verified: Verified | None = None, headers: dict[str, str] | None = None, **config: Any) -> Any:
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    verified = verified or Verified("e1", NOW // 1000, DIGEST)
    return interpret("restaurant", source(**config), verified, body, claims_of(pairs), now=NOW)


BODY = {"type": "table.gone", "data": {"reservation": "r1"}}


def test_an_event_is_identified_by_source_and_signed_id() -> None:
    event = read(BODY)
    assert event.id == derive_id("event", "restaurant", "e1")
    assert (event.event, event.mark, event.digest) == ("e1", DIGEST[:32], DIGEST)


def test_a_source_that_signs_the_body_alone_is_identified_by_the_body() -> None:
    event = read(BODY, Verified("unsigned", None, DIGEST, id_is_signed=False), verify=hmac(id_header="x-id"))
    assert event.id == derive_id("body", "restaurant", DIGEST)
    assert event.by_body
    assert event.mark == digest("unsigned")[:32]


def test_an_id_inside_the_body_is_signed_with_it() -> None:
    event = read({"id": "evt_9", **BODY}, Verified(None, None, DIGEST), verify=hmac(id="{{ id }}"))
    assert event.id == derive_id("event", "restaurant", "evt_9")


@pytest.mark.parametrize("body", [{"data": {}}, {"id": "", "data": {}}, {"id": "x" * 257}, {"id": "a\nb"}, [], "text"])
def test_an_event_without_a_usable_id_is_malformed(body: Any) -> None:
    with pytest.raises(Malformed):
        read(body, Verified(None, None, DIGEST), verify=hmac(id="{{ id }}"))


def test_type_subject_and_route_come_from_the_signed_body() -> None:
    event = read(BODY, types={"table.gone": {"subject": "table:{{ data.reservation }}", "gone": True}})
    assert (event.type, event.subject, event.route_subject, event.session) == (
        "table.gone",
        "table:r1",
        "reservation:r1",
        "",
    )


def test_the_route_is_the_subject_where_the_type_has_none_of_its_own() -> None:
    assert read(BODY).subject == "reservation:r1"


def test_an_event_may_name_its_session() -> None:
    event = read({"data": {"session": "s7"}}, route={"session": "{{ data.session }}"})
    assert (event.session, event.route_subject, event.subject) == ("s7", "", "")


def test_the_data_is_the_body_where_it_has_no_object_of_that_name() -> None:
    assert read({"reservation": "r1", "data": "text"}, route={"session": "s1"}).data == {
        "reservation": "r1",
        "data": "text",
    }


@pytest.mark.parametrize("key", ["self", "name", "template", "source", "type"])
def test_no_key_of_a_body_breaks_a_template(key: str) -> None:
    event = read({key: "x", "data": {"reservation": "r1"}})
    assert isinstance(event, Event)


@pytest.mark.parametrize(
    "body, config, reason",
    [
        ({"data": {}}, {}, "no_route"),
        ({"data": {"session": "a.b"}}, {"route": {"session": "{{ data.session }}"}}, "no_route"),
        ({"data": {"session": "a}b"}}, {"route": {"session": "{{ data.session }}"}}, "no_route"),
        ({"data": {"reservation": "x" * 300}}, {}, "no_route"),
        (BODY, {"types": {"table.gone": {"subject": "t:{{ data.table }}"}}}, "no_subject"),
        (BODY, {"types": {"table.gone": {"sequence": "{{ data.version }}"}}}, "no_sequence"),
        (BODY, {"types": {"table.*": {"sequence": "7", "stream": "{{ data.stream }}"}}}, "no_sequence"),
    ],
)
def test_an_event_whose_data_does_not_say_where_it_belongs_is_a_misfit(body: Any, config: Any, reason: str) -> None:
    found = read(body, **config)
    assert isinstance(found, Misfit)
    assert found.reason == reason


@pytest.mark.parametrize(
    "version, sequence",
    [(7, "7"), (1.5, "1.5"), (10**18, str(10**18)), ("2026-11-30T10:00:00Z", "2026-11-30T10:00:00Z"), ("", "")],
)
def test_the_place_in_the_order_comes_from_the_signed_body(version: Any, sequence: str) -> None:
    body = {"type": "table.gone", "data": {"reservation": "r1", "version": version, "part": "seats"}}
    order = {"sequence": "{{ data.version }}", "stream": "{{ data.part }}"}
    event = read(body, types={"table.gone": order})
    assert (event.subject, event.sequence, event.stream) == ("reservation:r1", sequence, "seats")
    assert Event.unpack(event.pack()) == event
    released_again = released(event, "q1", now=NOW + 1)
    assert (released_again.sequence, released_again.stream) == (sequence, "seats")


@pytest.mark.parametrize("version", [None, True, [], {}, ["7"], "x" * 257, "a\nb"])
def test_what_is_no_place_in_an_order_is_a_misfit(version: Any) -> None:
    body = {"type": "table.gone", "data": {"reservation": "r1", "version": version}}
    found = read(body, types={"table.gone": {"sequence": "{{ data.version }}"}})
    assert isinstance(found, Misfit)
    assert found.reason == "no_sequence"
    assert found.event.sequence == ""


def test_a_sequence_from_outside_the_signature_is_not_believed() -> None:
    body = {"type": "table.gone", "data": {"reservation": "r1"}}
    order = {"sequence": "{{ data.version | default('') }}"}
    assert read(body, headers={"ce-sequence": "9"}, types={"table.gone": order}).sequence == ""


@pytest.mark.parametrize(
    "headers, reason",
    [
        ({"ce-id": "other"}, "id_disagrees"),
        ({"ce-type": "offer"}, "type_disagrees"),
        ({"cloudevents:type": "offer"}, "type_disagrees"),
        ({"cloudevents_type": "offer"}, "type_disagrees"),
    ],
)
def test_an_envelope_that_contradicts_the_signed_content_is_a_misfit(headers: dict[str, str], reason: str) -> None:
    found = read(BODY, headers=headers)
    assert isinstance(found, Misfit)
    assert found.reason == reason


def test_an_envelope_that_agrees_or_says_more_is_no_misfit() -> None:
    agreeing = {"ce-id": "e1", "ce-type": "table.gone", "ce-source": "/somewhere", "ce-authid": "root"}
    assert isinstance(read(BODY, headers=agreeing), Event)
    untyped = read({"data": {"reservation": "r1"}}, headers={"ce-type": "offer"})
    assert untyped.type == "", "what is not signed is not believed"


def test_identity_attributes_from_outside_are_dropped() -> None:
    body = {"specversion": "1.0", "authid": "root", "authtype": "user", "turnkeeperorigin": "user", "reservation": "r1"}
    assert read(body, route={"session": "s1"}).data == {"specversion": "1.0", "reservation": "r1"}


def test_a_broker_user_is_the_principal_and_its_whole_message_is_vouched_for() -> None:
    verified = Verified(None, None, DIGEST, principal="billing")
    broker = {"scheme": "broker-user", "users": ["billing"]}
    event = read({"data": {"reservation": "r1"}}, verified, {"ce-id": "m1", "ce-type": "paid"}, verify=broker)
    assert (event.event, event.type, event.origin.principal) == ("m1", "paid", "billing")
    structured = {"specversion": "1.0", "id": "m2", "type": "paid", "data": {"reservation": "r1"}}
    assert read(structured, verified, verify=broker).event == "m2"


def test_the_origin_is_the_verified_source_whatever_the_body_says() -> None:
    event = read({**BODY, "origin": {"kind": "user"}, "role": "user"})
    assert event.origin.model_dump() == {
        "kind": "webhook",
        "source": "restaurant",
        "principal": "restaurant",
        "verified": "standard-webhooks",
        "written_by": "",
    }


@pytest.mark.parametrize("age, late", [(0, ""), (100, ""), (101, "too_old"), (-10, ""), (-11, "from_the_future")])
def test_what_the_broker_kept_has_the_window_for_its_past_and_the_tolerance_for_its_future(age: int, late: str) -> None:
    verified = Verified("e1", NOW // 1000 - age, DIGEST)
    assert out_of_time(verified, now=NOW, past_seconds=100, future_seconds=10) == late


def test_a_users_message_is_identified_by_user_session_and_key() -> None:
    def of(user: str = "ana", session: str = "s1", key: str = "k1", text: str = "hi") -> Event:
        return user_input("message", "app", user, session, key, {"text": text}, now=NOW, window_ms=1)

    assert of().id == derive_id("message", "app", "ana", "s1", "k1")
    assert len({of().id, of(user="bob").id, of(session="s2").id, of(key="k2").id}) == 4
    assert of(text="ho").id == of().id
    assert of(text="ho").mark != of().mark
    assert of().digest == digest({"text": "hi"})


def test_a_released_event_is_an_event_of_its_own_with_the_old_origin() -> None:
    event = read(BODY)
    let_in = released(event, "q1", now=NOW + 5, session="s9")
    assert let_in.id not in (event.id, released(event, "q2", now=NOW).id)
    assert (let_in.session, let_in.route_subject, let_in.accepted_at) == ("s9", "", NOW + 5)
    assert let_in.origin == event.origin
    assert released(event, "q1", now=NOW).route_subject == "reservation:r1"

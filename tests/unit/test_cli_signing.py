"""What the client signs, the verifiers of ingress accept; nothing else."""

import base64
from typing import Any

import jwt
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.application import BrokerUser, Hmac, Source, StandardWebhooks, UserToken
from libs.contracts.application import Route as Routed
from services.ingress.schemes import Verified, check, header_pairs
from services.ingress.schemes.build import build_verifier
from turnkeeper.signing import SigningError, sign_event, user_token

NOW = 1_800_000_000
WHSEC = "whsec_" + base64.b64encode(b"w" * 32).decode()
ENVIRONMENT = {"WEBHOOK": WHSEC, "HEX": "ab" * 32, "BASE64": base64.b64encode(b"k" * 32).decode(), "TEXT": "a secret"}
ROUTE = Routed(session="{{ data.session }}")


def source(verify: Any) -> Source:
    return Source(verify=verify, route=ROUTE)


def keyed(**parts: Any) -> Source:
    return source(Hmac(scheme="hmac", secrets=("env:HEX",), header="X-Signature", **parts))


SOURCES = {
    "standard-webhooks": source(StandardWebhooks(scheme="standard-webhooks", secrets=("env:WEBHOOK",))),
    "id and time signed": keyed(
        signed="{id}.{timestamp}.{body}", id_header="X-Id", timestamp_header="X-Time", prefix="sha256="
    ),
    "id in the body": keyed(signed="v0:{timestamp}:{body}", timestamp_header="X-Time", prefix="v0=", id="{{ id }}"),
    "hex key, sha512, base64": keyed(
        signed="{body}{id}", id_header="X-Id", secret_encoding="hex", algorithm="sha512", encoding="base64"
    ),
    "id outside the signature": keyed(id_header="X-Id"),
}


def sign(source: Source, event: str = "evt_1", data: Any = None, **more: Any) -> Any:
    environment = more.pop("environment", ENVIRONMENT)
    fields = {"event": event, "type": "table.gone", "data": data or {"session": "s1"}, "seconds": NOW, **more}
    return sign_event("restaurant", source, environment, **fields)


def verdict(source: Source, outward: Any, body: bytes | None = None) -> Any:
    verifier, faults = build_verifier(source.verify, lambda reference: ENVIRONMENT[reference.partition(":")[2]])
    assert verifier is not None, faults
    headers = header_pairs([(name.encode(), value.encode()) for name, value in outward.headers.items()])
    signed = outward.body if body is None else body
    return check(verifier, headers, signed, now_ms=NOW * 1000, tolerance_seconds=300)


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_signed_is_accepted(name: str) -> None:
    assert isinstance(verdict(SOURCES[name], sign(SOURCES[name])), Verified)


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_changed_after_signing_is_not_accepted(name: str) -> None:
    outward = sign(SOURCES[name])
    assert not isinstance(verdict(SOURCES[name], outward, outward.body + b" "), Verified)


@given(data=st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers(-(2**50), 2**50), max_size=4))
def test_any_data_can_be_signed(data: dict[str, Any]) -> None:
    for chosen in SOURCES.values():
        assert isinstance(verdict(chosen, sign(chosen, data={"session": "s1", **data})), Verified)


def test_the_body_names_type_and_data_and_the_id_where_the_scheme_reads_it() -> None:
    assert orjson.loads(sign(SOURCES["standard-webhooks"]).body) == {"type": "table.gone", "data": {"session": "s1"}}
    assert orjson.loads(sign(SOURCES["id in the body"]).body)["id"] == "evt_1"


def test_another_id_on_captured_bytes_breaks_the_signature() -> None:
    chosen = SOURCES["standard-webhooks"]
    assert not isinstance(verdict(chosen, sign(chosen).with_id("webhook-id", "evt_2")), Verified)


def test_an_id_that_the_source_would_read_elsewhere_is_told() -> None:
    elsewhere = keyed(id="{{ data.number }}")
    with pytest.raises(SigningError, match=r"reads its event id as .*--data"):
        sign(elsewhere)
    with pytest.raises(SigningError, match="give that as --id"):
        sign(elsewhere, data={"number": "n7"})
    assert sign(elsewhere, event="n7", data={"number": "n7"}).event == "n7"


def test_a_missing_secret_is_named_and_users_do_not_sign() -> None:
    with pytest.raises(SigningError, match="HEX is not set"):
        sign(SOURCES["id in the body"], environment={})
    with pytest.raises(SigningError, match="turnkeeper say"):
        sign(Source(verify=UserToken(scheme="user-token")))


def test_the_broker_vouches_without_a_signature() -> None:
    outward = sign(source(BrokerUser(scheme="broker-user", users=("till",))))
    assert outward.headers["ce-id"] == "evt_1"
    assert "signature" not in str(outward.headers)


def test_a_users_token_is_short_lived_and_names_the_user() -> None:
    unchecked = {"verify_exp": False, "verify_iat": False}
    claims = jwt.decode(user_token("s" * 32, "ana", NOW), "s" * 32, ["HS256"], options=unchecked)
    assert claims == {"sub": "ana", "iat": NOW, "exp": NOW + 600}

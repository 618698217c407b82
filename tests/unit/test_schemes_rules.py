"""Rules of verification beyond the vectors."""

import base64
import hashlib
import hmac

import pytest

from libs.contracts.application import BrokerUser, Hmac, StandardWebhooks, UserToken
from services.ingress.schemes import Refusal, Verified, Verifier, build_verifier, check, header_pairs
from services.ingress.schemes.base import Headers
from tests.support.webhooks import sign_webhook

NEW = "whsec_" + base64.b64encode(b"n" * 32).decode()
OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()
NOW = 1_800_000_000
BODY = b'{"a": 1}'


def webhooks(*secrets: str) -> Verifier:
    names = {f"env:S{index}": secret for index, secret in enumerate(secrets)}
    verifier, faults = build_verifier(
        StandardWebhooks(scheme="standard-webhooks", secrets=tuple(names)), names.__getitem__
    )
    assert verifier, faults
    return verifier


def keyed(secret: str = "an-invented-secret", **config: object) -> tuple[Verifier | None, list[str]]:
    model = Hmac.model_validate({"scheme": "hmac", "secrets": ["env:S"], "header": "X-Sig", "id": "{{ id }}", **config})
    return build_verifier(model, lambda _: secret)


def ask(verifier: Verifier, headers: dict[str, str] | Headers, body: bytes = BODY, now: int = NOW) -> object:
    pairs = headers.items() if isinstance(headers, dict) else headers
    wire = [(n.encode() if isinstance(n, str) else n, v.encode() if isinstance(v, str) else v) for n, v in pairs]
    return check(verifier, header_pairs(wire), body, now_ms=now * 1000 + 999, tolerance_seconds=300)


@pytest.mark.parametrize("age", [-300, 0, 300])
def test_the_tolerance_is_inclusive_both_ways(age: int) -> None:
    assert isinstance(ask(webhooks(NEW), sign_webhook(NEW, "e1", NOW - age, BODY)), Verified)


@pytest.mark.parametrize("age", [-301, 301])
def test_a_second_beyond_the_tolerance_is_a_refusal_of_time(age: int) -> None:
    assert ask(webhooks(NEW), sign_webhook(NEW, "e1", NOW - age, BODY)) is Refusal.TIME


def test_a_forged_old_message_is_a_refusal_of_the_signature() -> None:
    assert ask(webhooks(NEW), sign_webhook(OLD, "e1", NOW - 9999, BODY)) is Refusal.SIGNATURE


@pytest.mark.parametrize("body", [b'{"a":1}', b'{ "a": 1 }', b'{"a": 1.0}', b'{"a": 1, "a": 1}'])
def test_the_signature_is_over_the_raw_bytes_and_not_over_what_they_say(body: bytes) -> None:
    assert ask(webhooks(NEW), sign_webhook(NEW, "e1", NOW, BODY), body) is Refusal.SIGNATURE
    assert isinstance(ask(webhooks(NEW), sign_webhook(NEW, "e1", NOW, body), body), Verified)


def test_milliseconds_are_not_taken_for_seconds() -> None:
    assert ask(webhooks(NEW), sign_webhook(NEW, "e1", NOW * 1000, BODY)) is Refusal.TIME


def test_either_secret_of_a_rotation_verifies_and_a_retired_one_does_not() -> None:
    headers = sign_webhook(OLD, "e1", NOW, BODY)
    assert isinstance(ask(webhooks(NEW, OLD), headers), Verified)
    assert ask(webhooks(NEW), headers) is Refusal.SIGNATURE


def test_several_signatures_in_one_header_are_tried() -> None:
    old, new = sign_webhook(OLD, "e1", NOW, BODY), sign_webhook(NEW, "e1", NOW, BODY)
    both = {**new, "webhook-signature": old["webhook-signature"] + " v2,xyz nocomma " + new["webhook-signature"]}
    assert isinstance(ask(webhooks(NEW), both), Verified)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_repeated_security_header_is_refused(name: str) -> None:
    headers = list(sign_webhook(NEW, "e1", NOW, BODY).items())
    twice = [*headers, (name.upper(), dict(headers)[name])]
    assert ask(webhooks(NEW), [(n.encode(), v.encode()) for n, v in twice]) is Refusal.SIGNATURE


def test_an_id_with_the_separator_in_it_is_refused() -> None:
    assert ask(webhooks(NEW), sign_webhook(NEW, "e.1", NOW, BODY)) is Refusal.SIGNATURE


@pytest.mark.parametrize("change", [str.lower, lambda text: text.rstrip("="), lambda text: text + "="])
def test_only_the_canonical_text_of_a_signature_counts(change: object) -> None:
    headers = sign_webhook(NEW, "e1", NOW, BODY)
    headers["webhook-signature"] = "v1," + change(headers["webhook-signature"][3:])  # type: ignore[operator]
    assert ask(webhooks(NEW), headers) is Refusal.SIGNATURE


def test_any_exception_of_a_verifier_is_invalid() -> None:
    class Breaks:
        def verify(self, headers: Headers, body: bytes, publisher: str | None) -> Verified | None:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")

    assert ask(Breaks(), {}) is Refusal.SIGNATURE


def test_the_id_and_the_digest_are_those_of_the_signed_bytes() -> None:
    verified = ask(webhooks(NEW), sign_webhook(NEW, "e1", NOW, BODY))
    assert verified == Verified("e1", NOW, hashlib.sha256(BODY).hexdigest())


def test_every_bad_secret_is_named_by_its_place_and_never_shown() -> None:
    names = {"env:A": NEW, "env:B": "whsec_c2hvcnQ=", "env:C": "v1," + OLD}
    verifier, faults = build_verifier(
        StandardWebhooks(scheme="standard-webhooks", secrets=tuple(names)), names.__getitem__
    )
    assert verifier is None
    assert [fault.partition(":")[0] for fault in faults] == ["secrets", "secrets"]
    assert "number 2" in faults[0]
    assert "number 3" in faults[1]
    assert not any("c2hvcnQ" in fault or OLD in fault for fault in faults)


def test_hmac_with_a_signed_id_gives_that_id() -> None:
    verifier, faults = keyed(id=None, id_header="X-Id", signed="{id}:{body}")
    assert verifier, faults
    mac = hmac.new(b"an-invented-secret", b"e7:" + BODY, hashlib.sha256).hexdigest()
    verified = ask(verifier, {"X-Sig": mac, "X-Id": "e7"})
    assert isinstance(verified, Verified)
    assert (verified.event_id, verified.id_is_signed) == ("e7", True)


def test_hmac_refuses_an_id_that_holds_its_separator() -> None:
    verifier, _ = keyed(id=None, id_header="X-Id", signed="{id}:{body}")
    mac = hmac.new(b"an-invented-secret", b"e:7:" + BODY, hashlib.sha256).hexdigest()
    assert verifier
    assert ask(verifier, {"X-Sig": mac, "X-Id": "e:7"}) is Refusal.SIGNATURE


def test_hmac_over_the_body_alone_says_that_its_id_is_not_signed() -> None:
    verifier, _ = keyed(id=None, id_header="X-Id")
    mac = hmac.new(b"an-invented-secret", BODY, hashlib.sha256).hexdigest()
    assert verifier
    verified = ask(verifier, {"X-Sig": mac, "X-Id": "e8"})
    assert isinstance(verified, Verified)
    assert not verified.id_is_signed


@pytest.mark.parametrize(
    "config, field",
    [
        ({"signed": "{body}{x}"}, "signed"),
        ({"id": None, "id_header": "X-Id", "signed": "{id}{body}"}, "signed"),
        ({"signed": "{body}.{body}"}, "signed"),
        ({"secret_encoding": "hex"}, "secrets"),
    ],
)
def test_an_hmac_that_cannot_be_safe_stops_the_start(config: dict[str, object], field: str) -> None:
    verifier, faults = keyed(**config)
    assert verifier is None
    assert faults[0].startswith(f"{field}: ")
    assert "an-invented-secret" not in str(faults)


@pytest.mark.parametrize(
    "encoding, short, enough",
    [
        ("text", "fifteen-bytes!!", "sixteen-bytes!!!"),
        ("hex", "ab" * 15, "ab" * 16),
        ("base64", base64.b64encode(b"k" * 15).decode(), base64.b64encode(b"k" * 16).decode()),
        ("text", " " * 40, "an-invented-secret"),
    ],
)
def test_a_short_hmac_secret_stops_the_start_in_every_encoding(encoding: str, short: str, enough: str) -> None:
    verifier, faults = keyed(short, secret_encoding=encoding)
    assert verifier is None
    assert faults[0].startswith("secrets: ")
    assert "16 bytes" in faults[0]
    assert short not in faults[0]
    assert keyed(enough, secret_encoding=encoding)[1] == []


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "sha1"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_hmac_does_what_is_configured_and_nothing_else(algorithm: str, encoding: str) -> None:
    verifier, _ = keyed(algorithm=algorithm, encoding=encoding, prefix="x=")
    mac = hmac.new(b"an-invented-secret", BODY, algorithm).digest()
    assert verifier
    as_hex, as_base64 = mac.hex(), base64.b64encode(mac).decode()
    assert isinstance(ask(verifier, {"x-sig": "x=" + (as_hex if encoding == "hex" else as_base64)}), Verified)
    assert ask(verifier, {"x-sig": "x=" + (as_base64 if encoding == "hex" else as_hex)}) is Refusal.SIGNATURE
    assert ask(verifier, {"x-sig": as_hex if encoding == "hex" else as_base64}) is Refusal.SIGNATURE
    assert ask(verifier, {"x-sig": "x=" + as_hex.upper()}) is Refusal.SIGNATURE


def test_a_broker_user_is_believed_only_when_the_broker_says_who_it_is() -> None:
    verifier, _ = build_verifier(BrokerUser(scheme="broker-user", users=("billing",)), str)
    assert verifier
    assert check(verifier, [], BODY, now_ms=0, tolerance_seconds=None, publisher="other") is Refusal.SIGNATURE
    assert check(verifier, [], BODY, now_ms=0, tolerance_seconds=None, publisher=None) is Refusal.SIGNATURE
    verified = check(verifier, [], BODY, now_ms=0, tolerance_seconds=None, publisher="billing")
    assert isinstance(verified, Verified)
    assert verified.principal == "billing"


def test_a_user_source_has_no_verifier_of_events() -> None:
    assert build_verifier(UserToken(scheme="user-token"), str) == (None, [])


def test_amqp_headers_may_be_text_bytes_or_whole_numbers() -> None:
    pairs = header_pairs({"Webhook-Id": "e1", "b": b"\xff", "n": 5, "yes": True, "list": [1]})
    assert pairs == [(b"webhook-id", b"e1"), (b"b", b"\xff"), (b"n", b"5")]

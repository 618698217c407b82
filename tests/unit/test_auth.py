"""Tokens of users and operators."""

import asyncio
import hashlib
import json
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from libs.runtime.auth import Jwks, Operators, UserTokens
from libs.runtime.problems import Problem

SECRET = "an-invented-shared-secret-of-40-bytes-xxx"
NOW = 1_800_000_000


class FixedClock:
    def now_ms(self) -> int:
        return NOW * 1000


def token(claims: dict[str, Any] | None = None, key: Any = SECRET, algorithm: str = "HS256", **headers: Any) -> str:
    claims = {"sub": "ana", "exp": NOW + 60} if claims is None else claims
    return "Bearer " + jwt.encode(claims, key, algorithm=algorithm, headers=headers or None)


def shared() -> UserTokens:
    return UserTokens(SECRET, None, FixedClock())


async def refused(tokens: UserTokens, authorization: str | None) -> int:
    with pytest.raises(Problem) as caught:
        await tokens.user(authorization)
    return caught.value.status


async def test_a_signed_token_names_its_user() -> None:
    assert await shared().user(token()) == "ana"


async def test_the_scheme_name_is_case_insensitive() -> None:
    assert await shared().user(token().replace("Bearer", "bearer")) == "ana"


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "ana"},
        {"exp": NOW + 60},
        {"sub": "ana", "exp": NOW - 60},
        {"sub": "ana", "exp": True},
        {"sub": "ana", "exp": NOW + 60, "nbf": NOW + 30},
        {"sub": "a}b", "exp": NOW + 60},
        {"sub": "", "exp": NOW + 60},
        {"sub": "ana", "exp": NOW + 60, "aud": "somebody-else"},
    ],
    ids=["no exp", "no sub", "expired", "exp no number", "not yet", "sub no id", "sub empty", "for another audience"],
)
async def test_claims_that_do_not_fit_are_refused(claims: dict[str, Any]) -> None:
    assert await refused(shared(), token(claims)) == 401


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer not-a-token", "Bearer a.b.c"])
async def test_what_is_no_bearer_token_is_refused(value: str | None) -> None:
    assert await refused(shared(), value) == 401


async def test_an_unsigned_token_is_refused() -> None:
    assert await refused(shared(), token(key=None, algorithm="none")) == 401


async def test_another_secret_is_refused() -> None:
    assert await refused(shared(), token(key=SECRET[::-1])) == 401


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
async def test_an_algorithm_outside_the_list_is_refused(algorithm: str) -> None:
    assert await refused(shared(), token(key=SECRET * 3, algorithm=algorithm)) == 401


def test_a_short_shared_secret_stops_the_start() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        UserTokens("short", None, FixedClock())


class KeyServer:
    """A JWKS behind httpx2's own mock transport; counts its requests."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.requests = 0
        self.fails = False

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        if self.fails:
            return httpx2.Response(500)
        return httpx2.Response(200, json={"keys": self.keys})

    def tokens(self, secret: str | None = None, refresh_seconds: float = 10.0) -> UserTokens:
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        keys = Jwks("https://keys.example/jwks", client=client, refresh_seconds=refresh_seconds)
        return UserTokens(secret, None, FixedClock(), keys)


RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def rsa_jwk(kid: str = "k1") -> dict[str, Any]:
    return {**json.loads(RSAAlgorithm.to_jwk(RSA_KEY.public_key())), "kid": kid, "use": "sig", "alg": "RS256"}


def ec_jwk(kid: str = "k2") -> dict[str, Any]:
    return {**json.loads(ECAlgorithm.to_jwk(EC_KEY.public_key())), "kid": kid}


async def test_a_key_of_the_set_verifies() -> None:
    tokens = KeyServer(rsa_jwk(), ec_jwk()).tokens()
    assert await tokens.user(token(key=RSA_KEY, algorithm="RS256", kid="k1")) == "ana"
    assert await tokens.user(token(key=EC_KEY, algorithm="ES256", kid="k2")) == "ana"


async def test_keys_are_fetched_once_for_many_at_the_same_time() -> None:
    server = KeyServer(rsa_jwk())
    tokens = server.tokens()
    one = token(key=RSA_KEY, algorithm="RS256", kid="k1")
    assert set(await asyncio.gather(*(tokens.user(one) for _ in range(20)))) == {"ana"}
    assert server.requests == 1


async def test_an_unknown_key_id_fetches_again_so_that_keys_can_rotate() -> None:
    server = KeyServer(rsa_jwk("old"))
    tokens = server.tokens(refresh_seconds=0.0)
    assert await tokens.user(token(key=RSA_KEY, algorithm="RS256", kid="old")) == "ana"
    server.keys = [rsa_jwk("new")]
    assert await tokens.user(token(key=RSA_KEY, algorithm="RS256", kid="new")) == "ana"
    assert server.requests == 2


async def test_invented_key_ids_do_not_become_a_flood_of_requests() -> None:
    server = KeyServer(rsa_jwk())
    tokens = server.tokens()
    for number in range(50):
        assert await refused(tokens, token(key=RSA_KEY, algorithm="RS256", kid=f"invented-{number}")) == 401
    assert server.requests <= 2


async def test_a_failed_fetch_leaves_the_old_keys_in_use() -> None:
    server = KeyServer(rsa_jwk())
    tokens = server.tokens(refresh_seconds=0.0)
    assert await tokens.user(token(key=RSA_KEY, algorithm="RS256", kid="k1")) == "ana"
    server.fails = True
    assert await refused(tokens, token(key=RSA_KEY, algorithm="RS256", kid="other")) == 401
    assert await tokens.user(token(key=RSA_KEY, algorithm="RS256", kid="k1")) == "ana"


async def test_without_any_key_the_answer_is_come_back_not_wrong() -> None:
    server = KeyServer()
    server.fails = True
    assert await refused(server.tokens(), token(key=RSA_KEY, algorithm="RS256", kid="k1")) == 503


async def test_a_public_key_is_never_a_shared_secret() -> None:
    pem = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    # PyJWT itself refuses to sign so; an attacker does it by hand.
    forged = _hs256_by_hand({"sub": "ana", "exp": NOW + 60}, pem)
    assert await refused(KeyServer(rsa_jwk()).tokens(), forged) == 401
    assert await refused(KeyServer(rsa_jwk()).tokens(SECRET), forged) == 401


async def test_a_token_without_key_id_needs_a_set_of_one_key() -> None:
    one = token(key=RSA_KEY, algorithm="RS256")
    assert await KeyServer(rsa_jwk()).tokens().user(one) == "ana"
    assert await refused(KeyServer(rsa_jwk("a"), rsa_jwk("b")).tokens(), one) == 401


def _hs256_by_hand(claims: dict[str, Any], key: bytes) -> str:
    import base64
    import hmac

    def part(raw: bytes) -> bytes:
        return base64.urlsafe_b64encode(raw).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "k1"}).encode())
    signed = head + b"." + part(json.dumps(claims).encode())
    return "Bearer " + (signed + b"." + part(hmac.new(key, signed, hashlib.sha256).digest())).decode()


def operators() -> Operators:
    reader = hashlib.sha256(b"read-token").hexdigest()
    admin = hashlib.sha256(b"admin-token").hexdigest()
    return Operators.parse(f"rob:read+release:{reader}, root:*:{admin}")


def test_an_operator_is_known_by_the_hash_of_the_token() -> None:
    assert operators().check("Bearer read-token", "read") == "rob"
    assert operators().check("Bearer admin-token", "sessions") == "root"


@pytest.mark.parametrize("value, status", [(None, 401), ("Bearer other", 401), ("Bearer read-token", 403)])
def test_an_operator_without_the_scope_is_refused(value: str | None, status: int) -> None:
    with pytest.raises(Problem) as caught:
        operators().check(value, "sessions")
    assert caught.value.status == status


def test_every_fault_in_the_operators_is_told_and_no_hash() -> None:
    with pytest.raises(ValueError) as caught:
        Operators.parse(f"a:read:xyz,b:fly:{'0' * 64},c d:read:{'1' * 64}")
    text = str(caught.value)
    assert "a:" in text
    assert "b:" in text
    assert "name" in text
    assert "xyz" not in text


def test_nobody_is_an_operator_when_none_is_configured() -> None:
    with pytest.raises(Problem):
        Operators.parse("").check("Bearer anything", "read")


@pytest.mark.parametrize("text", ["the-token-itself", "the-token-itself:read", "a:b:c:the-token-itself"])
def test_a_token_that_is_given_in_place_of_its_hash_is_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="number 1") as caught:
        Operators.parse(text)
    assert "the-token-itself" not in str(caught.value)

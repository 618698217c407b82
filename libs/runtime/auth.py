"""Who calls: users by their JWTs, operators by configured tokens.

A token's algorithm is never taken from the token: HS256 goes to the shared secret only, asymmetric algorithms to the
JWKS only, so that a public key can never be used as a shared secret (RFC 8725, section 2.1).
"""

import asyncio
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2
import jwt
import structlog
from jwt import PyJWK

from libs.contracts.ids import is_slug
from libs.runtime.clock import Clock
from libs.runtime.problems import Problem

log = structlog.get_logger(__name__)

MIN_SECRET_BYTES = 32
"""RFC 7518, section 3.2: an HS256 key has at least the size of the hash."""
LEEWAY_SECONDS = 5
SHARED = "HS256"
ASYMMETRIC: Mapping[str, str] = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "EdDSA": "OKP",
}
"""Allowed algorithms and the key type (`kty`) that each needs."""
SCOPES = frozenset({"read", "sessions", "resolve", "release", "pause", "*"})
_MAX_TOKEN = 8192


def bearer(authorization: str | None) -> str:
    """The token of an `Authorization: Bearer …` header. Raises Problem 401 (RFC 6750)."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > _MAX_TOKEN:
        raise unauthorized()
    return token


def unauthorized() -> Problem:
    """One answer for whatever is wrong with a token, so that it tells nothing."""
    return Problem(
        401, "unauthorized", "A valid bearer token is needed", headers={"WWW-Authenticate": 'Bearer realm="turnkeeper"'}
    )


@dataclass(frozen=True)
class PublicKey:
    """One key of a JWKS. `algorithm` is the declared one, or None where the set leaves it open."""

    kid: str | None
    kty: str
    algorithm: str | None
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Whether a token of this algorithm may be checked with it."""
        return self.kty == ASYMMETRIC[algorithm] and self.algorithm in (None, algorithm)


class KeySource(Protocol):
    """What finds the public key of a token."""

    async def key(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key for this key id and algorithm, or None. Raises Problem 503 while no key could be fetched."""
        ...


class Jwks:
    """A JSON Web Key Set, fetched without blocking the loop and kept for a time (RFC 7517).

    An unknown key id fetches again, since keys rotate, but not more often than `refresh_seconds`: a flood of invented
    ids must not become a flood of requests. A fetch that fails leaves the old keys in use.
    """

    def __init__(
        self,
        url: str,
        *,
        client: httpx2.AsyncClient | None = None,
        keep_seconds: float = 600.0,
        refresh_seconds: float = 10.0,
        timeout_seconds: float = 3.0,
    ) -> None:
        self._url = url
        self._client = client or httpx2.AsyncClient(timeout=timeout_seconds, follow_redirects=False)
        self._keep = keep_seconds
        self._refresh = refresh_seconds
        self._keys: list[PublicKey] = []
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._lock = asyncio.Lock()

    async def key(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key for this key id and algorithm, or None. Raises Problem 503 while no key could be fetched."""
        if time.monotonic() - self._fetched > self._keep:
            await self._fetch(self._fetched)
        seen = self._fetched
        found = self._find(kid, algorithm)
        if found is None:
            await self._fetch(seen)
            found = self._find(kid, algorithm)
        if found is None and not self._keys:
            raise Problem(
                503,
                "token-keys-away",
                "The keys that check tokens cannot be fetched",
                headers={"Retry-After": str(max(1, round(self._refresh)))},
            )
        return found

    def _find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        fitting = [key for key in self._keys if key.fits(algorithm) and kid in (None, key.kid)]
        # Without a key id only a set of one key says which is meant.
        return fitting[0] if len(fitting) == 1 else None

    async def _fetch(self, seen: float) -> None:
        """Fetch unless somebody did since `seen`, or it was tried a moment ago. One request at a time."""
        async with self._lock:
            if self._fetched > seen or time.monotonic() - self._tried < self._refresh:
                return
            self._tried = time.monotonic()
            try:
                answer = await self._client.get(self._url, headers={"Accept": "application/json"})
                answer.raise_for_status()
                self._keys = _usable(answer.json())
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError) as error:
                log.warning("jwks.not_fetched", error=type(error).__name__)
                return
            self._fetched = time.monotonic()

    async def aclose(self) -> None:
        """Close the HTTP client."""
        await self._client.aclose()


def _usable(document: Any) -> list[PublicKey]:
    """Public signing keys of a set; a key that we cannot read is passed over (RFC 7517, section 5)."""
    keys = []
    for entry in document["keys"] if isinstance(document, dict) else ():
        if not isinstance(entry, dict) or entry.get("kty") not in ASYMMETRIC.values():
            continue
        if entry.get("use", "sig") != "sig":
            continue
        try:
            keys.append(PublicKey(entry.get("kid"), entry["kty"], entry.get("alg"), PyJWK(entry).key))
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
    return keys


class UserTokens:
    """Checks users' JWTs: `sub` is the user id, `exp` is required, no audience is accepted.

    `secret` is the shared secret (HS256, at least 32 bytes), `jwks_url` where asymmetric keys are; either or both.
    Raises ValueError for a secret that is too short.
    """

    def __init__(self, secret: str | None, jwks_url: str | None, clock: Clock, keys: KeySource | None = None) -> None:
        if secret is not None and len(secret.encode()) < MIN_SECRET_BYTES:
            raise ValueError(f"needs at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret
        self._clock = clock
        self._own = Jwks(jwks_url) if jwks_url and keys is None else None
        self._keys = keys or self._own

    @property
    def configured(self) -> bool:
        """Whether any token could ever be valid."""
        return self._secret is not None or self._keys is not None

    async def user(self, authorization: str | None) -> str:
        """The user id of a valid bearer token. Raises Problem 401, or 503 while the keys cannot be fetched."""
        user, _ = await self.user_until(authorization)
        return user

    async def user_until(self, authorization: str | None) -> tuple[str, float]:
        """The user id of a valid bearer token, and when the token ends (Unix seconds, the leeway included), for what
        goes on after the request was let in. Raises as `user` does."""
        token = bearer(authorization)
        try:
            claims = await self._claims(token)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            log.debug("token.refused", error=type(error).__name__)
            raise unauthorized() from None
        user = claims["sub"]
        if not isinstance(user, str) or not is_slug(user) or not self._in_time(claims):
            raise unauthorized()
        return user, claims["exp"] + LEEWAY_SECONDS

    async def aclose(self) -> None:
        """Close what fetches the keys."""
        if self._own is not None:
            await self._own.aclose()

    async def _claims(self, token: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        return jwt.decode(
            token,
            await self._key(str(algorithm), kid),
            algorithms=[str(algorithm)],
            # The times are checked below, by the clock that we are given.
            options={"require": ["sub", "exp"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )

    async def _key(self, algorithm: str, kid: str | None) -> Any:
        """The one key that this algorithm may use. Raises InvalidTokenError when there is none."""
        if algorithm == SHARED and self._secret is not None:
            return self._secret
        if algorithm in ASYMMETRIC and self._keys is not None:
            public = await self._keys.key(kid, algorithm)
            if public is not None:
                return public.key
        raise jwt.InvalidTokenError("no key for this token")

    def _in_time(self, claims: Mapping[str, Any]) -> bool:
        now = self._clock.now_ms() / 1000
        expires, starts = claims["exp"], claims.get("nbf", 0)
        if not all(isinstance(at, int | float) and not isinstance(at, bool) for at in (expires, starts)):
            return False
        return bool(now < expires + LEEWAY_SECONDS and starts <= now + LEEWAY_SECONDS)


@dataclass(frozen=True)
class Operator:
    """One configured operator. `token_sha256` is the hex SHA-256 of the token, which itself is stored nowhere."""

    name: str
    scopes: frozenset[str]
    token_sha256: str


class Operators:
    """Checks operators' tokens: configured, hashed, scoped (`read sessions resolve release pause`, `*` for all)."""

    def __init__(self, operators: tuple[Operator, ...]) -> None:
        self._operators = operators

    @classmethod
    def parse(cls, text: str) -> "Operators":
        """Read `name:scope+scope:sha256hex[,…]`. Raises ValueError with every fault, without the hashes."""
        operators, faults = [], []
        for number, part in enumerate(filter(None, (piece.strip() for piece in text.split(","))), 1):
            name, _, rest = part.partition(":")
            scopes, _, digest = rest.partition(":")
            names = frozenset(filter(None, scopes.split("+")))
            if part.count(":") != 2:
                # Not by its name: what stands there may be the token itself, given by mistake.
                faults.append(f"number {number} is not of the form name:scope+scope:sha256 of the token")
            elif not is_slug(name):
                faults.append("an operator's name has letters, digits, - and _ only")
            elif not names or names - SCOPES:
                faults.append(f"{name}: scopes are of {' '.join(sorted(SCOPES))}, joined by +")
            elif not re.fullmatch(r"[0-9a-f]{64}", digest):
                faults.append(f"{name}: the third part is the token's SHA-256 in 64 lower-case hexadecimal digits")
            else:
                operators.append(Operator(name, names, digest))
        if faults:
            raise ValueError("; ".join(faults))
        return cls(tuple(operators))

    def knows(self, authorization: str | None) -> bool:
        """Whether the token is an operator's; then `check` says what it may do, and users' rules do not apply."""
        try:
            return bool(self._known(authorization))
        except Problem:
            return False

    def check(self, authorization: str | None, scope: str) -> str:
        """The operator's name. Raises Problem 401 for no known token, 403 for one without the scope."""
        known = self._known(authorization)
        if not known:
            raise unauthorized()
        for operator in known:
            if operator.scopes & {scope, "*"}:
                return operator.name
        raise Problem(403, "scope-missing", "This token may not do that", f"It needs the scope {scope}.")

    def _known(self, authorization: str | None) -> list[Operator]:
        given = hashlib.sha256(bearer(authorization).encode()).hexdigest()
        return [o for o in self._operators if hmac.compare_digest(o.token_sha256, given)]

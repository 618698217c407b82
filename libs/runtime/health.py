"""Liveness, readiness that tells the truth, and metrics, in front of a service's own routes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from libs.contracts.errors import StoreAway
from libs.contracts.keys import Keys
from libs.runtime.batch import Store

log = structlog.get_logger(__name__)

Check = Callable[[], Awaitable[str | None]]
"""None when all is well, else what is wrong and what to do, in one sentence."""
PROBE_SECONDS = 2.0
PROBE_KEY_MS = 10_000
UNKNOWN = "unknown"


def routes(registry: CollectorRegistry, checks: dict[str, Check], app: Any, warnings: list[str]) -> Starlette:
    """The whole HTTP application of a service."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        names = list(checks)
        faults = await asyncio.gather(*(_bounded(checks[name]) for name in names))
        wrong = {name: fault for name, fault in zip(names, faults, strict=True) if fault}
        body: dict[str, Any] = {"status": "not ready" if wrong else "ready", "faults": wrong, "warnings": warnings}
        return JSONResponse(body, 503 if wrong else 200)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    own = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
    return Starlette(routes=[*own, Mount("/", app=app)] if app is not None else own)


async def _bounded(check: Check) -> str | None:
    try:
        return await asyncio.wait_for(check(), PROBE_SECONDS)
    except TimeoutError:
        return f"no answer within {PROBE_SECONDS:g} s"


class StoreCheck:
    """Redis answers, keeps what it acknowledged, and belongs to a deployment with our partition count."""

    def __init__(self, store: Store, keys: Keys, *, allow_volatile: bool, appendfsync: str = "") -> None:
        self._store = store
        self._keys = keys
        self._allow_volatile = allow_volatile
        self._appendfsync = appendfsync
        self._agreed = False
        self.warnings: list[str] = []

    async def __call__(self) -> str | None:
        try:
            await self._store.redis.ping()
            if fault := await self._durability() or await self._writes():
                return fault
            return await self._partitions()
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            return f"Redis refuses us ({type(error).__name__}): check user and password, and the user's ACL"
        except (RedisError, OSError, StoreAway) as error:
            return f"Redis does not answer ({type(error).__name__})"

    async def _writes(self) -> str | None:
        """A Redis that is full, a replica, or cannot write its file answers every question and takes nothing."""
        try:
            await self._store.redis.set(self._keys.meta("probe"), "1", px=PROBE_KEY_MS)
        except NoPermissionError:
            raise
        except ResponseError as error:
            return f"Redis refuses writes ({str(error)[:120] or type(error).__name__})"
        return None

    async def _durability(self) -> str | None:
        try:
            settings = {
                name: (await self._store.redis.config_get(name)).get(name, "")
                for name in ("appendonly", "appendfsync", "maxmemory-policy")
            }
        except ResponseError:
            # CONFIG is forbidden: the INFO section tells part of it, the operator answers for the rest.
            info = await self._store.redis.info()
            settings = {
                "appendonly": "yes" if info.get("aof_enabled") else "no",
                "appendfsync": self._appendfsync or UNKNOWN,
                "maxmemory-policy": str(info.get("maxmemory_policy", "noeviction")),
            }
        faults = _durability_faults({name: _text(value) for name, value in settings.items()})
        if not faults:
            self.warnings.clear()
            return None
        if self._allow_volatile:
            self.warnings[:] = [f"VOLATILE STORE ALLOWED: {fault}" for fault in faults]
            return None
        return "; ".join(faults)

    async def _partitions(self) -> str | None:
        if self._agreed:
            return None
        key = self._keys.meta("partitions")
        await self._store.redis.set(key, str(self._keys.partitions), nx=True)
        recorded = int(await self._store.redis.get(key) or 0)
        if recorded != self._keys.partitions:
            return (
                f"this deployment has {recorded} partitions, TURNKEEPER_PARTITIONS says {self._keys.partitions}; "
                f"the number is fixed at the first deployment, so set it to {recorded}"
            )
        self._agreed = True
        return None


def _durability_faults(settings: dict[str, str]) -> list[str]:
    faults = []
    if settings["appendonly"] != "yes":
        faults.append("Redis is not append-only: set appendonly yes, or it forgets at a restart")
    elif settings["appendfsync"] == UNKNOWN:
        faults.append(
            "we may not read appendfsync (CONFIG is forbidden): see to it that it is always, "
            "and say so with TURNKEEPER_REDIS_APPENDFSYNC=always"
        )
    elif settings["appendfsync"] != "always":
        faults.append(f"appendfsync is {settings['appendfsync']}: set always, or a crash loses the last second")
    if settings["maxmemory-policy"] != "noeviction":
        faults.append(
            f"maxmemory-policy is {settings['maxmemory-policy']}: set noeviction, or dedupe entries are evicted"
        )
    return faults


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

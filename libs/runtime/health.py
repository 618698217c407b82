"""Liveness, readiness that tells the truth, and metrics, in front of a service's own routes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from redis.exceptions import RedisError, ResponseError
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

    def __init__(self, store: Store, keys: Keys, *, allow_volatile: bool) -> None:
        self._store = store
        self._keys = keys
        self._allow_volatile = allow_volatile
        self._agreed = False
        self.warnings: list[str] = []

    async def __call__(self) -> str | None:
        try:
            await self._store.redis.ping()
            if fault := await self._durability():
                return fault
            return await self._partitions()
        except (RedisError, OSError, StoreAway) as error:
            return f"Redis does not answer ({type(error).__name__})"

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
                "appendfsync": "always",
                "maxmemory-policy": str(info.get("maxmemory_policy", "noeviction")),
            }
        faults = _durability_faults({name: _text(value) for name, value in settings.items()})
        if not faults:
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
    elif settings["appendfsync"] != "always":
        faults.append(f"appendfsync is {settings['appendfsync']}: set always, or a crash loses the last second")
    if settings["maxmemory-policy"] != "noeviction":
        faults.append(
            f"maxmemory-policy is {settings['maxmemory-policy']}: set noeviction, or dedupe entries are evicted"
        )
    return faults


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

"""The kill switch over HTTP: `turnkeeper pause` and `resume` (design §3.4)."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, get_args

import structlog
from fastapi import FastAPI, Header
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from libs.contracts.application import Application
from libs.contracts.ids import is_slug
from libs.runtime.auth import Operators
from libs.runtime.clock import Clock
from libs.runtime.problems import Problem
from services.tools.metrics import ToolMetrics
from services.tools.pauses import MOST_PAUSES, Holding, Kind, Pause, Stops, shown
from services.tools.ports import Ledger
from services.tools.stops import RedisPauses

log = structlog.get_logger(__name__)

Authorization = Annotated[str | None, Header()]
LOOK_AGAIN_SECONDS = 0.05
MOST_SHOWN = 100


class PauseWish(BaseModel):
    """What is to be paused. `wait_seconds`: so long the answer waits until nothing that was sent is in flight."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind
    name: str = ""
    note: str = Field("", max_length=400)
    wait_seconds: float = Field(5.0, ge=0, le=30)


class Stopping:
    """The routes' functions, and what happens without a request."""

    def __init__(
        self,
        application: Application,
        pauses: RedisPauses,
        stops: Stops,
        ledger: Ledger,
        operators: Operators,
        metrics: ToolMetrics,
        clock: Clock,
    ) -> None:
        self._application = application
        self._pauses = pauses
        self._stops = stops
        self._ledger = ledger
        self._operators = operators
        self._metrics = metrics
        self._clock = clock

    async def pause(self, wish: PauseWish, authorization: Authorization = None) -> JSONResponse:
        """Stop sends on all replicas. 201, or 200 where it was paused already: no send begins any more; `in_flight` was
        sent before and has no outcome yet. 202: a holder has not said yet that it stops; ask again."""
        by = self._operators.check(authorization, "pause")
        await self._exists(wish.kind, wish.name)
        wanted = Pause(wish.kind, wish.name, by, wish.note, self._clock.now_ms())
        became, stands = await self._pauses.begin(wanted)
        if became == "full":
            raise Problem(409, "too-many-pauses", "Too many pauses", f"At most {MOST_PAUSES}: pause all instead.")
        if became == "set":
            log.warning("sends.paused", kind=wish.kind, name=wish.name, by=by, note=wish.note)
        stopped, flying = await self._stopped(stands, wish.wait_seconds)
        status = 202 if not stopped else 201 if became == "set" else 200
        return JSONResponse(await self._shown(stands, stopped, flying), status)

    async def _stopped(self, pause: Pause, seconds: float) -> tuple[bool, list[Holding]]:
        """Wait until nothing begins any more and nothing is in flight, at most `seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            stopped, flying = await self._pauses.progress(pause, self._clock.now_ms())
            if (stopped and not flying) or loop.time() >= until:
                return stopped, flying
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def pauses(self, authorization: Authorization = None) -> dict[str, Any]:
        """What is paused: since when, by whom, whether it has come to a stop, and what waits for its end."""
        self._operators.check(authorization, "read")
        found, _ = await self._pauses.read()
        now = self._clock.now_ms()
        return {"pauses": [await self._shown(one, *await self._pauses.progress(one, now)) for one in found]}

    async def resume(self, kind: Kind, name: str = "", authorization: Authorization = None) -> dict[str, Any]:
        """Let sends begin again. What waited goes on, in the order in which it came; `ended` is false where nothing was
        paused."""
        by = self._operators.check(authorization, "pause")
        if (kind == "all") == bool(name):
            raise _misnamed(kind)
        ended = await self._pauses.end(f"{kind}:{name}")
        released = await self._pauses.unpark(self._clock.now_ms())
        if ended is not None:
            log.warning("sends.resumed", kind=kind, name=name, by=by, released=released, paused_by=ended.by)
        return {"kind": kind, "name": name, "ended": ended is not None, "released": released}

    async def obey(self) -> None:
        """Look at what is paused: what changed is obeyed from here on."""
        await self._pauses.look()

    async def wake(self) -> None:
        """Let go on what no pause keeps any more, or whose `not_after` is past, and set the gauges."""
        await self._pauses.unpark(self._clock.now_ms())
        self._metrics.waiting.set(await self._pauses.waiting_count())
        for kind in get_args(Kind):
            self._metrics.paused.labels(kind).set(sum(pause.kind == kind for pause in self._stops.pauses))

    async def _exists(self, kind: Kind, name: str) -> None:
        """Raises Problem for what is not there: a mistyped name must not seem to be paused."""
        if (kind == "all") == bool(name):
            raise _misnamed(kind)
        known: Mapping[str, Any] = {}
        match kind:
            case "all":
                return
            case "session":
                if is_slug(name) and await self._ledger.owner(name):
                    return
            case "tool":
                known = self._application.tools
            case "source":
                known = self._application.sources
        if name in known:
            return
        these = f"There are {', '.join(sorted(known))}." if known else "Sessions are listed by: turnkeeper sessions"
        raise Problem(404, "nothing-to-pause", f"There is no {kind} {name}", these)

    async def _shown(self, pause: Pause, stopped: bool, flying: list[Holding]) -> dict[str, Any]:
        waiting = [one for one in await self._pauses.waiting() if pause.covers(one.tool, one.session, one.origin)]
        return {
            "kind": pause.kind, "name": pause.name, "by": pause.by, "note": pause.note, "at": pause.at,
            "says": f"{shown(pause.field)} is paused", "stopped": stopped,
            "in_flight": [
                {"session": one.session, "operation": one.operation, "tool": one.tool} for one in flying[:MOST_SHOWN]
            ],
            "waiting": len(waiting),
            "waits": [
                {"session": one.session, "tool": one.tool, "since": one.since} for one in waiting[:MOST_SHOWN]
            ],
        }  # fmt: skip


def _misnamed(kind: Kind) -> Problem:
    what = "`all` has no name" if kind == "all" else f"say which {kind}"
    return Problem(400, "malformed", "Not something that can be paused", f"{what}.")


def add_routes(app: FastAPI, stopping: Stopping) -> None:
    """Add the kill switch to the door's application."""
    app.post("/v1/pauses", status_code=201)(stopping.pause)
    app.get("/v1/pauses")(stopping.pauses)
    app.delete("/v1/pauses/{kind}")(stopping.resume)
    app.delete("/v1/pauses/{kind}/{name}")(stopping.resume)

"""Standing approvals over HTTP and in Redis: granted, listed and revoked by their user alone (design §3.4)."""

import asyncio
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Header, Path
from starlette.responses import Response

from libs.contracts.application import Application
from libs.contracts.ids import SLUG_PATTERN
from libs.contracts.keys import Keys
from libs.contracts.standing import KEPT_MS, MOST_KEPT, Grant, GrantRequest, grant_id, read_grant, request_fault
from libs.runtime.auth import UserTokens
from libs.runtime.batch import Store
from libs.runtime.clock import Clock
from libs.runtime.problems import Problem
from libs.runtime.scripts import load_script

Id = Annotated[str, Path(pattern=SLUG_PATTERN)]
Bearer = Annotated[str | None, Header()]
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=256)]

_GRANT = load_script("services.consent", "grant_standing")
_REVOKE = load_script("services.consent", "revoke_standing")


class RedisStanding:
    """Standing approvals of users, in `{uNN}`. Uses are the door's to write. Raises StoreAway when no answer came."""

    def __init__(self, store: Store, keys: Keys, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock

    async def now(self) -> int:
        """Store time: the larger of Redis TIME and our clock, milliseconds (Unix)."""
        seconds, microseconds = await self._store.command("TIME")
        return max(int(seconds) * 1000 + int(microseconds) // 1000, self._clock.now_ms())

    async def grant(self, user: str, id: str, request: GrantRequest, now: int) -> str:
        """Tags: those of `lua/grant_standing.lua`."""
        reply = await self._store.run(
            _GRANT,
            [self._keys.of_user("standing", user, id), self._keys.of_user("standings", user)],
            [now, id, request.content(), request.ends_at, KEPT_MS, MOST_KEPT],
        )
        return reply.tag

    async def revoke(self, user: str, id: str) -> bool:
        """Whether there is such an approval; from now on no use of it is reserved."""
        reply = await self._store.run(
            _REVOKE,
            [self._keys.of_user("standing", user, id), self._keys.of_user("standings", user)],
            [self._clock.now_ms(), id, KEPT_MS],
        )
        return reply.tag == "revoked"

    async def one(self, user: str, id: str) -> Grant | None:
        """One approval with its uses."""
        raw = await self._store.command("HGETALL", self._keys.of_user("standing", user, id))
        return read_grant(id, {_text(name): _text(value) for name, value in raw.items()})

    async def of_user(self, user: str) -> list[Grant]:
        """A user's approvals with their uses, oldest first; ended ones for a week."""
        ids = await self._store.command("ZRANGE", self._keys.of_user("standings", user), 0, -1)
        found = await asyncio.gather(*(self.one(user, _text(id)) for id in ids))
        return sorted((grant for grant in found if grant is not None), key=lambda grant: (grant.made_at, grant.id))


class StandingEdge:
    """The routes. Each wants the user's own bearer token: nobody else sees or grants anything here."""

    def __init__(self, approvals: RedisStanding, application: Application, users: UserTokens) -> None:
        self._approvals = approvals
        self._application = application
        self._users = users

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to consent's application."""
        head = "/v1/users/{user}/standing"
        app.get(head, summary="What a user granted in advance, with each use")(self.index)
        app.post(head, status_code=201, summary="Grant a tool in advance; needs an Idempotency-Key")(self.grant)
        app.delete(head, summary="Revoke all standing approvals of a user")(self.revoke_all)
        app.get(head + "/{id}", summary="One standing approval")(self.show)
        app.delete(head + "/{id}", summary="Revoke one standing approval")(self.revoke)

    async def index(self, user: Id, authorization: Bearer = None) -> dict[str, Any]:
        """Oldest first; those that ended are shown for a week."""
        await self._own(user, authorization)
        now = await self._approvals.now()
        return {"standing": [view(grant, now) for grant in await self._approvals.of_user(user)]}

    async def show(self, user: Id, id: Id, authorization: Bearer = None) -> dict[str, Any]:
        """One of them, with each use."""
        await self._own(user, authorization)
        return await self._shown(user, id)

    async def grant(
        self,
        user: Id,
        request: GrantRequest,
        authorization: Bearer = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """The same wish under the same key is one approval; another wish under it is a conflict."""
        await self._own(user, authorization)
        if idempotency_key is None:
            raise Problem(400, "no-idempotency-key", "Idempotency-Key is missing", "A retry must not grant twice.")
        id, now = grant_id(user, idempotency_key), await self._approvals.now()
        known = await self._approvals.one(user, id)
        # What was granted before is told again, also once it has ended: only a new wish is judged.
        fault = None if known and known.request == request else request_fault(request, self._application, now)
        if fault:
            raise Problem(422, "not-grantable", "This cannot be granted", fault)
        match await self._approvals.grant(user, id, request, now):
            case "other":
                raise Problem(409, "key-used", "Idempotency-Key was used for another wish")
            case "full":
                told = f"At most {MOST_KEPT} are kept, those that ended within a week included."
                raise Problem(409, "too-many", "There are too many standing approvals", told)
        made = await self._shown(user, id)
        return Response(orjson.dumps(made), 200 if known else 201, media_type="application/json")

    async def revoke(self, user: Id, id: Id, authorization: Bearer = None) -> dict[str, Any]:
        """Once answered, no further step runs under it. A use that was reserved before is shown with the approval."""
        await self._own(user, authorization)
        if not await self._approvals.revoke(user, id):
            raise Problem(404, "no-such-approval", "There is no such standing approval")
        return await self._shown(user, id)

    async def revoke_all(self, user: Id, authorization: Bearer = None) -> dict[str, Any]:
        """All of them, in one call."""
        await self._own(user, authorization)
        for grant in await self._approvals.of_user(user):
            await self._approvals.revoke(user, grant.id)
        return await self.index(user, authorization)

    async def _shown(self, user: str, id: str) -> dict[str, Any]:
        grant = await self._approvals.one(user, id)
        if grant is None:
            raise Problem(404, "no-such-approval", "There is no such standing approval")
        return view(grant, await self._approvals.now())

    async def _own(self, user: str, authorization: str | None) -> None:
        if await self._users.user(authorization) != user:
            raise Problem(403, "not-yours", "Standing approvals are their user's own")


def view(grant: Grant, now: int) -> dict[str, Any]:
    """A standing approval as it is shown over HTTP. `now` in milliseconds (Unix)."""
    request = grant.request
    return {
        "id": grant.id,
        "tool": request.tool,
        "limits": {name: limit.model_dump(exclude_unset=True) for name, limit in request.limits.items()},
        "sources": list(request.sources),
        "uses": request.uses,
        "left": max(0, request.uses - grant.taken),
        "begins_at": request.begins_at,
        "ends_at": request.ends_at,
        "made_at": grant.made_at,
        "revoked_at": grant.revoked_at,
        "state": grant.state(now),
        "used": [
            {
                "operation": use.operation,
                "session": use.session,
                "source": use.source,
                "at": use.at,
                "args": use.args,
                "state": use.state,
            }
            for use in grant.uses
        ],
    }


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw or "")

"""Standing approvals as the door uses them: a use is reserved for an operation before its key is claimed, afterwards it
is spent or free again (design §3.4, G3). What is granted, the door reads itself: no call can say so."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from libs.contracts.canonical import JSON
from libs.contracts.keys import Keys
from libs.contracts.reasons import OperationState
from libs.contracts.standing import Grant, covers, pack_use, read_grant, use_name
from libs.runtime.batch import Arg, Store
from libs.runtime.clock import Clock
from libs.runtime.scripts import load_script
from services.tools.metrics import ToolMetrics
from services.tools.store import RedisLedger

log = structlog.get_logger(__name__)

LOOKED_AT_MS = 30_000
"""Nothing between reservation and record takes longer unless its process is gone."""
MARGIN_MS = 60_000
"""Between the clocks of two stores: so long after `not_after` no claim can come any more."""
SWEEP_BATCH = 100
Fate = Literal["spent", "freed", "void"]

_RESERVE = load_script("services.tools", "reserve_use")
_SETTLE = load_script("services.tools", "settle_use")


@dataclass(frozen=True)
class Reserved:
    """One use is the operation's. `until` in milliseconds (Unix): the approval ends then. `over`: it has ended, or was
    revoked, since the use was reserved, so that nothing new may be claimed."""

    user: str
    grant: str
    until: int
    over: bool = False


@dataclass(frozen=True)
class Wanted:
    """The operation that wants a use. `not_after` in milliseconds (Unix)."""

    session: str
    key: str
    operation: str
    call: str
    tool: str
    args: Mapping[str, JSON]
    source: str
    not_after: int
    fingerprint: str
    """Of tool and arguments as they were called."""


class RedisGrants:
    """Standing approvals of users, in `{uNN}`. Every method raises StoreAway when no answer came."""

    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def reserve(self, user: str, wanted: Wanted, now: int) -> Reserved | None:
        """One use of the first approval that covers it; the same again for the same operation. None where none does."""
        grants = await self._grants(user)
        if not grants:
            return None
        keys = [self._keys.of_user_shard("standinguse", user), *(self._of(user, id) for id, _ in grants)]
        use = pack_use(operation=wanted.operation, at=now, source=wanted.source, args=wanted.args)
        args: list[Arg] = [
            now, use_name(wanted.session, wanted.key), wanted.call, use, wanted.not_after, now + LOOKED_AT_MS, user,
            wanted.fingerprint,
        ]  # fmt: skip
        for id, grant in grants:
            fits = grant is not None and covers(grant.request, tool=wanted.tool, args=wanted.args, source=wanted.source)
            args += [id, "1" if fits else ""]
        reply = await self._store.run(_RESERVE, keys, args)
        match reply.tag:
            case "reserved":
                return Reserved(user, reply.text(0), reply.int(1))
            case "ended":
                return Reserved(user, reply.text(0), 0, over=True)
            case _:
                return None

    async def settle(self, user: str, grant: str, session: str, key: str, fate: Fate, call: str = "") -> str:
        """What became of a use. What stands now: `spent freed held absent`."""
        name = use_name(session, key)
        keys = [self._keys.of_user_shard("standinguse", user), self._of(user, grant)]
        reply = await self._store.run(_SETTLE, keys, [name, f"{user}:{grant}:{name}", fate, call])
        return reply.tag

    async def due(self, now: int) -> list[tuple[str, str, str, str]]:
        """(user, grant, session, key) of uses that are to be looked at."""
        found = await asyncio.gather(
            *(
                self._store.command("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, SWEEP_BATCH)
                for key in (self._keys.in_user_shard("standinguse", n) for n in range(self._keys.partitions))
            )
        )
        members = (_text(member).split(":") for members in found for member in members)
        return [(user, grant, session, key) for user, grant, session, key in members]

    async def last_claim(self, user: str, grant: str, session: str, key: str) -> int:
        """The latest `not_after` of the calls that reserved a use, in milliseconds (Unix)."""
        field = f"n:{use_name(session, key)}"
        return int(await self._store.command("HGET", self._of(user, grant), field) or 0)

    async def look_again(self, user: str, grant: str, session: str, key: str, at: int) -> None:
        """Look at a use at a later time, if it is still open."""
        member = f"{user}:{grant}:{use_name(session, key)}"
        await self._store.command("ZADD", self._keys.of_user_shard("standinguse", user), "XX", at, member)

    async def _grants(self, user: str) -> list[tuple[str, Grant | None]]:
        ids = await self._store.command("ZRANGE", self._keys.of_user("standings", user), 0, -1)
        names = [_text(id) for id in ids]
        rows = await asyncio.gather(*(self._store.command("HGET", self._of(user, id), "request") for id in names))
        return [
            (id, read_grant(id, {"request": _text(row)}) if row else None) for id, row in zip(names, rows, strict=True)
        ]

    def _of(self, user: str, grant: str) -> str:
        return self._keys.of_user("standing", user, grant)


def fate_of(state: OperationState | None) -> Fate | None:
    """What an operation's stored state says of its use; None where it may still be claimed or is under way.

    What the destination refused was sent, and so is a use. `failed` was not sent, but its key may be claimed anew.
    """
    match state:
        case "committed" | "unknown" | "refused":
            return "spent"
        case "withdrawn" | "precondition_failed" | "needs_consent":
            return "void"
        case _:
            return None


class UseSweeper:
    """Settles uses that nobody settled: whoever reserved them is gone. The ledger says what became of the operation."""

    def __init__(self, grants: RedisGrants, ledger: RedisLedger, metrics: ToolMetrics, clock: Clock) -> None:
        self._grants = grants
        self._ledger = ledger
        self._metrics = metrics
        self._clock = clock

    async def sweep(self) -> None:
        """Look at what is due."""
        now = self._clock.now_ms()
        await asyncio.gather(*(self._look(*use, now) for use in await self._grants.due(now)))

    async def _look(self, user: str, grant: str, session: str, key: str, now: int) -> None:
        fields: Mapping[str, Any] = await self._ledger.read(session, key)
        fate = fate_of(fields.get("state"))
        if fate is None:
            last = await self._grants.last_claim(user, grant, session, key) + MARGIN_MS
            if fields.get("state") == "pending":
                await self._grants.look_again(user, grant, session, key, now + LOOKED_AT_MS)
                return
            if now <= last:  # absent or released: a call that waits somewhere may still claim it
                await self._grants.look_again(user, grant, session, key, last + 1)
                return
            fate = "void"
        became = await self._grants.settle(user, grant, session, key, fate)
        self._metrics.used(fields.get("tool", ""), became)
        log.info("standing.settled", session=session, key=key, grant=grant, became=became)


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw or "")

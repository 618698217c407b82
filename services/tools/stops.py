"""Pauses in the store, and what waits for their end. One list in one place says what is paused; each partition has a
copy, which the claiming script reads; each replica obeys it in memory and says so."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson
import structlog

from libs.contracts.keys import Keys
from libs.runtime.batch import Arg, Store
from libs.runtime.evidence import evidence_args, evidence_keys
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script
from services.tools import evidence
from services.tools.domain import Admitted
from services.tools.pauses import MOST_PAUSES, Holding, Pause, Seen, Stops, may_still_send
from services.tools.ports import Stopped, Work
from services.tools.store import RETENTION_MS

log = structlog.get_logger(__name__)

MOST_PARKED = 5_000
"""Calls that may wait in a partition: above, a call is answered that it failed, before anything was sent."""
AT_ONCE = 200
RELEASED = "stopped before it was sent"
_SET = load_script("services.tools", "set_pause")
_APPLY = load_script("services.tools", "apply_pauses")
_PARK = load_script("services.tools", "park_call")
_RELEASE = load_script("services.tools", "release_claim")
_UNPARK = load_script("services.tools", "unpark_calls")


@dataclass(frozen=True)
class Waiting:
    """A call that waits for the end of a pause. `since` in milliseconds (Unix)."""

    call: str
    tool: str
    session: str
    origin: str
    since: int


class RedisPauses:
    """The pauses of the deployment, and this replica's part in them. Every method raises StoreAway."""

    def __init__(
        self, store: Store, keys: Keys, outbox: Outbox, stops: Stops, *, replica: str, incarnation: str
    ) -> None:
        self._store = store
        self._keys = keys
        self._outbox = outbox
        self._stops = stops
        self._replica = replica
        self._incarnation = incarnation
        self._said = -1

    # -- the list

    async def begin(self, pause: Pause) -> tuple[Literal["set", "same", "full"], Pause]:
        """Pause on all replicas and in all partitions; again the same changes nothing. The pause that stands."""
        record = orjson.dumps({"by": pause.by, "note": pause.note, "at": pause.at})
        reply = await self._store.run(_SET, [self._keys.meta("pauselist")], [pause.field, record, MOST_PAUSES])
        await self.obey()
        stands = _pause(pause.field, reply.raw(1)) if reply.text(1) else pause
        return cast('Literal["set", "same", "full"]', reply.tag), stands

    async def end(self, field: str) -> Pause | None:
        """End a pause on all replicas and in all partitions, and let go on what waited. None if there was none."""
        reply = await self._store.run(_SET, [self._keys.meta("pauselist")], [field, "", MOST_PAUSES])
        await self.obey()
        return _pause(field, reply.raw(1)) if reply.tag == "set" else None

    async def read(self) -> tuple[list[Pause], int]:
        """What is paused, oldest first, and the version of that."""
        found = await self._store.command("HGETALL", self._keys.meta("pauselist"))
        fields = {name.decode(): value for name, value in found.items()}
        version = int(fields.pop("version", b"0"))
        return sorted((_pause(*item) for item in fields.items()), key=lambda pause: (pause.at, pause.field)), version

    async def look(self) -> None:
        """Obey what the list says now. Cheap where nothing changed: one read."""
        version = await self._store.command("HGET", self._keys.meta("pauselist"), "version")
        if int(version or 0) != self._stops.version or self._said != self._stops.version:
            await self.obey()

    async def obey(self) -> None:
        """Read the list, bring all partitions to it, obey it, and say so: in this order. What it no longer stops goes
        on; of an operator's replica that ended halfway any other one does the rest."""
        pauses, version = await self.read()
        args: list[Arg] = [version, len(pauses), *(pause.field for pause in pauses)]
        await asyncio.gather(
            *(self._store.run(_APPLY, [key], args) for key in self._in_all("pauses")),
        )
        if version >= self._stops.version:
            self._stops.take(pauses, version)
        # From here on this process begins no send that is paused: what it says is true of all its operations.
        said = f"{self._incarnation} {self._stops.version}"
        await self._store.command("HSET", self._keys.meta("pauseseen"), self._replica, said)
        self._said = self._stops.version

    async def stops(self, work: Work) -> bool:
        """Whether a claimed operation that was just stopped is stopped still, by what the store says now. False only
        where a pause has ended that this replica still obeyed."""
        before = self._stops.version
        await self.look()
        if self._stops.version == before:
            return True
        try:
            self._stops.check(work.tool, work.session, work.origin)
        except Stopped:
            return True
        return False

    # -- what was claimed before

    async def holdings(self) -> list[Holding]:
        """All operations that are claimed and without an outcome."""
        found = await asyncio.gather(*(self._store.command("ZRANGE", key, 0, -1) for key in self._in_all("lease")))
        rows = await asyncio.gather(*(self._holding(member.decode()) for members in found for member in members))
        return [row for row in rows if row is not None]

    async def _holding(self, member: str) -> Holding | None:
        session, _, key = member.partition(":")
        state, id, tool, origin, owner, until = await self._store.command(
            "HMGET", self._keys.of_session("operation", session, key),
            "state", "id", "tool", "origin", "owner", "lease_until",
        )  # fmt: skip
        if state != b"pending":
            return None
        replica, _, rest = _text(owner).partition("/")
        return Holding(
            session, key, _text(id), _text(tool), _text(origin), replica, rest.partition("/")[0], int(until or 0)
        )

    async def seen(self) -> dict[str, Seen]:
        """What each replica of the door has said last."""
        found = await self._store.command("HGETALL", self._keys.meta("pauseseen"))
        said = {name.decode(): value.decode().rpartition(" ") for name, value in found.items()}
        return {name: Seen(incarnation, int(version)) for name, (incarnation, _, version) in said.items()}

    async def progress(self, pause: Pause, now: int) -> tuple[bool, list[Holding]]:
        """Whether no send that it stops can begin any more, and what was claimed before and has no outcome yet."""
        _, version = await self.read()
        copies = await asyncio.gather(*(self._store.command("HGET", key, "version") for key in self._in_all("pauses")))
        held = [one for one in await self.holdings() if pause.covers(one.tool, one.session, one.origin)]
        seen = await self.seen()
        begins = any(may_still_send(one, seen, version, now) for one in held)
        return all(int(copy or 0) >= version for copy in copies) and not begins, [one for one in held if one.replica]

    # -- what waits

    async def park(
        self, call: Outgoing, step: Admitted, session: str, messages: Sequence[Outgoing], now: int
    ) -> Literal["parked", "go", "full"]:
        """Keep a call until its pause ends, and tell that it waits. "go": it is paused no more."""
        args: list[Arg] = [
            now, step.tool, session, step.authority.principal, call.id, call.pack(), step.not_after, MOST_PARKED,
            *self._outbox.args(messages),
        ]  # fmt: skip
        keys = [self._keys.of_session_partition("pauses", session), *self._parked(session), *self._outbox.keys(session)]
        reply = await self._store.run(_PARK, keys, args)
        if reply.tag == "parked":
            self._outbox.post(session, messages)
        return cast('Literal["parked", "go", "full"]', reply.tag)

    async def release(
        self, work: Work, call: Outgoing, step: Admitted, messages: Sequence[Outgoing], now: int
    ) -> str | None:
        """Undo a claim of which nothing was sent, and keep its call. None when done, else the state that stands."""
        keys, session = self._keys, work.session
        action = [] if step.action is None else [keys.of_session("action", session, step.action.id)]
        names = [
            keys.of_session("operation", session, work.key),
            *(keys.of_session_partition(family, session) for family in ("lease", "trim")),
            *self._parked(session),
            *self._outbox.keys(session),
            *(keys.binding_bucket(session, name, at) for name, at in step.authority.inputs),
            *action,
            *evidence_keys(keys, session),
        ]
        header = f"{step.tool} {session} {step.authority.principal}"
        args: list[Arg] = [
            now, work.owner, work.member, work.key, call.id, call.pack(), header, step.not_after,
            str(step.step) if action else "", RETENTION_MS, RELEASED, len(step.authority.inputs),
            *(name for name, _ in step.authority.inputs), *self._outbox.args(messages),
            *evidence_args(session, *evidence.released(work, step, RELEASED)),
        ]  # fmt: skip
        reply = await self._store.run(_RELEASE, names, args)
        if reply.tag == "fenced":
            return reply.text(0)
        self._outbox.post(session, messages)
        return None

    async def unpark(self, now: int) -> int:
        """Let go on what is paused no more, or is over, in the order in which it came. How many calls."""
        return sum(await asyncio.gather(*(self._unpark_in(number, now) for number in range(self._keys.partitions))))

    async def _unpark_in(self, partition: int, now: int) -> int:
        keys = [
            *(self._keys.in_partition(name, partition) for name in ("pauses", "parked", "parkedorder", "parkedends")),
            *self._keys.outbox("tools", partition),
        ]
        gone, place = 0, "-1"
        if not await self._store.command("ZCARD", keys[2]):
            return 0
        while place:
            reply = await self._store.run(_UNPARK, keys, [now, place, AT_ONCE])
            place = reply.text(0)
            calls = reply.values[1:]
            for id, session, packed in zip(calls[::3], calls[1::3], calls[2::3], strict=True):
                self._outbox.post(session.decode(), [Outgoing.unpack(id.decode(), packed)])
            gone += len(calls) // 3
        return gone

    async def waiting_count(self) -> int:
        """How many calls wait."""
        counts = await asyncio.gather(*(self._store.command("ZCARD", key) for key in self._in_all("parkedorder")))
        return sum(int(count) for count in counts)

    async def waiting(self) -> list[Waiting]:
        """All calls that wait, oldest first."""
        rows = await asyncio.gather(*(self._waiting_in(number) for number in range(self._keys.partitions)))
        return sorted((one for found in rows for one in found), key=lambda one: (one.since, one.call))

    async def _waiting_in(self, partition: int) -> list[Waiting]:
        order = await self._store.command(
            "ZRANGE", self._keys.in_partition("parkedorder", partition), 0, -1, "WITHSCORES"
        )
        ids, scores = [id.decode() for id in order[::2]], [int(float(score)) for score in order[1::2]]
        if not ids:
            return []
        parked = self._keys.in_partition("parked", partition)
        headers = await self._store.command("HMGET", parked, *(f"h:{id}" for id in ids))
        parts = [_text(header).split(" ", 2) for header in headers]
        return [
            Waiting(id, part[0], part[1], part[2], score)
            for id, part, score in zip(ids, parts, scores, strict=True)
            if len(part) == 3
        ]

    def _parked(self, session: str) -> list[str]:
        return [self._keys.of_session_partition(name, session) for name in ("parked", "parkedorder", "parkedends")]

    def _in_all(self, family: str) -> list[str]:
        return [self._keys.in_partition(family, number) for number in range(self._keys.partitions)]


def _pause(field: str, record: bytes) -> Pause:
    kind, _, name = field.partition(":")
    told: Mapping[str, Any] = orjson.loads(record)
    return Pause(cast(Any, kind), name, str(told["by"]), str(told["note"]), int(told["at"]))


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw or "")

"""Sessions in Redis: read once, cached by the owner, committed in one script."""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from libs.contracts.codec import to_json
from libs.contracts.errors import LostOwnership, StoreAway
from libs.contracts.ingress import Input
from libs.contracts.keys import SESSION_TTL_MS, Keys
from libs.contracts.session import TimelineLine
from libs.runtime.batch import Arg, Store
from libs.runtime.clock import Clock
from libs.runtime.evidence import evidence_args, evidence_keys
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script
from services.session import evidence
from services.session.domain.draft import Decision
from services.session.domain.state import HISTORY_KEPT, SessionState
from services.session.record import KEPT as RECORD_KEPT
from services.session.record import Recorder, leads_to
from services.session.snapshot import Snapshot

TIMELINE_KEPT = 200
CACHED_SESSIONS = 20_000
_COMMIT = load_script("services.session", "commit_turn")


class RedisSessions:
    """The port `Sessions` on Redis."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        keys: Keys,
        clock: Clock,
        on_conflict: Callable[[], None],
        recorder: Recorder | None = None,
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._keys = keys
        self._clock = clock
        self._cache: OrderedDict[str, Snapshot] = OrderedDict()
        self._on_conflict = on_conflict
        self._recorder = recorder

    async def load(self, session: str) -> Snapshot:
        """The session as cached, else as stored; a new one where nothing is stored yet."""
        if cached := self._cache.get(session):
            self._cache.move_to_end(session)
            return cached
        snapshot = await self.read(session)
        if self._recorder is not None:
            newest = await self._store.command("LRANGE", self._keys.of_session("record", session), -1, -1)
            snapshot.recorded = bool(newest) and leads_to(newest[0], snapshot.version)
        self._cache[session] = snapshot
        if len(self._cache) > CACHED_SESSIONS:
            self._cache.popitem(last=False)
        return snapshot

    async def read(self, session: str) -> Snapshot:
        """The session as stored, past the cache."""
        version, data = await self._store.command("HMGET", self._keys.of_session("state", session), "v", "d")
        entries = await self._store.command("LRANGE", self._keys.of_session("history", session), 0, -1)
        state = SessionState.model_validate_json(data) if data else SessionState(session=session)
        return Snapshot(state, int(version or 0), [orjson.loads(entry) for entry in entries])

    async def inputs(self, session: str, first: int, last: int) -> list[Input]:
        """Inputs by number, both ends included; those that are there."""
        numbers = [str(number) for number in range(first, last + 1)]
        bodies = await self._store.command("HMGET", self._keys.of_session("inbox", session), *numbers)
        return [Input.model_validate_json(body) for body in bodies if body is not None]

    async def commit(self, snapshot: Snapshot, decision: Decision, messages: Sequence[Outgoing]) -> None:
        """Store a decision and send its messages. Raises LostOwnership when another version is stored."""
        session = snapshot.state.session
        after = to_json(decision.state, exclude_defaults=True)
        entry = self._recorder.entry(snapshot, decision, messages, after) if self._recorder is not None else None
        record = () if entry is None else (entry.raw,)
        keys, args = self._commit_args(session, snapshot.version, decision, messages, after, record)
        try:
            reply = await self._store.run(_COMMIT, keys, args)
        except StoreAway:
            self.drop(session)  # it may have been committed: only a fresh look tells
            raise
        if reply.tag == "conflict":
            self._lost(session)
        snapshot.state = decision.state
        snapshot.version = reply.int(0)
        snapshot.recorded = entry is not None and entry.whole
        snapshot.history.extend(decision.history)
        del snapshot.history[:-HISTORY_KEPT]
        for number in decision.trimmed:
            snapshot.bodies.pop(number, None)
        self._outbox.post(session, messages)

    def _commit_args(
        self,
        session: str,
        version: int,
        decision: Decision,
        messages: Sequence[Outgoing],
        after: bytes,
        record: Sequence[bytes],
    ) -> tuple[list[str], list[Arg]]:
        of = self._keys.of_session
        keys = [of(family, session) for family in ("state", "timeline", "history", "inbox")]
        keys += [self._keys.of_session_partition("deadline", session), *self._outbox.keys(session)]
        keys.append(of("record", session))
        outcomes: list[Arg] = []
        for ref, became in decision.outcomes:
            keys.append(self._keys.outcome_bucket(session, ref.id, ref.accepted_at))
            outcomes += (len(keys), ref.id, f"{session} {ref.number} {became}")
        keys += evidence_keys(self._keys, session)
        due = decision.state.next_deadline
        args: list[Arg] = [
            version,
            secrets.token_hex(8),
            after,
            self._clock.now_ms(),
            due or "",
            session,
            SESSION_TTL_MS,
            TIMELINE_KEPT,
            HISTORY_KEPT,
            RECORD_KEPT,
            len(decision.lines),
            *(to_json(line) for line in decision.lines),
            len(decision.history),
            *(orjson.dumps(entry) for entry in decision.history),
            len(record),
            *record,
            len(decision.trimmed),
            *decision.trimmed,
            len(decision.outcomes),
            *outcomes,
            *self._outbox.args(messages),
            *evidence_args(session, evidence.commit(decision, version + 1, after)),
        ]
        return keys, args

    async def confirm(self, snapshot: Snapshot) -> None:
        """A decision that writes nothing still checks the version before its acknowledgement (design §3.2)."""
        session = snapshot.state.session
        if await self.version(session) != snapshot.version:
            self._lost(session)

    async def version(self, session: str) -> int:
        """The stored version, which every commit raises; 0 where nothing is stored yet."""
        return int(await self._store.command("HGET", self._keys.of_session("state", session), "v") or 0)

    def _lost(self, session: str) -> None:
        self._on_conflict()
        self.drop(session)
        raise LostOwnership(session)

    def drop(self, session: str) -> None:
        """Forget the cached state."""
        self._cache.pop(session, None)

    async def owner(self, session: str) -> str | None:
        """The session's owner, or None when there is no such session."""
        owner = await self._store.command("GET", self._keys.of_session("owner", session))
        return owner.decode() if owner else None

    async def timeline(self, session: str, after: int) -> list[TimelineLine]:
        """The kept lines with a higher number than `after`, in order."""
        raw = await self._store.command("LRANGE", self._keys.of_session("timeline", session), 0, -1)
        lines = (TimelineLine.model_validate_json(line) for line in raw)
        return [line for line in lines if line.seq > after]

    async def record(self, session: str) -> bytes:
        """The kept entries of the record with the state that they led to, as the JSON of a `Record`."""
        entries = await self._store.command("LRANGE", self._keys.of_session("record", session), 0, -1)
        version, data = await self._store.command("HMGET", self._keys.of_session("state", session), "v", "d")
        return orjson.dumps(
            {
                "session": session,
                "version": int(version or 0),
                "state": orjson.Fragment(data) if data else None,
                "entries": [orjson.Fragment(entry) for entry in entries],
            }
        )

    async def names(self, limit: int) -> list[str]:
        """The most recently created sessions of all partitions."""
        found: list[tuple[float, str]] = []
        for partition in range(self._keys.partitions):
            key = self._keys.in_partition("sessions", partition)
            rows = await self._store.command("ZRANGE", key, 0, limit - 1, "REV", "WITHSCORES")
            found += [(float(at), name.decode()) for name, at in zip(rows[::2], rows[1::2], strict=True)]
        return [name for _, name in sorted(found, reverse=True)[:limit]]

    async def due(self, partition: int, now: int) -> list[str]:
        """Sessions of a partition whose deadline is reached."""
        key = self._keys.in_partition("deadline", partition)
        rows: list[Any] = await self._store.command("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, 100)
        return [name.decode() for name in rows]

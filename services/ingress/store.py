"""Ingress's facts in Redis: every script of its `lua` folder, as a typed call."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Literal, TypeVar

import orjson
import structlog

from libs.contracts.errors import StoreAway
from libs.contracts.ids import shard_of
from libs.contracts.keys import DAY_MS, Keys
from libs.runtime.batch import Store
from libs.runtime.evidence import evidence_args, evidence_keys
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script
from services.ingress import evidence
from services.ingress.domain import Event, Misfit, event_identity
from services.ingress.ports import (
    POINTER,
    Accepted,
    Admission,
    Appended,
    Created,
    Duplicate,
    Held,
    Limits,
    Other,
    Pending,
    Placement,
    Record,
    Refused,
    Registered,
    Taken,
    Waiting,
)

log = structlog.get_logger(__name__)

_PACKAGE = "services.ingress"
_ADMIT = load_script(_PACKAGE, "admit")
_APPEND = load_script(_PACKAGE, "append")
_ROUTE_OR_HOLD = load_script(_PACKAGE, "route_or_hold")
_HOLD_FOR_SESSION = load_script(_PACKAGE, "hold_for_session")
_CREATE_SESSION = load_script(_PACKAGE, "create_session")
_REGISTER = load_script(_PACKAGE, "register")
_RELEASE_HELD = load_script(_PACKAGE, "release_held")
_EXPIRE_HELD = load_script(_PACKAGE, "expire_held")
_DROP_HELD = load_script(_PACKAGE, "drop_held")
_EXPIRE_WAITING = load_script(_PACKAGE, "expire_waiting")
_WRITE_OUTCOME = load_script(_PACKAGE, "write_outcome")
_QUARANTINE = load_script(_PACKAGE, "quarantine")
_TELL = load_script(_PACKAGE, "tell")

T = TypeVar("T")

QUARANTINE_PER_ID = 10
QUARANTINE_PER_SHARD = 1_000
_FIELD_LENGTH = 16


class IngressStore:
    """All that ingress reads and writes. Every method may raise StoreAway: what became of its write is then unknown."""

    def __init__(self, store: Store, keys: Keys, outbox: Outbox, limits: Limits) -> None:
        self._store = store
        self._keys = keys
        self._outbox = outbox
        self._limits = limits

    @property
    def session_ttl_ms(self) -> int:
        """How long a session lives without an input."""
        return self._limits.session_ttl_ms

    # Admission: the dedupe shard of an event's identity.

    async def admit(self, event: Event, token: str, now: int) -> Admission:
        """Claim the identity and store the event, in one write."""
        keys, shard = self._keys, shard_of(event.id, self._keys.partitions)
        reply = await self._store.run(
            _ADMIT,
            [
                keys.in_shard("event", shard, event.id),
                keys.in_shard("admitted", shard),
                *keys.dedupe_days(event.source, event.id, now, event.window_ms),
            ],
            [now, event.id, event.mark, token, event.pack(), event.window_ms, event.window_ms + 2 * DAY_MS],
        )
        match reply.tag:
            case "accepted":
                return Accepted()
            case "pending":
                return Pending(Event.unpack(reply.raw(0)))
            case "duplicate":
                return Duplicate()
            case _:
                pending = reply.raw(1)
                return Other(reply.text(0), Event.unpack(pending) if pending else None)

    async def forget(self, identities: list[str]) -> None:
        """Events that are in an inbox or held need no copy in the dedupe shard."""
        shards: dict[str, list[str]] = {}
        for identity in identities:
            shards.setdefault(self._keys.of_event("admitted", identity), []).append(identity)
        commands = []
        for index, members in shards.items():
            commands.append(self._store.command("DEL", *(self._keys.of_event("event", id, id) for id in members)))
            commands.append(self._store.command("ZREM", index, *members))
        await asyncio.gather(*commands)

    async def admitted_before(self, at: int, limit: int, offset: int = 0) -> tuple[list[Event], bool]:
        """Events that were admitted before `at` and not yet forgotten, `limit` a shard, after the first `offset` of
        each; and whether there are more."""
        pages = await self._each_shard("admitted", [self._admitted_in(n, at, limit, offset) for n in self._all()])
        return [event for events, _ in pages for event in events], any(more for _, more in pages)

    async def _each_shard(self, what: str, reads: Sequence[Awaitable[T]]) -> list[T]:
        """What could be read: one shard that cannot be must not stop the others. Raises StoreAway."""
        found = await asyncio.gather(*reads, return_exceptions=True)
        faults = [value for value in found if isinstance(value, BaseException)]
        for fault in faults:
            if isinstance(fault, StoreAway) or not isinstance(fault, Exception):
                raise fault
        if faults:
            log.error("shard.unreadable", what=what, count=len(faults), exc_info=faults[0])
        return [value for value in found if not isinstance(value, BaseException)]

    async def _admitted_in(self, shard: int, at: int, limit: int, offset: int) -> tuple[list[Event], bool]:
        index = self._keys.in_shard("admitted", shard)
        ids = await self._store.command("ZRANGEBYSCORE", index, "-inf", at, "LIMIT", offset, limit)
        bodies = await asyncio.gather(
            *(self._store.command("GET", self._keys.of_event("event", id.decode(), id.decode())) for id in ids)
        )
        gone = [id for id, body in zip(ids, bodies, strict=True) if body is None]
        if gone:
            await self._store.command("ZREM", index, *gone)
        events = [Event.unpack(body.partition(b" ")[2]) for body in bodies if body is not None]
        return events, len(ids) == limit

    async def point(self, event: Event, now: int) -> None:
        """Let an unsigned id lead to the identity that the body gave, for look-ups by operators."""
        pointer = event_identity(event.source, event.event)
        key = self._keys.dedupe_days(event.source, pointer, now, event.window_ms)[1]
        await asyncio.gather(
            self._store.command("HSET", key, pointer, POINTER + event.id),
            self._store.command("PEXPIRE", key, event.window_ms + 2 * DAY_MS),
        )

    # The session's partition.

    async def owner(self, session: str) -> str | None:
        """Whose session it is, or None when there is none."""
        found = await self._store.command("GET", self._keys.of_session("owner", session))
        return found.decode() if found is not None else None

    async def create_session(
        self, session: str, owner: str, now: int, trial: str = ""
    ) -> Created | Taken | Literal["real"]:
        """Write the owner, once, and for tests the mark of a trial. "real": it exists and is none."""
        keys = self._keys
        reply = await self._store.run(
            _CREATE_SESSION,
            [
                keys.of_session("owner", session),
                keys.of_session_partition("sessions", session),
                *self._waiting(session),
                keys.of_session("trial", session),
                *evidence_keys(keys, session),
            ],
            [
                session,
                owner,
                now,
                self._limits.session_ttl_ms,
                trial,
                *evidence_args(session, evidence.created(owner)),
            ],
        )
        if reply.tag == "real":
            return "real"
        return Taken(reply.text(0)) if reply.tag == "taken" else Created(reply.tag == "created", reply.int(0))

    async def append(
        self, event: Event, session: str, packed: bytes, number: int, doorbell: Outgoing, now: int
    ) -> Placement:
        """Give the event this number in the session's inbox, with its doorbell."""
        keys, partition = self._keys, self._keys.partition(session)
        reply = await self._store.run(
            _APPEND,
            [
                keys.in_partition("owner", partition, session),
                keys.in_partition("number", partition, session),
                keys.in_partition("inbox", partition, session),
                keys.outcome_bucket_in(partition, event.id, event.accepted_at),
                keys.in_partition("sessions", partition),
                *self._outbox.keys(session),
                keys.in_partition("waiting", partition, session),
                keys.in_partition("waitingindex", partition),
                *evidence_keys(keys, session),
            ],
            [
                now,
                session,
                event.id,
                packed,
                number,
                self._limits.session_ttl_ms,
                event.window_ms + 2 * DAY_MS,
                self._limits.outbox_limit,
                *self._outbox.args([doorbell]),
                *evidence_args(session, evidence.appended(packed, event.mark)),
            ],
        )
        match reply.tag:
            case "appended":
                return Appended(reply.int(0), new=True)
            case "already":
                return Appended(reply.int(0), new=False)
            case "number":
                return Waiting(reply.int(0))
            case "full":
                raise StoreAway("the outbox is above its bound", retry_after=2.0)
            case "absent":
                return Refused.ABSENT
            case _:
                return Refused.BEHIND

    async def has_room(self, event: Event, session: str, now: int) -> bool:
        """Whether the event may be held for its subject, or for `session` where that is not empty.

        True also for what is known already: its copy is no further event, and `admit` says what it is.
        """
        queue = self._waiting(session)[0] if session else self._held(event.route_subject)[0]
        waiting, place = await self._store.command("HMGET", queue, "n", f"i:{event.id}")
        if int(waiting or 0) < self._limits.held or place is not None:
            return True
        buckets = self._keys.dedupe_days(event.source, event.id, now, event.window_ms)
        marks = await asyncio.gather(*(self._store.command("HGET", bucket, event.id) for bucket in buckets))
        return any(mark is not None for mark in marks)

    async def hold_for_session(self, event: Event, session: str) -> Held | Refused | None:
        """Hold the event for its session; None when nothing is in its way any more, FULL when too many wait."""
        reply = await self._store.run(
            _HOLD_FOR_SESSION,
            [self._keys.of_session("owner", session), *self._waiting(session)],
            [session, event.id, event.deadline, event.hold_ms + DAY_MS, self._limits.held, event.pack()],
        )
        return None if reply.tag == "open" else _held(reply.tag)

    async def waiting(self, session: str) -> list[Event]:
        """The events that wait for a session, in order."""
        live, _ = _queue(await self._store.command("HGETALL", self._keys.of_session("waiting", session)))
        return live

    async def expire_waiting(self, event: Event, session: str, now: int) -> bool:
        """Let it expire if it may; its outcome is written in the same script."""
        keys = self._keys
        reply = await self._store.run(
            _EXPIRE_WAITING,
            [
                keys.of_session("owner", session),
                *self._waiting(session),
                keys.outcome_bucket(session, event.id, event.accepted_at),
            ],
            [session, event.id, now, event.window_ms + 2 * DAY_MS],
        )
        return reply.tag == "expired"

    async def write_outcome(self, event: Event, outcome: str) -> None:
        """What became of an event that is in no inbox: kept beside the outcomes of a session named like its id."""
        bucket = self._keys.outcome_bucket(event.id, event.id, event.accepted_at)
        await self._store.run(_WRITE_OUTCOME, [bucket], [event.id, f"- 0 {outcome}", event.window_ms + 2 * DAY_MS])

    async def tell(self, session: str, messages: list[Outgoing], now: int) -> None:
        """Commit messages that follow from no other change, and send them."""
        await self._store.run(_TELL, self._outbox.keys(session), [now, *self._outbox.args(messages)])
        self._outbox.post(session, messages)

    def _waiting(self, session: str) -> list[str]:
        keys = self._keys
        return [keys.of_session("waiting", session), keys.of_session_partition("waitingindex", session)]

    # The subject's shard.

    async def route_or_hold(self, event: Event) -> str | Held | Refused:
        """The session of the event's subject, or that it is held or may not be."""
        subject = event.route_subject
        reply = await self._store.run(
            _ROUTE_OR_HOLD,
            [self._keys.of_subject("subject", subject), *self._held(subject)],
            [
                subject,
                event.id,
                event.deadline if event.hold_ms else 0,
                event.hold_ms + DAY_MS,
                self._limits.held,
                event.pack(),
            ],
        )
        match reply.tag:
            case "session":
                return reply.text(0)
            case "absent":
                return Refused.ABSENT
            case tag:
                return _held(tag)

    async def session_of(self, subject: str) -> str | None:
        """The session that a subject is registered with, or None."""
        found = await self._store.command("GET", self._keys.of_subject("subject", subject))
        return found.split(b" ", 1)[0].decode() if found is not None else None

    async def register(self, subject: str, session: str, operation: str) -> Registered | Taken:
        """Register a subject, once."""
        reply = await self._store.run(
            _REGISTER,
            [self._keys.of_subject("subject", subject), *self._held(subject)],
            [subject, session, operation, self._limits.subject_ttl_ms],
        )
        return Taken(reply.text(0)) if reply.tag == "clash" else Registered(reply.tag == "registered", reply.int(0))

    async def held(self, subject: str) -> tuple[list[Event], list[Event]]:
        """The events that wait for a subject, in order, and those that expired and have no outcome yet."""
        return _queue(await self._store.command("HGETALL", self._keys.of_subject("held", subject)))

    async def release_held(self, subject: str, event: Event) -> None:
        """It is in an inbox: take it out of the queue."""
        await self._store.run(_RELEASE_HELD, self._held(subject), [subject, event.id])

    async def expire_held(self, event: Event, subject: str, now: int) -> bool:
        """Let it expire if it may. The outcome is written between this and `drop_held`."""
        keys = [self._keys.of_subject("subject", subject), *self._held(subject)]
        return (await self._store.run(_EXPIRE_HELD, keys, [subject, event.id, now])).tag == "expired"

    async def drop_held(self, event: Event, subject: str) -> None:
        """Its outcome is written: forget its body."""
        await self._store.run(_DROP_HELD, self._held(subject), [subject, event.id])

    def _held(self, subject: str) -> list[str]:
        shard = self._keys.subject_shard(subject)
        return [self._keys.of_subject("held", subject), self._keys.in_subject_shard("heldindex", shard)]

    # Queues by deadline, for sweepers and operators.

    async def held_subjects(self, until: int | str) -> list[str]:
        """Subjects with a deadline up to `until` (ms, or "+inf")."""
        return await self._due([self._keys.in_subject_shard("heldindex", n) for n in self._all()], until)

    async def waiting_sessions(self, until: int | str) -> list[str]:
        """Sessions that events wait for, with a deadline up to `until` (ms, or "+inf")."""
        return await self._due([self._keys.in_partition("waitingindex", n) for n in self._all()], until)

    async def _due(self, indexes: list[str], until: int | str) -> list[str]:
        reads = [self._store.command("ZRANGEBYSCORE", index, "-inf", until, "LIMIT", 0, 1_000) for index in indexes]
        found = await self._each_shard("deadlines", reads)
        return [name.decode() for names in found for name in names]

    def _all(self) -> range:
        return range(self._keys.partitions)

    # Quarantine: the shard of the identity.

    async def quarantine(self, misfit: Misfit, first: str, body: bytes, now: int) -> str:
        """Keep a body that must not be acted on; the id under which operators find it."""
        event, field = misfit.event, misfit.event.digest[:_FIELD_LENGTH]
        id = f"{event.id}-{field}"
        entry = {
            "id": id,
            "reason": misfit.reason,
            "source": event.source,
            "event": event.event,
            "type": event.type,
            "digest": event.digest,
            "first": first,
            "at": now,
            "body": body.decode("utf-8", "replace"),
            "held": orjson.loads(event.pack()),
        }
        index = self._keys.of_event("quarantineindex", event.id)
        await self._store.run(
            _QUARANTINE,
            [self._keys.of_event("quarantine", event.id, event.id), index],
            [now, field, orjson.dumps(entry), QUARANTINE_PER_ID, event.window_ms, id],
        )
        return id

    async def quarantined(self) -> list[dict[str, Any]]:
        """All that is in quarantine, newest first."""
        indexes = [self._keys.in_shard("quarantineindex", n) for n in self._all()]
        found = await asyncio.gather(*(self._store.command("ZRANGE", index, 0, -1, "REV") for index in indexes))
        entries = await asyncio.gather(*(self.quarantine_entry(id.decode()) for ids in found for id in ids))
        return sorted((entry for entry in entries if entry), key=lambda entry: -entry["at"])

    async def quarantine_entry(self, id: str) -> dict[str, Any] | None:
        """One entry with its body, or None."""
        identity, _, field = id.rpartition("-")
        found = await self._store.command("HGET", self._keys.of_event("quarantine", identity, identity), field)
        return orjson.loads(found) if found is not None else None

    async def drop_quarantined(self, id: str) -> None:
        """An operator let it in, or it was pushed out by newer ones."""
        identity, _, field = id.rpartition("-")
        await asyncio.gather(
            self._store.command("HDEL", self._keys.of_event("quarantine", identity, identity), field),
            self._store.command("ZREM", self._keys.of_event("quarantineindex", identity), id),
        )

    async def trim_quarantine(self, oldest: int) -> None:
        """Keep the newest thousand of each shard, and none from before `oldest` (ms), whose bodies are gone."""
        await self._each_shard("quarantine", [self._trim_shard(number, oldest) for number in self._all()])

    async def _trim_shard(self, number: int, oldest: int) -> None:
        index = self._keys.in_shard("quarantineindex", number)
        await self._store.command("ZREMRANGEBYSCORE", index, "-inf", oldest)
        excess = int(await self._store.command("ZCARD", index)) - QUARANTINE_PER_SHARD
        if excess > 0:
            for id in await self._store.command("ZRANGE", index, 0, excess - 1):
                await self.drop_quarantined(id.decode())

    async def trim_sessions(self, oldest: int) -> None:
        """Forget sessions without an input since `oldest` (ms): their keys have expired."""
        await asyncio.gather(
            *(
                self._store.command("ZREMRANGEBYSCORE", self._keys.in_partition("sessions", n), "-inf", oldest)
                for n in self._all()
            )
        )

    # What became of an event.

    async def record(self, source: str, identity: str, now: int, window_ms: int) -> Record | None:
        """Where an event stands, or None when it is not known (any more)."""
        buckets = self._keys.dedupe_days(source, identity, now, window_ms)
        marks = await asyncio.gather(*(self._store.command("HGET", bucket, identity) for bucket in buckets))
        today = now // DAY_MS
        days = [today + 1, today, *range(today - 1, today - len(buckets) + 1, -1)]
        found = [(day, mark.decode()) for day, mark in zip(days, marks, strict=True) if mark is not None]
        if not found:
            return None
        day, mark = found[0]
        pending, outcomes = await asyncio.gather(
            self._store.command("GET", self._keys.of_event("event", identity, identity)),
            self._outcomes(identity, day),
        )
        if outcomes:
            session, number, outcome = outcomes[0].decode().split(" ", 2)
            return Record(mark, "accepted" if int(number) else outcome, session, int(number), outcome)
        return Record(mark, "pending" if pending is not None else "held")

    async def _outcomes(self, identity: str, day: int) -> list[bytes]:
        """An input's outcome may be in any partition: its session is not part of its identity."""
        buckets = [self._keys.outcome_bucket_in(n, identity, day * DAY_MS) for n in self._all()]
        reads = [self._store.command("HGET", bucket, identity) for bucket in buckets]
        return [value for value in await self._each_shard("outcomes", reads) if value is not None]


def _held(tag: str) -> Held | Refused:
    if tag == "full":
        return Refused.FULL
    return Held(expired=tag == "expired")


def _queue(fields: dict[bytes, bytes]) -> tuple[list[Event], list[Event]]:
    """(waiting in order, expired without an outcome) of a held queue's hash."""
    live, expired = [], []
    for name, value in fields.items():
        if name.startswith(b"e:"):
            live.append((int(name[2:]), Event.unpack(value.split(b" ", 2)[2])))
        elif name.startswith(b"x:"):
            expired.append(Event.unpack(value.split(b" ", 1)[1]))
    return [event for _, event in sorted(live, key=lambda pair: pair[0])], expired

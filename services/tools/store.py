"""The ledger of operations in Redis. One script a move; replies are turned into values here."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import orjson

from libs.contracts.canonical import JSON
from libs.contracts.consent import World
from libs.contracts.door import code_of
from libs.contracts.ids import is_slug
from libs.contracts.keys import DAY_MS, SESSION_TTL_MS, Keys
from libs.contracts.reasons import OperationState
from libs.contracts.session import Step
from libs.contracts.tools import RunStep, action_key
from libs.runtime.batch import Arg, Store
from libs.runtime.evidence import evidence_args, evidence_keys
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import Reply, load_script
from services.tools import evidence
from services.tools.domain import Action, Admitted
from services.tools.ports import Delayed, Held, Known, Paused, Told, Turned, Work

RETENTION_MS = 48 * 3_600_000
"""How long an operation outlives its `not_after`: an old duplicate is never a new key (design §3.4)."""
BINDING_TTL_MS = 3 * DAY_MS
"""Bindings outlive the seals that they bind, which count for a day."""
INDEX_MAX = 500
TRIM_AGAIN_MS = 3_600_000
LOOKUP_FIRST_WAIT_MS = 1_000
LOOKUP_LONGEST_WAIT_MS = 300_000
"""An operation that stays unknown is asked about ever more seldom, at last every five minutes."""
BY_LOOKUP = "lookup"
"""Who resolved an operation, where its destination said so."""
PAUSED_AGAIN_MS = 2_000
"""So often is looked again at what a pause keeps from being taken over or asked about."""
_OWNERS_CACHED = 10_000
_REASON_MAX = 500

_CLAIM = load_script("services.tools", "claim_operation")
_RECORD = load_script("services.tools", "record_operation")
_TAKE_OVER = load_script("services.tools", "take_over")
_HAND_BACK = load_script("services.tools", "hand_back")
_WITHDRAW = load_script("services.tools", "withdraw_operation")
_BEGIN_LOOKUP = load_script("services.tools", "begin_lookup")
_SETTLE_LOOKUP = load_script("services.tools", "settle_lookup")
_RESOLVE = load_script("services.tools", "resolve_operation")
_TRIM = load_script("services.tools", "trim_operation")
_ANSWER = load_script("services.tools", "queue_answer")
_CLOSE = load_script("services.tools", "close_operation")


class RedisLedger:
    """Operations, in the partition of their session. `replica` is kept over restarts, `incarnation` is not."""

    def __init__(
        self, store: Store, keys: Keys, outbox: Outbox, *, replica: str, incarnation: str, step_cap: int
    ) -> None:
        self._store = store
        self._keys = keys
        self._outbox = outbox
        self._replica = replica
        self._incarnation = incarnation
        self._step_cap = step_cap
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._takes = 0

    def is_former_self(self, owner: str) -> bool:
        """Whether an owner token is of an earlier process of this very replica, which is gone."""
        replica, _, rest = owner.partition("/")
        return replica == self._replica and rest.partition("/")[0] != self._incarnation

    def _token(self, last: str) -> str:
        return f"{self._replica}/{self._incarnation}/{last}"

    async def action(self, session: str, action: str) -> Action | None:
        """The action's record, or None. Its steps, approver and decision never change once it is accepted."""
        key = self._keys.of_session("action", session, action)
        row = await self._store.command("HMGET", key, "steps", "approver", "input", "pins", "worlds")
        steps, approver, decision, pins, worlds = row
        if steps is None:
            return None
        parsed = tuple(Step.model_validate(step) for step in orjson.loads(steps))
        read = tuple(World.model_validate(one) if one else None for one in orjson.loads(worlds or b"[]"))
        return Action(action, parsed, _text(approver), _text(decision), tuple(orjson.loads(pins or b"[]")), read)

    async def owner(self, session: str) -> str:
        """The session's owner, "" for none. Written once, so kept in memory."""
        if session in self._owners:
            self._owners.move_to_end(session)
            return self._owners[session]
        found = _text(await self._store.command("GET", self._keys.of_session("owner", session)))
        if found:
            self._owners[session] = found
            if len(self._owners) > _OWNERS_CACHED:
                self._owners.popitem(last=False)
        return found

    async def claim(
        self, call: RunStep, step: Admitted, session: str, told: Told, *, lease_ms: int, now: int
    ) -> Work | Held | Known | Turned | Paused:
        """Claim the key, or say what is known of it, or what stops it. One round trip."""
        owner, asked = self._token(told.call), time.monotonic()
        reply = await self._store.run(
            _CLAIM,
            self._claim_keys(call, step, session, now),
            self._claim_args(call, step, session, told, owner, lease_ms, now),
        )
        match reply.tag:
            case "claimed":
                # Counted from before the store was asked, so that it ends before the lease does.
                send_by = asked + (reply.int(3) - reply.int(2)) / 1000
                return Work(
                    session=session, key=call.key, operation=call.operation, tool=step.tool, args=step.args,
                    attempt=reply.int(0), owner=owner, context=told, keyed_from=reply.int(1), now=reply.int(2),
                    origin=step.authority.principal, send_by=send_by, again=reply.text(4) == "1",
                )  # fmt: skip
            case "pending":
                return Held(reply.text(0), reply.int(1), reply.int(2), reply.text(3))
            case "known":
                return _known(reply)
            case "refused":
                return Turned("refused", reply.text(0), code_of("refused", reply.text(0)))
            case "paused":
                return Paused(reply.text(0))
            case _:
                state = cast(OperationState, reply.tag)
                return Turned(state, code=code_of(state, ""))

    def _claim_keys(self, call: RunStep, step: Admitted, session: str, now: int) -> list[str]:
        keys = self._keys
        root = f"turn:{call.root}"
        granted = [] if step.action is None else [keys.of_session("action", session, step.action.id)]
        before = [] if step.action is None else [action_key(step.action.id, number) for number in range(step.step)]
        return [
            self._operation(session, call.key),
            keys.of_session("operations", session),
            keys.of_session_partition("lease", session),
            keys.of_session_partition("trim", session),
            *(keys.binding_bucket(session, root, now + days * DAY_MS) for days in (1, 0, -1)),
            *(keys.binding_bucket(session, name, at) for name, at in step.authority.inputs),
            *granted,
            *(self._operation(session, key) for key in before),
            keys.of_session_partition("pauses", session),
            *evidence_keys(keys, session),
        ]

    def _claim_args(
        self, call: RunStep, step: Admitted, session: str, told: Told, owner: str, lease_ms: int, now: int
    ) -> list[Arg]:
        packed, context = orjson.dumps(dict(step.args)), _pack(told)
        return [
            now, told.call, owner, lease_ms, step.not_after, step.fingerprint, call.operation, call.turn, call.root,
            step.tool, packed, context, session, step.authority.principal, self._step_cap,
            BINDING_TTL_MS, INDEX_MAX, f"{session}:{call.key}", call.key, SESSION_TTL_MS,
            "" if step.action is None else str(step.step), len(step.action.steps) if step.action else 0,
            len(step.authority.inputs), *(name for name, _ in step.authority.inputs),
            *evidence_args(session, evidence.attempt(call, step, told, owner, lease_ms, packed, context)),
        ]  # fmt: skip

    async def take_over(
        self, session: str, key: str, *, gone: str, lease_ms: int, now: int, unsent: bool = False
    ) -> Work | Held | OperationState | Delayed:
        """Take a pending operation whose lease has ended, or whose holder is `gone`; else its holder or its state.

        `unsent`: also while its sends are paused, since nothing will be sent.
        """
        self._takes += 1
        owner = self._token(f"take-{self._takes}")
        member, send_by = f"{session}:{key}", time.monotonic() + lease_ms / 1000
        keys = [
            self._operation(session, key),
            *(self._keys.of_session_partition(family, session) for family in ("lease", "pauses")),
            *evidence_keys(self._keys, session),
        ]
        args: list[Arg] = [
            now, owner, lease_ms, member, gone, "1" if unsent else "", PAUSED_AGAIN_MS,
            *evidence_args(session, evidence.takeover(key, owner, lease_ms)),
        ]  # fmt: skip
        reply = await self._store.run(_TAKE_OVER, keys, args)
        if reply.tag == "paused":
            return Delayed(reply.text(1), reply.int(2), reply.int(3))
        if reply.tag == "held":
            return Held("", reply.int(0), now)
        if reply.tag == "finished":
            return cast(OperationState, reply.text(0))
        return Work(
            session=session, key=key, operation=reply.text(0), tool=reply.text(1), args=orjson.loads(reply.raw(2)),
            context=_unpack(reply.raw(4)), attempt=reply.int(5), owner=owner, keyed_from=reply.int(6),
            now=reply.int(7), origin=reply.text(8), send_by=send_by,
        )  # fmt: skip

    async def hand_back(self, work: Work, now: int, *, wait_ms: int = 0) -> None:
        """Give back what may have been sent before and must not be sent now: taken over later, after `wait_ms`."""
        keys = [
            self._operation(work.session, work.key), self._keys.of_session_partition("lease", work.session),
            *evidence_keys(self._keys, work.session),
        ]  # fmt: skip
        told = evidence_args(work.session, evidence.handed_back(work))
        await self._store.run(_HAND_BACK, keys, [now, work.owner, work.member, wait_ms, *told])

    async def record(
        self, work: Work, state: OperationState, result: JSON, reason: str, messages: Sequence[Outgoing], now: int,
        *, asked: bool = False,
    ) -> OperationState | None:  # fmt: skip
        """Store an outcome with its messages and send them. None when it counts, else the state that stands.

        `asked`: the destination can be asked, should the outcome be unknown.
        """
        keys = [
            self._operation(work.session, work.key),
            self._keys.of_session_partition("lease", work.session),
            *self._doubts(work.session),
            *self._outbox.keys(work.session),
            *evidence_keys(self._keys, work.session),
        ]
        raw, reason = orjson.dumps(result), reason[:_REASON_MAX]
        args: list[Arg] = [
            now, work.owner, state, raw, reason, work.member, RETENTION_MS,
            "1" if asked else "", *self._outbox.args(messages),
            *evidence_args(work.session, evidence.outcome(work, state, raw, reason)),
        ]  # fmt: skip
        reply = await self._store.run(_RECORD, keys, args)
        if reply.tag == "fenced":
            return cast(OperationState, reply.text(0))
        self._outbox.post(work.session, messages)
        return None

    async def withdraw(
        self, session: str, key: str, operation: str, not_after: int, call: str, messages: Sequence[Outgoing], now: int
    ) -> Known | None:
        """Leave a tombstone under an absent key and send the messages. None when withdrawn, else what is known."""
        keys = [
            self._operation(session, key),
            self._keys.of_session("operations", session),
            *self._outbox.keys(session),
            *evidence_keys(self._keys, session),
        ]
        args: list[Arg] = [
            now, operation, not_after, RETENTION_MS, call, key, INDEX_MAX, SESSION_TTL_MS, *self._outbox.args(messages),
            *evidence_args(session, evidence.withdrawn(key, operation, not_after, call)),
        ]  # fmt: skip
        reply = await self._store.run(_WITHDRAW, keys, args)
        if reply.tag == "known":
            return _known(reply)
        self._outbox.post(session, messages)
        return None

    async def close(
        self, call: RunStep, step: Admitted, session: str, told: Told, state: OperationState, result: JSON, reason: str,
        messages: Sequence[Outgoing], now: int,
    ) -> bool:  # fmt: skip
        """Close an absent key with its answer: it is never run. False where the key is known, and nothing changed."""
        keys = [
            self._operation(session, call.key),
            self._keys.of_session("operations", session),
            *self._outbox.keys(session),
            *evidence_keys(self._keys, session),
        ]
        raw, reason = orjson.dumps(result), reason[:_REASON_MAX]
        args: list[Arg] = [
            now, state, call.operation, step.fingerprint, step.tool, told.call, raw, reason,
            step.not_after, RETENTION_MS, call.key, INDEX_MAX, SESSION_TTL_MS,
            *self._outbox.args(messages),
            *evidence_args(session, evidence.held_back(call, step, told, state, raw, reason)),
        ]  # fmt: skip
        reply = await self._store.run(_CLOSE, keys, args)
        if reply.tag == "known":
            return False
        self._outbox.post(session, messages)
        return True

    async def answer(self, session: str, messages: Sequence[Outgoing], now: int, told: bytes = b"") -> None:
        """Queue and send messages that change no operation; `told` is the line of evidence of it."""
        keys, args = self._outbox.keys(session), [now, *self._outbox.args(messages)]
        if told:
            keys, args = keys + evidence_keys(self._keys, session), args + evidence_args(session, told)
        await self._store.run(_ANSWER, keys, args)
        self._outbox.post(session, messages)

    async def begin_lookup(
        self, session: str, key: str, *, ask_ms: int, at_once: bool, now: int, asks: str = ""
    ) -> Work | int | OperationState:
        """Take the next look-up of an unknown operation, which may last `ask_ms`; `at_once` also before it is due.
        `asks` is the tool that asks: it may be paused.

        Else when it is due (milliseconds), or the state of one that is not unknown.
        """
        self._takes += 1
        token = self._token(f"ask-{self._takes}")
        keys = [
            self._operation(session, key),
            *(self._keys.of_session_partition(family, session) for family in ("lookup", "pauses")),
        ]
        args: list[Arg] = [
            now, f"{session}:{key}", token, ask_ms, LOOKUP_FIRST_WAIT_MS, LOOKUP_LONGEST_WAIT_MS,
            "1" if at_once else "", asks, PAUSED_AGAIN_MS,
        ]  # fmt: skip
        reply = await self._store.run(_BEGIN_LOOKUP, keys, args)
        if reply.tag == "later":
            return reply.int(0)
        if reply.tag == "known":
            return cast(OperationState, reply.text(0))
        return Work(
            session=session, key=key, operation=reply.text(0), tool=reply.text(1), args=orjson.loads(reply.raw(2)),
            context=_unpack(reply.raw(4)), attempt=reply.int(5), owner=token, keyed_from=reply.int(6),
            now=reply.int(7), origin=reply.text(8),
        )  # fmt: skip

    async def settle_lookup(
        self, work: Work, state: OperationState, result: JSON, reason: str, messages: Sequence[Outgoing], *,
        silent_ms: int, now: int, released_until: int = 0,
    ) -> str | None:  # fmt: skip
        """What the destination said when it was asked at `work.now`. None when it counts, else the state that stands,
        or "early": a holder's call may still arrive within `silent_ms` after its lease.

        `released_until`: until when (milliseconds) the key may be claimed again after a failure, 0 for never.
        """
        keys = [
            self._operation(work.session, work.key), *self._doubts(work.session), *self._outbox.keys(work.session),
            *evidence_keys(self._keys, work.session),
        ]  # fmt: skip
        raw, reason = orjson.dumps(result), reason[:_REASON_MAX]
        args: list[Arg] = [
            now, state, raw, reason, BY_LOOKUP, work.member, RETENTION_MS, work.now, silent_ms, released_until,
            *self._outbox.args(messages),
            *evidence_args(
                work.session, evidence.looked_up(work, state, raw, reason, BY_LOOKUP, released_until=released_until)
            ),
        ]  # fmt: skip
        reply = await self._store.run(_SETTLE_LOOKUP, keys, args)
        if reply.tag == "resolved":
            self._outbox.post(work.session, messages)
            return None
        return reply.text(0) if reply.tag == "known" else "early"

    async def ask_again(self, session: str, key: str, now: int) -> None:
        """Have an unknown operation asked about that nobody asks about. Nothing changes where somebody does."""
        lookup = self._keys.of_session_partition("lookup", session)
        await self._store.command("ZADD", lookup, "NX", now, f"{session}:{key}")

    async def resolve(
        self, session: str, key: str, state: OperationState, note: str, operator: str, messages: Sequence[Outgoing],
        now: int,
    ) -> str | None:  # fmt: skip
        """An operator's word on what is unknown. None when it counts, else the state that stands or "absent"."""
        keys = [
            self._operation(session, key), *self._doubts(session), *self._outbox.keys(session),
            *evidence_keys(self._keys, session),
        ]  # fmt: skip
        note = note[:_REASON_MAX]
        args: list[Arg] = [
            now, state, note, operator, f"{session}:{key}", RETENTION_MS, *self._outbox.args(messages),
            *evidence_args(session, evidence.resolved(key, state, note, operator)),
        ]  # fmt: skip
        reply = await self._store.run(_RESOLVE, keys, args)
        if reply.tag == "resolved":
            self._outbox.post(session, messages)
            return None
        return reply.text(0) if reply.tag == "known" else "absent"

    async def trim(self, session: str, key: str, now: int) -> None:
        """Leave a tombstone of an operation that can no longer be claimed."""
        keys = [self._operation(session, key), self._keys.of_session_partition("trim", session)]
        await self._store.run(_TRIM, keys, [now, f"{session}:{key}", TRIM_AGAIN_MS])

    async def due(self, family: str, now: int, limit: int) -> list[tuple[str, str]]:
        """(session, key) of what is due in `lease`, `lookup` or `trim`, `limit` a partition, in all partitions."""
        ranges = await asyncio.gather(
            *(
                self._store.command("ZRANGEBYSCORE", self._in(family, number), "-inf", now, "LIMIT", 0, limit)
                for number in range(self._keys.partitions)
            )
        )
        return [_member(raw) for found in ranges for raw in found]

    async def members(self, family: str) -> list[tuple[str, str]]:
        """(session, key) of all that is in `lease` or `unknown`, oldest first in each partition, 1,000 a partition."""
        ranges = await asyncio.gather(
            *(
                self._store.command("ZRANGE", self._in(family, number), 0, 999)
                for number in range(self._keys.partitions)
            )
        )
        return [_member(raw) for found in ranges for raw in found]

    async def unknown_count(self) -> int:
        """How many operations are unknown."""
        counts = await asyncio.gather(
            *(self._store.command("ZCARD", self._in("unknown", number)) for number in range(self._keys.partitions))
        )
        return sum(int(count) for count in counts)

    async def of_session(self, session: str) -> list[tuple[str, str]]:
        """(operation, key) of a session's operations, oldest first."""
        found = await self._store.command("ZRANGE", self._keys.of_session("operations", session), 0, -1)
        return [_member(raw) for raw in found]

    async def find(self, session: str, operation: str) -> str | None:
        """The key under which an operation was last claimed, or None."""
        for name, key in reversed(await self.of_session(session)):
            if name == operation:
                return key
        return None

    async def read(self, session: str, key: str) -> dict[str, str]:
        """The fields of an operation as they are stored; none if it is absent."""
        raw = await self._store.command("HGETALL", self._operation(session, key))
        pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
        return {_text(name): _text(value) for name, value in pairs}

    async def record_of(self, session: str, name: str) -> dict[str, str]:
        """A record that evidence speaks of, `operation:KEY`, `action:A1` or `session`: its stored bytes as text, one
        character each; nothing where it is gone."""
        family, _, id = name.partition(":")
        if family == "session":
            owner = await self._store.command("GET", self._keys.of_session("owner", session))
            return {"owner": owner.decode("latin-1")} if owner is not None else {}
        if family not in ("operation", "action") or not is_slug(id):
            return {}
        operation, action = (self._keys.of_session(of, session, id) for of in ("operation", "action"))
        raw = await self._store.command("HGETALL", operation if family == "operation" else action)
        pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
        return {field.decode("latin-1"): value.decode("latin-1") for field, value in pairs}

    def _operation(self, session: str, key: str) -> str:
        return self._keys.of_session("operation", session, key)

    def _doubts(self, session: str) -> list[str]:
        """Where an operation is listed whose outcome is unknown."""
        return [self._keys.of_session_partition(family, session) for family in ("unknown", "lookup")]

    def _in(self, family: str, partition: int) -> str:
        return self._keys.in_partition(family, partition)


def told_of(fields: dict[str, str]) -> Told:
    """The context of an operation that was read; empty once it is trimmed."""
    return _unpack(fields["context"].encode()) if "context" in fields else Told(call=fields.get("call", ""))


def _known(reply: Reply) -> Known:
    result = orjson.loads(reply.raw(1)) if reply.raw(1) else None
    state = cast(OperationState, reply.text(0))
    return Known(
        state, result, reply.text(2), reply.text(3), reply.text(4), reply.int(5), reply.text(6), reply.text(7) == "1"
    )


def _pack(told: Told) -> bytes:
    return orjson.dumps([told.call, told.correlation, told.depth, told.trace, told.lab, told.observed, told.standing])


def _unpack(raw: bytes) -> Told:
    return Told(*orjson.loads(raw))


def _member(raw: bytes) -> tuple[str, str]:
    first, _, second = raw.decode().partition(":")
    return first, second


def _text(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw or "")

"""Actions in Redis. The scripts judge; this file spells keys and arguments.

An action is the hash `action:<session>:<id>` in the session's partition:

| field | meaning |
|---|---|
| `state` | `pending accepted declined expired superseded cancelled`, or `not_asked` |
| `issued` `fingerprint` `token` | what the issuing became, of which content, by which attempt |
| `steps` `count` | the literal steps as a JSON list of `{"tool", "args"}`, and how many |
| `worlds` | for each step: what the door read of the world for the question, where its tool has a precondition |
| `question` `question_digest` | the text that was shown, and its SHA-256 (hex) |
| `approver` `source` `turn` | who may decide, the asking source, the asking turn |
| `asked_at` `expires_at` | milliseconds (Unix), store time; decidable up to and including `expires_at` |
| `asked_number` | the session's last input number when it was asked: an older text cannot mean it |
| `depth` `trace` `correlation` | of the asking message, carried on by the decision |
| `decision` `decided_by` `decided_at` `decided_token` | the one decision |
| `receipt` `input` | the approver's receipt as bytes, and the id of the numbered input |
| `lapses_at` | end of the grant, inclusive; set by acceptance only |
| `s0` `s1` … | **written by the door's claim script**: the operation key that spent this step |
| `replaced` | the questions that gave way to this one when it was asked, a space after each |
| `closed_as` `closed_at` `closed_token` `reason` | `expired superseded cancelled lapsed`: closed without the approver |

The door may spend step `i` when `state` is `accepted`, store time <= `lapses_at`, `i` < `count`, and `s<i>` is absent
or holds its own key. `steps` never change after the issuing, so what it reads is what was shown. A grant that lapsed
keeps `state` `accepted`: the approver's receipt stays true, and `lapses_at` alone decides.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from libs.contracts.codec import to_json
from libs.contracts.consent import World
from libs.contracts.errors import ContractError
from libs.contracts.keys import DAY_MS, SESSION_TTL_MS, Keys
from libs.contracts.session import Step
from libs.runtime.batch import Arg, Store
from libs.runtime.clock import Clock
from libs.runtime.evidence import evidence_args, evidence_keys
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script
from services.consent import evidence
from services.consent.domain import Record, worlds_json
from services.consent.ports import Answer, ClosedAs, Glance, Issue, Place, Redemption

KEEP_MS = 30 * DAY_MS
OUTCOME_KEEP_MS = 6 * DAY_MS
REFUSED_KEEP_MS = DAY_MS
SWEEP_BATCH = 200
_OWNERS = 10_000

_ISSUE = load_script("services.consent", "issue_action")
_REDEEM = load_script("services.consent", "redeem_action")
_CLOSE = load_script("services.consent", "close_action")
_REFUSE = load_script("services.consent", "refuse_decision")


class RedisActions:
    """`ports.Actions` on Redis. `outbox_limit` is the most unconfirmed messages that a partition may hold."""

    def __init__(self, store: Store, outbox: Outbox, keys: Keys, clock: Clock, outbox_limit: int) -> None:
        self._store = store
        self._outbox = outbox
        self._keys = keys
        self._clock = clock
        self._outbox_limit = outbox_limit
        self._owners: dict[str, str] = {}

    async def owner(self, session: str) -> str | None:
        """Written once by ingress, so what was read stays true; only absence is asked again."""
        known = self._owners.get(session)
        if known is None:
            raw = await self._store.command("GET", self._keys.of_session("owner", session))
            if raw is None:
                return None
            if len(self._owners) >= _OWNERS:
                self._owners.clear()
            known = self._owners[session] = _text(raw)
        return known

    async def now(self) -> int:
        seconds, microseconds = await self._store.command("TIME")
        return max(int(seconds) * 1000 + int(microseconds) // 1000, self._clock.now_ms())

    async def glance(self, session: str, action: str) -> Glance:
        row, number, now = await asyncio.gather(
            self._store.command("HGETALL", self._action(session, action)),
            self._store.command("GET", self._keys.of_session("number", session)),
            self.now(),
        )
        return Glance(_record(session, action, row), int(number or 0) + 1, now)

    async def of_session(self, session: str) -> Sequence[Record]:
        names = await self._store.command("ZRANGE", self._keys.of_session("actions", session), 0, -1)
        actions = [_text(name) for name in names]
        rows = await asyncio.gather(
            *(self._store.command("HGETALL", self._action(session, action)) for action in actions)
        )
        records = [_record(session, action, row) for action, row in zip(actions, rows, strict=True)]
        return [record for record in records if record is not None]

    async def issue(self, issue: Issue, asked: Sequence[Outgoing], refused: Sequence[Outgoing]) -> Answer:
        fields = _fields(issue)
        keys = [
            self._action(issue.session, issue.action),
            self._keys.of_session("actions", issue.session),
            self._keys.of_session("open", issue.session),
            self._keys.of_session_partition("expiry", issue.session),
            self._keys.of_session("number", issue.session),
            *self._outbox.keys(issue.session),
            *(self._action(issue.session, place.action) for place in issue.places),
            *evidence_keys(self._keys, issue.session),
        ]
        args = [
            issue.action,
            _member(issue.session, issue.action),
            issue.now,
            issue.attempt,
            issue.fingerprint,
            issue.source,
            issue.cap,
            issue.question.expires_at if issue.question else 0,
            KEEP_MS,
            issue.refused_because,
            len(fields),
            *(part for pair in fields.items() for part in pair),
            *self._outbox.args(asked),
            *self._outbox.args(refused),
            len(issue.places),
            *(part for place in issue.places for part in self._place(issue.session, place)),
            *evidence_args(issue.session, *evidence.question(issue, fields)),
        ]
        reply = await self._store.run(_ISSUE, keys, args)
        match reply.tag:
            case "asked":
                closed = tuple(reply.text(0).split())
                gone = [place.closed for place in issue.places if place.action in closed]
                self._outbox.post(issue.session, [*gone, *asked])
                return Answer(reply.tag, closed=closed)
            case "not_asked":
                reason = reply.text(0)
                standing = [place.refused for place in issue.places if reason == place.stands]
                self._outbox.post(issue.session, standing or refused)
                return Answer(reply.tag, reason=reason)
        return Answer(reply.tag)

    def _place(self, session: str, place: Place) -> list[Arg]:
        return [
            place.action,
            _member(session, place.action),
            place.reason,
            place.stands,
            *self._outbox.args([place.closed]),
            *self._outbox.args([place.refused]),
        ]

    async def redeem(self, redemption: Redemption, messages: Sequence[Outgoing]) -> Answer:
        session, action, sealed = redemption.session, redemption.action, redemption.input
        keys = [
            self._action(session, action),
            self._keys.of_session("open", session),
            self._keys.of_session_partition("expiry", session),
            self._keys.of_session_partition("grant", session),
            self._keys.of_session("number", session),
            self._keys.of_session("inbox", session),
            self._keys.outcome_bucket(session, sealed.id, sealed.accepted_at),
            *self._outbox.keys(session),
            *evidence_keys(self._keys, session),
        ]
        args = [
            action,
            _member(session, action),
            sealed.accepted_at,
            redemption.by,
            redemption.question_digest,
            redemption.verdict,
            redemption.attempt,
            redemption.typed,
            redemption.receipt,
            redemption.lapses_at,
            KEEP_MS,
            sealed.id,
            session,
            sealed.number,
            to_json(sealed),
            SESSION_TTL_MS,
            OUTCOME_KEEP_MS,
            self._outbox_limit,
            *self._outbox.args(messages),
            *evidence_args(session, *evidence.decision(redemption)),
        ]
        reply = await self._store.run(_REDEEM, keys, args)
        match reply.tag:
            case "accepted" | "declined" | "cancelled":
                self._outbox.post(session, messages)
                return Answer(reply.tag, receipt=reply.raw(0), asked_at=reply.int(1))
            case "repeated" | "replayed":
                return Answer(reply.tag, receipt=reply.raw(0))
            case "number":
                return Answer(reply.tag, number=reply.int(0))
        return Answer(reply.tag)

    async def close(
        self, session: str, action: str, to: ClosedAs, *, attempt: str, reason: str, messages: Sequence[Outgoing]
    ) -> Answer:
        keys = [
            self._action(session, action),
            self._keys.of_session("open", session),
            self._keys.of_session_partition("expiry", session),
            self._keys.of_session_partition("grant", session),
            *self._outbox.keys(session),
            *evidence_keys(self._keys, session),
        ]
        args = [
            action,
            _member(session, action),
            self._clock.now_ms(),
            to,
            attempt,
            reason,
            KEEP_MS,
            *self._outbox.args(messages),
            *evidence_args(session, evidence.closed(action, to, attempt, reason)),
        ]
        reply = await self._store.run(_CLOSE, keys, args)
        if reply.tag in ("closed", "withdrawn"):
            self._outbox.post(session, messages)
        return Answer(reply.tag, reason=reply.text(0) if reply.tag == "stands" else "")

    async def refuse(self, session: str, mark: Sequence[str], *, attempt: str, messages: Sequence[Outgoing]) -> Answer:
        keys = [self._keys.of_session("refused", session, *mark), *self._outbox.keys(session)]
        args = [self._clock.now_ms(), attempt, REFUSED_KEEP_MS, *self._outbox.args(messages)]
        reply = await self._store.run(_REFUSE, keys, args)
        if reply.tag == "told":
            self._outbox.post(session, messages)
        return Answer(reply.tag)

    async def overdue(self, which: Literal["expiry", "grant"], now: int) -> Sequence[tuple[str, str]]:
        # Exclusive: at the very millisecond of its deadline a question can still be answered.
        found = await asyncio.gather(
            *(
                self._store.command("ZRANGEBYSCORE", key, "-inf", f"({now}", "LIMIT", 0, SWEEP_BATCH)
                for key in self._in_all_partitions(which)
            )
        )
        members = (_text(member).partition(":") for members in found for member in members)
        return [(session, action) for session, _, action in members]

    async def pending(self) -> int:
        """Counted in the indexes of open questions: one cheap call for each partition, all in one pipeline."""
        now = await self.now()
        counts = await asyncio.gather(
            *(self._store.command("ZCOUNT", key, now, "+inf") for key in self._in_all_partitions("expiry"))
        )
        return sum(int(count) for count in counts)

    def _in_all_partitions(self, family: str) -> list[str]:
        return [self._keys.in_partition(family, partition) for partition in range(self._keys.partitions)]

    def _action(self, session: str, action: str) -> str:
        return self._keys.of_session("action", session, action)


def _member(session: str, action: str) -> str:
    # Ids are slugs, which hold no colon, so this can be taken apart again.
    return f"{session}:{action}"


def _fields(issue: Issue) -> dict[str, str | int | bytes]:
    asked = issue.question
    if asked is None:
        return {}
    return {
        "steps": orjson.dumps([step.model_dump() for step in asked.steps]),
        "count": len(asked.steps),
        "question": asked.question,
        "question_digest": asked.question_digest,
        "approver": asked.approver,
        "source": asked.source,
        "turn": asked.turn,
        "asked_at": issue.now,
        "depth": issue.depth,
        "trace": issue.trace,
        "correlation": issue.correlation,
        **({"pins": orjson.dumps(asked.pins)} if any(asked.pins) else {}),
        "worlds": orjson.dumps(worlds_json(asked.worlds)),
    }


def _record(session: str, action: str, raw: Any) -> Record | None:
    """The record of an action that was asked, or None: what was not asked is nobody's to see or decide."""
    pairs = raw if isinstance(raw, Mapping) else dict(zip(raw[::2], raw[1::2], strict=True))
    row = {_text(name): _text(value) for name, value in pairs.items()}
    if row.get("issued") != "asked":
        return None
    try:
        steps = tuple(Step.model_validate(step) for step in orjson.loads(row["steps"]))
        read = orjson.loads(row.get("worlds") or "[]")
        worlds = tuple(World.model_validate(one) if one else None for one in read)
    except ValueError as error:
        raise ContractError(f"the stored action {action} cannot be read") from error
    values: dict[str, Any] = {name: row.get(name, "") for name in _TEXTS}
    values |= {name: int(row.get(name, 0)) for name in _NUMBERS}
    spent = tuple(index for index in range(len(steps)) if f"s{index}" in row)
    return Record(session=session, action=action, steps=steps, spent=spent, worlds=worlds, **values)


_TEXTS = ("state", "question", "question_digest", "approver", "source", "turn", "decided_by", "closed_as", "reason",
          "trace", "correlation")  # fmt: skip
_NUMBERS = ("asked_at", "expires_at", "decided_at", "lapses_at", "closed_at", "depth")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

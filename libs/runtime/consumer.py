"""Receive → decode → bind log context → handle → settle → one log line, one metric. The same for every service."""

import asyncio
import base64
import hashlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from libs.contracts.codec import BUNDLE_TYPE, decode, encode, split
from libs.contracts.envelope import Envelope, Message
from libs.contracts.errors import ContractError, LostOwnership, PermanentError, StoreAway, TransientError
from libs.contracts.ids import derive_id
from libs.contracts.keys import Keys
from libs.contracts.topology import Topology
from libs.runtime.batch import Store
from libs.runtime.clock import Clock
from libs.runtime.composer import Composer
from libs.runtime.intake import Delivery
from libs.runtime.metrics import RuntimeMetrics
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Outgoing
from libs.runtime.scripts import load_script
from libs.runtime.settle import Outcome, Settlement, reason, settlement

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 5
MOST_PAUSE_SECONDS = 2.0
ATTEMPTS_TTL_MS = 86_400_000
MAX_DEAD_BYTES = 256 * 1024
"""A larger dead letter carries the beginning of its message only: the broker may refuse it (max_message_size)."""
MAX_RAW_BYTES = 64 * 1024
_COUNT = load_script("libs.runtime", "count_attempt")
_BURY = load_script("libs.runtime", "bury_message")


@dataclass(frozen=True)
class Context:
    """What a handler is told beside its message."""

    envelope: Envelope
    now: int
    """Milliseconds (Unix)."""
    composer: Composer

    def emit(
        self, message: Message, *id_parts: object, session: str | None = None, depth: int | None = None
    ) -> Outgoing:
        """A message caused by this one. Its id is derived from its type, session and `id_parts` (G2)."""
        envelope = self.envelope
        return self.composer.compose(
            message,
            session=envelope.session if session is None else session,
            id_parts=id_parts,
            cause=envelope.id,
            correlation=envelope.correlation or envelope.id,
            depth=envelope.depth if depth is None else depth,
            trace=envelope.trace,
            now=self.now,
        )


T = TypeVar("T")
Handler = Callable[[Any, Context], Awaitable[Outcome]]
OnDead = Callable[[Message, Context, str], Awaitable[bool]]


@dataclass(eq=False)
class _Member:
    """One message of a bundle, on its way through its lane."""

    raw: Any
    place: int
    """Which one of its bundle it is, from 0."""
    delivery: Delivery
    bundle: "_Bundle"
    fault: ContractError | None = None
    """Why the delivery could not be unpacked; then it is all one member."""
    counted: bool = False


@dataclass(eq=False)
class _Bundle:
    """Counts the members that are not yet committed."""

    delivery: Delivery
    left: int

    def one_done(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.delivery.done()


class Consumer:
    """Hands each member of each bundle to its handler: members of one session one by one, sessions side by side.

    `on_dead` may commit a message as dead itself (the session does, to pass over its number) and then says True.
    """

    def __init__(
        self,
        service: str,
        handlers: Mapping[type[Message], Handler],
        *,
        store: Store,
        outbox: Outbox,
        keys: Keys,
        topology: Topology,
        composer: Composer,
        clock: Clock,
        metrics: RuntimeMetrics,
        on_dead: OnDead | None = None,
    ) -> None:
        self._service = service
        self._handlers = {message.wire_type(): handler for message, handler in handlers.items()}
        self._store = store
        self._outbox = outbox
        self._keys = keys
        self._topology = topology
        self._composer = composer
        self._clock = clock
        self._metrics = metrics
        self._on_dead = on_dead
        self._lanes: dict[str, deque[_Member]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.declare(list(self._handlers), [*Outcome, "dead"])

    def start(self, delivery: Delivery) -> None:
        """Take a delivery: unpack it and put each member into the lane of its session."""
        fault = None
        try:
            members = split(delivery.body) if delivery.content_type == BUNDLE_TYPE else [_alone(delivery.body)]
        except ContractError as error:
            members, fault = [delivery.body], error
        bundle = _Bundle(delivery, len(members) or 1)
        if not members:
            bundle.one_done()
        for place, raw in enumerate(members):
            lane = raw["session"] if isinstance(raw, dict) and isinstance(raw.get("session"), str) else ""
            self._enqueue(lane, _Member(raw, place, delivery, bundle, fault))

    def _enqueue(self, lane: str, member: _Member) -> None:
        waiting = self._lanes.get(lane)
        if waiting is not None:
            waiting.append(member)
            return
        self._lanes[lane] = deque([member])
        task = asyncio.create_task(self._drive(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run_in_lane(self, session: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run something of ours, such as a reached deadline, between the messages of a session."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(session, _Errand(work, done))  # type: ignore[arg-type]
        await done

    async def _drive(self, lane: str) -> None:
        waiting = self._lanes[lane]
        try:
            while waiting:
                member = waiting.popleft()
                if isinstance(member, _Errand):
                    await member.run()
                elif not member.delivery.stale:
                    await self._handle_or_give_back(member)
        finally:
            del self._lanes[lane]

    async def _handle_or_give_back(self, member: _Member) -> None:
        try:
            await self._handle(member)
        except Exception:
            # A fault in the settling itself: a member left here unsettled would hold up its partition for good.
            log.exception("settling.failed", queue=member.delivery.routing_key)
            member.delivery.give_back()

    async def _handle(self, member: _Member) -> None:
        started = time.perf_counter()
        attempt = 1
        pauses = 0
        while not member.delivery.stale:
            result, envelope = await self._attempt(member)
            match settlement(result):
                case Settlement.ACKNOWLEDGE:
                    member.bundle.one_done()
                    self._tell(envelope, str(result), attempt, started)
                    return
                case Settlement.BURY:
                    if await self._bury(member, envelope, result):
                        self._tell(envelope, "dead", attempt, started, result)
                        return
                case Settlement.PAUSE:
                    pauses += 1
                    await self._wait_back(pauses, result)
                case Settlement.YIELD:
                    log.warning("ownership.lost", session=envelope.session if envelope else "")
                    member.delivery.give_back()
                    return
                case Settlement.RETRY:
                    attempt += 1
                    if attempt > MAX_ATTEMPTS:
                        if await self._bury(member, envelope, result):
                            self._tell(envelope, "dead", attempt, started, result)
                            return
                        continue
                    await self._before_retry(envelope, attempt, result)
                case Settlement.NOTHING:
                    return

    async def _attempt(self, member: _Member) -> tuple[Outcome | BaseException, Envelope | None]:
        envelope = None
        try:
            if member.fault is not None:
                raise member.fault
            envelope, message = decode(member.raw)
            handler = self._handlers.get(envelope.type)
            if handler is None:
                raise ContractError(f"{envelope.type} does not belong into this queue")
            if member.delivery.redelivered and not member.counted:
                await self._count(envelope)
                member.counted = True
            context = Context(envelope, self._clock.now_ms(), self._composer)
            return await self._decide(handler, message, context), envelope
        except asyncio.CancelledError as error:
            return error, envelope
        except Exception as error:
            if settlement(error) is Settlement.RETRY and not isinstance(error, TransientError):
                log.exception("handler.failed", type=envelope.type if envelope else "")
            return error, envelope

    async def _decide(self, handler: Handler, message: Message, context: Context) -> Outcome:
        """A handler that lost to another owner has dropped its state: decide again in place, three times."""
        return await _thrice(lambda: handler(message, context))

    async def _count(self, envelope: Envelope) -> None:
        """A redelivered message may be one that kills us: count before the attempt (design §3, settling)."""
        reply = await self._store.run(_COUNT, [self._attempts_key(envelope)], [ATTEMPTS_TTL_MS])
        if reply.int(0) > MAX_ATTEMPTS * 4:
            raise PermanentError("attempts_spent", "redelivered too often")

    def _attempts_key(self, envelope: Envelope) -> str:
        return self._keys.of_session_partition("attempts", envelope.session, envelope.id)

    async def _before_retry(self, envelope: Envelope | None, attempt: int, error: Any) -> None:
        after = getattr(error, "retry_after", None)
        delay = after if after is not None else 0.05 * 2**attempt
        await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret

    async def _wait_back(self, pauses: int, error: Any) -> None:
        """Keep the delivery until the store answers; a lost broker makes it stale instead.

        A store that answers and still cannot serve (full, read-only) is asked less and less often.
        """
        await self._store.wait_back()
        least = getattr(error, "retry_after", None) or 0.0
        delay = max(least, min(0.03 * 2 ** min(pauses - 1, 10), MOST_PAUSE_SECONDS))
        await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 - not all lanes at once

    async def _bury(self, member: _Member, envelope: Envelope | None, error: Any) -> bool:
        """Commit the member as dead with a copy for the dead queue. False when the store is away meanwhile."""
        why = reason(error)
        session = envelope.session if envelope else ""
        copy = self._dead_copy(member, envelope, why, str(error))
        key = self._attempts_key(envelope) if envelope else self._keys.in_partition("attempts", 0, copy.id)
        try:
            # The copy first: once the owner has passed over it, another attempt would find it done.
            args = [self._clock.now_ms(), *self._outbox.args([copy])]
            await self._store.run(_BURY, [key, *self._outbox.keys(session)], args)
            self._outbox.post(session, [copy])
            if envelope is not None:
                await self._tell_owner(envelope, why)
        except StoreAway as away:
            await self._wait_back(1, away)
            return False
        except LostOwnership:
            member.delivery.give_back()
            return False
        member.bundle.one_done()
        return True

    async def _tell_owner(self, envelope: Envelope, why: str) -> None:
        told = self._on_dead
        if told is None:
            return
        try:
            _, message = decode(envelope.model_dump())
            context = Context(envelope, self._clock.now_ms(), self._composer)
            await _thrice(lambda: told(message, context, why))
        except (StoreAway, LostOwnership):
            raise
        except Exception:
            log.exception("dead.not_recorded", type=envelope.type)

    def _dead_copy(self, member: _Member, envelope: Envelope | None, why: str, detail: str) -> Outgoing:
        """The member as a dead letter. It never fails: a member that cannot be buried would hold its queue for good."""
        message = member.raw if isinstance(member.raw, dict) else {"unreadable": _printable(member.raw)}
        try:
            copy = self._dead_letter(member, envelope, why, detail, message)
            if len(copy.body) <= MAX_DEAD_BYTES:
                return copy
        except Exception as error:  # nested deeper than what the encoder takes, or whatever else
            log.warning("dead.not_encodable", error=type(error).__name__, routing_key=member.delivery.routing_key)
        raw = member.delivery.body
        message = {
            "raw_base64": base64.b64encode(raw[:MAX_RAW_BYTES]).decode(),
            "cut": len(raw) > MAX_RAW_BYTES,
            "place": member.place,
        }
        return self._dead_letter(member, envelope, why, detail, message)

    def _dead_letter(
        self, member: _Member, envelope: Envelope | None, why: str, detail: str, message: dict[str, Any]
    ) -> Outgoing:
        cause = envelope.id if envelope else derive_id("dead", self._service, _fingerprint(member))
        id = derive_id("dead", self._service, cause)
        wrapped = Envelope(
            id=id,
            type="dead.letter.v1",
            session=envelope.session if envelope else "",
            cause=cause,
            correlation=envelope.correlation if envelope else "",
            at=self._clock.now_ms(),
            body={
                "service": self._service,
                "reason": why,
                "detail": detail[:500].encode("utf-8", "backslashreplace").decode(),
                "exchange": self._origin_exchange(),
                "routing_key": member.delivery.routing_key,
                "message": message,
            },
        )
        return Outgoing(id, self._topology.dead, "", encode(wrapped))

    def _origin_exchange(self) -> str:
        return self._topology.sessions if self._service == "session" else self._topology.work

    def _tell(self, envelope: Envelope | None, outcome: str, attempt: int, started: float, error: Any = None) -> None:
        """One wide line and one count a message."""
        type_ = envelope.type if envelope and envelope.type in self._handlers else "unreadable"
        self._metrics.messages.labels(self._service, type_, outcome).inc()
        log.info(
            "message.settled",
            type=type_,
            session=envelope.session if envelope else "",
            id=envelope.id if envelope else "",
            correlation=envelope.correlation if envelope else "",
            attempt=attempt,
            outcome=outcome,
            reason=reason(error) if isinstance(error, BaseException) else None,
            seconds=round(time.perf_counter() - started, 6),
        )

    async def drained(self) -> None:
        """Return when no lane is at work."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        """Give up what is still at work; nothing of it is settled."""
        for task in self._tasks:
            task.cancel()


@dataclass(eq=False)
class _Errand:
    """Something of ours that takes its turn in a lane."""

    work: Callable[[], Awaitable[None]]
    done: "asyncio.Future[None]"

    async def run(self) -> None:
        try:
            await self.work()
        except Exception as error:
            if not self.done.done():
                self.done.set_exception(error)
        else:
            if not self.done.done():
                self.done.set_result(None)


async def _thrice(work: Callable[[], Awaitable[T]]) -> T:
    for _ in range(2):
        try:
            return await work()
        except LostOwnership:
            continue
    return await work()


def _alone(body: bytes) -> Any:
    members = split(b"[" + body + b"]")
    return members[0] if len(members) == 1 else body


def _fingerprint(member: _Member) -> str:
    """The same for the same member whenever it is delivered, however it is made."""
    try:
        return repr(member.raw)
    except RecursionError:
        return f"{hashlib.sha256(member.delivery.body).hexdigest()} {member.place}"


def _printable(raw: Any) -> str:
    try:
        return raw.decode("utf-8", "replace")[:4096] if isinstance(raw, bytes) else str(raw)[:4096]
    except RecursionError:
        return "nested too deeply"

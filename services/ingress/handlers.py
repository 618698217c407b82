"""What arrives over RabbitMQ: events that users publish, and the door's word about a subject."""

import base64
import itertools
import time
from collections.abc import Callable
from typing import Literal
from weakref import WeakKeyDictionary

import structlog

from libs.contracts.codec import encode
from libs.contracts.envelope import Envelope
from libs.contracts.errors import PermanentError, StoreAway
from libs.contracts.ids import derive_id, is_text_id
from libs.contracts.ingress import RegisterSubject
from libs.contracts.origin import SealKeys, attestation_is_valid
from libs.contracts.session import Notice
from libs.contracts.topology import Topology
from libs.runtime.consumer import Context
from libs.runtime.intake import Delivery
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome
from services.ingress.admission import Admissions
from services.ingress.cloudevents import read_content
from services.ingress.deliveries import Configured, Deliveries, Sources
from services.ingress.domain import Event, Misfit, claims_of, interpret, out_of_time
from services.ingress.metrics import IngressMetrics
from services.ingress.ports import Clock, HeldFull, Subjects, Taken, Teller
from services.ingress.rates import Rates
from services.ingress.schemes import Refusal, Verified, check, header_pairs
from services.ingress.strict_json import Malformed
from services.ingress.sweepers import Releases

log = structlog.get_logger(__name__)

MAX_ATTEMPTS = 5
"""A delivery on which our own code fails so often is given up: kept, it would hold up the whole queue."""


UNVERIFIED_KEPT = 1024
"""So many bytes are kept of a body that nobody vouches for."""
UNVERIFIED_A_MINUTE = 10
"""So many dead letters a replica writes for those: anybody who may publish could fill the dead queue."""
_HEADERS_KEPT, _HEADER_KEPT = 16, 256


class Unreadable(Exception):
    """A delivery from nobody we could answer, that can never work: it goes to the dead queue with its reason."""

    def __init__(self, reason: str, detail: str = "", *, verified: bool = True) -> None:
        super().__init__(reason)
        self.verified = verified
        self.reason = reason
        self.detail = detail


class EventsIn:
    """Takes deliveries of the events exchange. Returning means that it may be acknowledged."""

    def __init__(
        self,
        sources: Sources,
        admissions: Admissions,
        deliveries: Deliveries,
        teller: Teller,
        topology: Topology,
        clock: Clock,
        count: Callable[[Literal["dead", "refused"]], None],
        *,
        max_body: int,
        incarnation: str,
    ) -> None:
        """`count` counts a dead letter, or a delivery that is refused without one."""
        self._sources = sources
        self._admissions = admissions
        self._deliveries = deliveries
        self._teller = teller
        self._topology = topology
        self._clock = clock
        self._max_body = max_body
        self._count = count
        self._unverified = Rates(UNVERIFIED_A_MINUTE / 60, UNVERIFIED_A_MINUTE, clock)
        self._not_kept = 0
        self._names = (f"{incarnation}.a{number}" for number in itertools.count())
        self._tokens: WeakKeyDictionary[Delivery, str] = WeakKeyDictionary()
        self._attempts: WeakKeyDictionary[Delivery, int] = WeakKeyDictionary()

    async def on_delivery(self, delivery: Delivery) -> None:
        """Verify, let in, and return; raises StoreAway, after which the same delivery is handed in again."""
        started, now = time.perf_counter(), self._clock.now_ms()
        name, _, routed_type = delivery.routing_key.partition(".")
        configured = self._sources.get(name)
        try:
            if configured is None or configured.verifier is None:
                raise Unreadable("unknown_source", name[:64], verified=False)
            await self._attempt(configured, delivery, routed_type, started, now)
        except Unreadable as unreadable:
            if configured is not None and configured.verifier is not None:
                self._deliveries.settled(
                    name, "rejected_malformed", via="amqp", at=now, started=started, reason=unreadable.reason
                )
            if unreadable.verified or self._may_keep():
                await self._bury(delivery, unreadable, now)
            else:
                self._count("refused")

    def _may_keep(self) -> bool:
        """Whether one more letter is written for what nobody vouches for; told once when that ends and begins."""
        if self._unverified.wait_seconds("dead"):
            self._not_kept += 1
            if self._not_kept == 1:
                log.warning("dead.not_kept", most_a_minute=UNVERIFIED_A_MINUTE)
            return False
        if self._not_kept:
            log.warning("dead.kept_again", not_kept=self._not_kept)
            self._not_kept = 0
        return True

    async def _attempt(
        self, configured: Configured, delivery: Delivery, routed_type: str, started: float, now: int
    ) -> None:
        try:
            await self._settle(configured, delivery, routed_type, started, now)
        except (Unreadable, StoreAway):
            raise
        except Exception as bug:
            attempts = self._attempts[delivery] = self._attempts.get(delivery, 0) + 1
            if attempts < MAX_ATTEMPTS:
                raise
            log.exception("delivery.given_up", source=configured.name)
            raise Unreadable("attempts_spent", type(bug).__name__) from None

    async def _settle(
        self, configured: Configured, delivery: Delivery, routed_type: str, started: float, now: int
    ) -> None:
        if len(delivery.body) > self._max_body:
            raise Unreadable("too_large", f"{len(delivery.body)} bytes, more than {self._max_body}", verified=False)
        headers = header_pairs(delivery.headers)
        if delivery.content_type and not any(name == b"content-type" for name, _ in headers):
            headers.append((b"content-type", delivery.content_type.encode()))  # as HTTP has it, where it may be signed
        assert configured.verifier is not None  # noqa: S101 - on_delivery looked
        verdict = check(
            configured.verifier,
            headers,
            delivery.body,
            now_ms=now,
            tolerance_seconds=None,
            publisher=delivery.user_id,
        )
        if isinstance(verdict, Refusal):
            # Anybody who may publish could fill a dead queue with forgeries: counted and acknowledged (design §3.1).
            self._deliveries.settled(
                configured.name, "rejected_signature", via="amqp", at=now, started=started, reason="signature"
            )
            return
        event = self._interpreted(configured, verdict, delivery, headers, routed_type, now)
        token = self._tokens.get(delivery) or self._tokens.setdefault(delivery, next(self._names))
        if isinstance(event, Misfit):
            answer = await self._admissions.quarantine(event, delivery.body)
            event = event.event
        else:
            try:
                answer = await self._admissions.admit(event, token, delivery.body)
            except HeldFull:
                # Kept back, it would keep everything behind it back too: prefix acknowledgements.
                answer = await self._admissions.quarantine(Misfit("held_full", event), delivery.body)
        self._deliveries.settled(
            configured.name, answer.status, via="amqp", at=now, started=started, event=event, reason=answer.reason
        )

    def _interpreted(
        self,
        configured: Configured,
        verified: Verified,
        delivery: Delivery,
        headers: list[tuple[bytes, bytes]],
        routed_type: str,
        now: int,
    ) -> Event | Misfit:
        source = configured.source
        try:
            content = read_content(source.verify, headers, delivery.body, delivery.content_type or "", percent=False)
            told = content.headers
            if verified.principal is not None and delivery.message_id and content.event is None:
                # The broker vouches for the publisher, so the message's own id is as good as a CloudEvents id.
                told = [*told, (b"ce-id", delivery.message_id.encode())]
            claims = claims_of(told, routed_type)
            event = interpret(configured.name, source, verified, content.body, claims, now=now, cloud=content.event)
        except Malformed as malformed:
            raise Unreadable("malformed", str(malformed)) from None
        late = out_of_time(
            verified,
            now=now,
            past_seconds=source.dedupe.window,
            future_seconds=configured.tolerance or source.dedupe.window,
        )
        return Misfit(late, event.event if isinstance(event, Misfit) else event) if late else event

    async def _bury(self, delivery: Delivery, unreadable: Unreadable, now: int) -> None:
        """Commit a copy for the dead queue: with it, an operator can mend the configuration and replay.

        Of what nobody vouches for only the beginning is kept, and the copy says that it was cut.
        """
        headers = {n.decode("utf-8", "replace"): v.decode("utf-8", "replace")
                   for n, v in header_pairs(delivery.headers)}  # fmt: skip
        kept, told = delivery.body, headers
        if not unreadable.verified:
            kept = delivery.body[:UNVERIFIED_KEPT]
            told = {n[:_HEADER_KEPT]: v[:_HEADER_KEPT] for n, v in list(headers.items())[:_HEADERS_KEPT]}
        body = base64.b64encode(kept).decode()
        id = derive_id("dead", "ingress", delivery.routing_key, body, unreadable.reason)
        letter = Envelope(
            id=id,
            type="dead.letter.v1",
            session="",
            at=now,
            body={
                "service": "ingress",
                "reason": unreadable.reason,
                "detail": unreadable.detail,
                "exchange": self._topology.events,
                "routing_key": delivery.routing_key,
                "message": {
                    "raw_base64": body,
                    "headers": told,
                    "content_type": delivery.content_type or "",
                    "message_id": delivery.message_id or "",
                    "user_id": delivery.user_id or "",
                    "size": len(delivery.body),
                    "cut": len(kept) < len(delivery.body) or told != headers,
                },
            },
        )  # fmt: skip
        await self._teller.tell("", [Outgoing(id, self._topology.dead, "", encode(letter))], now)
        self._count("dead")
        log.warning("delivery.dead", reason=unreadable.reason, routing_key=delivery.routing_key[:128])


class RegisterHandler:
    """Takes the door's word about subjects."""

    def __init__(
        self,
        store: Subjects,
        teller: Teller,
        releases: Releases,
        seal_keys: SealKeys,
        metrics: IngressMetrics,
    ) -> None:
        self._store = store
        self._teller = teller
        self._releases = releases
        self._seal_keys = seal_keys
        self._metrics = metrics

    async def on_register_subject(self, message: RegisterSubject, ctx: Context) -> Outcome:
        """Register a subject, once; what was held for it goes to its session, in order."""
        session = ctx.envelope.session
        fields = ("subject", message.subject, session, message.operation)
        # The session service may write to this queue too and must not be able to claim a subject (G3).
        if not attestation_is_valid(self._seal_keys, message.attestation, *fields):
            raise PermanentError("forged_attestation", "no key of ours made this attestation")
        if not is_text_id(message.subject):
            raise PermanentError("bad_subject", "a subject is 1 to 256 bytes of printable text")
        registered = await self._store.register(message.subject, session, message.operation)
        if isinstance(registered, Taken):
            await self._clash(message, ctx)
            return Outcome.REFUSED
        if registered.held:
            await self._releases.subject(message.subject, session)
        return Outcome.HANDLED if registered.new else Outcome.REPEATED

    async def _clash(self, message: RegisterSubject, ctx: Context) -> None:
        """Two sessions made the same subject: counted, logged and told; the first one keeps it."""
        self._metrics.subject_clashes.inc()
        session = ctx.envelope.session
        log.error("subject.clash", session=session, operation=message.operation)
        notice = Notice(
            topic="operation",
            text=f"{message.subject} belongs to another session; events about it do not come here",
            data={"subject": message.subject, "operation": message.operation, "clash": True},
        )
        await self._teller.tell(session, [ctx.emit(notice, "clash", message.subject)], ctx.now)

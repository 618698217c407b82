"""Plans that come from outside, off the partitions: a slow planner holds up nobody but the turn that asked.

`PlanWorker` takes the requests and asks the planner over HTTP; `PlansIn` takes what agents answered over AMQP. Both
pass the plan to its session's partition and settle once the broker has confirmed it. Neither judges a plan: the
session checks its token, and that it is the one that is waited for.
"""

import asyncio
import base64
import random
import time
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from libs.contracts.codec import BUNDLE_TYPE, decode, encode, split
from libs.contracts.envelope import Envelope
from libs.contracts.errors import BrokerAway, ContractError
from libs.contracts.ids import derive_id, is_slug
from libs.contracts.session import PlanMade, PlanRequested
from libs.contracts.strict_json import Malformed, parse
from libs.contracts.topology import PLANNER, Topology
from libs.runtime.clock import Clock
from libs.runtime.composer import Composer
from libs.runtime.intake import Delivery
from libs.runtime.metrics import RuntimeMetrics
from libs.runtime.publisher import Outgoing
from libs.runtime.settle import Outcome
from services.session.planners.answers import MAX_ANSWER_BYTES, Answer, PlannerFault, RemotePlanner, read_answer

log = structlog.get_logger(__name__)

ANSWERS = "plan"
"""What agents' answers are called in the metrics: they travel without an envelope."""
MAX_TOKEN_CHARACTERS = 256
MAX_KEPT_BYTES = 64 * 1024
MOST_PAUSE_SECONDS = 2.0


class Publisher(Protocol):
    """Sends a message; the future is done with the broker's confirm, or raises BrokerAway."""

    def send(self, message: Outgoing) -> "asyncio.Future[None]":
        """Send it."""
        ...


class Plans:
    """Passes plans to their partitions."""

    def __init__(self, composer: Composer, publisher: Publisher) -> None:
        self._composer = composer
        self._publisher = publisher

    async def pass_on(
        self, made: PlanMade, session: str, parts: Sequence[object], of: Envelope | None, delivery: Delivery
    ) -> None:
        """Publish a plan until it is confirmed, or its delivery is somebody else's."""
        outgoing = self._composer.compose(
            made,
            session=session,
            id_parts=parts,
            cause=of.id if of else "",
            correlation=of.correlation if of else "",
            depth=of.depth if of else 0,
            trace=of.trace if of else "",
        )
        await self.send(outgoing, delivery)

    async def send(self, outgoing: Outgoing, delivery: Delivery) -> None:
        """Publish a message until it is confirmed, or its delivery is somebody else's."""
        pause = 0.1
        while not delivery.stale:
            try:
                await self._publisher.send(outgoing)
            except BrokerAway:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
                pause = min(pause * 2, MOST_PAUSE_SECONDS)
            else:
                return


class PlanWorker:
    """Asks a planner over HTTP, for as many sessions at once as there are deliveries."""

    def __init__(
        self, planner: RemotePlanner, plans: Plans, topology: Topology, clock: Clock, metrics: RuntimeMetrics
    ) -> None:
        self._planner = planner
        self._plans = plans
        self._topology = topology
        self._clock = clock
        self._metrics = metrics
        metrics.declare([PlanRequested.wire_type()], [Outcome.HANDLED, Outcome.REFUSED, Outcome.REPEATED, "dead"])

    async def on_delivery(self, delivery: Delivery) -> None:
        """Answer the requests of a delivery. Returning means that their plans are published."""
        try:
            members = split(delivery.body if delivery.content_type == BUNDLE_TYPE else b"[" + delivery.body + b"]")
        except ContractError as error:
            await self._bury(_cut(delivery.body), str(error), delivery)
            return
        await asyncio.gather(*(self._answer(member, delivery) for member in members))

    async def _answer(self, member: Any, delivery: Delivery) -> None:
        started = time.perf_counter()
        try:
            envelope, request = _request(member)
        except ContractError as error:
            await self._bury(member if isinstance(member, dict) else _cut(delivery.body), str(error), delivery)
            return
        if request.deadline <= self._clock.now_ms():
            self._tell(Outcome.REPEATED, envelope, request, started, "its deadline is over")
            return
        fault = ""
        answer = Answer()
        try:
            answer = await self._planner.ask(request, envelope.session)
        except PlannerFault as told:
            fault = str(told)
        except Exception as bug:
            log.exception("planner.failed", session=envelope.session, turn=request.turn)
            fault = f"asking the planner failed ({type(bug).__name__})"
        made = _made(request.turn, request.plan, request.token, answer, fault)
        await self._plans.pass_on(made, envelope.session, (request.turn, request.plan), envelope, delivery)
        self._tell(Outcome.REFUSED if fault else Outcome.HANDLED, envelope, request, started, fault)

    def _tell(self, outcome: str, envelope: Envelope, request: PlanRequested, started: float, reason: str) -> None:
        self._count(outcome)
        log.info(
            "plan.answered",
            session=envelope.session,
            turn=request.turn,
            plan=request.plan,
            id=envelope.id,
            correlation=envelope.correlation,
            outcome=outcome,
            reason=reason or None,
            seconds=round(time.perf_counter() - started, 6),
        )

    def _count(self, outcome: str) -> None:
        self._metrics.messages.labels(self._metrics.service, PlanRequested.wire_type(), outcome).inc()

    async def _bury(self, message: dict[str, Any], why: str, delivery: Delivery) -> None:
        """Only our own services write here: what cannot be read is kept for an operator."""
        id = derive_id("dead", PLANNER, message)
        body: dict[str, Any] = {
            "service": self._metrics.service,
            "reason": "unreadable",
            "detail": why[:500].encode("utf-8", "backslashreplace").decode(),
            "exchange": self._topology.work,
            "routing_key": PLANNER,
            "message": message,
        }
        letter = Envelope(id=id, type="dead.letter.v1", session="", cause=id, at=self._clock.now_ms(), body=body)
        await self._plans.send(Outgoing(id, self._topology.dead, "", encode(letter)), delivery)
        self._count("dead")
        log.warning("plan_request.dead", reason=why[:200])


class PlansIn:
    """Takes agents' answers. A wrong one is counted, logged and acknowledged: it can never become right."""

    def __init__(self, plans: Plans, metrics: RuntimeMetrics) -> None:
        self._plans = plans
        self._metrics = metrics
        metrics.declare([ANSWERS], [Outcome.HANDLED, Outcome.REFUSED])

    async def on_delivery(self, delivery: Delivery) -> None:
        """Pass an answer to its session. Returning means that it is published, or will never be."""
        try:
            session, made = read_plan(delivery.body)
        except PlannerFault as fault:
            self._count(Outcome.REFUSED)
            log.warning("plan.refused", reason=str(fault), bytes=len(delivery.body), user=delivery.user_id)
            return
        # The token is a part: somebody's guess at a plan must never be taken for the plan itself.
        await self._plans.pass_on(made, session, (made.turn, made.plan, made.token), None, delivery)
        self._count(Outcome.REFUSED if made.fault else Outcome.HANDLED)
        log.info("plan.taken", session=session, turn=made.turn, plan=made.plan, reason=made.fault or None)

    def _count(self, outcome: str) -> None:
        self._metrics.messages.labels(self._metrics.service, ANSWERS, outcome).inc()


def read_plan(raw: bytes) -> tuple[str, PlanMade]:
    """Session and plan of an agent's answer. What names them and is no plan is a plan with a fault.

    Raises PlannerFault where it cannot be told whose answer it is.
    """
    if len(raw) > MAX_ANSWER_BYTES:
        raise PlannerFault(f"larger than {MAX_ANSWER_BYTES // 1024} KiB")
    try:
        value = parse(raw)
    except Malformed as malformed:
        raise PlannerFault(str(malformed)) from None
    if not isinstance(value, dict):
        raise PlannerFault("no JSON object")
    session, turn = (_slug(value, name) for name in ("session", "turn"))
    plan, token = value.get("plan"), value.get("token")
    if type(plan) is not int or not 0 <= plan < 2**53:
        raise PlannerFault("plan: it is the number of the request")
    if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN_CHARACTERS:
        raise PlannerFault("token: it is that of the request")
    named = ("session", "turn", "plan", "token")
    try:
        answer, fault = read_answer({name: part for name, part in value.items() if name not in named}), ""
    except PlannerFault as told:
        answer, fault = Answer(), str(told)
    return session, _made(turn, plan, token, answer, fault)


def _slug(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not is_slug(found):
        raise PlannerFault(f"{name}: it is that of the request")
    return found


def _made(turn: str, plan: int, token: str, answer: Answer, fault: str) -> PlanMade:
    return PlanMade(
        turn=turn,
        plan=plan,
        token=token,
        steps=answer.steps,
        reply=answer.reply,
        note=answer.note,
        relation=answer.relation,
        fault=fault,
    )


def _cut(raw: bytes) -> dict[str, Any]:
    return {"raw_base64": base64.b64encode(raw[:MAX_KEPT_BYTES]).decode(), "cut": len(raw) > MAX_KEPT_BYTES}


def _request(member: Any) -> tuple[Envelope, PlanRequested]:
    envelope, message = decode(member)
    if not isinstance(message, PlanRequested):
        raise ContractError(f"{envelope.type} does not belong into this queue")
    if not is_slug(envelope.session):
        raise ContractError("no session")
    return envelope, message

"""From raw bytes to an answer: the steps that HTTP and AMQP share, one log line and one count a delivery."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import structlog

from libs.contracts.application import BrokerUser, Hmac, Source, StandardWebhooks, UserToken, Verify
from libs.contracts.reasons import IngressOutcome, TimelineKind
from services.ingress.domain import Event
from services.ingress.metrics import IngressMetrics
from services.ingress.schemes import Verifier

log = structlog.get_logger(__name__)

Via = Literal["http", "amqp"]


@dataclass(frozen=True)
class Configured:
    """A source of the application file with its verifier (None for users, who have session routes)."""

    name: str
    source: Source
    verifier: Verifier | None

    @property
    def tolerance(self) -> float | None:
        """Seconds that the signed time may be off, or None where no time is signed."""
        return signed_tolerance(self.source.verify)


def signed_tolerance(verify: Verify) -> float | None:
    """Seconds that the signed time may be off, or None where no time is signed."""
    match verify:
        case StandardWebhooks():
            return verify.tolerance
        case Hmac():
            return verify.tolerance if verify.timestamp_header is not None else None
        case UserToken() | BrokerUser():
            return None
        case _:
            assert_never(verify)


Sources = Mapping[str, Configured]

_KINDS: Mapping[IngressOutcome, TimelineKind] = {
    "duplicate": "input.dropped",
    "quarantined": "input.quarantined",
    "held": "input.held",
    "rejected_signature": "input.rejected",
    "rejected_time": "input.rejected",
    "rejected_malformed": "input.rejected",
    "unrouted": "input.rejected",
    "throttled": "input.rejected",
}


class Log:
    """What did not go the usual way, newest last, of this replica only: kept in memory, bounded, no payloads."""

    def __init__(self, size: int) -> None:
        self._lines: deque[dict[str, Any]] = deque(maxlen=size)
        self._seq = 0

    def add(self, at: int, kind: TimelineKind, source: str, text: str, **fields: str) -> None:
        """One line. `at` in milliseconds (Unix)."""
        self._seq += 1
        line = {"seq": self._seq, "at": at, "kind": kind, "source": source, "text": text}
        self._lines.append({**line, **{name: value for name, value in fields.items() if value}})

    def lines(self, after: int = 0) -> Sequence[dict[str, Any]]:
        """The lines with a higher number than `after`."""
        return [line for line in self._lines if line["seq"] > after]


class Deliveries:
    """Counts and tells each delivery once."""

    def __init__(self, metrics: IngressMetrics, ring: Log) -> None:
        self._metrics = metrics
        self.ring = ring

    def settled(
        self,
        source: str,
        outcome: IngressOutcome,
        *,
        via: Via,
        at: int,
        started: float,
        event: Event | None = None,
        reason: str = "",
    ) -> None:
        """One delivery is answered. `at` in milliseconds (Unix); `started` by the performance counter."""
        seconds = time.perf_counter() - started
        self._metrics.count(source, outcome)
        self._metrics.ack_seconds.observe(seconds)
        id, sent, where = (event.id, event.event, event.where) if event is not None else ("", "", "")
        if kind := _KINDS.get(outcome):
            said = f"{source}{' ' + sent if sent else ''}: {reason or outcome}"
            self.ring.add(at, kind, source, said, event=sent, input=id, via=via, outcome=outcome)
        log.info(
            "delivery.settled",
            source=source,
            outcome=outcome,
            via=via,
            input=id,
            event_id=sent,
            where=where,
            reason=reason,
            seconds=round(seconds, 6),
        )

"""Ingress's own metrics, as named in the interface."""

from collections.abc import Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.contracts.reasons import IngressOutcome, TimerOutcome


class IngressMetrics:
    """Collectors registered with the registry given; every label set of every source is there from the start."""

    def __init__(self, registry: CollectorRegistry, sources: Iterable[str]) -> None:
        self._events = Counter(
            "turnkeeper_ingress_events",
            "Deliveries by source and what became of them",
            ["source", "outcome"],
            registry=registry,
        )
        self.ack_seconds = Histogram(
            "turnkeeper_ingress_ack_seconds",
            "From the arrival of a delivery to its answer",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
            registry=registry,
        )
        self.subject_clashes = Counter(
            "turnkeeper_ingress_subject_clashes",
            "Subjects that a second session claimed",
            registry=registry,
        )
        self._timers = Counter(
            "turnkeeper_ingress_timers",
            "Timers and their instants by what became of them",
            ["outcome"],
            registry=registry,
        )
        for outcome in get_args(TimerOutcome):
            self._timers.labels(outcome)
        self.timers_pending = Gauge(
            "turnkeeper_ingress_timers_pending",
            "Pending timers of the whole store",
            registry=registry,
        )
        # Children are looked up once: `labels` builds and hashes a tuple each time.
        self._children = {
            (source, outcome): self._events.labels(source, outcome)
            for source in sources
            for outcome in get_args(IngressOutcome)
        }

    def count(self, source: str, outcome: IngressOutcome) -> None:
        """One delivery of a configured source."""
        self._children[source, outcome].inc()

    def timers(self, outcome: TimerOutcome, count: int = 1) -> None:
        """A timer, or so many of its instants."""
        self._timers.labels(outcome).inc(count)

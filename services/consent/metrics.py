"""Consent's metrics. Names and labels are fixed in the interface; every label set starts at zero."""

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.contracts.reasons import DecisionOutcome

ACTIONS = ("asked", "accepted", "declined", "expired", "superseded", "cancelled")
_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 14_400, 86_400)


class ConsentMetrics:
    """Collectors registered with the registry given. What is a replay is counted by nobody."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.actions = Counter(
            "turnkeeper_consent_actions", "Actions by what became of them", ["outcome"], registry=registry
        )
        self.decisions = Counter(
            "turnkeeper_consent_decisions", "Decisions by how they were answered", ["outcome"], registry=registry
        )
        self.seconds = Histogram(
            "turnkeeper_consent_decision_seconds", "From asked to decided", buckets=_SECONDS, registry=registry
        )
        self.pending = Gauge(
            "turnkeeper_consent_pending",
            "Open questions in the whole store; every replica reports the same number",
            registry=registry,
        )
        for outcome in ACTIONS:
            self.actions.labels(outcome)
        for outcome in get_args(DecisionOutcome):
            self.decisions.labels(outcome)

    def decided(self, outcome: str, waited_ms: int) -> None:
        """A question found its decision for the first time."""
        self.actions.labels(outcome).inc()
        self.seconds.observe(max(0, waited_ms) / 1000)

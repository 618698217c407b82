"""The metrics that every service has. Names are fixed in the interface; labels come from closed sets."""

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Info


class RuntimeMetrics:
    """Collectors of the runtime, registered with the registry given."""

    def __init__(self, registry: CollectorRegistry, service: str) -> None:
        self.service = service
        self.messages = Counter(
            "turnkeeper_messages",
            "Messages handled, by wire type and what became of them",
            ["service", "type", "outcome"],
            registry=registry,
        )
        self.outbox_pending = Gauge(
            "turnkeeper_outbox_pending", "Committed messages without a confirm", ["service"], registry=registry
        )
        self.outbox_oldest = Gauge(
            "turnkeeper_outbox_oldest_seconds", "Age of the oldest of them", ["service"], registry=registry
        )
        self.outbox_pending.labels(service).set(0)
        self.outbox_oldest.labels(service).set(0)
        Info("turnkeeper_build", "Version of this build", registry=registry).info(
            {"version": version("turnkeeper"), "service": service}
        )

    def declare(self, types: list[str], outcomes: list[str]) -> None:
        """Make every label set of a consumer appear at zero."""
        for type_ in types:
            for outcome in outcomes:
                self.messages.labels(self.service, type_, outcome)

"""The door's metrics. Label sets are closed and declared at zero."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from libs.contracts.faults import FaultMode

OUTCOMES = (
    "committed",
    "refused",
    "failed",
    "unknown",
    "replayed",
    "conflict",
    "withdrawn",
    "expired",
    "in_progress",
    "precondition_failed",
    "needs_consent",
)
USES = ("spent", "freed")
PAUSE_KINDS = ("all", "source", "session", "tool")
LOOKUPS = ("stands", "gone", "none", "silent")
RETRIES = ("retried", "budget_spent")
OTHER = "other"
"""The label of calls that name no tool of the application: their text is not ours to label with."""


class ToolMetrics:
    """Collectors registered with the registry given, for the tools named."""

    def __init__(self, registry: CollectorRegistry, tools: Iterable[str]) -> None:
        self._tools = frozenset(tools)
        self._operations = Counter(
            "turnkeeper_tools_operations", "What the door answered, by tool", ["tool", "outcome"], registry=registry
        )
        self.unknown = Gauge(
            "turnkeeper_tools_unknown", "Operations whose outcome is unknown: the one to page on", registry=registry
        )
        self.paused = Gauge(
            "turnkeeper_tools_paused", "Pauses that this replica of the door obeys, by kind", ["kind"],
            registry=registry,
        )  # fmt: skip
        self.waiting = Gauge(
            "turnkeeper_tools_waiting", "Calls that wait at the door for the end of a pause", registry=registry
        )
        for kind in PAUSE_KINDS:
            self.paused.labels(kind)
        self._lookups = Counter(
            "turnkeeper_tools_lookups", "What destinations said of operations, by tool", ["tool", "found"],
            registry=registry,
        )  # fmt: skip
        self._injected = Counter(
            "turnkeeper_tools_faults", "Faults injected on purpose in trials, by tool", ["tool", "mode"],
            registry=registry,
        )  # fmt: skip
        self._uses = Counter(
            "turnkeeper_tools_standing_uses", "Uses of standing approvals by what became of them, by tool",
            ["tool", "outcome"], registry=registry,
        )  # fmt: skip
        self._circuits = Gauge(
            "turnkeeper_tools_circuit_open", "1 while a tool has a pause after failures in a row", ["tool"],
            registry=registry,
        )  # fmt: skip
        self._opened = Counter(
            "turnkeeper_tools_circuit_opened", "How often a tool was given a pause", ["tool"], registry=registry
        )
        self._retries = Counter(
            "turnkeeper_tools_retries", "Calls that were not sent and tried again, or were not for want of budget",
            ["tool", "outcome"], registry=registry,
        )  # fmt: skip
        for tool in self._tools:
            self._circuits.labels(tool)
            self._opened.labels(tool)
            for outcome in RETRIES:
                self._retries.labels(tool, outcome)
        for tool in (*self._tools, OTHER):
            for use in USES:
                self._uses.labels(tool, use)
            for outcome in OUTCOMES:
                self._operations.labels(tool, outcome)
            for found in LOOKUPS:
                self._lookups.labels(tool, found)

    def count(self, tool: str, outcome: str) -> None:
        """Count one answer."""
        self._operations.labels(tool if tool in self._tools else OTHER, outcome).inc()

    def used(self, tool: str, became: str) -> None:
        """Count one use of a standing approval that was spent or is free again."""
        if became in USES:
            self._uses.labels(tool if tool in self._tools else OTHER, became).inc()

    def injected(self, tool: str, mode: FaultMode) -> None:
        """Count one fault on purpose."""
        self._injected.labels(tool if tool in self._tools else OTHER, mode).inc()

    def looked_up(self, tool: str, found: str) -> None:
        """Count one look-up of an operation of this tool."""
        self._lookups.labels(tool if tool in self._tools else OTHER, found).inc()

    def circuit(self, tool: str, *, is_open: bool) -> None:
        """A tool's circuit opened or closed."""
        self._circuits.labels(tool).set(is_open)
        if is_open:
            self._opened.labels(tool).inc()

    def retried(self, tool: str, outcome: str) -> None:
        """Count a call that was not sent: `retried`, or `budget_spent`."""
        self._retries.labels(tool, outcome).inc()

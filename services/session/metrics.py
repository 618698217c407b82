"""The session service's metrics. `origin` is the kind; no label carries a session, an event or a user."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.session.domain.draft import Decision

_KINDS = ("user", "webhook", "system", "timer", "actor")
_OUTCOMES = ("done", "asked", "failed", "cancelled", "restarted")
_DISPOSITIONS = (
    "started", "queued", "control", "dropped", "merged", "restarted", "revised", "rejected", "unclear",
    "stale", "noticed", "superseded",
)  # fmt: skip
_LIMITS = ("steps", "same_step", "causation_depth", "turns_per_origin_per_hour", "open_questions")
_IGNORED = ("no_session", "wrong_token", "late")


class SessionMetrics:
    """Collectors, registered with the registry given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.turns = Counter("turnkeeper_session_turns", "Turns ended", ["origin", "outcome"], registry=registry)
        self.seconds = Histogram(
            "turnkeeper_session_turn_seconds",
            "From a turn's start to its end",
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
        )
        self.inputs = Counter("turnkeeper_session_inputs", "Inputs folded in", ["disposition"], registry=registry)
        self.conflicts = Counter(
            "turnkeeper_session_commit_conflicts", "Commits refused: another owner was first", registry=registry
        )
        self.limits = Counter(
            "turnkeeper_session_limits", "Limits of a turn or a session that were reached", ["limit"], registry=registry
        )
        for limit in _LIMITS:
            self.limits.labels(limit)
        self.plans_ignored = Counter(
            "turnkeeper_session_plans_ignored", "Plans that nobody waits for", ["reason"], registry=registry
        )
        for reason in _IGNORED:
            self.plans_ignored.labels(reason)
        for kind in _KINDS:
            for outcome in _OUTCOMES:
                self.turns.labels(kind, outcome)
        for disposition in _DISPOSITIONS:
            self.inputs.labels(disposition)

    def committed(self, decision: Decision) -> None:
        """Count what a committed decision did."""
        for end in decision.ends:
            self.turns.labels(end.origin, end.outcome).inc()
            self.seconds.observe(end.took / 1000)
        for disposition in decision.dispositions:
            self.inputs.labels(disposition).inc()
        for limit in decision.limits:
            self.limits.labels(limit).inc()

"""The metric names that dashboards rely on are those of the code, with their labels, at zero from the start."""

import importlib
import inspect

import pytest
from prometheus_client import CollectorRegistry

from libs.runtime.metrics import RuntimeMetrics

INGRESS = "accepted duplicate quarantined held rejected_signature rejected_time rejected_malformed unrouted throttled"
FIXED = {
    "turnkeeper_ingress_events": ("ingress", {"source", "outcome"}),
    "turnkeeper_ingress_ack_seconds": ("ingress", set()),
    "turnkeeper_consent_actions": ("consent", {"outcome"}),
    "turnkeeper_consent_decisions": ("consent", {"outcome"}),
    "turnkeeper_consent_decision_seconds": ("consent", set()),
    "turnkeeper_consent_pending": ("consent", set()),
    "turnkeeper_session_turns": ("session", {"origin", "outcome"}),
    "turnkeeper_session_turn_seconds": ("session", set()),
    "turnkeeper_session_inputs": ("session", {"disposition"}),
    "turnkeeper_session_commit_conflicts": ("session", set()),
    "turnkeeper_tools_operations": ("tools", {"tool", "outcome"}),
    "turnkeeper_tools_unknown": ("tools", set()),
    "turnkeeper_outbox_pending": ("runtime", {"service"}),
    "turnkeeper_outbox_oldest_seconds": ("runtime", {"service"}),
    "turnkeeper_messages": ("runtime", {"service", "type", "outcome"}),
    "turnkeeper_build": ("runtime", set()),
}
FORBIDDEN = {"session", "event", "key", "user"}


def registry_of(owner):
    """A registry with the metrics of one service, whatever else its class wants to know."""
    registry = CollectorRegistry()
    if owner == "runtime":
        RuntimeMetrics(registry, "session").declare(["a.b.v1"], ["handled"])
        return registry
    module = importlib.import_module(f"services.{owner}.metrics")
    (kind,) = (
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and value.__name__.endswith("Metrics")
    )
    names = [name for name in inspect.signature(kind).parameters if name != "registry"]
    kind(registry, *(["something"] for _ in names))
    return registry


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_metric_exists_with_its_labels(name):
    owner, labels = FIXED[name]
    families = {family.name: family for family in registry_of(owner).collect()}
    assert name in families
    declared = {label for sample in families[name].samples for label in sample.labels} - {"le", "version", "service"}
    assert declared == labels - {"service"}


@pytest.mark.parametrize("owner", sorted({owner for owner, _ in FIXED.values()}))
def test_no_metric_is_unknown_and_no_label_names_somebody(owner):
    for family in registry_of(owner).collect():
        assert family.name in FIXED or family.name.startswith(f"turnkeeper_{owner}_")
        for sample in family.samples:
            assert not FORBIDDEN & set(sample.labels)


def test_every_outcome_of_ingress_is_there_at_zero():
    (family,) = (f for f in registry_of("ingress").collect() if f.name == "turnkeeper_ingress_events")
    totals = {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}
    assert totals == dict.fromkeys(INGRESS.split(), 0.0)

"""Samples of Prometheus metrics: read, put together over replicas, and picked by a selector as people write them."""

from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[str, float]
"""`name{label="value",…}`, labels sorted → value."""


def read(texts: Iterable[str]) -> dict[str, float]:
    """The samples of several scrapes: counts added up, of a gauge the highest, since each replica reports the same
    thing of the whole store."""
    together: dict[str, float] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = name_of(sample.name, sample.labels)
                before = together.get(name)
                if before is None:
                    together[name] = sample.value
                else:
                    together[name] = max(before, sample.value) if family.type == "gauge" else before + sample.value
    return together


def name_of(name: str, labels: Mapping[str, str]) -> str:
    """One sample's name, its labels sorted so that it can be compared."""
    inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inner}}}" if inner else name


def canonical(selector: str) -> str:
    """A name as somebody wrote it, with its labels sorted."""
    name, _, rest = selector.partition("{")
    labels = [part.strip() for part in rest.rstrip("}").split(",") if part.strip()]
    return f"{name}{{{','.join(sorted(labels))}}}" if labels else name


def grown(now: Samples, before: Samples, selector: str) -> float:
    """By how much a sample has grown."""
    name = canonical(selector)
    return now.get(name, 0.0) - before.get(name, 0.0)

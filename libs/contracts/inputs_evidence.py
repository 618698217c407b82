"""The entry of an input: who signed it, how that was verified, and the digest of the very bytes."""

from collections.abc import Mapping

from libs.contracts.canonical import JSON
from libs.contracts.evidence_entries import entry


def input_entry(sealed: Mapping[str, JSON], *, mark: str) -> dict[str, JSON]:
    """An input that got its number, from its JSON. `mark` is what its dedupe entry holds, "" where it has none."""
    origin, seal = sealed["origin"], sealed["seal"]
    return entry(
        "input", who=f"{origin['kind']} {origin['source']} {origin['principal']}", outcome="appended",
        cause=sealed["event"], input=sealed["id"], number=sealed["number"], what=sealed["kind"],
        source=sealed["source"], event=sealed["event"], type=sealed["type"], subject=sealed["subject"],
        verified=origin["verified"], bytes=seal["digest"], dedupe=mark, accepted_at=sealed["accepted_at"], seal=seal,
    )  # fmt: skip

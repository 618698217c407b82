"""The oracle: what senders were answered, what the destination's own log says, what each event's outcome is.

It believes outside evidence only: HTTP answers and the sandbox's log, never the services' state.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

EFFECTS = ("notes", "orders")


@dataclass
class Wishes:
    """What the senders sent: per event its session, its place there, and the kind of effect that it wishes for."""

    kind: dict[str, str] = field(default_factory=dict)
    place: dict[str, tuple[str, int]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    duplicates: int = 0

    def add(self, event: str, session: str, number: int, kind: str) -> None:
        """An event is about to be sent."""
        self.kind[event] = kind
        self.place[event] = (session, number)


class SandboxLog:
    """Reads the sandbox's log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.effects: Counter[str] = Counter()
        self.order: dict[tuple[str, str], list[str]] = defaultdict(list)

    def refresh(self) -> None:
        """Take in the lines written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            raw = file.read()
        whole = raw.rfind(b"\n") + 1
        self._at += whole
        for line in raw[:whole].splitlines():
            entry = json.loads(line)
            if entry["collection"] not in EFFECTS or entry["outcome"] != "committed":
                continue
            for record in entry["records"]:
                self.effects[record["event"]] += 1
                self.order[record["session"], entry["collection"]].append(record["event"])


def faults(wishes: Wishes, log: SandboxLog, outcomes: dict[str, list[str]]) -> list[str]:
    """Everything that a promise forbids: lost, twice, unwished, out of order, not exactly one outcome."""
    found = []
    for event, kind in wishes.kind.items():
        count = log.effects[event]
        if event in wishes.answered and count != 1:
            found.append(f"{event} ({kind}): {count} effects, wished for one")
    found += [f"{event}: an effect that nobody wished for" for event in log.effects if event not in wishes.kind]
    for (session, collection), events in log.order.items():
        numbers = [wishes.place[event][1] for event in events if event in wishes.place]
        if collection == "notes" and numbers != sorted(numbers):
            found.append(f"{session}: effects out of order: {numbers}")
    for event in wishes.answered:
        if outcomes.get(event) != ["acted"]:
            found.append(f"{event}: outcomes {outcomes.get(event)}, expected exactly one, acted")
    return found

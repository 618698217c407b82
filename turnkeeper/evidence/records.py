"""Live records against what the evidence says was written to them, and the links between entries. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from libs.contracts.evidence import Break, Chain, Entry, group

Record = Mapping[str, str]
"""Field → stored bytes, one character each (ISO 8859-1)."""
TRIMMED = ("args", "result", "context", "owner", "lease_until")
"""Fields of an operation that go once it can no longer be claimed; a tombstone is left (design §3.4)."""


@dataclass(frozen=True)
class Told:
    """An entry that can be read, with its number."""

    number: int
    entry: Entry
    body: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """What it tells of."""
        return str(self.body.get("kind", ""))

    @property
    def name(self) -> str:
        """How it is named to people."""
        return f"entry {self.number} ({self.kind})"

    def get(self, fact: str) -> Any:
        """A fact, None where it tells none."""
        return self.body.get(fact)


def readable(chain: Chain) -> list[Told]:
    """The entries of a chain that are whole, in order."""
    found = []
    for number, line in enumerate(chain.lines, chain.base + 1):
        try:
            entry = Entry.parse(line)
            if entry.is_whole:
                found.append(Told(number, entry, entry.body))
        except ValueError:
            continue
    return found


@dataclass(frozen=True)
class _Group:
    """Fields under one digest, by the entry that wrote them."""

    by: Told
    fields: tuple[str, ...]
    digest: str


@dataclass
class _Expected:
    """What a record must hold by the entries so far."""

    groups: list[_Group] = field(default_factory=list)
    exact: dict[str, tuple[Told, str]] = field(default_factory=dict)

    def write(self, by: Told, told: Mapping[str, Any]) -> None:
        """Fold in one entry's `sets`."""
        fields = tuple(str(name) for name in told.get("fields", ()))
        gone = {*fields, *told.get("cleared", ()), *told.get("stamped", ()), *told.get("noted", ()),
                *told.get("after", {})}  # fmt: skip
        self.groups = [one for one in self.groups if not gone & set(one.fields)]
        for name in gone:
            self.exact.pop(name, None)
        if fields:
            self.groups.append(_Group(by, fields, str(told.get("digest", ""))))
        for name in told.get("stamped", ()):
            self.exact[name] = (by, str(by.entry.at))
        parts = by.entry.note.split("/")
        for at, name in enumerate(told.get("noted", ())):
            self.exact[name] = (by, parts[at].replace(",", " ") if at < len(parts) else "")
        for name, wait in told.get("after", {}).items():
            self.exact[name] = (by, str(by.entry.at + int(wait)))


def check_records(told: Sequence[Told], records: Mapping[str, Record], *, base: int, now: int) -> list[Break]:
    """Records that are not what the entries say. `now` (ms, Unix) tells a record that is over its time from one that
    was taken away; entries before `base` are not at hand, so what only they tell cannot be judged."""
    expected: dict[str, _Expected] = {}
    for one in told:
        for change in one.body.get("sets", ()):
            expected.setdefault(str(change["of"]), _Expected()).write(one, change)
    breaks = []
    for name, wanted in expected.items():
        breaks += _check_record(name, wanted, records.get(name, {}), now)
    if base == 0:
        known = {name for name in expected if name.startswith("operation:")}
        strangers = [name for name, fields in records.items() if name.startswith("operation:") and fields]
        breaks += [Break(name, "no entry tells of it") for name in strangers if name not in known]
    return breaks


def _check_record(name: str, wanted: _Expected, record: Record, now: int) -> list[Break]:
    if not record:
        return []  # its span is over; the archive and the chain are what is left of it
    trimmed = record.get("not_after", "").isdigit() and int(record["not_after"]) < now
    breaks = []
    for one in wanted.groups:
        missing = [part for part in one.fields if part not in record]
        if missing and trimmed and set(missing) <= set(TRIMMED):
            continue
        values = (record.get(part, "").encode("latin-1") for part in one.fields)
        if missing or group(*values) != one.digest:
            breaks.append(Break(f"{name} {', '.join(one.fields)}", f"not what {one.by.name} says was written"))
    for part, (by, value) in wanted.exact.items():
        if part not in record and trimmed and part in TRIMMED:
            continue
        if record.get(part, "") != value:
            breaks.append(Break(f"{name} {part}", f"not what {by.name} says was written"))
    return breaks


def check_links(told: Sequence[Told], seals: Mapping[str, bool], *, base: int) -> list[Break]:
    """Entries that do not follow from those before them: an outcome without its attempt, a consent without its yes, a
    question that asked for other steps than were proposed. What lies before `base` cannot be judged."""
    breaks = [
        Break(one.name, "its seal was not made by who holds the seal keys")
        for one in told
        if one.kind == "input" and not seals.get(str(one.get("input")), False)
    ]
    if base:
        return breaks
    seen: list[Told] = []
    for one in told:
        breaks += _check_link(one, seen)
        seen.append(one)
    return breaks


def _check_link(one: Told, seen: Sequence[Told]) -> list[Break]:
    match one.kind:
        case "outcome":
            made = find(seen, "attempt", key=one.get("key"))
            return [] if made else [Break(one.name, "no attempt of this operation came before it")]
        case "question":
            return _check_question(one, seen)
        case "decision":
            asked = find(seen, "question", action=one.get("action"))
            if asked is None:
                return [Break(one.name, "nobody was asked")]
            if asked.get("approver") != one.get("who") or asked.get("question") != one.get("question"):
                return [Break(one.name, f"not of the approver and the question of {asked.name}")]
        case "attempt":
            return _check_attempt(one, seen)
    return []


def _check_question(one: Told, seen: Sequence[Told]) -> list[Break]:
    proposed = proposal(seen, str(one.get("action")))
    if proposed is None:
        return [Break(one.name, "no turn proposed it")]
    if proposed[1].get("steps") != one.get("steps"):
        return [Break(one.name, f"it asks for other steps than {proposed[0].name} proposed")]
    owner = find(seen, "session")
    if owner is not None and owner.get("owner") != one.get("approver"):
        return [Break(one.name, f"its approver is not the owner that {owner.name} tells")]
    return []


def _check_attempt(one: Told, seen: Sequence[Told]) -> list[Break]:
    breaks = []
    inputs = {str(found.get("input")) for found in seen if found.kind == "input"}
    for name in one.get("inputs") or ():
        if name not in inputs:
            breaks.append(Break(one.name, "its authority is an input that never got a number here"))
    if sent_by(seen, one) is None:
        breaks.append(Break(one.name, "no turn sent it"))
    action = one.get("consent")
    if action:
        decided = find(seen, "decision", action=action, outcome="accepted")
        if decided is None:
            breaks.append(Break(one.name, f"{action} was not accepted before it"))
        elif decided.get("input") != one.get("decision"):
            breaks.append(Break(one.name, f"its grant is not that of {decided.name}"))
    return breaks


def check_marks(told: Sequence[Told], marks: Mapping[str, str]) -> list[Break]:
    """Dedupe entries that hold another mark than the one that their input's entry tells."""
    breaks = []
    for one in told:
        mark = one.get("dedupe") if one.kind == "input" else None
        if mark and marks.get(str(one.get("input")), mark) != mark:
            breaks.append(Break(f"dedupe {one.get('input')}", f"it holds another mark than {one.name} tells"))
    return breaks


def find(told: Iterable[Told], kind: str, **facts: Any) -> Told | None:
    """The last entry of a kind with these facts, or None."""
    found = None
    for one in told:
        if one.kind == kind and all(one.get(name) == value for name, value in facts.items()):
            found = one
    return found


def sent_by(told: Iterable[Told], attempt: Told) -> Told | None:
    """The turn's commit that sent an attempt's call, or None."""
    for one in told:
        if one.kind == "turn" and any(sent.get("key") == attempt.get("key") for sent in one.get("sends") or ()):
            return one
    return None


def proposal(told: Iterable[Told], action: str) -> tuple[Told, Mapping[str, Any]] | None:
    """The turn's commit that proposed an action, and what it proposed; None where none did."""
    for one in told:
        for asked in one.get("asks") or () if one.kind == "turn" else ():
            if asked.get("action") == action:
                return one, asked
    return None

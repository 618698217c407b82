"""The world's records and rules, without disk or network: an effect is judged, then becomes a log entry.

The log is the fact and the records follow from it: `judge` changes nothing, `apply` takes an entry that was judged
now or read from the log at start.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import jsonschema_rs
from pydantic import BaseModel, ConfigDict

from libs.contracts.application import World as Collection
from libs.contracts.canonical import JSON, digest
from libs.contracts.templates import TemplateError, evaluate, render

Verb = Literal["put", "change"]
Record = dict[str, JSON]


class Refused(Exception):
    """The world's rules say no. `reason` is for people and for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Request(BaseModel):
    """One wish to change the world. `key` is the Idempotency-Key, "" for none; `at` in milliseconds (Unix)."""

    model_config = ConfigDict(frozen=True)

    key: str = ""
    collection: str
    verb: Verb
    body: dict[str, JSON]
    actor: str = ""
    session: str = ""
    operation: str = ""
    at: int

    def fingerprint(self) -> str:
        """What must be equal for a repeated key to be the same wish (Idempotency-Key draft 07, §2.6)."""
        return digest([self.collection, self.verb, self.body])


class Entry(BaseModel):
    """One line of the effect log: what was wished by whom, and what became of it. `at` in milliseconds (Unix)."""

    model_config = ConfigDict(frozen=True)

    seq: int
    at: int
    key: str
    fingerprint: str
    collection: str
    verb: Verb
    outcome: Literal["committed", "refused"]
    records: tuple[Record, ...] = ()
    """The records as they are afterwards; none where it was refused."""
    reason: str = ""
    actor: str = ""
    session: str = ""
    operation: str = ""

    def answer(self) -> JSON:
        """The result of a committed entry: the new record, or all changed ones."""
        return self.records[0] if self.verb == "put" else {"records": list(self.records)}


class World:
    """All collections of one application, and the key of every wish that was ever judged."""

    def __init__(self, collections: Mapping[str, Collection]) -> None:
        self.collections = collections
        self.entries: list[Entry] = []
        self._records: dict[str, dict[str, Record]] = {name: {} for name in collections}
        self._written_by: dict[str, dict[str, set[str]]] = {name: {} for name in collections}
        self._counters = dict.fromkeys(collections, 0)
        self._by_key: dict[str, Entry] = {}
        self._schemas = {name: jsonschema_rs.validator_for(c.record) for name, c in collections.items()}

    def known(self, key: str) -> Entry | None:
        """The entry of an Idempotency-Key that was used before."""
        return self._by_key.get(key) if key else None

    def judge(self, request: Request) -> Entry:
        """What becomes of a wish. A refusal is an entry too: its key gets the same answer again."""
        try:
            records = self._put(request) if request.verb == "put" else self._change(request)
        except Refused as refused:
            return self._entry(request, "refused", reason=refused.reason)
        return self._entry(request, "committed", records=records)

    def apply(self, entry: Entry) -> None:
        """Make an entry part of the world. Raises ValueError for one that does not follow, from a mixed-up log."""
        if entry.seq != len(self.entries) + 1 or entry.collection not in self.collections:
            raise ValueError(f"entry {entry.seq} of {entry.collection!r} does not follow")
        self.entries.append(entry)
        if entry.key:
            self._by_key[entry.key] = entry
        for record in entry.records:
            name = str(record["id"])
            if name not in self._records[entry.collection]:
                self._counters[entry.collection] += 1
            if entry.key:
                self._written_by[entry.collection].setdefault(name, set()).add(entry.key)
            self._records[entry.collection][name] = record

    def find(self, collection: str, where: Mapping[str, JSON]) -> list[Record]:
        """Records whose fields equal those of `where`; `key` means an Idempotency-Key that made or changed
        the record."""
        return [record for record in self._records[collection].values() if self._fits(collection, record, where)]

    def records(self, collection: str) -> list[Record]:
        """All records of a collection, oldest first."""
        return list(self._records[collection].values())

    def lines(self, collection: str) -> list[str]:
        """One line for people a record, as the collection's `show` says; what it shows as nothing is left out."""
        shown = []
        for record in self.records(collection):
            try:
                text = render(self.collections[collection].show, record).strip()
            except TemplateError as error:
                text = f"{record['id']} (cannot be shown: {error})"
            if text:
                shown.append(text)
        return shown

    def _put(self, request: Request) -> tuple[Record, ...]:
        fields = request.body.get("record", request.body.get("args"))
        if not isinstance(fields, dict):
            raise Refused("a put needs a record")
        number = self._counters[request.collection] + 1
        record = {"id": f"{self.collections[request.collection].prefix}{number}", **_without_id(fields)}
        self._check(request.collection, record)
        return (record,)

    def _change(self, request: Request) -> tuple[Record, ...]:
        where, changes = request.body.get("where"), request.body.get("set")
        if not isinstance(where, dict) or not isinstance(changes, dict):
            raise Refused("a change needs where and set")
        if not where:
            raise Refused("an empty where would change everything")
        found = self.find(request.collection, where)
        if not found:
            raise Refused("no record matches")
        changed = tuple({**record, **_without_id(changes)} for record in found)
        for record in changed:
            self._check(request.collection, record)
        return changed

    def _check(self, name: str, record: Record) -> None:
        """Schema, unique groups and rules of a collection, for a record as it would be."""
        fault = next(iter(self._schemas[name].iter_errors(_without_id(record))), None)
        if fault is not None:
            path = ".".join(str(part) for part in fault.instance_path)
            raise Refused(f"{path or 'record'}: {fault.message}")
        others = [other for other in self._records[name].values() if other["id"] != record["id"]]
        for group in self.collections[name].unique:
            fields = [field.strip() for field in group.split(",")]
            # As in SQL: what a record does not say is equal to nothing.
            if all(field in record for field in fields) and any(
                _values(other, fields) == _values(record, fields) for other in others
            ):
                raise Refused(f"there is already one with this {' and '.join(fields)}")
        for rule, expression in self.collections[name].rules.items():
            if not _holds(expression, record, others):
                raise Refused(rule)

    def _fits(self, collection: str, record: Record, where: Mapping[str, JSON]) -> bool:
        written_by = self._written_by[collection].get(str(record["id"]), set())
        return all(
            (isinstance(value, str) and value in written_by)
            if field == "key"
            else field in record and record[field] == value
            for field, value in where.items()
        )

    def _entry(self, request: Request, outcome: Literal["committed", "refused"], **rest: Any) -> Entry:
        return Entry(
            seq=len(self.entries) + 1,
            fingerprint=request.fingerprint(),
            outcome=outcome,
            **request.model_dump(exclude={"body"}),
            **rest,
        )


def _without_id(fields: Mapping[str, JSON]) -> Record:
    # Ids are the world's own: nobody picks or changes one.
    return {field: value for field, value in fields.items() if field != "id"}


def _values(record: Record, fields: Iterable[str]) -> list[JSON]:
    return [record.get(field) for field in fields]


def _holds(expression: str, record: Record, others: list[Record]) -> bool:
    try:
        value = evaluate(expression, {"record": record, "collection": others})
    except TemplateError as error:
        raise Refused(f"a rule cannot be judged: {error}") from error
    return value in (True, "true")

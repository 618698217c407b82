"""How entries of evidence speak of stored records, so that a record can be held against what was written of it.

An entry's `sets` lists what its script wrote: the record, the fields whose texts one digest covers, the fields that
hold the entry's own time, and those that hold its note. Later entries overrule earlier ones, field by field.
"""

from collections.abc import Mapping, Sequence

from libs.contracts.canonical import JSON, digest
from libs.contracts.evidence import EntryKind, group
from libs.contracts.session import Step


def operation_record(key: str) -> str:
    """The name of an operation's record in entries."""
    return f"operation:{key}"


def action_record(action: str) -> str:
    """The name of an action's record in entries."""
    return f"action:{action}"


SESSION_RECORD = "session"


def sets(record: str, *groups: Mapping[str, object], **marks: Sequence[str] | Mapping[str, int]) -> list[JSON]:
    """What a script wrote to a record: each of `groups` under one digest. Of `marks`, `stamped` fields hold the
    entry's time, `noted` ones the parts of its note (by `/`), `after` ones its time plus milliseconds, and `cleared`
    ones are gone."""
    told: list[JSON] = [{"of": record, "fields": list(fields), "digest": group(*fields.values())} for fields in groups]
    if marks:
        told.append(
            {"of": record, **{name: dict(v) if isinstance(v, Mapping) else list(v) for name, v in marks.items()}}
        )
    return told


def steps_digest(steps: Sequence[Step]) -> str:
    """SHA-256 of literal steps: what a proposal, its question and its grant have in common."""
    return digest([step.model_dump() for step in steps])


def entry(
    kind: EntryKind, *, who: str, outcome: str, sets: Sequence[JSON] = (), behalf: str = "", cause: str = "",
    **facts: JSON,
) -> dict[str, JSON]:  # fmt: skip
    """An entry's body: who did it, on whose behalf, what came of it, by which message or input; and more facts."""
    body: dict[str, JSON] = {"kind": kind, "who": who, "outcome": outcome, "behalf": behalf, "cause": cause, **facts}
    if sets:
        body["sets"] = list(sets)
    return body

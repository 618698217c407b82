"""The record of a session: what each commit was decided from and what came of it, so that it can be decided again.

An entry holds the stimuli, the time, the cause and the settings that `decide` was given, in their own words, and of the
outcome only what tells whether it is the same: kinds and texts of lines, types and ids of messages, a digest of the new
state. Now and then it also holds the state before, from which a replay can begin (docs/adr/0007).
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from libs.contracts.canonical import JSON
from libs.contracts.codec import to_json
from libs.contracts.errors import ContractError
from libs.runtime.publisher import Outgoing
from services.session.domain import Stimulus
from services.session.domain.draft import Decision
from services.session.domain.rules import Rules
from services.session.domain.state import SessionState
from services.session.snapshot import Snapshot

KEPT = 200
"""Entries of a session."""
STATE_EVERY = 100
"""Versions from one state in the record to the next: of the kept entries at least half can be replayed."""
MOST_BYTES = 64 * 1024
"""Larger stimuli of one commit are left out, but for their digest."""
MOST_STATE_BYTES = 256 * 1024
"""A larger state is left out."""

_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(Stimulus)}
"""Every type of stimulus by its name: a new one is recorded without a word here."""
_MADE_AGAIN = frozenset({"Shown"})
"""Stimuli that the handlers make from the state alone, and large ones: a replay makes them again."""


class LeftOut(BaseModel):
    """Why an entry cannot be decided again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    why: str
    bytes: int = 0
    digest: str = ""


class Came(BaseModel):
    """What came of a commit, as far as a replay compares it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lines: tuple[tuple[str, str], ...] = ()
    """Kind and text."""
    messages: tuple[tuple[str, str], ...] = ()
    """Wire type and id."""
    outcomes: tuple[tuple[int, str], ...] = ()
    """Number of the input and what became of it."""
    state: str = ""
    """Digest of the new state."""


class Entry(BaseModel):
    """One commit. `given` holds each stimulus as (type, fields); without it `left_out` says why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    """Of the state before."""
    at: int
    """Milliseconds (Unix): the `now` of the decision."""
    cause: str = ""
    settings: dict[str, JSON] = {}
    """What the process, not the application, says in the rules."""
    given: tuple[tuple[str, JSON], ...] = ()
    left_out: LeftOut | None = None
    before: JSON = None
    """The state before, in some entries."""
    came: Came


class Record(BaseModel):
    """What `GET /v1/sessions/{session}/record` answers: entries, oldest first, and the state as it is stored now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    version: int
    state: JSON = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Encoded:
    """An entry as it is stored, and whether it can be decided again."""

    raw: bytes
    whole: bool


class Recorder:
    """Writes entries under the rules of this process."""

    def __init__(self, rules: Rules) -> None:
        self._settings = orjson.Fragment(orjson.dumps(settings_of(rules)))

    def entry(self, snapshot: Snapshot, decision: Decision, messages: Sequence[Outgoing], after: bytes) -> Encoded:
        """The entry of a commit that is made from a snapshot. `after` is the new state as it is stored."""
        entry: dict[str, Any] = {
            "version": snapshot.version,
            "at": decision.at,
            "cause": decision.cause,
            "settings": self._settings,
        }
        given = _given(decision)
        entry["left_out" if isinstance(given, dict) else "given"] = given
        if snapshot.version % STATE_EVERY == 0 or not snapshot.recorded:
            before = to_json(snapshot.state, exclude_defaults=True)
            if len(before) <= MOST_STATE_BYTES:
                entry["before"] = orjson.Fragment(before)
        entry["came"] = came_of(decision, messages, after)
        return Encoded(orjson.dumps(entry), not isinstance(given, dict))


def _given(decision: Decision) -> list[Any] | dict[str, JSON]:
    """The stimuli with their types, or why they are left out."""
    try:
        named = [(type(stimulus).__name__, stimulus) for stimulus in decision.given]
        parts = [(kind, encode(stimulus)) for kind, stimulus in named if kind not in _MADE_AGAIN]
    except (KeyError, ValueError) as error:
        return {"why": f"it could not be written down ({type(error).__name__})"}
    size = sum(len(raw) for _, raw in parts)
    if size > MOST_BYTES:
        digest = hashlib.sha256(b"".join(raw for _, raw in parts)).hexdigest()
        return {"why": f"above {MOST_BYTES:,} bytes", "bytes": size, "digest": digest}
    return [(kind, orjson.Fragment(raw)) for kind, raw in parts]


def encode(stimulus: object) -> bytes:
    """A stimulus as JSON bytes, without its type. Raises KeyError for what is none, ValueError for what JSON cannot
    hold."""
    return _ADAPTERS[type(stimulus).__name__].serializer.to_json(stimulus, exclude_defaults=True)


def decode(kind: str, fields: JSON) -> Stimulus:
    """A stimulus of the record. Raises ContractError where today's code cannot read it."""
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        raise ContractError(f"there is no stimulus {kind}")
    try:
        read: Stimulus = adapter.validate_python(fields, extra="forbid")
    except ValidationError as error:
        raise ContractError(f"{kind}: {_fault(error)}") from error
    return read


def decode_state(fields: JSON) -> SessionState:
    """A state of the record. Raises ContractError where today's code cannot read it."""
    try:
        return SessionState.model_validate(fields)
    except ValidationError as error:
        raise ContractError(f"the state: {_fault(error)}") from error


def _fault(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"


def came_of(decision: Decision, messages: Sequence[Outgoing], after: bytes) -> dict[str, Any]:
    """What came of a decision, as the fields of `Came`. `after` is the new state as it is stored."""
    sends = zip(decision.sends, messages, strict=True)
    return {
        "lines": [(line.kind, line.text) for line in decision.lines],
        "messages": [(send.message.wire_type(), outgoing.id) for send, outgoing in sends],
        "outcomes": [(ref.number, became) for ref, became in decision.outcomes],
        "state": digest(after),
    }


def digest(state: bytes) -> str:
    """Of a state as it is stored: 32 hexadecimal digits, against mistakes and not against forgers."""
    return hashlib.blake2b(state, digest_size=16).hexdigest()


def leads_to(entry: bytes, version: int) -> bool:
    """Whether a stored entry can be decided again and led to this version."""
    read = orjson.loads(entry)
    return bool(read["version"] + 1 == version and "left_out" not in read)


def settings_of(rules: Rules) -> dict[str, JSON]:
    """What the process says in the rules: their plain values, such as limits of time and labs."""
    found = {field.name: getattr(rules, field.name) for field in dataclasses.fields(rules)}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in found.items()
        if isinstance(value, int | float | str | frozenset)
    }


def under(rules: Rules, settings: Mapping[str, JSON]) -> Rules:
    """These rules with the recorded values; a value that today's rules do not have is left out."""
    changes: dict[str, Any] = {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in settings.items()
        if name in settings_of(rules)
    }
    return dataclasses.replace(rules, **changes)

"""Standing approvals: what a user grants in advance, and what it covers (design §3.4, G3). Pure: no I/O, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import jsonschema_rs
import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from libs.contracts.application import Application
from libs.contracts.canonical import JSON, canonical
from libs.contracts.errors import ContractError
from libs.contracts.ids import Slug, derive_id

MOST_USES = 100
"""Uses of one standing approval: each is kept and shown."""
LONGEST_MS = 366 * 86_400_000
"""Nobody remembers a longer one."""
KEPT_MS = 7 * 86_400_000
"""So long an approval is shown after its end. Longer than an operation's key is known (48 h), so that a call which
comes again always finds the use that it reserved."""
MOST_KEPT = 50
"""Standing approvals of one user, those that ended within the last days included."""
MOST_SHOWN = 4_096
"""Bytes of a use's arguments that are kept for the list; of longer ones the beginning and the digest."""

GrantState = Literal["live", "not_begun", "used_up", "ended", "revoked"]
_LINEAR = jsonschema_rs.RegexOptions()
"""Patterns are matched in linear time: a user's pattern must not stop the door."""


class Limit(BaseModel):
    """What one argument may be: the subset of JSON Schema that a person can read. Without any rule: anything.

    `pattern` has to match the whole text. `minimum` and `maximum` are for numbers alone, `pattern` for texts alone: an
    argument of another type does not pass because the rule does not apply to it (JSON Schema 2020-12, section 6).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    const: JSON = None
    enum: list[JSON] | None = Field(None, min_length=1, max_length=100)
    minimum: float | None = None
    maximum: float | None = None
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if self.pattern is not None and (self.minimum is not None or self.maximum is not None):
            raise ValueError("give pattern for a text, or minimum and maximum for a number")
        if self.pattern is not None:
            try:
                # Alone too: `a)|(?:b` is whole only between our brackets, and would then match part of a text.
                for pattern in (self.pattern, _whole(self.pattern)):
                    jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_LINEAR)
            except ValueError:
                raise ValueError("pattern: a regular expression without look-around and back references") from None
        return self

    @property
    def anything(self) -> bool:
        """Whether it limits nothing."""
        return not self.model_fields_set

    def rule(self) -> dict[str, Any]:
        """As JSON Schema."""
        found: dict[str, Any] = {}
        for name in ("const", "enum", "minimum", "maximum"):
            if name in self.model_fields_set and (name == "const" or getattr(self, name) is not None):
                found[name] = getattr(self, name)
        if "minimum" in found or "maximum" in found:
            found["type"] = "number"
        if self.pattern is not None:
            found |= {"type": "string", "pattern": _whole(self.pattern)}
        return found


class GrantRequest(BaseModel):
    """What a user wishes to grant. Times in milliseconds (Unix).

    What is not named is not granted: an argument without an entry in `limits` makes a step one that is asked about;
    `{}` allows anything. `sources` empty: whoever starts the turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tool: Slug
    limits: dict[str, Limit] = Field(default_factory=dict, max_length=50)
    uses: int = Field(ge=1, le=MOST_USES)
    ends_at: int
    begins_at: int = 0
    sources: tuple[Slug, ...] = Field((), max_length=50)

    def content(self) -> bytes:
        """Its canonical bytes: the same wish under the same key is one approval."""
        return canonical(self.model_dump(mode="json", exclude_unset=True))


@dataclass(frozen=True)
class Use:
    """One use. `state` is `reserved` until it is known that the operation was claimed, then `spent`."""

    session: str
    key: str
    operation: str
    at: int
    source: str
    args: JSON
    state: Literal["reserved", "spent"]


@dataclass(frozen=True)
class Grant:
    """A standing approval as it is stored. Times in milliseconds (Unix), store time; 0 where it is not revoked."""

    id: str
    request: GrantRequest
    made_at: int
    taken: int = 0
    revoked_at: int = 0
    uses: tuple[Use, ...] = ()

    def state(self, now: int) -> GrantState:
        """What it is good for at `now`."""
        if self.revoked_at:
            return "revoked"
        if now > self.request.ends_at:
            return "ended"
        if self.taken >= self.request.uses:
            return "used_up"
        return "not_begun" if now < self.request.begins_at else "live"


def grant_id(user: str, idempotency_key: str) -> str:
    """The id of what a user grants under an idempotency key: the same however often it is sent (G2)."""
    return "S" + derive_id("standing", user, idempotency_key)[:12]


def request_fault(request: GrantRequest, application: Application, now: int) -> str | None:
    """Why this cannot be granted, for the person who wishes it, or None."""
    tool = application.tools.get(request.tool)
    if tool is None:
        return f"there is no tool {request.tool}"
    if not tool.standing:
        return f"{request.tool} cannot be granted in advance: its question is asked each time"
    if not now < request.ends_at <= now + LONGEST_MS:
        return "ends_at: it ends in the future, and within a year"
    try:
        request.content()
    except ContractError:
        return "limits: a number is beyond what JSON holds exactly (2**53)"
    if request.begins_at >= request.ends_at:
        return "begins_at: it begins before it ends"
    if unknown := sorted(set(request.sources) - set(application.sources)):
        return f"sources: there is no source {unknown[0]}"
    if tool.args.get("additionalProperties", True) is False:
        declared = tool.args.get("properties", {})
        if unknown := sorted(set(request.limits) - set(declared)):
            return f"limits: {request.tool} has no argument {unknown[0]}"
    missing = sorted(set(tool.args.get("required", ())) - set(request.limits))
    if missing:
        return f"limits: say what {missing[0]} may be; {{}} allows anything"
    return None


def covers(request: GrantRequest, *, tool: str, args: Mapping[str, JSON], source: str) -> bool:
    """Whether a step of a turn from `source` is within what was granted. Time and uses are the store's to judge."""
    if request.tool != tool or (request.sources and source not in request.sources):
        return False
    return bool(_validator(orjson.dumps(_schema(request.limits), option=orjson.OPT_SORT_KEYS)).is_valid(dict(args)))


def _schema(limits: Mapping[str, Limit]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: limit.rule() for name, limit in limits.items()},
        # A rule about an argument that is left out would say nothing of what the destination then does.
        "required": sorted(name for name, limit in limits.items() if not limit.anything),
        "additionalProperties": False,
    }


@lru_cache(maxsize=1_024)
def _validator(schema: bytes) -> Any:
    return jsonschema_rs.validator_for(orjson.loads(schema), pattern_options=_LINEAR)


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def use_name(session: str, key: str) -> str:
    """A use's name within its approval: ids are slugs, which hold no colon."""
    return f"{session}:{key}"


def pack_use(*, operation: str, at: int, source: str, args: Mapping[str, JSON]) -> bytes:
    """What is kept of a use, with long arguments cut and their digest beside."""
    raw = canonical(dict(args))
    shown: JSON = dict(args)
    if len(raw) > MOST_SHOWN:
        shown = {"begins": raw[:MOST_SHOWN].decode(errors="ignore"), "bytes": len(raw)}
    return orjson.dumps({"operation": operation, "at": at, "source": source, "args": shown})


def read_grant(id: str, fields: Mapping[str, str]) -> Grant | None:
    """An approval from its stored fields; None where there is none, or none that this version can read."""
    try:
        request = GrantRequest.model_validate_json(fields["request"])
    except (KeyError, ValueError):
        return None
    uses = [
        _use(name.removeprefix("u:"), value, fields.get("c:" + name.removeprefix("u:"), ""))
        for name, value in fields.items()
        if name.startswith("u:")
    ]
    return Grant(
        id=id,
        request=request,
        made_at=int(fields.get("made_at", 0)),
        taken=int(fields.get("taken", 0)),
        revoked_at=int(fields.get("revoked_at", 0)),
        uses=tuple(sorted(uses, key=lambda use: (use.at, use.key))),
    )


def _use(name: str, packed: str, calls: str) -> Use:
    session, _, key = name.partition(":")
    told = orjson.loads(packed)
    state: Literal["reserved", "spent"] = "spent" if calls == "spent" else "reserved"
    return Use(session, key, told["operation"], told["at"], told["source"], told["args"], state)

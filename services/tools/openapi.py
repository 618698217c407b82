"""The HTTP interface of the door: its calls, and the models of what they take and give."""

from typing import get_args

from pydantic import BaseModel

from libs.contracts.canonical import JSON
from libs.contracts.ids import Slug
from libs.contracts.reasons import OperationState
from libs.runtime.openapi import SLUG, Operation, Parameter, document
from services.tools.edge import Resolution
from services.tools.evidence_edge import GivenSeals
from services.tools.pauses import Kind
from services.tools.stopping import PauseWish


class ToolShown(BaseModel):
    """What a tool does, when it asks, and its arguments' schema."""

    name: Slug
    effect: str
    consent: str
    caused_by: list[str] | None
    standing: bool
    precondition: str | None
    keyed_seconds: float | None
    args: dict[str, JSON]
    units: dict[str, str]
    identity: list[str]


class ToolsShown(BaseModel):
    """The application's tools."""

    tools: list[ToolShown]


class OperationShown(BaseModel):
    """One intended effect, as the ledger has it. Times in milliseconds (Unix)."""

    session: Slug
    key: str
    operation: str
    state: str
    tool: str
    turn: str
    root: str
    action: str
    step: str
    reason: str
    resolved_by: str
    fault: str
    claimed_at: int | None
    finished_at: int | None
    not_after: int | None
    lease_until: int | None
    attempt: int | None
    looked_up: int | None
    call_number: int | None
    standing: str
    args: JSON
    result: JSON


class OperationsShown(BaseModel):
    """The newest 500 of a session, or all that are unknown or pending."""

    operations: list[OperationShown]


class SentShown(BaseModel):
    """What was sent before the pause, and has no outcome yet."""

    session: str
    operation: str
    tool: str


class WaitShown(BaseModel):
    """What waits for the end of the pause."""

    session: str
    tool: str
    since: int


class PauseShown(BaseModel):
    """What is paused, since when (milliseconds, Unix) and by whom, and whether it has come to a stop."""

    kind: Kind
    name: str
    by: str
    note: str
    at: int
    says: str
    stopped: bool
    in_flight: list[SentShown]
    waiting: int
    waits: list[WaitShown]


class PausesShown(BaseModel):
    """All that is paused."""

    pauses: list[PauseShown]


class Resumed(BaseModel):
    """`ended` is false where nothing was paused; `released` counts what went on."""

    kind: Kind
    name: str
    ended: bool
    released: int


class PublicKeys(BaseModel):
    """Ed25519 keys in base64, by id."""

    keys: dict[str, str]


class EvidenceShown(BaseModel):
    """A session's chain and the records that it tells of. Texts hold one character a byte (ISO 8859-1)."""

    session: Slug
    base: int
    previous: str
    sealed: int
    hash: str
    lines: list[str]
    links: list[JSON]
    heads: list[JSON]
    records: dict[str, dict[str, str]]
    seals: dict[str, bool]
    keys: dict[str, str]


class SealsJudged(BaseModel):
    """Whether each seal is ours."""

    seals: dict[str, bool]


_KIND = {"type": "string", "enum": list(get_args(Kind))}
_TEXT_KEY = {"type": "string", "minLength": 1, "maxLength": 256}
_PAUSED = {200: Resumed}
_ASKED = (
    Parameter("session", "query", SLUG),
    Parameter("state", "query", {"type": "string", "enum": list(get_args(OperationState))}),
)

DOCUMENT = document(
    "tools",
    {
        ("GET", "/v1/tools"): Operation("The application's tools", {200: ToolsShown}),
        ("GET", "/v1/operations"): Operation(
            "Operations of a session; without a session those that are unknown or pending",
            {200: OperationsShown},
            who="operator",
            scope="read",
            parameters=_ASKED,
            problems=(400, 503),
        ),
        ("GET", "/v1/operations/{session}/{operation}"): Operation(
            "One operation, by its name in the session or by its key",
            {200: OperationShown},
            who="operator",
            scope="read",
            path={"operation": _TEXT_KEY},
            problems=(400, 404, 503),
        ),
        ("POST", "/v1/sessions/{session}/operations/{operation}/resolve"): Operation(
            "Say what became of an operation whose outcome is unknown",
            {200: OperationShown},
            who="operator",
            scope="resolve",
            path={"operation": _TEXT_KEY},
            body=Resolution,
            problems=(400, 404, 409, 503),
        ),
        ("GET", "/v1/pauses"): Operation(
            "What is paused", {200: PausesShown}, who="operator", scope="read", problems=(503,)
        ),
        ("POST", "/v1/pauses"): Operation(
            "Stop sends on all replicas; 202 where a holder has not said yet that it stops",
            {200: PauseShown, 201: PauseShown, 202: PauseShown},
            who="operator",
            scope="pause",
            body=PauseWish,
            problems=(400, 404, 409, 503),
        ),
        ("DELETE", "/v1/pauses/{kind}"): Operation(
            "Let sends begin again",
            _PAUSED,
            who="operator",
            scope="pause",
            path={"kind": _KIND},
            parameters=(Parameter("name", "query", {"type": "string"}),),
            problems=(400, 404, 503),
        ),
        ("DELETE", "/v1/pauses/{kind}/{name}"): Operation(
            "Let sends begin again",
            _PAUSED,
            who="operator",
            scope="pause",
            path={"kind": _KIND},
            problems=(400, 404, 503),
        ),
        ("GET", "/v1/evidence/keys"): Operation("Public keys that heads are signed with", {200: PublicKeys}),
        ("GET", "/v1/sessions/{session}/evidence"): Operation(
            "A session's evidence, as it is stored",
            {200: EvidenceShown},
            who="operator",
            scope="read",
            problems=(400, 404, 503),
        ),
        ("POST", "/v1/sessions/{session}/evidence/seals"): Operation(
            "Whether these seals are ours; changes nothing",
            {200: SealsJudged},
            who="operator",
            scope="read",
            body=GivenSeals,
            problems=(400, 503),
        ),
    },
)

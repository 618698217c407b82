"""The model of `turnkeeper.yaml`: what an application is. A wrong file is refused whole, every fault by path."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import jsonschema_rs
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from libs.contracts.cloudevents import REQUIRED
from libs.contracts.faults import Fault
from libs.contracts.http_call import (
    BODILESS,
    HEADER_NAME,
    STATUS,
    Meaning,
    has_templates,
    header_faults,
    is_reference,
    split_url,
    template_faults,
)
from libs.contracts.ids import Slug
from libs.contracts.origin import OriginKind
from libs.contracts.principals import PrincipalPattern, kind_of, source_of, tool_fits
from libs.contracts.secrecy import remember
from libs.contracts.templates import syntax_fault

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
MOST_SECONDS = 1_000 * 365 * 86_400.0
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class ApplicationError(ValueError):
    """A wrong application file. `faults` lists each as `path: what is wrong`; no secret is in them."""

    def __init__(self, source: str, faults: list[str]) -> None:
        super().__init__(f"{source} has {len(faults)} fault(s):\n" + "\n".join(f"  {fault}" for fault in faults))
        self.faults = faults


class _Several(ValueError):
    """Faults that already begin with their path."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


def seconds(value: Any) -> float:
    """A duration in seconds from `10m`, `96h`, `500ms`, or a number of seconds. Raises ValueError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Above, milliseconds would leave the whole numbers that a script can hold.
        if not abs(value) <= MOST_SECONDS:
            raise ValueError("a duration is at most 1,000 years")
        return float(value)
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError("a duration is a number with ms, s, m, h or d, such as 10m")
    return seconds(float(match[1]) * _SECONDS[match[2]])


def _checked_template(text: str) -> str:
    if fault := syntax_fault(text):
        raise ValueError(f"template: {fault}")
    return text


Duration = Annotated[float, BeforeValidator(seconds), Field(gt=0)]
"""Seconds."""
Template = Annotated[str, AfterValidator(_checked_template)]
Gate = Literal["never", "unless-user", "unless-user-alone", "always"]


class Part(BaseModel):
    """Any part of the file: frozen, and a name we do not know is a fault, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StandardWebhooks(Part):
    """Standard Webhooks 1.0, `v1`. `secrets` are references (`env:NAME`, `file:PATH`); several for rotation."""

    scheme: Literal["standard-webhooks"]
    secrets: tuple[str, ...] = Field(min_length=1)
    tolerance: Duration = 300.0


class Hmac(Part):
    """A keyed hash whose every part is configured and nothing guessed (C063).

    `signed` is a template over `id`, `timestamp` and `body` as `{id}`, `{timestamp}`, `{body}`; a part that has a
    header but is not signed is not trusted.
    """

    scheme: Literal["hmac"]
    secrets: tuple[str, ...] = Field(min_length=1)
    secret_encoding: Literal["text", "base64", "hex"] = "text"  # noqa: S105 - how it is written, not what it is
    algorithm: Literal["sha256", "sha512", "sha1"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    header: str
    prefix: str = ""
    signed: str = "{body}"
    timestamp_header: str | None = None
    id_header: str | None = None
    id: Template | None = None
    """Template over `data` for an id inside the body."""
    covers: tuple[str, ...] = ()
    """Attributes of a CloudEvent in binary mode that are signed: `{body}` then stands for a line `name:value` for the
    header content-type and each of these headers (`ce-id`, …), in this order, and the body. The event's id and type are
    the attributes."""
    tolerance: Duration = 300.0

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if "{body}" not in self.signed:
            raise ValueError("signed: the body must be signed; put {body} into it")
        if "{timestamp}" in self.signed and self.timestamp_header is None:
            raise ValueError("timestamp_header: signed names {timestamp}, so say which header carries it")
        if self.timestamp_header is not None and "{timestamp}" not in self.signed:
            raise ValueError("signed: a time outside the signature can be forged; put {timestamp} into it")
        if "{id}" in self.signed and self.id_header is None:
            raise ValueError("id_header: signed names {id}, so say which header carries it")
        if self.covers and (fault := _covers_fault(self.covers, self.id or self.id_header)):
            raise ValueError(f"covers: {fault}")
        if self.id is None and self.id_header is None and not self.covers:
            raise ValueError("id: say where the event's id is: id (a template over data) or id_header")
        return self


def _covers_fault(covers: tuple[str, ...], other_id: str | None) -> str:
    if missing := [name for name in REQUIRED if name not in covers]:
        return f"a CloudEvent needs {', '.join(missing)} too; sign them"
    if not all(re.fullmatch(r"[a-z0-9]{1,64}", name) for name in covers) or len(set(covers)) < len(covers):
        return "names of attributes in lower case, each once"
    return "leave id and id_header out: the CloudEvent's source and id are its identity" if other_id else ""


class UserToken(Part):
    """A user's bearer token: a JWT by shared secret or by JWKS; `sub` is the user."""

    scheme: Literal["user-token"]


class BrokerUser(Part):
    """RabbitMQ's validated `user_id`: the event is from whoever of `users` published it. AMQP only."""

    scheme: Literal["broker-user"]
    users: tuple[str, ...] = Field(min_length=1)


Verify = Annotated[StandardWebhooks | Hmac | UserToken | BrokerUser, Field(discriminator="scheme")]


class Dedupe(Part):
    """How long an event's identity is remembered: the sender's whole span of retries (G2)."""

    window: Duration = 96 * 3600.0


class Route(Part):
    """How an event finds its session: by its name, or by a subject that a committed operation registered."""

    session: Template | None = None
    subject: Template | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.session is None) == (self.subject is None):
            raise ValueError("give one of session and subject")
        return self


class Unrouted(Part):
    """What becomes of an event without a session: held for a time, or refused."""

    hold: Duration | None = None
    reject: bool = False

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.hold is None) != self.reject:
            raise ValueError("give one of hold (a duration) and reject: true")
        return self


class EventType(Part):
    """What a type of event means (design §4.1)."""

    subject: Template | None = None
    sequence: Template | None = None
    """Orders the events of a subject, per source and stream: older than what was applied is history, not action.
    Compared as numbers where both are numbers."""
    stream: Template | None = None
    """Sequences of different streams of one subject are not compared."""
    gone: bool = False
    """The subject is gone: its operation is neither reused nor compensated."""
    moot: bool = False
    """Pending timers and queued input about the subject are superseded."""
    notice: Template | None = None
    """Told to the user when the event arrives; no turn begins."""
    supersedes_questions: bool = False
    """Open questions about the subject are superseded."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.stream is not None and self.sequence is None:
            raise ValueError("sequence: a stream orders by its sequence; say where that is")
        return self


class Source(Part):
    """A configured sender. `kind` is the origin that its events carry."""

    verify: Verify
    kind: OriginKind = "webhook"
    dedupe: Dedupe = Dedupe()
    route: Route | None = None
    unrouted: Unrouted = Unrouted(hold=600.0)
    type: Template = "{{ type | default('') }}"
    """Template over the parsed body's top level and `data`, for the event's type."""
    types: dict[str, EventType] = {}
    written_by: Template | None = None
    """Over what is signed: who wrote the text that the source signs, such as a ticket's author. Shown, never believed:
    it gives no authority, and two writers' events do not join one turn."""

    def meaning(self, type: str) -> EventType:
        """What a type of event means: its own entry, else the first pattern (`offer.*`) that fits, else nothing."""
        return self.types.get(self.entry(type), EventType())

    def entry(self, type: str) -> str:
        """The name in `types` that says so; "" where none does."""
        if type in self.types:
            return type
        return next((pattern for pattern in self.types if fnmatchcase(type, pattern)), "")

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.verify.scheme == "user-token":
            if self.route is not None:
                raise ValueError("route: a user's message names its session in the path; leave route out")
            if self.written_by is not None:
                raise ValueError("written_by: users write what they say themselves; leave it out")
        elif self.route is None:
            raise ValueError("route: say how its events find a session")
        routed = self.route is not None and self.route.subject is not None
        for type, meaning in self.types.items():
            about = [name for name in ("sequence", "gone", "moot", "supersedes_questions") if getattr(meaning, name)]
            if about and meaning.subject is None and not routed:
                raise ValueError(f"types.{type}.subject: {about[0]} is about a subject; say which")
        if self.verify.scheme != "user-token" and self.kind == "user":
            raise ValueError("kind: only a user-token source speaks for a user")
        return self


class PythonConnector(Part):
    """A function by `module:name`."""

    function: str = Field(pattern=r"^[\w.]+:\w+$")
    timeout: Duration = 10.0


class SandboxConnector(Part):
    """A call to the sandbox world: `put`, `change` or `find` in a collection."""

    collection: str
    verb: Literal["put", "change", "find"]
    where: dict[str, Any] = {}
    set: dict[str, Any] = {}
    timeout: Duration = 5.0


class TimerConnector(Part):
    """The runtime's own timers (design §4.4): only the built-in tools use it."""

    verb: Literal["set", "cancel"]
    timeout: Duration = 5.0


class HttpConnector(Part):
    """A request to an HTTP API (docs/connectors.md)."""

    url: str
    """Scheme, host and port literally; segments of the path may hold templates, whose values are percent-encoded."""
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    """A value is text, a template, or a reference to a secret (`env:NAME`, `file:PATH`)."""
    query: dict[str, str | int | float | bool | None] | None = None
    """A null is left out, a list repeats its name."""
    body: Any = None
    """Sent as JSON, its texts templates; without, all arguments for POST, PUT and PATCH. A null sends no content."""
    timeout: Duration = 10.0
    idempotency_header: str = "Idempotency-Key"
    answers: dict[str, Meaning] = {}
    """Status (`409`) or class (`5xx`) → what it means, where that is not what it means by itself."""
    reads: Literal["json", "text", "nothing"] = "json"
    """How the answer's content is read; `nothing`: its status says all."""
    result: Any = None
    """The operation's result, its texts templates over `answer`, `status`, `headers` and the arguments. Without, it is
    the answer."""
    max_answer: int = Field(1_000_000, ge=1, le=8_000_000)
    """Bytes. What is larger is unknown."""

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        split_url(url)
        return url

    @field_validator("idempotency_header")
    @classmethod
    def _header(cls, name: str) -> str:
        if not HEADER_NAME.fullmatch(name):
            raise ValueError("not a header's name")
        return name

    @field_validator("answers", mode="before")
    @classmethod
    def _statuses(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        told = {str(status): meaning for status, meaning in table.items()}  # YAML reads 409 as a number
        if wrong := [status for status in told if not STATUS.fullmatch(status)]:
            raise ValueError(f"{', '.join(wrong)}: not a status such as 409, or a class such as 5xx")
        return told

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        faults = [f"headers.{fault}" for fault in header_faults(self.headers, self.idempotency_header)]
        for name in ("query", "body", "result"):
            faults += template_faults(getattr(self, name), name)
        if self.method in BODILESS and self.body is not None:
            faults.append(f"body: a {self.method} has none; say what goes into the query")
        silent = not self.sends_body and not self.chose_body and self.query is None
        if silent and not has_templates(split_url(self.url)[1]):
            faults.append(f"query: a {self.method} sends its arguments there; say which, or {{}} for none")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def sends_body(self) -> bool:
        """Whether a request has content."""
        return self.body is not None if self.chose_body else self.method in ("POST", "PUT", "PATCH")

    @property
    def chose_body(self) -> bool:
        """Whether the file says what the content is."""
        return "body" in self.model_fields_set

    @property
    def secrets(self) -> dict[str, str]:
        """Each reference to a secret by where it stands."""
        return {f"headers.{name}": value for name, value in self.headers.items() if is_reference(value)}


class McpConnector(Part):
    """A tool of an MCP server: over streamable HTTP (`url`) or as a process of the door's own (`command`, stdio).

    Tools whose server is written in the same way share one session with it.
    """

    url: str | None = Field(None, pattern=r"^https?://[^\s/@?#]+(/\S*)?$")
    headers: dict[str, str] = {}
    """Values are references: `env:NAME`, `file:PATH`."""
    command: tuple[str, ...] | None = Field(None, min_length=1)
    """Program and arguments, started without a shell."""
    env: dict[str, str] = {}
    """What the process is given beside `PATH`, `HOME` and the like. Values are references."""
    tool: str = Field(min_length=1, max_length=256)
    """Its name at the server."""
    schema_digest: str = Field(alias="schema", pattern=r"^sha256:[0-9a-f]{64}$")
    """Of the server's inputSchema and outputSchema as they were imported (`libs.contracts.mcp`): a tool that has
    changed since is not called."""
    errors: Literal["refused", "unknown"] | None = None
    """What a result with `isError` means for a tool that writes; without, unknown. MCP does not say that nothing was
    done then; `refused` is for a server whose author says so. A tool that does not write is refused in any case."""
    timeout: Duration = 10.0
    max_answer: int = Field(1_000_000, ge=1_024, le=64_000_000)
    """Bytes of the longest message that is read of the server: its list of tools too."""

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("give one of url and command")
        if self.headers and self.url is None:
            raise ValueError("headers: only a url has headers; a command has env")
        if self.env and self.command is None:
            raise ValueError("env: only a command has an environment; a url has headers")
        if any("\0" in part for part in self.command or ()):
            raise ValueError("command: a program's arguments hold no zero character")
        return self

    @property
    def secrets(self) -> dict[str, str]:
        """Every reference to a secret by where it stands below the connector."""
        given = {"headers": self.headers, "env": self.env}
        return {f"{where}.{name}": ref for where, pairs in given.items() for name, ref in pairs.items()}


class Connector(Part):
    """How a tool reaches the world."""

    python: PythonConnector | None = None
    http: HttpConnector | None = None
    sandbox: SandboxConnector | None = None
    timer: TimerConnector | None = None
    mcp: McpConnector | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if len(self._given) != 1:
            raise ValueError("give one of python, http, mcp and sandbox")
        return self

    @property
    def timeout(self) -> float:
        """Seconds until the answer is given up as unknown."""
        return self._given[0].timeout

    @property
    def secrets(self) -> dict[str, str]:
        """Each reference to a secret (`env:NAME`, `file:PATH`) by where it stands in the connector."""
        kinds = {"http": self.http, "mcp": self.mcp}
        return {f"{kind}.{where}": ref for kind, own in kinds.items() if own for where, ref in own.secrets.items()}

    @property
    def _given(self) -> list[PythonConnector | HttpConnector | SandboxConnector | TimerConnector | McpConnector]:
        kinds = (self.python, self.http, self.sandbox, self.timer, self.mcp)
        return [chosen for chosen in kinds if chosen is not None]

    @property
    def pin(self) -> str:
        """The digest of the destination's schema that a call is approved under; "" where it has none."""
        return self.mcp.schema_digest if self.mcp else ""


class Keyed(Part):
    """The destination honours an idempotency key for so long: until then a call may be sent again with it."""

    for_: Duration = Field(alias="for")


class Breaker(Part):
    """Stops calls of a tool whose destination fails: after so many in a row that are unknown or failed, none is sent
    for the pause, then one is tried."""

    failures: int = Field(5, ge=1, le=1000)
    pause: Duration = 30.0


class Retries(Part):
    """How often a call that provably was not sent is tried again, and what all calls of the tool may spend on that."""

    times: int = Field(2, ge=1, le=10)
    wait: Duration = 0.2
    """Before the first; doubled each time, with jitter."""
    budget: int = Field(10, ge=1, le=10_000)
    """Most retries of the tool in `per`, in each replica."""
    per: Duration = 60.0


class ToolCall(Part):
    """A call of another tool; texts of its arguments are templates."""

    tool: Slug
    args: dict[str, Any] = {}


class Lookup(ToolCall):
    """How the destination is asked about an operation. Its arguments see those of the operation, all of them as
    `args`, `key` (the idempotency key that the destination was given) and, where it is known, `result`."""

    result: Template | None = None
    """Over `found`, what the look-up answers, and the arguments: the operation's result as its own call gives it, empty
    where the destination does not know it. Without, what the look-up answers has to be a list, or `{"…": [list]}`."""
    stands: Template | None = None
    """The same: whether the effect stands still. Without, it stands while anything is found."""


class Precondition(ToolCall):
    """What a step relies on: read when the question is asked and again before the step is sent. Its arguments see those
    of the step, and all of them as `args`."""

    digest: Template | None = None
    """Over `found`, what the reading answers, and the arguments: the part that has to stay as it is. Without, all."""


def _unless_off(value: Any) -> Any:
    return None if value is False else value


class Tool(Part):
    """One tool: its arguments, what it does to the world, and when its owner is asked first."""

    effect: Literal["none", "read", "write"] = "write"
    keyed: Annotated[Keyed | None, BeforeValidator(_unless_off)] = None
    consent: Gate | None = None
    caused_by: tuple[PrincipalPattern, ...] | None = Field(default=None, min_length=1)
    """Who may cause it, as `kind[:source[:principal]]`; without, anybody within `consent`. A yes is the owner's."""
    ask: Template | None = None
    args: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    units: dict[str, str] = {}
    identity: dict[str, Template] = {}
    """Arguments that the door overwrites with who is acting, as templates over `origin` and `owner`."""
    connector: Connector
    registers: Template | None = None
    """The subject that a committed operation makes the session's own: events about it are found to it, and count as
    caused by it (`caps.causation_depth`)."""
    compensate: ToolCall | None = None
    """Undoes a committed operation when the user revises their wish. Sees the arguments and `result`."""
    lookup: Lookup | None = None
    """Asks the destination what became of an operation. A tool without one leaves the unknown to an operator."""
    breaker: Annotated[Breaker | None, BeforeValidator(_unless_off)] = Breaker()
    retries: Annotated[Retries | None, BeforeValidator(_unless_off)] = Retries()
    precondition: Precondition | None = None
    """What an approved step relies on. Where it changed since the question was asked, the step is not sent."""
    standing: bool = False
    """Whether a user may grant it in advance, within limits of their own: a standing approval."""

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        try:
            jsonschema_rs.validator_for(self.args)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            raise ValueError(f"args: not a JSON Schema: {str(error).splitlines()[0]}") from error
        if self.args.get("type") != "object":
            raise ValueError("args: a tool's arguments are an object; say type: object")
        if self.standing and self.gate in ("never", "always"):
            raise ValueError(f"standing: its owner is {self.gate} asked, so nothing can be granted in advance")
        return self

    def actions(self, name: str) -> tuple[str, ...]:
        """What a call of this tool is called in faults: by its name, in the sandbox also `collection.verb`."""
        sandbox = self.connector.sandbox
        return (name,) if sandbox is None else (name, f"{sandbox.collection}.{sandbox.verb}")

    @property
    def gate(self) -> Gate:
        """When its owner is asked: `unless-user` for what writes, never otherwise (2-interface)."""
        return self.consent or ("unless-user" if self.effect == "write" else "never")


_TIMER_ID = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}

BUILT_IN: dict[str, Tool] = {
    "set_timer": Tool(
        ask="set a timer"
        "{% if at is defined %} for {{ at }}{% endif %}"
        "{% if rule is defined %} for {{ rule }}{% endif %}"
        "{% if zone is defined %} ({{ zone }}){% endif %}: {{ text }}",
        args={
            "type": "object",
            "properties": {
                "at": {"type": "string", "maxLength": 64, "description": "RFC 3339 time with its offset"},
                "in": {"type": "string", "pattern": f"^{_DURATION.pattern}$", "description": "from now, such as 90m"},
                "rule": {"type": "string", "maxLength": 500, "description": "RFC 5545, such as FREQ=DAILY;BYHOUR=8"},
                "zone": {"type": "string", "maxLength": 64, "description": "IANA time zone of the rule"},
                "text": {"type": "string", "minLength": 1, "maxLength": 1000},
                "subject": {"type": "string", "minLength": 1, "maxLength": 256},
                "misfire": {"enum": ["run-late", "skip", "coalesce"]},
                "lateness": {
                    "type": "string",
                    "pattern": f"^{_DURATION.pattern}$",
                    "description": "later than this: skipped",
                },
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        connector=Connector(timer=TimerConnector(verb="set")),
    ),
    "cancel_timer": Tool(
        ask="cancel the timer {{ timer }}",
        args={
            "type": "object",
            "properties": {"timer": _TIMER_ID},
            "required": ["timer"],
            "additionalProperties": False,
        },
        connector=Connector(timer=TimerConnector(verb="cancel")),
    ),
}
"""Tools that every application has without declaring them; their names are reserved (design §4.4)."""


class Scripted(Part):
    """The scripted planner: rules in a YAML file beside this one."""

    rules: str


class HttpPlanner(Part):
    """A planner behind one URL: the view goes as JSON, a plan comes back."""

    url: str = Field(pattern=r"^https?://\S+$")
    timeout: Duration = 30.0
    """Of one attempt."""
    retries: int = Field(2, ge=0, le=10)
    headers: dict[str, str] = {}
    """Values are references: `env:NAME`, `file:PATH`."""


class OpenaiPlanner(Part):
    """Any server that speaks Chat Completions. Tools go as functions."""

    url: str = Field("https://api.openai.com/v1", pattern=r"^https?://\S+$")
    """The base URL: `/chat/completions` is added."""
    model: str
    key: str | None = None
    """A reference: `env:NAME`, `file:PATH`."""
    instructions: str = ""
    """Added to the system message."""
    timeout: Duration = 60.0
    retries: int = Field(2, ge=0, le=10)
    tokens: int = Field(16_000, ge=1_000)
    """Most tokens of the view, estimated at four characters each; older history is cut, and the cut is said."""
    answer_tokens: int = Field(1_000, ge=1)


class AmqpPlanner(Part):
    """An agent in any language: it takes requests from `turnkeeper.planner` and answers to `turnkeeper.plans`."""


class Planner(Part):
    """What stands in the model's place: exactly one of them."""

    scripted: Scripted | None = None
    http: HttpPlanner | None = None
    openai: OpenaiPlanner | None = None
    amqp: AmqpPlanner | None = None
    deadline: Duration = 120.0
    """Without a plan by then the turn fails and the session goes on."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [name for name in ("scripted", "http", "openai", "amqp") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of scripted, http, openai and amqp")
        return self

    @property
    def secrets(self) -> dict[str, str]:
        """Every reference to a secret (`env:NAME`, `file:PATH`) by where it stands in the file."""
        if self.http is not None:
            return {f"planner.http.headers.{name}": reference for name, reference in self.http.headers.items()}
        return {"planner.openai.key": self.openai.key} if self.openai is not None and self.openai.key else {}


class InFlight(Part):
    """What becomes of input that arrives while a turn of its own origin runs; the first rule that fits counts.

    `source` and `type` say which input (patterns as in `offer.*`; without them any). What the input is to the running
    turn, the planner says.
    """

    source: str = "*"
    type: str = "*"
    adds: Literal["merge", "queue", "restart", "reject"] = "merge"
    independent: Literal["queue", "reject"] = "queue"
    revises: Literal["revise", "queue", "reject"] = "revise"
    unclear: Literal["ask", "queue", "reject"] = "ask"

    def fits(self, source: str, type: str) -> bool:
        """Whether this rule is about such an input."""
        return fnmatchcase(source, self.source) and fnmatchcase(type, self.type)


class Caps(Part):
    """Limits of one turn and one session. Each is its own outcome, metric and notice to the operator."""

    steps: int = Field(20, ge=1)
    causation_depth: int = Field(5, ge=1)
    open_questions: int = Field(10, ge=1)
    turns_per_origin_per_hour: int = Field(60, ge=1)
    same_step: int = Field(3, ge=1)
    """So often a turn may take a step with the same arguments."""
    timers: int = Field(100, ge=1)
    """Pending timers of one session."""


class Session(Part):
    """How sessions behave."""

    in_flight: tuple[InFlight, ...] = ()
    action_ttl: Duration = 600.0
    caps: Caps = Caps()
    pause: Duration = 600.0
    """So long a paused turn waits for an answer to its question."""
    observe: bool = False
    """Compute each question that would be asked, and block nothing: to measure an agent before it is guarded."""

    def in_flight_rule(self, source: str, type: str) -> tuple[int, InFlight]:
        """The first rule that fits and its place (from 1); place 0 is what holds where no rule fits."""
        found = ((place, rule) for place, rule in enumerate(self.in_flight, 1) if rule.fits(source, type))
        return next(found, (0, InFlight()))


class World(Part):
    """One collection of the sandbox. `prefix` begins its ids, `show` is a line for people."""

    prefix: str
    record: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    unique: tuple[str, ...] = ()
    rules: dict[str, Template] = {}
    """Name → an expression over `record` and `collection` that must be true, checked at each write."""
    heading: str = ""
    show: Template = "{{ id }}"


class Application(Part):
    """The whole file."""

    sources: dict[Slug, Source] = Field(min_length=1)
    tools: dict[Slug, Tool] = Field(default={}, validate_default=True)
    """Those that the file declares, then the built-in ones."""
    planner: Planner
    session: Session = Session()
    sandbox: dict[str, World] = {}
    principals: dict[PrincipalPattern, Annotated[tuple[str, ...], Field(min_length=1)]] = {}
    """Grants: who may cause which tools (`text_*`) without asking. What always asks is not granted."""
    faults: tuple[Fault, ...] = Field((), max_length=100)
    """What goes wrong on purpose in trials: a file that has them is refused without TURNKEEPER_TRIALS=1."""

    @field_validator("tools")
    @classmethod
    def _with_built_in(cls, declared: dict[str, Tool]) -> dict[str, Tool]:
        faults = [
            f"tools.{name}: the name is reserved for the built-in tool"
            for name, tool in declared.items()
            if tool != BUILT_IN.get(name, tool)
        ]
        faults += [
            f"tools.{name}.connector.timer: only the built-in tools use it"
            for name, tool in declared.items()
            if tool.connector.timer and name not in BUILT_IN
        ]
        if faults:
            raise _Several(faults)
        return {**{name: tool for name, tool in declared.items() if name not in BUILT_IN}, **BUILT_IN}

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        faults = [
            *self._tool_faults(), *self._precondition_faults(), *self._source_faults(), *self._principal_faults(),
            *self.unknown_actions(self.faults),
        ]  # fmt: skip
        if faults:
            raise _Several(faults)
        return self

    def _tool_faults(self) -> list[str]:
        faults = []
        for name, tool in self.tools.items():
            if tool.connector.sandbox and tool.connector.sandbox.collection not in self.sandbox:
                faults.append(
                    f"tools.{name}.connector.sandbox: there is no collection {tool.connector.sandbox.collection!r}"
                )
            for use in ("compensate", "lookup", "precondition"):
                call: ToolCall | None = getattr(tool, use)
                if call is not None and call.tool not in self.tools:
                    faults.append(f"tools.{name}.{use}.tool: there is no tool {call.tool!r}")
            asked = self.tools.get(tool.lookup.tool) if tool.lookup is not None else None
            if asked is not None and asked.effect == "write":
                faults.append(f"tools.{name}.lookup.tool: {tool.lookup.tool} writes; a look-up must not")  # type: ignore[union-attr]
            if asked is not None and any("origin" in template for template in asked.identity.values()):
                faults.append(f"tools.{name}.lookup.tool: {tool.lookup.tool} wants an origin, and a look-up has none")  # type: ignore[union-attr]
        return faults

    def _principal_faults(self) -> list[str]:
        """Names in `caused_by` and `principals` that nothing bears, and grants that could never count."""
        faults = []
        for name, tool in self.tools.items():
            for pattern in tool.caused_by or ():
                faults += self._pattern_faults(f"tools.{name}.caused_by", pattern)
            if any("written_by" in template for template in tool.identity.values()):
                faults.append(f"tools.{name}.identity: nobody acts in the name of who wrote a text (written_by)")
        for pattern, granted in self.principals.items():
            path = f"principals.{pattern}"
            faults += self._pattern_faults(path, pattern)
            if kind_of(pattern) == "user":
                faults.append(f"{path}: a user's own turn needs no grant; say so by the tool's consent")
            for wanted in granted:
                found = [name for name in self.tools if tool_fits(wanted, name)]
                if not found:
                    faults.append(f"{path}: there is no tool {wanted!r}")
                if wanted in self.tools and self.tools[wanted].gate == "always":
                    faults.append(f"{path}: {wanted} always asks (consent: always), so it cannot be granted")
        return faults

    def _pattern_faults(self, path: str, pattern: str) -> list[str]:
        kind, name = kind_of(pattern), source_of(pattern)
        if name == "*" or kind in ("timer", "actor"):  # timers and actors have sources of the runtime's own
            return []
        source = self.sources.get(name)
        if source is None:
            return [f"{path}: there is no source {name!r}"]
        own = "user" if source.verify.scheme == "user-token" else source.kind
        return [] if own == kind else [f"{path}: {name} is a source of kind {own}, not {kind}"]

    def _precondition_faults(self) -> list[str]:
        """A precondition is read by the door alone, before and after a person is asked: it must need nobody."""
        faults = []
        for name, tool in self.tools.items():
            read = self.tools.get(tool.precondition.tool) if tool.precondition is not None else None
            if read is None or tool.precondition is None:
                continue
            where = f"tools.{name}.precondition.tool: {tool.precondition.tool}"
            if read.effect == "write":
                faults.append(f"{where} writes; a precondition must not")
            if read.gate != "never":
                faults.append(f"{where} asks its owner; a precondition is read without asking")
            if any("origin" in template for template in read.identity.values()):
                faults.append(f"{where} wants an origin, and a precondition has none")
        return faults

    def _source_faults(self) -> list[str]:
        users = [name for name, source in self.sources.items() if source.verify.scheme == "user-token"]
        return [] if len(users) <= 1 else [f"sources: only one may use user-token, not {', '.join(users)}"]

    def unknown_actions(self, faults: Sequence[Fault]) -> list[str]:
        """Which faults name an action that no tool has, each by path."""
        known = {action for name, tool in self.tools.items() for action in tool.actions(name)}
        return [
            f"faults.{place}.action: there is no action {fault.action!r}"
            for place, fault in enumerate(faults)
            if fault.action not in known
        ]

    @property
    def tool_secrets(self) -> dict[str, str]:
        """Every reference to a tool's secret (`env:NAME`, `file:PATH`) by where it stands in the file."""
        return {
            f"tools.{name}.connector.{where}": reference
            for name, tool in self.tools.items()
            for where, reference in tool.connector.secrets.items()
        }

    @property
    def user_source(self) -> str:
        """The name of the source that users speak through ("app" where none is configured)."""
        return next((name for name, s in self.sources.items() if s.verify.scheme == "user-token"), "app")


def parse_application(raw: Any, source: str) -> Application:
    """The application in a parsed YAML value. Raises ApplicationError with every fault."""
    try:
        return Application.model_validate(raw)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_input=False, include_url=False):
            cause = fault.get("ctx", {}).get("error")
            if isinstance(cause, _Several):
                faults += cause.faults
                continue
            path = ".".join(str(part) for part in fault["loc"]) or "file"
            faults.append(f"{path}: {fault['msg'].removeprefix('Value error, ')}")
        raise ApplicationError(source, faults) from None


def load_application(path: Path) -> Application:
    """Read `turnkeeper.yaml`. Raises ApplicationError, also where it cannot be read."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ApplicationError(str(path), [f"file: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ApplicationError(str(path), [f"file: not YAML: {_yaml_fault(error)}"]) from None
    return parse_application(raw, str(path))


def _yaml_fault(error: Exception) -> str:
    """Where and why, without the line itself, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return type(error).__name__
    # Faults of aliases and tags name them, and so may tell what was written there.
    told = isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError)
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '') if told else 'unreadable'}"


def resolve_secret(reference: str, environment: Mapping[str, str]) -> str:
    """The secret behind `env:NAME` or `file:PATH`. Raises ValueError naming the reference, never a value.

    A literal secret in the file is refused: it would end up in version control. `env:NAME` also reads the file
    that `NAME_FILE` names, so that compose can pass secrets as files. What is read here is in no log of the process.
    """
    value = _resolved(reference, environment)
    remember(value)
    return value


def _resolved(reference: str, environment: Mapping[str, str]) -> str:
    kind, _, rest = reference.partition(":")
    match kind:
        case "env":
            if file := environment.get(f"{rest}_FILE"):
                return _read_secret(file)
            if value := environment.get(rest):
                return value
            raise ValueError(f"the environment variable {rest} is not set")
        case "file":
            return _read_secret(rest)
        case _:
            raise ValueError("a secret is a reference, env:NAME or file:PATH, not the secret itself")


def _read_secret(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the secret file {path} cannot be read") from error
    if not text:
        raise ValueError(f"the secret file {path} is empty")
    return text

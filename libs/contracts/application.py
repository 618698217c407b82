"""The model of `turnkeeper.yaml`: what an application is. A wrong file is refused whole, every fault by path."""

import re
from collections.abc import Mapping
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

from libs.contracts.ids import Slug
from libs.contracts.origin import OriginKind
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
Gate = Literal["never", "unless-user", "always"]


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
        if self.id is None and self.id_header is None:
            raise ValueError("id: say where the event's id is: id (a template over data) or id_header")
        return self


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


class Connector(Part):
    """How a tool reaches the world."""

    python: PythonConnector | None = None
    sandbox: SandboxConnector | None = None
    timer: TimerConnector | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if [self.python, self.sandbox, self.timer].count(None) != 2:
            raise ValueError("give one of python and sandbox")
        return self

    @property
    def timeout(self) -> float:
        """Seconds until the answer is given up as unknown."""
        chosen = self.python or self.sandbox or self.timer
        return chosen.timeout if chosen else 0.0


class Keyed(Part):
    """The destination honours an idempotency key for so long: until then a call may be sent again with it."""

    for_: Duration = Field(alias="for")


class ToolCall(Part):
    """A call of another tool; texts of its arguments are templates."""

    tool: Slug
    args: dict[str, Any] = {}


class Lookup(ToolCall):
    """How the destination is asked about an operation. Its arguments see those of the operation, all of them as
    `args`, `key` (the idempotency key that the destination was given) and, where it is known, `result`."""

    result: Template | None = None
    """Over `found`, what the look-up answers, and the arguments: the operation's result as its own call gives it.
    Without, it is what the look-up answers."""
    stands: Template | None = None
    """The same: whether the effect stands still. Without, it stands while anything is found."""


def _keyed(value: Any) -> Any:
    return None if value is False else value


class Tool(Part):
    """One tool: its arguments, what it does to the world, and when its owner is asked first."""

    effect: Literal["none", "read", "write"] = "write"
    keyed: Annotated[Keyed | None, BeforeValidator(_keyed)] = None
    consent: Gate | None = None
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

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        try:
            jsonschema_rs.validator_for(self.args)
        except (jsonschema_rs.ValidationError, ValueError) as error:
            raise ValueError(f"args: not a JSON Schema: {str(error).splitlines()[0]}") from error
        if self.args.get("type") != "object":
            raise ValueError("args: a tool's arguments are an object; say type: object")
        return self

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
        faults = [*self._tool_faults(), *self._source_faults()]
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
            for use in ("compensate", "lookup"):
                call: ToolCall | None = getattr(tool, use)
                if call is not None and call.tool not in self.tools:
                    faults.append(f"tools.{name}.{use}.tool: there is no tool {call.tool!r}")
            asked = self.tools.get(tool.lookup.tool) if tool.lookup is not None else None
            if asked is not None and asked.effect == "write":
                faults.append(f"tools.{name}.lookup.tool: {tool.lookup.tool} writes; a look-up must not")  # type: ignore[union-attr]
            if asked is not None and any("origin" in template for template in asked.identity.values()):
                faults.append(f"tools.{name}.lookup.tool: {tool.lookup.tool} wants an origin, and a look-up has none")  # type: ignore[union-attr]
        return faults

    def _source_faults(self) -> list[str]:
        users = [name for name, source in self.sources.items() if source.verify.scheme == "user-token"]
        return [] if len(users) <= 1 else [f"sources: only one may use user-token, not {', '.join(users)}"]

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

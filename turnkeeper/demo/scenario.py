"""What a scenario's YAML file may say: a closed vocabulary of steps, so that a file cannot hide what it does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from libs.contracts.application import Duration
from libs.contracts.consent import Verdict
from libs.contracts.ids import Slug
from libs.contracts.reasons import TimelineKind
from turnkeeper.client import Via
from turnkeeper.demo.faults import DemoError
from turnkeeper.target import DINNER

FOLDER = DINNER.parent / "scenarios"
MAIN = "offer"
"""The main job: what `make demo` shows."""
_EXPECT = "\nexpect:\n"


class Part(BaseModel):
    """Any part of the file: frozen, and a name that we do not know is a fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")


P = TypeVar("P", bound=Part)


def _exactly_one(part: P) -> P:
    given = [name for name in type(part).model_fields if getattr(part, name) is not None]
    if len(given) != 1:
        known = ", ".join(type(part).model_fields)
        raise ValueError(f"give exactly one of {known}; here are {', '.join(given) or 'none'}")
    return part


class Settings(Part):
    """How the stack differs from the example's: `lab` switches a rule to its wrong form, `application` is laid over
    turnkeeper.yaml, `env` goes to every process."""

    lab: tuple[str, ...] = ()
    application: dict[str, Any] = {}
    env: dict[str, str] = {}


class Create(Part):
    """An operator makes the scenario's session. A scenario in several parts makes one for each, names each `part`, and
    counts lines, records and actions anew from there."""

    owner: Slug
    part: str = ""


class Say(Part):
    """A user speaks in the session. `id` is their Idempotency-Key, where it will be seen; drawn if none is given."""

    user: Slug = Field(alias="as")
    text: str
    id: str = ""


class Publish(Part):
    """A source signs an event. `forged` signs it with another secret, `signed_ago` as of an earlier time; `keep` names
    the bytes for a replay; `sent: false` only captures them."""

    source: Slug
    id: str
    type: str = ""
    data: dict[str, Any] = {}
    via: Via = "http"
    forged: bool = False
    signed_ago: Duration | None = None
    keep: str = ""
    sent: bool = True


class Replay(Part):
    """Somebody sends captured bytes again, as they were or under another id."""

    of: str
    id: str = ""
    via: Via = "http"


class Decide(Part):
    """A user decides, with the digest of the question that is open. `times` one after another, `at_once` together."""

    action: Slug
    verdict: Verdict = "accept"
    user: Slug = Field(alias="as")
    times: int = Field(1, ge=1, le=100)
    at_once: int = Field(1, ge=1, le=100)


class Grant(Part):
    """A user grants a tool in advance; `id` is what the scenario calls it. It ends after `lasts`."""

    id: str = Field(pattern=r"^S[0-9]+$")
    user: Slug = Field(alias="as")
    tool: Slug
    limits: dict[str, dict[str, Any]] = {}
    uses: int = 1
    lasts: Duration = 3_600.0
    sources: tuple[Slug, ...] = ()


class Revoke(Part):
    """A user takes back what they granted."""

    id: str
    user: Slug = Field(alias="as")


class ChangeWorld(Part):
    """Somebody of the world changes their own records, as the restaurant does before it sends its webhook."""

    by: Slug
    collection: Slug
    where: dict[str, Any]
    set: dict[str, Any]


class Hold(Part):
    """What is done in a collection of the world waits, as with a slow destination, until it is released."""

    collection: Slug


class Release(Part):
    """The oldest so many of the calls that wait go on; without a number all, and the collection is held no more."""

    collection: Slug
    calls: int | None = Field(None, ge=1)


class Waiting(Part):
    """So many calls wait in a held collection."""

    collection: Slug
    count: int = Field(1, ge=0)


class Line(Part):
    """So many lines of a kind are in the timeline, each holding `text`."""

    kind: TimelineKind
    text: str = ""
    count: int = Field(1, ge=1)


class ActionIs(Part):
    """An action is in this state, as consent shows it."""

    id: Slug
    state: str


class EventIs(Part):
    """An event is held, or is no longer."""

    event: str
    held: bool = True


class Wait(Part):
    """What is waited for, with a deadline. Exactly one of these."""

    line: Line | None = None
    registered: int | None = None
    """So many subjects were registered since the scenario began."""
    action: ActionIs | None = None
    event: EventIs | None = None
    calls: Waiting | None = None
    metrics: dict[str, float] | None = None
    ready: bool | None = None
    quiet: bool | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        return _exactly_one(self)


class OutcomeOf(Part):
    """Which event's outcome is looked up."""

    source: Slug
    id: str


class Look(Part):
    """What is looked at; what is seen becomes one of the recorded answers. Exactly one of these."""

    question: Slug | None = None
    world: bool | None = None
    held: bool | None = None
    standing: Slug | None = None
    """A user's standing approvals of this scenario, and each of their uses."""
    outcome: OutcomeOf | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        return _exactly_one(self)


class Step(Part):
    """One step of the story: exactly one of these. `tell` is a sentence for people."""

    tell: str | None = None
    create: Create | None = None
    say: Say | None = None
    publish: Publish | None = None
    replay: Replay | None = None
    decide: Decide | None = None
    grant: Grant | None = None
    revoke: Revoke | None = None
    world: ChangeWorld | None = None
    hold: Hold | None = None
    release: Release | None = None
    wait: Wait | None = None
    look: Look | None = None
    kill: tuple[str, ...] | None = None
    restart: tuple[str, ...] | None = None
    metrics: dict[str, float] | None = None
    """Samples of the services' metrics, as they have grown since the scenario began."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        return _exactly_one(self)

    @property
    def action(self) -> Part | str | tuple[str, ...] | dict[str, float]:
        """The one that is given."""
        given: list[Part | str | tuple[str, ...] | dict[str, float]] = [
            value for name in type(self).model_fields if (value := getattr(self, name)) is not None
        ]
        return given[0]


class Expected(Part):
    """What was recorded: the timeline as `number kind text`, what was answered, what the sandbox's own log says was
    really done, the world at the end, and the deliveries that ingress did not let through the usual way."""

    timeline: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    world: tuple[str, ...] = ()
    deliveries: tuple[str, ...] = ()


class Scenario(Part):
    """One file. `outcomes_of` names another scenario whose timeline and world must come out here too, but for lines of
    recovery: what crashes."""

    name: str
    description: str
    settings: Settings = Settings()
    patience: Duration = 30.0
    """Longest wait for one condition, in seconds."""
    steps: tuple[Step, ...] = Field(min_length=1)
    outcomes_of: str = ""
    expect: Expected | None = None


def names(folder: Path = FOLDER) -> list[str]:
    """Names of the scenarios, the main one first."""
    found = sorted(path.stem for path in folder.glob("*.yaml"))
    return sorted(found, key=lambda name: name != MAIN)


def load(name: str, folder: Path = FOLDER) -> Scenario:
    """Read a scenario. Raises DemoError for an unknown name or a file with faults, each by its path."""
    path = folder / f"{name}.yaml"
    if name not in names(folder):
        raise DemoError(f"there is no scenario {name!r}: turnkeeper demo --list")
    try:
        return Scenario.model_validate({"name": name, **yaml.safe_load(path.read_text(encoding="utf-8"))})
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise DemoError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        faults = [
            f"  {'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_input=False, include_url=False)
        ]
        raise DemoError("\n".join([f"{path} has faults:", *faults])) from None


def record(name: str, came: Expected, folder: Path = FOLDER) -> Path:
    """Write what came out as what is expected from now on; the rest of the file stays as it is."""
    path = folder / f"{name}.yaml"
    head = path.read_text(encoding="utf-8").partition(_EXPECT)[0].rstrip("\n")
    fields = {part: list(lines) for part, lines in came.model_dump().items() if lines}
    written = yaml.safe_dump({"expect": fields}, sort_keys=False, allow_unicode=True, width=1_000)
    path.write_text(f"{head}\n\n{written}", encoding="utf-8")
    return path


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping with another's values in place of its own."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = laid_over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged

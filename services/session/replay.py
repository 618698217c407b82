"""A recorded session through today's `decide`: what would come out differently now, commit by commit.

Runs as a process of its own (`turnkeeper replay`): the record on standard input, one JSON object a line on standard
output. It has no connection to anything: the handlers work on a store in memory, and what they would send is compared
and forgotten. Time, ids and plans come from the record.

    {"kind": "difference", "version": 7, "at": …, "input": "…", "what": "line", "recorded": "…", "today": "…"}
    {"kind": "note", "version": 7, "text": "…"}
    {"kind": "summary", "session": "dinner", "recorded": 57, "replayed": 57, "differences": 1, "text": "…"}
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import orjson
import structlog
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from libs.contracts.application import ApplicationError, load_application
from libs.contracts.canonical import JSON
from libs.contracts.codec import to_json
from libs.contracts.errors import ContractError, PermanentError
from libs.contracts.ingress import Input
from libs.contracts.topology import Topology
from libs.runtime.composer import Composer
from libs.runtime.publisher import Outgoing
from services.session.domain import Planned, Stimulus
from services.session.domain.draft import Decision
from services.session.domain.plan import Plan, View
from services.session.domain.rules import Rules
from services.session.handlers import Handlers
from services.session.main import ArgumentSchemas
from services.session.metrics import SessionMetrics
from services.session.planners.scripted import ScriptedPlanner, load_rules
from services.session.ports import Planner
from services.session.record import Came, Entry, Record, came_of, decode, decode_state, under
from services.session.snapshot import Snapshot

MOST_PATHS = 20
"""Differences of the last state that are named one by one."""
WRONG_FILE = 3
"""Exit status for an application, rules or record that cannot be read."""
What = Literal["line", "message", "outcome", "state", "plan", "fault"]
NO_PLAN = "the record has no plan for this"


@dataclass(frozen=True)
class Difference:
    """Something that came out differently. `version` is that of the state before; empty is what is not there."""

    version: int
    at: int
    input: str
    what: What
    recorded: str
    today: str


@dataclass(frozen=True)
class Note:
    """What a reader of the differences must know: where a replay began, and what it could not look at."""

    version: int
    text: str


@dataclass
class Found:
    """What a replay found, in order."""

    session: str
    recorded: int
    replayed: int = 0
    findings: list[Difference | Note] = field(default_factory=list)

    @property
    def differences(self) -> list[Difference]:
        """The differences alone."""
        return [finding for finding in self.findings if isinstance(finding, Difference)]

    @property
    def text(self) -> str:
        """What came out, in a sentence."""
        if not self.replayed:
            return f"nothing of {self.session} could be replayed"
        of = f"{self.replayed} of {self.recorded} recorded commits of {self.session}"
        if not self.differences:
            return f"{of} decided again: no difference"
        first = self.differences[0]
        where = {one.version for one in self.differences}
        return (
            f"{of} decided again: {len(self.differences)} differences in {len(where)} of them, "
            f"from version {first.version} on ({first.input})"
        )


@dataclass(frozen=True)
class _Cause:
    """As much of the message that led to a commit as its lines and messages name."""

    id: str


@dataclass
class _Clock:
    now: int = 0

    def now_ms(self) -> int:
        """The recorded time."""
        return self.now


@dataclass
class _Sessions:
    """The port `Sessions` in memory: nothing is stored, and nothing is sent."""

    bodies: dict[int, Input] = field(default_factory=dict)
    came: Came = field(default_factory=Came)

    async def load(self, session: str) -> Snapshot:
        raise AssertionError("a replay begins from a recorded state")

    async def inputs(self, session: str, first: int, last: int) -> list[Input]:
        """Of the inputs that the record holds."""
        return [self.bodies[number] for number in range(first, last + 1) if number in self.bodies]

    async def commit(self, snapshot: Snapshot, decision: Decision, messages: Sequence[Outgoing]) -> None:
        """Keep what came."""
        after = to_json(decision.state, exclude_defaults=True)
        self.came = Came.model_validate(came_of(decision, messages, after))
        snapshot.state = decision.state
        snapshot.history.extend(decision.history)
        for number in decision.trimmed:
            snapshot.bodies.pop(number, None)
            self.bodies.pop(number, None)

    async def confirm(self, snapshot: Snapshot) -> None:
        """Nobody else owns it."""

    def drop(self, session: str) -> None:
        """There is no cache."""


@dataclass
class _Plans:
    """The port `Planner` from the record, or from rules where the plans shall be made again."""

    again: Planner | None
    left: list[Plan] = field(default_factory=list)
    missing: str = ""

    async def plan(self, view: View) -> Plan:
        """The next recorded plan."""
        if self.again is not None:
            return await self.again.plan(view)
        if self.left:
            return self.left.pop(0)
        self.missing = view.turn
        return Plan(fault=NO_PLAN)


class Replay:
    """One run over one record."""

    def __init__(self, record: Record, rules: Rules, planner: Planner | None = None) -> None:
        """`planner` makes the plans again; without, they are those of the record."""
        self._record = record
        self._rules = rules
        self._plans = _Plans(planner)
        self._sessions = _Sessions()
        self._clock = _Clock()
        self._found = Found(record.session, len(record.entries))
        self._snapshot: Snapshot | None = None
        self._parted = False
        """Whether our state is another than the recorded one."""

    async def run(self) -> Found:
        """Decide every entry again, from the first that holds a state on. What parts stays parted: later entries are
        decided on our own state, and their state is compared no more."""
        for entry in self._record.entries:
            if self._ready(entry):
                await self._again(entry)
        self._last_state()
        return self._found

    def _ready(self, entry: Entry) -> bool:
        """Whether there is a state to decide this entry on."""
        if self._snapshot is not None and self._snapshot.version == entry.version:
            return True
        if self._snapshot is not None:
            self._note(entry, f"versions {self._snapshot.version} to {entry.version - 1} are not in the record")
        elif entry is self._record.entries[0] and entry.before is None:
            self._note(entry, "the oldest entries are passed over, up to the first that holds a state")
        self._snapshot = None
        if entry.before is None:
            return False
        if self._found.replayed:
            self._note(entry, "goes on from the recorded state")
        try:
            self._snapshot = Snapshot(decode_state(entry.before), entry.version, [])
        except ContractError as error:
            self._differs(entry, "", "fault", "", str(error))
        self._parted = False
        return self._snapshot is not None

    async def _again(self, entry: Entry) -> None:
        if entry.left_out is not None:
            self._note(
                entry, f"cannot be decided again, nor what follows it: its input is left out, {entry.left_out.why}"
            )
            self._snapshot = None
            return
        try:
            first, *answers = [decode(kind, fields) for kind, fields in entry.given]
        except (ContractError, ValueError) as error:
            self._differs(entry, ", ".join(kind for kind, _ in entry.given), "fault", "", str(error))
            self._snapshot = None
            return
        name = described(first)
        self._give(entry, first, answers)
        if await self._decided(entry, first, name):
            self._found.replayed += 1
            self._compare(entry, name)

    def _give(self, entry: Entry, first: Stimulus, answers: Sequence[Stimulus]) -> None:
        """Lay out what the decision will want: bodies of inputs, and plans."""
        for stimulus in (first, *answers):
            carried = [value for value in vars(stimulus).values() if isinstance(value, Input)]
            self._sessions.bodies.update((input.number, input) for input in carried)
        self._plans.left = [stimulus.plan for stimulus in answers if isinstance(stimulus, Planned)]
        self._plans.missing = ""
        self._sessions.came = Came()
        self._clock.now = entry.at

    async def _decided(self, entry: Entry, stimulus: Stimulus, name: str) -> bool:
        """Decide with the code of the service. False where it fails: then there is no state to go on from."""
        if self._snapshot is None:
            raise AssertionError("there is no state")
        version = self._snapshot.version
        try:
            await self._handlers(entry).again(self._snapshot, stimulus, _Cause(entry.cause))
        except PermanentError as error:
            self._differs(entry, name, "fault", "", f"wants an input that the record does not hold ({error})")
        except Exception as error:
            self._differs(entry, name, "fault", "", f"fails: {type(error).__name__}: {error}")
        else:
            self._snapshot.version = version + 1  # also where nothing comes of it today: the record goes on
            return True
        self._snapshot = None
        return False

    def _handlers(self, entry: Entry) -> Handlers:
        """The service's handlers under the settings of the entry."""
        return Handlers(
            self._sessions,
            self._plans,
            under(self._rules, entry.settings),
            Composer(Topology(), self._clock),
            self._clock,
            SessionMetrics(CollectorRegistry()),
        )

    def _compare(self, entry: Entry, name: str) -> None:
        was, now = entry.came, self._sessions.came
        before = len(self._found.differences)
        if self._plans.missing:
            self._differs(entry, name, "plan", "", f"wants a plan for {self._plans.missing}, which the record has not")
        elif self._plans.again is None and self._plans.left:
            self._differs(entry, name, "plan", f"{len(self._plans.left)} of the recorded plans", "not asked for")
        told = _told(now)
        for what, old in _told(was).items():
            for recorded, today in apart(old, told[what]):
                self._differs(entry, name, what, recorded, today)
        self._compare_states(entry, name, was, now, len(self._found.differences) > before)

    def _compare_states(self, entry: Entry, name: str, was: Came, now: Came, differs: bool) -> None:
        same = was.state == now.state
        if not same and not self._parted:
            if not differs:
                self._differs(entry, name, "state", was.state, now.state or "nothing was committed")
            self._note(entry, "the states part here: what follows is decided on today's own state")
        elif same and self._parted:
            self._note(entry, "the states are the same again")
        self._parted = not same

    def _last_state(self) -> None:
        """Where the states parted, what is different in the stored one."""
        snapshot, record = self._snapshot, self._record
        if snapshot is None or not self._parted or record.state is None or snapshot.version != record.version:
            return
        try:
            stored = to_json(decode_state(record.state))
        except ContractError as error:
            self._differs(record.entries[-1], "the stored state", "fault", "", str(error))
            return
        now = orjson.loads(to_json(snapshot.state))
        paths = list(apart_in(orjson.loads(stored), now))
        for path, was, today in paths[:MOST_PATHS]:
            self._differs(record.entries[-1], "the last state", "state", f"{path}: {was}", f"{path}: {today}")
        if len(paths) > MOST_PATHS:
            self._note(record.entries[-1], f"{len(paths) - MOST_PATHS} more differences of the last state")

    def _differs(self, entry: Entry, input: str, what: What, recorded: str, today: str) -> None:
        self._found.findings.append(Difference(entry.version, entry.at, input, what, recorded, today))

    def _note(self, entry: Entry, text: str) -> None:
        self._found.findings.append(Note(entry.version, text))


def _told(came: Came) -> dict[What, list[str]]:
    """What came, as texts to compare."""
    return {
        "line": [f"{kind} {text}".rstrip() for kind, text in came.lines],
        "message": [f"{type} {id}" for type, id in came.messages],
        "outcome": [f"input {number} {became}" for number, became in came.outcomes],
    }


def described(stimulus: Stimulus) -> str:
    """A stimulus in a few words."""
    words = [type(stimulus).__name__]
    input = getattr(stimulus, "input", None)
    if isinstance(input, Input):
        words += [str(input.number), input.kind, input.event, "from", input.source, input.type]
    words += [str(getattr(stimulus, name, "")) for name in ("operation", "action", "turn", "timer", "state", "found")]
    return " ".join(filter(None, words))


def apart(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What differs of two lists, as pairs (old, new) in order; "" where one has nothing in its place."""
    for tag, first, last, begin, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from zip_longest(old[first:last], new[begin:end], fillvalue="")


def apart_in(old: JSON, new: JSON, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two JSON values differ: (path, old, new), each as JSON text, "" for what is not there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            yield from apart_in(old.get(name, _NOTHING), new.get(name, _NOTHING), f"{path}.{name}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from apart_in(was, now, f"{path}[{number}]")
    elif old is not new and old != new:
        yield path, _text(old), _text(new)


_NOTHING = object()


def _text(value: object) -> str:
    return "" if value is _NOTHING else orjson.dumps(value).decode()


def rules_of(config: Path) -> Rules:
    """The rules of an application file. Settings of a process come from the record. Raises ApplicationError."""
    application = load_application(config)
    return Rules(application, ArgumentSchemas(application), operation_wait_ms=0, not_after_ms=0)


def planner_of(config: Path) -> Planner:
    """The planner by rules, the only one that can be asked without sending anything. Raises ApplicationError."""
    application = load_application(config)
    scripted = application.planner.scripted
    if scripted is None:
        raise ApplicationError(str(config), ["planner: only a scripted one can make its plans again"])
    return ScriptedPlanner(load_rules(config.parent / scripted.rules))


def written(found: Found) -> Iterator[dict[str, JSON]]:
    """The findings as the objects that are printed."""
    for finding in found.findings:
        yield {"kind": type(finding).__name__.lower(), **finding.__dict__}
    yield {
        "kind": "summary",
        "session": found.session,
        "recorded": found.recorded,
        "replayed": found.replayed,
        "differences": len(found.differences),
        "text": found.text,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the record on standard input; exit status 0 unless something cannot be read."""
    parser = argparse.ArgumentParser("services.session.replay", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--plan-again", action="store_true")
    chosen = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # nothing is logged: what fails is a finding
    try:
        rules = rules_of(chosen.config)
        planner = planner_of(chosen.config) if chosen.plan_again else None
        record = Record.model_validate_json(sys.stdin.buffer.read())
    except ApplicationError as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_FILE
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        sys.stderr.write(f"the record cannot be read: {where}: {fault['msg']}\n")
        return WRONG_FILE
    for line in written(asyncio.run(Replay(record, rules, planner).run())):
        sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

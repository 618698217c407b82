"""Plays a scenario against a deployment, as its people would: over HTTP and AMQP, signed, and nothing else."""

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from libs.contracts.keys import SERVICES
from libs.contracts.session import TimelineLine
from turnkeeper import signing
from turnkeeper.client import Answer, Client, ClientError, Refused
from turnkeeper.demo import samples
from turnkeeper.demo.faults import DemoError
from turnkeeper.demo.scenario import (
    ChangeWorld,
    Create,
    Decide,
    Expected,
    Grant,
    Hold,
    Look,
    Publish,
    Release,
    Replay,
    Revoke,
    Say,
    Scenario,
    Step,
    Wait,
)

SESSION = "dinner"
POLL_SECONDS = 0.05
PROGRESS_SECONDS = 3.0
_REGISTERED = 'turnkeeper_messages_total{outcome="handled",service="ingress",type="ingress.register_subject.v1"}'
_PENDING = "turnkeeper_consent_pending"
_CURRENT_SECONDS = 10.0
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+00:00|Z)")
_PLACE = re.compile(r"\$([A-Z])(\d+)\b")


class Processes(Protocol):
    """What kills and starts the processes of a stack."""

    def kill_service(self, name: str) -> None:
        """Kill it at once."""
        ...

    def start_service(self, name: str) -> int:
        """Start it again."""
        ...


class Audience(Protocol):
    """Who watches."""

    def told(self, text: str) -> None:
        """A sentence of the story."""
        ...

    def answered(self, text: str) -> None:
        """What was answered or seen."""
        ...

    def waiting(self, text: str) -> None:
        """What is waited for, when it takes a while."""
        ...


@dataclass(frozen=True)
class Chapter:
    """What came out in one session. `title` is "" where the scenario has but one."""

    title: str
    lines: tuple[TimelineLine, ...]
    effects: tuple[str, ...]
    world: tuple[str, ...]

    def headed(self, lines: Iterable[str]) -> tuple[str, ...]:
        """Lines under the chapter's title."""
        return (f"== {self.title}", *lines) if self.title else tuple(lines)


@dataclass(frozen=True)
class Played:
    """What came out. `session` is the last one's; `came` is all of it in the form that is compared."""

    session: str
    chapters: tuple[Chapter, ...]
    came: Expected
    samples: Mapping[str, float]
    """Metrics of all services, as they have grown since the scenario began."""

    @property
    def lines(self) -> tuple[TimelineLine, ...]:
        """The timeline, of one session after another."""
        return tuple(line for chapter in self.chapters for line in chapter.lines)


class Runner:
    """One play of one scenario. What other plays left on the same deployment is not part of it: ids of records count
    from here, metrics from their values now, and names that are taken get an ending."""

    def __init__(self, client: Client, scenario: Scenario, audience: Audience, processes: Processes | None) -> None:
        self._client = client
        self._scenario = scenario
        self._audience = audience
        self._processes = processes
        self._application = client.target.application()
        self._captured: dict[str, signing.Outward] = {}
        self._answers: list[str] = []
        self._events: set[str] = set()
        self._began = int(time.time() * 1000)
        self._ending = self._free_ending()
        self._sessions = 0
        self._chapters: list[Chapter] = []
        self._title = ""
        self._held: set[str] = set()
        self._grants: dict[str, str] = {}
        """What the scenario calls a standing approval → its id."""
        self._begin_chapter("")
        self._before = self._scrape()

    def play(self) -> Played:
        """Do all steps, and look at what came out. Raises DemoError where a condition does not come true in time."""
        try:
            for step in self._scenario.steps:
                self._step(step)
        finally:
            for collection in sorted(self._held):  # others may play on the same world
                self._client.release(collection)
        now = self._current()
        chapters = (*self._chapters, self._chapter())
        came = Expected(
            timeline=_joined(chapter.headed(map(_compared, chapter.lines)) for chapter in chapters),
            answers=tuple(self._answers),
            effects=_joined(chapter.headed(chapter.effects) for chapter in chapters),
            world=_joined(chapter.headed(chapter.world) for chapter in chapters),
            deliveries=tuple(self._deliveries()),
        )
        growth = {name: value - self._before.get(name, 0.0) for name, value in now.items()}
        return Played(self.session, chapters, came, growth)

    def _step(self, step: Step) -> None:
        match step.action:
            case str() as text:
                self._audience.told(text)
            case Create() as create:
                self._create(create)
            case Say() as say:
                self._say(say)
            case Publish() as publish:
                self._publish(publish)
            case Replay() as replay:
                self._replay(replay)
            case Decide() as decide:
                self._decide(decide)
            case Grant() as grant:
                self._grant(grant)
            case Revoke() as revoke:
                said = self._client.revoke_standing(revoke.user, self._grants[revoke.id])
                self._answer(f"{revoke.user} revokes {revoke.id}: {said['state']}")
            case ChangeWorld() as change:
                where, values = self._real(change.where), self._real(change.set)
                self._client.change_world(change.by, change.collection, where, values)
            case Hold() as hold:
                self._held.add(hold.collection)
                self._client.hold(hold.collection)
            case Release() as release:
                self._release(release)
            case Wait() as wait:
                self._wait(wait)
            case Look() as look:
                self._look(look)
            case tuple() as names:
                self._end_or_start(names, kill=step.kill is not None)
            case dict() as wanted:
                self._wait_for(lambda: self._metrics_fault(wanted), "the metrics")

    # -- chapters

    def _create(self, create: Create) -> None:
        if self._sessions:
            self._chapters.append(self._chapter())
            self._begin_chapter(f"-{self._sessions + 1}")
        self._sessions += 1
        self._title = create.part
        if create.part:
            self._audience.told(f"== {create.part}")
        self._client.create_session(self.session, create.owner)

    def _begin_chapter(self, which: str) -> None:
        """What was there before is not part of it."""
        self.session = SESSION + which + self._ending
        self._offsets = self._records_now()
        self._effects_before = len(self._client.effects())

    def _chapter(self) -> Chapter:
        return Chapter(self._title, self._timeline(), tuple(self._effects()), tuple(self._world()))

    # -- what people and systems do

    def _say(self, say: Say) -> None:
        key = say.id + self._ending if say.id else None
        answer = _tried(lambda: self._client.say(self.session, say.text, say.user, key))
        self._answer(f'{say.user} says "{say.text}": {answer}')

    def _publish(self, publish: Publish) -> None:
        event = publish.id + self._ending
        self._events.add(event)
        seconds = int(time.time() - (publish.signed_ago or 0.0))
        outward = self._sign(publish, event, seconds)
        if publish.keep:
            self._captured[publish.keep] = outward
        if publish.sent:
            what = f"{publish.source} {publish.type or 'event'} {publish.id}{' forged' if publish.forged else ''}"
            self._deliver(outward, publish.via, what)

    def _sign(self, publish: Publish, event: str, seconds: int) -> signing.Outward:
        source = self._client.source(publish.source)
        environment = dict(self._client.target.environment)
        if publish.forged:
            secret = "whsec_" + secrets.token_hex(32)
            references = getattr(source.verify, "secrets", ())
            environment.update({reference.partition(":")[2]: secret for reference in references})
        return signing.sign_event(
            publish.source,
            source,
            environment,
            event=event,
            type=publish.type,
            data=self._real(publish.data),
            seconds=seconds,
        )

    def _replay(self, replay: Replay) -> None:
        outward = self._captured.get(replay.of)
        if outward is None:
            raise DemoError(f"{self._scenario.name}: no event was kept as {replay.of!r}")
        what = f"{outward.source} {outward.type or 'event'} {replay.of} again"
        if replay.id:
            header = signing.id_header(self._client.source(outward.source))
            if header is None:
                raise DemoError(f"{self._scenario.name}: the id of {outward.source} is inside its body")
            outward = outward.with_id(header, replay.id + self._ending)
            self._events.add(outward.event)
            what += f" as {replay.id}"
        self._deliver(outward, replay.via, what)

    def _deliver(self, outward: signing.Outward, via: Any, what: str) -> None:
        answer = self._client.deliver(outward, via)
        self._answer(f"{what} over {via.upper()}: {_said(answer)}")

    def _decide(self, decide: Decide) -> None:
        digest = self._client.action(self.session, decide.action)["question_digest"]

        def once(_: int) -> tuple[str, bytes]:
            try:
                receipt = self._client.decide(self.session, decide.action, decide.verdict, decide.user, digest)
            except Refused as refused:
                return f"{refused.status} {refused.code}", b""
            return f"200 {receipt['state']} by {receipt['by']}", orjson.dumps(receipt, option=orjson.OPT_SORT_KEYS)

        with ThreadPoolExecutor(decide.at_once) as pool:
            told = [one for _ in range(decide.times) for one in pool.map(once, range(decide.at_once))]
        said = sorted({answer for answer, _ in told})
        receipts = {receipt for _, receipt in told if receipt}
        count = f"{len(told)} times, " if len(told) > 1 else ""
        same = f", {len(receipts)} receipt{'s' if len(receipts) > 1 else ''}" if count and receipts else ""
        self._answer(f"{decide.user} {decide.verdict}s {decide.action}: {count}{', '.join(said)}{same}")

    def _grant(self, grant: Grant) -> None:
        wish = {
            "tool": grant.tool, "limits": grant.limits, "uses": grant.uses, "sources": list(grant.sources),
            "ends_at": int((time.time() + grant.lasts) * 1000),
        }  # fmt: skip
        made = self._client.grant_standing(grant.user, wish, grant.id + self._ending)
        self._grants[grant.id] = made["id"]
        times = "once" if grant.uses == 1 else f"{grant.uses} times"
        self._answer(f"{grant.user} grants {grant.tool} {times} as {grant.id}: {made['state']}")

    def _release(self, release: Release) -> None:
        self._client.release(release.collection, release.calls)
        if release.calls is None:
            self._held.discard(release.collection)

    def _end_or_start(self, names: tuple[str, ...], *, kill: bool) -> None:
        if self._processes is None:
            raise DemoError(f"{self._scenario.name} kills processes: it needs a stack of this machine's own")
        for name in names:
            if kill:
                self._processes.kill_service(name)
            else:
                self._processes.start_service(name)
        self._audience.told(f"{'kill -9' if kill else 'started again:'} {', '.join(names)}")
        if kill:
            self._before = {}  # counters begin at zero in the next life

    # -- what is looked at

    def _look(self, look: Look) -> None:
        if look.question is not None:
            action = self._client.action(self.session, look.question)
            self._answer(f"question for {action['approver']}: {self._shown(action['question'])}")
        elif look.world:
            for line in self._world():
                self._answer(f"world: {line}")
        elif look.held:
            held = [one for one in self._client.held() if one["event"] in self._events]
            for one in held:
                what = f"{one['event']} for {one['subject'] or one['session']}"
                self._answer(f"held: {one['source']} {self._shown(what)}")
            if not held:
                self._answer("held: nothing")
        elif look.standing is not None:
            for line in self._standing(look.standing):
                self._answer(line)
        elif look.outcome is not None:
            self._answer(f"outcome of {look.outcome.source} {look.outcome.id}: {self._outcome(look.outcome.id, look)}")

    def _standing(self, user: str) -> Iterable[str]:
        """What this scenario's people granted, and who used it for what."""
        named = {id: name for name, id in self._grants.items()}
        for grant in self._client.standing(user):
            if grant["id"] not in named:
                continue
            used = "; ".join(
                f"{use['operation']} from {use['source']} "
                + ", ".join(f"{name}={value}" for name, value in use["args"].items())
                for use in grant["used"]
            )
            told = f"{named[grant['id']]} {grant['tool']} {grant['state']}, {grant['left']} of {grant['uses']} left"
            yield f"standing approval of {user}: {told}" + (f"; used by {used}" if used else "")

    def _outcome(self, id: str, look: Look) -> str:
        assert look.outcome is not None  # noqa: S101 - the caller looked
        try:
            found = self._client.event_outcome(look.outcome.source, id + self._ending)
        except Refused as refused:
            return f"{refused.status} {refused.code}"
        return str(found["outcome"] or found["status"])

    def _timeline(self) -> tuple[TimelineLine, ...]:
        if not any(step.create for step in self._scenario.steps):
            return ()
        lines = self._client.timeline(self.session)
        return tuple(line.model_copy(update={"text": self._shown(line.text)}) for line in lines)

    def _world(self) -> list[str]:
        """The world for people: what is there since the scenario began."""
        shown = []
        for collection in self._client.world()["collections"].values():
            lines = [line for line in map(self._counted_here, collection["lines"]) if line is not None]
            shown.append(f"{collection['heading']}: {'; '.join(lines) or 'nothing'}")
        return shown

    def _effects(self) -> list[str]:
        """What was really done since the scenario began, as the sandbox's log says, which no crash of ours reaches."""
        shown = []
        for entry in self._client.effects()[self._effects_before :]:
            records = " ".join(self._shown(str(record["id"])) for record in entry["records"])
            became = records if entry["outcome"] == "committed" else f"refused: {entry['reason']}"
            shown.append(f"{entry['actor'] or 'somebody'} {entry['verb']} {entry['collection']} {became}")
        return shown

    def _counted_here(self, line: str) -> str | None:
        id = line.partition(" ")[0]
        if id[:1] in self._offsets and id[1:].isdigit() and int(id[1:]) <= self._offsets[id[:1]]:
            return None
        return self._shown(line)

    def _deliveries(self) -> list[str]:
        """What ingress did not let through the usual way since the scenario began, as its log says."""
        shown = []
        for line in self._client.ingress_log():
            event = line.get("event", "")
            if line["at"] >= self._began and (not event or event in self._events):
                via = f" ({line['via']})" if line.get("via") else ""
                shown.append(f"{line['kind']} {self._shown(line['text'])}{via}")
        return shown

    # -- conditions

    def _wait(self, wait: Wait) -> None:
        if wait.line is not None:
            line = wait.line
            self._wait_for(
                lambda: self._line_fault(line.kind, line.text, line.count), f"{line.kind} {line.text}".rstrip()
            )
        elif wait.registered is not None:
            wanted = {_REGISTERED: float(wait.registered)}
            self._wait_for(lambda: self._metrics_fault(wanted), "the subject's registration")
        elif wait.action is not None:
            action = wait.action
            self._wait_for(lambda: self._action_fault(action.id, action.state), f"{action.id} {action.state}")
        elif wait.event is not None:
            event = wait.event
            self._wait_for(lambda: self._held_fault(event.event, event.held), f"{event.event} held: {event.held}")
        elif wait.calls is not None:
            calls = wait.calls
            self._wait_for(lambda: self._calls_fault(calls.collection, calls.count), f"calls to {calls.collection}")
        elif wait.metrics is not None:
            metrics = wait.metrics
            self._wait_for(lambda: self._metrics_fault(metrics), "the metrics")
        elif wait.ready:
            self._wait_for(self._ready_fault, "every service to be ready")
        elif wait.quiet:
            self._wait_for(self._quiet_fault, "the session to be quiet")

    def _wait_for(self, fault: Callable[[], str | None], what: str) -> None:
        """Ask until there is no fault. Services that are away are waited for too. Raises DemoError at the deadline."""
        began = told = time.monotonic()
        while True:
            try:
                wrong = fault()
            except ClientError as error:
                wrong = str(error)
            if wrong is None:
                return
            now = time.monotonic()
            if now - began > self._scenario.patience:
                raise DemoError(
                    f"{self._scenario.name}: waited {now - began:.0f} s for {what}: {wrong}\n{self._so_far()}"
                )
            if now - told > PROGRESS_SECONDS:
                told = now
                self._audience.waiting(f"waiting for {what} ({now - began:.0f} s): {wrong}")
            time.sleep(POLL_SECONDS)

    def _so_far(self) -> str:
        try:
            lines = [f"{line.seq} {line.kind} {line.text}" for line in self._timeline()]
        except ClientError as error:
            return str(error)
        return "\n".join(["the timeline so far:", *lines])

    def _line_fault(self, kind: str, text: str, count: int) -> str | None:
        found = sum(line.kind == kind and text in line.text for line in self._timeline())
        return None if found >= count else f"{found} of {count} such lines"

    def _action_fault(self, id: str, state: str) -> str | None:
        found = self._client.action(self.session, id)["state"]
        return None if found == state else f"it is {found}"

    def _held_fault(self, event: str, wanted: bool) -> str | None:
        held = event + self._ending in {one["event"] for one in self._client.held()}
        return None if held == wanted else f"it is {'' if held else 'not '}held"

    def _calls_fault(self, collection: str, wanted: int) -> str | None:
        waiting = self._client.waiting().get(collection, 0)
        return None if waiting == wanted else f"{waiting} wait, not {wanted}"

    def _metrics_fault(self, wanted: Mapping[str, float]) -> str | None:
        now = self._scrape()
        wrong = []
        for selector, value in wanted.items():
            grown = samples.grown(now, self._before, selector)
            if grown != value:
                wrong.append(f"{samples.canonical(selector)} is {grown:g}, not {value:g}")
        return "; ".join(wrong) or None

    def _ready_fault(self) -> str | None:
        for service in SERVICES:
            for url in self._client.target.all_urls(service):
                ready, told = self._client.readiness(service, url)
                if not ready:
                    return f"{service}: {told.get('faults')}"
        return None

    def _quiet_fault(self) -> str | None:
        found = self._client.session(self.session)
        return f"turn {found['turn']}, {found['queued']} queued" if found["turn"] or found["queued"] else None

    # -- names and numbers of this play

    def _free_ending(self) -> str:
        try:
            self._client.session(SESSION)
        except Refused as refused:
            if refused.status == 404:
                return ""
            raise
        return f"-{secrets.token_hex(4)}"

    def _records_now(self) -> dict[str, int]:
        """How many records each collection has already, by the prefix of its ids."""
        there = self._client.world()["collections"]
        return {world.prefix: len(there[name]["records"]) for name, world in self._application.sandbox.items()}

    def _scrape(self) -> dict[str, float]:
        return samples.read(self._client.metrics(service) for service in SERVICES)

    def _current(self) -> dict[str, float]:
        """The metrics, once the gauge of open questions, which is measured now and then, tells what is so.

        After ten seconds the difference is told and left as it is: others may use the same deployment meanwhile.
        """
        deadline = time.monotonic() + _CURRENT_SECONDS
        while True:
            now, wanted = self._scrape(), self._open_questions()
            if now.get(_PENDING, 0.0) == wanted:
                return now
            if time.monotonic() > deadline:
                self._audience.waiting(f"{_PENDING} is {now.get(_PENDING, 0.0):g}, and {wanted} questions are open")
                return now
            time.sleep(POLL_SECONDS)

    def _open_questions(self) -> int:
        actions = (one for session in self._client.sessions() for one in self._client.actions(session))
        return sum(one["state"] == "pending" for one in actions)

    def _real(self, value: Any) -> Any:
        """Data with `$R1` as the id that the world gave to the scenario's first record, `$session` as its session."""
        match value:
            case str():
                named = value.replace("$session", self.session)
                return _PLACE.sub(lambda place: f"{place[1]}{int(place[2]) + self._offsets.get(place[1], 0)}", named)
            case dict():
                return {name: self._real(item) for name, item in value.items()}
            case list():
                return [self._real(item) for item in value]
            case _:
                return value

    def _shown(self, text: str) -> str:
        """Text with ids as they would be on a deployment of the scenario's own, and without times (a timer's)."""
        text = _TIME.sub("(time)", text)
        for name, id in self._grants.items():
            text = text.replace(id, name)
        if self._ending:
            text = text.replace(self._ending, "")
        for prefix, offset in self._offsets.items():
            if offset:
                text = re.sub(rf"\b{prefix}(\d+)\b", lambda found: _less(found, offset), text)  # noqa: B023 - used at once
        return text

    def _answer(self, text: str) -> None:
        self._answers.append(text)
        self._audience.answered(text)


def _joined(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(line for part in parts for line in part)


def _compared(line: TimelineLine) -> str:
    return f"{line.seq} {line.kind} {line.text}".rstrip()


def _less(found: re.Match[str], offset: int) -> str:
    number = int(found[1]) - offset
    return f"{found[0][0]}{number}" if number > 0 else found[0]


def _tried(send: Callable[[], Answer]) -> str:
    try:
        return _said(send())
    except Refused as refused:
        return f"{refused.status} {refused.code}"


def _said(answer: Answer) -> str:
    return f"{answer.status} {answer.said}"

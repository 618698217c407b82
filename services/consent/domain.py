"""What may be asked, and what a decision means. Pure: no clock, no store, no broker."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jsonschema_rs

from libs.contracts.application import Application, Tool
from libs.contracts.canonical import JSON, digest, digest_bytes
from libs.contracts.consent import DecideByText, IssueAction, Verdict, World
from libs.contracts.ids import derive_id
from libs.contracts.origin import Origin, Seal, SealKeys, seal_is_valid
from libs.contracts.principals import may_cause
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, fill
from services.consent import render

WORLD_AGE_MS = 300_000
"""What a step relies on was read for this question, not for an earlier one."""
MAX_QUESTION = 32_768
"""Characters. What nobody can read is not asked; 300 recipients and a long message fit many times."""
_BY_TEXT = re.compile(r"(yes|no) (A[1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Record:
    """An action as it is stored. Times in milliseconds (Unix), store time; 0 and "" where it did not come to that."""

    session: str
    action: str
    state: str
    steps: tuple[Step, ...]
    question: str
    question_digest: str
    approver: str
    source: str
    turn: str
    asked_at: int
    expires_at: int
    decided_at: int = 0
    decided_by: str = ""
    lapses_at: int = 0
    closed_at: int = 0
    closed_as: str = ""
    reason: str = ""
    spent: tuple[int, ...] = ()
    depth: int = 0
    trace: str = ""
    correlation: str = ""
    worlds: tuple[World | None, ...] = ()


@dataclass(frozen=True)
class Asking:
    """What is put before the approver: everything that is stored of it, and so everything that may run."""

    action: str
    turn: str
    steps: tuple[Step, ...]
    question: str
    source: str
    approver: str
    expires_at: int
    pins: tuple[str, ...] = ()
    """Per step the digest of the destination's schema that is approved with it, "" for none (`Connector.pin`)."""
    worlds: tuple[World | None, ...] = ()
    """For each step: what was read of the world for it, where its tool has a precondition."""

    @property
    def question_digest(self) -> str:
        """SHA-256 (hex) of the question's text: what a decision must name."""
        return digest_bytes(self.question.encode())


@dataclass(frozen=True)
class Refusal:
    """Why something is not asked, for the timeline. Holds no text of arguments or events."""

    reason: str


@dataclass(frozen=True)
class Rules:
    """What the application and this deployment say about asking."""

    application: Application
    keys: SealKeys = field(repr=False)
    question_by_note: bool = False
    """Lab: the question is the planner's own note. Shows why a runtime must word it itself."""

    @property
    def ttl_ms(self) -> int:
        """Time to answer, and life of a grant after acceptance, in milliseconds."""
        return round(self.application.session.action_ttl * 1000)

    @property
    def open_questions(self) -> int:
        """Most open questions of one asking source in one session."""
        return self.application.session.caps.open_questions

    @cached_property
    def validators(self) -> Mapping[str, Any]:
        """Tool → validator of its arguments."""
        return {name: jsonschema_rs.validator_for(tool.args) for name, tool in self.application.tools.items()}


def ask(rules: Rules, message: IssueAction, session: str, owner: str, now: int) -> Asking | Refusal:
    """The question to ask the session's owner, or why it is not asked. `now` in milliseconds, store time."""
    fault = seals_fault(rules.keys, message.seals, session) or _steps_fault(rules, message.steps)
    if fault := fault or _approver_fault(rules, message.steps, owner):
        return Refusal(fault)
    if fault := worlds_fault(rules, message, session, now):
        return Refusal(fault)
    try:
        shown = tuple(_as_owner(rules.application, step, owner) for step in message.steps)
    except TemplateError:
        return Refusal("an identity argument cannot be filled in")
    origin = message.seals[0].origin
    text = _question(rules, message, shown, origin)
    if len(text) > MAX_QUESTION:
        return Refusal("the question would be too long to read")
    pins = tuple(rules.application.tools[step.tool].connector.pin for step in message.steps)
    return Asking(
        message.action,
        message.turn,
        message.steps,
        text,
        origin.source,
        owner,
        now + rules.ttl_ms,
        pins,
        message.worlds,
    )


def seals_fault(keys: SealKeys, seals: Sequence[Seal], session: str) -> str | None:
    """Why these seals do not say who asks in this session, or None."""
    if not seals:
        return "no seal says who asks"
    if not all(seal_is_valid(keys, seal) for seal in seals):
        return "a seal is not valid"
    if any(seal.session != session for seal in seals):
        return "a seal is of another session"
    if not all(seal.origin.same_as(seals[0].origin) for seal in seals):
        return "the seals are of different origins"
    return None


def worlds_fault(rules: Rules, message: IssueAction, session: str, now: int) -> str | None:
    """Why what the steps rely on is not known as the door read it, or None. `now` in milliseconds."""
    for number, step in enumerate(message.steps):
        if rules.application.tools[step.tool].precondition is None:
            continue
        world = message.worlds[number] if number < len(message.worlds) else None
        if world is None or not world.is_of(rules.keys, session, step):
            return f"step {number + 1}: what {step.tool} relies on was not read"
        if now - world.read_at > WORLD_AGE_MS:
            return f"step {number + 1}: what {step.tool} relies on was read too long ago"
    return None


def _steps_fault(rules: Rules, steps: Sequence[Step]) -> str | None:
    if not steps:
        return "there is no step to ask about"
    if len(steps) > rules.application.session.caps.steps:
        return "there are too many steps"
    for number, step in enumerate(steps, start=1):
        if step.tool not in rules.application.tools:
            return f"step {number}: there is no tool {step.tool}"
        # The first fault by its place only: its text would quote the argument.
        for fault in rules.validators[step.tool].iter_errors(step.args):
            place = ".".join(str(part) for part in fault.instance_path) or "arguments"
            return f"step {number}: {render.visible(place[:80])} does not fit the schema of {step.tool}"
    return None


def _approver_fault(rules: Rules, steps: Sequence[Step], owner: str) -> str | None:
    """A yes counts as the owner's own wish: what they may not cause (`caused_by`) is not asked of them."""
    approver = decider(rules.application, owner)
    for number, step in enumerate(steps, start=1):
        if not may_cause(rules.application.tools[step.tool], approver):
            return f"step {number}: {step.tool} may not be caused by its owner"
    return None


def _as_owner(application: Application, step: Step, owner: str) -> Step:
    """The step as it would run: the door overwrites arguments that name who acts, so they are shown overwritten."""
    identity = application.tools[step.tool].identity
    if not identity:
        return step
    context = {"origin": decider(application, owner).model_dump(exclude={"written_by"}), "owner": owner}
    return Step(tool=step.tool, args={**step.args, **fill(dict(identity), context)})


def _question(rules: Rules, message: IssueAction, steps: Sequence[Step], origin: Origin) -> str:
    tools: Mapping[str, Tool] = rules.application.tools
    asked_by = None if origin.kind == "user" else origin.source
    if not rules.question_by_note:
        return render.question(
            message.action, steps, tools, asked_by=asked_by, ttl_ms=rules.ttl_ms, written_by=origin.written_by
        )
    if message.note:
        note = render.visible(message.note)
        return "lab: " + render.frame(message.action, note, asked_by=asked_by, ttl_ms=rules.ttl_ms)
    return "lab: " + render.question(message.action, steps, tools, asked_by=asked_by, ttl_ms=rules.ttl_ms)


def fingerprint(message: IssueAction) -> str:
    """What makes two messages about one action id the same question: turn, steps, the inputs that ask, and what it
    takes the place of."""
    content: dict[str, JSON] = {
        "turn": message.turn,
        "steps": [step.model_dump() for step in message.steps],
        "inputs": [seal.input for seal in message.seals],
        "note": message.note,
    }
    if message.supersedes:  # left out where empty: older records know nothing of it
        content["supersedes"] = list(message.supersedes)
    if message.worlds:
        content["worlds"] = worlds_json(message.worlds)
    return digest(content)


def worlds_json(worlds: Sequence[World | None]) -> list[JSON]:
    """What was read for each step, as it is stored beside the steps."""
    return [world.model_dump() if world is not None else None for world in worlds]


def read_decision(text: str) -> tuple[Verdict, str] | None:
    """`yes A1` and `no A1`, exactly, and nothing else (design §3.3). No other text ever decides (G3)."""
    match = _BY_TEXT.fullmatch(text)
    if match is None:
        return None
    return ("accept" if match[1] == "yes" else "decline"), match[2]


def text_fault(keys: SealKeys, message: DecideByText, session: str) -> str | None:
    """Why this text is not the sealed word of a user of this session, or None."""
    if not seal_is_valid(keys, message.seal) or message.seal.session != session:
        return "seal"
    if message.seal.origin.kind != "user":
        return "not_a_user"
    if digest({"text": message.text}) != message.seal.digest:
        return "other_text"
    return None


def decider(application: Application, user: str) -> Origin:
    """The origin of what a signed-in user decides."""
    return Origin(kind="user", source=application.user_source, principal=user, verified="user-token")


def decision_input_id(session: str, action: str) -> str:
    """An action is decided at most once, so its decision's input id is derived from it alone (G2)."""
    return derive_id("decision", session, action)


def decision_data(action: str, verdict: Verdict) -> dict[str, JSON]:
    """What the session is told of a decision: an id and a word, never arguments."""
    return {"action": action, "decision": verdict}


STATE_AFTER: Mapping[Verdict, str] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}


def receipt(record: Record, verdict: Verdict, at: int) -> dict[str, JSON]:
    """What the approver gets for their decision, and gets again each time they repeat it."""
    return {
        "session": record.session,
        "action": record.action,
        "decision": verdict,
        "state": STATE_AFTER[verdict],
        "by": record.approver,
        "decided_at": at,
        "question": record.question,
        "question_digest": record.question_digest,
        "input": decision_input_id(record.session, record.action),
    }


def relies_on(worlds: Sequence[World | None]) -> list[JSON]:
    """For each step the digest of what it relies on and when that was read, None where it relies on nothing."""
    return [{"digest": world.digest, "read_at": world.read_at} if world is not None else None for world in worlds]


def view(record: Record, now: int) -> dict[str, JSON]:
    """An action as it is shown over HTTP. `now` in milliseconds: what is past its time is shown as expired."""
    overdue = record.state == "pending" and now > record.expires_at
    shown: dict[str, JSON] = {
        "action": record.action,
        "session": record.session,
        "state": "expired" if overdue else record.state,
        "question": record.question,
        "question_digest": record.question_digest,
        "approver": record.approver,
        "source": record.source,
        "turn": record.turn,
        "steps": [step.model_dump() for step in record.steps],
        "asked_at": record.asked_at,
        "expires_at": record.expires_at,
    }
    if any(record.worlds):
        shown["relies_on"] = relies_on(record.worlds)
    if record.decided_at:
        shown |= {"decided_at": record.decided_at, "decided_by": record.decided_by}
    if record.closed_as and record.reason:
        shown["reason"] = record.reason
    if record.state == "accepted":
        left = len(record.spent) < len(record.steps)
        lapsed = left and (record.closed_as == "lapsed" or now > record.lapses_at)
        shown["grant"] = {"lapses_at": record.lapses_at, "spent": list(record.spent), "lapsed": lapsed}
    return shown

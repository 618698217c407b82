"""What the door judges, as pure functions: who may do what, and what becomes of a key that is held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import jsonschema_rs

from libs.contracts.application import Application, Gate, Lookup, Tool
from libs.contracts.canonical import JSON, digest
from libs.contracts.consent import World
from libs.contracts.door import DoorCode
from libs.contracts.ids import derive_id
from libs.contracts.origin import Origin, OriginKind, Seal, SealKeys, seal_is_valid
from libs.contracts.principals import is_granted, may_cause
from libs.contracts.session import Step
from libs.contracts.templates import TemplateError, evaluate, fill
from libs.contracts.tools import RunStep, action_key

SEAL_AGE_MS = 24 * 3_600_000
"""A seal gives no authority when it is older (design §3.4)."""
MAX_SEALS = 64
_SHOWN = 160
_NO_WISH = ("decision", "cancel")
"""Kinds of input that begin no turn of their own."""


@dataclass(frozen=True)
class Committed:
    """The destination did it. `result` is its answer."""

    result: JSON = None


@dataclass(frozen=True)
class Refused:
    """The world's rules say no: nothing was done, and asking again changes nothing."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """Ours, and provably before anything was sent: the key is released."""

    reason: str


@dataclass(frozen=True)
class NotSent(Failed):
    """The destination was not reached, so that the same call may be tried again at once."""


@dataclass(frozen=True)
class Unknown:
    """It was sent, or may have been, and no answer came."""

    reason: str


Outcome = Committed | Refused | Failed | Unknown


@dataclass(frozen=True)
class Rejection:
    """The door says no before anything runs. `reason` is for planner, user and log, `code` names the check."""

    reason: str
    code: DoorCode


@dataclass(frozen=True)
class Action:
    """What the door reads of an action's record. Whether it is still granted is asked again in the claiming script."""

    id: str
    steps: tuple[Step, ...]
    approver: str
    input: str
    """Id of the decision input: the one whose seal a call for this action must carry."""
    pins: tuple[str, ...] = ()
    """Per step the digest of the destination's schema that it was approved under, "" for none (`Connector.pin`)."""
    worlds: tuple[World | None, ...] = ()
    """For each step: what was read of the world for the question, where its tool has a precondition."""


@dataclass(frozen=True)
class Authority:
    """Who a call speaks for, from its seals alone."""

    origin: Origin
    inputs: tuple[tuple[str, int], ...]
    """(input id, accepted at in ms) of each seal."""

    @property
    def until(self) -> int:
        """Milliseconds (Unix) until which its oldest seal counts."""
        return min(at for _, at in self.inputs) + SEAL_AGE_MS

    @property
    def principal(self) -> str:
        """The origin as one text, for bindings: with who wrote it, since another writer's words are another turn's."""
        written_by = f" {self.origin.written_by}" if self.origin.written_by else ""
        return f"{self.origin.kind} {self.origin.source} {self.origin.principal}{written_by}"


@dataclass(frozen=True)
class Admitted:
    """A step that may be claimed."""

    tool: str
    args: Mapping[str, JSON]
    """As they are sent, identity overwritten."""
    fingerprint: str
    """Of tool and arguments as they were called: what a key may never be used for otherwise."""
    authority: Authority
    not_after: int
    action: Action | None = None
    step: int = 0
    lab: bool = False
    """Only a lab switch let it pass."""
    observed: bool = False
    """Only observe mode let it pass: its owner would have been asked."""
    offered: bool = False
    """Only a standing approval lets it pass: its owner is asked otherwise."""


@dataclass(frozen=True)
class Catalogue:
    """The application's tools with their compiled schemas."""

    application: Application
    schemas: Mapping[str, Any] = field(repr=False)
    raised: dict[str, Tool] = field(default_factory=dict)
    """Tools whose gate was raised since the start, as by the hints of an MCP server: what holds instead of the file."""

    @classmethod
    def of(cls, application: Application) -> "Catalogue":
        """Compile each tool's schema once."""
        return cls(application, {name: jsonschema_rs.validator_for(t.args) for name, t in application.tools.items()})

    def tool(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self.raised.get(name) or self.application.tools.get(name)

    def faults(self, name: str, args: Mapping[str, JSON]) -> list[str]:
        """What is wrong with a tool's arguments, each by path."""
        found = []
        for error in self.schemas[name].iter_errors(args):
            path = ".".join(str(part) for part in error.instance_path) or "arguments"
            found.append(f"{path}: {error.message[:_SHOWN]}")
        return found

    def wants_owner(self, name: str) -> bool:
        """Whether the tool's identity arguments name the session's owner."""
        tool = self.tool(name)
        return tool is not None and any("owner" in template for template in tool.identity.values())


def authority(seals: Sequence[Seal], session: str, keys: SealKeys) -> Authority | Rejection:
    """Whom the seals speak for: each is ours, of this session, and all of one principal (design §3.4, G3)."""
    if not seals or len(seals) > MAX_SEALS:
        return Rejection(f"a step needs between 1 and {MAX_SEALS} seals", "no_seals")
    for seal in seals:
        if not seal_is_valid(keys, seal):
            return Rejection("a seal is not ours", "forged_seal")
        if seal.session != session:
            return Rejection("a seal is of another session", "foreign_seal")
        if not seal.origin.same_as(seals[0].origin):
            return Rejection("the seals are of more than one principal", "mixed_principals")
    inputs = tuple(dict.fromkeys((seal.input, seal.accepted_at) for seal in seals))
    if len({name for name, _ in inputs}) != len(inputs):
        return Rejection("an input is named twice", "repeated_input")
    return Authority(seals[0].origin, inputs)


def permission(gate: Gate, kind: OriginKind, tool: str) -> Rejection | None:
    """Whether a free step of this origin passes the tool's gate. Other steps need an accepted action, or a grant.

    Of `unless-user-alone` the door sees that all seals are the user's, not what else was in the planner's view: for
    that it has the session's word (docs/guarantees.md).
    """
    match gate:
        case "never":
            return None
        case "unless-user" | "unless-user-alone":
            return (
                None
                if kind == "user"
                else Rejection(f"not permitted for a turn of origin {kind}: {tool} needs an approval", "needs_approval")
            )
        case "always":
            return Rejection(f"not permitted: {tool} always needs an approval", "needs_approval")


def _principal_may(call: RunStep, catalogue: Catalogue, name: str, origin: Origin) -> Rejection | None:
    """Whether the origin of a call may cause the tool at all, and without asking (design §3.4)."""
    tool = catalogue.tool(name)
    if tool is None or not may_cause(tool, origin):
        return Rejection(
            f"{name} may not be caused by {origin.kind} {origin.source} {origin.principal}", "not_permitted"
        )
    if call.action or is_granted(catalogue.application, name, origin):
        return None
    return permission(tool.gate, origin.kind, name)


def admit(
    call: RunStep,
    session: str,
    catalogue: Catalogue,
    keys: SealKeys,
    *,
    action: Action | None,
    owner: str = "",
    everybody_is_user: bool = False,
) -> Admitted | Rejection:
    """Everything that is judged before the key is looked at, in the door's order (design §3.4).

    `action` is the record that the call names, or None. `everybody_is_user` is the lab switch `authority_by_role`.
    """
    who = authority(call.seals, session, keys)
    if isinstance(who, Rejection):
        return who
    step = _granted(call, who, action) if call.action else _wished(call)
    if isinstance(step, Rejection):
        return step
    tool = catalogue.tool(step.tool)
    if tool is None:
        return Rejection(f"there is no tool {step.tool}", "unknown_tool")
    if action is not None and (fault := _pin_fault(action, call.step, tool)):
        return Rejection(fault, "other_schema")
    if faults := catalogue.faults(step.tool, step.args):
        return Rejection("; ".join(faults), "bad_arguments")
    denied = _principal_may(call, catalogue, step.tool, who.origin)
    judged = not everybody_is_user and not catalogue.application.session.observe
    # Of the user alone only the session knows: where it offers the step instead, somebody else's words were in view.
    offered = call.offer and judged and (denied is not None or tool.gate == "unless-user-alone")
    if denied is not None and judged and not offered:
        return denied
    args = _with_identity(tool, step.args, who.origin, owner)
    if isinstance(args, Rejection):
        return args
    fingerprint = digest([step.tool, step.args])
    not_after = min(call.not_after, who.until)
    lab = denied is not None and everybody_is_user
    observed = denied is not None and not everybody_is_user and not offered
    return Admitted(
        step.tool, args, fingerprint, who, not_after, action, call.step, lab=lab, observed=observed, offered=offered
    )


def _wished(call: RunStep) -> Step | Rejection:
    """The step of a turn that somebody's input began. A decision and a cancel begin none: they ask for nothing, so
    whoever holds their seals alone has nobody's wish."""
    if all(seal.kind in _NO_WISH for seal in call.seals):
        return Rejection("a decision or a cancel asks for no step", "not_a_wish")
    return Step(tool=call.tool, args=call.args)


def _granted(call: RunStep, who: Authority, action: Action | None) -> Step | Rejection:
    """The stored step that was approved. Nothing of it is taken from the call (G6)."""
    if action is None:
        return Rejection(f"there is no action {call.action}", "no_action")
    if not 0 <= call.step < len(action.steps):
        return Rejection(f"{action.id} has no step {call.step}", "no_step")
    if call.key != action_key(action.id, call.step):
        return Rejection("the key is not that of the action's step", "foreign_key")
    if who.origin.kind != "user" or who.origin.principal != action.approver:
        return Rejection(f"{action.id} was not accepted by its approver", "not_the_approver")
    if [name for name, _ in who.inputs] != [action.input]:
        return Rejection(f"the seal is not that of the decision on {action.id}", "not_its_decision")
    return action.steps[call.step]


def _pin_fault(action: Action, step: int, tool: Tool) -> str:
    """Why what was approved is not what would be called: the destination's schema was imported anew since."""
    approved = action.pins[step] if step < len(action.pins) else ""
    if approved == tool.connector.pin:
        return ""
    return f"{action.id} was approved under another schema of the tool: ask again"


def _with_identity(tool: Tool, args: Mapping[str, JSON], origin: Origin, owner: str) -> Mapping[str, JSON] | Rejection:
    """Arguments that name who acts are overwritten, never merely filled in."""
    try:
        # Who wrote it is only what the sender says: nobody acts in that name.
        acting = origin.model_dump(exclude={"written_by"})
        return {**args, **fill(dict(tool.identity), {"origin": acting, "owner": owner})}
    except TemplateError as error:
        return Rejection(f"identity: {error}", "no_identity")


def after_holder(tool: Tool | None, keyed_from: int, now: int) -> Literal["send", "unknown"]:
    """What becomes of a claimed operation whose holder is gone: it may have been sent (design §3.4, G4).

    Sent again with the same key while the destination honours it, or where nothing can happen twice. `keyed_from`:
    when it was first claimed, and so may first have been sent; as `now` in milliseconds (Unix).
    """
    if tool is None:
        return "unknown"
    return "send" if is_harmless(tool) or now <= honoured_until(tool, keyed_from) else "unknown"


def is_harmless(tool: Tool) -> bool:
    """Whether nothing can happen twice, however often it is sent: it changes nothing, or its message leaves with the
    record of its outcome and never before, as a timer's does."""
    return tool.effect in ("none", "read") or tool.connector.timer is not None


def honoured_until(tool: Tool, keyed_from: int) -> int:
    """Until when (milliseconds, Unix) a call may begin under a key that the destination may have seen `keyed_from`: the
    whole of it has to arrive within `keyed.for`. 0 where the destination honours no key."""
    if tool.keyed is None:
        return 0
    return keyed_from + round((tool.keyed.for_ - tool.connector.timeout) * 1000)


def of_repeat(outcome: Outcome) -> Outcome:
    """What the repeat of a call proves that may have been sent before: that this one was not sent says nothing of the
    other (G4)."""
    if isinstance(outcome, Failed):
        return Unknown(f"it may have been sent before, and could not be sent again: {outcome.reason}")
    return outcome


@dataclass(frozen=True)
class Found:
    """The destination knows the operation: its result, and whether its effect stands still."""

    result: JSON
    stands: bool


@dataclass(frozen=True)
class Nothing:
    """The destination was asked and knows of nothing."""


@dataclass(frozen=True)
class Silent:
    """The destination did not say: it was not reached, or answered what cannot be read."""

    reason: str


Said = Found | Nothing | Silent


def lookup_args(lookup: Lookup, args: Mapping[str, JSON], *, key: str, result: JSON = None) -> dict[str, JSON]:
    """The look-up's arguments for an operation: `key` is what the destination was given, `result` what it answered,
    None where that is not known. Raises TemplateError."""
    known = {} if result is None else {"result": result}
    return cast("dict[str, JSON]", fill(dict(lookup.args), {**args, "args": dict(args), "key": key, **known}))


def read_lookup(lookup: Lookup, args: Mapping[str, JSON], outcome: Outcome) -> Said:
    """What a look-up's outcome says of the operation. A list without members (`{"records": []}` too) found nothing. A
    refusal, as any failure, is no answer; nor, where the file does not say what to look at, is anything but a list: no
    content, or `{"status": "not found"}`, would be read as a proof of one or the other."""
    if not isinstance(outcome, Committed):
        return Silent(outcome.reason)
    if _lists_nothing(outcome.result):
        return Nothing()
    if lookup.result is None and not _is_list(outcome.result):
        return Silent("the answer is no list; say in `lookup.result` where the record is in it")
    context = {**args, "args": dict(args), "found": outcome.result}
    try:
        result = outcome.result if lookup.result is None else evaluate(lookup.result, context)
        stands = lookup.stands is None or evaluate(lookup.stands, context) in (True, "true")
    except TemplateError as error:
        return Silent(f"the answer does not fit: {error}")
    if _is_empty(result):
        return Nothing()
    return Found(result, stands)


def _is_list(value: JSON) -> bool:
    """A list, or an object that has one list and nothing else."""
    return isinstance(value, list) or (
        isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), list)
    )


def _lists_nothing(value: JSON) -> bool:
    """A list without members; or an object with such a list, and nothing in it that could speak against it."""
    if isinstance(value, list):
        return not value
    return isinstance(value, dict) and [] in value.values() and _is_empty(value)


def _is_empty(value: JSON) -> bool:
    match value:
        case None | "" | False:
            return True
        case dict():
            return all(_is_empty(item) for item in value.values())
        case list():
            return all(_is_empty(item) for item in value)
        case _:
            return False


def destination_key(namespace: str, session: str, key: str) -> str:
    """The idempotency key that the destination sees: ours alone, also where deployments share a destination."""
    return derive_id("destination", namespace, session, key)

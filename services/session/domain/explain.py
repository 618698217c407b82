"""What would happen if an input came now, and by which rule: `decide` itself is asked, and nothing is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.contracts.application import Source
from libs.contracts.canonical import JSON, digest
from libs.contracts.ids import derive_id, is_slug, is_text_id
from libs.contracts.ingress import Input, InputKind
from libs.contracts.meaning import about, body_data, names_in, names_of, written_by
from libs.contracts.origin import Origin, Seal
from libs.contracts.templates import TemplateError, render
from services.session.domain import Arrived, decide
from services.session.domain.draft import Decision, WantPlan
from services.session.domain.limits import begun
from services.session.domain.rules import Rules
from services.session.domain.state import SessionState


@dataclass(frozen=True)
class Finding:
    """One thing that would be so. `rule` is its place in the application file, "" where the runtime itself says so."""

    about: str
    says: str
    rule: str = ""


class NotAnEvent(ValueError):
    """What is to be explained cannot be read as an event. The text says why."""


def explain(
    state: SessionState, event: Mapping[str, JSON], rules: Rules, now: int, *, owner: str
) -> tuple[Finding, ...]:
    """What would become of an event: `{"source", "type", "data", …}`, `{"text", "as"}` for a user's message,
    `{"cancel": true, "as"}` for a user's cancel, `{"decision", "action", "as"}` for an approver's decision that consent
    took, or `{"timer", "data"}` for a timer that fires.

    `owner` is the session's, `now` in milliseconds (Unix). Raises NotAnEvent.
    """
    if "cancel" in event:
        return _cancel(state, event, rules, now, owner)
    if "decision" in event:
        return _decision(state, event, rules, now, owner)
    if "timer" in event:
        return _timer(state, event, rules, now)
    if "text" in event:
        return _message(state, event, rules, now, owner)
    name = event.get("source")
    source = rules.application.sources.get(name) if isinstance(name, str) else None
    if source is None or not isinstance(name, str):
        known = ", ".join(rules.application.sources)
        raise NotAnEvent(f"source: one of {known}; or give text and as, for what a user says")
    if source.verify.scheme == "user-token":
        raise NotAnEvent(f"source: {name} is where users speak; give text and as")
    return _event(state, {key: value for key, value in event.items() if key != "source"}, name, source, rules, now)


def _message(state: SessionState, event: Mapping[str, JSON], rules: Rules, now: int, owner: str) -> tuple[Finding, ...]:
    text, user = event["text"], event.get("as", owner)
    if not isinstance(text, str) or not isinstance(user, str) or not is_slug(user):
        raise NotAnEvent("text and as are texts: what is said, and the user who says it")
    return _by_user(state, "message", {"text": text}, user, rules, now, owner)


def _cancel(state: SessionState, event: Mapping[str, JSON], rules: Rules, now: int, owner: str) -> tuple[Finding, ...]:
    user = event.get("as", owner)
    if event["cancel"] is not True or "text" in event or "source" in event:
        raise NotAnEvent("cancel is true, and stands alone or with as, the user who cancels")
    if not isinstance(user, str) or not is_slug(user):
        raise NotAnEvent("as is a text: the user who cancels")
    return _by_user(state, "cancel", {}, user, rules, now, owner)


def _decision(
    state: SessionState, event: Mapping[str, JSON], rules: Rules, now: int, owner: str
) -> tuple[Finding, ...]:
    verdict, action, user = event["decision"], event.get("action"), event.get("as", owner)
    if verdict not in ("accept", "decline", "cancel") or not isinstance(action, str) or not is_slug(action):
        raise NotAnEvent("decision is accept, decline or cancel, and action names a question, as A1")
    if not isinstance(user, str) or not is_slug(user) or not event.keys() <= {"decision", "action", "as"}:
        raise NotAnEvent("beside decision and action there is only as, the user who decides")
    origin = Origin(kind="user", source=rules.application.user_source, principal=user, verified="user-token")
    found = [_of_origin(origin)]
    if user != owner:
        return (*found, Finding("route", f"refused with 403: questions here are {owner}'s to answer"))
    made = _input(state, "decision", origin, f"{action}:{verdict}", {"action": action, "decision": verdict}, now)
    return (*found, *_happens(state, made, rules, now))


def _timer(state: SessionState, event: Mapping[str, JSON], rules: Rules, now: int) -> tuple[Finding, ...]:
    """An instant of a timer, as ingress would append it: each timer is an origin of its own."""
    name = event["timer"]
    if not isinstance(name, str) or not is_slug(name) or not event.keys() <= {"timer", "data"}:
        raise NotAnEvent("timer is a timer's id, and beside it there is only data")
    origin = Origin(kind="timer", source="timer", principal=name, verified="door")
    known = state.timers.get(name)
    says = f"set by O{known.operation}" if known else "no operation that is known here set it: see turnkeeper timers"
    found = [_of_origin(origin, rule=""), Finding("timer", says)]
    subject = known.subject if known else ""
    if subject:
        found.append(Finding("subject", subject))
    made = _input(
        state, "timer", origin, f"{name}@explained", event.get("data"), now, type="timer.fired", subject=subject
    )
    return (*found, *_happens(state, made, rules, now))


def _by_user(
    state: SessionState, kind: InputKind, data: JSON, user: str, rules: Rules, now: int, owner: str
) -> tuple[Finding, ...]:
    name = rules.application.user_source
    origin = Origin(kind="user", source=name, principal=user, verified="user-token")
    found = [_of_origin(origin)]
    if user != owner:
        return (*found, Finding("route", f"refused with 403: the session is {owner}'s, and nobody else speaks in it"))
    made = _input(state, kind, origin, "explained", data, now)
    return (*found, *_happens(state, made, rules, now))


def _event(
    state: SessionState, body: Mapping[str, JSON], name: str, source: Source, rules: Rules, now: int
) -> tuple[Finding, ...]:
    data = body_data(dict(body))
    event = body.get("id") or "explained"
    type_ = _rendered(source.type, names_in(body, data, name)) or ""
    if not isinstance(event, str) or not is_text_id(event):
        raise NotAnEvent("id: 1 to 256 bytes of printable text")
    principal = source.verify.users[0] if source.verify.scheme == "broker-user" else name
    names = names_of(data, type_, event, name)
    if isinstance(body.get("ce"), dict):
        names["ce"] = body["ce"]  # the attributes of a CloudEvent, which templates may use
    author = written_by(source, names)
    origin = Origin(
        kind=source.kind, source=name, principal=principal, verified=source.verify.scheme, written_by=author or ""
    )
    found = [_of_origin(origin)]
    if author is None:
        return (*found, Finding("written_by", "quarantined: no_author, the data names no writer", f"sources.{name}"))
    routed, route, stops = _route(state, source, name, names)
    found.append(route)
    if stops:
        return tuple(found)
    entry = source.entry(type_)
    rule = f"sources.{name}.types.{entry}" if entry else ""
    what = about(source, type_, names, routed)
    if what.fault:
        return (*found, Finding("meaning", f"quarantined: {what.fault}, the data does not have it", rule))
    if what.subject:
        found.append(
            Finding("subject", what.subject, rule if source.meaning(type_).subject else f"sources.{name}.route")
        )
    if what.sequence:
        stream = f" in the stream {what.stream}" if what.stream else ""
        found.append(Finding("order", f"{what.sequence}{stream}", rule))
    found.append(Finding("meaning", _meaning(source, type_), rule))
    made = _input(state, "event", origin, event, data, now, type=type_, subject=what.subject,
                  sequence=what.sequence, stream=what.stream)  # fmt: skip
    return (*found, *_happens(state, made, rules, now))


def _of_origin(origin: Origin, rule: str | None = None) -> Finding:
    says = f"{origin.kind} {origin.principal} of {origin.source}, verified by {origin.verified}"
    says += f"; written by {origin.written_by}, which gives no authority" if origin.written_by else ""
    return Finding("origin", says, f"sources.{origin.source}" if rule is None else rule)


def _route(state: SessionState, source: Source, name: str, names: Mapping[str, Any]) -> tuple[str, Finding, bool]:
    """The subject that finds the session, how it is found, and whether it is not this one."""
    rule = f"sources.{name}.route"
    route = source.route
    template = (route.session or route.subject) if route is not None else None
    where = _rendered(template, names) if template is not None else None
    if route is None or where is None or not (is_slug(where) if route.session else is_text_id(where)):
        return "", Finding("route", "quarantined: no_route, the data names no session", rule), True
    if route.session is not None:
        same = where == state.session
        says = "it names this session" if same else f"it names the session {where}, and does not come here"
        return "", Finding("route", says, rule), not same
    if operation := state.subjects.get(where):
        return where, Finding("route", f"by {where}, which {operation} registered here", rule), False
    hold = source.unrouted.hold
    else_ = "it is refused" if hold is None else f"it is held for {hold:g} s"
    says = f"by {where}, which no operation that is known here registered; unless ingress knows it as ours, {else_}"
    return where, Finding("route", says, rule), False


def _meaning(source: Source, type_: str) -> str:
    meaning = source.meaning(type_)
    marks = {
        "the subject is gone": meaning.gone,
        "timers and queued input about the subject are moot": meaning.moot,
        "told to the user, without a turn": meaning.notice is not None,
        "open questions about the subject are superseded": meaning.supersedes_questions,
    }
    return "; ".join(says for says, so in marks.items() if so) or "nothing special: it begins a turn"


def _input(
    state: SessionState, kind: InputKind, origin: Origin, event: str, data: JSON, now: int, **fields: str
) -> Input:
    """The input that ingress would append next, but for its seal, which only ingress can make."""
    number, id = state.applied + 1, derive_id("explain", origin.source, event)
    seal = Seal(
        key_id="", input=id, session=state.session, number=number, origin=origin, digest=digest(data), accepted_at=now
    )
    return Input(
        id=id, kind=kind, session=state.session, number=number, source=origin.source, event=event, data=data,
        origin=origin, seal=seal, accepted_at=now, **fields,
    )  # fmt: skip


def _happens(state: SessionState, input: Input, rules: Rules, now: int) -> list[Finding]:
    decision = decide(state, Arrived(input), now, rules)
    found = [Finding(line.kind, line.text) for line in decision.lines if line.kind != "input"]
    found += [Finding("sends", send.message.wire_type()) for send in decision.sends]
    found += [Finding("outcome", became) for ref, became in decision.outcomes if ref.id == input.id]
    found += _ends(decision, input)
    if any(ref.id == input.id for ref, _ in decision.outcomes):
        return found
    if input.kind == "decision":  # it adds no authority and passes the caps; only its stored steps run
        return [*found, *_granted(decision, input)]
    return [
        *found,
        _in_flight(state, input, rules),
        *_tools(state, input.origin, rules),
        _limits(state, input, rules, now),
    ]


def _granted(decision: Decision, input: Input) -> list[Finding]:
    """When the stored steps of an accepted action run."""
    waits = any(ref.id == input.id for ref in decision.state.queue)
    if not waits or decision.state.turn is None:
        return []
    return [Finding("queue", f"its stored steps run after {decision.state.turn.id}, before all that is no decision")]


def _ends(decision: Decision, input: Input) -> list[Finding]:
    match decision.want:
        case WantPlan(_, about) if about and decision.state.turn is not None:
            return [Finding("planner", f"is asked what it is to {decision.state.turn.id}")]
        case WantPlan() if decision.state.turn is not None:
            return [Finding("planner", f"is asked for {decision.state.turn.id}")]
        case _:
            return []


def _in_flight(state: SessionState, input: Input, rules: Rules) -> Finding:
    """Which rule of the table counts, for input of the running turn's own origin (design §4.2)."""
    place, rule = rules.application.session.in_flight_rule(input.source, input.type)
    says = f"if it adds: {rule.adds}; independent: {rule.independent}; revises: {rule.revises}; unclear: {rule.unclear}"
    which = f"session.in_flight, rule {place}" if place else "session.in_flight, no rule fits: the default"
    turn = state.turn
    if turn is None:
        return Finding("in_flight", f"no turn runs now; while one of its own origin does, {says}", which)
    if not turn.origin.same_as(input.origin):
        return Finding("in_flight", f"{turn.id} runs, of another origin: queued, whatever it is")
    return Finding("in_flight", f"{turn.id} runs, of its own origin: {says}", which)


def _tools(state: SessionState, origin: Origin, rules: Rules) -> list[Finding]:
    """For which tools a turn of this origin asks the owner first."""
    alone = not state.others
    asking = [name for name in rules.application.tools if rules.needs_consent(name, origin, alone=alone)]
    free = [name for name in rules.application.tools if name not in asking]
    found = []
    if asking:
        says = "would ask, and does not, in observe mode" if rules.observe else "asks the owner first"
        found.append(Finding("tools", f"{says}: {', '.join(asking)}", "tools.*.consent"))
    granted = [name for name in asking if rules.application.tools[name].standing and not rules.observe]
    if granted:
        says = f"unless a standing approval of the owner covers the step: {', '.join(granted)}"
        found.append(Finding("tools", says, "tools.*.standing"))
    if free:
        found.append(Finding("tools", f"runs without asking: {', '.join(free)}", "tools.*.consent"))
    return found


def _limits(state: SessionState, input: Input, rules: Rules, now: int) -> Finding:
    cap = rules.application.session.caps.turns_per_origin_per_hour
    says = f"its origin has begun {begun(state, input.origin, now)} of {cap} turns within the hour"
    return Finding("limits", says, "session.caps.turns_per_origin_per_hour")


def _rendered(template: str, names: Mapping[str, Any]) -> str | None:
    try:
        return render(template, names)
    except TemplateError:
        return None

"""What an input means when it arrives: a control, a fact about a subject, or the start of a turn."""

from itertools import takewhile

from libs.contracts.canonical import JSON
from libs.contracts.consent import DecideByText
from libs.contracts.ingress import Input, InputKind
from services.session.domain import inflight, subjects, turns
from services.session.domain.draft import Draft
from services.session.domain.memory import entry_of
from services.session.domain.rules import EXACT_DECISION, Rules, almost_a_decision
from services.session.domain.state import InputRef
from services.session.domain.words import signed_and_written

MOST_QUEUED = 200
"""Inputs that wait behind a running turn: the state holds them all and is written at every commit. Decisions and
cancels are never dropped."""


def on_input(draft: Draft, input: Input, rules: Rules) -> None:
    """Fold one input into the session. Its number is the next one."""
    draft.set(applied=input.number)
    ref = InputRef.of(input)
    draft.line("input", _shown(draft, input), turn="", origin=input.origin.kind, event=input.event)
    match _trusted_kind(input):
        case "decision":
            _on_decision(draft, ref, input, rules)
        case "cancel":
            _control(draft, ref)
            turns.cancel(draft, rules)
        case "message":
            _on_message(draft, ref, input, rules)
        case "event" | "timer":
            _on_event(draft, ref, input, rules)


def _trusted_kind(input: Input) -> InputKind:
    """What is not from a user is an event, whatever it calls itself: it decides nothing and has no user's role."""
    return input.kind if input.origin.kind == "user" and input.kind != "timer" else "event"


def _on_event(draft: Draft, ref: InputRef, input: Input, rules: Rules) -> None:
    """What nobody typed here: first what it says of its subject, then, if anything is left to do, its turn."""
    ended = subjects.fold(draft, ref, input, rules)
    if ended in ("stale", "noticed"):
        late: dict[str, JSON] = {"late": True} if ended == "stale" else {}
        draft.remember(**entry_of(input), **late)
    if ended:
        return
    if _full(draft):
        _dropped(draft, ref)
        return
    inflight.arrived(draft, input, rules)


def _on_message(draft: Draft, ref: InputRef, input: Input, rules: Rules) -> None:
    """A user's text. The exact grammar decides, by way of consent; nothing else does, ever (design §3.3)."""
    text = str(input.data.get("text", "")) if isinstance(input.data, dict) else ""
    if EXACT_DECISION.fullmatch(text):
        _control(draft, ref)
        draft.send(DecideByText(text=text, seal=input.seal), input.id)
        return
    if inflight.answers(draft, input):
        _control(draft, ref)
        return
    open_ = [action.id for action in draft.state.actions.values() if action.asked and not action.superseded_by]
    if open_ and almost_a_decision(text):
        _control(draft, ref)
        draft.say(how_to_decide(open_))
        return
    if _full(draft):
        _dropped(draft, ref)
        draft.say("I am busy: too much waits here already. Please say it again later.", turn="")
        return
    inflight.arrived(draft, input, rules)


def how_to_decide(actions: list[str]) -> str:
    """How a question is answered."""
    lines = ", ".join(f'"yes {action}" or "no {action}"' for action in actions)
    return f"To answer, type exactly {lines}. Nothing else approves anything."


def _on_decision(draft: Draft, ref: InputRef, input: Input, rules: Rules) -> None:
    """The approver decided; consent has recorded it and sealed this input. Applied on arrival."""
    action = turns.granted_action(draft, ref, input)
    verdict = input.data.get("decision") if isinstance(input.data, dict) else None
    name = str(input.data.get("action", "")) if isinstance(input.data, dict) else ""
    if action is None or verdict not in ("accept", "decline", "cancel"):
        draft.line("action.refused", f"{name} is not open here", turn="", action=name)
        _control(draft, ref)
        return
    kind = {"accept": "action.accepted", "decline": "action.declined", "cancel": "action.cancelled"}[verdict]
    before = " before a newer event could supersede it" if action.superseded_by else ""
    draft.line(kind, f"by {input.origin.principal}{before}", turn="", action=action.id)  # type: ignore[arg-type]
    draft.remember(kind="action", action=action.id, became=kind.partition(".")[2], question=action.question)
    if verdict != "accept":
        _control(draft, ref)
        draft.set(actions={id: kept for id, kept in draft.state.actions.items() if id != action.id})
        return
    if draft.state.turn is None:
        draft.dispositions.append("started")
        turns.begin_granted(draft, ref, action, rules)
    else:
        draft.dispositions.append("queued")
        first = sum(1 for _ in takewhile(lambda queued: queued.kind == "decision", draft.state.queue))
        draft.set(queue=(*draft.state.queue[:first], ref, *draft.state.queue[first:]))


def _full(draft: Draft) -> bool:
    return draft.state.waiting >= MOST_QUEUED


def _dropped(draft: Draft, ref: InputRef) -> None:
    """No turn begins for it, and its outcome says so."""
    draft.dispositions.append("dropped")
    draft.line("input.dropped", "too many inputs wait", turn="", origin=ref.origin.kind, event=ref.event)
    draft.outcomes.append((ref, "failed"))
    draft.trimmed.append(ref.number)


def _control(draft: Draft, ref: InputRef) -> None:
    draft.dispositions.append("control")
    draft.outcomes.append((ref, "acted"))
    draft.trimmed.append(ref.number)


def _shown(draft: Draft, input: Input) -> str:
    """For people: a user's own words, otherwise who sent what kind of event, never a stranger's text."""
    match input.kind:
        case "message":
            text = input.data.get("text", "") if isinstance(input.data, dict) else ""
            return f"{input.origin.principal}: {text}"
        case "decision":
            data = input.data if isinstance(input.data, dict) else {}
            return f"{input.origin.principal}: {data.get('decision', '')} {data.get('action', '')}"
        case "cancel":
            return f"{input.origin.principal}: cancel"
        case "event":
            written = signed_and_written(input.origin)
            return f"{input.source}: {input.type or 'event'}" + (f" ({written})" if written else "")
        case "timer":
            return f"timer of {subjects.called(draft.state, subjects.timer_of(input))}"

"""What events say about their subjects: order, gone, moot, notices, superseded questions, timers (design §4.1, §4.4).

An event is a hint: it changes what we know and what waits here, never the world.
"""

from collections.abc import Mapping
from typing import Literal, TypeVar

from libs.contracts.application import EventType
from libs.contracts.canonical import JSON
from libs.contracts.consent import SupersedeActions
from libs.contracts.envelope import Message
from libs.contracts.ids import derive_id
from libs.contracts.ingress import Input, StopTimer, TimerSkipped
from libs.contracts.reasons import EventOutcome, TimelineKind
from libs.contracts.session import Notice
from libs.contracts.tools import LookedUp, LookUpOperation, StepFinished
from services.session.domain.draft import Draft, Send, WantInput
from services.session.domain.order import is_newer
from services.session.domain.rules import Rules
from services.session.domain.state import Action, InputRef, OperationRef, SessionState, TimerRef

T = TypeVar("T")

KEPT_SUBJECTS = 200
"""Watermarks and moot subjects: the state holds them all and is written at every commit."""
KEPT_TIMERS = 200
KEPT_EARLY = 50
READ_WAIT_MS = 10_000
"""So long a turn about a subject waits for the destination's word on it, and no longer. A word that is older says
nothing of now."""


Ended = Literal["", "stale", "noticed", "superseded"]
"""What became of an input for which no turn begins; "" where one does."""


def fold(draft: Draft, ref: InputRef, input: Input, rules: Rules) -> Ended:
    """Apply what an input says about its subject."""
    if input.kind == "timer":
        return _moot_timer(draft, ref, input)
    if is_stale(draft.state, input):
        applied, _ = draft.state.watermarks[_stream(input)]
        return _ended(draft, ref, "input.stale", "stale", f"{input.sequence} is not after {applied}")
    meaning = rules.event_type(input)
    if ref.subject:
        _apply(draft, ref, input, meaning, rules)
    if meaning.notice is not None and _told(draft, ref, input, meaning, rules):
        return "noticed"
    if known := _operation(draft.state, ref.subject):
        _look(draft, ref, known, rules)
    return ""


def _apply(draft: Draft, ref: InputRef, input: Input, meaning: EventType, rules: Rules) -> None:
    _advance(draft, input)
    if meaning.gone:
        _gone(draft, ref, rules)
    if meaning.moot:
        _moot(draft, ref)
    if meaning.supersedes_questions:
        _supersede(draft, ref)


# Order


def is_stale(state: SessionState, input: Input) -> bool:
    """Whether what was applied of this source's stream about this subject is as new or newer."""
    if input.kind != "event" or not input.sequence or not input.subject:
        return False
    applied = state.watermarks.get(_stream(input))
    return applied is not None and not is_newer((input.sequence, input.accepted_at), applied)


def _advance(draft: Draft, input: Input) -> None:
    if not input.sequence:
        return
    applied = (input.sequence, input.accepted_at)
    draft.set(watermarks=_newest(draft.state.watermarks, _stream(input), applied, KEPT_SUBJECTS))


def _stream(input: Input) -> str:
    # One short name: subjects and streams are somebody else's texts, of up to 256 bytes each.
    return derive_id("stream", input.source, input.subject, input.stream)


# Gone


def _gone(draft: Draft, ref: InputRef, rules: Rules) -> None:
    """The source says that the subject is gone: its operation is marked before any turn starts."""
    known = _operation(draft.state, ref.subject)
    if known is None:
        # The door's result may still be on its way here: events and results come by different ways.
        kept = dict(list(draft.state.gone_early.items())[-(KEPT_EARLY - 1) :])
        draft.set(gone_early={**kept, ref.subject: ref.source})
        return
    _reported(draft, known, ref.source)
    _look(draft, ref, known, rules)


def _reported(draft: Draft, known: OperationRef, source: str) -> None:
    if not known.gone:
        _mark(draft, known, gone=True)
        draft.line("effect.gone", f"{_name(known)}, reported by {source}", turn=known.turn, operation=known.id)


def _mark(draft: Draft, known: OperationRef, *, gone: bool) -> None:
    marked = known.model_copy(update={"gone": gone})
    draft.set(operations={**draft.state.operations, known.id: marked})


def _operation(state: SessionState, subject: str) -> OperationRef | None:
    return state.operations.get(state.subjects.get(subject, "")) if subject else None


def depth_of(state: SessionState, ref: InputRef) -> int:
    """Causation depth of an input. An event about what an effect of ours made is one deeper than the turn of that
    effect, whatever way it took through the world, which carries no depth (A12)."""
    made_by = _operation(state, ref.subject) if ref.kind == "event" else None
    return ref.depth if made_by is None else max(ref.depth, made_by.depth + 1)


def _name(known: OperationRef) -> str:
    return known.subject.rpartition(":")[2] or known.id


def _look(draft: Draft, ref: InputRef | None, known: OperationRef, rules: Rules) -> None:
    """Ask the destination what it says now, where the tool has a look-up and it is not being asked already."""
    if not rules.lookup_of(known.tool) or draft.state.looking.get(known.id, 0) > draft.now:
        return
    others = [(id, until) for id, until in draft.state.looking.items() if id != known.id]
    for forgotten, _ in others[: -(KEPT_EARLY - 1)]:
        _looked(draft, forgotten)  # else it would be asked again at once, and what waits for it might wait for ever
    draft.set(looking={**dict(others[-(KEPT_EARLY - 1) :]), known.id: draft.now + READ_WAIT_MS})
    _send(draft, ref, LookUpOperation(operation=known.id, key=known.key), "look", known.key, draft.seq, draft.now)


def _looked(draft: Draft, operation: str) -> None:
    """The destination spoke, or was waited for in vain: for a while it is not asked again."""
    draft.set(looked=_newest(draft.state.looked, operation, draft.now, KEPT_EARLY))


def give_up_reading(draft: Draft) -> None:
    """What waited for its reading long enough goes on without. A word that comes later is still taken."""
    over = [id for id, until in draft.state.looking.items() if 0 < until <= draft.now]
    if over:
        draft.set(looking={**draft.state.looking, **dict.fromkeys(over, 0)})
    for operation in over:
        _looked(draft, operation)


def on_looked_up(draft: Draft, message: LookedUp, rules: Rules) -> None:
    """What the destination says now. Kept for the planner; it decides whether the operation counts as gone."""
    known = draft.state.operations.get(message.operation)
    if message.operation not in draft.state.looking or (known is not None and known.key != message.key):
        return
    draft.set(looking={id: until for id, until in draft.state.looking.items() if id != message.operation})
    if known is not None:
        _looked(draft, known.id)
        _found(draft, known, message)
        draft.remember(
            kind="tool",
            tool=rules.lookup_of(known.tool) or known.tool,
            args={"operation": known.id},
            operation=known.id,
            state=message.found,
            result=message.result,
            reason="",
        )


def _found(draft: Draft, known: OperationRef, message: LookedUp) -> None:
    said = ""
    match message.found:
        case "gone":
            said = "confirmed"
            _mark(draft, known, gone=True)
        case "stands" if known.gone:
            said = "not so: its destination says that it stands"
            _mark(draft, known, gone=False)
        case "unknown" if known.gone:
            said = "not confirmed: its destination did not say"
    if said:
        draft.line("effect.gone", f"{_name(known)}, {said}", turn=known.turn, operation=known.id)


def is_being_read(state: SessionState, ref: InputRef, now: int) -> bool:
    """Whether the turn of an input waits for the destination's word on its subject."""
    return ref.kind == "event" and state.looking.get(state.subjects.get(ref.subject, ""), 0) > now


def is_read_first(draft: Draft, ref: InputRef, rules: Rules) -> bool:
    """Whether an input waits for the destination's word on its subject, which is asked again where it is old: what was
    read when the input came says nothing of now, if that waited long."""
    known = _operation(draft.state, ref.subject) if ref.kind == "event" else None
    if known is not None and draft.now - draft.state.looked.get(known.id, 0) > READ_WAIT_MS:
        _look(draft, ref, known, rules)
    return is_being_read(draft.state, ref, draft.now)


def next_may_begin(draft: Draft) -> None:
    """Where no turn runs, the first of the queue waits for a look-up or begins: whatever put it there, and whatever
    the one before it became, nothing that was accepted waits without a deadline (G9)."""
    queue = draft.state.queue
    if draft.state.turn is not None or not queue or draft.want is not None:
        return
    if not is_being_read(draft.state, queue[0], draft.now):
        draft.want = WantInput(queue[0].number)


# Moot


def _moot(draft: Draft, ref: InputRef) -> None:
    """Pending timers and queued input about the subject have lost their object."""
    draft.set(moot=_newest(draft.state.moot, ref.subject, draft.state.ops, KEPT_SUBJECTS))
    draft.set(mooted=_newest(draft.state.mooted, ref.subject, ref.number, KEPT_SUBJECTS))
    why = f"{ref.subject} is moot, says {ref.source}"
    for timer, known in draft.state.timers.items():
        if known.subject == ref.subject:
            draft.line("input.superseded", f"timer of O{known.operation}: {why}", turn="", event=ref.event)
            _stop(draft, ref, timer, why)
    for queued in draft.state.queue:
        if _loses(queued, ref.subject):
            _end(draft, queued, "input.superseded", "superseded", why)
    draft.set(queue=tuple(queued for queued in draft.state.queue if not _loses(queued, ref.subject)))
    _moot_arrivals(draft, ref.subject, why)


def _moot_arrivals(draft: Draft, subject: str, why: str) -> None:
    """What waits for the planner's word on what it is to the running turn. What is being asked about stays: the
    answer would be taken for the next one's."""
    turn = draft.state.turn
    if turn is None:
        return
    asked = {wanted.about for wanted in draft.state.wanted}
    lost = [ref for ref in turn.arrivals if _loses(ref, subject) and ref.number not in asked]
    for ref in lost:
        _end(draft, ref, "input.superseded", "superseded", why)
    if lost:
        draft.set_turn(arrivals=tuple(ref for ref in turn.arrivals if ref not in lost))


def ends_as_moot(draft: Draft, ref: InputRef) -> bool:
    """End an input that waited elsewhere than in the queue (for the planner's or its owner's word on it, or to join a
    turn that failed) while its subject became moot. False where it has not lost its object."""
    if ref.kind not in ("event", "timer") or ref.number >= draft.state.mooted.get(ref.subject, 0):
        return False
    _end(draft, ref, "input.superseded", "superseded", f"{ref.subject} is moot")
    return True


def _loses(queued: InputRef, subject: str) -> bool:
    return queued.subject == subject and queued.kind in ("event", "timer")


def _moot_timer(draft: Draft, ref: InputRef, input: Input) -> Ended:
    """An instant of a timer. Where its subject is moot it is superseded, and the timer is stopped.

    A timer that was set after the subject became moot is meant, and fires.
    """
    timer = timer_of(input)
    known = draft.state.timers.get(timer)
    moot = draft.state.moot.get(ref.subject) if ref.subject else None
    if moot is not None and (known is None or known.operation <= moot):
        why = f"{ref.subject} is moot"
        _stop(draft, ref, timer, why)
        return _ended(draft, ref, "input.superseded", "superseded", why)
    if known is not None and not known.repeats:
        _forget(draft, timer)
    return ""


def timer_of(input: Input) -> str:
    """The timer whose instant an input is: its event id is the timer's name, an @, and the instant."""
    return input.event.partition("@")[0]


def called(state: SessionState, timer: str) -> str:
    """A timer for people: by the operation that set it, since its own name says nothing."""
    known = state.timers.get(timer)
    return f"O{known.operation}" if known else timer


def _stop(draft: Draft, ref: InputRef, timer: str, why: str) -> None:
    _send(draft, ref, StopTimer(timer=timer, reason=why), "stop", timer)
    _forget(draft, timer)


def _forget(draft: Draft, timer: str) -> None:
    draft.set(timers={name: kept for name, kept in draft.state.timers.items() if name != timer})


def on_known(draft: Draft, operation: str, rules: Rules) -> None:
    """The result of an operation is known. Where its subject was reported as gone before, it is marked so at once:
    before the turn that waits for the result uses it again or undoes it."""
    known = draft.state.operations[operation]
    source = draft.state.gone_early.get(known.subject)
    if not source:
        return
    draft.set(gone_early={name: by for name, by in draft.state.gone_early.items() if name != known.subject})
    _reported(draft, known, source)
    _look(draft, None, draft.state.operations[operation], rules)


def on_result(draft: Draft, before: SessionState, finished: StepFinished) -> None:
    """What follows from a result that was news: a timer set or cancelled."""
    known = draft.state.operations.get(finished.operation)
    was = before.operations.get(finished.operation)
    if known is None or known.state != "committed" or was is None or was.state == "committed":
        return
    named = finished.result.get("timer") if isinstance(finished.result, dict) else None
    if not isinstance(named, str) or not named:
        return
    if known.tool == "set_timer":
        _timer_set(draft, known, named, finished.result)
    elif known.tool == "cancel_timer":
        _forget(draft, named)


def _timer_set(draft: Draft, known: OperationRef, timer: str, result: dict[str, JSON]) -> None:
    subject = str(result.get("subject") or "")
    number = int(known.id[1:])
    told = (known.args.get("text"), result.get("at") or result.get("due"), result.get("rule"), subject)
    draft.line("timer.set", ", ".join(str(part) for part in told if part), turn=known.turn, operation=known.id)
    made = TimerRef(operation=number, subject=subject, repeats=bool(result.get("rule")))
    kept = dict(list(draft.state.timers.items())[-(KEPT_TIMERS - 1) :])
    draft.set(timers={**kept, timer: made})
    moot = draft.state.moot.get(subject) if subject else None
    if moot is not None and number <= moot:
        # Set before the subject became moot, and told after it.
        _send(draft, None, StopTimer(timer=timer, reason=f"{subject} is moot"), "stop", timer)
        _forget(draft, timer)


def on_skipped(draft: Draft, message: TimerSkipped) -> None:
    """Instants that did not fire, by the timer's misfire rule. Told once, however often we hear it."""
    name = f"{message.timer}:{message.instant}"
    if name in draft.state.skipped:
        return
    draft.set(skipped=(*draft.state.skipped, name)[-KEPT_EARLY:])
    many = f" ({message.count} instants)" if message.count > 1 else ""
    draft.line("timer.skipped", f"{called(draft.state, message.timer)}{many}: {message.reason}", turn="")
    if (known := draft.state.timers.get(message.timer)) and not known.repeats:
        _forget(draft, message.timer)


# Notices


def _told(draft: Draft, ref: InputRef, input: Input, meaning: EventType, rules: Rules) -> bool:
    """Tell the user at once, also while a turn runs. False where the data does not fit: then it is an event as any."""
    text = rules.notice_of(meaning, input)
    if text is None:
        draft.line("notice", "not told: its data does not fit the notice", turn="", event=ref.event)
        return False
    _ended(draft, ref, "notice", "noticed", text)
    told = {"source": ref.source, "type": ref.type, "event": ref.event}
    _send(draft, ref, Notice(topic="notice", text=text, data=told), "notice", ref.id)
    return True


# Questions


def _supersede(draft: Draft, ref: InputRef) -> None:
    """Open questions about the subject are asked of a world that is no more: consent closes them."""
    about = [action for action in draft.state.actions.values() if _is_open_about(draft.state, action, ref.subject)]
    if not about:
        return
    marked = {action.id: action.model_copy(update={"superseded_by": ref.event}) for action in about}
    draft.set(actions={**draft.state.actions, **marked})
    reason = f"a newer event about {ref.subject} from {ref.source}"
    _send(draft, ref, SupersedeActions(actions=tuple(marked), reason=reason), "supersede", ref.id, *marked)


def turn_begins(draft: Draft, ref: InputRef, rules: Rules) -> None:
    """Supersede, too, what was asked for an older event while this one waited for its turn."""
    if ref.kind == "event" and ref.subject and rules.meaning(ref.source, ref.type).supersedes_questions:
        _supersede(draft, ref)


def _is_open_about(state: SessionState, action: Action, subject: str) -> bool:
    return action.asker.input.subject == subject and not action.superseded_by and not accepted(state, action.id)


def accepted(state: SessionState, action: str) -> bool:
    """Whether an action's acceptance waits here for its turn: what is decided stays decided."""
    return any(ref.kind == "decision" and ref.event == f"{action}:accept" for ref in state.queue)


def superseded_for(state: SessionState, asking: InputRef) -> tuple[str, ...]:
    """The questions that a new one of this input takes the place of: consent opens it only if none was accepted."""
    return tuple(
        action.id
        for action in state.actions.values()
        if action.superseded_by and asking.subject and action.asker.input.subject == asking.subject
        if not accepted(state, action.id)
    )


# Ends


def _ended(draft: Draft, ref: InputRef, kind: TimelineKind, outcome: Ended, text: str) -> Ended:
    """An input that has just come ends here."""
    if outcome:
        draft.dispositions.append(outcome)
        _end(draft, ref, kind, outcome, text)
    return outcome


def _end(draft: Draft, ref: InputRef, kind: TimelineKind, outcome: EventOutcome, text: str) -> None:
    draft.line(kind, text, turn="", origin=ref.origin.kind, event=ref.event)
    draft.outcomes.append((ref, outcome))
    draft.trimmed.append(ref.number)


def _newest(known: Mapping[str, T], name: str, value: T, most: int) -> dict[str, T]:
    """What is known, with this as its newest, and without the oldest above so many."""
    others = [(key, kept) for key, kept in known.items() if key != name]
    return {**dict(others[-(most - 1) :]), name: value}


def _send(draft: Draft, of: InputRef | None, message: Message, *id_parts: object) -> None:
    """What an event causes carries the event's own correlation and depth, whatever turn runs."""
    draft.sends.append(Send(message, id_parts, of))

"""From an effect back to the bytes that began it: each link in words that a person can read aloud. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from libs.contracts.evidence import Break
from turnkeeper.evidence.records import Record, Told, find, proposal, sent_by


@dataclass(frozen=True)
class Link:
    """One link: what it is, the sentence, and the entry that it rests on (0 where none is at hand)."""

    what: str
    text: str
    entry: int = 0
    fault: str = ""
    """Why it does not hold, "" where it does."""


def find_operation(told: Sequence[Told], operation: str) -> list[Told]:
    """The entries about an operation, by its name (`O3`) or its key."""
    keys = {one.get("key") for one in told if operation in (one.get("operation"), one.get("key")) and one.get("key")}
    return [one for one in told if one.get("key") in keys]


def why(
    told: Sequence[Told], records: Mapping[str, Record], seals: Mapping[str, bool], operation: str,
    breaks: Sequence[Break], outcomes: Mapping[str, str],
) -> list[Link]:  # fmt: skip
    """The chain of an operation. `breaks` are what `verify` found, `outcomes` what ingress says of events by id."""
    about = find_operation(told, operation)
    if not about:
        return []
    key = str(about[0].get("key"))
    links = [_effect(about, records.get(f"operation:{key}", {})), *_attempts(about), *_reconciled(about)]
    attempt = next((one for one in about if one.kind == "attempt"), None)
    if attempt is not None:
        links += _authority(told, records, attempt, seals, outcomes)
    return [_judged(link, breaks, key, attempt) for link in links]


def _effect(about: Sequence[Told], record: Record) -> Link:
    last = next(
        (
            one
            for one in reversed(about)
            if one.kind in ("outcome", "looked_up", "resolved", "withdrawn", "held_back", "released")
        ),
        None,
    )
    first = about[0]
    name = next((one.get("operation") for one in about if one.get("operation")), "")
    tool = first.get("tool") or record.get("tool", "")
    if last is None:
        state = "was turned away at the door" if first.kind == "turned_away" else "has no outcome yet"
        return Link("effect", f"{name} {tool} {state}: {first.get('reason') or ''}".rstrip(": "), first.number)
    if last.kind == "released":
        return Link("effect", f"{name} {tool} was not sent: {last.get('reason')}, and its call waits", last.number)
    result = _shown(record.get("result", "")) if record.get("result", "null") != "null" else ""
    reason = f" ({last.get('reason')})" if last.get("reason") else ""
    answer = f", answered {result}" if result else ""
    return Link("effect", f"{name} {tool} {last.get('outcome')} at {_at(last)}{reason}{answer}", last.number)


def _attempts(about: Sequence[Told]) -> list[Link]:
    links = []
    for one in about:
        if one.kind == "attempt":
            number = one.entry.note.partition("/")[0]
            text = f"attempt {number} at {_at(one)} by {_replica(one)}, under the key {one.get('key')}"
            links.append(Link("attempt", f"{text}, arguments' digest {one.get('args')}", one.number))
        elif one.kind == "takeover":
            text = f"taken over at {_at(one)} by {_replica(one)}: its holder was gone"
            links.append(Link("attempt", text, one.number))
        elif one.kind == "held_back":
            text = f"held back at {_at(one)}, before anything was sent: {one.get('outcome')} {one.get('reason')}"
            links.append(Link("attempt", text.rstrip(), one.number))
        elif one.kind in ("released", "handed_back"):
            text = f"stopped at {_at(one)} by {_replica(one)} before it was sent"
            links.append(Link("attempt", text, one.number))
        elif one.kind == "turned_away":
            text = f"turned away at {_at(one)}: {one.get('outcome')} {one.get('reason')}".rstrip()
            links.append(Link("attempt", text, one.number))
    return links


def _reconciled(about: Sequence[Told]) -> list[Link]:
    later = [one for one in about if one.kind in ("looked_up", "resolved")]
    if not later:
        return [Link("reconciliation", "none was needed: its outcome was told by the destination's own answer")]
    who = {"looked_up": "its destination was asked", "resolved": "an operator said so"}
    return [
        Link("reconciliation", f"{who[one.kind]} at {_at(one)}: {one.get('outcome')} ({one.get('reason')})", one.number)
        for one in later
    ]


def _authority(
    told: Sequence[Told], records: Mapping[str, Record], attempt: Told, seals: Mapping[str, bool],
    outcomes: Mapping[str, str],
) -> list[Link]:  # fmt: skip
    action = attempt.get("consent")
    inputs = list(attempt.get("inputs") or ())
    links = []
    if action:
        consent, asked_for = _consent(told, records.get(f"action:{action}", {}), str(action), int(attempt.get("step")))
        links += consent
        inputs = [*asked_for, *(name for name in inputs if name not in asked_for)]
    else:
        by = f", under the standing approval {attempt.get('standing')}" if attempt.get("standing") else ""
        links.append(Link("approver", f"nobody was asked: it was run in the name of {attempt.get('behalf')}{by}"))
    sent = sent_by(told, attempt)
    text = f"turn {attempt.get('turn')} sent it, in the name of {attempt.get('behalf')}"
    links.append(Link("turn", text, sent.number if sent else 0, "" if sent else "no turn sent it"))
    for name in inputs:
        links += _event(told, str(name), seals, outcomes)
    return links


def _consent(told: Sequence[Told], record: Record, action: str, step: int) -> tuple[list[Link], list[str]]:
    links = []
    decided = find(told, "decision", action=action)
    asked = find(told, "question", action=action)
    proposed = proposal(told, action)
    if decided is None:
        links.append(Link("approver", f"nobody decided {action}", fault="there is no decision"))
    else:
        how = f"typed as message {decided.get('typed')}" if decided.get("typed") else "by a click"
        text = f"{decided.get('who')} {decided.get('outcome')} {action}, {how}, at {_at(decided)}, for the question"
        links.append(Link("approver", f"{text} with digest {decided.get('question')}", decided.number))
    if asked is None:
        links.append(Link("question", f"{action} was never asked", fault="there is no question"))
    else:
        shown = f": {_shown(record['question'])}" if "question" in record else ""
        text = f"{action}, its step {step + 1}, asked of {asked.get('approver')} at {_at(asked)}{shown}"
        links.append(Link("question", text, asked.number))
    if proposed is None:
        links.append(Link("proposal", f"no turn proposed {action}", fault="there is no proposal"))
        return links, []
    by, what = proposed
    text = f"turn {what.get('turn')} proposed the steps with digest {what.get('steps')} at {_at(by)}"
    links.append(Link("proposal", text, by.number))
    return links, [str(name) for name in what.get("inputs") or ()]


def _event(told: Sequence[Told], name: str, seals: Mapping[str, bool], outcomes: Mapping[str, str]) -> list[Link]:
    one = find(told, "input", input=name)
    if one is None:
        return [Link("event", f"input {name} is not in the evidence at hand", fault="its entry is missing")]
    kind = f" of type {one.get('type')}" if one.get("type") else ""
    text = f"{one.get('what')} {one.get('event')}{kind} from {one.get('who')}, input {one.get('number')}, at {_at(one)}"
    valid = seals.get(name, False)
    sealed = "its seal is ours" if valid else "its seal is not ours"
    fault = "" if valid else "its seal was not made by who holds the seal keys"
    mark = one.get("dedupe")
    outcome = f", it was {outcomes[name]}" if outcomes.get(name) else ""
    known = f"kept once as {name}, with digest {mark}" if mark else f"numbered once as {name}"
    return [
        Link("event", text, one.number),
        Link("signature", f"verified by {one.get('verified')}; {sealed}", one.number, fault),
        Link("dedupe", f"{known}{outcome}", one.number),
        Link("bytes", f"SHA-256 {one.get('bytes')}", one.number),
    ]


def _judged(link: Link, breaks: Sequence[Break], key: str, attempt: Told | None) -> Link:
    """With the first break that is about this link, where it has no fault of its own."""
    if link.fault:
        return link
    action = attempt.get("consent") if attempt is not None else ""
    names = [f"entry {link.entry}"] if link.entry else []
    names += [f"operation:{key}"] if link.what == "effect" else []
    names += [f"action:{action}"] if action and link.what in ("approver", "question") else []
    for found in breaks:
        if any(found.where == name or found.where.startswith(f"{name} ") for name in names):
            return Link(link.what, link.text, link.entry, str(found))
    return link


def _replica(one: Told) -> str:
    """The replica of an owner token, which also names its process and its call."""
    return str(one.get("who")).partition("/")[0]


def _at(one: Told) -> str:
    return datetime.fromtimestamp(one.entry.at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _shown(text: str) -> str:
    raw = text.encode("latin-1").decode("utf-8", "replace")
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw
    return raw if isinstance(value, str) else orjson.dumps(value).decode()

"""How many turns an origin may begin: a loop of one's own effects, or a sender gone wild, ends here (design §4)."""

from libs.contracts.origin import Origin
from services.session.domain.draft import Draft, WantInput
from services.session.domain.rules import Rules
from services.session.domain.state import InputRef, SessionState

BUCKET_MS = 300_000
BUCKETS = 13
"""Of five minutes: the running one and the twelve before it cover every hour that ends now."""
KEPT_ORIGINS = 100


def begins(draft: Draft, input: InputRef, rules: Rules) -> bool:
    """Count a turn that this input is about to begin. False where its origin has begun as many as it may: the input
    then ends as `failed`, visibly, and the next of the queue may begin. A grant does not come by here (design §3.3).
    """
    cap = rules.application.session.caps.turns_per_origin_per_hour
    if not is_over(draft, input, rules):
        _count(draft, input.origin)
        return True
    draft.line("input.dropped", over(cap), turn="", origin=input.origin.kind, event=input.event)
    draft.outcomes.append((input, "failed"))
    draft.trimmed.append(input.number)
    draft.limits.append("turns_per_origin_per_hour")
    if input.origin.kind == "user":
        draft.say(f"I have begun {cap} turns for you within an hour, which is the limit. Please try again later.")
    if draft.state.turn is None and draft.state.queue:
        draft.want = WantInput(draft.state.queue[0].number)
    return False


def is_over(draft: Draft, input: InputRef, rules: Rules) -> bool:
    """Whether the input's origin has begun as many turns as it may."""
    return begun(draft.state, input.origin, draft.now) >= rules.application.session.caps.turns_per_origin_per_hour


def over(cap: int) -> str:
    """Why no turn begins."""
    return f"its origin has begun {cap} turns within an hour"


def begun(state: SessionState, origin: Origin, now: int) -> int:
    """Turns that an origin began within the hour before `now` (ms), counted in steps of five minutes."""
    return sum(_live(state.begun.get(_name(origin), {}), now).values())


def _count(draft: Draft, origin: Origin) -> None:
    live = {name: kept for name, counts in draft.state.begun.items() if (kept := _live(counts, draft.now))}
    name, bucket = _name(origin), draft.now // BUCKET_MS
    own = live.pop(name, {})
    live[name] = {**own, bucket: own.get(bucket, 0) + 1}
    draft.set(begun=dict(list(live.items())[-KEPT_ORIGINS:]))


def _live(counts: dict[int, int], now: int) -> dict[int, int]:
    return {bucket: count for bucket, count in counts.items() if bucket > now // BUCKET_MS - BUCKETS}


def _name(origin: Origin) -> str:
    return f"{origin.kind} {origin.source} {origin.principal}"

"""Which instants of a timer fire, which are passed over, and why. Pure.

An instant is *missed* when it is later than the grace: nothing ran when it was due. What then happens is the timer's
own rule (design §4.4): `run-late` fires each, late, at most `MOST_LATE`; `coalesce` fires the newest for all; `skip`
fires none. One that is later than the timer's `lateness` never fires.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import orjson

from libs.contracts.canonical import JSON
from libs.contracts.ids import derive_id, is_text_id
from libs.contracts.ingress import SetTimer
from libs.contracts.reasons import TimerSkip
from libs.contracts.recurrence import check_rule, instants, next_instant
from services.ingress.domain import MARK_LENGTH, Event

SOURCE = "timer"
"""The source of what timers fire; no application may give a sender this name."""
TYPE = "timer.fired"
MOST_LATE = 10
"""So many missed instants of one timer fire late; a turn for each minute of a night would help nobody."""
MOST_WALKED = 1_500
"""So many instants are looked at in one go, a day of minutes; more are passed over in steps of so many."""
MOST_DATA = 16 * 1024
"""Bytes of a timer's data as JSON."""
OUTCOME_KEPT_MS = 96 * 3_600_000


@dataclass(frozen=True, slots=True)
class Timer:
    """A pending timer. Times in milliseconds (Unix); `depth` is the causation depth of what it fires."""

    timer: str
    session: str
    operation: str
    setter: str
    due: int
    rule: str
    zone: str
    misfire: Literal["run-late", "skip", "coalesce"]
    lateness: int
    subject: str
    data: JSON
    digest: str
    depth: int
    set_at: int
    next: int
    fired: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, message: SetTimer, session: str, *, digest: str, depth: int, now: int) -> "Timer":
        """A timer as it is set. `next` is 0 until `first_instant` was found."""
        fields = message.model_dump(exclude={"attestation"})
        return cls(**fields, session=session, digest=digest, depth=depth, set_at=now, next=0)

    def pack(self) -> bytes:
        """What stays as it is; `next` and the counts are kept beside it."""
        whole = {name: getattr(self, name) for name in self.__slots__}
        return orjson.dumps({name: value for name, value in whole.items() if name not in _BESIDE})

    @classmethod
    def unpack(cls, packed: bytes, *, next: int, fired: int, skipped: int) -> "Timer":
        """From the store. Raises ValueError or TypeError for what is none."""
        return cls(**orjson.loads(packed), next=next, fired=fired, skipped=skipped)

    def after(self, instant: int) -> Iterator[int]:
        """The instants after this one, in order."""
        return instants(self.rule, self.zone, self.due, instant) if self.rule else iter(())


_BESIDE = ("next", "fired", "skipped")


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a due timer, over `count` instants from `first` on: the last one fires for all of them (`reason` ""),
    or all are passed over. `next` is the instant after them, None when there is none."""

    first: int
    last: int
    count: int
    next: int | None
    reason: TimerSkip | Literal[""] = ""


def first_instant(timer: Timer, *, now: int, horizon_ms: int) -> int | TimerSkip:
    """When a timer is due first, or why it cannot be set. `horizon_ms` is how long its session lives for sure."""
    if len(orjson.dumps(timer.data)) > MOST_DATA:
        return "too_large"
    wrong = timer.due < 0 or timer.lateness < 0 or (timer.subject and not is_text_id(timer.subject))
    if wrong or (timer.rule and check_rule(timer.rule, timer.zone, timer.due) is not None):
        return "bad_timer"
    # A rule counts in whole seconds.
    first = next_instant(timer.rule, timer.zone, timer.due, timer.due // 1000 * 1000 - 1) if timer.rule else timer.due
    if first is None:
        return "never_due"
    return "too_far" if first > now + horizon_ms else first


def next_move(timer: Timer, *, now: int, grace_ms: int) -> Move | None:
    """The next thing to do with a timer, or None while it is not due. Doing it brings the timer to `Move.next`."""
    if timer.next > now:
        return None
    due, following = _due(timer, now)
    if late := sum(1 for instant in due if now - instant > timer.lateness):
        return _over(due, following, late, "too_late")
    if following is not None and following <= now:
        # More than can be looked at: none of these is among the newest.
        return _over(due, following, len(due), "too_many_missed")
    missed = sum(1 for instant in due if now - instant > grace_ms)
    if missed and timer.misfire == "skip":
        return _over(due, following, missed, "missed")
    if missed and timer.misfire == "coalesce":
        return _over(due, following, missed)
    if missed > MOST_LATE:
        return _over(due, following, missed - MOST_LATE, "too_many_missed")
    return _over(due, following, 1)


def _due(timer: Timer, now: int) -> tuple[list[int], int | None]:
    """The instants up to now, at most `MOST_WALKED`, and the one after them."""
    due = [timer.next]
    for following in timer.after(timer.next):
        if following > now or len(due) == MOST_WALKED:
            return due, following
        due.append(following)
    return due, None


def _over(due: list[int], following: int | None, count: int, reason: TimerSkip | Literal[""] = "") -> Move:
    return Move(due[0], due[count - 1], count, due[count] if count < len(due) else following, reason)


def fired_event(timer: Timer, move: Move, *, now: int) -> Event:
    """What a timer's instant is to its session: an event as any other, with an origin of its own.

    Each timer is its own principal: what one sets off is not merged with another's, and it has nobody's authority but
    a timer's, whoever set it. Where it fires for several instants its data says for how many, as `coalesced`.
    """
    return Event(
        id=derive_id("timer", timer.session, timer.timer, move.last),
        kind="timer",
        source=SOURCE,
        event=f"{timer.timer}@{instant_text(move.last)}",
        type=TYPE,
        subject=timer.subject,
        data=_data(timer.data, move.count),
        origin_kind="timer",
        principal=timer.timer,
        verified="door",
        digest=timer.digest,
        mark=timer.digest[:MARK_LENGTH],
        session=timer.session,
        route_subject="",
        hold_ms=0,
        window_ms=OUTCOME_KEPT_MS,
        accepted_at=now,
        depth=timer.depth,
    )


def _data(data: JSON, count: int) -> JSON:
    if count == 1:
        return data
    own = data if isinstance(data, dict) else {} if data is None else {"data": data}
    return {**own, "coalesced": count}


def instant_text(instant: int) -> str:
    """An instant (ms, Unix) as RFC 3339 in UTC; with milliseconds where it has some."""
    precision = "milliseconds" if instant % 1000 else "seconds"
    at = datetime.fromtimestamp(instant / 1000, UTC)
    return at.isoformat(timespec=precision).replace("+00:00", "Z")

"""What a decision puts together: a new state, lines, history, messages and outcomes. Local to one `decide`."""

from dataclasses import dataclass, field
from typing import Any

from libs.contracts.canonical import JSON
from libs.contracts.envelope import Message
from libs.contracts.reasons import EventOutcome, TimelineKind, TurnOutcome
from libs.contracts.session import Notice, TimelineLine
from services.session.domain.state import HISTORY_KEPT, InputRef, SessionState, Turn


@dataclass(frozen=True)
class WantPlan:
    """The planner is to be asked for the running turn; its input's body is needed.

    With `about` it is asked what the input of that number, which came while the turn runs, is to the turn.
    """

    number: int
    about: int = 0


@dataclass(frozen=True)
class WantInput:
    """The next queued input starts its turn; its body is needed."""

    number: int


Want = WantPlan | WantInput | None


@dataclass(frozen=True)
class Send:
    """A message to commit, with the parts that its stable id is derived from, and the input of the turn that sends it:
    its correlation, trace and causation depth go on, whatever message the turn was waiting for."""

    message: Message
    id_parts: tuple[object, ...]
    of: InputRef | None = None


@dataclass(frozen=True)
class TurnEnd:
    """For the metrics: which kind of origin, how it ended, how long it took (ms)."""

    origin: str
    outcome: TurnOutcome
    took: int


@dataclass(frozen=True)
class Decision:
    """What becomes of a message. Nothing of it exists until it is committed."""

    state: SessionState
    lines: tuple[TimelineLine, ...] = ()
    history: tuple[dict[str, JSON], ...] = ()
    sends: tuple[Send, ...] = ()
    outcomes: tuple[tuple[InputRef, EventOutcome], ...] = ()
    trimmed: tuple[int, ...] = ()
    ends: tuple[TurnEnd, ...] = ()
    dispositions: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """Limits that were reached, for the operator."""
    ignored: tuple[str, ...] = ()
    """Plans that nobody waits for, each as `wrong_token` or `late`: counted, whether or not the timeline has them."""
    want: Want = None
    given: tuple[object, ...] = ()
    """The stimuli that were judged, in order. With the state before, `at` and `cause` they give this decision again."""
    at: int = 0
    """When, milliseconds (Unix)."""
    cause: str = ""

    def then(self, later: "Decision") -> "Decision":
        """Both as one, to be committed together."""
        return Decision(
            state=later.state,
            lines=self.lines + later.lines,
            history=self.history + later.history,
            sends=self.sends + later.sends,
            outcomes=self.outcomes + later.outcomes,
            trimmed=self.trimmed + later.trimmed,
            ends=self.ends + later.ends,
            dispositions=self.dispositions + later.dispositions,
            limits=self.limits + later.limits,
            ignored=self.ignored + later.ignored,
            want=later.want,
            given=self.given + later.given,
            at=self.at,
            cause=self.cause,
        )


@dataclass
class Draft:
    """Grows while one message is judged, and ends as a Decision."""

    state: SessionState
    now: int
    cause: str
    lines: list[TimelineLine] = field(default_factory=list)
    history: list[dict[str, JSON]] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    outcomes: list[tuple[InputRef, EventOutcome]] = field(default_factory=list)
    trimmed: list[int] = field(default_factory=list)
    ends: list[TurnEnd] = field(default_factory=list)
    dispositions: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    want: Want = None
    given: tuple[object, ...] = ()

    @property
    def turn(self) -> Turn:
        """The running turn, where there must be one."""
        if self.state.turn is None:
            raise AssertionError("no turn is running")
        return self.state.turn

    @property
    def seq(self) -> int:
        """The number of the last line."""
        return self.state.seq + len(self.lines)

    def set(self, **changes: Any) -> None:
        """Change fields of the state."""
        self.state = self.state.model_copy(update=changes)

    def set_turn(self, **changes: Any) -> None:
        """Change fields of the running turn."""
        if self.state.turn is not None:
            self.set(turn=self.state.turn.model_copy(update=changes))

    def line(self, kind: TimelineKind, text: str = "", **fields: str) -> None:
        """Add a line to the timeline; the running turn is named unless `turn` is given."""
        turn = fields.pop("turn", self.state.turn.id if self.state.turn else "")
        self.lines.append(
            TimelineLine(seq=self.seq + 1, at=self.now, kind=kind, text=text, turn=turn, cause=self.cause, **fields)
        )

    def remember(self, **entry: JSON) -> None:
        """Add to what the planner is shown of the past, and count how long what the user did not write is in it."""
        self.history.append(entry)
        before = self.state.others
        if before < 0:  # the first entry of a new session, or of one that was not counted before
            before = HISTORY_KEPT if self.state.seq else 0
        own = entry.get("kind") in ("user", "reply")
        self.set(others=max(0, before - 1) if own else HISTORY_KEPT)

    def viewed(self) -> None:
        """The running turn's planner is shown the history as it is now."""
        turn = self.turn
        if (self.state.others or turn.results or turn.kept) and not turn.others:
            self.set_turn(others=True)

    def send(self, message: Message, *id_parts: object) -> None:
        """Commit a message to be sent."""
        turn = self.state.turn
        self.sends.append(Send(message, id_parts, turn.input if turn else None))

    def say(self, text: str, **fields: str) -> None:
        """Answer the user: a line, a notice, and a place in the history."""
        self.line("reply", text, **fields)
        self.remember(kind="reply", text=text)
        self.send(Notice(topic="reply", text=text, data={"seq": self.seq}), "reply", self.seq)

    def ends_with(self, origin: str, outcome: TurnOutcome, took: int) -> None:
        """Note the end of a turn for the metrics. `took` in milliseconds."""
        self.ends.append(TurnEnd(origin, outcome, took))

    def decision(self) -> Decision:
        """The finished decision; only here the state learns how many lines there are."""
        return Decision(
            state=self.state.model_copy(update={"seq": self.seq}) if self.lines else self.state,
            lines=tuple(self.lines),
            history=tuple(self.history),
            sends=tuple(self.sends),
            outcomes=tuple(self.outcomes),
            trimmed=tuple(self.trimmed),
            ends=tuple(self.ends),
            dispositions=tuple(self.dispositions),
            limits=tuple(self.limits),
            ignored=tuple(self.ignored),
            want=self.want,
            given=self.given,
            at=self.now,
            cause=self.cause,
        )

"""A session's durable state. Frozen: every decision makes a new one, and a commit names the version it read."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from libs.contracts.canonical import JSON
from libs.contracts.ingress import Input, InputKind
from libs.contracts.origin import Origin, Seal
from libs.contracts.reasons import OperationState
from libs.contracts.session import Step

KEPT_OPERATIONS = 100
NEWEST_OPERATIONS = 10
"""Finished operations without a subject that are still shown: nothing that comes can be about them."""
KEPT_SUBJECTS = 100
HISTORY_KEPT = 60
"""Entries of a session's history: what planners are shown of the past."""


class Part(BaseModel):
    """Any part of the state."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InputRef(Part):
    """An input without its body, which stays in the inbox until its turn ends."""

    id: str
    number: int
    kind: InputKind
    source: str
    event: str
    type: str
    origin: Origin
    seal: Seal
    accepted_at: int
    depth: int
    trace: str = ""
    subject: str = ""

    @classmethod
    def of(cls, input: Input) -> "InputRef":
        """The reference to an input."""
        return cls(
            id=input.id,
            number=input.number,
            kind=input.kind,
            source=input.source,
            event=input.event,
            type=input.type,
            origin=input.origin,
            seal=input.seal,
            accepted_at=input.accepted_at,
            depth=input.depth,
            trace=input.trace,
            subject=input.subject,
        )


class Asker(Part):
    """The turn that asked for an action: whose wish a continuation carries on."""

    turn: str
    root: str
    input: InputRef
    used: tuple[str, ...]
    """Operation keys that its lineage has used."""
    joined: tuple["Joined", ...] = ()


class OperationRef(Part):
    """An operation as the ledger last told it. States only advance."""

    id: str
    key: str
    tool: str
    args: dict[str, JSON]
    state: Literal["sent"] | OperationState
    turn: str
    subject: str = ""
    gone: bool = False
    depth: int = 0
    """Causation depth of the turn that sent it; 0 where a person approved it: what comes of a yes begins anew."""
    doubted: bool = False
    """Its turn was told that its outcome is unknown, so the truth is owed (design §3.2)."""
    spent: bool = False
    """It failed, and to try anew takes another key: the door does not know that nothing can come of it any more."""
    waits: bool = False
    """The door has said that it keeps the call for now."""
    due: int = 0
    """When the door's answer is overdue, in ms (Unix)."""


class Result(Part):
    """What became of one step, for the planner."""

    tool: str
    args: dict[str, JSON]
    operation: str
    state: OperationState
    result: JSON = None
    reason: str = ""


class Action(Part):
    """A pending action, or one that was accepted and waits for its turn."""

    id: str
    steps: tuple[Step, ...]
    asker: Asker
    question: str = ""
    asked: bool = False
    superseded_by: str = ""
    """The newer event about its subject: consent was told to close it, and answers what became of it."""


class Joined(Part):
    """An input that became part of a turn which ran already: of the turn's own origin, or it would not be here."""

    input: InputRef
    relation: Literal["adds", "independent", "revises", "unclear"]
    told: bool = False
    """Its outcome is told already: a continuation works for inputs that ended with the turn that asked."""


class Joining(Part):
    """What the next boundary between steps merges into the turn."""

    input: InputRef
    steps: tuple[Step, ...] = ()
    reply: str = ""
    why: str = ""
    entry: dict[str, JSON] = {}
    """What the history gets when it joins; if the turn fails before, it begins a turn of its own."""


class Pause(Part):
    """An unclear input: the turn asks its owner at the next boundary, and waits."""

    input: InputRef
    question: str
    answer: InputRef | None = None


class Kept(Part):
    """An operation of the lineage's earlier turns, which a restarted turn uses again instead of sending it anew."""

    operation: str
    key: str
    """Empty once a later attempt has it."""
    tool: str
    args: dict[str, JSON]
    state: Literal["sent"] | OperationState
    result: JSON = None
    reason: str = ""
    taken: bool = False
    """A step of the running turn has it: each is used once."""
    undone: bool = False
    """Compensated, and so never used again."""
    spent: bool = False
    """It failed, and to try anew takes another key."""


class PlanWanted(Part):
    """A plan that a planner off the partition owes. `deadline` in milliseconds (Unix)."""

    turn: str
    plan: int
    token: str
    deadline: int
    about: int = 0
    """Number of the input whose relation to the turn is asked; 0 asks for the turn's own plan."""


class Turn(Part):
    """One piece of work. Its origin cannot change: it is that of the input that started it."""

    id: str
    root: str
    input: InputRef
    action: str = ""
    """The accepted action whose steps it runs."""
    asker: Asker | None = None
    """For an accepted action: the turn that asked."""
    plans: int = 0
    steps: tuple[Step, ...] = ()
    position: int = 0
    used: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()
    operation: str = ""
    """The operation that it waits for."""
    status: Literal["planning", "waiting", "cancelling", "paused", "resuming", "revising"] = "planning"
    failing: str = ""
    """Why the plan stopped, while the planner is told."""
    started_at: int = 0
    deadline: int = 0
    continues: bool = False
    """It carries on for a turn that asked, with which its input's outcome was told."""
    joined: tuple[Joined, ...] = ()
    joining: tuple[Joining, ...] = ()
    arrivals: tuple[InputRef, ...] = ()
    """Came while it runs, of its own origin; the planner is asked about the first what it is to this turn."""
    pausing: Pause | None = None
    kept: tuple[Kept, ...] = ()
    undo: tuple[str, ...] = ()
    """The kept operations that its first steps compensate, one each."""
    settling: tuple[str, ...] = ()
    """Operations whose outcome is found out before a cancelled or revised turn goes on."""
    revising: Joined | None = None
    others: bool = False
    """What the user did not write was in a planner's view of this turn."""
    observed: int = 0
    """In observe mode: the steps before this one were told as a question that would have been asked."""

    @property
    def origin(self) -> Origin:
        """Who started it."""
        return self.input.origin

    @property
    def seals(self) -> tuple[Seal, ...]:
        """Those of all inputs that it was made of: what its calls have their authority from."""
        return (self.input.seal, *(joined.input.seal for joined in self.joined))

    @property
    def undoing(self) -> str:
        """The kept operation that the step at hand compensates, or ""."""
        return self.undo[self.position] if self.position < len(self.undo) else ""


class TimerRef(Part):
    """A pending timer, as the operation that set it told."""

    operation: int
    """The number of that operation: a subject's timers that were set after it became moot are meant."""
    subject: str = ""
    repeats: bool = False


class SessionState(Part):
    """Everything that decides what happens next in one session."""

    session: str
    applied: int = 0
    """The number of the last input that was folded in."""
    turn: Turn | None = None
    queue: tuple[InputRef, ...] = ()
    actions: dict[str, Action] = {}
    operations: dict[str, OperationRef] = {}
    subjects: dict[str, str] = {}
    turns: int = 0
    acts: int = 0
    ops: int = 0
    seq: int = 0
    plans: int = 0
    """Plans requested off the partition."""
    wanted: tuple[PlanWanted, ...] = ()
    """At most two: the running turn's own, and one about an input that came meanwhile."""
    ignored: tuple[int, ...] = ()
    """Numbers of the newest turns for which the timeline has a plan that nobody waited for: once each, or whoever may
    send plans could push the rest of the evidence out of it."""

    others: int = -1
    """So many more entries the history takes until nothing is in it that the user did not write; 0: nothing is. -1 is
    not known: a state of before this was counted, or one in which nothing was remembered yet."""
    watermarks: dict[str, tuple[str, int]] = {}
    """Of a source's stream about a subject: the newest sequence that was applied, and when it was accepted (ms)."""
    moot: dict[str, int] = {}
    """Subjects that are moot, with the number of the newest operation then."""
    mooted: dict[str, int] = {}
    """The same subjects, with the number of the input that said so: what came before it has lost its object."""
    timers: dict[str, TimerRef] = {}
    looking: dict[str, int] = {}
    """Operations whose destination is asked for their state, with the time until which their inputs wait for it (ms);
    0 where that is over and no word came."""
    looked: dict[str, int] = {}
    """Operations by when their destination said last what it says now, or was waited for in vain (ms)."""
    gone_early: dict[str, str] = {}
    """Subjects that a source said are gone before we knew the operation that registered them, with that source."""
    skipped: tuple[str, ...] = ()
    """Timers' skipped instants that were told, newest last."""
    begun: dict[str, dict[int, int]] = {}
    """Turns begun by an origin, by the number of the five minutes (Unix) in which they began."""

    @property
    def waiting(self) -> int:
        """How many inputs wait for a turn, or for the planner to say what they are."""
        return len(self.queue) + (len(self.turn.arrivals) if self.turn else 0)

    @property
    def next_deadline(self) -> int:
        """When the session must be looked at whatever comes (G9), in milliseconds (Unix); 0 where nothing is due."""
        due = [wanted.deadline for wanted in self.wanted]
        if self.turn is not None and self.turn.deadline:
            due.append(self.turn.deadline)
        if self.reading_until:
            due.append(self.reading_until)
        due += [known.due for known in self.left_in_flight]
        return min(due, default=0)

    @property
    def left_in_flight(self) -> tuple[OperationRef, ...]:
        """Operations without an answer whose turn has ended: what became of them is owed."""
        return tuple(known for known in self.operations.values() if known.doubted and known.state == "sent")

    @property
    def reading_until(self) -> int:
        """When the first that waits, for a turn or for the word what it is to the running one, stops waiting for a
        look-up of its subject, in ms; 0 where none waits."""
        waiting = self.queue if self.turn is None else self.turn.arrivals
        if not waiting or waiting[0].kind != "event":
            return 0
        return self.looking.get(self.subjects.get(waiting[0].subject, ""), 0)

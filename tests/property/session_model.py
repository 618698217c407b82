"""A naive model of one session: what was told to it and what it committed, one commit after the other.

It knows nothing of how decisions are made. From the inputs' own words it keeps what each promise is about (marks, what
is moot, gone, asked, due) in plain sets and counts, and compares.
"""

from collections import Counter
from typing import Any

from libs.contracts.consent import ActionClosed, ActionNotAsked, DecideByText, IssueAction, SupersedeActions
from libs.contracts.ingress import StopTimer, TimerSkipped
from libs.contracts.session import Notice, PlanRequested
from libs.contracts.tools import LookedUp, LookUpOperation, RunStep, StepFinished
from services.session.domain import Answered, Arrived, Buried

SAYS = {
    "table.moved": {"subject": "{{ data.about }}"},
    "table.gone": {"subject": "{{ data.about }}", "gone": True},
    "table.off": {"subject": "{{ data.about }}", "moot": True},
    "table.offer": {"subject": "{{ data.about }}", "supersedes_questions": True},
    "table.news": {"subject": "{{ data.about }}", "notice": "{{ data.news }}"},
    "news": {"notice": "{{ data.news }}"},
}
"""The types of events of these tests, as the application file says them. All about a subject have a sequence."""
OPEN = ("sent", "unknown")


class Model:
    """Feed it each commit; it raises AssertionError at the first promise that is broken."""

    def __init__(self) -> None:
        self.rows: Counter[tuple[str, str]] = Counter()
        self.folded: dict[str, Any] = {}
        self.numbers: dict[int, Any] = {}
        self.marks: dict[tuple[str, str, str], int] = {}
        self.moot: dict[str, list[tuple[int, int]]] = {}
        self.gone: set[str] = set()
        self.ever_gone: set[str] = set()
        self.looking: set[str] = set()
        self.runs: list[RunStep] = []
        self.states: dict[str, str] = {}
        self.open: dict[str, str] = {}
        self.issued: dict[str, IssueAction] = {}
        self.requests: dict[tuple[str, int], str] = {}
        self.ignored: Counter[str] = Counter()
        self.timers: dict[str, tuple[str, bool]] = {}
        self.skips: set[tuple[str, int]] = set()
        self.skips_shown = 0
        self.turns: dict[str, str] = {}
        self.starts: Counter[str] = Counter()
        self.may_start: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self.running = ""

    def commit(self, before: Any, decision: Any) -> None:
        """One commit: the first stimulus came from outside, whatever follows it the session gave itself."""
        self.decision = decision
        self.sends = [send.message for send in decision.sends]
        self.became = {ref.number: outcome for ref, outcome in decision.outcomes}
        stimulus = decision.given[0]
        match stimulus:
            case Arrived(input):
                self._arrived(input, before.turn)
            case Buried(input):
                self._folded(input)
            case Answered(made):
                self._plan_made(made)
            case StepFinished():
                self._finished(stimulus)
            case LookedUp():
                self._looked_up(stimulus)
            case TimerSkipped():
                self._skipped(stimulus)
            case ActionNotAsked():
                self.open.pop(stimulus.action, None)
            case ActionClosed() if stimulus.state != "lapsed":
                self.open.pop(stimulus.action, None)
        for line in decision.lines:
            self._line(line, stimulus)
        for message in self.sends:
            self._sent(message)
        self._each_message_ends_visibly(stimulus, before.turn)
        self._marks_never_go_back(before, decision.state)
        self._what_waits_has_a_deadline(decision.state)

    # -- what came

    def _arrived(self, input: Any, turn: Any) -> None:
        self._folded(input)
        if turn is not None:
            self.rows[self.row_of(input, turn), turn.status] += 1
        match input.kind:
            case "event":
                self._event(input)
            case "timer":
                self._instant(input)
            case "cancel" if turn is not None:
                assert self.became[input.number] == "acted", "a cancel is a control"
                self.cancelled.add(turn.id)
            case "decision":
                self.open.pop(input.data["action"], None)
            case "message" if turn is not None and self.answers(input, turn):
                assert self.became[input.number] == "acted", "an answer to the turn's question is a control"
                assert self.decision.state.turn is None or self.decision.state.turn.status != "paused"

    def _folded(self, input: Any) -> None:
        assert input.number == len(self.numbers) + 1, "a number twice, or left out (G2)"
        self.folded[input.event], self.numbers[input.number] = input, input

    @staticmethod
    def answers(input: Any, turn: Any) -> bool:
        """The owner's message is the answer to what the turn asked; the exact grammar is for consent"""
        mine = input.kind == "message" and input.origin.kind == "user"
        return mine and turn.status == "paused" and not input.data["text"].startswith(("yes A", "no A"))

    def row_of(self, input: Any, turn: Any) -> str:
        """The row of the in-flight table that an input is of, by what its sender meant."""
        if input.kind in ("decision", "cancel"):
            return str(input.kind)
        if self._is_notice(input) and not self._is_late(input):
            return "notice"
        mine = input.kind == "message" and input.origin.kind == "user"
        if mine and input.data["text"].startswith(("yes A", "no A")):
            return "decision"
        if mine and (turn.status == "paused" or input.data.get("answer")):
            return "answer"
        if not input.origin.same_as(turn.origin):
            return "another origin"
        return str(input.data.get("relation") or "independent")

    @staticmethod
    def _is_notice(input: Any) -> bool:
        return input.kind == "event" and "notice" in SAYS.get(input.type, {}) and "news" in input.data

    def _is_late(self, input: Any) -> bool:
        mark = self.marks.get((input.source, input.subject, input.stream))
        return input.kind == "event" and input.sequence != "" and mark is not None and int(input.sequence) <= mark

    def _event(self, input: Any) -> None:
        """What is older than what was applied is history; else it says what its type says, at once."""
        late = self._is_late(input)
        assert (self.became.get(input.number) == "stale") == late, "late is stale, and nothing else is"
        if late:
            assert not [m for m in self.sends if isinstance(m, Notice) and m.topic == "notice"], (
                "a stale notice is told"
            )
            return
        if input.sequence:
            self.marks[input.source, input.subject, input.stream] = int(input.sequence)
        says = SAYS.get(input.type, {})
        if says.get("gone") and input.subject.startswith("reservation:"):
            self.gone.add(input.subject.partition(":")[2])
            self.ever_gone |= self.gone
        if says.get("moot"):
            self._moot(input)
        if says.get("supersedes_questions"):
            self._superseded(input.subject)
        if self._is_notice(input):
            told = [m.data["event"] for m in self.sends if isinstance(m, Notice) and m.topic == "notice"]
            assert told == [input.event], "a notice is told when it arrives"
            assert self.became[input.number] == "noticed"

    def _moot(self, input: Any) -> None:
        self.moot.setdefault(input.subject, []).append((input.number, len(self.runs)))
        stopped = {message.timer for message in self.sends if isinstance(message, StopTimer)}
        due = {timer for timer, (subject, _) in self.timers.items() if subject == input.subject}
        assert due <= stopped, "a timer about what is moot goes on"

    def _superseded(self, subject: str) -> None:
        asked = {action for action, about in self.open.items() if about == subject}
        closed = {a for message in self.sends if isinstance(message, SupersedeActions) for a in message.actions}
        assert asked <= closed, "a question about what is no more stays open"

    def _instant(self, input: Any) -> None:
        timer = input.event.partition("@")[0]
        if timer in self.timers and not self.timers[timer][1]:
            del self.timers[timer]

    def _finished(self, finished: StepFinished) -> None:
        if self.states.get(finished.operation, "sent") not in OPEN or finished.state == "in_progress":
            return
        self.states[finished.operation] = finished.state
        run = next((run for run in self.runs if run.operation == finished.operation), None)
        if run is None or finished.state != "committed":
            return
        if run.tool == "set_timer":
            subject, repeats = finished.result["subject"], "rule" in finished.result
            self.timers[finished.result["timer"]] = (subject, repeats)
        elif run.tool == "cancel_timer":
            self.timers.pop(run.args["timer"], None)

    def _looked_up(self, message: LookedUp) -> None:
        if message.operation not in self.looking:
            return
        self.looking.discard(message.operation)
        if message.found == "gone":
            self.gone.add(message.operation)
            self.ever_gone |= self.gone
        elif message.found == "stands":
            self.gone.discard(message.operation)

    def _skipped(self, message: TimerSkipped) -> None:
        if (message.timer, message.instant) not in self.skips and not self.timers.get(message.timer, ("", True))[1]:
            del self.timers[message.timer]
        self.skips.add((message.timer, message.instant))

    def _plan_made(self, made: Any) -> None:
        """A plan of a wrong token, of a turn that is over, or one more for the same request, has no effect."""
        token = self.requests.get((made.turn, made.plan))
        if token == made.token and made.turn == self.running:
            del self.requests[made.turn, made.plan]
            return
        effects = [message for message in self.sends if isinstance(message, RunStep | IssueAction)]
        assert all(message.turn != made.turn for message in effects), "a plan that nobody waits for has an effect"

    # -- what was committed

    def _line(self, line: Any, stimulus: Any) -> None:
        match line.kind:
            case "turn.start":
                self._starts(line)
            case "turn.restarted":
                self.may_start[self.turns[line.turn]] += 1
            case "turn.plan" if line.text.startswith("ignored"):
                self.ignored[line.turn] += 1
                assert self.ignored[line.turn] == 1, "whoever may send plans fills the timeline"
            case "timer.skipped":
                self.skips_shown += 1
                assert self.skips_shown == len(self.skips), "an instant that did not fire is told once"
            case "tool.replayed" if getattr(stimulus, "operation", "") != line.operation:
                assert line.operation not in self.gone, "what is gone is used again"
        if line.kind in ("turn.done", "turn.failed", "turn.cancelled", "turn.ask", "turn.restarted"):
            self.running = ""

    def _starts(self, line: Any) -> None:
        self.running = line.turn
        if line.action:  # an accepted action: what the planner adds to it goes on for the input that asked
            self.turns[line.turn] = self._first_of(self.issued[line.action]).event
            self.may_start[self.turns[line.turn]] += 1
            return
        self.turns[line.turn] = line.event
        self.starts[line.event] += 1
        assert self.starts[line.event] <= 1 + self.may_start[line.event], "an input begins a turn twice (G2)"
        if self.starts[line.event] == 1:
            self._has_its_object(self.folded[line.event])

    def _has_its_object(self, input: Any) -> None:
        """Nothing about what is moot begins: neither what came before that was said, nor a timer from before it."""
        if input.kind not in ("event", "timer"):
            return
        number_of = {run.operation: place for place, run in enumerate(self.runs, 1)}
        for said, runs in self.moot.get(input.subject, []):
            assert input.number >= said, "what is moot begins a turn"
            if input.kind == "timer" and input.number > said:
                assert number_of["O" + input.event.partition("@")[0][1:]] > runs, "a moot timer begins a turn"

    def _first_of(self, issue: IssueAction) -> Any:
        return self.numbers[issue.seals[0].number]

    def _sent(self, message: Any) -> None:
        match message:
            case RunStep():
                assert message.turn not in self.cancelled, "a cancelled turn goes on"
                if message.tool == "unbook":
                    assert message.args["id"] not in self.gone, "what is gone is undone"
                spent = [run for run in self.runs if run.key == message.key]
                assert all(self.states.get(run.operation, "sent") in ("failed", *OPEN) for run in spent), (
                    "a spent key is used again (G4)"
                )
                call = (message.root, message.tool, message.args)
                same = [run for run in self.runs if (run.root, run.tool, run.args) == call]
                open_ = [run for run in same if self.states.get(run.operation, "sent") in OPEN]
                assert all(run.key == message.key for run in open_), (
                    "what may have been done is wished for as another thing (G4)"
                )
                self.runs.append(message)
            case IssueAction():
                self.issued[message.action] = message
                self.open[message.action] = self._first_of(message).subject
            case SupersedeActions():
                for action in message.actions:
                    about = self._first_of(self.issued[action]).subject
                    assert about, "a question that is about nothing is superseded"
                    self.open.pop(action, None)
            case PlanRequested():
                self.requests[message.turn, message.plan] = message.token
                for said in message.view["messages"]:
                    if said["role"] in ("user", "system", "developer"):
                        assert "psst" not in said["content"], "a stranger's words in a role (G7)"
            case LookUpOperation():
                self.looking.add(message.operation)
            case StopTimer():
                self.timers.pop(message.timer, None)

    def _each_message_ends_visibly(self, stimulus: Any, turn: Any) -> None:
        """Where an input of the owner ends they hear of it: an answer, the end of its turn, or consent's word."""
        seen = any(isinstance(message, Notice | DecideByText) for message in self.sends)
        for ref, _ in self.decision.outcomes:
            if ref.kind != "message" or ref.origin.kind != "user":
                continue
            input = self.numbers[ref.number]
            answer = isinstance(stimulus, Arrived) and turn is not None and self.answers(input, turn)
            assert seen or answer, "a message ends and nobody hears of it"

    @staticmethod
    def _marks_never_go_back(before: Any, after: Any) -> None:
        for stream, (sequence, _) in before.watermarks.items():
            assert int(after.watermarks[stream][0]) >= int(sequence), "a mark goes back"

    def _what_waits_has_a_deadline(self, after: Any) -> None:
        """G9: where no turn runs, the first of the queue waits for a destination's word, and not for ever."""
        if after.turn is not None or not after.queue:
            return
        assert after.next_deadline > 0, "accepted, and waits for nothing"
        assert after.queue[0].subject.partition(":")[2] in self.looking, "waits for a word that nobody asked for"

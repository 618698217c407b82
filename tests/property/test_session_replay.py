"""A recorded conversation, decided again, differs nowhere; a changed rule shows at the first input that it touches."""

from dataclasses import replace

import orjson
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from libs.contracts.codec import to_json
from libs.contracts.consent import ActionAsked, ActionClosed, IssueAction
from libs.contracts.tools import RunStep, StepFinished
from services.session.domain.plan import Plan
from services.session.record import Record, Recorder
from services.session.replay import NO_PLAN, Replay
from tests.support.session import (
    ANA,
    BOOK,
    CINEMA,
    LOOK,
    MAIL,
    RESTAURANT,
    WAIT_MS,
    WIRE,
    FakeClock,
    FakeSessions,
    Owner,
    Stored,
    ViewPlanner,
    make_rules,
)

STEPS = {"book": BOOK, "mail": MAIL, "look": LOOK, "wire": WIRE}
PLANS = st.lists(st.sampled_from(sorted(STEPS)), max_size=3)
STATES = st.sampled_from(["committed", "committed", "committed", "refused", "failed", "unknown", "in_progress"])
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PLANS),
        st.tuples(st.just("event"), PLANS, st.sampled_from([RESTAURANT, CINEMA])),
        st.tuples(st.just("finish"), STATES),
        st.tuples(st.just("ask")),
        st.tuples(st.just("decide"), st.sampled_from(["accept", "decline"])),
        st.tuples(st.just("close"), st.sampled_from(["expired", "superseded"])),
        st.tuples(st.just("cancel")),
        st.tuples(st.just("wait")),
        st.tuples(st.just("bury")),
        st.tuples(st.just("restart")),
    ),
    min_size=1,
    max_size=25,
)


def planned(view):
    """The plan that the input's data says, and after it nothing."""
    if view.results or view.action or not isinstance(view.data, dict):
        return Plan(reply="done")
    return Plan(steps=tuple(STEPS[name] for name in view.data.get("plan", [])), note="because")


class RecordingSessions(FakeSessions):
    """The store in memory, with the record beside it."""

    def __init__(self, stored, rules):
        super().__init__(stored)
        self.recorder, self.entries = Recorder(rules), []

    async def commit(self, snapshot, decision, messages):
        after = to_json(decision.state, exclude_defaults=True)
        encoded = self.recorder.entry(snapshot, decision, messages, after)
        await super().commit(snapshot, decision, messages)
        snapshot.recorded = encoded.whole
        self.entries.append(encoded.raw)


class Conversation:
    """A session that is recorded while it goes on."""

    def __init__(self, *labs, **rules):
        self.stored, self.clock, self.planner = Stored(), FakeClock(), ViewPlanner(planned)
        self.rules = make_rules(*labs, **rules)
        self.owner = Owner(self.stored, self.clock, self.planner, self.rules)
        self.sessions = RecordingSessions(self.stored, self.rules)
        self.owner.handlers._sessions = self.owner.sessions = self.sessions

    async def do(self, move, *how):
        self.clock.now += 10
        match move:
            case "write":
                await self.owner.ring(self.stored.append("message", ANA, {"text": "do", "plan": how[0]}))
            case "event":
                await self.owner.ring(self.stored.append("event", how[1], {"plan": how[0], "text": "psst"}))
            case "cancel":
                await self.owner.ring(self.stored.append("cancel", ANA, {}))
            case "bury":
                await self.owner.bury(self.stored.append("event", RESTAURANT, {}))
            case "finish" if runs := self.stored.messages(RunStep):
                run = runs[-1]
                result = {"id": run.operation}
                await self.owner.tell(StepFinished(operation=run.operation, key=run.key, state=how[0], result=result))
            case "ask" if issued := self.stored.messages(IssueAction):
                action = issued[-1].action
                await self.owner.tell(
                    ActionAsked(action=action, question="?", question_digest="d", approver="ana", expires_at=1)
                )
            case "close" if issued := self.stored.messages(IssueAction):
                await self.owner.tell(ActionClosed(action=issued[-1].action, state=how[0]))
            case "decide" if issued := self.stored.messages(IssueAction):
                data = {"action": issued[-1].action, "decision": how[0]}
                await self.owner.ring(self.stored.append("decision", ANA, data))
            case "wait":
                self.clock.now += WAIT_MS
                await self.owner.handlers.on_deadline("s1")
            case "restart":
                self.sessions.drop("s1")

    async def of(self, moves):
        for move in moves:
            await self.do(*move)
        return self

    @property
    def record(self):
        version, state, _ = self.stored.states.get("s1", (0, None, []))
        entries = [orjson.loads(raw) for raw in self.sessions.entries]
        return Record.model_validate(
            {"session": "s1", "version": version, "state": orjson.loads(state or "null"), "entries": entries}
        )


async def replayed(record, rules=None, planner=None):
    return await Replay(record, rules or make_rules(), planner).run()


@settings(max_examples=120, deadline=None)
@given(moves=MOVES)
async def test_a_recorded_conversation_differs_nowhere(moves):
    talk = await Conversation().of(moves)
    found = await replayed(talk.record)
    assert found.findings == []
    assert found.replayed == len(talk.record.entries)


@settings(max_examples=60, deadline=None)
@given(moves=MOVES)
async def test_the_same_planner_asked_anew_gives_the_same(moves):
    talk = await Conversation().of(moves)
    assert (await replayed(talk.record, planner=ViewPlanner(planned))).findings == []


@settings(max_examples=120, deadline=None)
@given(before=MOVES, after=MOVES)
async def test_a_changed_rule_shows_at_the_first_input_that_it_touches(before, after):
    """Reading is asked about now. Until a turn would read, nothing differs; from there on it does."""
    talk = await Conversation().of(before)
    await talk.of([("cancel",), ("finish", "refused"), ("write", ["look"]), *after])
    stricter = replace(talk.rules, application=asking("look", talk.rules.application))
    found = await replayed(talk.record, stricter)
    touched = [
        entry.version
        for entry in talk.record.entries
        if any(kind == "tool.sent" and text.startswith("look") for kind, text in entry.came.lines)
    ]
    # A granted step is not asked about again: whether it differs is another question.
    assume(touched and not any(run.action for run in talk.stored.messages(RunStep)))
    assert found.differences[0].version == touched[0]
    assert any(one.what == "line" and one.today.startswith("turn.ask look") for one in found.differences)
    assert "the states part here" in str(found.findings)


def asking(tool, application):
    raw = application.model_dump(by_alias=True)
    raw["tools"][tool]["consent"] = "always"
    return type(application).model_validate(raw)


async def test_limits_and_labs_are_those_of_the_record_and_not_of_whoever_replays():
    talk = await Conversation("authority_by_role").of([("event", ["book"], RESTAURANT), ("finish", "committed")])
    assert any("lab" in text for entry in talk.record.entries for _, text in entry.came.lines)
    hurried = replace(make_rules(), operation_wait_ms=1, not_after_ms=1)
    assert (await replayed(talk.record, hurried)).findings == []


async def test_another_plan_shows_at_the_input_that_was_planned():
    talk = await Conversation().of([("write", []), ("write", ["look"]), ("finish", "committed")])
    found = await replayed(talk.record, planner=ViewPlanner(lambda view: Plan(reply="no")))
    assert [(one.version, one.what) for one in found.differences][:1] == [(0, "line")]
    assert "Arrived 1 message e1 from app" in found.text
    assert found.replayed == 3


async def test_what_the_states_became_is_told_at_the_end():
    talk = await Conversation().of([("write", ["look"])])
    found = await replayed(talk.record, planner=ViewPlanner(lambda view: Plan(reply="no")))
    last = [one for one in found.differences if one.what == "state"]
    assert any(one.recorded.startswith("turn: {") and one.today == "turn: null" for one in last)


async def test_a_plan_that_is_wanted_and_not_recorded_is_told():
    talk = await Conversation().of([("write", ["look"])])
    (entry,) = talk.record.entries
    record = talk.record.model_copy(update={"entries": (entry.model_copy(update={"given": entry.given[:1]}),)})
    found = await replayed(record)
    assert found.differences[0].what == "plan"
    assert NO_PLAN in str(found.differences)


async def test_a_recorded_plan_that_nobody_asks_for_is_told():
    talk = await Conversation().of([("event", ["look"], RESTAURANT)])
    shallow = make_rules(causation_depth=1)
    deep = talk.record.model_dump()
    deep["entries"][0]["given"][0][1]["input"]["depth"] = 3
    found = await replayed(Record.model_validate(deep), shallow)
    assert ("plan", "1 of the recorded plans", "not asked for") in [
        (one.what, one.recorded, one.today) for one in found.differences
    ]


async def test_code_that_fails_is_a_difference_and_the_rest_waits_for_a_state(monkeypatch):
    talk = await Conversation().of([("write", []), ("write", ["look"])])

    def fails(*_):
        raise KeyError("a bug")

    monkeypatch.setattr("services.session.domain.inputs.on_input", fails)
    found = await replayed(talk.record)
    assert [(one.version, one.what) for one in found.differences] == [(0, "fault")]
    assert "KeyError" in found.differences[0].today
    assert found.replayed == 0
    assert found.text == "nothing of s1 could be replayed"


async def test_a_large_input_is_passed_over_and_the_replay_goes_on_after_it():
    talk = Conversation()
    await talk.do("write", [])
    await talk.owner.ring(talk.stored.append("event", RESTAURANT, {"text": "x" * 70_000}))
    await talk.of([("write", ["look"]), ("finish", "committed")])
    found = await replayed(talk.record)
    assert found.differences == []
    assert found.replayed == len(talk.record.entries) - 1
    assert "cannot be decided again" in found.findings[0].text
    assert found.findings[-1].text == "goes on from the recorded state"


async def test_versions_that_are_missing_are_told_and_a_record_without_a_state_cannot_be_replayed():
    talk = await Conversation().of([("write", [])] * 4)
    entries = talk.record.entries
    gap = talk.record.model_copy(update={"entries": (entries[0], *entries[2:])})
    found = await replayed(gap)
    assert "versions 1 to 1 are not in the record" in found.findings[0].text
    assert found.replayed == 1
    found = await replayed(talk.record.model_copy(update={"entries": entries[1:]}))
    assert (found.replayed, found.differences) == (0, [])


async def test_what_an_older_version_recorded_and_this_one_cannot_read_is_a_difference():
    talk = await Conversation().of([("write", [])])
    entry = talk.record.entries[0].model_copy(update={"given": (("Woke", {}),)})
    found = await replayed(talk.record.model_copy(update={"entries": (entry,)}))
    assert [(one.what, one.today) for one in found.differences] == [("fault", "there is no stimulus Woke")]


async def test_an_owner_that_takes_over_begins_with_a_state_where_the_record_has_a_hole():
    talk = await Conversation().of([("write", []), ("restart",), ("write", [])])
    assert [entry.before is not None for entry in talk.record.entries] == [True, True]

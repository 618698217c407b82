"""A session service that lies: whatever it forges, replays, moves or merges, nothing but tool and arguments within a
recent turn of its own session's user has an effect (G3, G10). The destination's own list is the evidence."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from libs.contracts.door import CHECKS, check_of
from libs.contracts.origin import Origin, Seal, SealKeys
from libs.contracts.session import Step
from libs.contracts.tools import RunStep, StepFinished, WithdrawOperation, action_key
from tests.integration.test_tools_service import (  # noqa: F401 - the fixtures of a door as a process
    TABLE,
    DoorProcess,
    now,
    sandbox,
)
from tests.integration.test_tools_service import door as door_process  # noqa: F401
from tests.support.door import HOUR_MS, RESTAURANT, SEAL_KEYS, USER, Door, open_door, seal, step
from tests.support.sandbox import SandboxProcess

BEN = Origin(kind="user", source="app", principal="ben", verified="user-token")
TICKETS = Origin(kind="webhook", source="restaurant", principal="restaurant", verified="x", written_by="cem")
DAY_MS = 24 * HOUR_MS
CAP = 3


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace, steps=CAP) as opened:
        yield opened


async def turned_away(door: Door, call: RunStep, code: str, *, session: str = "s1") -> StepFinished:
    """Send a lie; it must have its own code, state, status and one line in the log, and no effect and no claim."""
    before, known = len(door.destination.calls), await door.operation(call.key, session)
    with capture_logs() as logs:
        await door.send(call, session=session, call=f"lie-{code}-{len(door.outbox.posted)}")
    check, answer = check_of(code), door.finished()[-1]
    assert (answer.code, answer.state, answer.status) == (code, check.state, check.status)
    lines = [line for line in logs if line["event"] == "step.turned_away"]
    assert [(line["check"], line["code"], line["status"]) for line in lines] == [(check.stage, code, check.status)]
    assert len(door.destination.calls) == before
    assert await door.operation(call.key, session) == known
    return answer


# --- the fields of a seal ---------------------------------------------------------------------------------------------

SEAL_LIES: dict[str, Any] = {
    "key_id": "k2",
    "input": "in2",
    "session": "s1",
    "number": 2,
    "digest": "0" * 64,
    "accepted_at": 1,
    "mac": "f" * 64,
    "kind": "message",
}
ORIGIN_LIES: dict[str, Any] = {
    "kind": "user",
    "source": "app",
    "principal": "ana",
    "verified": "user-token",
    "written_by": "ana",
}


def test_every_field_of_a_seal_and_of_a_call_is_lied_about_here() -> None:
    assert set(Seal.model_fields) == {*SEAL_LIES, "origin"}
    assert set(Origin.model_fields) == set(ORIGIN_LIES)
    assert set(RunStep.model_fields) == set(CALL_LIES)


@pytest.mark.parametrize("field", [*SEAL_LIES, *(f"origin.{name}" for name in ORIGIN_LIES), "origin"])
async def test_a_seal_with_one_field_forged_opens_nothing(door: Door, field: str) -> None:
    # A true seal that gives less than is claimed: of another session, old, of a webhook, of an answer.
    true = seal(at=door.clock.now - HOUR_MS, origin=TICKETS, session="s2", name="in1", kind="event")
    if field == "origin":
        forged = true.model_copy(update={"origin": USER})
    elif field.startswith("origin."):
        name = field.removeprefix("origin.")
        forged = true.model_copy(update={"origin": true.origin.model_copy(update={name: ORIGIN_LIES[name]})})
    else:
        value = door.clock.now if field == "accepted_at" else SEAL_LIES[field]
        forged = true.model_copy(update={field: value})
    assert forged != true
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=[forged]), "forged_seal", session=forged.session)


@pytest.mark.parametrize("forge", ["all of them", "no MAC", "another key", "an empty key"])
async def test_a_seal_made_without_the_key_opens_nothing(door: Door, forge: str) -> None:
    true = seal(at=door.clock.now)
    forged = {
        "all of them": seal(at=door.clock.now, keys=SealKeys((("k1", b"x" * 32),))),
        "no MAC": true.model_copy(update={"mac": ""}),
        "another key": seal(at=door.clock.now, keys=SealKeys((("k9", b"x" * 32),))),
        "an empty key": true.model_copy(update={"key_id": ""}),
    }[forge]
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=[forged]), "forged_seal")


# --- whose seals they are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count, code", [(0, "no_seals"), (65, "no_seals")])
async def test_a_call_needs_some_seals_and_not_too_many(door: Door, count: int, code: str) -> None:
    seals = [seal(name=f"in{number}", at=door.clock.now) for number in range(count)]
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=seals), code)


async def test_the_seals_of_another_session_are_worth_nothing_in_this_one(door: Door) -> None:
    theirs = seal(session="s2", origin=BEN, at=door.clock.now)
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=[theirs]), "foreign_seal")
    mixed = [seal(at=door.clock.now), seal(session="s2", name="in2", at=door.clock.now)]
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=mixed), "foreign_seal")


async def test_a_whole_call_moved_to_another_session_does_nothing_there(door: Door) -> None:
    call = step("mail", {}, now=door.clock.now)
    await door.send(call)
    await turned_away(door, call, "foreign_seal", session="s2")
    assert len(door.destination.calls) == 1


@pytest.mark.parametrize("stranger", [RESTAURANT, BEN, USER.model_copy(update={"source": "other"}), TICKETS])
async def test_strangers_are_not_merged_into_one_turn(door: Door, stranger: Origin) -> None:
    for order in (1, -1):
        seals = [seal(at=door.clock.now), seal(name="in2", origin=stranger, at=door.clock.now)][::order]
        await turned_away(door, step("mail", {}, now=door.clock.now, seals=seals), "mixed_principals")


async def test_two_writers_of_one_signer_are_not_merged(door: Door) -> None:
    dan = TICKETS.model_copy(update={"written_by": "dan"})
    seals = [seal(at=door.clock.now, origin=TICKETS), seal(name="in2", origin=dan, at=door.clock.now)]
    await turned_away(door, step("look", {}, now=door.clock.now, seals=seals), "mixed_principals")
    first = step("look", {}, now=door.clock.now, seals=seals[:1])
    await door.send(first)
    second = step("look", {}, now=door.clock.now, seals=seals[1:], key="key2")
    await turned_away(door, second, "turn_of_another")


async def test_one_input_is_not_two(door: Door) -> None:
    twice = [seal(at=door.clock.now), seal(at=door.clock.now - 1)]
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=twice), "repeated_input")


@pytest.mark.parametrize("kind", ["decision", "cancel"])
async def test_the_seal_of_an_answer_begins_no_turn(door: Door, kind: str) -> None:
    """A `no A1`, a `yes A1` or a cancel of the user's is theirs, and still asks for nothing."""
    answer = [seal(at=door.clock.now, kind=kind), seal(name="in2", at=door.clock.now, kind=kind)]
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=answer), "not_a_wish")


async def test_a_users_later_words_may_join_the_turn_of_their_answer(door: Door) -> None:
    """A revision of an accepted action's turn: the decision, and what the user says to it."""
    seals = [seal(at=door.clock.now, kind="decision"), seal(name="in2", at=door.clock.now)]
    await door.send(step("mail", {}, now=door.clock.now, seals=seals))
    assert len(door.destination.calls) == 1


# --- replays ----------------------------------------------------------------------------------------------------------


async def test_a_seal_older_than_a_day_opens_nothing_whatever_not_after_says(door: Door) -> None:
    old = seal(at=door.clock.now - DAY_MS - 1)
    later = door.clock.now + 365 * DAY_MS
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=[old], not_after=later), "expired")
    renewed = [old, seal(name="in2", at=door.clock.now)]  # a fresh one beside it does not make it young
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=renewed, not_after=later), "expired")


async def test_a_seal_of_another_turn_opens_nothing(door: Door) -> None:
    await door.send(step("mail", {}, now=door.clock.now, root="T1"))
    other = step("mail", {}, now=door.clock.now, root="T2", turn="T2", key="key2")
    await turned_away(door, other, "input_of_another_turn")
    beside = [seal(name="in2", at=door.clock.now), seal(at=door.clock.now)]
    await turned_away(door, other.model_copy(update={"seals": tuple(beside)}), "input_of_another_turn")
    assert len(door.destination.calls) == 1


async def test_a_seal_of_another_turn_opens_nothing_in_the_last_hour_of_its_day(door: Door) -> None:
    at = door.clock.now - DAY_MS + HOUR_MS
    await door.send(step("mail", {}, now=door.clock.now, root="T1", seals=[seal(at=at)]))
    other = step("mail", {}, now=door.clock.now, root="T2", key="key2", seals=[seal(at=at)])
    await turned_away(door, other, "input_of_another_turn")


async def test_a_user_does_not_take_over_what_a_stranger_began(door: Door) -> None:
    begun = [seal(name="theirs", origin=RESTAURANT, at=door.clock.now, kind="event")]
    await door.send(step("look", {}, now=door.clock.now, root="T9", seals=begun))
    await turned_away(door, step("mail", {}, now=door.clock.now, root="T9", key="key2"), "turn_of_another")


async def test_one_input_pays_for_so_many_steps_and_no_more_whatever_the_keys(door: Door) -> None:
    for number in range(CAP):
        await door.send(step("mail", {"n": number}, now=door.clock.now, key=f"k{number}"), call=f"c{number}")
    assert len(door.destination.calls) == CAP
    for key, turn in (("more", "T1"), ("other", "T7")):
        await turned_away(door, step("mail", {"n": 9}, now=door.clock.now, key=key, turn=turn), "too_many_steps")


# --- the fields of a call ---------------------------------------------------------------------------------------------

Lie = tuple[dict[str, Any], str]
CALL_LIES: dict[str, Sequence[Lie]] = {
    "operation": [({"operation": "A1"}, "needs_approval")],
    "key": [
        ({"key": "of-another"}, "needs_approval"),
        ({"key": action_key("A1", 0)}, "needs_approval"),
        ({"action": "A1", "key": "of-another"}, "foreign_key"),
        ({"action": "A1", "key": action_key("A1", 1)}, "foreign_key"),
        ({"action": "A1", "step": 1, "key": action_key("A1", 0)}, "foreign_key"),
    ],
    "turn": [({"turn": "T0"}, "needs_approval")],
    "root": [({"root": "T0"}, "needs_approval")],
    "tool": [({"tool": "fly"}, "unknown_tool"), ({"tool": "mail"}, "not_a_wish")],
    "args": [({"tool": "book", "args": {"party": -1}, "seals": "user"}, "bad_arguments")],
    "action": [
        ({"action": "A9"}, "no_action"),
        ({"action": "A2"}, "not_its_decision"),
        ({"action": "A3", "seals": "A3"}, "not_accepted"),
        ({"action": "A4", "seals": "A4"}, "approval_lapsed"),
        ({"action": "A1", "seals": "user"}, "not_its_decision"),
        ({"action": "A1", "seals": "restaurant"}, "not_the_approver"),
        ({"action": "A1", "seals": "ben"}, "not_the_approver"),
        ({"action": "A1", "seals": "A1 and user"}, "not_its_decision"),
        ({"action": "", "seals": "A1"}, "not_a_wish"),
    ],
    "step": [
        ({"action": "A1", "step": 2, "key": action_key("A1", 2)}, "no_step"),
        ({"action": "A1", "step": -1, "key": action_key("A1", -1)}, "no_step"),
        ({"action": "A1", "step": 1, "key": action_key("A1", 1)}, "earlier_step_open"),
    ],
    "seals": [({"seals": "none"}, "no_seals"), ({"seals": "restaurant", "tool": "mail"}, "needs_approval")],
    "not_after": [({"action": "A1", "not_after": 1}, "expired"), ({"action": "A1", "not_after": -(10**15)}, "expired")],
    # An honest offer is held back, and asked about: test_tools_standing.py.
    "offer": [
        ({"offer": True, "seals": "none"}, "no_seals"),
        ({"offer": True, "seals": "A1"}, "not_a_wish"),
        ({"offer": True, "action": "A2"}, "not_its_decision"),
        ({"offer": True, "action": "A3", "seals": "A3"}, "not_accepted"),
    ],
    "then": [
        ({"then": (Step(tool="mail", args={}),)}, "needs_approval"),
        ({"then": (Step(tool="mail", args={}),), "offer": True, "action": "A1", "seals": "user"}, "not_its_decision"),
    ],
}


@dataclass
class Stand:
    """A session with A1 (accepted, two steps), A2 (accepted), A3 (declined) and A4 (lapsed), all of `wire`."""

    seals: dict[str, tuple[Seal, ...]]

    @classmethod
    async def of(cls, door: Door) -> "Stand":
        wire: dict[str, Any] = {"tool": "wire", "args": {"sum": "10.00"}}
        later, at = door.clock.now + HOUR_MS, door.clock.now
        decided = {name: await door.accept(name, [wire, wire], lapses_at=later) for name in ("A1", "A2", "A3", "A4")}
        action = door.keys.of_session("action", "s1", "A3")
        await door.store.redis.hset(action, "state", "declined")
        await door.store.redis.hset(door.keys.of_session("action", "s1", "A4"), "lapses_at", at - 1)
        return cls({
            **{name: (one,) for name, one in decided.items()},
            "user": (seal(at=at),),
            "ben": (seal(at=at, origin=BEN),),
            "restaurant": (seal(at=at, origin=RESTAURANT, kind="event"),),
            "A1 and user": (decided["A1"], seal(at=at)),
            "none": (),
        })  # fmt: skip

    def call(self, door: Door, lie: dict[str, Any]) -> RunStep:
        """A call of `wire`, which always asks. Unless the lie says, its seals are the user's or the action's own."""
        action = lie.get("action", "")
        honest = {"A2": "A1"}.get(action, "A1") if action or lie.get("tool") == "mail" else "user"
        seals = self.seals[lie.get("seals", honest)]
        base = step("wire", {"sum": "99.00"}, now=door.clock.now, seals=seals, action=action)
        return base.model_copy(update={name: value for name, value in lie.items() if name != "seals"})


@pytest.mark.parametrize("field, lie, code", [
    (field, lie, code) for field, lies in CALL_LIES.items() for lie, code in lies
])  # fmt: skip
async def test_a_lie_about_a_field_of_the_call_has_no_effect_and_its_own_answer(
    door: Door, field: str, lie: dict[str, Any], code: str
) -> None:
    stand = await Stand.of(door)
    await turned_away(door, stand.call(door, lie), code)


async def test_after_every_lie_the_truth_still_runs_and_runs_what_was_approved(door: Door) -> None:
    stand = await Stand.of(door)
    for lies in CALL_LIES.values():
        for lie, code in lies:
            await turned_away(door, stand.call(door, lie), code)
    await door.send(stand.call(door, {"action": "A1"}), call="true")
    (done,) = door.destination.calls
    assert (done.tool, done.args) == ("wire", {"sum": "10.00"})


async def test_a_step_that_was_spent_is_spent_whatever_the_key_says(door: Door) -> None:
    stand = await Stand.of(door)
    await door.store.redis.hset(door.keys.of_session("action", "s1", "A1"), "s0", "spent-by-another")
    await turned_away(door, stand.call(door, {"action": "A1"}), "step_spent")


async def test_a_key_is_for_one_tool_and_one_set_of_arguments(door: Door) -> None:
    await door.send(step("mail", {"to": "ana"}, now=door.clock.now))
    await turned_away(door, step("mail", {"to": "ben"}, now=door.clock.now), "conflict")
    await turned_away(door, step("ring", {"to": "ana"}, now=door.clock.now), "conflict")


async def test_what_was_withdrawn_stays_withdrawn_however_long_the_withdrawal_says(door: Door) -> None:
    await door.send(WithdrawOperation(operation="O1", key="key1", not_after=door.clock.now + 10**12))
    await turned_away(door, step("mail", {}, now=door.clock.now), "withdrawn")
    key = door.keys.of_session("operation", "s1", "key1")
    assert await door.store.redis.pttl(key) <= 4 * DAY_MS


async def test_a_stranger_may_do_what_it_is_granted_and_nothing_else(door: Door) -> None:
    theirs = [seal(origin=RESTAURANT, at=door.clock.now, kind="event")]
    await door.send(step("ring", {}, now=door.clock.now, seals=theirs, key="granted"))
    assert [call.tool for call in door.destination.calls] == ["ring"]
    await turned_away(door, step("mail", {}, now=door.clock.now, seals=theirs), "needs_approval")
    await turned_away(door, step("pin", {}, now=door.clock.now, seals=theirs), "not_permitted")
    other = [seal(name="in9", origin=RESTAURANT.model_copy(update={"source": "cinema"}), at=door.clock.now)]
    await turned_away(door, step("ring", {}, now=door.clock.now, seals=other, root="T9"), "needs_approval")


async def test_who_wrote_it_gives_no_authority(door: Door) -> None:
    as_ana = RESTAURANT.model_copy(update={"written_by": "ana"})
    theirs = [seal(origin=as_ana, at=door.clock.now, kind="event")]
    for tool, code in (("mail", "needs_approval"), ("pin", "not_permitted"), ("whisper", "needs_approval")):
        await turned_away(door, step(tool, {}, now=door.clock.now, seals=theirs), code)


async def test_where_the_user_must_be_alone_every_seal_is_the_users(door: Door) -> None:
    theirs = [seal(origin=RESTAURANT, at=door.clock.now, kind="event")]
    await turned_away(door, step("whisper", {}, now=door.clock.now, seals=theirs), "needs_approval")
    await door.send(step("whisper", {}, now=door.clock.now))
    assert [call.tool for call in door.destination.calls] == ["whisper"]


async def test_who_acts_is_told_by_the_door_whatever_the_arguments_say(door: Door) -> None:
    await door.store.redis.set(door.keys.of_session("owner", "s1"), "ana")
    await door.send(step("sign", {"by": "mallory", "Turnkeeper-Actor": "mallory"}, now=door.clock.now))
    actor = Origin(kind="actor", source="actors", principal="manager", verified="runner")
    own = [seal(name="in9", at=door.clock.now, origin=actor, kind="event")]
    await door.send(step("look", {"by": "x"}, now=door.clock.now, seals=own, root="T9", key="k9"), call="c9")
    assert [call.actor for call in door.destination.calls] == ["agent", "manager"]
    assert door.destination.calls[0].args["by"] == "ana"


async def test_of_two_faults_the_first_in_order_is_told(door: Door) -> None:
    """One call with a fault of every stage, mended stage by stage."""
    at = door.clock.now
    forged = seal(at=at, origin=RESTAURANT, kind="event").model_copy(update={"mac": "0"})
    true = seal(at=at, origin=RESTAURANT, kind="event")
    calls: list[tuple[RunStep, str]] = [
        (step("fly", {}, now=at, seals=[forged], not_after=1), "forged_seal"),
        (step("fly", {}, now=at, seals=[true], action="A9", not_after=1), "no_action"),
        (step("fly", {}, now=at, seals=[true], not_after=1), "unknown_tool"),
        (step("book", {}, now=at, seals=[true], not_after=1), "bad_arguments"),
        (step("book", now=at, seals=[true], not_after=1), "needs_approval"),
        (step("book", now=at, not_after=1), "expired"),
    ]
    for call, code in calls:
        await turned_away(door, call, code)
    await door.send(step("book", now=at))
    assert len(door.destination.calls) == 1


@pytest.mark.parametrize("claim", ["actor", "origin", "principal", "on_behalf_of", "Turnkeeper-Actor"])
async def test_a_call_has_no_place_to_say_who_acts(door: Door, claim: str) -> None:
    call = step(now=door.clock.now).model_dump()
    with pytest.raises(ValidationError):
        RunStep.model_validate({**call, claim: "manager"})


# --- through the real service -----------------------------------------------------------------------------------------


def _lies(at: int) -> dict[str, tuple[RunStep, str]]:
    """One of each kind, against the dinner application."""
    theirs, old = seal(origin=RESTAURANT, at=at, kind="event"), seal(at=at - DAY_MS - 1000)
    make: Callable[..., RunStep] = step
    return {
        "L1": (make("reserve_table", TABLE, now=at, seals=[theirs.model_copy(update={"origin": USER})]), "forged_seal"),
        "L2": (make("reserve_table", TABLE, now=at, seals=[theirs]), "needs_approval"),
        "L3": (make("reserve_table", TABLE, now=at, seals=[old]), "expired"),
        "L4": (make("reserve_table", TABLE, now=at, seals=[seal(session="s2", at=at)]), "foreign_seal"),
        "L5": (make("reserve_table", TABLE, now=at, seals=[seal(at=at), theirs]), "mixed_principals"),
        "L6": (make("reserve_table", TABLE, now=at, action="A1"), "no_action"),
        "L7": (make("reserve_table", TABLE, now=at, seals=[seal(at=at, kind="cancel")]), "not_a_wish"),
        "L8": (make("reserve_table", TABLE, now=at, seals=[]), "no_seals"),
        "L9": (make("rob_bank", {}, now=at), "unknown_tool"),
    }


async def test_the_lies_reach_the_real_door_over_the_broker_and_the_world_hears_of_none(
    door_process: DoorProcess,  # noqa: F811
    sandbox: SandboxProcess,  # noqa: F811
) -> None:
    at = now()
    lies = _lies(at)
    for operation, (call, _) in lies.items():
        await door_process.send(call.model_copy(update={"operation": operation, "key": f"key-{operation}"}))
    for operation, (_, code) in lies.items():
        answer = await door_process.answered(operation)
        assert (operation, answer.code, answer.status) == (operation, code, check_of(code).status)
    await door_process.send(step("reserve_table", TABLE, now=at, operation="O1"))
    assert (await door_process.answered("O1")).state == "committed"
    await door_process.send(step("reserve_table", TABLE, now=at, operation="O2", key="key2", root="T2"))
    assert (await door_process.answered("O2")).code == "input_of_another_turn"
    assert [(entry["operation"], entry["actor"]) for entry in sandbox.entries()] == [("O1", "agent")]
    logged = door_process.log.read_text()
    assert logged.count("step.turned_away") == len(lies) + 1
    assert SEAL_KEYS.keys[0][1].decode() not in logged


def test_every_check_of_the_door_is_reached_by_a_test_of_this_file() -> None:
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    # test_tools_door.py, test_tools_domain.py, test_tools_mcp.py, test_tools_preconditions.py, test_tools_standing.py
    elsewhere = {"in_progress", "no_identity", "other_schema", "precondition_failed", "needs_consent"}
    assert {check.code for check in CHECKS if f'"{check.code}"' not in text} <= elsewhere

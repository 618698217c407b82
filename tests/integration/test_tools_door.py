"""The door on a real Redis, from a message to its answer. The destination's own list says what was really sent."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from libs.contracts.errors import PermanentError, StoreAway
from libs.contracts.ingress import RegisterSubject
from libs.contracts.origin import attestation_is_valid
from libs.contracts.session import Notice
from libs.contracts.tools import WithdrawOperation
from libs.runtime.settle import Outcome
from services.tools.domain import Committed, Failed, Refused, Unknown
from services.tools.domain import Outcome as ToolOutcome
from services.tools.ports import Call
from tests.support.door import HOUR_MS, RESTAURANT, SEAL_KEYS, Door, open_door, seal, step
from tests.support.eventually import eventually


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        yield opened


def withdrawal(door: Door) -> WithdrawOperation:
    return WithdrawOperation(operation="O1", key="key1", not_after=door.clock.now + HOUR_MS)


async def leave_pending(door: Door, tool: str = "book") -> None:
    """Handle a step up to the send, and end there as a killed process does."""
    sent = asyncio.Event()

    async def hang(call: Call) -> ToolOutcome:
        sent.set()
        await asyncio.sleep(60)
        raise AssertionError

    door.destination.act = hang
    handling = asyncio.create_task(door.send(step(tool, {"party": 4}, now=door.clock.now)))
    await asyncio.wait_for(sent.wait(), 5)
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    door.destination.act = door.destination.commit


async def test_a_users_step_is_done_recorded_and_told(door: Door) -> None:
    assert await door.send(step(now=door.clock.now)) is Outcome.HANDLED
    (answer,) = door.finished()
    assert (answer.operation, answer.state, answer.result, answer.replay) == ("O1", "committed", {"id": "rsv_1"}, False)
    assert (await door.operation("key1"))["state"] == "committed"
    assert door.counted("book", "committed") == 1


async def test_a_committed_operation_registers_its_subject_under_our_attestation(door: Door) -> None:
    await door.send(step(now=door.clock.now))
    (told,) = [message for _, message in door.messages() if isinstance(message, RegisterSubject)]
    assert told.subject == "reservation:rsv_1"
    fields = ("subject", "reservation:rsv_1", "s1", "O1")
    assert attestation_is_valid(SEAL_KEYS, told.attestation, *fields)
    assert not attestation_is_valid(SEAL_KEYS, told.attestation, "subject", "reservation:rsv_1", "s2", "O1")


async def test_what_was_not_committed_registers_nothing(door: Door) -> None:
    door.destination.always(Refused("full"))
    await door.send(step(now=door.clock.now))
    assert not [message for _, message in door.messages() if isinstance(message, RegisterSubject)]


async def test_applications_hear_of_an_outcome(door: Door) -> None:
    await door.send(step(now=door.clock.now))
    (notice,) = [message for _, message in door.messages() if isinstance(message, Notice)]
    assert (notice.topic, notice.data["state"]) == ("operation", "committed")


async def test_a_step_delivered_again_is_sent_once_and_answered_by_the_same_message(door: Door) -> None:
    await door.send(step(now=door.clock.now))
    assert await door.send(step(now=door.clock.now)) is Outcome.REPEATED
    assert len(door.destination.calls) == 1
    finished = [id for id, message in door.messages() if message.wire_type() == "tools.step_finished.v1"]
    assert len(finished) == 2
    assert len(set(finished)) == 1


async def test_another_call_under_a_known_key_hears_a_replay(door: Door) -> None:
    await door.send(step(now=door.clock.now))
    await door.send(step(now=door.clock.now, operation="O2"), call="m2")
    assert len(door.destination.calls) == 1
    answer = door.finished()[-1]
    assert (answer.operation, answer.state, answer.result, answer.replay) == ("O2", "committed", {"id": "rsv_1"}, True)
    assert door.counted("book", "replayed") == 1


async def test_a_known_answer_is_given_even_when_the_seals_are_old(door: Door) -> None:
    call = step(now=door.clock.now)
    await door.send(call)
    door.clock.now += 30 * HOUR_MS
    assert await door.send(call) is Outcome.REPEATED
    assert door.finished()[-1].state == "committed"


async def test_old_seals_open_nothing(door: Door) -> None:
    old = [seal(at=door.clock.now - 25 * HOUR_MS)]
    assert await door.send(step(now=door.clock.now, seals=old)) is Outcome.REFUSED
    assert door.destination.calls == []
    assert door.finished()[0].state == "expired"


@pytest.mark.parametrize("outcome, state, reason", [
    (Refused("no table"), "refused", "no table"),
    (Failed("not reached"), "failed", "not reached"),
    (Unknown("cut"), "unknown", "cut"),
])  # fmt: skip
async def test_refusal_failure_and_the_unknown_stay_apart(
    door: Door, outcome: ToolOutcome, state: str, reason: str
) -> None:
    door.destination.always(outcome)
    await door.send(step(now=door.clock.now))
    (answer,) = door.finished()
    assert (answer.state, answer.reason) == (state, reason)
    assert door.counted("book", state) == 1


async def test_a_destination_without_an_answer_is_unknown(door: Door) -> None:
    async def hang(call: Call) -> ToolOutcome:
        await asyncio.sleep(60)
        raise AssertionError

    door.destination.act = hang
    await door.send(step(now=door.clock.now))
    assert door.finished()[0].state == "unknown"
    assert "no answer within 1 s" in door.finished()[0].reason


async def test_a_connector_that_breaks_is_unknown_not_failed(door: Door) -> None:
    async def broken(call: Call) -> ToolOutcome:
        raise RuntimeError("secret detail")

    door.destination.act = broken
    await door.send(step(now=door.clock.now))
    answer = door.finished()[0]
    assert answer.state == "unknown"
    assert "secret" not in answer.reason


async def test_what_is_unknown_is_never_sent_again(door: Door) -> None:
    door.destination.always(Unknown("cut"))
    await door.send(step(now=door.clock.now))
    await door.send(step(now=door.clock.now, operation="O2"), call="m2")
    assert len(door.destination.calls) == 1
    assert [answer.state for answer in door.finished()] == ["unknown", "unknown"]


async def test_a_failed_step_may_be_tried_anew(door: Door) -> None:
    door.destination.always(Failed("not reached"))
    await door.send(step(now=door.clock.now))
    door.destination.act = door.destination.commit
    await door.send(step(now=door.clock.now, operation="O2"), call="m2")
    assert [answer.state for answer in door.finished()] == ["failed", "committed"]
    assert not door.finished()[1].replay


async def test_a_webhooks_turn_is_refused_and_claims_no_key(door: Door) -> None:
    seals = [seal(at=door.clock.now, origin=RESTAURANT)]
    assert await door.send(step(now=door.clock.now, seals=seals)) is Outcome.REFUSED
    assert door.destination.calls == []
    assert door.finished()[0].state == "refused"
    assert await door.operation("key1") == {}
    assert door.counted("book", "refused") == 1


async def test_a_forged_seal_is_refused_and_counted(door: Door) -> None:
    forged = seal(at=door.clock.now).model_copy(update={"mac": "0" * 64})
    assert await door.send(step(now=door.clock.now, seals=[forged])) is Outcome.REFUSED
    assert door.finished()[0].reason == "a seal is not ours"
    assert await door.operation("key1") == {}


async def test_a_tool_that_nobody_configured_gets_no_label_of_its_own(door: Door) -> None:
    await door.send(step("x" * 40, {}, now=door.clock.now))
    assert door.counted("other", "refused") == 1


async def test_under_the_lab_switch_a_webhook_acts_and_every_answer_says_lab(redis_url: str, namespace: str) -> None:
    async with open_door(redis_url, namespace, by_role=True) as door:
        await door.send(step(now=door.clock.now, seals=[seal(at=door.clock.now, origin=RESTAURANT)]))
        assert len(door.destination.calls) == 1
        assert door.finished()[0].state == "committed"
        assert door.finished()[0].reason.startswith("lab")


async def test_the_destination_sees_one_key_of_ours(door: Door) -> None:
    await leave_pending(door)
    await door.send(step(now=door.clock.now))
    first, second = door.destination.calls
    assert first.key == second.key
    assert first.key != "key1"


async def test_a_call_that_was_ended_midway_goes_on_at_a_keyed_destination(door: Door) -> None:
    await leave_pending(door)
    assert await door.send(step(now=door.clock.now)) is Outcome.HANDLED
    assert [answer.state for answer in door.finished()] == ["committed"]


async def test_a_call_that_was_ended_midway_is_unknown_where_it_could_happen_twice(door: Door) -> None:
    await leave_pending(door, "mail")
    await door.send(step("mail", {"party": 4}, now=door.clock.now))
    assert len(door.destination.calls) == 1
    assert [answer.state for answer in door.finished()] == ["unknown"]


async def test_a_restarted_replica_goes_on_with_its_own_work_at_once(
    door: Door, redis_url: str, namespace: str
) -> None:
    await leave_pending(door)
    async with open_door(redis_url, namespace, incarnation="i2") as reborn:
        assert await reborn.send(step(now=door.clock.now)) is not Outcome.IN_PROGRESS
        assert len(reborn.destination.calls) == 1
        assert {answer.state for answer in reborn.finished()} == {"committed"}


async def test_another_replica_waits_for_the_lease_and_then_finishes_without_a_message(
    door: Door, redis_url: str, namespace: str
) -> None:
    await leave_pending(door)
    async with open_door(redis_url, namespace, replica="1") as other:
        assert await other.send(step(now=door.clock.now)) is Outcome.IN_PROGRESS
        assert other.finished() == []
        await other.sweeper.take_over_ended()
        assert other.destination.calls == []
        other.clock.now += 10_000
        await other.sweeper.take_over_ended()
        assert [answer.state for answer in other.finished()] == ["committed"]
        assert other.finished()[0].operation == "O1"


async def test_another_call_under_a_held_key_is_told_that_it_is_in_progress(
    door: Door, redis_url: str, namespace: str
) -> None:
    await leave_pending(door)
    async with open_door(redis_url, namespace, replica="1") as other:
        assert await other.send(step(now=door.clock.now, operation="O2"), call="m2") is Outcome.IN_PROGRESS
        assert [(answer.operation, answer.state) for answer in other.finished()] == [("O2", "in_progress")]


async def test_the_sweeper_leaves_alone_what_this_process_is_at_work_on(door: Door) -> None:
    go = asyncio.Event()

    async def wait(call: Call) -> ToolOutcome:
        await go.wait()
        return Committed({"id": "r"})

    door.destination.act = wait
    handling = asyncio.create_task(door.send(step(now=door.clock.now)))
    await eventually(lambda: bool(door.destination.calls))
    door.clock.now += 10_000
    await door.sweeper.take_over_ended()
    go.set()
    await handling
    assert len(door.destination.calls) == 1
    assert [answer.state for answer in door.finished()] == ["committed"]


async def test_a_holder_that_comes_back_late_says_nothing(door: Door, redis_url: str, namespace: str) -> None:
    go = asyncio.Event()

    async def wait(call: Call) -> ToolOutcome:
        await go.wait()
        return Committed({"id": "late"})

    door.destination.act = wait
    handling = asyncio.create_task(door.send(step("mail", {}, now=door.clock.now)))
    await eventually(lambda: bool(door.destination.calls))
    async with open_door(redis_url, namespace, replica="1") as other:
        other.clock.now += 10_000
        await other.sweeper.take_over_ended()
        assert [answer.state for answer in other.finished()] == ["unknown"]
    go.set()
    await handling
    assert door.finished() == []
    assert (await door.operation("key1"))["state"] == "unknown"


async def test_an_outcome_is_kept_until_the_store_takes_it(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = door.ledger.record, 2

    async def away(*args: object, **options: object) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreAway("away")
        return await real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(door.ledger, "record", away)
    await door.send(step(now=door.clock.now))
    assert len(door.destination.calls) == 1
    assert [answer.state for answer in door.finished()] == ["committed"]


async def test_a_withdrawn_step_never_runs_however_late_it_arrives(door: Door) -> None:
    assert await door.send(withdrawal(door)) is Outcome.HANDLED
    await door.send(step(now=door.clock.now))
    assert door.destination.calls == []
    assert [answer.state for answer in door.finished()] == ["withdrawn", "withdrawn"]


async def test_withdrawing_what_was_done_tells_what_stands(door: Door) -> None:
    await door.send(step(now=door.clock.now))
    assert await door.send(withdrawal(door)) is Outcome.REPEATED
    assert [answer.state for answer in door.finished()] == ["committed", "committed"]


async def test_withdrawing_what_is_in_flight_says_so(door: Door) -> None:
    await leave_pending(door)
    assert await door.send(withdrawal(door)) is Outcome.IN_PROGRESS
    assert [answer.state for answer in door.finished()] == ["in_progress"]


async def test_an_accepted_actions_stored_step_runs(door: Door) -> None:
    stored = [{"tool": "wire", "args": {"sum": "10.00"}}]
    decision = await door.accept("A1", stored, lapses_at=door.clock.now + 60_000)
    await door.send(step("mail", {"sum": "99.00"}, now=door.clock.now, action="A1", seals=[decision]))
    (call,) = door.destination.calls
    assert (call.tool, call.args) == ("wire", {"sum": "10.00"})


async def test_an_accepted_step_runs_once_however_often_it_is_called(door: Door) -> None:
    """C120."""
    stored = [{"tool": "wire", "args": {}}]
    decision = await door.accept("A1", stored, lapses_at=door.clock.now + 60_000)
    calls = [step(now=door.clock.now, action="A1", seals=[decision], operation=f"O{n}") for n in range(1, 4)]
    for number, call in enumerate(calls):
        await door.send(call, call=f"m{number}")
    assert len(door.destination.calls) == 1


async def test_a_lapsed_grant_runs_nothing(door: Door) -> None:
    stored = [{"tool": "wire", "args": {}}]
    decision = await door.accept("A1", stored, lapses_at=door.clock.now - 1)
    await door.send(step(now=door.clock.now, action="A1", seals=[decision]))
    assert door.destination.calls == []
    assert door.finished()[0].reason == "the approval has lapsed"


async def test_identity_arguments_are_those_of_the_seal_and_the_owner(door: Door) -> None:
    await door.store.redis.set(door.keys.of_session("owner", "s1"), "ana")
    await door.send(step("sign", {"by": "mallory", "owner": "mallory"}, now=door.clock.now))
    assert door.destination.calls[0].args == {"by": "ana", "owner": "ana"}


async def test_a_key_that_would_pierce_the_stores_names_is_dead(door: Door) -> None:
    with pytest.raises(PermanentError):
        await door.send(step(now=door.clock.now, key="a}b:c"))


async def test_the_gauge_counts_what_is_unknown(door: Door) -> None:
    door.destination.always(Unknown("cut"))
    await door.send(step(now=door.clock.now))
    await door.sweeper.count_unknown()
    assert door.registry.get_sample_value("turnkeeper_tools_unknown") == 1


async def test_the_trim_sweep_leaves_a_tombstone(door: Door) -> None:
    await door.send(step(now=door.clock.now, not_after=door.clock.now + 1000))
    door.clock.now += 2000
    await door.sweeper.trim()
    stored = await door.operation("key1")
    assert stored["state"] == "committed"
    assert "args" not in stored


def test_every_label_set_appears_at_zero(door: Door) -> None:
    for tool in (*door.catalogue.application.tools, "other"):
        for outcome in ("committed", "precondition_failed", "in_progress"):
            labels = {"tool": tool, "outcome": outcome}
            assert door.registry.get_sample_value("turnkeeper_tools_operations_total", labels) == 0

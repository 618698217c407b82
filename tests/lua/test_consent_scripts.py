"""Each script of consent on a real Redis: branches, tags, times to live, races of two clients, replays."""

import asyncio

import pytest

from libs.contracts.consent import ActionAsked, ActionClosed, ActionNotAsked, CancelAction, SupersedeActions
from libs.contracts.keys import acl_rules
from libs.contracts.origin import Seal, seal_is_valid
from libs.contracts.session import Step
from libs.runtime.connections import connect_redis, with_password
from services.consent.decisions import Wish
from tests.support.consent import ANA, BEN, CINEMA, SEAL_KEYS, TABLE, World, consent_world, issue

pytestmark = pytest.mark.engine
DAY_MS = 86_400_000
TTL_MS = 600_000


@pytest.fixture
async def world(redis_url, namespace):
    async with consent_world(redis_url, namespace) as world:
        await world.own()
        yield world


def wish(world: World, verdict="accept", action="A1", *, by=ANA, digest=None, carrier="", nonce="", typed=0) -> Wish:
    nonce = nonce or world.nonce()
    text = "yes A1" if typed else ""
    return Wish("s1", action, verdict, by, digest, carrier or nonce, nonce, text, typed)


async def decide(world: World, *args, **more):
    """One decision with the right digest unless another is given; its answer."""
    return await world.decisions.decide(wish(world, *args, **more), lambda record: world.emit_for("s1", record))


async def redeem_raw(world: World, nonce: str, carrier: str = "c"):
    """One run of the redeeming script alone, with fixed arguments."""
    redemption_wish = wish(world, nonce=nonce, carrier=carrier)
    glance = await world.actions.glance("s1", "A1")
    number = int(await world.field("A1", "sealed_for") or glance.next_number)
    await world.redis.hset(world.keys.of_session("action", "s1", "A1"), "sealed_for", number)
    redemption = world.decisions._redemption(redemption_wish, glance.record, number, glance.record.asked_at)
    return await world.actions.redeem(redemption, [])


# issue


async def test_an_asked_question_is_stored_indexed_and_told(world):
    assert await world.ask(issue()) == "handled"
    assert world.outbox.types() == ["consent.action_asked.v1", "session.notice.v1"]
    asked = world.outbox.bodies(ActionAsked)[0]
    assert asked["approver"] == "ana"
    assert asked["expires_at"] == int(await world.field("A1", "expires_at"))
    assert await world.actions.pending() == 1
    messages, _ = world.outbox.keys("s1")
    assert await world.redis.hlen(messages) == 2


async def test_every_key_of_an_action_has_an_end(world):
    await world.ask(issue())
    left = await world.redis.pttl(world.keys.of_session("action", "s1", "A1"))
    assert 30 * DAY_MS < left <= 30 * DAY_MS + TTL_MS
    for family in ("actions", "open"):
        assert 29 * DAY_MS < await world.redis.pttl(world.keys.of_session(family, "s1")) <= 30 * DAY_MS
    await decide(world)
    left = await world.redis.pttl(world.keys.of_session("action", "s1", "A1"))
    assert 30 * DAY_MS + TTL_MS - 60_000 < left <= 30 * DAY_MS + TTL_MS


async def test_issuing_again_with_the_same_content_changes_nothing(world):
    await world.ask(issue())
    before = await world.dump()
    assert await world.ask(issue()) == "repeated"
    assert await world.dump() == before
    assert world.count("actions_total", outcome="asked") == 1


async def test_other_content_under_the_same_id_is_refused_for_ever(world):
    await world.ask(issue())
    question = await world.field("A1", "question")
    with pytest.raises(Exception, match="other_content"):
        await world.ask(issue("A1", TABLE, TABLE))
    assert await world.field("A1", "question") == question


async def test_a_lost_reply_of_issuing_is_recognised_as_our_own(world):
    context = world.context(issue())
    first = await world.handlers._issue(issue(), context, "n")
    before = await world.dump()
    assert await world.handlers._issue(issue(), context, "n") == first == "handled"
    assert await world.dump() == before


async def test_too_many_open_questions_of_a_source_are_refused_and_told(world):
    for number in range(1, 4):
        assert await world.ask(issue(f"A{number}")) == "handled"
    assert await world.ask(issue("A4")) == "refused"
    assert world.outbox.bodies(ActionNotAsked) == [
        {"action": "A4", "reason": "too many open questions", "limit": "open_questions"}
    ]
    assert await world.ask(issue("A5", origin=CINEMA)) == "handled"  # one loud source does not silence another
    assert await world.ask(issue("A4")) == "repeated"  # and stays refused, also when there is room again
    await decide(world)
    assert await world.ask(issue("A4")) == "repeated"
    assert await world.ask(issue("A6")) == "handled"


async def test_a_question_past_its_time_does_not_count_as_open(world):
    for number in range(1, 4):
        await world.ask(issue(f"A{number}"))
    world.clock.at += TTL_MS + 1_000
    assert await world.ask(issue("A4")) == "handled"
    assert await world.actions.pending() == 1


async def test_the_cap_holds_when_two_clients_race(world):
    outcomes = await asyncio.gather(*(world.ask(issue(f"A{number}")) for number in range(1, 21)))
    assert sorted(outcomes) == ["handled"] * 3 + ["refused"] * 17


async def test_what_is_refused_is_nobodys_to_decide(world):
    await world.ask(issue("A1", Step(tool="nuke", args={})))
    assert (await decide(world)).outcome == "no_such_action"
    assert await world.actions.of_session("s1") == []


async def test_a_session_lists_its_newest_two_hundred_actions(world):
    key = world.keys.of_session("actions", "s1")
    await world.redis.zadd(key, {f"Z{number}": number for number in range(250)})
    await world.ask(issue())
    assert await world.redis.zcard(key) == 200
    assert await world.redis.zscore(key, "A1") is not None


# issue in the place of another


def fresh(action="A2", *replaced: str, **more):
    return issue(action, supersedes=replaced or ("A1",), **more)


async def test_a_question_that_takes_anothers_place_closes_it_in_the_same_step(world):
    await world.ask(issue())
    assert await world.ask(fresh()) == "handled"
    assert [await world.field(action, "state") for action in ("A1", "A2")] == ["superseded", "pending"]
    assert world.outbox.bodies(ActionClosed) == [{"action": "A1", "state": "superseded", "reason": "superseded by A2"}]
    messages, _ = world.outbox.keys("s1")
    assert {id.decode() for id in await world.redis.hkeys(messages)} == {sent.id for sent in world.outbox.posted}
    assert (await decide(world)).outcome == "superseded"
    assert (await decide(world, action="A2")).outcome == "accepted"
    assert world.count("actions_total", outcome="superseded") == 1


async def test_nothing_is_opened_in_the_place_of_what_was_accepted_meanwhile(world):
    await world.ask(issue())
    await world.ask(issue("A2"))
    await decide(world)
    assert await world.ask(fresh("A3", "A2", "A1")) == "refused"
    assert world.outbox.bodies(ActionNotAsked) == [{"action": "A3", "reason": "A1 was accepted meanwhile", "limit": ""}]
    assert [await world.field(action, "state") for action in ("A1", "A2", "A3")] == ["accepted", "pending", "not_asked"]
    assert world.outbox.bodies(ActionClosed) == []
    messages, _ = world.outbox.keys("s1")
    assert {id.decode() for id in await world.redis.hkeys(messages)} == {sent.id for sent in world.outbox.posted}
    assert world.count("actions_total", outcome="superseded") == 0


async def test_what_was_declined_expired_or_closed_gives_no_reason_not_to_ask(world):
    await world.ask(issue())
    await decide(world, "decline")
    assert await world.ask(fresh()) == "handled"
    assert await world.field("A1", "state") == "declined"
    assert world.outbox.bodies(ActionClosed) == []


async def test_a_question_is_never_asked_once_its_successor_was(world):
    assert await world.ask(fresh()) == "handled"
    assert 0 < await world.redis.pttl(world.keys.of_session("action", "s1", "A1")) <= 30 * DAY_MS
    assert await world.ask(issue()) == "refused"
    assert [asked["action"] for asked in world.outbox.bodies(ActionAsked)] == ["A2"]


async def test_a_question_that_gives_way_does_not_count_against_the_cap(world):
    for number in range(1, 4):
        await world.ask(issue(f"A{number}"))
    assert await world.ask(fresh("A4", "A2")) == "handled"
    assert await world.ask(issue("A5")) == "refused"


async def test_a_question_stays_open_where_its_successor_may_not_be_asked(world):
    for number in range(1, 4):
        await world.ask(issue(f"A{number}"))
    await world.ask(issue("A4", origin=CINEMA))
    assert await world.ask(fresh("A5", "A4")) == "refused"
    assert await world.field("A4", "state") == "pending"
    assert world.outbox.bodies(ActionClosed) == []


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_lost_reply_of_taking_a_place_is_recognised_as_our_own(world, accepted):
    await world.ask(issue())
    if accepted:
        await decide(world)
    context = world.context(fresh())
    first = await world.handlers._issue(fresh(), context, "n")
    before, posted = await world.dump(), len(world.outbox.posted)
    assert await world.handlers._issue(fresh(), context, "n") == first
    assert await world.dump() == before
    again = [sent.id for sent in world.outbox.posted[posted:]]
    assert again == [sent.id for sent in world.outbox.posted[posted - len(again) : posted]]
    assert await world.ask(fresh()) == "repeated"
    assert await world.dump() == before


async def test_accepting_and_taking_the_place_at_once_never_leave_both_to_run(world):
    for round in range(12):
        old, new = f"A{2 * round + 1}", f"A{2 * round + 2}"
        await world.ask(issue(old))
        decided, _ = await asyncio.gather(decide(world, action=old), world.ask(fresh(new, old)))
        states = [await world.field(action, "state") for action in (old, new)]
        assert states == (["accepted", "not_asked"] if decided.receipt else ["superseded", "pending"])
        await decide(world, "decline", action=new)


# supersede


async def supersede(world: World, *actions: str):
    message = SupersedeActions(actions=actions, reason="newer")
    return await world.handlers.on_supersede_actions(message, world.context(message))


async def test_open_questions_are_superseded_and_what_was_decided_stays(world):
    for number in range(1, 4):
        await world.ask(issue(f"A{number}"))
    await decide(world)
    assert await supersede(world, "A1", "A2", "A3") == "handled"
    assert [await world.field(f"A{number}", "state") for number in range(1, 4)] == ["accepted"] + ["superseded"] * 2
    assert [closed["action"] for closed in world.outbox.bodies(ActionClosed)] == ["A2", "A3"]
    assert world.count("actions_total", outcome="superseded") == 2
    before = await world.dump()
    assert await supersede(world, "A1", "A2", "A3") == "repeated"
    assert await world.dump() == before
    assert world.count("actions_total", outcome="superseded") == 2


async def test_superseded_before_it_is_asked_means_never_asked_and_is_told(world):
    assert await supersede(world, "A1") == "handled"
    assert await world.ask(issue()) == "refused"
    assert world.outbox.bodies(ActionClosed) == [{"action": "A1", "state": "superseded", "reason": "newer"}]
    assert await world.ask(fresh()) == "handled"


async def test_superseding_what_was_accepted_changes_nothing(world):
    await world.ask(issue())
    await decide(world)
    before = await world.dump()
    assert await supersede(world, "A1") == "refused"
    assert await world.dump() == before


# redeem


@pytest.mark.parametrize("verdict, state", [("accept", "accepted"), ("decline", "declined"), ("cancel", "cancelled")])
async def test_a_decision_is_taken_and_numbered_in_one_step(world, verdict, state):
    await world.ask(issue())
    await world.append()
    decided = await decide(world, verdict)
    assert decided.outcome == state
    assert await world.field("A1", "state") == state
    (entry,) = (await world.inbox()).items()
    assert entry[0] == 2
    assert entry[1]["data"] == {"action": "A1", "decision": verdict}
    assert entry[1]["origin"] == ANA.model_dump()
    assert seal_is_valid(SEAL_KEYS, Seal.model_validate(entry[1]["seal"]))
    assert entry[1]["seal"]["number"] == 2
    assert (entry[1]["depth"], entry[1]["trace"]) == (2, "00-t-01")
    assert await world.actions.pending() == 0
    assert world.outbox.types()[-1] == "ingress.input_accepted.v1"


async def test_a_decision_and_its_doorbell_are_stored_together(world):
    await world.ask(issue())
    await decide(world)
    messages, _ = world.outbox.keys("s1")
    stored = {id.decode() for id in await world.redis.hkeys(messages)}
    assert stored == {message.id for message in world.outbox.posted}
    assert world.outbox.types()[-1] == "ingress.input_accepted.v1"


async def test_twenty_accepts_at_once_are_one_decision_with_one_receipt(world):
    """C120."""
    await world.ask(issue())
    answers = await asyncio.gather(*(decide(world) for _ in range(20)))
    assert len({answer.receipt for answer in answers}) == 1
    assert sorted(answer.outcome for answer in answers) == ["accepted"] + ["repeated"] * 19
    assert len(await world.inbox()) == 1
    assert world.count("actions_total", outcome="accepted") == 1
    assert world.count("decision_seconds_count") == 1


async def test_accept_and_decline_at_once_leave_one_winner(world):
    """C121."""
    await world.ask(issue())
    answers = await asyncio.gather(*(decide(world, verdict) for verdict in ("accept", "decline") * 10))
    winner = next(answer.outcome for answer in answers if answer.outcome in ("accepted", "declined"))
    assert await world.field("A1", "state") == winner
    assert sum(answer.outcome == "decided_otherwise" for answer in answers) == 10
    assert len(await world.inbox()) == 1


async def test_numbers_taken_meanwhile_are_sealed_anew(world):
    await world.ask(issue())
    glance = await world.actions.glance("s1", "A1")
    for _ in range(3):
        await world.append()
    decided = await world.decisions._redeem(wish(world), glance, world.emit_for("s1", glance.record))
    assert decided.outcome == "accepted"
    assert list(await world.inbox()) == [4]


async def test_redeeming_again_with_the_same_arguments_answers_the_same_and_changes_nothing(world):
    await world.ask(issue())
    first = await redeem_raw(world, "n")
    before = await world.dump()
    assert await redeem_raw(world, "n") == first
    assert first.tag == "accepted"
    assert await world.dump() == before
    assert (await redeem_raw(world, "m")).tag == "replayed"
    assert (await redeem_raw(world, "m", "other")).tag == "repeated"
    assert await world.dump() == before


async def test_another_person_changes_nothing_and_the_question_stays_open(world):
    await world.ask(issue())
    before = await world.dump()
    assert (await decide(world, by=BEN)).outcome == "wrong_person"
    assert await world.dump() == before
    assert world.count("decisions_total", outcome="wrong_person") == 1
    assert (await decide(world)).outcome == "accepted"
    assert (await decide(world, by=BEN)).outcome == "wrong_person"


async def test_another_question_is_not_decided(world):
    await world.ask(issue())
    before = await world.dump()
    assert (await decide(world, digest="0" * 64)).outcome == "wrong_question"
    assert await world.dump() == before


async def test_the_deadline_is_inclusive_and_a_millisecond_later_is_too_late(world):
    await world.ask(issue())
    await world.ask(issue("A2"))
    world.clock.at = int(await world.field("A1", "expires_at"))
    assert (await decide(world)).outcome == "accepted"
    world.clock.at = int(await world.field("A2", "expires_at")) + 1
    assert (await decide(world, action="A2")).outcome == "expired"
    assert len(await world.inbox()) == 1
    assert await world.field("A2", "state") == "pending"  # no sweeper came by, and it does not matter


async def test_a_clock_that_is_behind_does_not_stretch_the_time(world):
    world.clock.at -= TTL_MS
    await world.ask(issue())
    await world.redis.hset(world.keys.of_session("action", "s1", "A1"), "expires_at", world.clock.at + 1)
    assert (await decide(world)).outcome == "expired"


async def test_the_receipt_is_the_same_long_after_the_deadline(world):
    await world.ask(issue())
    first = await decide(world)
    world.clock.at += 10 * TTL_MS
    await world.sweeper.sweep()
    assert (await decide(world)).receipt == first.receipt
    assert (await decide(world, "decline")).outcome == "decided_otherwise"


async def test_a_late_decision_is_told_to_the_session_once(world):
    await world.ask(issue())
    world.clock.at += TTL_MS + 1_000
    for _ in range(5):
        assert (await decide(world)).outcome == "expired"
    assert world.outbox.types().count("consent.decision_refused.v1") == 1
    assert world.count("decisions_total", outcome="expired") == 5
    mark = world.keys.of_session("refused", "s1", "A1", "ana")
    assert 0 < await world.redis.pttl(mark) <= DAY_MS


async def test_an_unknown_action_is_not_decided(world):
    assert (await decide(world)).outcome == "no_such_action"
    assert await world.inbox() == {}


async def test_a_text_typed_before_the_question_was_asked_cannot_have_meant_it(world):
    await world.append()
    await world.ask(issue())
    assert (await decide(world, carrier="early", typed=1)).outcome == "no_such_action"
    assert await world.field("A1", "state") == "pending"
    assert (await decide(world, carrier="later", typed=await world.append())).outcome == "accepted"


async def test_a_full_outbox_takes_no_decision(world):
    await world.ask(issue())
    world.actions._outbox_limit = 2
    with pytest.raises(Exception, match="wait for the broker"):
        await decide(world)
    assert await world.field("A1", "state") == "pending"
    assert await world.inbox() == {}


# close


async def test_an_overdue_question_expires_once_and_is_told_once(world):
    await world.ask(issue())
    await world.sweeper.sweep()
    assert await world.field("A1", "state") == "pending"
    world.clock.at += TTL_MS + 1_000
    await asyncio.gather(world.sweeper.sweep(), world.sweeper.sweep())
    assert await world.field("A1", "state") == "expired"
    assert world.outbox.types().count("consent.action_closed.v1") == 1
    assert world.count("actions_total", outcome="expired") == 1
    assert (await decide(world)).outcome == "expired"


async def test_a_grant_that_is_not_used_up_lapses_and_keeps_its_receipt(world):
    await world.ask(issue("A1", TABLE, TABLE))
    receipt = (await decide(world)).receipt
    await world.redis.hset(world.keys.of_session("action", "s1", "A1"), "s0", "key0")
    world.clock.at += TTL_MS + 1_000
    await world.sweeper.sweep()
    await world.sweeper.sweep()
    closed = [sent for sent in world.outbox.types() if sent == "consent.action_closed.v1"]
    assert len(closed) == 1
    assert await world.field("A1", "closed_as") == "lapsed"
    assert await world.field("A1", "state") == "accepted"
    assert (await decide(world)).receipt == receipt
    assert await world.redis.zcard(world.keys.of_session_partition("grant", "s1")) == 0


async def test_a_grant_that_was_used_up_does_not_lapse(world):
    await world.ask(issue("A1", TABLE, TABLE))
    await decide(world)
    await world.redis.hset(world.keys.of_session("action", "s1", "A1"), mapping={"s0": "key0", "s1": "key1"})
    world.clock.at += TTL_MS + 1_000
    await world.sweeper.sweep()
    assert "consent.action_closed.v1" not in world.outbox.types()
    assert await world.redis.zcard(world.keys.of_session_partition("grant", "s1")) == 0


async def cancel(world: World, reason="the turn was cancelled", id=""):
    message = CancelAction(action="A1", reason=reason)
    return await world.handlers.on_cancel_action(message, world.context(message, id=id))


@pytest.mark.parametrize(
    "reason, state, outcome",
    [("the turn ended", "cancelled", "cancelled"), ("superseded by A2", "superseded", "superseded")],
)
async def test_a_question_that_is_no_longer_wanted_cannot_be_accepted(world, reason, state, outcome):
    await world.ask(issue())
    assert await cancel(world, reason) == "handled"
    before = await world.dump()
    assert await cancel(world, reason) == "repeated"
    assert await world.dump() == before
    assert await world.field("A1", "state") == state
    assert (await decide(world)).outcome == outcome
    assert world.count("actions_total", outcome=state) == 1


async def test_cancelling_does_not_undo_an_acceptance(world):
    await world.ask(issue())
    await decide(world)
    assert await cancel(world) == "refused"
    assert await world.field("A1", "state") == "accepted"


async def test_cancelled_before_it_is_asked_means_never_asked(world):
    assert await cancel(world) == "handled"
    assert 0 < await world.redis.pttl(world.keys.of_session("action", "s1", "A1")) <= 30 * DAY_MS
    assert await cancel(world) == "repeated"
    assert await world.ask(issue()) == "refused"
    assert "consent.action_asked.v1" not in world.outbox.types()
    assert (await decide(world)).outcome == "no_such_action"


async def test_closing_and_accepting_at_once_leave_one_winner(world):
    for number in range(10):
        action = f"A{number + 1}"
        await world.ask(issue(action))
        message = CancelAction(action=action, reason="x")
        closed, decided = await asyncio.gather(
            world.handlers.on_cancel_action(message, world.context(message)), decide(world, action=action)
        )
        assert (closed == "handled") != (decided.outcome == "accepted")


async def test_no_key_is_written_outside_the_partition_of_the_session(world):
    await world.ask(issue())
    await decide(world)
    tag = f"{{p{world.keys.partition('s1'):02}}}"
    assert all(tag in key for key in await world.dump())


async def test_the_rights_of_the_service_in_redis_are_enough(redis_url, namespace):
    """A script needs the right to write each key that it is given, so a key that may only be read cannot be one."""
    admin, user = connect_redis(redis_url, "test"), f"consent-{namespace}"
    # Redis 7.0 does not know this subcommand and refuses the whole rule list for it.
    rules = [rule for rule in acl_rules("consent", namespace) if rule != "+client|setinfo"]
    await admin.execute_command("ACL", "SETUSER", user, "on", ">pw", *rules)
    try:
        async with consent_world(with_password(redis_url, "pw", user), namespace) as world:
            await admin.set(world.keys.of_session("owner", "s1"), "ana")
            for action in ("A1", "A2", "A3", "A4"):
                await world.ask(issue(action))
            assert (await decide(world)).outcome == "accepted"
            assert (await decide(world, "decline", "A2")).outcome == "declined"
            world.clock.at += TTL_MS + 1_000
            assert (await decide(world, action="A3")).outcome == "expired"
            await world.sweeper.sweep()
            await world.sweeper.measure()
            assert len(await world.actions.of_session("s1")) == 3
    finally:
        await admin.execute_command("ACL", "DELUSER", user)
        await admin.aclose()

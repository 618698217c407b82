"""What an approved step relies on: read for the question, read again before the claim, and never sent past a change.

One connector stands for all tools here; `price` answers what the world says, and its calls are told apart by tool.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from libs.contracts.consent import World
from libs.contracts.session import Notice, Step
from libs.contracts.tools import RunStep, action_key
from libs.runtime.settle import Outcome
from services.tools.domain import Committed, Failed, Refused, Unknown
from services.tools.domain import Outcome as ToolOutcome
from services.tools.ports import Call
from tests.support.door import HOUR_MS, RESTAURANT, SEAL_KEYS, Door, open_door, seal, step

BUY = Step(tool="buy", args={"of": "wine"})


class Shop:
    """A destination whose price the test changes. `says` takes the place of an answer about the price."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.price: Any = 10
        self.says: ToolOutcome | None = None
        door.destination.act = self.act

    async def act(self, call: Call) -> ToolOutcome:
        if call.tool == "price":
            return self.says or Committed({"price": self.price, "seen": len(self.door.destination.calls)})
        return Committed({"id": "b1"})

    def bought(self) -> int:
        return len([call for call in self.door.destination.calls if call.tool != "price"])


@pytest.fixture
async def door(redis_url: str, namespace: str) -> AsyncIterator[Door]:
    async with open_door(redis_url, namespace) as opened:
        await opened.own()
        yield opened


def proposal(door: Door, *, then: tuple[Step, ...] = ()) -> RunStep:
    sealed = seal(name="event", origin=RESTAURANT, at=door.clock.now)
    return step("buy", {"of": "wine"}, now=door.clock.now, seals=[sealed], offer=True, then=then, key="p1")


async def proposed(door: Door, *, then: tuple[Step, ...] = ()) -> list[World | None]:
    """What the door read for the question."""
    await door.send(proposal(door, then=then))
    answer = door.finished()[-1]
    assert answer.state == "needs_consent", answer
    return [World.model_validate(one) if one else None for one in answer.result["worlds"]]


async def approved(door: Door, worlds: list[World | None], *steps: Step) -> RunStep:
    """The call of the first step of an accepted action."""
    taken = steps or (BUY,)
    stored = [one.model_dump() for one in taken]
    decision = await door.accept("A1", stored, lapses_at=door.clock.now + HOUR_MS, worlds=worlds)
    return step("buy", {"of": "wine"}, now=door.clock.now, action="A1", seals=[decision])


async def test_a_proposal_reads_the_world_and_sends_nothing(door: Door) -> None:
    shop = Shop(door)
    (world,) = await proposed(door)
    assert world is not None
    assert world.is_of(SEAL_KEYS, "s1", BUY)
    assert [call.tool for call in door.destination.calls] == ["price"]
    assert door.destination.calls[0].args == {"of": "wine"}
    assert shop.bought() == 0


async def test_what_was_read_is_attested_for_this_step_of_this_session_alone(door: Door) -> None:
    Shop(door)
    (world,) = await proposed(door)
    assert world is not None
    assert not world.is_of(SEAL_KEYS, "s2", BUY)
    assert not world.is_of(SEAL_KEYS, "s1", Step(tool="buy", args={"of": "beer"}))
    assert not world.model_copy(update={"digest": "0" * 64}).is_of(SEAL_KEYS, "s1", BUY)
    assert not world.model_copy(update={"read_at": world.read_at + 1}).is_of(SEAL_KEYS, "s1", BUY)


async def test_every_step_of_the_question_is_read_that_relies_on_something(door: Door) -> None:
    Shop(door)
    worlds = await proposed(door, then=(Step(tool="mail", args={}), Step(tool="buy", args={"of": "beer"})))
    assert [world is not None for world in worlds] == [True, False, True]


async def test_an_approved_step_runs_while_the_world_is_as_it_was_shown(door: Door) -> None:
    shop = Shop(door)
    call = await approved(door, await proposed(door))
    assert await door.send(call) is Outcome.HANDLED
    assert door.finished()[-1].state == "committed"
    assert shop.bought() == 1


async def test_an_approved_step_is_not_sent_where_the_world_has_changed(door: Door) -> None:
    shop = Shop(door)
    call = await approved(door, await proposed(door))
    shop.price = 11
    assert await door.send(call) is Outcome.REFUSED
    answer = door.finished()[-1]
    assert (answer.state, answer.reason) == (
        "precondition_failed", "what it relies on has changed since the question was asked"
    )  # fmt: skip
    assert shop.bought() == 0
    assert door.counted("buy", "precondition_failed") == 1
    (notice,) = [message for _, message in door.messages() if isinstance(message, Notice)]
    assert notice.data["state"] == "precondition_failed"


async def test_a_repeat_gives_the_same_answer_also_when_the_world_is_again_as_it_was(door: Door) -> None:
    shop = Shop(door)
    call = await approved(door, await proposed(door))
    shop.price = 11
    await door.send(call)
    shop.price = 10
    assert await door.send(call) is Outcome.REPEATED
    assert [answer.state for answer in door.finished()[1:]] == ["precondition_failed"] * 2
    assert shop.bought() == 0


async def test_a_step_that_ran_is_told_as_committed_although_it_changed_the_world_itself(door: Door) -> None:
    shop = Shop(door)
    call = await approved(door, await proposed(door))
    await door.send(call)
    shop.price = 12
    assert await door.send(call) is Outcome.REPEATED
    assert door.finished()[-1].state == "committed"
    assert shop.bought() == 1


@pytest.mark.parametrize("says", [Unknown("no answer"), Failed("no route"), Refused("closed"), Committed({"sum": 1})])
async def test_nothing_is_sent_where_the_world_cannot_be_read(door: Door, says: ToolOutcome) -> None:
    shop = Shop(door)
    call = await approved(door, await proposed(door))
    shop.says = says
    await door.send(call)
    answer = door.finished()[-1]
    assert answer.state == "precondition_failed"
    assert answer.reason.startswith("what it relies on could not be read: ")
    assert shop.bought() == 0


async def test_nothing_is_asked_where_the_world_cannot_be_read(door: Door) -> None:
    shop = Shop(door)
    shop.says = Unknown("no answer")
    await door.send(proposal(door))
    assert door.finished()[-1].state == "precondition_failed"
    assert "no answer" in door.finished()[-1].reason


async def test_an_action_that_was_asked_without_its_world_is_not_run(door: Door) -> None:
    shop = Shop(door)
    await door.send(await approved(door, []))
    assert door.finished()[-1].state == "precondition_failed"
    assert shop.bought() == 0


async def test_the_digest_is_of_what_the_template_picks_and_not_of_the_rest(door: Door) -> None:
    """`seen` differs at each reading, and only `price` counts."""
    Shop(door)
    first, second = await proposed(door), None
    await door.send(proposal(door).model_copy(update={"key": "p2", "operation": "O9"}))
    second = door.finished()[-1].result["worlds"][0]
    assert first[0] is not None
    assert first[0].digest == second["digest"]


async def test_a_users_own_step_is_not_held_up_by_a_precondition(door: Door) -> None:
    shop = Shop(door)
    await door.send(step("buy", {"of": "wine"}, now=door.clock.now))
    assert [call.tool for call in door.destination.calls] == ["buy"]
    assert shop.bought() == 1


async def test_the_key_of_a_step_that_was_not_sent_is_closed(door: Door) -> None:
    shop = Shop(door)
    call = await approved(door, await proposed(door))
    shop.price = 11
    await door.send(call)
    stored = await door.operation(action_key("A1", 0))
    assert (stored["state"], stored["tool"]) == ("precondition_failed", "buy")


async def test_too_many_steps_are_not_read_for_one_question(door: Door) -> None:
    Shop(door)
    await door.send(proposal(door, then=(BUY,) * 40))
    assert door.finished()[-1].state == "refused"
    assert door.destination.calls == []

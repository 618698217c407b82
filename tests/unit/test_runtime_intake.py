"""Acknowledgements of a channel: in order and one after another where they are prefixes, each by itself where not."""

import asyncio
import random

import pytest

from libs.runtime.intake import Delivery, Intake, _Channel


class Underlay:
    """A driver's channel whose queue of frames is full now and then: one that waits may be overtaken."""

    is_closed = False

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.acknowledged = []

    async def basic_ack(self, tag, *, multiple, wait):
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        self.acknowledged.append((tag, multiple))


def deliveries(channel, count):
    made = [Delivery(b"", "", False, {}, None, None, None, tag, channel) for tag in range(1, count + 1)]
    for delivery in made:
        channel.receive(delivery)
    return made


async def finish(channel, made, chance):
    chance.shuffle(made)
    for delivery in made:
        delivery.done()
        await asyncio.sleep(0)
    await channel.settled()


@pytest.mark.parametrize("number", range(20))
async def test_no_prefix_is_acknowledged_after_a_longer_one(seed, number):
    underlay = Underlay(seed + number)
    channel = _Channel(underlay, singly=False)
    await finish(channel, deliveries(channel, 50), underlay.chance)
    tags = [tag for tag, _ in underlay.acknowledged]
    assert tags == sorted(set(tags))
    assert tags[-1] == 50
    assert all(multiple for _, multiple in underlay.acknowledged)


async def test_what_is_acknowledged_singly_waits_for_nobody_and_is_acknowledged_once(seed):
    underlay = Underlay(seed)
    channel = _Channel(underlay, singly=True)
    slow, *quick = deliveries(channel, 50)
    await finish(channel, quick, underlay.chance)
    assert sorted(underlay.acknowledged) == [(tag, False) for tag in range(2, 51)]
    await finish(channel, [slow], underlay.chance)
    assert underlay.acknowledged[-1] == (1, False)


async def test_nothing_is_acknowledged_beyond_the_finished_prefix(seed):
    underlay = Underlay(seed)
    channel = _Channel(underlay, singly=False)
    first, *others = deliveries(channel, 5)
    await finish(channel, others, underlay.chance)
    assert underlay.acknowledged == []
    await finish(channel, [first], underlay.chance)
    assert underlay.acknowledged == [(5, True)]


class LosesCancelling:
    """A broker whose driver answers when it is cancelled, as `asyncio.wait_for` may before Python 3.12."""

    is_closed = False

    def __init__(self, at):
        self.at = at
        self.reached = asyncio.Event()
        self.consumers = {"tag"}
        self.consumer_tag = "tag"

    @property
    def consuming(self):
        return self

    async def _step(self, name):
        if name == self.at and not self.reached.is_set():
            self.reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return self
        return self

    async def channel(self, *, confirms):
        return await self._step("channel")

    async def get_underlay_channel(self):
        return await self._step("underlay")

    async def basic_qos(self, **_):
        return await self._step("qos")

    async def basic_consume(self, *_, **__):
        return await self._step("consume")

    async def close(self):
        return await self._step("close")


@pytest.mark.parametrize("at", ["channel", "underlay", "qos", "consume"])
async def test_who_is_told_to_end_ends_though_the_driver_loses_the_cancelling(at):
    broker = LosesCancelling(at)
    serving = asyncio.create_task(Intake(broker, "queue", lambda _: None, prefetch=1).serve())
    await broker.reached.wait()
    serving.cancel()
    done, _ = await asyncio.wait([serving], timeout=5)
    assert done

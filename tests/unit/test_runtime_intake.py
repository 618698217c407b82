"""Acknowledgements of a channel: prefixes, in order and one after another."""

import asyncio
import random

import pytest

from libs.runtime.intake import Delivery, _Channel


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
        channel.open.append(delivery)
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
    channel = _Channel(underlay)
    await finish(channel, deliveries(channel, 50), underlay.chance)
    tags = [tag for tag, _ in underlay.acknowledged]
    assert tags == sorted(set(tags))
    assert tags[-1] == 50
    assert all(multiple for _, multiple in underlay.acknowledged)


async def test_nothing_is_acknowledged_beyond_the_finished_prefix(seed):
    underlay = Underlay(seed)
    channel = _Channel(underlay)
    first, *others = deliveries(channel, 5)
    await finish(channel, others, underlay.chance)
    assert underlay.acknowledged == []
    await finish(channel, [first], underlay.chance)
    assert underlay.acknowledged == [(5, True)]

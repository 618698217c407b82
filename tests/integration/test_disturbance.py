"""The disturbance of the anchors is legal: nothing is lost or made up, and each confirm is that of its own message."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import orjson
import pytest

from libs.contracts.codec import encode
from libs.contracts.envelope import Envelope
from libs.contracts.topology import Topology
from libs.runtime.connections import Broker
from libs.runtime.publisher import Outgoing, Publisher
from libs.runtime.topology import declare
from tests.support.courier import PARTITIONS, envelope, outside, step
from tests.support.disturbance import DisturbedCrossing, Noise
from tests.support.eventually import eventually

TYPE = "tools.step_finished.v1"


@pytest.fixture
def noise(seed: int) -> Noise:
    """The disturbance of this test."""
    return Noise(seed)


@pytest.fixture
async def publisher(amqp_url: str, namespace: str, noise: Noise) -> AsyncIterator[Publisher]:
    """A service's own publisher, disturbed."""
    topology = Topology(namespace, PARTITIONS)
    await declare(amqp_url, topology)
    crossing = DisturbedCrossing(amqp_url, "p", noise)
    broker = Broker(crossing.url, "test-disturbed")
    made = Publisher(broker, topology)
    serving = asyncio.create_task(made.serve())
    yield made
    serving.cancel()
    await broker.close()
    crossing.close()


async def test_all_that_was_published_arrives_often_twice_and_in_another_order(
    amqp_url: str, namespace: str, noise: Noise, publisher: Publisher
) -> None:
    topology = Topology(namespace, PARTITIONS)
    sent = [envelope(*step("s1", f"O{number}")) for number in range(150)]
    came: list[str] = []

    async def publish(one: Envelope) -> None:
        await publisher.send(Outgoing(one.id, topology.work, "tools", encode(one)))

    async with outside(amqp_url, namespace) as out:
        for at in range(0, len(sent), 2):  # two and two: what waits together travels in one bundle
            await asyncio.gather(*(publish(one) for one in sent[at : at + 2]))
        queue = await out._channel.get_queue(topology.work_queue("tools"), ensure=False)

        async def all_there() -> bool:
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                came.extend(member["id"] for member in orjson.loads(message.body))
            return set(came) == {one.id for one in sent} and max(Counter(came).values()) > 2

        await eventually(all_there, within=10)
    assert list(dict.fromkeys(came)) != [one.id for one in sent]
    assert min(noise.done[TYPE, move] for move in ("held", "copied", "shuffled")) > 0


async def test_a_confirm_is_that_of_its_own_message(namespace: str, noise: Noise, publisher: Publisher) -> None:
    topology = Topology(namespace, PARTITIONS)
    sent = {}
    for number in range(40):
        one = envelope(*step("s1", f"O{number}"))
        key = "nowhere" if number % 4 == 0 else "tools"
        sent[number] = publisher.send(Outgoing(one.id, topology.work, key, encode(one)))
        await asyncio.wait([sent[number]])
    refused = {number for number, confirmed in sent.items() if confirmed.exception() is not None}
    assert refused == set(range(0, 40, 4))


def test_the_same_seed_does_the_same_to_the_same_message_whatever_came_between() -> None:
    one, other = Noise(7), Noise(7)
    other.moves([("b", TYPE)])
    one.moves([("b", TYPE)])
    other.moves([("c", TYPE)])
    first, second = (noise.moves([("a", TYPE)]) for noise in (one, other))
    assert (first.held, first.copies) == (second.held, second.copies)
    assert one.cuts("session-0", "a") == other.cuts("session-0", "a")

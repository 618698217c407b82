"""Which confirm belongs to which message: the broker counts what arrives, so numbers follow the order of writing."""

import asyncio
from types import SimpleNamespace

import pytest
from aiormq.exceptions import AMQPConnectionError, ChannelClosed
from pamqp.body import ContentBody
from pamqp.commands import Basic

from libs.runtime.confirms import ConfirmChannel, Sent
from tests.support.eventually import eventually


@pytest.fixture
async def driver() -> SimpleNamespace:
    """What of the driver's channel is used, with a queue that holds one write."""
    return SimpleNamespace(
        number=1,
        lock=asyncio.Lock(),
        delivery_tag=0,
        confirmations={},
        message_id_delivery_tag={},
        write_queue=asyncio.Queue(maxsize=1),
        closing=asyncio.get_running_loop().create_future(),
        is_closed=False,
        _split_body=lambda body: [ContentBody(body)],
    )


def packed(channel: ConfirmChannel, name: str) -> Sent:
    properties = Basic.Properties(message_id=name)
    return channel.pack(name.encode(), exchange="e", routing_key="r", mandatory=True, properties=properties)


async def test_numbers_are_given_in_the_order_of_writing_also_to_one_that_would_overtake(
    driver: SimpleNamespace,
) -> None:
    channel = ConfirmChannel(driver)
    batches = [[packed(channel, f"m{batch}{place}") for place in range(3)] for batch in range(3)]
    sending = [asyncio.create_task(channel.send(batch, seconds=5)) for batch in batches[:2]]
    await eventually(driver.write_queue.full)  # the first is written, the second waits
    sending.append(asyncio.create_task(channel.send(batches[2], seconds=5)))
    written = [driver.write_queue.get_nowait().payload]  # room, of which the third hears first
    written += [(await driver.write_queue.get()).payload for _ in range(2)]
    await eventually(lambda: len(driver.confirmations) == 9)
    names = [name for payload in written for name in _names(payload, batches)]
    for tag, name in enumerate(names, 1):
        driver.confirmations.pop(tag).set_result(name)
    await asyncio.gather(*sending)
    assert [(sent.message_id, sent.confirmed.result()) for batch in batches for sent in batch] == [
        (name, name) for name in sorted(names)
    ]


def _names(payload: bytes, batches: list[list[Sent]]) -> list[str]:
    return [sent.message_id for batch in batches for sent in batch if sent.message_id.encode() in payload]


async def test_a_write_that_was_given_up_takes_its_numbers_back(driver: SimpleNamespace) -> None:
    channel = ConfirmChannel(driver)
    await driver.write_queue.put("full")
    given_up = asyncio.create_task(channel.send([packed(channel, "a"), packed(channel, "b")], seconds=5))
    await eventually(lambda: bool(driver.confirmations))
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert (driver.delivery_tag, driver.confirmations) == (0, {})
    assert not driver.lock.locked()


async def test_what_is_not_confirmed_in_time_is_cancelled_and_its_late_confirm_disturbs_nothing(
    driver: SimpleNamespace,
) -> None:
    channel = ConfirmChannel(driver)
    late = packed(channel, "late")
    await channel.send([late], seconds=0.01)
    assert late.confirmed.cancelled()
    assert driver.confirmations[1].done()  # the driver leaves alone what is done
    assert driver.message_id_delivery_tag == {}


@pytest.mark.parametrize("error", [None, ChannelClosed(404, "no exchange")])
async def test_a_channel_that_breaks_fails_all_that_waits_at_once(
    driver: SimpleNamespace, error: Exception | None
) -> None:
    channel = ConfirmChannel(driver)
    sent = packed(channel, "m")
    sending = asyncio.create_task(channel.send([sent], seconds=60))
    await driver.write_queue.get()
    driver.closing.set_exception(error) if error else driver.closing.set_result(None)
    await sending
    with pytest.raises(type(error) if error else AMQPConnectionError):
        sent.confirmed.result()

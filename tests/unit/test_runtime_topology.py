"""Declaring on a broker that was stopped with its data and has just started again."""

import aio_pika
import pytest

from libs.contracts.topology import Topology
from libs.runtime import topology

TOLD = "NOT_FOUND - home node 'tk@localhost' of durable queue 'turnkeeper.archive' in vhost '/' is down or inaccessible"


def broker(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """It gives these answers in turn, then takes everything; what is left of them."""
    left = list(answers)

    async def declare(amqp_url: str, of: Topology) -> None:
        if left:
            raise aio_pika.exceptions.ChannelNotFoundEntity(left.pop(0))

    monkeypatch.setattr(topology, "_declare", declare)
    monkeypatch.setattr(topology, "POLL_SECONDS", 0)
    return left


async def test_a_queue_that_recovers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    left = broker(monkeypatch, TOLD, TOLD)
    await topology.declare("amqp://x", Topology("", 1), patience=30)
    assert left == []


async def test_a_queue_that_recovers_too_late_and_any_other_fault_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience, told in ((0.0, TOLD), (30.0, "NOT_FOUND - no queue 'x' in vhost '/'")):
        left = broker(monkeypatch, told, told)
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity, match="NOT_FOUND"):
            await topology.declare("amqp://x", Topology("", 1), patience=patience)
        assert len(left) == 1

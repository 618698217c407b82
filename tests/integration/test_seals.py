"""What ingress seals of an input, on a real Redis, and what the door makes of it: kind and writer are covered (G3)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.ingress import Input
from libs.contracts.origin import seal_is_valid
from services.ingress.domain import user_input
from services.tools.domain import Rejection, authority
from tests.support.ingress import NOW, SEAL_KEYS, Replica, an_event, ingress_replica


@pytest.fixture
async def ingress(redis_url: str, namespace: str) -> AsyncIterator[Replica]:
    async with ingress_replica(redis_url, namespace) as replica:
        await replica.store.create_session("s1", "ana", NOW)
        yield replica


async def sealed(ingress: Replica, *events: Any) -> list[Input]:
    for event in events:
        await ingress.admissions.place(event)
    return [Input.model_validate_json(packed) for packed in await ingress.inbox("s1")]


async def test_kind_and_writer_are_sealed_and_nothing_of_them_can_be_taken_off(ingress: Replica) -> None:
    said = user_input("message", "app", "ana", "s1", "k1", {"text": "no A1"}, now=NOW, window_ms=1000)
    found = await sealed(ingress, replace(an_event(), written_by="ben"), said)
    assert [(one.kind, one.seal.kind) for one in found] == [("event", "event"), ("message", "decision")]
    assert [one.seal.origin.written_by for one in found] == ["ben", ""]
    for one in found:
        assert seal_is_valid(SEAL_KEYS, one.seal)
        assert one.origin == one.seal.origin
        bare = one.seal.origin.model_copy(update={"written_by": "x"})
        for forged in ({"kind": ""}, {"origin": bare}):
            assert not seal_is_valid(SEAL_KEYS, one.seal.model_copy(update=forged))


async def test_inputs_of_two_writers_of_one_source_are_of_two_principals(ingress: Replica) -> None:
    by = [replace(an_event(f"e{n}"), written_by=author) for n, author in enumerate(("ben", "ben", "cem"))]
    one, same, other = await sealed(ingress, *by)
    assert not isinstance(authority([one.seal, same.seal], "s1", SEAL_KEYS), Rejection)
    refused = authority([one.seal, other.seal], "s1", SEAL_KEYS)
    assert isinstance(refused, Rejection)
    assert refused.code == "mixed_principals"

"""One event in many copies at once, over both doors, to two ingress processes (C072)."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.eventually import eventually_sync
from tests.support.webhooks import sign_webhook
from turnkeeper import stack as stacks

COPIES = 200
EVENT = "evt_copies"
APP = Path(__file__).parent.parent / "chaos" / "app" / "turnkeeper.yaml"


@pytest.fixture
def stack(
    tmp_path: Path, redis_url: str, amqp_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[stacks.Stack]:
    """Two ingress processes and one of each other service, on the servers of this run."""
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", redis_url)
    monkeypatch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
    monkeypatch.setenv("TURNKEEPER_NAMESPACE", namespace)
    running = stacks.start_stack(tmp_path, "external", 0, APP, {"ingress": 2})
    yield running
    running.stop()


def counted(text: str, name: str, **labels: str) -> float:
    """One sample of a scrape."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


async def send_copies(stack: stacks.Stack, secret: str, amqp_url: str, namespace: str) -> Counter[str]:
    """Half over HTTP to two replicas, half over AMQP, all at once. The answers over HTTP."""
    body = json.dumps({"type": "note.wished", "data": {"session": "s1", "event": EVENT}}).encode()
    headers = sign_webhook(secret, EVENT, int(time.time()), body)
    connection = await aio_pika.connect(amqp_url)
    async with connection, httpx2.AsyncClient(timeout=30) as http:
        channel = await connection.channel()
        exchange = await channel.get_exchange(f"{namespace}.turnkeeper.events", ensure=False)

        async def over_http(number: int) -> str:
            response = await http.post(
                f"{stack.url('ingress', number % 2)}/v1/events/shop", content=body, headers=headers
            )
            return str(response.json()["status"])

        async def over_amqp() -> str:
            await exchange.publish(aio_pika.Message(body, headers=dict(headers)), "shop.note.wished")
            return "published"

        answers = await asyncio.gather(
            *(over_http(number) if number % 2 else over_amqp() for number in range(COPIES)),
        )
    return Counter(answers)


def test_of_200_copies_over_both_doors_one_is_accepted_and_one_turn_runs(
    stack: stacks.Stack, amqp_url: str, namespace: str
) -> None:
    """C072: One accepted, 199 duplicates, one turn, one effect."""
    secrets = json.loads((stack.state / "secrets.json").read_text())
    operator = {"Authorization": f"Bearer {secrets['operator_token']}"}
    created = httpx2.put(f"{stack.url('ingress')}/v1/sessions/s1", json={"owner": "ana"}, headers=operator)
    assert created.is_success

    answers = asyncio.run(send_copies(stack, secrets["sources"]["SHOP_SECRET"], amqp_url, namespace))

    def ingress(outcome: str) -> float:
        texts = [httpx2.get(f"{stack.url('ingress', replica)}/metrics").text for replica in (0, 1)]
        name = "turnkeeper_ingress_events_total"
        return sum(counted(text, name, source="shop", outcome=outcome) for text in texts)

    eventually_sync(lambda: ingress("accepted") + ingress("duplicate") == COPIES, within=30)
    assert ingress("accepted") == 1
    assert ingress("duplicate") == COPIES - 1
    assert answers["accepted"] <= 1
    assert answers["accepted"] + answers["duplicate"] == COPIES // 2

    def effects() -> list[dict[str, object]]:
        lines = (stack.state / "sandbox.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["collection"] == "notes"]

    eventually_sync(lambda: len(effects()) == 1, within=30)
    shown = httpx2.get(f"{stack.url('session')}/v1/sessions/s1/timeline", headers=operator).json()["lines"]
    assert Counter(line["kind"] for line in shown)["turn.start"] == 1
    assert len(effects()) == 1

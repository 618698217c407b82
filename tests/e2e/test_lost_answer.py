"""A destination that acts and then does not answer (A9, stripe/ai#402): its own ledger says what happened."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.eventually import eventually_sync
from turnkeeper import stack as stacks
from turnkeeper.client import Client
from turnkeeper.target import of_stack

APP = """
sources: {app: {verify: {scheme: user-token}}}
tools:
  pay:
    effect: write
    args: {type: object, properties: {sum: {type: string}}, required: [sum]}
    connector: {python: {function: "bank:pay", timeout: 500ms}}
    lookup: {tool: find_charge, args: {key: "{{ key }}"}}
  find_charge:
    effect: read
    args: {type: object, properties: {key: {type: string}}, required: [key]}
    connector: {python: {function: "bank:find", timeout: 5s}}
planner: {scripted: {rules: rules.yaml}}
"""
RULES = """
rules:
  - when: {origin: user, text: "pay (?P<sum>[0-9.]+)"}
    steps: [{tool: pay, args: {sum: "{{ m.sum }}"}}]
"""
BANK = """
import json, time
from pathlib import Path

LEDGER = Path(__file__).with_name("ledger.jsonl")

def pay(sum, idempotency_key):
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"id": "ch_1", "sum": sum, "key": idempotency_key}) + "\\n")
    time.sleep(2)  # longer than the tool's timeout: the answer comes too late
    return {"id": "ch_1"}

def find(key):
    charges = map(json.loads, LEDGER.read_text().splitlines())
    return next(({"id": charge["id"]} for charge in charges if charge["key"] == key), None)
"""


@pytest.fixture
def stack(
    tmp_path: Path, redis_url: str, amqp_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[stacks.Stack]:
    """One process of each service, and a bank beside the application's file."""
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", redis_url)
    monkeypatch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
    monkeypatch.setenv("TURNKEEPER_NAMESPACE", namespace)
    app = tmp_path / "app"
    app.mkdir()
    for name, text in (("turnkeeper.yaml", APP), ("rules.yaml", RULES), ("bank.py", BANK)):
        (app / name).write_text(text)
    running = stacks.start_stack(tmp_path / "state", "external", 0, app / "turnkeeper.yaml")
    yield running
    running.stop()


def test_a9_a_charge_whose_answer_is_lost_is_found_and_made_once(stack: stacks.Stack, tmp_path: Path) -> None:
    with Client(of_stack(stack)) as client:
        client.create_session("s1", "ana")
        client.say("s1", "pay 10.00", "ana")

        def kinds() -> list[str]:
            return [line.kind for line in client.timeline("s1") if line.kind.startswith("tool.")]

        eventually_sync(lambda: "tool.committed" in kinds(), within=60)
        assert kinds() == ["tool.sent", "tool.unknown", "tool.committed"]
        (operation,) = client.operations("s1")
        assert (operation["state"], operation["result"]) == ("committed", {"id": "ch_1"})
    (charge,) = map(json.loads, (tmp_path / "app" / "ledger.jsonl").read_text().splitlines())
    assert charge["sum"] == "10.00"
    eventually_sync(
        lambda: "\nturnkeeper_tools_unknown 0.0" in httpx2.get(f"{stack.url('tools')}/metrics").text, within=10
    )

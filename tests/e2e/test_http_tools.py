"""A real HTTP service, in another process with a ledger of its own, as the tools of a running stack: the scenario
`lost-answer` over the connector `http`, and what a destination that fails does to the rest."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.api import ApiProcess, running_api
from tests.support.eventually import eventually_sync
from turnkeeper import stack as stacks
from turnkeeper.client import Client
from turnkeeper.target import of_stack

OWNER = "ana"
TOKEN = "Bearer 0nly-the-door-has-it"
COUNTS = {"ingress": 1, "session": 1, "consent": 1, "tools": 2}
RULES = {
    "rules": [
        {"when": "{{ input.data.text == 'book' and not results }}",
         "steps": [{"tool": "book", "args": {"shop": "trattoria", "party": 4}}]},
        {"when": "{{ results and results[-1].state == 'committed' }}", "reply": "booked {{ results[-1].result.id }}"},
    ]
}  # fmt: skip


def application(url: str) -> dict[str, Any]:
    secret = {"Authorization": "env:BOOKING_TOKEN"}
    text, number = {"type": "string"}, {"type": "integer"}
    booking = {"type": "object", "properties": {"shop": text, "party": number}, "required": ["shop", "party"]}
    keyed = {"type": "object", "properties": {"key": text}, "required": ["key"]}
    return {
        "sources": {"app": {"verify": {"scheme": "user-token"}}},
        "tools": {
            "book": {
                "args": booking,
                "connector": {
                    "http": {
                        "url": f"{url}/v1/shops/{{{{ shop }}}}/bookings", "headers": secret, "timeout": "2s",
                        "body": {"party": "{{ party }}"}, "result": {"id": "{{ answer.id }}"},
                    }
                },
                "lookup": {"tool": "find", "args": {"key": "{{ key }}"}, "result": "{{ {'id': found[0].id} if found else none }}"},
            },
            "find": {
                "effect": "read", "args": keyed,
                "connector": {
                    "http": {
                        "method": "GET", "url": f"{url}/v1/bookings", "query": {"key": "{{ key }}"}, "headers": secret,
                        "result": "{{ answer.bookings }}", "timeout": "2s",
                    }
                },
            },
        },
        "planner": {"scripted": {"rules": "rules.yaml"}},
    }  # fmt: skip


@contextlib.contextmanager
def running(folder: Path, api: ApiProcess) -> Iterator[tuple[stacks.Stack, Client]]:
    (folder / "turnkeeper.yaml").write_text(yaml.safe_dump(application(api.url)))
    (folder / "rules.yaml").write_text(yaml.safe_dump(RULES))
    stack = stacks.start_stack(folder / "state", "external", 0, folder / "turnkeeper.yaml", COUNTS, {}, partitions=4)
    try:
        with Client(of_stack(stack)) as client:
            yield stack, client
    finally:
        stack.stop()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    with running_api(tmp_path) as process:
        yield process


@pytest.fixture
def stage(
    tmp_path: Path, api: ApiProcess, redis_url: str, amqp_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[stacks.Stack, Client]]:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", redis_url)
    monkeypatch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
    monkeypatch.setenv("TURNKEEPER_NAMESPACE", namespace)
    monkeypatch.setenv("BOOKING_TOKEN", TOKEN)
    with running(tmp_path, api) as started:
        yield started


def kinds(client: Client, session: str) -> list[str]:
    return [line.kind for line in client.timeline(session)]


def wait_for(client: Client, session: str, kind: str) -> None:
    def there() -> bool:
        assert kind in kinds(client, session), kinds(client, session)
        return True

    eventually_sync(there, 30)


@pytest.mark.parametrize("how", ["cut", "hang", "torn"])
def test_a_lost_answer_is_looked_up_and_the_booking_is_there_once(
    stage: tuple[stacks.Stack, Client], api: ApiProcess, how: str
) -> None:
    """`lost-answer` over HTTP: unknown, asked, committed; one booking, and the user never hears that it failed."""
    _, client = stage
    client.create_session("s1", OWNER)
    api.then(how=how, body="{")
    client.say("s1", "book", OWNER)
    wait_for(client, "s1", "turn.done")
    told = [kind for kind in kinds(client, "s1") if kind.startswith("tool.")]
    assert told == ["tool.sent", "tool.unknown", "tool.committed"]
    (booking,) = api.booked()
    assert (booking["shop"], booking["party"]) == ("trattoria", 4)
    replies = [line.text for line in client.timeline("s1") if line.kind == "reply"]
    assert replies == [f"booked {booking['id']}"]
    posts = [request for request in api.requests() if request["method"] == "POST"]
    assert len(posts) == 1, "it is asked, never sent again"
    (asked,) = [request for request in api.requests() if request["method"] == "GET"][-1:]
    assert booking["key"] in asked["target"]
    assert posts[0]["headers"]["turnkeeper-actor"] == "user:app:ana"
    assert posts[0]["headers"]["authorization"] == TOKEN


def test_the_tools_secret_is_the_doors_alone_and_is_told_nowhere(
    stage: tuple[stacks.Stack, Client], api: ApiProcess, tmp_path: Path
) -> None:
    stack, client = stage
    client.create_session("s1", OWNER)
    api.then(status=500, body=f"you sent {TOKEN}", commit=True)
    client.say("s1", "book", OWNER)
    wait_for(client, "s1", "turn.done")
    written = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert written
    for path in written:
        assert TOKEN.encode() not in path.read_bytes(), path
        assert TOKEN.removeprefix("Bearer ").encode() not in path.read_bytes(), path
    has = {name: TOKEN.encode() in environment_of(pid) for name, pid in pids(stack).items()}
    assert {name for name, found in has.items() if found} == {"tools-0", "tools-1"}


def pids(stack: stacks.Stack) -> dict[str, int]:
    return {name: pid for name, pid in stack.pids().items() if name.rpartition("-")[0] in COUNTS}


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_a_secret_that_is_missing_stops_the_start_and_names_its_place(
    tmp_path: Path, api: ApiProcess, redis_url: str, amqp_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", redis_url)
    monkeypatch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
    monkeypatch.setenv("TURNKEEPER_NAMESPACE", namespace)
    assert "BOOKING_TOKEN" not in os.environ
    with pytest.raises(Exception, match=r"tools\.book\.connector\.http\.headers\.Authorization: .*BOOKING_TOKEN"):
        with running(tmp_path, api):
            raise AssertionError("it started")

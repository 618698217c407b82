"""A real HTTP service, in another process with a ledger of its own, as the tools of a running stack: the scenario
`lost-answer` over the connector `http`, and what a destination that fails does to the rest."""

import contextlib
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
        {"when": {"text": "book"}, "steps": [{"tool": "book", "args": {"shop": "trattoria", "party": 4}}]},
        {"when": {"after": "book", "state": "committed"}, "reply": "booked {{ results[-1].result.id }}"},
    ]
}


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
                "lookup": {
                    "tool": "find", "args": {"key": "{{ key }}"},
                    "result": "{{ {'id': found[0].id} if found else none }}",
                },
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http-tools")


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[ApiProcess]:
    with running_api(folder) as process:
        yield process


@pytest.fixture(scope="module")
def stage(folder: Path, api: ApiProcess, redis_url: str, amqp_url: str) -> Iterator[tuple[stacks.Stack, Client]]:
    """One stack for all: each test has a session of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNKEEPER_REDIS_URL", redis_url)
        patch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
        patch.setenv("TURNKEEPER_NAMESPACE", f"{folder.parent.name}-{folder.name}")
        patch.setenv("BOOKING_TOKEN", TOKEN)
        with running(folder, api) as started:
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
    before = len(api.booked())
    client.create_session(how, OWNER)
    api.then(how=how, body="{")
    client.say(how, "book", OWNER)
    wait_for(client, how, "turn.done")
    told = [kind for kind in kinds(client, how) if kind.startswith("tool.")]
    assert told == ["tool.sent", "tool.unknown", "tool.committed"]
    (booking,) = api.booked()[before:]
    assert (booking["shop"], booking["party"]) == ("trattoria", 4)
    replies = [line.text for line in client.timeline(how) if line.kind == "reply"]
    assert replies == [f"booked {booking['id']}"]
    about = [sent for sent in api.requests() if booking["key"] in f"{sent['target']}{sent['headers']}"]
    (sent,) = [request for request in about if request["method"] == "POST"]  # it is asked, never sent again
    assert sent["headers"]["turnkeeper-actor"] == "agent"
    assert sent["headers"]["authorization"] == TOKEN
    assert f"?key={booking['key']}" in [one for one in about if one["method"] == "GET"][-1]["target"]


def test_the_tools_secret_is_the_doors_alone_and_is_told_nowhere(
    stage: tuple[stacks.Stack, Client], api: ApiProcess, folder: Path
) -> None:
    stack, client = stage
    client.create_session("echo", OWNER)
    api.then(status=500, body=f"you sent {TOKEN}", commit=True)
    client.say("echo", "book", OWNER)
    wait_for(client, "echo", "turn.done")
    lines = [line.text for line in client.timeline("echo")]
    assert any("you sent …" in line for line in lines), lines
    logs = list((folder / "state").rglob("*.log"))
    assert len(logs) >= len(stack.pids)
    bare = TOKEN.removeprefix("Bearer ")
    assert [path for path in logs if bare.encode() in path.read_bytes()] == []
    assert bare not in "".join(lines)
    has = {name for name, pid in pids(stack).items() if bare.encode() in environment_of(pid)}
    assert has == {"tools-0", "tools-1"}


def pids(stack: stacks.Stack) -> dict[str, int]:
    return {name: pid for name, pid in stack.pids.items() if name.rpartition("-")[0] in COUNTS}


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_a_secret_that_is_missing_stops_the_start_and_names_its_place(
    tmp_path: Path, api: ApiProcess, redis_url: str, amqp_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNKEEPER_REDIS_URL", redis_url)
    monkeypatch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
    monkeypatch.setenv("TURNKEEPER_NAMESPACE", namespace)
    monkeypatch.delenv("BOOKING_TOKEN", raising=False)
    place = r"tools\.book\.connector\.http\.headers\.Authorization: .*BOOKING_TOKEN"
    with pytest.raises(Exception, match=place), running(tmp_path, api):
        raise AssertionError("it started")

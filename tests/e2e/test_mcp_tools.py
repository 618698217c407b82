"""Tools of a real MCP server, in other processes over streamable HTTP and stdio, in a running stack: question, yes, one
effect; and what a server that changes or dies does to what was approved."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from libs.contracts.mcp import schema_digest
from tests.support.eventually import eventually_sync
from tests.support.mcp_server import INPUT, OUTPUT, McpProcess
from turnkeeper import stack as stacks
from turnkeeper.client import Client
from turnkeeper.target import of_stack

OWNER = "ana"
COUNTS = {"ingress": 1, "session": 1, "consent": 1, "tools": 1}
WAYS = ("http", "stdio")


def application(servers: dict[str, McpProcess]) -> dict[str, Any]:
    args = {"type": "object", "properties": {"party": {"type": "integer"}}, "required": ["party"]}

    def tool(reached: dict[str, Any]) -> dict[str, Any]:
        mcp = {**reached, "tool": "reserve_table", "schema": schema_digest(INPUT, OUTPUT), "timeout": "30s"}
        return {"args": args, "consent": "always", "connector": {"mcp": mcp}}

    secret = {"headers": {"Authorization": "env:MCP_TOKEN"}}
    return {
        "sources": {"app": {"verify": {"scheme": "user-token"}}},
        "tools": {
            "http": tool({"url": servers["http"].url, **secret}),
            "stdio": tool({"command": list(servers["stdio"].command), "env": {"TOKEN": "env:MCP_TOKEN"}}),
        },
        "planner": {"scripted": {"rules": "rules.yaml"}},
    }


RULES = {
    "rules": [
        *({"when": {"text": f"book by {way}"}, "steps": [{"tool": way, "args": {"party": 4}}]} for way in WAYS),
    ]
}


@dataclass
class Stage:
    client: Client
    servers: dict[str, McpProcess]

    def asked(self, session: str, way: str) -> str:
        """The question that a user's wish leads to."""
        self.client.create_session(session, OWNER)
        self.client.say(session, f"book by {way}", OWNER)

        def pending() -> list[dict[str, Any]]:
            return [action for action in self.client.actions(session) if action["state"] == "pending"]

        (action,) = eventually_sync(pending, 30)
        return str(action["action"])

    def accepted(self, session: str, action: str, kind: str) -> list[str]:
        """Reasons and results of a step's end, once it is told after the owner's yes."""
        self.client.say(session, f"yes {action}", OWNER)

        def there() -> list[str]:
            found = [line.text for line in self.client.timeline(session) if line.kind == kind]
            assert found, "\n".join(f"{line.kind} {line.text}" for line in self.client.timeline(session))
            return found

        return eventually_sync(there, 40)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, redis_url: str, amqp_url: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("mcp-tools")
    servers = {way: McpProcess(folder / way) for way in WAYS}
    with contextlib.ExitStack() as undo:
        patch = undo.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("TURNKEEPER_REDIS_URL", redis_url)
        patch.setenv("TURNKEEPER_AMQP_URL", amqp_url)
        patch.setenv("TURNKEEPER_NAMESPACE", f"{folder.parent.name}-{folder.name}")
        patch.setenv("MCP_TOKEN", "Bearer sesame-of-the-server")
        for server in servers.values():
            server.folder.mkdir()
            undo.callback(server.end)
        servers["http"].start()
        (folder / "turnkeeper.yaml").write_text(yaml.safe_dump(application(servers)))
        (folder / "rules.yaml").write_text(yaml.safe_dump(RULES))
        stack = stacks.start_stack(
            folder / "state", "external", 0, folder / "turnkeeper.yaml", COUNTS, {}, partitions=4
        )
        undo.callback(stack.stop)
        yield Stage(undo.enter_context(Client(of_stack(stack))), servers)


@pytest.mark.parametrize("way", WAYS)
def test_a_question_a_yes_and_one_effect(stage: Stage, way: str) -> None:
    session = f"once-{way}"
    action = stage.asked(session, way)
    assert stage.servers[way].effects == []
    assert stage.accepted(session, action, "tool.committed") == [f"{way}: R1"]
    (effect,) = stage.servers[way].effects
    assert effect["args"] == {"party": 4}
    assert effect["key"]
    stage.client.say(session, f"yes {action}", OWNER)  # again
    assert len(stage.servers[way].effects) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_schema_that_changed_after_the_question_is_not_what_was_approved(stage: Stage, way: str) -> None:
    session, before = f"changed-{way}", stage.servers[way].calls
    action = stage.asked(session, way)
    stage.servers[way].mood("changed")
    try:
        said = stage.accepted(session, action, "tool.refused")
    finally:
        stage.servers[way].mood()
    assert "import it again" in said[0]
    assert stage.servers[way].calls == before


def test_a_server_that_dies_in_the_call_leaves_it_unknown_and_the_door_goes_on(stage: Stage) -> None:
    before = len(stage.servers["stdio"].effects)
    action = stage.asked("dies", "stdio")
    stage.servers["stdio"].mood("dies")
    try:
        stage.accepted("dies", action, "tool.unknown")
    finally:
        stage.servers["stdio"].mood()
    assert len(stage.servers["stdio"].effects) == before + 1
    again = stage.asked("after-it", "stdio")
    stage.accepted("after-it", again, "tool.committed")


def test_a_server_that_hangs_holds_up_nobody_elses_call(stage: Stage) -> None:
    hanging = stage.asked("hangs", "http")
    other = stage.asked("beside-it", "stdio")
    stage.servers["http"].mood("call-hangs")
    try:
        stage.client.say("hangs", f"yes {hanging}", OWNER)
        stage.accepted("beside-it", other, "tool.committed")
        assert "tool.unknown" not in [line.kind for line in stage.client.timeline("hangs")]
        stage.accepted("hangs", hanging, "tool.unknown")
    finally:
        stage.servers["http"].mood()

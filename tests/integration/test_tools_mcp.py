"""A tool of an MCP server, on the official SDK in another process, over streamable HTTP and over stdio: what each
thing that the server may do means for the operation."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.application import McpConnector, Tool, load_application
from libs.contracts.mcp import schema_digest
from libs.runtime.mcp_server import Address, McpServer
from services.tools.connectors.mcp import McpTool, address_of
from services.tools.domain import Committed, Failed, Outcome, Refused, Unknown
from services.tools.ports import Call
from tests.support.eventually import eventually
from tests.support.mcp_server import INPUT, OUTPUT, McpProcess
from turnkeeper import cli

DIGEST = schema_digest(INPUT, OUTPUT)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpProcess]:
    """One server over HTTP for all tests that leave it alive: its start takes seconds."""
    made = McpProcess(tmp_path_factory.mktemp("kept"))
    made.start()
    yield made
    made.end()


@pytest.fixture
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[McpProcess]:
    if "way" in request.fixturenames and request.getfixturevalue("way") == "http":
        shared: McpProcess = request.getfixturevalue("kept")
        shared.forget()
        yield shared
        return
    made = McpProcess(tmp_path)
    yield made
    made.end()


class Bench:
    """A connector whose server's session is served, and what it raised."""

    def __init__(self, process: McpProcess, way: str, timeout: float, **more: Any) -> None:
        reached: dict[str, Any] = {"url": process.url} if way == "http" else {"command": process.command}
        tool_more = {name: more.pop(name) for name in ("effect", "consent") if name in more}
        configured = {**reached, "tool": "reserve_table", "schema": DIGEST, "timeout": timeout, **more}
        self.tool = Tool.model_validate({"connector": {"mcp": configured}, **tool_more})
        self.raised: dict[str, Tool] = {}
        self.timeout = timeout
        connector = self.tool.connector.mcp
        assert connector is not None
        self.server = McpServer(address_of(connector, {}))
        self.connector = McpTool("book", self.tool, connector, self.server, self.raised.__setitem__)

    async def run(self, key: str = "k1", **args: Any) -> Outcome:
        call = Call("s1", "O1", "book", args or {"party": 4}, key, self.timeout)
        try:
            async with asyncio.timeout(self.timeout):
                return await self.connector.run(call)
        except TimeoutError:  # as the door takes it
            return Unknown(f"no answer within {self.timeout:g} s")

    async def opened(self) -> None:
        async with self.server.session(30):
            pass


@contextlib.asynccontextmanager
async def bench(process: McpProcess, way: str, timeout: float = 40.0, **more: Any) -> AsyncIterator[Bench]:
    if way == "http" and process.process is None:
        await asyncio.to_thread(process.start)
    made = Bench(process, way, timeout, **more)
    serving = asyncio.create_task(made.server.serve())
    try:
        yield made
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


both = pytest.mark.parametrize("way", ["http", "stdio"])


@both
async def test_a_call_is_done_once_and_its_structured_content_is_the_result(process: McpProcess, way: str) -> None:
    async with bench(process, way) as at:
        assert await at.run("k7") == Committed({"id": "R1"})
    assert process.effects == [{"key": "k7", "args": {"party": 4}}]


@both
async def test_calls_side_by_side_share_one_session(process: McpProcess, way: str) -> None:
    async with bench(process, way) as at:
        outcomes = await asyncio.gather(*(at.run(f"k{number}") for number in range(8)))
    assert outcomes == [Committed({"id": "R1"})] * 8
    assert sorted(effect["key"] for effect in process.effects) == [f"k{number}" for number in range(8)]


@both
async def test_a_server_that_changed_its_schema_gets_no_call(process: McpProcess, way: str) -> None:
    async with bench(process, way) as at:
        await at.opened()
        process.mood("changed")
        outcome = await at.run()
    assert isinstance(outcome, Refused)
    assert "import it again" in outcome.reason
    assert process.calls == 0


@both
async def test_a_server_that_dropped_the_tool_gets_no_call(process: McpProcess, way: str) -> None:
    async with bench(process, way) as at:
        await at.opened()
        process.mood("gone")
        assert isinstance(await at.run(), Refused)
    assert process.calls == 0


@both
async def test_a_server_that_hangs_in_a_call_leaves_it_unknown_and_the_next_call_goes_on(
    process: McpProcess, way: str
) -> None:
    async with bench(process, way, 4.0) as at:
        await at.opened()
        process.mood("call-hangs")
        assert isinstance(await at.run(), Unknown)
        process.mood()
        assert await at.run("k2") == Committed({"id": "R1"})


@both
async def test_a_server_that_hangs_before_the_call_fails_it_and_the_next_call_goes_on(
    process: McpProcess, way: str
) -> None:
    async with bench(process, way, 6.0) as at:
        await at.opened()
        process.mood("list-hangs")
        begun = time.monotonic()
        outcome = await at.run()
        assert isinstance(outcome, Failed), outcome
        assert time.monotonic() - begun < 6.0
        assert process.calls == 0
        process.mood()

        async def works() -> bool:
            return isinstance(await at.run(), Committed)

        await eventually(works, within=40)


async def test_a_process_that_dies_after_the_effect_leaves_it_unknown_and_is_started_again(process: McpProcess) -> None:
    async with bench(process, "stdio") as at:
        await at.opened()
        process.mood("dies")
        outcome = await at.run("k1")
        assert isinstance(outcome, Unknown), outcome
        assert [effect["key"] for effect in process.effects] == ["k1"]
        process.mood()
        assert await at.run("k2") == Committed({"id": "R1"})


async def test_a_server_that_dies_after_the_effect_leaves_it_unknown(process: McpProcess) -> None:
    async with bench(process, "http") as at:
        await at.opened()
        process.mood("dies")
        outcome = await at.run("k1")
        assert isinstance(outcome, Unknown), outcome
        assert [effect["key"] for effect in process.effects] == ["k1"]
        process.end()
        process.mood()
        await asyncio.to_thread(process.start)
        assert await at.run("k2") == Committed({"id": "R1"})


async def test_a_process_that_dies_before_the_call_is_started_again_for_it(process: McpProcess) -> None:
    async with bench(process, "stdio") as at:
        await at.opened()
        process.mood("list-dies")
        outcome = await at.run()
        assert isinstance(outcome, Failed), outcome
        assert process.calls == 0


async def test_a_server_that_was_started_again_is_called_in_a_new_session(process: McpProcess) -> None:
    async with bench(process, "http") as at:
        await at.opened()
        process.end(signal.SIGKILL)
        await asyncio.to_thread(process.start)
        assert await at.run() == Committed({"id": "R1"})


async def test_a_server_that_is_away_fails_the_call(process: McpProcess) -> None:
    await asyncio.to_thread(process.start)
    process.end()
    made = Bench(process, "http", 2.0)
    serving = asyncio.create_task(made.server.serve())
    outcome = await made.run()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert isinstance(outcome, Failed), outcome


async def test_a_command_that_does_not_exist_fails_the_call_in_words(process: McpProcess) -> None:
    async with bench(process, "stdio", 2.0, command=("no-such-program-here",)) as at:
        outcome = await at.run()
    assert isinstance(outcome, Failed)
    assert "No such file" in outcome.reason


@both
async def test_an_answer_that_is_not_what_the_server_promised_is_unknown(process: McpProcess, way: str) -> None:
    async with bench(process, way) as at:
        process.mood("lies")
        outcome = await at.run()
    assert isinstance(outcome, Unknown)
    assert "outputSchema" in outcome.reason
    assert len(process.effects) == 1


@both
async def test_an_answer_that_is_too_long_is_unknown_and_the_next_call_goes_on(process: McpProcess, way: str) -> None:
    async with bench(process, way) as at:
        process.mood("huge")
        outcome = await at.run()
        assert isinstance(outcome, Unknown), outcome
        process.mood()
        assert await at.run("k2") == Committed({"id": "R1"})


@both
@pytest.mark.parametrize(
    ("configured", "expected"),
    [({}, Unknown), ({"errors": "refused"}, Refused), ({"effect": "read"}, Refused)],
)
async def test_a_tools_own_error_proves_nothing_of_a_write_unless_the_file_says_so(
    process: McpProcess, way: str, configured: dict[str, Any], expected: type[Outcome]
) -> None:
    process.mood("error")
    async with bench(process, way, **configured) as at:
        outcome = await at.run()
    assert type(outcome) is expected
    assert "no table\\u{1B}[31m is free" in getattr(outcome, "reason", "")


@both
async def test_parameters_that_the_server_calls_wrong_may_have_been_acted_on(process: McpProcess, way: str) -> None:
    process.mood("wrong-parameters")
    async with bench(process, way) as at:
        outcome = await at.run()
    assert isinstance(outcome, Unknown)
    assert "\x1b" not in outcome.reason


@both
async def test_an_error_of_the_server_in_a_call_is_unknown(process: McpProcess, way: str) -> None:
    process.mood("breaks")
    async with bench(process, way) as at:
        assert isinstance(await at.run(), Unknown)


async def test_a_server_says_at_the_start_that_it_is_destructive_and_the_gate_is_raised(process: McpProcess) -> None:
    process.mood("destructive")
    async with bench(process, "stdio", effect="read", consent="never") as at:
        await at.opened()
    assert (at.raised["book"].gate, at.raised["book"].effect) == ("unless-user", "write")


async def test_a_server_that_says_so_later_gets_no_call_under_the_old_gate(process: McpProcess) -> None:
    async with bench(process, "stdio", consent="never") as at:
        await at.opened()
        process.mood("destructive")
        assert isinstance(await at.run(), Failed)
        assert process.calls == 0
        assert at.raised["book"].gate == "unless-user"
        process.mood()
        assert await at.run() == Committed({"id": "R1"})
        assert at.raised["book"].gate == "unless-user", "never lowered again"


async def test_no_process_is_left_behind(process: McpProcess) -> None:
    from tests.support.leftovers import naming

    async with bench(process, "stdio") as at:
        await at.opened()
        assert naming(process.folder)
    assert naming(process.folder) == []


async def test_servers_written_alike_share_a_session_and_a_secret_is_not_shown() -> None:
    headers = {"Authorization": "env:TOKEN"}
    connector = McpConnector.model_validate(
        {"url": "http://127.0.0.1:1/mcp?token=t", "headers": headers, "tool": "a", "schema": DIGEST}
    )
    address = address_of(connector, {"TOKEN": "sesame"})
    assert address == address_of(connector.model_copy(update={"tool": "b"}), {"TOKEN": "sesame"})
    assert "sesame" not in repr(address)
    assert "token" not in address.name
    assert isinstance(address, Address)


HEAD = "sources: {app: {verify: {scheme: user-token}}}\nplanner: {scripted: {rules: rules.yaml}}\n"


@both
def test_the_command_line_writes_what_a_server_lists_and_it_loads_as_a_tool(
    process: McpProcess, way: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "sesame")
    wanted = ["--header", "Authorization=env:A_TOKEN", process.url] if way == "http" else ["--", *process.command]
    assert cli.run(["tools", "import", "mcp", *wanted]) == 0
    shown = capsys.readouterr().out
    assert "sesame" not in shown
    (tmp_path / "turnkeeper.yaml").write_text(HEAD + shown)
    tools = load_application(tmp_path / "turnkeeper.yaml").tools
    assert {"reserve_table", "find_table"} < set(tools)
    assert tools["reserve_table"].connector.pin == DIGEST
    assert (tools["find_table"].effect, tools["find_table"].gate) == ("write", "unless-user")
    assert process.calls == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ftp://example.com/"], "No such file"),
        (["--", "no-such-program-here"], "No such file"),
        (["--header", "Authorization=sesame", "http://127.0.0.1:9/mcp"], "not the secret itself"),
        (["--header", "Authorization", "http://127.0.0.1:9/mcp"], "NAME=env:VARIABLE"),
        (["--env", "A=env:B", "http://127.0.0.1:9/mcp"], "env: only a command"),
        (["http://user:sesame@127.0.0.1:9/mcp"], "url"),
        (["http://127.0.0.1:9/mcp"], "not connected"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["tools", "import", "mcp", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert said in told
    assert "sesame" not in told

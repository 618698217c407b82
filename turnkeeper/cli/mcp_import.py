"""`turnkeeper tools import mcp`: the tools of an MCP server as YAML, for a person to review."""

import asyncio
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from libs.contracts.application import McpConnector, resolve_secret
from libs.runtime.mcp_server import Address, Listed, ServerFault, open_session
from turnkeeper.client import ClientError
from turnkeeper.import_mcp import import_tools
from turnkeeper.printing import one_line, print_line, progress

_ANY_DIGEST = "sha256:" + "0" * 64


def import_mcp(
    server: Annotated[list[str], typer.Argument(help="A URL, or after -- a command and its arguments.")],
    header: Annotated[
        list[str], typer.Option(help="A header for the server, its value a reference.", metavar="NAME=env:VARIABLE")
    ] = [],  # noqa: B006 - typer copies it
    env: Annotated[
        list[str], typer.Option(help="A variable for the command, its value a reference.", metavar="NAME=env:VARIABLE")
    ] = [],  # noqa: B006
    only: Annotated[
        str,
        typer.Option(help="These tools alone, by their names there, with commas between.", metavar="NAME,…"),
    ] = "",
) -> None:
    """Write the tools that an MCP server lists as YAML to stdout. What cannot be used is told on stderr.

    The server is only asked for its list; nothing is called. Put what you have reviewed into `turnkeeper.yaml`.

    **Examples**

      turnkeeper tools import mcp https://mcp.example.com/mcp --header Authorization=env:EXAMPLE_TOKEN > tools.yaml

      turnkeeper tools import mcp --only create_issue -- npx -y @example/tracker-mcp --stdio
    """
    reached = _reached(server, header, env)
    name = server[0].partition("?")[0]
    chosen = [tool.strip() for tool in only.split(",") if tool.strip()]
    made = import_tools(name, reached, _listed(reached), chosen)
    for fault in made.faults:
        progress(one_line(f"turnkeeper: left out: {fault}"))
    if not made.tools:
        raise ClientError("no tool was imported: the server lists none that can be used")
    print_line(made.text.rstrip("\n"))
    progress(f"turnkeeper: {len(made.tools)} tools; review them, then put them into turnkeeper.yaml")


def _reached(server: Sequence[str], header: Sequence[str], env: Sequence[str]) -> dict[str, Any]:
    by_url = len(server) == 1 and server[0].startswith(("http://", "https://"))
    reached: dict[str, Any] = {"url": server[0]} if by_url else {"command": list(server)}
    if header:
        reached["headers"] = dict(_pair("--header", text) for text in header)
    if env:
        reached["env"] = dict(_pair("--env", text) for text in env)
    return reached


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, reference = text.partition("=")
    if not name or not equals:
        raise ClientError(f"{option}: write NAME=env:VARIABLE")
    return name, reference


def _listed(reached: dict[str, Any]) -> list[Listed]:
    try:
        connector = McpConnector.model_validate({**reached, "tool": "any", "schema": _ANY_DIGEST})
        headers, env = (
            tuple((name, resolve_secret(reference, os.environ)) for name, reference in pairs.items())
            for pairs in (connector.headers, connector.env)
        )
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ClientError(f"{where + ': ' if where else ''}{fault['msg'].removeprefix('Value error, ')}") from None
    except ValueError as error:
        raise ClientError(f"--header, --env: {error}") from error
    address = Address(connector.url or "", headers, connector.command or (), env, connector.max_answer)
    try:
        return asyncio.run(_ask(address))
    except ServerFault as fault:
        raise ClientError(f"the MCP server {address.name} cannot be asked: {fault}") from fault


async def _ask(address: Address) -> list[Listed]:
    async with open_session(address) as session:
        try:
            async with asyncio.timeout(20):
                return await session.tools()
        except TimeoutError:
            raise ServerFault("it does not list its tools in time") from None

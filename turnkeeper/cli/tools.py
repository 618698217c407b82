"""`turnkeeper tools`: tools of an application, imported for review."""

from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.cli.mcp_import import import_mcp
from turnkeeper.openapi import import_tools, read_document
from turnkeeper.printing import print_line, progress

app = typer.Typer(help="The tools of an application.", no_args_is_help=True)
importing = typer.Typer(help="Write tools as YAML for a person to review.", no_args_is_help=True)
app.add_typer(importing, name="import")
importing.command("mcp")(import_mcp)


@app.callback()
def _group() -> None:
    """The tools of an application."""


@importing.callback()
def _import() -> None:
    """Write tools as YAML for a person to review."""


@importing.command("openapi")
def openapi(
    file: Annotated[Path, typer.Argument(help="An OpenAPI 3.0 or 3.1 description, JSON or YAML, in one file.")],
    only: Annotated[
        str, typer.Option(help="These operations alone, by operationId, with commas between.", metavar="ID,…")
    ] = "",
    server: Annotated[str, typer.Option(help="The API's base URL, instead of what the file says.", metavar="URL")] = "",
) -> None:
    """Write an API's operations as tools to stdout. What cannot be imported is named on stderr, with why.

    **Examples**

      turnkeeper tools import openapi shop.yaml > tools.yaml

      turnkeeper tools import openapi shop.json --only createOrder,getOrder --server https://shop.example.com/v1
    """
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    made = import_tools(read_document(file), only=chosen, server=server)
    print_line(made.text.rstrip("\n"))
    for why in made.left_out:
        progress(f"left out {why}")
    told = f", {len(made.left_out)} left out" if made.left_out else ""
    progress(f"{len(made.tools)} tools{told}: review each, then put it into turnkeeper.yaml")

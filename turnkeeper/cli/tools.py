"""`turnkeeper tools`: tools of an application, imported for review."""

import typer

from turnkeeper.cli.mcp_import import import_mcp

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

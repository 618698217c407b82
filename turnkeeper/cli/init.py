"""`turnkeeper init`: an application of one's own, to be changed from there."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.cli.options import Json
from turnkeeper.printing import print_json, print_line
from turnkeeper.scaffold import write_application


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    directory: Annotated[Path, typer.Argument(help="A new folder, or an empty one.", metavar="DIR")],
    as_json: Json = False,
) -> None:
    """Write a working application into a new folder: sources, rules, tools, and tests that pass.

    **Example**

      turnkeeper init my-agent
    """
    written = write_application(directory)
    if as_json:
        print_json({"directory": str(directory), "files": [path.name for path in written]})
        return
    for path in written:
        print_line(str(path))
    here = shlex.quote(str(directory))
    print_line(f"next: cd {here} && pytest, then turnkeeper up --detach; README.md there goes on from that")

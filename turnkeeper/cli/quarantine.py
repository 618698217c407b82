"""`turnkeeper quarantine`: verified events that must not be acted on as they are."""

from typing import Annotated

import orjson
import typer

from turnkeeper.cli.options import STATE, Json, State, client
from turnkeeper.printing import print_json, print_line, print_rows

app = typer.Typer(help="Verified events that must not be acted on as they are.", no_args_is_help=True)
EntryId = Annotated[str, typer.Argument(help="The entry's id.")]


@app.callback()
def _group() -> None:
    """Verified events that must not be acted on as they are."""


@app.command("list")
def index(state: State = STATE, as_json: Json = False) -> None:
    """List the entries, newest first: a known id with another body, attributes that disagree, no way to a session.

    **Example**

      turnkeeper quarantine list
    """
    with client(state) as asking:
        found = asking.quarantine()
    print_rows(found, ("id", "source", "event", "reason", "at"), as_json=as_json, empty="nothing is in quarantine")


@app.command()
def show(entry: EntryId, state: State = STATE, as_json: Json = False) -> None:
    """Show one entry with its body.

    **Example**

      turnkeeper quarantine show 4fz2k
    """
    with client(state) as asking:
        found = asking.quarantined(entry)
    if as_json:
        print_json(found)
    else:
        print_line(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())


@app.command()
def release(
    entry: EntryId,
    session: Annotated[str | None, typer.Option(help="Where to, if its data names none.", metavar="SESSION")] = None,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Let an entry in, as an event of its own with its source's origin. It gives nobody's permission.

    **Example**

      turnkeeper quarantine release 4fz2k --session dinner
    """
    with client(state) as asking:
        released = asking.release_quarantined(entry, session)
    if as_json:
        print_json(released)
    else:
        print_line(f"{entry}: {released['status']}")

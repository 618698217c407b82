"""`turnkeeper held`: events that wait for their subject or session."""

from typing import Annotated

import typer

from turnkeeper.cli.options import STATE, Json, State, client
from turnkeeper.printing import print_json, print_line, print_rows

app = typer.Typer(help="Events that name no known session, for as long as they are held.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Events that name no known session, for as long as they are held."""


@app.command("list")
def index(state: State = STATE, as_json: Json = False) -> None:
    """List what is held, the first to expire on top.

    **Example**

      turnkeeper held list
    """
    with client(state) as asking:
        found = asking.held()
    columns = ("source", "event", "type", "subject", "session", "accepted_at", "deadline")
    print_rows(found, columns, as_json=as_json, empty="nothing is held")


@app.command()
def release(
    subject: Annotated[str, typer.Argument(help="The subject that the events wait for.")],
    session: Annotated[str, typer.Option(help="The session that it belongs to.", metavar="SESSION")],
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Say whose a subject is: what waits for it goes to that session, and what comes later too.

    **Example**

      turnkeeper held release reservation:R7 --session dinner
    """
    with client(state) as asking:
        released = asking.release_held({"subject": subject, "session": session})
    if as_json:
        print_json(released)
    else:
        print_line(f"{subject} belongs to {session}: {released['released']} released")

"""`turnkeeper dead`: messages that could not be handled, over AMQP."""

from dataclasses import asdict
from typing import Annotated

import orjson
import typer

from turnkeeper import letters
from turnkeeper.cli.options import STATE, Json, State, client, target
from turnkeeper.letters import Letter
from turnkeeper.printing import moment, one_line, print_json, print_line, print_rows

app = typer.Typer(help="Messages that could not be handled: look, send again, or drop.", no_args_is_help=True)
LetterId = Annotated[str, typer.Argument(help="The letter's id, or enough of its beginning.")]


@app.callback()
def _group() -> None:
    """Messages that could not be handled: look, send again, or drop."""


@app.command("list")
def index(state: State = STATE, as_json: Json = False) -> None:
    """List the dead letters, oldest first. Nothing is taken from the queue.

    **Example**

      turnkeeper dead list --json | jq -r 'select(.reason == "attempts_spent") | .id'
    """
    rows = [_row(letter) for letter in letters.letters(target(state))]
    columns = ("id", "service", "type", "session", "reason", "detail", "at")
    print_rows(rows, columns, as_json=as_json, empty="no dead letters")


@app.command()
def show(letter: LetterId, state: State = STATE, as_json: Json = False) -> None:
    """Show one dead letter with the message that it holds.

    **Example**

      turnkeeper dead show kq3f
    """
    found = letters.find(target(state), letter)
    if as_json:
        print_json(_row(found))
        return
    print_line(f"{found.id}: {found.service} gave up {found.type} of session {found.session or '-'}")
    print_line(f"why: {found.reason}: {one_line(found.detail)} ({moment(found.at)})")
    print_line(f"came from: {found.exchange or '-'} {found.routing_key}")
    print_line(orjson.dumps(dict(found.message), option=orjson.OPT_INDENT_2).decode())


@app.command()
def replay(letter: LetterId, state: State = STATE, as_json: Json = False) -> None:
    """Send the message again to where it came from. Refuses what had its effect, or may have had it.

    **Example**

      turnkeeper dead replay kq3f
    """
    with client(state) as asking:
        sent = letters.replay(asking, letter)
    _done(sent, "sent again", as_json)


@app.command()
def drop(letter: LetterId, state: State = STATE, as_json: Json = False) -> None:
    """Take a letter off the queue for good.

    **Example**

      turnkeeper dead drop kq3f
    """
    _done(letters.drop(target(state), letter), "dropped", as_json)


def _row(letter: Letter) -> dict[str, object]:
    return {**asdict(letter), "message": dict(letter.message), "type": letter.type}


def _done(letter: Letter, what: str, as_json: bool) -> None:
    if as_json:
        print_json({"id": letter.id, "type": letter.type, "session": letter.session, "became": what})
    else:
        print_line(f"{letter.id} ({letter.type}): {what}")

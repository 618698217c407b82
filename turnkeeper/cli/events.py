"""`turnkeeper publish`, `say`, `cancel`: what senders and users do, through the front door."""

import sys
from typing import Annotated, Any

import orjson
import typer

from turnkeeper.cli.options import STATE, AsUser, Json, SessionName, State, client
from turnkeeper.client import Answer, ClientError, Via
from turnkeeper.printing import print_json, print_line


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("publish")(publish)
    app.command("say")(say)
    app.command("cancel")(cancel)


def publish(
    source: Annotated[str, typer.Argument(help="A source of the application file.")],
    event: Annotated[str | None, typer.Option("--id", help="The event's id. The same id again is a duplicate.")] = None,
    type: Annotated[str, typer.Option("--type", help="The event's type.")] = "",
    data: Annotated[str, typer.Option(help="The event's data as JSON, or - to read it from stdin.")] = "{}",
    via: Annotated[Via, typer.Option(help="Over HTTP to ingress, or over AMQP to the events exchange.")] = "http",
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Sign an event with its source's scheme and secret, and send it.

    The exit status is 1 if it was rejected. Over AMQP the broker's confirm is the answer; what became of the event
    shows turnkeeper timeline, held or quarantine.

    **Examples**

      turnkeeper publish restaurant --type table.gone --data '{"reservation": "R1"}'

      turnkeeper publish cinema --via amqp --id f1 --type film.cancelled --data '{"session": "dinner", "film": "x"}'
    """
    with client(state) as speaking:
        answer = speaking.publish(source, type, _data(data), id=event, via=via)
    _tell(answer, f"{source} {answer.event}", as_json, event=answer.event)


def say(
    session: SessionName,
    text: Annotated[str, typer.Argument(help="What the user says.")],
    user: AsUser,
    key: Annotated[str | None, typer.Option("--id", help="The message's Idempotency-Key; drawn if left out.")] = None,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Send a user's message to their session.

    **Examples**

      turnkeeper say dinner "Book Fri 19:00 for 4 and tell the group" --as ana

      turnkeeper say dinner "yes A1" --as ana
    """
    with client(state) as speaking:
        _tell(speaking.say(session, text, user, key), f"{user} to {session}", as_json)


def cancel(
    session: SessionName,
    user: AsUser,
    key: Annotated[str | None, typer.Option("--id", help="Its Idempotency-Key; drawn if left out.")] = None,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Stop the session's running turn: nothing more is sent, and what is in flight is found out and told.

    **Example**

      turnkeeper cancel dinner --as ana
    """
    with client(state) as speaking:
        _tell(speaking.cancel(session, user, key), f"{user} to {session}", as_json)


def _data(text: str) -> Any:
    raw = sys.stdin.read() if text == "-" else text
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ClientError(
            f'--data is not JSON ({error}): quote it, as in --data \'{{"reservation": "R1"}}\''
        ) from error


def _tell(answer: Answer, what: str, as_json: bool, **more: str) -> None:
    if as_json:
        print_json({**answer.body, **more, "http": answer.status})
    else:
        print_line(f"{what}: {answer.said}")

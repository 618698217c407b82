"""`turnkeeper explain`: what would become of an event, and by which rule."""

import sys
from typing import Annotated, Any

import orjson
import typer

from turnkeeper.cli.options import STATE, Json, SessionName, State, client
from turnkeeper.client import ClientError
from turnkeeper.printing import print_rows


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain)


def explain(
    session: SessionName,
    event: Annotated[
        str,
        typer.Option(
            help="The event as JSON: source, type and data; or text and as, for what a user says; or cancel and as, for"
            " a user's cancel; or decision, action and as, for an approver's decision; or timer and data, for a timer"
            " that fires. - reads stdin.",
            metavar="JSON",
        ),
    ],
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Say what would happen if an event came now, and by which rule of the application file. Changes nothing.

    **Examples**

      turnkeeper explain dinner --event '{"source": "restaurant", "type": "table.gone", "data": {"reservation": "R1"}}'

      turnkeeper explain dinner --event '{"text": "also tell Sam", "as": "ana"}' --json | jq -r .says

      turnkeeper explain dinner --event '{"cancel": true, "as": "ana"}'

      turnkeeper explain dinner --event '{"decision": "accept", "action": "A1", "as": "ana"}'

      turnkeeper explain dinner --event '{"timer": "tm1", "data": {"why": "remind"}}'
    """
    with client(state) as asking:
        found = asking.explain(session, _event(event))
    print_rows(found, ("about", "says", "rule"), as_json=as_json)


def _event(text: str) -> dict[str, Any]:
    try:
        found = orjson.loads(sys.stdin.read() if text == "-" else text)
    except orjson.JSONDecodeError as error:
        raise ClientError(f"--event is not JSON ({error}): quote it, as the examples of --help do") from error
    if not isinstance(found, dict):
        raise ClientError("--event is an object: give source, type and data, or text and as, or cancel and as")
    return found

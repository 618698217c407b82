"""`turnkeeper operations`, `resolve`: what was done in the world, and an operator's word on what is not known."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from libs.contracts.reasons import OperationState
from turnkeeper.cli.options import STATE, Json, SessionName, State, all_sessions, client
from turnkeeper.client import Client, ClientError
from turnkeeper.printing import print_json, print_line, print_rows

_STATES = get_args(OperationState)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("operations")(operations)
    app.command("resolve")(resolve)


def operations(
    session: Annotated[str | None, typer.Argument(help="One session; without, all.")] = None,
    chosen: Annotated[
        str | None, typer.Option("--state", help=f"Only those in this state: {', '.join(_STATES)}.", metavar="STATE")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", envvar="TURNKEEPER_STATE", help="State folder of the stack to speak to.")
    ] = STATE,
    as_json: Json = False,
) -> None:
    """Show the ledger: each intended effect, and what became of it. Unknown outcomes are the ones to look after.

    Here --state is the operations' state; the stack's folder is --folder or TURNKEEPER_STATE.

    **Examples**

      turnkeeper operations --state unknown

      turnkeeper operations dinner --json | jq -r '[.operation, .tool, .state] | @tsv'
    """
    if chosen is not None and chosen not in _STATES:
        raise ClientError(f"there is no state {chosen!r}: one of {', '.join(_STATES)}")
    with client(folder) as asking:
        found = _operations(asking, session, chosen)
    columns = ("session", "operation", "tool", "state", "args", "action", "reason", "finished_at")
    print_rows(found, columns, as_json=as_json, empty="no such operation" if chosen else "no operation yet")


def resolve(
    session: SessionName,
    operation: Annotated[str, typer.Argument(help="The operation, such as O3.")],
    became: Annotated[Literal["committed", "failed"], typer.Argument(help="What became of it.")],
    note: Annotated[str, typer.Option(help="How you know; kept with it.")],
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Say what became of an operation whose outcome is unknown, once you have found out.

    The session is told as if the tool had answered. What is known is not changed.

    **Example**

      turnkeeper resolve dinner O3 committed --note "the restaurant says that R2 is ours"
    """
    with client(state) as asking:
        resolved = asking.resolve(session, operation, became, note)
    if as_json:
        print_json(resolved)
    else:
        print_line(f"{session} {resolved['operation']} ({resolved['tool']}): {resolved['state']}")


def _operations(asking: Client, session: str | None, state: str | None) -> list[dict[str, Any]]:
    # The door keeps an index of unknown and pending ones; the others are found by session.
    if session is not None:
        found = asking.operations(session, state)
        if not found:
            asking.session(session)  # so that a wrong name is told, and not taken for a session without operations
        return found
    if state in ("unknown", "pending"):
        return asking.operations(None, state)
    return [one for name in all_sessions(asking) for one in asking.operations(name, state)]

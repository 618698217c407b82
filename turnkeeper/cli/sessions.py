"""`turnkeeper sessions`, `session create`, `timeline`, `timers`: which sessions there are, what happened in one, and
what will."""

from typing import Annotated

import typer

from turnkeeper.cli.options import STATE, Json, SessionName, State, all_sessions, client
from turnkeeper.printing import print_json, print_line, print_rows, print_timeline_line

session_app = typer.Typer(help="Make a session.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("sessions")(sessions)
    app.command("timeline")(timeline)
    app.command("timers")(timers)


def sessions(state: State = STATE, as_json: Json = False) -> None:
    """List the sessions, newest first, with their owner and what they do now.

    **Example**

      turnkeeper sessions --json | jq -r .session
    """
    with client(state) as asking:
        found = [asking.session(name) for name in all_sessions(asking)]
    rows = [
        {
            "session": one["session"],
            "owner": one["owner"],
            "turn": f"{one['turn']['id']} {one['turn']['origin']} {one['turn']['status']}" if one["turn"] else "",
            "queued": one["queued"],
            "asks": ", ".join(one["open_actions"]),
            "inputs": one["applied"],
        }
        for one in found
    ]
    columns = ("session", "owner", "turn", "queued", "asks", "inputs")
    print_rows(found if as_json else rows, columns, as_json=as_json, empty="no session yet: turnkeeper session create")


@session_app.callback()
def _session() -> None:
    """Make a session."""


@session_app.command("create")
def create(
    session: SessionName,
    owner: Annotated[str, typer.Option(help="The user whose session it is; written once.", metavar="USER")],
    trial: Annotated[
        bool, typer.Option("--trial", help="For tests: with the application file's faults (TURNKEEPER_TRIALS=1).")
    ] = False,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Make a session and name its owner, who alone may speak in it and is asked.

    **Example**

      turnkeeper session create dinner --owner ana
    """
    with client(state) as asking:
        answer = asking.create_session(session, owner, trial)
    if as_json:
        print_json(dict(answer.body))
    else:
        print_line(f"{session} belongs to {owner}")


def timeline(
    session: SessionName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and show lines as they come.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only lines with a higher number.")] = 0,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Show what happened in a session, in order: number, kind, text.

    **Examples**

      turnkeeper timeline dinner

      turnkeeper timeline dinner --follow --json | jq -r 'select(.kind == "action.asked") | .text'
    """
    with client(state) as asking:
        for line in asking.follow(session, after) if follow else asking.timeline(session, after):
            if as_json:
                print_json(line.model_dump())
            else:
                print_timeline_line(line)


def timers(session: SessionName, state: State = STATE, as_json: Json = False) -> None:
    """List the pending timers of a session, the next to fire first. What fired or was skipped is in its timeline.

    **Examples**

      turnkeeper timers dinner

      turnkeeper timers dinner --json | jq -r '[.timer, .next] | @tsv'
    """
    with client(state) as asking:
        found = asking.timers(session)
    columns = ("timer", "next", "rule", "zone", "misfire", "subject", "data", "setter", "fired", "skipped")
    print_rows(found, columns, as_json=as_json, empty="no timer is pending")

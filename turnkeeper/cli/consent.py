"""`turnkeeper actions`, `accept`, `decline`: what the agent asks, and the approver's word on it."""

from typing import Annotated, Any

import typer

from libs.contracts.consent import Verdict
from turnkeeper.cli.options import STATE, AsUser, Json, SessionName, State, all_sessions, client
from turnkeeper.printing import moment, one_line, print_json, print_line, print_rows

ActionName = Annotated[str, typer.Argument(help="The action, such as A1.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("actions")(actions)
    app.command("accept")(accept)
    app.command("decline")(decline)


def actions(
    session: Annotated[str | None, typer.Argument(help="The session; without, what is pending in all.")] = None,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Show a session's actions, or every pending question of the deployment.

    **Examples**

      turnkeeper actions dinner

      turnkeeper actions --json | jq -r .question
    """
    with client(state) as asking:
        if session is not None:
            found = asking.actions(session)
        else:
            every = (one for name in all_sessions(asking) for one in asking.actions(name))
            found = [one for one in every if one["state"] == "pending"]
    columns = ("session", "action", "state", "approver", "question", "expires_at")
    print_rows(found, columns, as_json=as_json, empty="nothing is asked")


def accept(session: SessionName, action: ActionName, user: AsUser, state: State = STATE, as_json: Json = False) -> None:
    """Say yes to a question: exactly what it shows is done, once.

    The question is fetched and shown first, and the yes is bound to its text. Saying it again gives the same receipt.

    **Example**

      turnkeeper accept dinner A1 --as ana
    """
    _decide(session, action, "accept", user, state, as_json)


def decline(
    session: SessionName, action: ActionName, user: AsUser, state: State = STATE, as_json: Json = False
) -> None:
    """Say no to a question: nothing of it is done.

    **Example**

      turnkeeper decline dinner A1 --as ana
    """
    _decide(session, action, "decline", user, state, as_json)


def _decide(session: str, action: str, verdict: Verdict, user: str, state: Any, as_json: bool) -> None:
    with client(state) as deciding:
        asked = deciding.action(session, action)
        if not as_json:
            print_line(f"question: {one_line(asked['question'])}")
        receipt = deciding.decide(session, action, verdict, user, asked["question_digest"])
    if as_json:
        print_json(receipt)
    else:
        print_line(f"receipt:  {action} {receipt['state']} by {receipt['by']} at {moment(receipt['decided_at'])}")

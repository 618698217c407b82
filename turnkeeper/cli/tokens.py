"""`turnkeeper token`: a user's bearer token, as the users' own application would have one."""

import time
from typing import Annotated

import typer

from libs.contracts.ids import is_slug
from turnkeeper.cli.options import STATE, Json, State, target
from turnkeeper.client import ClientError
from turnkeeper.printing import print_json, print_line
from turnkeeper.signing import user_token


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("token")(token)


def token(
    user: Annotated[str, typer.Argument(help="The user's id.")],
    seconds: Annotated[int, typer.Option(min=1, max=31 * 86_400, help="How long it is valid.")] = 3_600,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Print a token that speaks for a user (a JWT by the deployment's shared secret).

    Whoever holds it is that user: for trying things, not for handing out.

    **Example**

      curl -H "Authorization: Bearer $(turnkeeper token ana)" http://127.0.0.1:8082/v1/sessions/dinner/actions
    """
    if not is_slug(user):
        raise ClientError(f"{user!r} cannot be a user's id: letters, digits, - and _ only, 1 to 64 of them")
    now = int(time.time())
    made = user_token(target(state).user_token_secret(), user, now, seconds)
    if as_json:
        print_json({"user": user, "token": made, "expires_at": now + seconds})
    else:
        print_line(made)

"""`turnkeeper standing`: what a user grants in advance, what was used of it, and taking it back."""

import re
import time
from datetime import datetime
from typing import Annotated, Any

import orjson
import typer

from libs.contracts.application import seconds
from libs.contracts.canonical import JSON
from turnkeeper.cli.options import STATE, AsUser, Json, State, client
from turnkeeper.client import ClientError
from turnkeeper.printing import moment, print_json, print_line, print_rows

app = typer.Typer(help="What a user grants in advance: standing approvals.", no_args_is_help=True)
_NAMED = re.compile(r"([^=]+)=(.*)", re.DOTALL)


@app.callback()
def _group() -> None:
    """What a user grants in advance: standing approvals."""


@app.command("list")
def index(user: AsUser, state: State = STATE, as_json: Json = False) -> None:
    """List a user's standing approvals and each of their uses, oldest first.

    **Examples**

      turnkeeper standing list --as ana

      turnkeeper standing list --as ana --json | jq '.used[]'
    """
    with client(state) as asking:
        found = asking.standing(user)
    if as_json:
        print_rows(found, (), as_json=True)
        return
    columns = ("id", "tool", "state", "limits", "sources", "left", "uses", "ends_at")
    print_rows(found, columns, as_json=False, empty="nothing is granted in advance")
    used = [{"approval": one["id"], **use} for one in found for use in one["used"]]
    if used:
        print_line("")
        print_rows(used, ("approval", "session", "operation", "source", "args", "state", "at"), as_json=False)


@app.command()
def grant(
    tool: Annotated[str, typer.Argument(help="The tool, such as reserve_table.")],
    user: AsUser,
    lasts: Annotated[str, typer.Option("--for", help="How long it counts, such as 7d or 12h.", metavar="TIME")] = "",
    until: Annotated[str, typer.Option(help="Or when it ends: RFC 3339, with its offset.", metavar="TIME")] = "",
    uses: Annotated[int, typer.Option(help="How often it may be used.", min=1)] = 1,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="What an argument may be: NAME=VALUE for exactly that, or NAME=RULES with const, enum, minimum, "
            "maximum, pattern as JSON. Repeat for each argument.",
            metavar="NAME=RULE",
        ),
    ] = None,
    anything: Annotated[
        list[str] | None, typer.Option("--any", help="An argument that may be anything.", metavar="NAME")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Only for turns that this source starts; without, any.", metavar="SOURCE")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency-Key of the wish; drawn if none is given.")] = None,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Grant a tool in advance: within these limits it runs without a question, so many times, until then.

    An argument that is named neither with --limit nor with --any is not granted.

    **Examples**

      turnkeeper standing grant reserve_table --as ana --for 7d --limit 'party={"maximum": 6}' --any day --any time

      turnkeeper standing grant text_friend --as ana --for 1h --limit friend=Sam --any text --source restaurant
    """
    limits: dict[str, JSON] = {name: {} for name in anything or ()}
    limits |= dict(_limit(text) for text in limit or ())
    wish = {
        "tool": tool,
        "limits": limits,
        "uses": uses,
        "ends_at": _end(lasts, until),
        "sources": list(source or ()),
    }
    with client(state) as asking:
        made = asking.grant_standing(user, wish, key)
    _tell(made, as_json)


@app.command()
def revoke(
    approval: Annotated[str, typer.Argument(help="The standing approval, as `turnkeeper standing list` shows it.")],
    user: AsUser,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Take a standing approval back: from now on its steps are asked about.

    **Example**

      turnkeeper standing revoke S1f0c2a9b7e31 --as ana
    """
    with client(state) as asking:
        revoked = asking.revoke_standing(user, approval)
    _tell(revoked, as_json)


def _limit(text: str) -> tuple[str, JSON]:
    """`party={"maximum": 6}` or `day=Fri`: an argument's name and its rules. Raises ClientError."""
    found = _NAMED.fullmatch(text)
    if found is None:
        raise ClientError(f"{text!r} is no limit: NAME=VALUE, or NAME=RULES as JSON, or --any NAME")
    name, value = found.groups()
    try:
        read = orjson.loads(value)
    except orjson.JSONDecodeError:
        if value.lstrip().startswith(("{", "[", '"')):
            raise ClientError(f"{text!r} is no limit: its rules are not JSON") from None
        read = value
    return name, read if isinstance(read, dict) else {"const": read}


def _end(lasts: str, until: str) -> int:
    """Milliseconds (Unix). Raises ClientError."""
    if bool(lasts) == bool(until):
        raise ClientError("say how long it counts: --for 7d, or --until with a time")
    try:
        if lasts:
            return int((time.time() + seconds(lasts)) * 1000)
        end = datetime.fromisoformat(until)
        if end.tzinfo is None:
            raise ValueError("a time has its offset, such as 2027-01-01T12:00:00+01:00")
        return int(end.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ClientError(f"--{'for' if lasts else 'until'}: {error}") from None


def _tell(grant: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(grant)
        return
    print_line(
        f"{grant['id']}: {grant['tool']}, {grant['left']} of {grant['uses']} uses left until {moment(grant['ends_at'])}"
        f" ({grant['state']})"
    )

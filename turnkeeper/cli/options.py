"""Options that many commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.client import MOST_SESSIONS, Client
from turnkeeper.printing import progress
from turnkeeper.target import DEFAULT_STATE, Target, find_target

State = Annotated[
    Path,
    typer.Option(
        "--state",
        envvar="TURNKEEPER_STATE",
        help="State folder of the stack to speak to. TURNKEEPER_INGRESS_URL and so on name another deployment.",
        show_default=True,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For programs: one JSON object a line.")]
SessionName = Annotated[str, typer.Argument(help="The session's name.")]
AsUser = Annotated[str, typer.Option("--as", help="The user who speaks.", metavar="USER")]
STATE = DEFAULT_STATE


def target(state: Path) -> Target:
    """The deployment that a command speaks to. Raises TargetError."""
    return find_target(state)


def all_sessions(asking: Client) -> list[str]:
    """Known sessions, newest first; stderr says so where there may be more than the service lists."""
    names = asking.sessions()
    if len(names) >= MOST_SESSIONS:
        progress(f"turnkeeper: only the newest {MOST_SESSIONS:,} sessions are looked at; name an older one to see it")
    return names


@contextmanager
def client(state: Path) -> Iterator[Client]:
    """A client of it, closed at the end."""
    with Client(target(state)) as made:
        yield made

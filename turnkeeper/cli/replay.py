"""`turnkeeper replay`: what the code and rules of now would have made of a session, where it is not what was made."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from libs.contracts.application import load_application
from turnkeeper.cli.options import STATE, Json, SessionName, State, client
from turnkeeper.client import ClientError
from turnkeeper.printing import cell, print_json, print_line, print_table, progress

_COLUMNS = ("version", "input", "what", "recorded", "today")
_WRONG_FILE = 3
"""Exit status of that process where it cannot read what it was given: stderr says what."""
_KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TZ")
"""What the process that replays is told of our environment: no URL and no secret."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    session: SessionName,
    config: Annotated[
        Path | None,
        typer.Option(help="Application file to decide by; without, the one that is deployed.", metavar="FILE"),
    ] = None,
    plan_again: Annotated[
        bool,
        typer.Option("--plan-again", help="Ask the scripted planner of that file anew, instead of the recorded plans."),
    ] = False,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Decide a session's newest inputs again, with this version and these rules, and show what comes out differently.

    Nothing is sent and nothing is stored. The exit status is 1 if anything differs.

    **Examples**

      turnkeeper replay dinner

      turnkeeper replay dinner --config next/turnkeeper.yaml --plan-again

      turnkeeper replay dinner --json | jq -r 'select(.kind == "difference") | [.version, .what, .today] | @tsv'
    """
    with client(state) as asking:
        chosen = config or asking.target.config
        load_application(chosen)  # a wrong file is told before anything else
        found = _replayed(asking.record(session), chosen, plan_again)
    *findings, summary = found
    if not summary["recorded"]:
        raise ClientError(f"nothing is recorded of {session}: is TURNKEEPER_SESSION_RECORD off?")
    if as_json:
        for line in found:
            print_json(line)
    else:
        _print(findings, summary)
    if not summary["replayed"] or summary["differences"]:
        raise typer.Exit(1)


def _replayed(record: bytes, config: Path, plan_again: bool) -> list[dict[str, Any]]:
    """The findings and their summary, from a process of the session service's code. Raises ClientError."""
    argv = [sys.executable, "-P", "-m", "services.session.replay", "--config", str(config)]
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    done = subprocess.run(
        [*argv, *(["--plan-again"] if plan_again else [])],
        input=record,
        capture_output=True,
        env=environment,
        check=False,
    )
    told = done.stderr.decode(errors="replace").strip()
    if done.returncode == _WRONG_FILE:
        raise ClientError(told)
    if done.returncode != 0:
        raise RuntimeError(told)
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def _print(findings: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    for note in findings:
        if note["kind"] == "note":
            progress(f"version {note['version']}: {note['text']}")
    rows = [one for one in findings if one["kind"] == "difference"]
    if rows:
        print_table(_COLUMNS, ([cell(row[column]) for column in _COLUMNS] for row in rows))
    print_line(summary["text"])

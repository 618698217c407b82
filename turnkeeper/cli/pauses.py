"""`turnkeeper pause`, `resume`: the kill switch, at the door."""

import time
from typing import Annotated, Any

import typer

from turnkeeper.cli.options import STATE, Json, State, client
from turnkeeper.client import Client, ClientError
from turnkeeper.printing import print_json, print_line, progress

KINDS = ("source", "session", "tool", "all")
STOP_SECONDS = 120.0
"""Longer than any usual lease: a holder that is gone is waited for until its own is over."""
Kind = Annotated[str | None, typer.Argument(help=f"What: {', '.join(KINDS)}.", metavar="KIND", show_default=False)]
Name = Annotated[str, typer.Argument(help="Which source, session or tool.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("pause")(pause)
    app.command("resume")(resume)


def pause(
    kind: Kind = None,
    name: Name = "",
    note: Annotated[str, typer.Option(help="Why; shown to whoever looks.")] = "",
    wait: Annotated[
        float, typer.Option(min=0, max=600, help="Seconds to wait for answers to what was sent before.")
    ] = 10.0,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Stop sends at the door, on all replicas. Once this returns with status 0 no send begins; without arguments it
    lists what is paused.

    Events, messages and decisions are accepted as before. Calls that come meanwhile wait at the door, each until its
    `not_after` at most, and go on with turnkeeper resume. What was sent before is told as it ends. `source` stops the
    turns that a source began, not what a user has approved since.

    **Examples**

      turnkeeper pause tool reserve_table --note "they charge twice, ticket 4711"

      turnkeeper pause all

      turnkeeper pause --json | jq -r '[.kind, .name, .by] | @tsv'
    """
    with client(state) as asking:
        if kind is None:
            _list(asking, as_json)
            return
        _checked(kind, name)
        told = _paused(asking, kind, name, note, wait)
    if as_json:
        print_json(told)
    else:
        _print(told)
    if not told["stopped"]:
        raise ClientError(f"it is paused, but not every send has stopped after {STOP_SECONDS:.0f} s: run it again")


def resume(kind: Kind = None, name: Name = "", state: State = STATE, as_json: Json = False) -> None:
    """Let sends begin again: what waited goes on, in the order in which it came.

    **Examples**

      turnkeeper resume tool reserve_table

      turnkeeper resume all
    """
    if kind is None:
        raise ClientError(f"say what: {', '.join(KINDS)}; turnkeeper pause lists what is paused")
    _checked(kind, name)
    with client(state) as asking:
        told = asking.resume(kind, name)
    if as_json:
        print_json(told)
    elif told["ended"]:
        print_line(f"{_named(told)} goes on; {told['released']} waiting calls with it")
    else:
        print_line(f"{_named(told)} was not paused")


def _checked(kind: str, name: str) -> None:
    if kind not in KINDS:
        raise ClientError(f"there is no kind {kind!r}: one of {', '.join(KINDS)}")
    if (kind == "all") == bool(name):
        raise ClientError("all has no name" if kind == "all" else f"say which {kind}")


def _paused(asking: Client, kind: str, name: str, note: str, wait: float) -> dict[str, Any]:
    """Pause, and ask until no send begins, and for `wait` seconds until nothing is in flight."""
    began = time.monotonic()
    while True:
        passed = time.monotonic() - began
        told = asking.pause(kind, name, note, max(0.0, min(2.0, wait - passed)))
        passed = time.monotonic() - began
        if told["stopped"] and (not told["in_flight"] or passed >= wait):
            return told
        if not told["stopped"] and passed >= max(wait, STOP_SECONDS):
            return told
        if not told["stopped"]:
            progress("turnkeeper: paused; waiting for what was claimed before to be sent or stopped")
            time.sleep(0.2)


def _list(asking: Client, as_json: bool) -> None:
    found = asking.pauses()
    for one in found:
        if as_json:
            print_json(one)
        else:
            _print(one)
    if not found and not as_json:
        print_line("nothing is paused")


def _print(told: dict[str, Any]) -> None:
    note = f": {told['note']}" if told["note"] else ""
    stopped = "" if told["stopped"] else ", sends still stopping"
    print_line(f"{_named(told)} paused by {told['by']}{note} ({told['waiting']} waiting{stopped})")
    for one in told["in_flight"]:
        print_line(f"  sent before, without an answer yet: {one['session']} {one['operation']} {one['tool']}")


def _named(told: dict[str, Any]) -> str:
    return f"{told['kind']} {told['name']}".strip()

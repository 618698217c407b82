"""`turnkeeper up`, `down`, `status`: a stack from its start to its end."""

from pathlib import Path
from typing import Annotated, Any

import typer

from turnkeeper import stack as stacks
from turnkeeper.cli.options import STATE, Json, State
from turnkeeper.client import Client, ClientError, Unreachable
from turnkeeper.engines import KINDS
from turnkeeper.printing import print_json, print_line, print_rows, progress
from turnkeeper.target import find_config, of_stack

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine", help=f"Where Redis and RabbitMQ come from: {', '.join(KINDS)}. The first found if left out."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)


def up(
    engine: EngineName = None,
    port_base: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_000,
            envvar="TURNKEEPER_PORT_BASE",
            help="Ports are base + i + 10k for replica k of service i; 0 takes free ones.",
        ),
    ] = stacks.DEFAULT_PORT_BASE,
    config: Annotated[
        Path | None,
        typer.Option(help="The application file. Without: ./turnkeeper.yaml, else the dinner example."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, max=50, help="Replicas of each service.")] = 1,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready; turnkeeper down ends it.")
    ] = False,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Start Redis, RabbitMQ, the four services and the demo's sandbox, and stay until Ctrl-C.

    Everything about the stack is in the state folder: stack.json with every URL, logs/, and the servers' data, with
    which a later start goes on.

    **Examples**

      turnkeeper up

      turnkeeper up --detach --engine local --replicas 2

      turnkeeper up --config my/turnkeeper.yaml --port-base 0 --state /tmp/tk
    """
    chosen = find_config(config)

    def start() -> None:
        _print_stack(stacks.start_stack(state, engine, port_base, chosen, replicas, say=progress), as_json)

    if not detach:
        stacks.hold(state, start, say=progress)
        return
    start()
    progress(f"it runs until: turnkeeper down --state {state}")


def down(state: State = STATE) -> None:
    """Stop a stack with everything that it started. Its data stays in the state folder.

    Where one has been stopped already this changes nothing; a folder that never held one is a fault.

    **Example**

      turnkeeper down --state /tmp/tk
    """
    if not stacks.is_state(state):
        raise stacks.StackError(f"there is no stack in {state}: name its folder with --state or TURNKEEPER_STATE")
    stacks.stop_stack(state, say=progress)
    progress(f"nothing of {state} runs any more")


def status(state: State = STATE, as_json: Json = False) -> None:
    """Say what of a stack runs and is ready. The exit status is 1 if something is not.

    **Examples**

      turnkeeper status

      turnkeeper status --json | jq -r 'select(.ready | not) | .name'
    """
    made = stacks.read_stack(state)
    rows = _rows(made)
    print_rows(rows, ("name", "runs", "ready", "url", "pid", "says"), as_json=as_json)
    for line in _pauses(made):
        progress(line)
    if not all(row["ready"] for row in rows):
        progress("something is not well: turnkeeper doctor says what, and what to do")
        raise typer.Exit(1)


def _pauses(made: stacks.Stack) -> list[str]:
    """What is paused, a line each; nothing where the door does not answer, which the table says."""
    try:
        with Client(of_stack(made)) as client:
            found = client.pauses()
    except ClientError:
        return []
    return [f"paused: {one['kind']} {one['name']}".rstrip() + f" by {one['by']}: {one['note']}" for one in found]


def _rows(made: stacks.Stack) -> list[dict[str, Any]]:
    runs = stacks.running(made.state)
    urls = {f"{service}-{k}": url for service, replicas in made.urls.items() for k, url in enumerate(replicas)}
    if made.sandbox_url:
        urls["sandbox"] = made.sandbox_url
    rows: list[dict[str, Any]] = []
    with Client(of_stack(made)) as client:
        for name in [*(name for name in runs if name not in urls), *urls]:
            row = {"name": name, "runs": runs.get(name, False), "url": urls.get(name, ""), "pid": made.pids.get(name)}
            ready, says = _readiness(client, name, urls[name]) if name in urls else (row["runs"], "")
            rows.append({**row, "ready": ready, "says": says})
    return rows


def _readiness(client: Client, name: str, url: str) -> tuple[bool, str]:
    try:
        ready, told = client.readiness(name, url)
    except Unreachable:
        return False, "does not answer"
    said = [f"{check}: {fault}" for check, fault in told.get("faults", {}).items()] + list(told.get("warnings", []))
    return ready, "; ".join(said)


def _print_stack(made: stacks.Stack, as_json: bool) -> None:
    if as_json:
        print_json({"state": str(made.state), "engine": made.engine, "urls": made.urls, "config": str(made.config)})
        return
    for service, urls in made.urls.items():
        print_line(f"{service:<9} {'  '.join(urls)}")
    if made.sandbox_url:
        print_line(f"{'sandbox':<9} {made.sandbox_url}")
    print_line(f"application {made.config}, engine {made.engine}, all of it in {made.state / 'stack.json'}")

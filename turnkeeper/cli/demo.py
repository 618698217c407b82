"""`turnkeeper demo`: a scenario on a throw-away stack, with everything that it does shown."""

from typing import Annotated, Any

import typer

from turnkeeper import stack as stacks
from turnkeeper.cli.options import STATE, Json, State, target
from turnkeeper.client import Client
from turnkeeper.demo import DemoError, play, show
from turnkeeper.demo import scenario as scenarios
from turnkeeper.demo.runner import Played, Processes
from turnkeeper.demo.scenario import Scenario, Settings
from turnkeeper.demo.stand import throw_away
from turnkeeper.engines import KINDS
from turnkeeper.printing import print_json, print_line, progress
from turnkeeper.stack import StackError
from turnkeeper.target import Target, of_stack


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    name: Annotated[str, typer.Argument(help="The scenario; without, the main job.")] = scenarios.MAIN,
    show_list: Annotated[bool, typer.Option("--list", help="One name a line, and nothing is run.")] = False,
    history: Annotated[bool, typer.Option(help="Also show what the planner saw: each message with its role.")] = False,
    on_running: Annotated[
        bool, typer.Option("--on-running", help="On the stack that runs, or the deployment that the environment names.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help=f"Engine of the throw-away stack: {', '.join(KINDS)}.", metavar="ENGINE")
    ] = None,
    record: Annotated[bool, typer.Option("--record", hidden=True)] = False,
    state: State = STATE,
    as_json: Json = False,
) -> None:
    """Run a scenario on real Redis and RabbitMQ, show what happens, and compare it with what was recorded.

    The stack is thrown away at the end. The exit status is 1 if anything came out differently.

    **Examples**

      turnkeeper demo

      turnkeeper demo --list

      turnkeeper demo offer-by-role --history
    """
    if show_list:
        _print_list(as_json)
        return
    scenario = scenarios.load(name)
    if on_running:
        _refuse_settings(scenario)
        speaking, processes = _running(state)
        played = _play(speaking, scenario, processes, history, record, as_json)
    else:
        progress(f"demo {name}: a throw-away stack")
        with throw_away(scenario.settings, engine=engine, say=lambda line: progress(f"  {line}")) as stack:
            played = _play(of_stack(stack), scenario, stack, history, record, as_json)
    if not as_json:
        print_line(f"\n{name}: as recorded, {len(played.lines)} lines" if not record else f"\n{name}: recorded")


def _play(
    speaking: Target, scenario: Scenario, processes: Processes | None, history: bool, record: bool, as_json: bool
) -> Played:
    watching = show.Silent() if as_json else show.Watching()
    if not as_json:
        print_line(f"\n{scenario.name}: {' '.join(scenario.description.split())}")
    played = play.play(speaking, scenario, watching, processes)
    seen = _seen(speaking, played.session) if history else []
    if as_json:
        shown = {"history": seen} if history else {}
        print_json({"scenario": scenario.name, "session": played.session, **played.came.model_dump(), **shown})
    else:
        show.print_played(played)
        show.print_metrics(played.samples)
    if history and not as_json:
        show.print_history(seen)
    if record:
        progress(f"written: {scenarios.record(scenario.name, played.came)}")
    elif wrong := play.faults(scenario, played):
        raise DemoError("\n".join([f"{scenario.name} came out differently than recorded:", *wrong]))
    return played


def _seen(speaking: Target, session: str) -> list[dict[str, Any]]:
    with Client(speaking) as client:
        return client.history(session)


def _print_list(as_json: bool) -> None:
    for name in scenarios.names():
        if as_json:
            print_json({"name": name, "description": " ".join(scenarios.load(name).description.split())})
        else:
            print_line(name)


def _refuse_settings(scenario: Scenario) -> None:
    if scenario.settings != Settings():
        raise DemoError(f"{scenario.name} needs settings of its own: run it without --on-running")


def _running(state: State) -> tuple[Target, Processes | None]:
    try:
        return target(state), stacks.read_stack(state)
    except StackError:
        return target(state), None

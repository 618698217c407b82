"""One scenario from its file to its verdict: what the command, the tests and a recording share."""

from collections.abc import Callable

from turnkeeper.client import Client
from turnkeeper.demo import scenario as scenarios
from turnkeeper.demo.compare import differences, differences_after_crashes
from turnkeeper.demo.faults import DemoError
from turnkeeper.demo.runner import Audience, Played, Processes, Runner
from turnkeeper.demo.scenario import Expected, Scenario
from turnkeeper.stack import Stack
from turnkeeper.target import Target, of_stack


def play_on_stack(stack: Stack, scenario: Scenario, audience: Audience) -> Played:
    """Play a scenario on a stack of ours. Raises DemoError."""
    return play(of_stack(stack), scenario, audience, stack)


def play(target: Target, scenario: Scenario, audience: Audience, processes: Processes | None) -> Played:
    """Play a scenario on a deployment. Raises DemoError, ClientError or TargetError."""
    with Client(target) as client:
        return Runner(client, scenario, audience, processes).play()


def faults(scenario: Scenario, played: Played) -> list[str]:
    """What came out differently than recorded; empty if nothing."""
    if scenario.outcomes_of:
        recorded = scenarios.load(scenario.outcomes_of).expect
        return _recorded(recorded, scenario.outcomes_of, lambda one: differences_after_crashes(one, played.came))
    return _recorded(scenario.expect, scenario.name, lambda one: differences(one, played.came))


def _recorded(recorded: Expected | None, name: str, compare: Callable[[Expected], list[str]]) -> list[str]:
    if recorded is None:
        raise DemoError(f"nothing is recorded for {name}: turnkeeper demo {name} --record")
    return compare(recorded)

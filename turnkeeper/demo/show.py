"""A play for people: the story as it goes, then timeline, world and the metrics that it moved."""

from collections.abc import Iterable, Mapping
from typing import Any

from turnkeeper.demo.runner import Played
from turnkeeper.printing import one_line, print_line, print_timeline_line, progress

_SHOWN = ("turnkeeper_ingress_events_total", "turnkeeper_consent_")
_EVENTS, _ACTIONS = "turnkeeper_ingress_events_total", "turnkeeper_consent_actions_total"
_LEFT_OUT = ("_bucket", "_created")


class Watching:
    """Prints the story to stdout, waiting to stderr."""

    def told(self, text: str) -> None:
        """A sentence of the story."""
        print_line(f"\n{text}")

    def answered(self, text: str) -> None:
        """What was answered or seen."""
        print_line(f"  {one_line(text)}")

    def waiting(self, text: str) -> None:
        """What is waited for."""
        progress(f"  … {text}")


class Silent:
    """Shows nothing: the result is printed for programs."""

    def told(self, text: str) -> None:
        """A sentence of the story."""

    def answered(self, text: str) -> None:
        """What was answered or seen."""

    def waiting(self, text: str) -> None:
        """What is waited for, which programs may want to see too."""
        progress(text)


def print_played(played: Played) -> None:
    """Timeline, what ingress did not let through, the world."""
    print_line("\nTimeline")
    for chapter in played.chapters:
        if chapter.title:
            print_line(f"== {chapter.title}")
        for line in chapter.lines:
            print_timeline_line(line)
    if played.came.deliveries:
        print_line("\nIngress's log: these wrote nothing to the session")
        for delivery in played.came.deliveries:
            print_line(f"    {one_line(delivery)}")
    print_line("\nThe world: what was really done, from the sandbox's own log, and how it is now")
    for chapter in played.chapters:
        if chapter.title:
            print_line(f"== {chapter.title}")
        for effect in chapter.effects:
            print_line(f"    world {one_line(effect)}")
        for fact in chapter.world:
            print_line(f"-- {one_line(fact)}")


def print_metrics(grown: Mapping[str, float]) -> None:
    """The samples of ingress's and consent's metrics that are not zero, as a scrape shows them, and the two rates."""
    print_line("\nMetrics, scraped from all four services, as they grew since the start")
    for name, value in sorted(grown.items()):
        base = name.partition("{")[0]
        if name.startswith(_SHOWN) and value and not base.endswith(_LEFT_OUT):
            print_line(f"{name} {float(value)}")
    duplicate, accepted = _sum(grown, _EVENTS, "duplicate"), _sum(grown, _EVENTS, "accepted")
    print_line(f"dedupe ratio: {_ratio(duplicate, accepted + duplicate)}")
    yes, rest = _sum(grown, _ACTIONS, "accepted"), _sum(grown, _ACTIONS, "declined") + _sum(grown, _ACTIONS, "expired")
    print_line(f"consent accept ratio: {_ratio(yes, yes + rest)}")


def _sum(grown: Mapping[str, float], family: str, outcome: str) -> float:
    return sum(value for name, value in grown.items() if name.startswith(family) and f'outcome="{outcome}"' in name)


def _ratio(part: float, whole: float) -> str:
    return f"{part:g} of {whole:g}" + (f" = {part / whole:.2f}" if whole else "")


def print_history(messages: Iterable[Mapping[str, Any]]) -> None:
    """What the planner saw: who says what in which role. What others wrote is what a tool returned."""
    print_line("\nWhat the planner saw")
    called: dict[str, str] = {}
    for message in messages:
        role = message.get("role", "")
        returned = f"{called.get(str(message.get('tool_call_id')), '?')} returned: " if role == "tool" else ""
        if message.get("content"):
            print_line(f"  [{role}] {returned}{one_line(str(message['content']))}")
        for call in message.get("tool_calls") or ():
            function = call["function"]
            called[call["id"]] = one_line(function["name"])
            print_line(f"  [{role}] calls {one_line(function['name'])}({one_line(function['arguments'])})")

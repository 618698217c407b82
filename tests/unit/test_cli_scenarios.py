"""Scenario files, and the comparison of what came out with what was recorded."""

from pathlib import Path

import pytest

from turnkeeper.demo import DemoError, samples
from turnkeeper.demo import scenario as scenarios
from turnkeeper.demo.compare import differences, differences_after_crashes
from turnkeeper.demo.runner import Chapter
from turnkeeper.demo.scenario import Expected, Settings, laid_over

RECORDED = Expected(
    timeline=("1 input ana: book", "2 tool.sent reserve()", "3 tool.committed reserve: R1", "4 turn.done"),
    effects=("agent put reservations R1",),
    world=("restaurant holds: R1",),
    answers=("ana says it: 202 accepted",),
)


def came(*lines: str, world: str = "restaurant holds: R1", times: int = 1) -> Expected:
    return Expected(timeline=lines, effects=RECORDED.effects * times, world=(world,))


@pytest.mark.parametrize("name", scenarios.names())
def test_every_scenario_can_be_read_and_has_something_recorded(name: str) -> None:
    scenario = scenarios.load(name)
    assert scenario.expect is not None or scenario.outcomes_of in scenarios.names()
    assert scenario.description


def test_what_is_as_recorded_has_no_differences() -> None:
    assert differences(RECORDED, RECORDED) == []


@pytest.mark.parametrize("part", ["timeline", "answers", "effects", "world", "deliveries"])
def test_every_part_is_compared_exactly(part: str) -> None:
    other = RECORDED.model_copy(update={part: (*getattr(RECORDED, part), "something more")})
    assert any("something more" in line for line in differences(RECORDED, other))


def test_a_crash_may_add_recovery_and_tell_a_result_again() -> None:
    recovered = came(
        "1 input ana: book",
        "2 tool.sent reserve()",
        "3 tool.unknown reserve: no answer",
        "4 tool.replayed reserve: R1",
        "5 turn.done",
    )
    assert differences_after_crashes(RECORDED, recovered) == []


BOOK, SENT, DONE = "input ana: book", "tool.sent reserve()", "turn.done"
R1, R2 = "tool.committed reserve: R1", "tool.committed reserve: R2"
CHANGED = {
    "missing": (BOOK, SENT, R1),
    "another result": (BOOK, SENT, R2, DONE),
    "another replay": (BOOK, SENT, "tool.replayed reserve: R2", DONE),
    "sent twice": (BOOK, SENT, SENT, R1, DONE),
    "out of order": (SENT, BOOK, R1, DONE),
    "one more": (BOOK, SENT, R1, DONE, DONE),
}


@pytest.mark.parametrize("lines", CHANGED.values(), ids=CHANGED)
def test_a_crash_may_change_no_outcome(lines: tuple[str, ...]) -> None:
    numbered = [f"{number} {line}" for number, line in enumerate(lines, start=1)]
    assert differences_after_crashes(RECORDED, came(*numbered))


def test_a_crash_may_not_change_the_world() -> None:
    assert differences_after_crashes(RECORDED, came(*RECORDED.timeline, world="restaurant holds: R1; R2"))


def test_a_crash_may_not_repeat_an_effect() -> None:
    assert differences_after_crashes(RECORDED, came(*RECORDED.timeline, times=2))


def test_a_recording_replaces_what_was_expected_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    head = "# why\ndescription: d\n\nsteps:\n  - create: {owner: ana}   # kept\n"
    path.write_text(head)
    for recorded in (RECORDED, Expected(timeline=("1 input ana: other",))):
        scenarios.record("s", recorded, tmp_path)
        assert path.read_text().startswith(head)
        assert scenarios.load("s", tmp_path).expect == recorded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("description: d\nsteps: []", "steps"),
        ("description: d\nsteps: [{explode: true}]", "explode"),
        ("description: d\nsteps: [{tell: a, kill: [redis]}]", "exactly one"),
        ("description: d\nsteps: [{wait: {}}]", "exactly one"),
        ("description: d\nsteps: [{release: {collection: messages, calls: 0}}]", "calls"),
        ("- a list", "read"),
        ("steps: [", "read"),
    ],
)
def test_a_file_with_faults_is_refused_with_their_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(DemoError, match=says):
        scenarios.load("s", tmp_path)


def test_what_comes_of_a_part_stands_under_its_title() -> None:
    assert Chapter("in flight", (), (), ()).headed(["1 input"]) == ("== in flight", "1 input")
    assert Chapter("", (), (), ()).headed(["1 input"]) == ("1 input",)


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(DemoError, match="--list"):
        scenarios.load("../../etc/passwd")


def test_settings_are_laid_over_the_example() -> None:
    base = {"session": {"action_ttl": "10m", "caps": {"steps": 20}}, "tools": {}}
    over = {"session": {"action_ttl": "1s"}}
    assert laid_over(base, over) == {"session": {"action_ttl": "1s", "caps": {"steps": 20}}, "tools": {}}
    assert Settings() == scenarios.load("offer").settings


def test_samples_of_replicas_add_up_and_labels_may_stand_in_any_order() -> None:
    text = '# TYPE x counter\nx_total{b="2",a="1"} 3\n'
    now = samples.read([text, text])
    assert samples.grown(now, {}, 'x_total{b="2", a="1"}') == 6
    assert samples.grown(now, {'x_total{a="1",b="2"}': 5.0}, 'x_total{a="1",b="2"}') == 1
    assert samples.grown(now, {}, "never_seen") == 0


def test_a_gauge_of_several_replicas_is_what_each_of_them_tells() -> None:
    head = "# TYPE turnkeeper_consent_pending gauge\nturnkeeper_consent_pending "
    assert samples.read([head + "1.0\n", head + "2.0\n"]) == {"turnkeeper_consent_pending": 2.0}

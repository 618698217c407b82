"""Red means that a rule was missed, and nothing else: what the runner of mutants makes of an output."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.run import HERE, Ran, read, verdict_of

MISSED = "F\n====\nE   assert 2 == 1\nFAILED tests/unit/test_a.py::test_a - assert 2 == 1\n1 failed in 0.1s\n"
NOT_READ = "ERROR tests/unit/test_a.py - SyntaxError: invalid syntax\n1 error in 0.1s\n"
NO_SERVER = "ERROR tests/unit/test_a.py::test_a - RuntimeError: no Redis\n1 error in 0.1s\n"
DIFFERS = "turnkeeper: offer came out differently than recorded: · -1 turn.ask · +1 tool.sent\n"
NEVER_CAME = "turnkeeper: offer: waited 30 s for action.asked: 0 of 1 such lines\n"
NO_STACK = "turnkeeper: session-0 did not become ready within 60 s\n"


@pytest.mark.parametrize("kind, output", [("test", MISSED), ("scenario", DIFFERS), ("scenario", NEVER_CAME)])
def test_a_rule_that_was_missed_is_red(kind: str, output: str) -> None:
    status, why = verdict_of(kind, Ran(1, output))
    assert status == "red"
    assert why


@pytest.mark.parametrize("kind, code, output", [
    ("test", 2, NOT_READ), ("test", 1, NO_SERVER), ("test", 4, "no such test"), ("test", 5, "no tests ran"),
    ("test", 1, MISSED + NO_SERVER), ("scenario", 1, NO_STACK), ("scenario", 2, "no such scenario"),
    ("scenario", 1, "Traceback (most recent call last):\n" + DIFFERS),
])  # fmt: skip
def test_a_tree_that_is_broken_is_not_red(kind: str, code: int, output: str) -> None:
    assert verdict_of(kind, Ran(code, output))[0].startswith("broke")


@pytest.mark.parametrize("kind", ["test", "scenario"])
def test_what_was_noticed_by_nobody_is_green(kind: str) -> None:
    assert verdict_of(kind, Ran(0, "1 passed"))[0] == "GREEN"


def test_what_does_not_end_is_not_red() -> None:
    assert verdict_of("scenario", Ran(None, NEVER_CAME))[0] == "did not end"


@pytest.mark.parametrize("patch", sorted(HERE.glob("*.patch")), ids=lambda path: path.stem)
def test_a_patch_names_its_rule_and_what_notices(patch: Path) -> None:
    mutant = read(patch)
    assert mutant.rule
    path, _, name = mutant.target.partition("::")
    if mutant.kind == "test":
        assert f"def {name.partition('[')[0]}(" in (HERE.parent.parent / path).read_text()
    else:
        assert patch.stem == f"scenario-{mutant.target}"


def test_every_patch_applies_to_the_tree_as_it_is() -> None:
    tried = subprocess.run([sys.executable, "-m", "tests.mutants.run", "--apply-only"], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_a_patch_without_a_head_is_refused(tmp_path: Path) -> None:
    patch = tmp_path / "a.patch"
    patch.write_text("# rule: one\n\ndiff --git a/a b/a\n")
    with pytest.raises(ValueError, match="its head needs"):
        read(patch)

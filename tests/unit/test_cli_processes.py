"""What is shown of a log when its process failed: its own words since it was started."""

from pathlib import Path

import pytest

from turnkeeper import processes
from turnkeeper.processes import Record


def record(log: Path, log_from: int = 0) -> Record:
    return Record("tools-0", (), {}, str(log), 1, 1, "", "/", log_from=log_from)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\nturnkeeper tools: 2 faults:\n  a\n  b\n", "turnkeeper tools: 2 faults:\n  a\n  b"),
        ('{"level":"error","msg":"x"}\n{"level":"info","msg":"y"}\n', '{"level":"error","msg":"x"}'),
        ("one\ntwo\n", "one\ntwo"),
        ("", "(nothing in the log)"),
    ],
)
def test_the_own_words_of_a_process_come_first(text: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    assert processes.last_lines(record(tmp_path / "log")) == shown


def test_what_an_earlier_process_wrote_is_not_shown(tmp_path: Path) -> None:
    old = "turnkeeper tools: yesterday's fault\n"
    (tmp_path / "log").write_text(old + "today\n")
    assert processes.last_lines(record(tmp_path / "log", len(old))) == "today"

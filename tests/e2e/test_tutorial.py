"""docs/tutorial.md as a new user follows it: every command, in order, in one shell, in an empty folder."""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.eventually import eventually_sync
from tests.support.servers import Servers
from turnkeeper.ports import free_port
from turnkeeper.stack import stop_stack

pytestmark = pytest.mark.engine
PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLANNER_PORT = "9001"
READS = ("turnkeeper timeline", "turnkeeper actions", "turnkeeper why", "python orders.py", "cat notes/")
"""What may be asked again until it shows what it should: a person looks again, too."""


@dataclass(frozen=True)
class Part:
    """Commands, and what the page says that they show."""

    commands: str
    shows: tuple[str, ...]

    @property
    def reads(self) -> bool:
        return self.commands.startswith(READS)


def parts(page: str) -> list[Part]:
    found: list[Part] = []
    for language, text in FENCE.findall(page):
        if language == "sh":
            found.append(Part(text, ()))
        else:
            assert language == "text", f"a fence of {language!r} is neither run nor compared"
            assert found[-1].shows == (), "two outputs for one command"
            found[-1] = Part(found[-1].commands, tuple(line for line in text.splitlines() if line.strip()))
    return found


class Shell:
    """One shell for the whole page: its folder, jobs and variables stay."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._mark = secrets.token_hex(8)
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, commands: str) -> tuple[str, int]:
        """What commands print, stderr too, and the status of the first that fails."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # As typed: line by line, and one that fails is not passed over.
        self._bash.stdin.write(f"trap 'failed=${{failed:-$?}}' ERR; failed=\n{commands}\n")
        self._bash.stdin.write(f"printf '\\n{self._mark} %s\\n' \"${{failed:-0}}\"\n")
        self._bash.stdin.flush()
        shown = ""
        for line in self._bash.stdout:
            if line.startswith(self._mark):
                return shown, int(line.split()[1])
            shown += line
        raise AssertionError(f"the shell ended: {shown}")

    def close(self) -> None:
        os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.communicate(timeout=20)


@pytest.fixture
def shell(servers: Servers, namespace: str, tmp_path: Path) -> Iterator[Shell]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    ours = {
        **servers.environment(),
        "TURNKEEPER_NAMESPACE": namespace,
        "TURNKEEPER_PARTITIONS": "4",
        "TURNKEEPER_PORT_BASE": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    made = Shell(tmp_path, {**inherited, **ours})
    yield made
    stop_stack(tmp_path / "my-agent" / ".turnkeeper")
    made.close()


def plain(text: str) -> str:
    """A line without the widths of a table."""
    return " ".join(text.split())


def missing(shown: str, lines: tuple[str, ...]) -> list[str]:
    """Lines that are not shown, each looked for after the one before; `…` stands for anything."""
    rest, lost = [plain(line) for line in shown.splitlines()], []
    for line in lines:
        pattern = ".*".join(re.escape(part) for part in plain(line).split("…"))
        at = next((at for at, found in enumerate(rest) if re.fullmatch(f"{pattern}.*", found)), None)
        if at is None:
            lost.append(line)
        else:
            rest = rest[at + 1 :]
    return lost


def followed(shell: Shell, part: Part) -> None:
    """Run a part and find what the page says of it."""

    def as_told() -> bool:
        shown, status = shell.run(part.commands)
        assert status == 0, f"{part.commands}\nfailed: {shown}"
        assert missing(shown, part.shows) == [], f"{part.commands}\nshows: {shown}"
        return True

    if part.reads:
        eventually_sync(as_told, within=20)
    else:
        as_told()


@pytest.mark.slow
def test_every_command_of_the_tutorial_does_what_the_page_says(shell: Shell) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(PLANNER_PORT) == 2
    found = parts(page.replace(PLANNER_PORT, str(free_port())))
    assert len(found) > 15
    for part in found:
        followed(shell, part)


def test_the_page_shows_each_output_after_its_command() -> None:
    assert [part.shows for part in parts("```sh\na\n```\n```text\nb\n```\n```sh\nc\n```\n")] == [("b",), ()]
    assert missing("x  y\nlater 12:00\n", ("x y", "later …")) == []
    assert missing("one\ntwo\n", ("two", "one")) == ["one"]

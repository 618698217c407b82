"""Apply each patch of this folder to a copy of the tree, run what its head names, expect red. `make mutants`.

A patch begins with two lines: `# rule: …` and `# test: PATH[::NAME]` (pytest) or `# scenario: NAME` (the demo runner).
A patch that no longer applies, or whose test stays green, is a fault: the rule has no test. So is a test that could not
be run, or a service that did not start: red means that the rule was missed, not that the tree was broken. Without
arguments what the patches name is run on the unbroken tree first, where it has to be green. Tests share one pair of
servers, apart by their namespaces; a scenario starts a stack of its own. `--jobs` are judged at once.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.servers import SWITCH, Servers

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LONGEST_SECONDS = 240
LONGEST_BASELINE_SECONDS = 900
PLAIN_WIDTH = 180
"""Columns of the table where nobody's terminal says how many there are."""
PLAIN, DISTURBED = "tests/e2e/test_anchors.py", "tests/e2e/test_anchors_disturbed.py"
"""Where the anchors are told, without and with noise on every hop."""
GRACE_SECONDS = 40
"""For a demo that is interrupted to take its stack down."""
_NOTICED = {
    "test": (r"^FAILED ", r"^ERROR tests/", r"^E +(.+)"),
    "scenario": (
        r"came out differently than recorded|: waited \d+ s for ",
        r"^Traceback ",
        r"^turnkeeper: (.+)",
    ),
}
"""Kind → what the output holds when the rule was missed; when something else broke; lines that say why."""


@dataclass(frozen=True)
class Mutant:
    """One broken rule. `kind` is test or scenario."""

    patch: Path
    rule: str
    kind: str
    target: str


@dataclass(frozen=True)
class Verdict:
    """What came of it. `detail` says why it is red, or what is wrong with it."""

    mutant: Mutant
    status: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit status; None if it did not end in time."""

    code: int | None
    output: str


def read(patch: Path) -> Mutant:
    """The head of a patch. Raises ValueError when it names no rule or nothing to run."""
    head = dict(
        line[2:].split(": ", 1) for line in patch.read_text(encoding="utf-8").splitlines()[:6] if line.startswith("# ")
    )
    for kind in ("test", "scenario"):
        if kind in head and "rule" in head:
            return Mutant(patch, head["rule"], kind, head[kind].strip())
    raise ValueError(f"{patch.name}: its head needs `# rule:` and `# test:` or `# scenario:`")


def judge(mutant: Mutant, tree: Path, shared: Mapping[str, str]) -> Verdict:
    """Break the rule in a fresh copy of the tree and run what should notice."""
    started = time.monotonic()
    copy_tree(tree)
    if fault := apply(mutant.patch, tree):
        return Verdict(mutant, "does not apply", time.monotonic() - started, fault)
    ran = run(command(mutant.kind, [mutant.target]), tree, LONGEST_SECONDS, _of_kind(mutant.kind, shared))
    status, detail = verdict_of(mutant.kind, ran)
    return Verdict(mutant, status, time.monotonic() - started, detail)


def apply(patch: Path, tree: Path, *options: str) -> str:
    """Change the tree by a patch; why it does not apply, or ""."""
    done = subprocess.run(["git", "apply", *options, str(patch)], cwd=tree, capture_output=True, text=True)
    return done.stderr.strip()[-300:] if done.returncode else ""


def verdict_of(kind: str, ran: Ran) -> tuple[str, str]:
    """Red only when the output shows that the rule was missed; with why, or with the end of the output."""
    noticed, broke, why = (re.compile(pattern, re.MULTILINE) for pattern in _NOTICED[kind])
    tail = ran.output[-2000:]
    if ran.code == 0:
        return "GREEN", tail
    if ran.code is None:
        return "did not end", tail
    if ran.code != 1 or not noticed.search(ran.output) or broke.search(ran.output):
        return f"broke ({ran.code})", tail
    return "red", " | ".join(match[1].strip() for match in list(why.finditer(ran.output))[:3])[:2000]


def command(kind: str, targets: Sequence[str]) -> list[str]:
    """What notices: pytest with these tests, or the demo of one scenario."""
    if kind == "test":
        return [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-rfE", "-p", "no:cacheprovider", *targets]
    return [sys.executable, "-m", "turnkeeper.cli", "demo", *targets]


def _of_kind(kind: str, shared: Mapping[str, str]) -> Mapping[str, str]:
    return shared if kind == "test" else {}


def run(argv: Sequence[str], tree: Path, longest: float, environment: Mapping[str, str]) -> Ran:
    """Run in the tree. What does not end in time is interrupted, so that it can stop what it started, then killed."""
    env = {**os.environ, **environment, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.Popen(
        argv, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    code = None
    try:
        output, _ = child.communicate(timeout=longest)
        code = child.returncode
    except subprocess.TimeoutExpired:
        output = _stop(child)
    except KeyboardInterrupt:
        _stop(child)
        raise
    return Ran(code, output)


def _stop(child: "subprocess.Popen[str]") -> str:
    child.send_signal(signal.SIGINT)
    try:
        output, _ = child.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
    return output


def copy_tree(tree: Path) -> None:
    """The files that git knows or would add, as they are now."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def unbroken(mutants: Sequence[Mutant], tree: Path, console: Console, shared: Mapping[str, str]) -> bool:
    """Whether all that the patches name is green without them; a red test could notice nothing."""
    copy_tree(tree)
    tests = sorted({mutant.target for mutant in mutants if mutant.kind == "test"})
    runs = [("test", tests)] if tests else []
    runs += [("scenario", [name]) for name in sorted({m.target for m in mutants if m.kind == "scenario"})]
    for kind, targets in runs:
        argv = command(kind, targets)
        ran = run(argv, tree, LONGEST_BASELINE_SECONDS, _of_kind(kind, shared))
        if ran.code != 0:
            console.print(f"red without any patch: {' '.join(argv[1:])}", highlight=False, markup=False)
            console.print(ran.output[-2000:], highlight=False, markup=False)
            return False
    console.print(
        f"the unbroken tree is green: {len(tests)} tests, {len(runs) - bool(tests)} scenarios", highlight=False
    )
    return True


def main() -> int:
    """Run all, print the table, exit 0 when each is red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patches", nargs="*", type=Path, help="patches to try; all when none is given")
    parser.add_argument("--jobs", type=int, default=2, help="so many at once (2)")
    parser.add_argument(
        "--disturbed", action="store_true", help="judge the patches of the anchors by the disturbed ones"
    )
    parser.add_argument("--apply-only", action="store_true", help="see in a second which patches no longer apply")
    options = parser.parse_args()
    mutants = [read(path.resolve()) for path in options.patches or sorted(HERE.glob("*.patch"))]
    if options.disturbed:
        mutants = [replace(mutant, target=mutant.target.replace(PLAIN, DISTURBED)) for mutant in mutants]
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    with tempfile.TemporaryDirectory(prefix="turnkeeper-mutants-") as folder:
        tree = Path(folder) / "tree"
        if options.apply_only:
            return _show_unapplied(mutants, tree, console)
        with _servers(mutants) as shared:
            if not options.patches and not unbroken(mutants, tree, console, shared):
                return 1
            with ThreadPoolExecutor(options.jobs) as pool:
                verdicts = list(
                    pool.map(
                        lambda numbered: _judged(numbered[1], Path(folder), numbered[0], len(mutants), console, shared),
                        enumerate(mutants, 1),
                    )
                )
    table = Table("mutant", "rule broken", "noticed by", "came out", "seconds")
    for verdict in verdicts:
        mutant = verdict.mutant
        noticed_by = mutant.target.rpartition("::")[2]
        table.add_row(mutant.patch.stem, mutant.rule, noticed_by, verdict.status, f"{verdict.seconds:.0f}")
    console.print(table)
    red = sum(verdict.status == "red" for verdict in verdicts)
    console.print(f"mutants: {red} of {len(verdicts)} are red")
    return 0 if verdicts and red == len(verdicts) else 1


@contextlib.contextmanager
def _servers(mutants: Sequence[Mutant]) -> Iterator[Mapping[str, str]]:
    """One Redis and one RabbitMQ for all tests, as variables of the environment; none where only scenarios run."""
    if not any(mutant.kind == "test" for mutant in mutants):
        yield {}
        return
    servers = Servers()
    try:
        yield {
            "TURNKEEPER_REDIS_URL": servers.redis_url(),
            "TURNKEEPER_AMQP_URL": servers.amqp_url(),
            SWITCH: "external",
        }
    finally:
        servers.stop()


def _judged(
    mutant: Mutant, folder: Path, number: int, count: int, console: Console, shared: Mapping[str, str]
) -> Verdict:
    tree = folder / f"tree-{number}"
    verdict = judge(mutant, tree, shared)
    shutil.rmtree(tree, ignore_errors=True)
    told = f"[{number}/{count}] {mutant.patch.stem}: {mutant.rule}\n    {verdict.status}: {verdict.detail}"
    console.print(told, highlight=False, markup=False)
    return verdict


def _show_unapplied(mutants: Sequence[Mutant], tree: Path, console: Console) -> int:
    copy_tree(tree)
    wrong = {mutant.patch.stem: fault for mutant in mutants if (fault := apply(mutant.patch, tree, "--check"))}
    for name, fault in wrong.items():
        console.print(f"{name}: {fault}", highlight=False, markup=False)
    console.print(f"mutants: {len(mutants) - len(wrong)} of {len(mutants)} apply")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Apply each patch of this folder to a copy of the tree, run what its head names, expect red. `make mutants`.

A patch begins with two lines: `# rule: …` and `# test: PATH[::NAME]` (pytest) or `# scenario: NAME` (the demo runner).
A patch that no longer applies, or whose test stays green, is a fault: the rule has no test.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LONGEST_SECONDS = 240
RED = (1, 2)
"""Exit statuses of a test that failed (pytest: 1 failed, 2 interrupted by an error of the tree)."""


@dataclass(frozen=True)
class Mutant:
    """One broken rule. `kind` is test or scenario."""

    patch: Path
    rule: str
    kind: str
    target: str


@dataclass(frozen=True)
class Verdict:
    """What came of it."""

    mutant: Mutant
    status: str
    seconds: float
    detail: str = ""


def read(patch: Path) -> Mutant:
    """The head of a patch. Raises ValueError when it names no rule or nothing to run."""
    head = dict(
        line[2:].split(": ", 1) for line in patch.read_text(encoding="utf-8").splitlines()[:6] if line.startswith("# ")
    )
    for kind in ("test", "scenario"):
        if kind in head and "rule" in head:
            return Mutant(patch, head["rule"], kind, head[kind].strip())
    raise ValueError(f"{patch.name}: its head needs `# rule:` and `# test:` or `# scenario:`")


def judge(mutant: Mutant, tree: Path) -> Verdict:
    """Break the rule in a fresh copy of the tree and run what should notice."""
    started = time.monotonic()
    copy_tree(tree)
    applied = subprocess.run(["git", "apply", str(mutant.patch)], cwd=tree, capture_output=True, text=True)
    if applied.returncode:
        return Verdict(mutant, "does not apply", time.monotonic() - started, applied.stderr.strip()[-300:])
    if mutant.kind == "test":
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutant.target]
    else:
        command = [sys.executable, "-m", "turnkeeper.cli", "demo", mutant.target]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        return Verdict(mutant, "red", time.monotonic() - started, "did not end in time")
    status = "red" if done.returncode in RED else "GREEN" if done.returncode == 0 else f"exit {done.returncode}"
    return Verdict(mutant, status, time.monotonic() - started, (done.stdout + done.stderr)[-400:])


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


def main() -> int:
    """Run all, print the table, exit 0 when each is red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patches", nargs="*", type=Path, help="patches to try; all when none is given")
    given = [path.resolve() for path in parser.parse_args().patches]
    mutants = [read(patch) for patch in given or sorted(HERE.glob("*.patch"))]
    console = Console()
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="turnkeeper-mutants-") as folder:
        for number, mutant in enumerate(mutants, 1):
            console.print(f"[{number}/{len(mutants)}] {mutant.patch.stem}: {mutant.rule}", highlight=False)
            verdicts.append(judge(mutant, Path(folder) / "tree"))
            if verdicts[-1].status != "red":
                console.print(verdicts[-1].detail, highlight=False, markup=False)
    table = Table("mutant", "rule broken", "noticed by", "came out", "seconds")
    for verdict in verdicts:
        mutant = verdict.mutant
        table.add_row(mutant.patch.stem, mutant.rule, mutant.target, verdict.status, f"{verdict.seconds:.0f}")
    console.print(table)
    red = sum(verdict.status == "red" for verdict in verdicts)
    console.print(f"mutants: {red} of {len(verdicts)} are red")
    return 0 if verdicts and red == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

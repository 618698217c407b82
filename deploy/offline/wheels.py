"""Fetch the wheels that the service image needs, with this machine's own pip and its settings.

Usage: wheels.py PROJECT FOLDER. Reads PROJECT/pyproject.toml (dependencies and build requirements) and
PROJECT/constraints.txt if it is there. What pip on this machine is told about indexes and certificates is used here
and only here: the folder that comes out holds wheels and nothing else.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PYTHON = "3.13"
# trixie's glibc takes every manylinux tag up to 2.41; wheels are built for these
GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34)


def requirements(project: Path) -> list[str]:
    """What must be installed to build and run the project, as pip understands it."""
    table = tomllib.loads((project / "pyproject.toml").read_text())
    return [*table["build-system"]["requires"], *table["project"]["dependencies"]]


def download(project: Path, folder: Path) -> None:
    """Fill `folder` with wheels for CPython 3.13 on Linux; raises CalledProcessError if one is missing."""
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS] + [f"manylinux2014_{machine}"]
    constraints = project / "constraints.txt"
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)),
        *("--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"),
        *(argument for tag in tags for argument in ("--platform", tag)),
        *(("--constraint", str(constraints)) if constraints.exists() else ()),
        *requirements(project),
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    download(Path(sys.argv[1]), Path(sys.argv[2]))

"""Write the project's dependencies to requirements.txt, held to constraints.txt if it is there.

So the image's slow layer depends on the dependencies alone and not on every change of the source.
"""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
lines = list(project["dependencies"])
if Path("constraints.txt").exists():
    lines.insert(0, "--constraint constraints.txt")
Path("requirements.txt").write_text("\n".join(lines) + "\n")

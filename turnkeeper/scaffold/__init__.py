"""The application that `turnkeeper init` writes, and how it is written."""

from pathlib import Path

APPLICATION = Path(__file__).parent / "application"
_HIDDEN = "dot-"
"""A file of this name would be at work here already: it gets its dot when it is written."""


class InitError(Exception):
    """Nothing was written. The text is one line and says what to do."""


def write_application(folder: Path) -> list[Path]:
    """Write the application into a folder that is empty or not there yet; the files, sorted.

    Raises InitError for another one, OSError where it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise InitError(f"{folder} is a file: name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise InitError(f"{folder} is not empty, and nothing in it is changed: name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for template in sorted(path for path in APPLICATION.iterdir() if path.is_file()):
        path = folder / template.name.replace(_HIDDEN, ".", 1)
        with path.open("xb") as file:  # never over what somebody else wrote meanwhile
            file.write(template.read_bytes())
        written.append(path)
    return sorted(written)

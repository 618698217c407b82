"""What the command line prints: tables for people, one JSON object a line for programs, faults in one line."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from libs.contracts.session import TimelineLine

PIPE_WIDTH = 200
_KIND_WIDTH = 17
_COLORS = {
    "turn": "cyan",
    "action": "yellow",
    "tool": "green",
    "effect": "magenta",
    "reply": "bold",
    "input": "blue",
}


def console(*, err: bool = False) -> Console:
    """A console for one output. Where nobody watches, lines are not wrapped at the width of a terminal."""
    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=True)


def print_line(text: str) -> None:
    """One line to stdout, as it is: no markup is read from it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def progress(text: str) -> None:
    """One line of progress to stderr, so that stdout stays what was asked for."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """One JSON object in one line."""
    print_line(orjson.dumps(value).decode())


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str = "none"
) -> None:
    """Rows as a table of these columns, or each whole as a JSON object."""
    if as_json:
        for row in rows:
            print_json(row)
    elif not rows:
        print_line(empty)
    else:
        print_table(columns, ([cell(row.get(column)) for column in columns] for row in rows))


def print_table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """A table without frames; texts are shown as they are."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    console().print(table, soft_wrap=False)


def cell(value: Any) -> str:
    """A value in a table: times in milliseconds as local time, nothing as a dash."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if value > 1_000_000_000_000:
            return moment(value)
        case dict() | list():
            return orjson.dumps(value).decode()
        case _:
            return one_line(str(value))


def moment(ms: int) -> str:
    """A time in milliseconds (Unix) as local time."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plain_line(line: TimelineLine) -> str:
    """A timeline line for people: number, kind, text."""
    return f"{line.seq:>3} {line.kind:<{_KIND_WIDTH}} {one_line(line.text)}".rstrip()


def print_timeline_line(line: TimelineLine) -> None:
    """The same, in color on a terminal."""
    style = _COLORS.get(line.kind.partition(".")[0], "")
    console().print(Text(plain_line(line), style=style))
    sys.stdout.flush()  # who follows through a pipe wants it now


def one_line(text: str) -> str:
    """Text that cannot leave its line nor speak to the terminal: what is not printable is shown by its number."""
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):X}}}" for char in text)


def fault_line(error: BaseException) -> str:
    """Whatever went wrong, in one line."""
    return " · ".join(part.strip() for part in str(error).splitlines() if part.strip()) or type(error).__name__

"""The command line `turnkeeper`: one file a group of commands, put together here.

Faults go to stderr in one line that says what to do next, with exit status 1; a wrong call of a command with 2.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

import typer

# The exceptions of the command line parser that typer brings along; it names no public place for them.
from typer._click.exceptions import ClickException, UsageError

from libs.contracts.application import ApplicationError
from turnkeeper.cli import (
    consent,
    dead,
    demo,
    doctor,
    events,
    evidence,
    explain,
    held,
    init,
    ledger,
    pauses,
    quarantine,
    replay,
    secrets,
    sessions,
    stacks,
    standing,
    tokens,
    tools,
)
from turnkeeper.client import ClientError
from turnkeeper.demo import DemoError
from turnkeeper.openapi import OpenapiError
from turnkeeper.printing import fault_line, one_line
from turnkeeper.scaffold import InitError
from turnkeeper.signing import SigningError
from turnkeeper.stack import StackError
from turnkeeper.target import TargetError

_HELP = """Turnkeeper: a runtime for AI agents whose turns may be started by somebody who is not the user.

Start with **turnkeeper demo**, which runs the whole story on servers of its own, or with
**turnkeeper up** and the commands below. Each has examples in its --help.
"""
_EXPECTED = (ApplicationError, ClientError, DemoError, InitError, OpenapiError, SigningError, StackError, TargetError)


def build() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="turnkeeper",
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for group in (
        stacks,
        init,
        doctor,
        demo,
        events,
        consent,
        sessions,
        explain,
        ledger,
        pauses,
        evidence,
        replay,
        tokens,
    ):
        group.register(app)
    app.add_typer(sessions.session_app, name="session")
    app.add_typer(standing.app, name="standing")
    app.add_typer(dead.app, name="dead")
    app.add_typer(quarantine.app, name="quarantine")
    app.add_typer(held.app, name="held")
    app.add_typer(secrets.app, name="secrets")
    app.add_typer(tools.app, name="tools")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line (`sys.argv` if None) and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command line; its exit status."""
    try:
        status = build()(args=list(arguments), prog_name="turnkeeper", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except UsageError as error:
        if not error.format_message():  # no command was given, and the help was shown instead
            return 2
        path = error.ctx.command_path if error.ctx else "turnkeeper"
        return _failed(f"{error.format_message()} (see {path} --help)", 2)
    except ClickException as error:
        return _failed(error.format_message(), error.exit_code)
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _failed("stopped", 130)
    except _EXPECTED as error:
        return _failed(fault_line(error), 1)
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        if error.filename is None:
            return _fault_of_ours(error)
        return _failed(f"{error.filename}: {error.strerror}: check the path and its permissions", 1)
    except Exception as error:
        return _fault_of_ours(error)


def _fault_of_ours(error: Exception) -> int:
    """One line for what nobody foresaw; its traceback goes to a file, and to stderr where `TURNKEEPER_DEBUG` is 1."""
    told = traceback.format_exc()
    if os.environ.get("TURNKEEPER_DEBUG") == "1":
        sys.stderr.write(told)
    with tempfile.NamedTemporaryFile("w", prefix="turnkeeper-fault-", suffix=".txt", delete=False) as file:
        file.write(told)
    what = f"{type(error).__name__}: {fault_line(error)}"
    return _failed(f"this is a fault of ours: {what}; details are in {file.name}, TURNKEEPER_DEBUG=1 shows them", 1)


def _failed(text: str, status: int) -> int:
    sys.stderr.write(f"turnkeeper: {one_line(' '.join(text.split()))}\n")
    return status


def _reader_gone() -> int:
    """Whoever read our output has gone, as `head` does: not a fault of ours, and nothing more can be said."""
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - the interpreter flushes it at the very end
    return 0

"""For tests of an application of one's own: a stack that is gone afterwards, and a client of it."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from turnkeeper.client import Client
from turnkeeper.demo.stand import throw_away_of
from turnkeeper.engines.base import Say, silent
from turnkeeper.signing import sign
from turnkeeper.target import of_stack

__all__ = ["running", "sign"]


@contextlib.contextmanager
def running(
    config: Path | str = "turnkeeper.yaml",
    *,
    engine: str | None = None,
    environment: Mapping[str, str] | None = None,
    say: Say = silent,
) -> Iterator[Client]:
    """A client of a throw-away stack of an application, on free ports and with secrets of its own.

    It takes some seconds to start: share one among the tests of a module. `engine` as of `turnkeeper up`, the first
    found if None; `environment` is given to the services beside ours; `say` gets a line at each step. Where the block
    raises, the logs are kept and `say` is told where. Raises StackError if it does not start, ApplicationError for a
    file with faults.
    """
    path = Path(config).resolve()
    stand = throw_away_of(lambda _: path, environment or {}, engine=engine, say=say)
    with stand as stack, Client(of_stack(stack)) as client:
        yield client

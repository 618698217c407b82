"""Stacks for end-to-end tests: one at a time, kept for as long as the next test wants the same settings."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.servers import Servers
from turnkeeper.demo.scenario import Settings
from turnkeeper.demo.stand import throw_away
from turnkeeper.stack import Stack


class Stage:
    """Gives the stack with the settings that are asked for, on the run's Redis and RabbitMQ."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._open = contextlib.ExitStack()
        self._settings: Settings | None = None
        self._stack: Stack | None = None

    def of(self, settings: Settings) -> Stack:
        """The stack with these settings, started unless it stands already."""
        if self._stack is None or settings != self._settings:
            self.close()
            self._stack, self._settings = self._open.enter_context(self._started(settings)), settings
        return self._stack

    def close(self) -> None:
        """Stop the stack that stands."""
        self._stack = None
        self._open.close()

    @contextlib.contextmanager
    def _started(self, settings: Settings) -> Iterator[Stack]:
        with pytest.MonkeyPatch.context() as patch:
            for name, url in self._servers.environment().items():
                patch.setenv(name, url)
            with throw_away(settings, engine="external", say=print) as stack:
                yield stack

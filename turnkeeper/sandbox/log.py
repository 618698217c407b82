"""An append-only log of JSON lines that is on disk before it is told: one fsync for all who wait at once."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from libs.contracts.canonical import JSON


class LogError(Exception):
    """The log cannot be used. The text is one line and names the file."""


class DurableLog:
    """One file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._waiting: list[bytes] = []
        self._flushed = asyncio.Event()
        self._wanted = asyncio.Event()
        self.fault = ""
        """Why nothing more can be written: what is in memory is then ahead of the disk and must not be told."""

    def open(self) -> Iterator[JSON]:
        """Take the file and read it. A last line that a crash cut is removed. Raises LogError."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raw = self._path.read_bytes()
            whole = raw.rfind(b"\n") + 1
            if whole < len(raw):
                os.ftruncate(self._file, whole)
                os.fsync(self._file)
        except BlockingIOError as error:
            raise LogError(f"{self._path}: another process uses this log") from error
        except OSError as error:
            raise LogError(f"{self._path}: {error.strerror}") from error
        return self._read(raw[:whole])

    def append(self, line: JSON) -> None:
        """Line up one entry. It counts once `settled` has returned."""
        self._waiting.append(orjson.dumps(line) + b"\n")
        self._flushed.clear()
        self._wanted.set()

    async def settled(self) -> None:
        """Wait until all that was appended is on disk. Raises LogError if it cannot be."""
        await self._flushed.wait()
        if self.fault:
            raise LogError(self.fault)

    async def run(self) -> None:
        """Write and fsync what is lined up, for as long as the process lives."""
        self._flushed.set()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            lines, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._write, b"".join(lines))
            except OSError as error:
                self.fault = f"{self._path}: {error.strerror}"
            if not self._waiting or self.fault:
                self._flushed.set()

    def close(self) -> None:
        """Let another process have the file."""
        os.close(self._file)

    def _read(self, raw: bytes) -> Iterator[JSON]:
        for number, line in enumerate(raw.splitlines(), start=1):
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise LogError(f"{self._path}: line {number} is damaged") from error

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)

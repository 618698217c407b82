"""A destination in a process of its own. It keeps its own ledger, on disk before it goes on: what it received, what it
did, what it answered. That ledger, not ours, says what happened in the world.

It answers as the sandbox does (`POST /v1/<collection>/put` and `find`). What it does with a call is the call's own
`how`; the second call under a key is done plainly, as what went wrong once seldom goes wrong again.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.support.eventually import eventually_sync
from turnkeeper.ports import free_port

HOURS = 86_400.0
HONOURED: dict[str, float] = {"keyed": HOURS, "both": HOURS, "brief": 1.0}
"""Collection → for how many seconds it honours a key; the others honour none."""
HOWS = (
    "commit", "refuse", "turn_away", "error", "cut_before", "cut_after", "garbage_before", "garbage_after", "hold",
    "did_hold",
)  # fmt: skip
"""What may become of a call. `hold`: nothing is done before the release, and then only if `late` says so."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: `what` is received, did, answered or turned (away)."""

    what: str
    key: str
    collection: str
    operation: str


@dataclass
class DestinationProcess:
    """Starts, kills and asks one destination over one ledger."""

    ledger: Path
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it is ready. What it did before is known to it."""
        root = Path(__file__).parents[2]
        command = [sys.executable, "-m", "tests.support.destination_process", str(self.port), str(self.ledger)]
        self.process = subprocess.Popen(command, cwd=root)
        eventually_sync(self._ready, within=20)

    def _ready(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"{self.url}/held", timeout=1).status_code == 200
        return False

    def end(self, by: int = signal.SIGKILL) -> None:
        """End it by a signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(by)
            self.process.wait(10)

    async def held(self) -> int:
        """How many calls stand at a hold."""
        async with httpx2.AsyncClient() as client:
            return int((await client.get(f"{self.url}/held", timeout=5)).json()["held"])

    async def release(self) -> None:
        """Let all that is held go on."""
        async with httpx2.AsyncClient() as client:
            await client.post(f"{self.url}/release", timeout=5)

    def entries(self) -> list[Entry]:
        """The ledger as it is on disk."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [Entry(**json.loads(line)) for line in lines]


class Destination:
    """What runs in that process."""

    def __init__(self, ledger: Path) -> None:
        self._file = ledger.open("ab", buffering=0)
        self._did: dict[tuple[str, str], int] = {}
        self._times: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, str], float] = {}
        self._answers: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._holds: set[asyncio.Future[None]] = set()
        for line in ledger.read_text().splitlines():
            entry = Entry(**json.loads(line))
            self._remember(entry.what, entry.collection, entry.key)

    def _remember(self, what: str, collection: str, key: str) -> None:
        place = (collection, key)
        if what == "did":
            self._did[place] = self._did.get(place, 0) + 1
        if what == "received":
            self._times[place] = self._times.get(place, 0) + 1

    def _write(self, what: str, collection: str, key: str, operation: str) -> None:
        entry = {"what": what, "key": key, "collection": collection, "operation": operation}
        self._file.write(json.dumps(entry).encode() + b"\n")
        os.fsync(self._file.fileno())
        self._remember(what, collection, key)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, or none."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            request, *lines = head.split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            answer = await self._answer(request.split()[1], headers, json.loads(body or b"{}"))
            if answer is not None:
                status, content = answer
                writer.write(f"HTTP/1.1 {status} x\r\nconnection: close\r\n".encode())
                writer.write(f"content-length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        writer.close()

    async def _answer(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, bytes] | None:
        if path == "/held":
            return 200, json.dumps({"held": len(self._holds)}).encode()
        if path == "/release":
            for hold in self._holds:
                hold.set_result(None)
            self._holds = set()
            return 200, b"{}"
        _, _, collection, verb = path.split("/")
        if verb == "find":
            found = self._did.get((collection, body["where"]["key"]), 0)
            return 200, json.dumps({"result": {"records": [{"id": body["where"]["key"]}] * found}}).encode()
        return await self._put(collection, headers["idempotency-key"].strip('"'), headers, body["record"])

    async def _put(
        self, collection: str, key: str, headers: dict[str, str], record: dict[str, Any]
    ) -> tuple[int, bytes] | None:
        operation = f"{headers['turnkeeper-session']}/{headers['turnkeeper-operation']}"
        self._write("received", collection, key, operation)
        self._seen.setdefault((collection, key), self._now())
        how = str(record["how"])
        if self._times[collection, key] > 1 and how != "refuse":
            how = "commit"
        stored = self._answers.get((collection, key))
        if stored is not None and self._honours(collection, key):
            return stored
        if how == "hold":
            await self._hold()
            if record["late"] == "drop":
                return None
        if how in ("cut_before", "garbage_before"):
            return None if how == "cut_before" else (200, b"<html>busy</html>")
        answer = _ANSWERS.get(how) or self._do(collection, key, operation)
        if how in ("cut_after", "garbage_after"):
            return None if how == "cut_after" else (200, b"<html>busy</html>")
        if how == "did_hold":
            await self._hold()
        if how not in ("error", "turn_away"):
            self._answers.setdefault((collection, key), answer)
        self._write("turned" if how == "turn_away" else "answered", collection, key, operation)
        return answer

    def _honours(self, collection: str, key: str) -> bool:
        until = self._seen.setdefault((collection, key), self._now()) + HONOURED.get(collection, 0.0)
        return self._now() < until

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _do(self, collection: str, key: str, operation: str) -> tuple[int, bytes]:
        if not self._honours(collection, key) or not self._did.get((collection, key)):
            self._write("did", collection, key, operation)
        return 200, json.dumps({"result": {"id": key}}).encode()

    async def _hold(self) -> None:
        hold: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holds.add(hold)
        await hold


_ANSWERS = {
    "refuse": (409, b'{"detail": "the world says no"}'),
    "turn_away": (400, b'{"title": "not today"}'),
    "error": (500, b'{"title": "broken"}'),
}


async def main(port: int, ledger: Path) -> None:
    """Serve until killed."""
    ledger.touch()
    server = await asyncio.start_server(Destination(ledger).serve, "127.0.0.1", port, backlog=512)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))

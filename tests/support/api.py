"""A booking API in a process of its own: it honours `Idempotency-Key`, keeps a ledger that it syncs, and misbehaves on
demand. `POST /v1/shops/{shop}/bookings` books, `GET /v1/bookings?key=…` looks up, `POST /_next` says what the next
booking gets: `{"commit": bool, "status": …, "headers": {…}, "body": "…"}`, and `how`: `answer`, `cut` (the connection
ends before the status), `torn` (it ends within the content), `hang`, or `raw` (`body` is all that is sent).
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

NORMAL: dict[str, Any] = {"commit": True, "how": "answer", "status": 201, "headers": {}, "body": None}


class Api(ThreadingHTTPServer):
    """The bookings, as the ledger holds them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, ledger: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ledger = ledger.open("ab", buffering=0)
        self.lock = threading.Lock()
        self.bookings: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.next: list[dict[str, Any]] = []
        self.held = threading.Event()

    def book(self, shop: str, key: str, content: dict[str, Any]) -> dict[str, Any]:
        """One booking for a key, however often it is asked for."""
        with self.lock:
            for known in self.bookings:
                if known["key"] == key:
                    return known
            booking = {"id": f"B{len(self.bookings) + 1}", "shop": shop, "key": key, **content}
            self.ledger.write(json.dumps(booking).encode() + b"\n")
            os.fsync(self.ledger.fileno())
            self.bookings.append(booking)
            return booking


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Api
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/_requests":
            return self._answer(200, json.dumps(self.server.requests))
        self._keep(b"")
        wanted = parse_qs(parts.query).get("key", [""])[0]
        found = [
            booking for booking in self.server.bookings if f'"{booking["key"]}"' == wanted or booking["key"] == wanted
        ]
        return self._answer(200, json.dumps({"bookings": found}))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/_next":
            self.server.next.append({**NORMAL, **json.loads(content)})
            return self._answer(200, "{}")
        self._keep(content)
        wanted = self.server.next.pop(0) if self.server.next else NORMAL
        body = wanted["body"]
        if wanted["commit"]:
            shop = self.path.split("/")[3]
            booking = self.server.book(shop, self.headers["idempotency-key"].strip('"'), json.loads(content or b"{}"))
            body = json.dumps(booking) if body is None else body
        return self._send(wanted, body or "")

    def _send(self, wanted: dict[str, Any], body: str) -> None:
        match wanted["how"]:
            case "cut":
                # With a reset, as from a machine that is gone.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            case "torn":
                self.send_response(wanted["status"])
                self.send_header("content-length", str(len(body) + 100))
                self.end_headers()
                self.wfile.write(body.encode())
            case "hang":
                self.server.held.wait(60)
            case "raw":
                self.wfile.write(body.encode("latin-1"))
            case _:
                return self._answer(wanted["status"], body, wanted["headers"])
        self.close_connection = True
        return None

    def _keep(self, content: bytes) -> None:
        self.server.requests.append(
            {
                "method": self.command, "target": self.path, "content": content.decode(),
                "headers": {name.lower(): value for name, value in self.headers.items()},
            }
        )  # fmt: skip

    def _answer(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        return


@dataclass
class ApiProcess:
    """The API, as a test uses it."""

    url: str
    ledger: Path
    process: "subprocess.Popen[str]"

    def then(self, **wanted: Any) -> None:
        """What the next booking gets."""
        assert httpx2.post(f"{self.url}/_next", json=wanted, timeout=5).status_code == 200

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked, in order."""
        return list(httpx2.get(f"{self.url}/_requests", timeout=5).json())

    def booked(self) -> list[dict[str, Any]]:
        """The ledger, from its file: what really happened."""
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]


@contextlib.contextmanager
def running_api(folder: Path) -> Iterator[ApiProcess]:
    """The API in a process of its own, on a free port."""
    ledger = folder / "bookings.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.api", str(ledger)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield ApiProcess(process.stdout.readline().strip(), ledger, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)


if __name__ == "__main__":
    api = Api(Path(sys.argv[1]))
    sys.stdout.write(f"http://127.0.0.1:{api.server_address[1]}\n")
    sys.stdout.flush()
    api.serve_forever()

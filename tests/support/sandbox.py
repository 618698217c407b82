"""The sandbox as a process of a test's own."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.support.eventually import eventually_sync
from turnkeeper.ports import free_port

DINNER = Path(__file__).parents[2] / "examples" / "dinner" / "turnkeeper.yaml"


@dataclass
class SandboxProcess:
    """Starts, kills and asks one sandbox over one log."""

    log: Path
    config: Path = DINNER
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually_sync(self._ready, within=20)

    def command(self) -> list[str]:
        options = {"--config": self.config, "--log": self.log, "--host": "127.0.0.1", "--port": self.port}
        flat = [str(part) for option in options.items() for part in option]
        return [sys.executable, "-m", "turnkeeper.sandbox", *flat]

    def _ready(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"{self.url}/readyz", timeout=1).status_code == 200
        return False

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(10)

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """`post("reservations/put", {...}, key="k1")`."""
        named = {"Idempotency-Key": headers["key"]} if "key" in headers else {}
        return httpx2.post(f"{self.url}/v1/{path}", json=body, headers=named, timeout=5)

    def entries(self) -> list[dict[str, Any]]:
        """The raw effect log."""
        found = httpx2.get(f"{self.url}/v1/log", timeout=5).json()["entries"]
        return list(found)


@contextlib.contextmanager
def running_sandbox(folder: Path) -> Iterator[SandboxProcess]:
    """A sandbox with the dinner's world."""
    sandbox = SandboxProcess(folder / "effects.jsonl")
    sandbox.start()
    try:
        yield sandbox
    finally:
        sandbox.end(signal.SIGKILL)

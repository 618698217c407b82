"""A service as a process, as users run it: what it is told, its start, its readiness and its end."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import httpx2

from tests.support.eventually import eventually
from turnkeeper.ports import free_port

PARTITIONS = 4
USER_SECRET = "an-invented-user-secret-of-40-bytes-xxxx"


def environment(redis_url: str, amqp_url: str, namespace: str, config: Path, **more: str) -> dict[str, str]:
    """What every service is told, and more."""
    return {
        "PATH": os.environ["PATH"],
        "TURNKEEPER_REDIS_URL": redis_url,
        "TURNKEEPER_AMQP_URL": amqp_url,
        "TURNKEEPER_NAMESPACE": namespace,
        "TURNKEEPER_PARTITIONS": str(PARTITIONS),
        "TURNKEEPER_CONFIG": str(config),
        "TURNKEEPER_USER_TOKEN_SECRET": USER_SECRET,
        **more,
    }


@dataclass
class ServiceProcess:
    """One replica. What it writes is appended to `log`."""

    SERVICE: ClassVar[str]

    env: dict[str, str]
    log: Path
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it."""
        environ = {**self.env, "TURNKEEPER_HTTP_PORT": str(self.port)}
        argv = [sys.executable, "-m", f"services.{self.SERVICE}"]
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(argv, env=environ, stdout=sink, stderr=sink)
        return self

    async def ready(self) -> Self:
        """Wait until it says so. Its log is shown if it ends before."""
        async with httpx2.AsyncClient(timeout=5) as client:

            async def answers() -> bool:
                assert self.process is not None
                assert self.process.poll() is None, self.log.read_text()[-2_000:]
                try:
                    return (await client.get(self.url + "/readyz")).status_code == 200
                except httpx2.HTTPError:
                    return False

            await eventually(answers, within=30)
        return self

    def stop(self, by: int = signal.SIGTERM) -> int:
        """End it by a signal, unless it has ended; its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(by)
        return self.process.wait(20)

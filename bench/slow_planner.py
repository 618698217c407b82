"""Sessions that wait for a slow planner hold up no others: the median of a turn with and without them, in one run.

    python -m bench.slow_planner                        # 1,000 sessions wait 30 s; 100 others, 20 turns a second
    python -m bench.slow_planner --waiting 200 --turns 100

A planner of our own (`http`) sleeps for sessions called slow-… and answers all others at once: a turn is a user's
message, a plan, one step at the door, a plan, the reply. First the others run alone, then while the slow ones wait,
then alone again. Every turn must end, the slow ones too. Writes `bench/results/slow_planner.json`.
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import aio_pika
import httpx2
import orjson
import uvloop
import yaml
from rich.console import Console

from bench.load import quantile
from libs.contracts.topology import Topology
from turnkeeper import engines
from turnkeeper.signing import user_token
from turnkeeper.stack import Stack, StackError, start_stack, stop_stack

RESULTS = Path(__file__).parent / "results" / "slow_planner.json"
GOAL = 1.5
"""Most that the median may grow by."""
SLOW, QUICK = "slow-", "quick-"
OWNER = "ana"
SENDS_AT_ONCE = 32
END_SECONDS = 60.0

say = Console(stderr=True, highlight=False).print


class RunError(Exception):
    """A run that does not count."""


class SlowPlanner:
    """The planner's server: `seconds` for slow sessions, at once for all others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.waiting = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                view = orjson.loads(await reader.readexactly(int(length.partition(b":")[2])))
                body = orjson.dumps(await self._plan(view))
                told = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(told.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _plan(self, view: dict[str, Any]) -> dict[str, Any]:
        if not view["session"].startswith(SLOW):
            return {"reply": "done"} if view["results"] else {"steps": [{"tool": "note", "args": {}}]}
        self.waiting += 1
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.waiting -= 1
        return {"reply": "done at last"}


class Talk:
    """Says things in sessions and hears when their turns end."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._began: dict[str, deque[float]] = defaultdict(deque)
        """Turns of one session end in the order of its messages, so each end answers the oldest."""
        self._change = asyncio.Event()
        self.took: dict[str, list[float]] = {SLOW: [], QUICK: []}
        """Seconds from a message to the word that its turn is done."""
        bearer = user_token(stack.user_token_secret, OWNER, int(time.time()))
        self._client = httpx2.AsyncClient(
            base_url=stack.url("ingress"),
            headers={"authorization": f"Bearer {bearer}"},
            limits=httpx2.Limits(max_connections=SENDS_AT_ONCE),
            timeout=30,
            trust_env=False,
        )
        self._sending = asyncio.Semaphore(SENDS_AT_ONCE)

    async def listen(self, channel: aio_pika.abc.AbstractChannel) -> None:
        """Hear of every turn."""
        topology = Topology(self._stack.namespace, self._stack.partitions)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(topology.notices, "*.turn")
        await queue.consume(self._heard, no_ack=True)

    async def _heard(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        session = (message.routing_key or "").rpartition(".")[0]
        outcome = orjson.loads(message.body)["body"]["text"]
        began = self._began[session].popleft()
        if outcome == "done":
            kind = SLOW if session.startswith(SLOW) else QUICK
            self.took[kind].append(time.perf_counter() - began)
        else:
            say(f"{session}: its turn ended as {outcome}")
        self._change.set()

    async def create(self, sessions: Sequence[str]) -> None:
        """Make sessions."""
        operator = {"authorization": f"Bearer {self._stack.operator_token}"}
        asks = [lambda s=s: self._put(s, operator) for s in sessions]  # type: ignore[misc]
        await self._all(asks)

    async def _put(self, session: str, operator: dict[str, str]) -> None:
        await self._sent(lambda: self._client.put(f"/v1/sessions/{session}", json={"owner": OWNER}, headers=operator))

    async def say(self, session: str) -> None:
        """A user's message."""
        self._began[session].append(time.perf_counter())
        key = {"idempotency-key": secrets.token_hex(8)}
        path = f"/v1/sessions/{session}/messages"
        await self._sent(lambda: self._client.post(path, json={"text": "go on"}, headers=key))

    async def _sent(self, ask: Callable[[], Awaitable[httpx2.Response]]) -> None:
        async with self._sending:
            answer = await ask()
            if answer.status_code >= 300:
                raise RunError(f"{answer.status_code}: {answer.text[:200]}")

    async def _all(self, asks: Sequence[Callable[[], Awaitable[None]]]) -> None:
        await asyncio.gather(*(ask() for ask in asks))

    async def say_all(self, sessions: Sequence[str]) -> None:
        """A message in each, as fast as they are taken."""
        await self._all([lambda s=s: self.say(s) for s in sessions])  # type: ignore[misc]

    async def steady(self, sessions: Sequence[str], turns: int, rate: float) -> list[float]:
        """So many turns at a steady rate, one session after another; what each took, in seconds."""
        self.took[QUICK] = []
        started, sends = time.perf_counter(), []
        for number in range(turns):
            await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
            sends.append(asyncio.create_task(self.say(sessions[number % len(sessions)])))
        await asyncio.gather(*sends)
        await self.until(lambda: len(self.took[QUICK]) >= turns, f"{turns} turns of the others")
        return list(self.took[QUICK])

    async def until(self, reached: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> None:
        """Wait for it. Raises RunError."""
        end = time.monotonic() + seconds
        while not reached():
            self._change.clear()
            if time.monotonic() > end:
                left = sum(len(waiting) for waiting in self._began.values())
                raise RunError(f"not within {seconds:.0f} s: {what}; {left} turns have not ended")
            with_time = asyncio.wait_for(self._change.wait(), 0.2)
            await asyncio.gather(with_time, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def measure(stack: Stack, planner: SlowPlanner, given: argparse.Namespace) -> dict[str, Any]:
    """The three phases. Latencies in milliseconds."""
    talk = Talk(stack)
    connection = await aio_pika.connect(stack.amqp_url)
    async with connection, connection.channel() as channel:
        await talk.listen(channel)
        slow = [f"{SLOW}{number}" for number in range(given.waiting)]
        quick = [f"{QUICK}{number}" for number in range(given.others)]
        await talk.create([*slow, *quick])
        await talk.steady(quick, given.others, given.rate)  # warm-up: each session once
        phases = {"alone": await talk.steady(quick, given.turns, given.rate)}
        say(f"alone: median {median(phases['alone']) * 1000:.1f} ms")
        began = time.monotonic()
        await talk.say_all(slow)
        await talk.until(lambda: planner.waiting == given.waiting, f"{given.waiting} wait for the planner")
        say(f"{given.waiting} sessions wait after {time.monotonic() - began:.1f} s")
        phases["beside"] = await talk.steady(quick, given.turns, given.rate)
        still = planner.waiting
        say(f"beside {still} that wait: median {median(phases['beside']) * 1000:.1f} ms")
        if still < given.waiting:
            raise RunError(f"only {still} of {given.waiting} still waited at the end: give --turns fewer")
        await talk.until(lambda: len(talk.took[SLOW]) == given.waiting, "the slow turns", given.seconds + END_SECONDS)
        phases["alone again"] = await talk.steady(quick, given.turns, given.rate)
    await talk.close()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
        "machine": {"cores": os.cpu_count(), "engine": stack.engine},
        "median_ms": {name: round(median(took) * 1000, 1) for name, took in phases.items()},
        "p99_ms": {name: round(quantile(took, 0.99) * 1000, 1) for name, took in phases.items()},
        "samples_ms": {name: [round(one * 1000, 1) for one in took] for name, took in phases.items()},
        "ratio": round(median(phases["beside"]) / median(phases["alone"]), 2),
    }


def application(folder: Path, url: str, seconds: float) -> Path:
    """The application file: one tool that does nothing, and the slow planner."""
    config = folder / "turnkeeper.yaml"
    made = {
        "sources": {"app": {"verify": {"scheme": "user-token"}}},
        "tools": {"note": {"effect": "none", "connector": {"python": {"function": "nothing:note"}}}},
        "planner": {"http": {"url": url, "timeout": seconds + 30, "retries": 0}, "deadline": seconds + 60},
        "session": {"caps": {"turns_per_origin_per_hour": 100_000}},
    }
    config.write_text(yaml.safe_dump(made))
    (folder / "nothing.py").write_text("def note() -> dict[str, str]:\n    return {}\n")
    return config


async def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start the planner and a stack, and measure."""
    planner = SlowPlanner(given.seconds)
    server = await asyncio.start_server(planner.serve, "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()[:2]
    config = application(folder, f"http://{host}:{port}/plan", given.seconds)
    state = given.state or folder / "stack"
    lab = {"TURNKEEPER_INGRESS_EVENTS_PER_SECOND": "100000", "TURNKEEPER_INGRESS_BURST": "100000"}
    begin = asyncio.to_thread(
        start_stack, state, given.engine, 0, config, replicas={"session": given.replicas}, lab=lab, say=say
    )
    stack = await begin
    try:
        return await measure(stack, planner, given)
    finally:
        await asyncio.to_thread(stop_stack, state, say=say)
        server.close()


def main() -> None:
    """Measure and say what came out. Exit 1 where the median grew by more than the goal, or the run does not count."""
    given = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="turnkeeper-slow-"))
    try:
        result = uvloop.run(run(given, folder))
    except (RunError, StackError) as error:
        sys.exit(f"bench-planner: {error}")
    except KeyboardInterrupt:
        sys.exit("bench-planner: interrupted, nothing measured")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for name, value in result["median_ms"].items():
        print(f"| {name} | median {value} ms | p99 {result['p99_ms'][name]} ms |")
    reached = result["ratio"] <= GOAL
    print(
        f"bench-planner: beside {given.waiting} sessions that wait {given.seconds:.0f} s for their planner the median "
        f"turn of {given.others} others takes {result['ratio']:.2f} times of what it takes without them "
        f"(goal {GOAL}: {'reached' if reached else 'missed'}); every turn ended"
    )
    sys.exit(not reached)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1_000, help="sessions that wait (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long their planner takes (%(default)s)")
    parser.add_argument("--others", type=int, default=100, help="other sessions (%(default)s)")
    parser.add_argument("--turns", type=int, default=200, help="turns of theirs in each phase (%(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="turns a second (%(default)s)")
    parser.add_argument("--replicas", type=int, default=1, help="of the session service (%(default)s)")
    parser.add_argument("--engine", choices=engines.KINDS, default="local", help="where the servers come from")
    parser.add_argument("--state", type=Path, help="folder of the stack, to look at its logs afterwards")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""The two chains that are measured: each can run a load, and then proves that each event had its one effect."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2
import orjson
from prometheus_client.parser import text_string_to_metric_families

from bench import bare, cpu
from bench.app import ledger
from bench.load import Event, Load, LoadError, Route, Run
from libs.contracts.topology import Topology
from turnkeeper import engines
from turnkeeper.stack import Stack

SOURCE = "bank"
SECRET = "BANK_SECRET"
TYPE = "payment.made"
OWNER = "owner"
READY_SECONDS = 20
END_SECONDS = 10
SETTLE_SECONDS = 10


@dataclass(frozen=True)
class Wanted:
    """One run: how many events over how many sessions; with a window (closed loop) or a rate (open loop)."""

    events: int
    sessions: int
    window: int = 0
    rate: float = 0.0


@dataclass(frozen=True)
class Measured:
    """What a run gave. Latencies in seconds, from publishing: to the effect, and to the word that the turn is done."""

    rate: float
    effect: Sequence[float]
    done: Sequence[float]
    cpu: Mapping[str, float]
    """Milliseconds of processor time a turn, by process; `load` is the publisher and listener."""


class Side(Protocol):
    """One of the chains."""

    name: str

    async def run(self, wanted: Wanted) -> Measured:
        """Run a load. Raises LoadError unless each event had exactly one effect."""
        ...


class TurnkeeperSide:
    """The four services of a running stack."""

    name = "turns"

    def __init__(self, stack: Stack, effects: Path) -> None:
        self._stack = stack
        self._effects = effects
        topology = Topology(stack.namespace, stack.partitions)
        self._route = Route(
            stack.amqp_url, topology.events, SOURCE, topology.notices, "*.turn", lambda key, _: [key.partition(".")[0]]
        )

    async def run(self, wanted: Wanted) -> Measured:
        """Make fresh sessions, then as told by `Side`."""
        run_id = secrets.token_hex(4)
        events = make_events(run_id, wanted, self._stack.source_secrets[SECRET])
        async with httpx2.AsyncClient(timeout=10) as client:
            await self._make_sessions(client, {event.session for event in events})
            before = await self._counts(client)
            run, spent = await _driven(self._route, events, wanted, self._stack.pids)
            await self._check_counts(client, before, wanted.events)
        return measured(run, spent, self._effects, events)

    async def _make_sessions(self, client: httpx2.AsyncClient, sessions: Iterable[str]) -> None:
        headers = {"authorization": f"Bearer {self._stack.operator_token}"}
        for session in sessions:
            url = f"{self._stack.url('ingress')}/v1/sessions/{session}"
            answer = await client.put(url, json={"owner": OWNER}, headers=headers)
            answer.raise_for_status()

    async def _check_counts(self, client: httpx2.AsyncClient, before: Counter[str], events: int) -> None:
        """The services' own books must agree: each event accepted, one turn done and one operation committed."""
        wanted = Counter(dict.fromkeys(before, events))
        deadline = time.monotonic() + SETTLE_SECONDS
        while (found := await self._counts(client) - before) != wanted:
            if time.monotonic() > deadline:
                raise LoadError(f"the services counted {dict(found)} for {events} events")
            await asyncio.sleep(0.05)

    async def _counts(self, client: httpx2.AsyncClient) -> Counter[str]:
        found: Counter[str] = Counter()
        for service, metric, labels in (
            ("ingress", "turnkeeper_ingress_events_total", {"source": SOURCE, "outcome": "accepted"}),
            ("session", "turnkeeper_session_turns_total", {"origin": "webhook", "outcome": "done"}),
            ("tools", "turnkeeper_tools_operations_total", {"tool": "post_entry", "outcome": "committed"}),
        ):
            text = (await client.get(f"{self._stack.url(service)}/metrics")).text
            found[metric] = sum(
                int(sample.value)
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == metric and labels.items() <= sample.labels.items()
            )
        return found


class BareSide:
    """The bare chain on the stack's servers, its processes started for each run."""

    name = "bare"

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder

    async def run(self, wanted: Wanted) -> Measured:
        """Declare, start, run, end, remove."""
        run_id = secrets.token_hex(4)
        names = bare.Names(f"bare-{run_id}", self._stack.partitions)
        effects = self._folder / f"{names.prefix}.ledger"
        events = make_events(run_id, wanted, self._stack.source_secrets[SECRET])
        route = Route(self._stack.amqp_url, names.events, SOURCE, names.done, "#", _sessions_in)
        await bare.declare(self._stack.amqp_url, names)
        hops = [await self._start(role, names, effects) for role in bare.ROLES]
        try:
            pids = {role: hop.pid for role, hop in zip(bare.ROLES, hops, strict=True)}
            run, spent = await _driven(route, events, wanted, {**_servers(self._stack), **pids})
        finally:
            for hop in hops:
                await _end(hop)
            await bare.drop(self._stack.amqp_url, self._stack.redis_url, names)
        return measured(run, spent, effects, events)

    async def _start(self, role: str, names: bare.Names, effects: Path) -> asyncio.subprocess.Process:
        hop = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.bare", role, "--amqp", self._stack.amqp_url, "--redis", self._stack.redis_url,
            "--prefix", names.prefix, "--partitions", str(names.partitions),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, ledger.PATH: str(effects)},
        )  # fmt: skip
        assert hop.stdout is not None
        line = await asyncio.wait_for(hop.stdout.readline(), READY_SECONDS)
        if line != b"ready\n":
            raise LoadError(f"the bare {role} did not start")
        return hop


async def _end(hop: asyncio.subprocess.Process) -> None:
    """A hop ends when its standard input does."""
    assert hop.stdin is not None
    hop.stdin.close()
    try:
        await asyncio.wait_for(hop.wait(), END_SECONDS)
    except TimeoutError:
        hop.kill()
        await hop.wait()


def _sessions_in(_: str, body: bytes) -> list[str]:
    return [member["session"] for member in orjson.loads(body)]


async def _driven(
    route: Route, events: Sequence[Event], wanted: Wanted, pids: Mapping[str, int]
) -> tuple[Run, dict[str, float]]:
    """The run, and the processor time of a turn in each process."""
    load = Load(route)
    watched = {**pids, "load": os.getpid()}
    before = cpu.used(watched)
    run = await (load.steady(events, wanted.rate) if wanted.rate else load.window(events, wanted.window))
    return run, cpu.per_turn(before, cpu.used(watched), len(events))


def _servers(stack: Stack) -> dict[str, int]:
    """Redis and RabbitMQ, where they are processes of the stack."""
    return {name: pid for name, pid in stack.pids.items() if name in engines.SERVERS}


def make_events(run_id: str, wanted: Wanted, secret: str) -> list[Event]:
    """The events of a run, signed as Standard Webhooks asks, one session after the other."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    seconds = str(int(time.time()))
    events = []
    for number in range(wanted.events):
        entry, session = f"{run_id}-{number:06}", f"s-{run_id}-{number % wanted.sessions:04}"
        data = {"session": session, "entry": entry, "amount": f"{number % 97}.50", "text": "rent and light, October"}
        body = json.dumps({"type": TYPE, "data": data}).encode()
        signed = hmac.new(key, f"{entry}.{seconds}.".encode() + body, hashlib.sha256).digest()
        headers = {
            "webhook-id": entry,
            "webhook-timestamp": seconds,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        }
        events.append(Event(entry, session, body, headers))
    return events


def measured(run: Run, spent: Mapping[str, float], effects: Path, events: Sequence[Event]) -> Measured:
    """Read the destination's own lines. Raises LoadError unless each event of the run is there exactly once."""
    run_ids = {event.entry.partition("-")[0] for event in events}
    lines = [line.split() for line in effects.read_text().splitlines()]
    mine = [(entry, int(at)) for entry, _, at in lines if entry.partition("-")[0] in run_ids]
    counted = Counter(entry for entry, _ in mine)
    doubled = [entry for entry, count in counted.items() if count > 1]
    missing = {event.entry for event in events} - counted.keys()
    if doubled or missing or len(counted) != len(events):
        raise LoadError(f"not exactly once: {len(missing)} effects missing, {len(doubled)} doubled")
    return Measured(run.rate, [(at - run.published[entry]) / 1e9 for entry, at in mine], run.done, spent)

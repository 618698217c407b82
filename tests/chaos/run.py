"""Events over many sessions while each service, Redis and RabbitMQ are killed with `kill -9`, many events in flight.

    python -m tests.chaos.run --events 2000 --sessions 100 --kills 5 --seed 7

Ends 0 when each event ended in exactly one outcome, each wished effect is exactly once in the sandbox's own log, and
the order of each session was kept. Prints its seed first; the same seed kills in the same order.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx2
import jwt
from rich.console import Console
from rich.table import Table

from tests.chaos.evidence import SandboxLog, Wishes, faults
from tests.support.webhooks import sign_webhook
from turnkeeper import stack as stacks

VICTIMS = ("ingress-0", "session-0", "consent-0", "tools-0", "redis", "rabbitmq")
LEAST_IN_FLIGHT = 20
ORDERS = 0.2
DUPLICATES = 0.1
SETTLE_SECONDS = 120
OWNER = "ana"
APP = Path(__file__).parent / "app" / "turnkeeper.yaml"
console = Console(highlight=False)


class Chaos:
    """One run."""

    def __init__(self, stack: stacks.Stack, options: argparse.Namespace) -> None:
        self.stack = stack
        self.options = options
        self.random = random.Random(options.seed)
        self.wishes = Wishes()
        self.log = SandboxLog(stack.state / "sandbox.jsonl")
        self.gate = asyncio.Semaphore(0)
        self.released = 0
        self.kills: Counter[str] = Counter()
        self.recovery: dict[str, float] = {}
        self.least_in_flight: dict[str, int] = {}
        secrets = json.loads((stack.state / "secrets.json").read_text())
        self.secret = secrets["sources"]["SHOP_SECRET"]
        self.operator = {"Authorization": f"Bearer {secrets['operator_token']}"}
        claims = {"sub": OWNER, "exp": int(time.time()) + 7_200}
        self.owner = {"Authorization": f"Bearer {jwt.encode(claims, secrets['user_token_secret'], 'HS256')}"}
        self.http = httpx2.AsyncClient(timeout=5, limits=httpx2.Limits(max_connections=300))
        self.sending = True

    def in_flight(self) -> int:
        """Events that were sent and whose effect is not in the sandbox's log yet."""
        self.log.refresh()
        return sum(1 for event in self.wishes.kind if not self.log.effects[event])

    async def until_answered(self, method: str, url: str, **request: object) -> httpx2.Response:
        """Send again, as a sender would, until the answer is final: nothing answers, or 5xx and 429 say later."""
        while True:
            try:
                response = await self.http.request(method, url, **request)  # type: ignore[arg-type]
                if response.status_code < 500 and response.status_code != 429:
                    return response
            except httpx2.HTTPError:
                self.retried = True
            await asyncio.sleep(0.1)

    async def create_sessions(self) -> None:
        """One session for each sender."""
        for name in self.sessions():
            url = f"{self.stack.url('ingress')}/v1/sessions/{name}"
            response = await self.until_answered("PUT", url, json={"owner": OWNER}, headers=self.operator)
            response.raise_for_status()

    def sessions(self) -> list[str]:
        """Their names."""
        return [f"c{number}" for number in range(self.options.sessions)]

    async def send_session(self, session: str, count: int, seed: int) -> None:
        """One sender: the next event only after the answer to the one before, some of them twice."""
        drawn = random.Random(seed)
        for number in range(count):
            await self.gate.acquire()
            event = f"{session}-{number}"
            kind = "order" if drawn.random() < ORDERS else "note"
            self.wishes.add(event, session, number, kind)
            await self.deliver(event, session, kind)
            self.wishes.answered.add(event)
            if drawn.random() < DUPLICATES:
                self.wishes.duplicates += 1
                await self.deliver(event, session, kind)

    async def deliver(self, event: str, session: str, kind: str) -> None:
        """One event until ingress has taken it. Every attempt has its own time and signature, as real ones have."""
        data = {"session": session, "event": event}
        body = json.dumps({"type": f"{kind}.wished", "data": data}).encode()
        url = f"{self.stack.url('ingress')}/v1/events/shop"
        headers = sign_webhook(self.secret, event, int(time.time()), body)
        response = await self.until_answered("POST", url, content=body, headers=headers)
        if response.status_code not in (200, 202):
            raise AssertionError(f"{event}: {response.status_code} {response.text}")

    async def accept_everything(self) -> None:
        """The owner, who says yes to each question, once it is there."""
        sessions = self.sessions()
        while True:
            for session in sessions:
                if not any(kind == "order" and not self.log.effects[event] and self.wishes.place[event][0] == session
                           for event, kind in list(self.wishes.kind.items())):  # fmt: skip
                    continue
                await self.accept_in(session)
            await asyncio.sleep(0.2)

    async def accept_in(self, session: str) -> None:
        """Say yes to what is open in one session."""
        base = f"{self.stack.url('consent')}/v1/sessions/{session}/actions"
        listed = await self.until_answered("GET", base, headers=self.owner)
        for action in listed.json().get("actions", []):
            if action["state"] == "pending":
                decision = {"decision": "accept", "question_digest": action["question_digest"]}
                await self.until_answered(
                    "POST", f"{base}/{action['action']}/decision", json=decision, headers=self.owner
                )

    async def kill_everything(self) -> None:
        """Kill each victim as often as asked, in an order drawn by the seed, with enough events in flight."""
        plan = [victim for victim in VICTIMS for _ in range(self.options.kills)]
        self.random.shuffle(plan)
        share = self.options.events // (len(plan) + 1)
        for number, victim in enumerate(plan, 1):
            self.release(max(share, LEAST_IN_FLIGHT + 5))
            in_flight = await self.wait_for_load()
            began = time.monotonic()
            await asyncio.to_thread(self.stack.kill_service, victim)
            await asyncio.to_thread(self.stack.start_service, victim)
            await self.wait_ready()
            took = time.monotonic() - began
            self.kills[victim] += 1
            self.recovery[victim] = max(took, self.recovery.get(victim, 0))
            self.least_in_flight[victim] = min(in_flight, self.least_in_flight.get(victim, in_flight))
            console.print(f"[{number}/{len(plan)}] killed {victim}, {in_flight} in flight, ready after {took:.1f} s")
        self.release(self.options.events)

    def release(self, count: int) -> None:
        """Let the senders send so many more events."""
        for _ in range(min(count, self.options.events - self.released)):
            self.gate.release()
            self.released += 1

    async def wait_for_load(self) -> int:
        """Until at least twenty events are in flight, releasing more when they finish too fast."""
        deadline = time.monotonic() + 60
        while (now := self.in_flight()) < LEAST_IN_FLIGHT:
            if time.monotonic() > deadline:
                raise AssertionError(f"only {now} events in flight; {self.released} of {self.options.events} released")
            if self.released == len(self.wishes.kind):  # what was released is sent, and most of it done already
                self.release(LEAST_IN_FLIGHT)
            await asyncio.sleep(0.002)
        return now

    async def wait_ready(self) -> None:
        """Until every service says that it is ready again."""
        deadline = time.monotonic() + 90
        while True:
            states = await asyncio.gather(*(self.ready(service) for service in stacks.SERVICES))
            if all(states):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready after 90 s: {dict(zip(stacks.SERVICES, states, strict=True))}")
            await asyncio.sleep(0.1)

    async def ready(self, service: str) -> bool:
        """Whether one service says so."""
        try:
            return (await self.http.get(f"{self.stack.url(service)}/readyz")).status_code == 200
        except httpx2.HTTPError:
            return False

    async def settle(self) -> None:
        """Until every event that was answered has its effect, or it takes too long."""
        deadline = time.monotonic() + SETTLE_SECONDS
        said = time.monotonic()
        while (left := self.in_flight()) and time.monotonic() < deadline:
            if time.monotonic() - said > 5:
                said = time.monotonic()
                console.print(f"settling: {left} events without their effect")
            await asyncio.sleep(0.2)

    async def outcomes(self) -> dict[str, list[str]]:
        """What ingress says became of each event; asked again while a turn has not ended."""
        found: dict[str, list[str]] = {}
        for event in self.wishes.answered:
            url = f"{self.stack.url('ingress')}/v1/events/shop/{event}"
            for _ in range(100):
                answer = (await self.until_answered("GET", url, headers=self.operator)).json()
                outcome = answer.get("outcome")
                if outcome and outcome != "pending":
                    break
                await asyncio.sleep(0.1)
            found[event] = [outcome] if isinstance(outcome, str) else list(outcome or [])
        return found

    async def run(self) -> list[str]:
        """All of it; the faults found."""
        await self.create_sessions()
        per_session = self.options.events // self.options.sessions
        senders = [
            asyncio.create_task(self.send_session(name, per_session, self.options.seed * 1_000 + number))
            for number, name in enumerate(self.sessions())
        ]
        owner = asyncio.create_task(self.accept_everything())
        await self.kill_everything()
        await asyncio.gather(*senders)
        await self.settle()
        owner.cancel()
        outcomes = await self.outcomes()
        self.log.refresh()
        return faults(self.wishes, self.log, outcomes)

    def table(self) -> Table:
        """What was killed."""
        table = Table("killed -9", "times", "least in flight", "longest recovery (s)")
        for victim in VICTIMS:
            row = (self.kills[victim], self.least_in_flight.get(victim, "-"), f"{self.recovery.get(victim, 0):.1f}")
            table.add_row(victim, *map(str, row))
        return table


async def live(stack: stacks.Stack, options: argparse.Namespace) -> int:
    """One run on a stack; the exit status."""
    chaos = Chaos(stack, options)
    began = time.monotonic()
    found = await chaos.run()
    console.print(chaos.table())
    kinds = Counter(chaos.wishes.kind.values())
    for fault in found[:40]:
        console.print(f"FAULT {fault}", markup=False)
    console.print(
        f"chaos: {len(chaos.wishes.answered)} events ({kinds['note']} free, {kinds['order']} with consent, "
        f"{chaos.wishes.duplicates} sent twice) over {options.sessions} sessions, {sum(chaos.kills.values())} kills, "
        f"{sum(chaos.log.effects.values())} effects, {len(found)} faults, {time.monotonic() - began:.0f} s, "
        f"seed {options.seed}"
    )
    await chaos.http.aclose()
    return 1 if found else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--kills", type=int, default=5, help="times that each process and server is killed")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--keep", action="store_true", help="leave the state folder for a look at the logs")
    options = parser.parse_args()
    console.print(f"chaos: seed {options.seed}")
    state = Path(tempfile.mkdtemp(prefix="turnkeeper-chaos-"))
    stack = stacks.start_stack(state, port_base=0, config=APP, engine="local", say=console.print)
    try:
        return asyncio.run(live(stack, options))
    finally:
        stack.stop()
        if options.keep:
            console.print(f"chaos: logs are in {state}/logs")


if __name__ == "__main__":
    sys.exit(main())

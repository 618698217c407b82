"""What the anchors need: four services (ingress and session twice) behind crossings, a world with a ledger of its own,
and a planner that the test speaks for."""

import contextlib
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import yaml
from prometheus_client.parser import text_string_to_metric_families

from libs.contracts.ids import derive_id
from libs.contracts.session import TimelineLine
from libs.runtime.scripts import Script
from tests.support.crossing import Crossing, Hold
from tests.support.disturbance import DisturbedCrossing, Noise
from tests.support.eventually import eventually_sync
from turnkeeper import stack as stacks
from turnkeeper.client import Answer, Client
from turnkeeper.engines import external
from turnkeeper.signing import Outward
from turnkeeper.target import of_stack

Plan = dict[str, Any]
View = dict[str, Any]
Planner = Callable[[View], Plan]
OWNER = "ana"
REPLICAS = {"ingress": 2, "session": 2, "consent": 1, "tools": 1}
PROCESSES = tuple(f"{service}-{number}" for service, count in REPLICAS.items() for number in range(count))
_NUMBERS = itertools.count(1)
"""Of what is said: each message has a key of its own, and the same one when it is said again."""
_FORGET = b"HDEL"
"""How a sent message is taken out of the outbox."""
_SUM = {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]}
_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_KEY = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
_SHOP = {"scheme": "standard-webhooks", "secrets": ["env:SHOP_SECRET"]}
_BY_COMMENT = {"verify": _SHOP, "route": {"subject": "comment:{{ data.comment }}"}}
ORDER: dict[str, Any] = {"subject": "order:{{ data.order }}", "sequence": "{{ data.version }}"}


def application(url: str) -> dict[str, Any]:
    """The application. Every tool acts in the world at `url`."""

    def tool(name: str, timeout: str, **more: Any) -> dict[str, Any]:
        return {"args": _SUM, "connector": {"python": {"function": f"world:{name}", "timeout": timeout}}, **more}

    keyed, lookup = {"for": "24h"}, {"tool": "find", "args": {"key": "{{ key }}"}, "result": "{{ found }}"}
    return {
        "sources": {
            "app": {"verify": {"scheme": "user-token"}},
            "shop": {
                "verify": _SHOP,
                "route": {"session": "{{ data.session }}"},
                "unrouted": {"reject": True},
                "types": {"order.*": ORDER},
            },
            "desk": {**_BY_COMMENT, "unrouted": {"hold": "10m"}},
            "hasty": {**_BY_COMMENT, "unrouted": {"hold": "1s"}},
        },
        "tools": {
            "pay": tool("pay", "30s", keyed=keyed, consent="never"),
            "order": tool("order", "1s", keyed=keyed, consent="unless-user", ask="order for {{ sum }}"),
            "charge": tool("charge", "1s", consent="never", lookup=lookup),
            "comment": tool("comment", "5s", args=_TEXT, consent="never", registers="comment:{{ result.id }}"),
            "find": tool("find", "5s", args=_KEY, effect="read"),
        },
        "planner": {"http": {"url": f"{url}/plan", "timeout": "20s"}},
        "session": {
            "action_ttl": "10m",
            "in_flight": [
                {"type": "more.queue", "adds": "queue"},
                {"type": "more.restart", "adds": "restart"},
                {"adds": "merge", "unclear": "ask"},
            ],
        },
    }


TOOLS = '''
"""Tools that act in the world of the test: they pass on what they are told, and wait for its answer."""
import json, urllib.request
from pathlib import Path

URL = Path(__file__).with_name("url").read_text()

def _ask(tool, args, key=""):
    body = json.dumps({"tool": tool, "args": args, "key": key}).encode()
    request = urllib.request.Request(URL + "/do", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)

def pay(sum, idempotency_key): return _ask("pay", {"sum": sum}, idempotency_key)
def order(sum, idempotency_key): return _ask("order", {"sum": sum}, idempotency_key)
def charge(sum, idempotency_key): return _ask("charge", {"sum": sum}, idempotency_key)
def comment(text, idempotency_key): return _ask("comment", {"text": text}, idempotency_key)
def find(key): return _ask("find", {"key": key})
'''


@dataclass
class World:
    """The destination and the planner. `ledger` is what really happened: one entry for each effect."""

    ledger: list[dict[str, Any]] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    planners: dict[str, Planner] = field(default_factory=dict)
    """Who plans in a session."""
    after: Callable[[dict[str, Any]], None] = lambda _: None
    """Called with each effect."""
    _holds: dict[tuple[str, str], Hold] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def hold(self, tool: str, argument: str) -> Hold:
        """The next such call has its effect, and gets no answer before the hold is left."""
        made = self._holds[tool, argument] = Hold(())
        return made

    def did(self, tool: str, *arguments: str) -> list[str]:
        """The arguments of a tool's effects, in order; of these arguments alone where some are given."""
        found = [entry["argument"] for entry in self.ledger if entry["tool"] == tool]
        return [argument for argument in found if argument in arguments or not arguments]

    def seen(self, session: str) -> list[View]:
        """What the planner was shown of a session, once for each plan that it was asked for."""
        asked = {(view["turn"], view["plan"]): view for view in self.views if view["session"] == session}
        return list(asked.values())

    def answer(self, path: str, asked: dict[str, Any]) -> Any:
        """What the server answers."""
        if path == "/plan":
            self.views.append(asked)
            return self.planners.get(asked["session"], lambda _: {})(asked)
        if asked["tool"] == "find":
            return next((entry["result"] for entry in self.ledger if entry["key"] == asked["args"]["key"]), None)
        return self._do(asked["tool"], *asked["args"].values(), asked["key"])

    def _do(self, tool: str, argument: str, key: str) -> Any:
        for entry in self.ledger:
            if entry["key"] == key and tool != "charge":  # which honours no key
                return entry["result"]
        id = argument if tool == "comment" else f"{tool}{next(self._numbers)}"
        entry = {"tool": tool, "argument": argument, "key": key, "result": {"id": id}}
        self.ledger.append(entry)
        self.after(entry)
        if hold := self._holds.pop((tool, argument), None):
            hold.wait()
        return entry["result"]


@contextlib.contextmanager
def serving(world: World) -> Iterator[str]:
    """The world on a port of its own; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body = json.dumps(world.answer(self.path, asked)).encode()
            with contextlib.suppress(OSError):  # who asked may be gone
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Stage:
    """A running stack, as a test uses it."""

    stack: stacks.Stack
    client: Client
    world: World
    stores: dict[str, Crossing]
    """By process, between it and Redis."""
    brokers: dict[str, Crossing]
    """By process, between it and RabbitMQ."""
    noise: Noise | None = None
    """What disturbs the traffic, if anything does."""

    def session(self, name: str, planner: Planner) -> str:
        """A session of Ana's, with who plans in it."""
        self.world.planners[name] = planner
        assert self.client.create_session(name, OWNER).said in ("created", "exists", "accepted", "200", "201")
        return name

    def event(self, type: str, event: str, source: str = "shop", ingress: int = 0, **data: Any) -> Answer:
        """A signed event to one replica of ingress; its answer, a refusal included."""
        outward = self.client.sign(source, event=event, type=type, data=data)
        url = f"{self.stack.url('ingress', ingress)}/v1/events/{source}"
        answer = httpx2.post(url, content=outward.body, headers=outward.headers, timeout=20)
        if self.noise is not None:
            self._event_again(outward, self.noise, url)
        return Answer(answer.status_code, answer.json())

    def _event_again(self, outward: Outward, noise: Noise, url: str) -> None:
        """A sender that did not hear the answer, or whose event comes the other way too."""
        match noise.again("event", outward.event):
            case "http":
                again = httpx2.post(url, content=outward.body, headers=outward.headers, timeout=20)
                assert again.json()["status"] == "duplicate"
            case "amqp":
                assert self.client.deliver(outward, via="amqp").said == "published"

    def say(self, session: str, text: str) -> Answer:
        """A message of the owner's."""
        key = derive_id("said", session, text, next(_NUMBERS))
        return self._spoken(lambda: self.client.say(session, text, OWNER, key), key)

    def cancel(self, session: str) -> Answer:
        """The owner cancels."""
        key = derive_id("cancelled", session, next(_NUMBERS))
        return self._spoken(lambda: self.client.cancel(session, OWNER, key), key)

    def _spoken(self, speak: Callable[[], Answer], key: str) -> Answer:
        answer = speak()
        if self.noise is not None and self.noise.again("message", key):
            assert speak().said == "duplicate"
        return answer

    def outcome(self, event: str, source: str = "shop") -> Any:
        """What became of an event, as ingress tells it."""
        return self.client.event_outcome(source, event)["outcome"]

    def lines(self, session: str, prefix: str = "") -> list[TimelineLine]:
        """The timeline, or the lines of kinds that begin so."""
        return [line for line in self.client.timeline(session) if line.kind.startswith(prefix)]

    def kinds(self, session: str, prefix: str = "") -> Counter[str]:
        """How often each kind of line stands in the timeline."""
        return Counter(line.kind for line in self.lines(session, prefix))

    def until(self, session: str, kind: str, count: int = 1, within: float = 20.0) -> None:
        """Wait until the timeline has so many lines of a kind."""

        def there() -> bool:
            kinds = [line.kind for line in self.lines(session)]
            assert kinds.count(kind) >= count, f"no {count} {kind} in {kinds}"  # type: ignore[arg-type]
            return True

        eventually_sync(there, within)

    def asked(self, session: str) -> dict[str, Any]:
        """The open question of a session, once there is one."""

        def pending() -> list[dict[str, Any]]:
            return [action for action in self.client.actions(session) if action["state"] == "pending"]

        return eventually_sync(pending, 20)[0]

    def click(self, session: str, action: dict[str, Any], user: str = OWNER) -> httpx2.Response:
        """Somebody clicks on accept."""
        url = f"{self.stack.url('consent')}/v1/sessions/{session}/actions/{action['action']}/decision"
        body = {"decision": "accept", "question_digest": action["question_digest"]}
        headers = {"authorization": f"Bearer {self.client.user_token(user)}"}
        answer = httpx2.post(url, json=body, headers=headers, timeout=20)
        if self.noise is not None and answer.is_success and self.noise.again("decision", action["question_digest"]):
            assert httpx2.post(url, json=body, headers=headers, timeout=20).text == answer.text
        return answer

    def metric(self, service: str, name: str, **labels: str) -> float:
        """A counter, over all replicas that answer."""
        return sum(
            sample.value
            for replica in range(REPLICAS[service])
            for sample in self.samples(service, replica)
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def samples(self, service: str, replica: int) -> Iterator[Any]:
        """A scrape of one replica."""
        text = httpx2.get(f"{self.stack.url(service, replica)}/metrics").text
        for family in text_string_to_metric_families(text):
            yield from family.samples

    def stop_at(self, process: str, point: str, script: Script, session: str, about: str = "") -> Callable[[], None]:
        """Have a process stop at a point of what it does for a session by this script; a call that waits until it
        stands there. `about` is a text that tells one commit from others.

        Points: `before-the-commit`, `committed`, `before-the-send`, `sent`.
        """
        store, broker = self.stores[process], self.brokers[process]
        if point in ("before-the-commit", "committed"):
            markers = (script.sha.encode(), session.encode(), about.encode())
            return store.hold(*markers, reply=point == "committed").await_reached
        sending = broker.hold(f'"session":"{session}"'.encode())
        return sending.await_reached if point == "before-the-send" else lambda: _stands_after(sending, store)

    @contextlib.contextmanager
    def facing(self, replica: int) -> "Iterator[Stage]":
        """The same stage, read through this replica of the session service."""
        target = of_stack(self.stack)
        urls = {**target.urls, "session": self.stack.url("session", replica)}
        with Client(replace(target, urls=urls)) as client:
            yield replace(self, client=client)

    def restart(self, *names: str) -> None:
        """Kill processes as `kill -9` does, all at once, and start them again."""
        for name in names:
            self.stack.kill_service(name)
        self.restarted(*names)

    def restarted(self, *names: str) -> None:
        """Start processes that were killed; what stood at their crossings never arrives."""
        for name in names:
            self.stores[name].clear()
            self.brokers[name].clear()
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(self.stack.start_service, names))


def _stands_after(sending: Hold, store: Crossing) -> None:
    """Let go what is being sent, and stop where it would be taken out of the outbox."""
    sending.await_reached()
    forgetting = store.hold(_FORGET)
    sending.leave(passing=True)
    forgetting.await_reached()


@contextlib.contextmanager
def staged(folder: Path, redis_url: str, amqp_url: str, noise: Noise | None = None) -> Iterator[Stage]:
    """The stack on the run's servers (named by the environment), with every process behind crossings."""
    world = World()
    with contextlib.ExitStack() as undo:
        url = undo.enter_context(serving(world))
        (folder / "url").write_text(url)
        (folder / "world.py").write_text(TOOLS)
        (folder / "turnkeeper.yaml").write_text(yaml.safe_dump(application(url)))
        stores = {
            name: Crossing(os.environ.get(external.redis_variable(name.rpartition("-")[0]), redis_url))
            for name in PROCESSES
        }
        at = {name: os.environ.get(external.amqp_variable(name.rpartition("-")[0]), amqp_url) for name in PROCESSES}
        brokers = {
            name: Crossing(at[name]) if noise is None else DisturbedCrossing(at[name], name, noise)
            for name in PROCESSES
        }
        for crossing in (*stores.values(), *brokers.values()):
            undo.callback(crossing.close)
        lab: dict[str, dict[str, str]] = {
            name: {"TURNKEEPER_REDIS_URL": stores[name].url, "TURNKEEPER_AMQP_URL": brokers[name].url}
            for name in PROCESSES
        }
        for name in ("session-0", "session-1"):  # an owner that was paused hears its store's answer however late
            lab[name]["TURNKEEPER_REDIS_URL"] += "?socket_timeout=60"
        lab["consent-0"]["TURNKEEPER_CONSENT_SWEEP_SECONDS"] = "0"
        lab["tools-0"]["TURNKEEPER_TOOLS_LEASE_GRACE_SECONDS"] = "0.5"
        lab["tools-0"]["TURNKEEPER_TOOLS_SWEEP_SECONDS"] = "0.2"
        stack = stacks.start_stack(
            folder / "state", "external", 0, folder / "turnkeeper.yaml", REPLICAS, lab, partitions=4
        )
        undo.callback(stack.stop)
        client = undo.enter_context(Client(of_stack(stack)))
        yield Stage(stack, client, world, stores, brokers, noise)

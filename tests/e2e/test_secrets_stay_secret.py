"""No secret gets out: not into logs, answers, metrics, command lines, or files that others may read (G10).

Every secret of a stack is a marker that is looked for afterwards, and the traffic is of the kind that makes programs
talkative: wrong passwords, signatures and URLs, a planner that answers with what it was sent, a tool that raises with
its environment in hand.
"""

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml

from libs.contracts.keys import SERVICES
from tests.support.eventually import eventually_sync
from tests.support.http_rights import every_route
from tests.support.servers import Servers
from turnkeeper import processes
from turnkeeper import stack as stacks
from turnkeeper.client import Client
from turnkeeper.engines.base import login_url
from turnkeeper.ports import free_port
from turnkeeper.signing import user_token
from turnkeeper.stack import Stack
from turnkeeper.target import of_stack

pytestmark = [pytest.mark.slow, pytest.mark.engine]
LEAK = """
import os

def leak(text):
    secrets = [value for name, value in os.environ.items() if name.startswith("TURNKEEPER_")]
    raise RuntimeError("cannot log in: " + " ".join(secrets))
"""


@dataclass(frozen=True)
class Staged:
    """A stack and every secret of it."""

    stack: Stack
    markers: dict[str, str] = field(repr=False)


class _Talkative(BaseHTTPRequestHandler):
    """A planner that fails first with all that it was sent, and then plans one step."""

    calls = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        type(self).calls += 1
        if type(self).calls == 1:
            self._say(500, str(self.headers).encode())
            return
        results = json.loads(body).get("results")
        plan = {} if results else {"steps": [{"tool": "leak", "args": {"text": "x"}}]}
        self._say(200, json.dumps(plan).encode())

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def planner() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Talkative)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/plan"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory, servers: Servers, planner: str) -> Iterator[Staged]:
    folder = tmp_path_factory.mktemp("markers")
    (folder / "leaky.py").write_text(LEAK)
    config = folder / "turnkeeper.yaml"
    config.write_text(yaml.safe_dump(_application(planner)))
    webhook = "whsec_" + base64.b64encode(b"marker-webhook-" + secrets.token_bytes(17)).decode()
    markers = {"webhook": webhook, "planner": f"marker-planner-{secrets.token_hex(12)}"}
    with pytest.MonkeyPatch.context() as patch:
        for name, url in servers.environment().items():
            patch.setenv(name, url)
            if password := urlsplit(url).password:
                markers[name] = password
        patch.setenv("TURNKEEPER_NAMESPACE", f"markers-{secrets.token_hex(6)}")
        patch.setenv("SHOP_SECRET", webhook)
        patch.setenv("PLANNER_KEY", markers["planner"])
        stack = stacks.start_stack(folder / "state", "external", 0, config, partitions=2)
        made = json.loads((stack.state / "secrets.json").read_text())
        markers |= {name: made[name] for name in ("user_token_secret", "operator_token")}
        markers["seal_keys"] = made["seal_keys"].partition(":")[2]
        try:
            yield Staged(stack, markers)
        finally:
            stack.stop()


def _application(planner: str) -> dict[str, object]:
    return {
        "sources": {
            "app": {"verify": {"scheme": "user-token"}},
            "shop": {
                "verify": {"scheme": "standard-webhooks", "secrets": ["env:SHOP_SECRET"]},
                "route": {"session": "{{ data.session }}"},
            },
        },
        "tools": {
            "leak": {
                "args": {"type": "object", "properties": {"text": {"type": "string"}}},
                "consent": "never",
                "connector": {"python": {"function": "leaky:leak"}},
            }
        },
        "planner": {"http": {"url": planner, "headers": {"x-key": "env:PLANNER_KEY"}}},
    }


def _leaks(markers: dict[str, str], where: str, text: str) -> list[str]:
    return [f"{name} in {where}" for name, marker in markers.items() if marker in text]


def test_no_secret_is_in_a_log_an_answer_or_a_metric(staged: Staged) -> None:
    stack, markers = staged.stack, staged.markers
    answers = _traffic(stack)
    logs = {path.name: path.read_text() for path in (stack.state / "logs").iterdir()}
    raised = [line for line in logs["tools-0.log"].splitlines() if '"function.raised"' in line]
    assert raised
    assert "***" in raised[0], "the tool raised with its secrets in hand"
    found = [leak for name, text in logs.items() for leak in _leaks(markers, name, text)]
    found += [leak for where, text in answers for leak in _leaks(markers, where, text)]
    assert found == []
    assert len(answers) > 100


def _traffic(stack: Stack) -> list[tuple[str, str]]:
    """Everything that usually goes wrong, and the answers to it."""
    session, now = f"s-{secrets.token_hex(4)}", int(time.time())
    answers: list[tuple[str, str]] = []
    with Client(of_stack(stack)) as client:
        client.create_session(session, "ana")
        client.say(session, "leak", "ana")
        eventually_sync(lambda: any(line.kind == "tool.unknown" for line in client.timeline(session)))
        answers.append(("timeline", " ".join(line.model_dump_json() for line in client.timeline(session))))
        answers.append(("history", json.dumps(client.history(session))))
        answers.append(("operations", json.dumps(client.operations(session))))
        client.deliver(client.sign("shop", event="good", type="t", data={"session": session}))
    tokens = (
        "",
        "garbage",
        user_token("another-secret-of-40-bytes-that-we-made-up", "ana", now),
        stack.operator_token,
        user_token(stack.user_token_secret, "ana", now),
        user_token(stack.user_token_secret, "ben", now),
    )
    names = {
        "session": session,
        "source": "shop",
        "event_id:path": "good",
        "id": "x",
        "action": "A1",
        "operation": "O1",
    }
    with httpx2.Client(timeout=10) as http:
        for service, method, path in every_route():
            for name, value in names.items():
                path = path.replace("{" + name + "}", value)
            for token in tokens:
                for body in (b"", b"{", b'{"text": 1}'):
                    header = {"Authorization": f"Bearer {token}"} if token else {}
                    answer = http.request(method, stack.url(service) + path, headers=header, content=body)
                    answers.append((f"{service} {method} {path}", f"{answer.headers} {answer.text}"))
            answers.append((path, http.request("PATCH", stack.url(service) + path).text))
        for service in SERVICES:
            answers += [(f"metrics of {service}", http.get(stack.url(service) + "/metrics").text)]
    return answers


def test_no_secret_is_on_a_command_line_and_no_environment_can_be_read_by_others(
    staged: Staged, servers: Servers
) -> None:
    pids = processes.marked(staged.stack.state)
    assert len(pids) >= len(SERVICES)
    if servers.kind == "local":
        pids += processes.marked(servers.state)
    for pid in pids:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        assert _leaks(staged.markers, line, line) == []
        assert Path(f"/proc/{pid}/environ").stat().st_mode & 0o077 == 0
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert _leaks(staged.markers, "ps", shown) == []


def test_no_file_with_a_secret_can_be_read_by_others(staged: Staged, servers: Servers) -> None:
    folders = [staged.stack.state, *([servers.state] if servers.kind == "local" else [])]
    holding = 0
    for folder in folders:
        assert folder.stat().st_mode & 0o077 == 0
        for path in folder.rglob("*"):
            if path.is_file() and _leaks(staged.markers, "", path.read_bytes().decode(errors="replace")):
                holding += 1
                assert path.stat().st_mode & 0o077 == 0, path
    assert holding >= 3  # stack.json, secrets.json, the records of the processes


def test_what_is_printed_of_a_stack_names_no_secret(staged: Staged) -> None:
    record = processes.read(staged.stack.state, "ingress-0")
    assert _leaks(staged.markers, "repr", repr((staged.stack, record, of_stack(staged.stack)))) == []


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("server", ["redis", "amqp"])
def test_a_wrong_password_is_in_no_log_and_no_answer(staged: Staged, tmp_path: Path, service: str, server: str) -> None:
    wrong, variable = f"marker-wrong-{secrets.token_hex(8)}", f"TURNKEEPER_{server.upper()}_URL"
    record = processes.read(staged.stack.state, f"{service}-0")
    assert record is not None
    port = free_port()
    login = login_url(record.env[variable], service, wrong)
    env = {**record.env, variable: login, "TURNKEEPER_HTTP_PORT": str(port), "TURNKEEPER_REPLICA": "wrong"}
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen([sys.executable, "-m", f"services.{service}"], env=env, stdout=sink, stderr=sink)
    answers: list[str] = []

    def told() -> bool:
        text = log.read_text()
        if process.poll() is not None or "broker.away" in text:
            return True
        try:
            answers.append(httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=5).text)
        except httpx2.HTTPError:
            return False
        return "refuses us" in answers[-1]

    try:
        eventually_sync(told, within=90)
    finally:
        process.terminate()
        process.wait(20)
    text = log.read_text() + " ".join(answers)
    assert text
    assert _leaks({**staged.markers, "wrong": wrong}, "log", text) == []


@pytest.mark.parametrize(
    ("service", "name", "value"),
    [
        ("ingress", "TURNKEEPER_SEAL_KEYS", "k1:{marker}"),
        ("tools", "TURNKEEPER_SEAL_KEYS", "{marker}"),
        ("consent", "TURNKEEPER_OPERATOR_TOKENS", "op:all:{marker}"),
        ("session", "TURNKEEPER_OPERATOR_TOKENS", "{marker}"),
        ("ingress", "TURNKEEPER_USER_TOKEN_SECRET", "{marker}"),
        ("session", "TURNKEEPER_REDIS_URL", "http://session:{marker}@127.0.0.1:1/0"),
        ("tools", "TURNKEEPER_REDIS_URL", "redis://tools:{marker}@127.0.0.1:port/0"),
        ("consent", "TURNKEEPER_AMQP_URL", "amqp:/consent:{marker}@127.0.0.1:5672/"),
        ("ingress", "SHOP_SECRET", "whsec_{marker}!"),
        ("session", "PLANNER_KEY", "{marker} \u00e4"),
    ],
)
def test_a_setting_that_is_wrong_stops_the_start_and_is_not_told(
    staged: Staged, service: str, name: str, value: str
) -> None:
    marker = f"mark{secrets.token_hex(5)}"
    record = processes.read(staged.stack.state, f"{service}-0")
    assert record is not None
    env = {**record.env, name: value.replace("{marker}", marker), "TURNKEEPER_HTTP_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-m", f"services.{service}"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode not in (0, None), done.stderr
    assert {"SHOP_SECRET": "sources.shop.verify"}.get(name, name) in done.stderr
    assert _leaks({**staged.markers, "wrong": marker}, "stderr", done.stdout + done.stderr) == []


@pytest.mark.parametrize("command", [["dead", "list"], ["doctor"], ["publish", "shop", "--via", "amqp"]])
def test_the_command_line_tells_no_secret_when_it_fails(staged: Staged, command: list[str]) -> None:
    wrong = f"marker-wrong-{secrets.token_hex(8)}"
    env = {
        **os.environ,
        "TURNKEEPER_STATE": str(staged.stack.state),
        "TURNKEEPER_AMQP_URL": login_url(staged.stack.amqp_url, "publisher", wrong),
        "TURNKEEPER_NAMESPACE": staged.stack.namespace,
    }
    done = subprocess.run(
        [sys.executable, "-m", "turnkeeper.cli", *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "RabbitMQ" in done.stdout + done.stderr
    assert _leaks({**staged.markers, "wrong": wrong}, "output", done.stdout + done.stderr) == []

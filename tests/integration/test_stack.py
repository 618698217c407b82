"""A stack as processes: started whole or not at all, stopped by anybody, each process with what it needs and no more.

The services here are stand-ins that answer `/readyz` and tell their environment: what is tested is who starts, kills
and ends them.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.eventually import eventually_sync
from tests.support.leftovers import naming
from turnkeeper import processes, stack
from turnkeeper.engines import external
from turnkeeper.stack import Stack, StackError

APPLICATION = """
sources:
  restaurant:
    verify: {scheme: standard-webhooks, secrets: [env:RESTAURANT_SECRET]}
    route: {session: "{{ data.session }}"}
  app: {verify: {scheme: user-token}}
tools: {}
planner: {scripted: {rules: rules.yaml}}
"""

STAND_IN = """
import http.server, json, os, sys
if os.environ.get("FAIL"):
    print("the reason why", file=sys.stderr)
    sys.exit(3)
if path := os.environ.get("PORT_TAKEN_ONCE"):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        sys.exit("OSError: [Errno 98] Address already in use")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = self.path != "/readyz" or not os.environ.get("NEVER_READY")
        body = json.dumps(dict(os.environ) if self.path == "/env" else {"ready": ready}).encode()
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
print("started", flush=True)
address = (os.environ["TURNKEEPER_HTTP_HOST"], int(os.environ["TURNKEEPER_HTTP_PORT"]))
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
"""

Starter = Callable[..., Stack]


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """An application file, with the (empty) rules that it names."""
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    (tmp_path / "turnkeeper.yaml").write_text(APPLICATION)
    return tmp_path / "turnkeeper.yaml"


@pytest.fixture
def start(
    application: Path,
    tmp_path: Path,
    redis_url: str,
    amqp_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Starter]:
    """Starts a stack of stand-ins on the run's servers; nothing of its folder may be left at the end."""
    for service in ("ingress", "session", "consent", "tools"):
        package = tmp_path / "stand-ins" / "services" / service
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(STAND_IN)
    (tmp_path / "stand-ins" / "services" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand-ins"))
    monkeypatch.setenv(external.REDIS_URL, redis_url)
    monkeypatch.setenv(external.AMQP_URL, amqp_url)
    monkeypatch.setenv(external.NAMESPACE, namespace)
    monkeypatch.setenv("TURNKEEPER_PARTITIONS", "2")
    state = tmp_path / "state"

    def run(**options: object) -> Stack:
        return stack.start_stack(state, port_base=0, config=application, **options)  # type: ignore[arg-type]

    yield run
    stack.stop_stack(state)
    assert naming(state) == []


def _get(url: str, path: str) -> tuple[int, dict[str, str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_start_returns_when_every_replica_is_ready_and_says_so(start: Starter) -> None:
    said: list[str] = []

    running = start(replicas={"session": 2}, say=said.append)

    urls = [url for replicas in running.urls.values() for url in replicas]
    assert {name: len(found) for name, found in running.urls.items()} == {
        "ingress": 1,
        "session": 2,
        "consent": 1,
        "tools": 1,
    }
    assert [_get(url, "/readyz")[0] for url in urls] == [200] * 5
    assert any(line.startswith("session-1: ready at ") for line in said)


def test_stack_json_is_the_owners_alone_and_reads_back_as_the_stack(start: Starter) -> None:
    running = start()
    file = running.state / "stack.json"

    assert file.stat().st_mode & 0o777 == 0o600
    assert stack.read_stack(running.state) == running
    assert json.loads(file.read_text())["consent_url"] == running.url("consent")


def test_the_session_service_is_given_neither_seal_keys_nor_a_sources_secret(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESTAURANT_SECRET", "whsec_from-our-environment")
    monkeypatch.setenv("TURNKEEPER_SEAL_KEYS", "stale:key")
    running = start()

    told = {name: _get(running.url(name), "/env")[1] for name in ("ingress", "session", "consent", "tools")}

    assert told["ingress"]["RESTAURANT_SECRET"] == "whsec_from-our-environment"
    assert "RESTAURANT_SECRET" not in {*told["session"], *told["consent"], *told["tools"]}
    assert "TURNKEEPER_SEAL_KEYS" not in told["session"]
    assert {told[name]["TURNKEEPER_SEAL_KEYS"] for name in ("ingress", "consent", "tools")} != {"stale:key"}
    assert running.operator_token not in str(told.values())


def test_secrets_are_drawn_once_for_a_folder(start: Starter) -> None:
    first = start()
    seal = _get(first.url("ingress"), "/env")[1]["TURNKEEPER_SEAL_KEYS"]
    first.stop()

    second = start()

    assert _get(second.url("ingress"), "/env")[1]["TURNKEEPER_SEAL_KEYS"] == seal
    assert second.source_secrets == first.source_secrets
    assert first.source_secrets["RESTAURANT_SECRET"].startswith("whsec_")


def test_a_planners_key_is_given_to_the_session_service_alone(
    start: Starter, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.write_text(
        APPLICATION.replace("{scripted: {rules: rules.yaml}}", "{openai: {model: m, key: env:MODEL}}")
    )
    with pytest.raises(StackError, match=r"planner\.openai\.key: the environment variable MODEL is not set"):
        start()
    monkeypatch.setenv("MODEL", "sk-invented")
    running = start()
    told = {name: _get(running.url(name), "/env")[1] for name in ("ingress", "session", "consent", "tools")}
    assert {name for name, env in told.items() if "MODEL" in env} == {"session"}
    assert "sk-invented" not in (running.state / "secrets.json").read_text()


def test_extra_environment_reaches_every_process_or_the_one_that_is_named(start: Starter) -> None:
    lab = {"FOR_ALL": "1", "session": {"FOR_SESSIONS": "1"}, "session-1": {"FOR_ONE": "1"}}
    running = start(replicas={"session": 2}, lab=lab)

    tools = _get(running.url("tools"), "/env")[1]
    first, second = (_get(running.url("session", k), "/env")[1] for k in (0, 1))

    assert ("FOR_ALL" in tools, "FOR_SESSIONS" in tools) == (True, False)
    assert ("FOR_SESSIONS" in first, "FOR_ONE" in first) == (True, False)
    assert ("FOR_SESSIONS" in second, "FOR_ONE" in second) == (True, True)


def test_a_killed_service_stays_away_until_it_is_started_with_the_same_environment(start: Starter) -> None:
    running = start()
    before = _get(running.url("tools"), "/env")[1]

    running.kill_service("tools-0")
    with pytest.raises(ConnectionError):
        _get(running.url("tools"), "/readyz")
    assert stack.running(running.state)["tools-0"] is False
    pid = running.start_service("tools-0")

    assert _get(running.url("tools"), "/env")[1] == before
    assert stack.read_stack(running.state).pids["tools-0"] == pid != running.pids["tools-0"]


def test_a_paused_service_answers_nothing_and_the_stack_can_still_be_stopped(start: Starter) -> None:
    running = start()
    running.kill_service("session-0", signal.SIGSTOP)

    began = time.monotonic()
    running.stop()

    assert time.monotonic() - began < 10
    assert naming(running.state) == []


def test_a_service_that_is_not_there_is_named_with_those_that_are(start: Starter) -> None:
    running = start()
    with pytest.raises(StackError, match=r"no process 'sesion-0'.*session-0"):
        running.kill_service("sesion-0")


def test_a_service_that_fails_at_its_start_is_told_with_its_last_lines_and_nothing_is_left(
    start: Starter, tmp_path: Path
) -> None:
    with pytest.raises(StackError, match=r"(?s)consent-0 ended at its start.*the reason why"):
        start(lab={"consent": {"FAIL": "1"}})

    assert naming(tmp_path / "state") == []
    with pytest.raises(StackError, match="no stack runs in"):
        stack.read_stack(tmp_path / "state")


def test_all_that_fail_at_their_start_are_told(start: Starter) -> None:
    with pytest.raises(StackError, match=r"(?s)ended at its start.*ended at its start") as raised:
        start(lab={"consent": {"FAIL": "1"}, "tools": {"FAIL": "1"}})
    assert "consent-0 ended" in str(raised.value)
    assert "tools-0 ended" in str(raised.value)


def test_a_port_that_was_taken_meanwhile_is_replaced_by_another(start: Starter, tmp_path: Path) -> None:
    said: list[str] = []
    running = start(lab={"session": {"PORT_TAKEN_ONCE": str(tmp_path / "taken")}}, say=said.append)
    assert [line for line in said if "trying others" in line]
    assert _get(running.url("session"), "/readyz")[0] == 200


def test_a_service_that_does_not_become_ready_is_told_with_what_it_says(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "_READY_SECONDS", 1.0)
    with pytest.raises(StackError, match=r'session-0 is not ready after 1 s: 503 \{"ready": false\}'):
        start(lab={"session": {"NEVER_READY": "1"}})


def test_a_wrong_application_file_starts_nothing_and_lists_every_fault(start: Starter, application: Path) -> None:
    application.write_text("sources: {a: {verify: {scheme: rot13}}}\nshoes: 1\n")
    with pytest.raises(StackError) as raised:
        start()
    assert "sources.a.verify" in str(raised.value)
    assert "shoes" in str(raised.value)


def test_what_the_services_would_stumble_over_is_told_before_anything_is_made(
    application: Path, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("def book(): ...\n")
    tools = ", ".join(
        f"{name}: {{connector: {{python: {{function: '{module}:book'}}}}, args: {{type: object}}}}"
        for name, module in (("book", "no_such_module"), ("good", "beside"))
    )
    application.write_text(APPLICATION.replace("tools: {}", f"tools: {{{tools}}}"))
    (tmp_path / "rules.yaml").unlink()
    with pytest.raises(StackError) as raised:
        stack.start_stack(tmp_path / "state", config=application)
    assert "planner.scripted.rules: there is no file" in str(raised.value)
    assert "tools.book.connector.python: cannot load no_such_module:book" in str(raised.value)
    assert "tools.good" not in str(raised.value)
    for options, words in (({"engine": "bogus"}, "unknown engine 'bogus'"), ({"config": tmp_path / "no"}, "No such")):
        with pytest.raises(StackError, match=words):
            stack.start_stack(tmp_path / "state", **{"config": application, **options})  # type: ignore[arg-type]
    assert not (tmp_path / "state").exists()


def test_a_taken_port_is_named_before_anything_starts(application: Path, tmp_path: Path) -> None:
    base = free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base + 2))
        taken.listen(1)
        with pytest.raises(StackError, match=f"port {base + 2} for consent-0 is taken: choose another --port-base"):
            stack.start_stack(tmp_path / "state", port_base=base, config=application)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free."""
    while True:
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            first = taken.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            base: int = first.getsockname()[1]
            for port in range(base + 1, base + count):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base


@pytest.mark.parametrize(
    ("replicas", "words"), [({"sesion": 1}, "no service is called sesion"), ({"session": 0}, "needs 1 to 50")]
)
def test_wrong_replicas_are_refused(application: Path, tmp_path: Path, replicas: dict[str, int], words: str) -> None:
    with pytest.raises(StackError, match=words):
        stack.start_stack(tmp_path / "state", config=application, replicas=replicas)


def test_a_second_stack_in_the_same_folder_is_refused_and_the_first_stays(start: Starter) -> None:
    running = start()
    with pytest.raises(StackError, match=r"a stack runs in .*turnkeeper down"):
        start()
    assert _get(running.url("ingress"), "/readyz")[0] == 200


def test_stopping_what_does_not_run_is_no_fault(tmp_path: Path) -> None:
    stack.stop_stack(tmp_path / "never")
    stack.stop_stack(tmp_path)


HOLDER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from turnkeeper import stack
    def say(line): print(line, flush=True)
    state = Path(sys.argv[1])
    start = lambda: stack.start_stack(state, port_base=0, config=Path(sys.argv[2]), say=say)
    stack.hold(state, start, say=say)
    say("down")
    """
)


@pytest.fixture
def holder(start: Starter, application: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that started a stack and stays with it, as `turnkeeper up` does."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "state"), str(application)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("stack: up until"):
            break
    else:
        pytest.fail("".join(said))
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_held_stack_goes_down_with_its_holder(
    holder: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    holder.send_signal(number)
    rest, _ = holder.communicate(timeout=30)

    assert holder.returncode == 0, rest
    assert rest.endswith("down\n")
    assert processes.marked(tmp_path / "state") == []


def test_a_start_that_is_interrupted_leaves_nothing(start: Starter, application: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    env = {**os.environ, "NEVER_READY": "1"}
    command = [sys.executable, "-c", HOLDER, str(state), str(application)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually_sync(lambda: len(processes.marked(state)) == 4)

    process.terminate()
    process.wait(timeout=30)

    assert naming(state) == []


def test_a_held_stack_whose_holder_was_killed_is_stopped_by_anybody(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    holder.kill()
    holder.wait()
    assert len(processes.marked(tmp_path / "state")) >= 4

    stack.stop_stack(tmp_path / "state")

    assert processes.marked(tmp_path / "state") == []


def test_a_holder_tells_which_service_ended_and_returns_when_the_stack_is_stopped(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    stack.kill_service(state, "consent-0")
    assert holder.stdout is not None
    assert "consent-0" in holder.stdout.readline()

    stack.stop_stack(state)

    assert holder.wait(timeout=30) == 0
    eventually_sync(lambda: processes.marked(state) == [])


def test_a_stack_outlives_the_command_that_started_it(start: Starter, application: Path, tmp_path: Path) -> None:
    program = HOLDER.replace("stack.hold(state, start, say=say)", "start()")
    command = [sys.executable, "-c", program, str(tmp_path / "state"), str(application)]
    subprocess.run(command, check=True, timeout=60, env=dict(os.environ))

    running = stack.read_stack(tmp_path / "state")

    assert _get(running.url("session"), "/readyz")[0] == 200

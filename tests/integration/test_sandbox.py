"""The sandbox as a process: what it answered is on disk, whatever becomes of it."""

import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import orjson
import pytest

from tests.support.eventually import eventually_sync
from tests.support.sandbox import SandboxProcess, running_sandbox

TABLE = {"record": {"party": 4, "day": "Fri", "time": "19:00"}}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with running_sandbox(tmp_path_factory.mktemp("sandbox")) as sandbox:
        yield sandbox


def test_a_key_is_acted_on_once_and_answered_again(shared: SandboxProcess) -> None:
    first = shared.post("reservations/put", TABLE, key="once")
    again = shared.post("reservations/put", TABLE, key='"once"')
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len([entry for entry in shared.entries() if entry["key"] == "once"]) == 1


def test_a_key_at_once_from_many_is_acted_on_once(shared: SandboxProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: shared.post("reservations/put", TABLE, key="many"), range(16)))
    assert len({answer.content for answer in answers}) == 1
    assert len([entry for entry in shared.entries() if entry["key"] == "many"]) == 1


def test_a_key_for_something_else_is_422(shared: SandboxProcess) -> None:
    shared.post("reservations/put", TABLE, key="other")
    assert shared.post("reservations/put", {"record": {**TABLE["record"], "party": 5}}, key="other").status_code == 422
    assert shared.post("messages/put", {"record": {"text": "hi"}}, key="other").status_code == 422


def test_a_broken_rule_is_409_with_its_reason_and_again(shared: SandboxProcess) -> None:
    for replayed in (False, True):
        answer = shared.post("reservations/put", {"record": {**TABLE["record"], "party": 21}}, key="large")
        assert answer.status_code == 409
        assert answer.json()["detail"] == "no table seats more than twenty"
        assert ("Idempotent-Replayed" in answer.headers) == replayed


@pytest.mark.parametrize("path, body, status", [
    ("nothing/put", {}, 404), ("reservations/drop", {}, 404), ("reservations/put", [], 400),
    ("reservations/find", {"where": 1}, 400), ("reservations/put", {}, 409),
])  # fmt: skip
def test_what_cannot_be_read_is_told_apart(shared: SandboxProcess, path: str, body: object, status: int) -> None:
    assert shared.post(path, body).status_code == status


def test_a_held_collection_acts_when_it_is_released_and_reads_do_not_wait(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox, ThreadPoolExecutor(1) as pool:
        holds = f"{sandbox.url}/v1/holds"
        httpx2.post(f"{holds}/reservations")
        held = pool.submit(sandbox.post, "reservations/put", TABLE, key="slow")
        eventually_sync(lambda: httpx2.get(holds).json() == {"waiting": {"reservations": 1}})
        assert sandbox.post("reservations/find", {"where": {}}).json()["result"]["records"] == []
        assert sandbox.post("messages/put", {"record": {"text": "hi"}}).status_code == 200
        httpx2.delete(f"{holds}/reservations")
        assert held.result(5).json()["result"]["id"] == "R1"
        assert [entry["collection"] for entry in sandbox.entries()] == ["messages", "reservations"]


@pytest.mark.parametrize("method, path, status", [
    ("POST", "nothing", 404), ("DELETE", "nothing", 404), ("DELETE", "reservations?calls=x", 400),
])  # fmt: skip
def test_what_cannot_be_held_or_released_is_told(shared: SandboxProcess, method: str, path: str, status: int) -> None:
    assert httpx2.request(method, f"{shared.url}/v1/holds/{path}").status_code == status


def test_it_ends_when_asked_though_a_call_is_held(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox, ThreadPoolExecutor(1) as pool:
        holds = f"{sandbox.url}/v1/holds"
        httpx2.post(f"{holds}/reservations")
        pool.submit(sandbox.post, "reservations/put", TABLE)
        eventually_sync(lambda: httpx2.get(holds).json() == {"waiting": {"reservations": 1}})
        assert sandbox.end(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert sandbox.log.read_bytes() == b""


def test_the_world_is_shown_for_people(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox:
        sandbox.post("reservations/put", TABLE)
        sandbox.post("reservations/put", {"record": {**TABLE["record"], "time": "20:30"}})
        sandbox.post("reservations/change", {"where": {"id": "R1"}, "set": {"state": "gone"}})
        world = httpx2.get(f"{sandbox.url}/v1/world").json()
    assert world["lines"][0] == "restaurant holds: R2 Fri 20:30 x4"
    assert world["lines"][1] == "group was told: nothing"
    assert [record["id"] for record in world["collections"]["reservations"]["records"]] == ["R1", "R2"]


def test_the_log_says_who_acted_for_which_operation(shared: SandboxProcess) -> None:
    headers = {"Turnkeeper-Actor": "agent", "Turnkeeper-Session": "s1", "Turnkeeper-Operation": "O1"}
    httpx2.post(f"{shared.url}/v1/messages/put", json={"record": {"text": "hi"}}, headers=headers)
    last = shared.entries()[-1]
    assert (last["actor"], last["session"], last["operation"]) == ("agent", "s1", "O1")
    assert (last["collection"], last["verb"], last["outcome"]) == ("messages", "put", "committed")


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: sandbox.post("reservations/put", TABLE, key=f"k{n}"), range(40)))
        sandbox.end(signal.SIGKILL)
        sandbox.start()
        assert {entry["key"] for entry in sandbox.entries()} == {f"k{n}" for n in range(40)}
        again = sandbox.post("reservations/put", TABLE, key="k7")
        assert again.json() == answers[7].json()
        assert again.headers["Idempotent-Replayed"] == "true"
        assert sandbox.post("reservations/put", TABLE).json()["result"]["id"] == "R41"


def test_a_last_line_that_was_torn_is_dropped(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox:
        sandbox.post("reservations/put", TABLE, key="whole")
        sandbox.end(signal.SIGKILL)
        with sandbox.log.open("ab") as log:
            log.write(b'{"seq": 2, "at"')
        sandbox.start()
        assert [entry["key"] for entry in sandbox.entries()] == ["whole"]
        assert sandbox.post("reservations/put", TABLE).json()["result"]["id"] == "R2"
        assert len([orjson.loads(line) for line in sandbox.log.read_bytes().splitlines()]) == 2


def test_a_damaged_log_stops_the_start(tmp_path: Path) -> None:
    log = tmp_path / "effects.jsonl"
    log.write_bytes(b"not json\n{}\n")
    ended = subprocess.run(SandboxProcess(log).command(), capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2
    assert "line 1 is damaged" in ended.stderr


def test_two_processes_never_share_a_log(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox:
        second = subprocess.run(SandboxProcess(sandbox.log).command(), capture_output=True, text=True, timeout=20)
    assert second.returncode == 2
    assert "another process uses this log" in second.stderr


def test_it_ends_by_itself_when_asked(tmp_path: Path) -> None:
    with running_sandbox(tmp_path) as sandbox:
        sandbox.post("reservations/put", TABLE)
        assert sandbox.end(signal.SIGTERM) in (0, -signal.SIGTERM)

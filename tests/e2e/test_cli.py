"""The command line against a running stack, from the first event to what did not go the usual way."""

import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import orjson
import pytest

from libs.contracts.codec import encode
from libs.contracts.envelope import Envelope
from tests.support.eventually import eventually_sync
from tests.support.servers import Servers
from tests.support.stages import Stage
from turnkeeper import cli
from turnkeeper.client import Client, over_amqp
from turnkeeper.demo.scenario import Settings
from turnkeeper.stack import Stack
from turnkeeper.target import of_stack

pytestmark = pytest.mark.engine
Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def stack(servers: Servers) -> Iterator[Stack]:
    made = Stage(servers)
    yield made.of(Settings())
    made.close()


@pytest.fixture
def told(stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with --json; its objects. Another status than the wanted one fails with what it said."""
    for name in ("INGRESS_URL", "SESSION_URL", "CONSENT_URL", "TOOLS_URL", "AMQP_URL", "NAMESPACE"):
        monkeypatch.delenv(f"TURNKEEPER_{name}", raising=False)
    monkeypatch.setenv("TURNKEEPER_STATE", str(stack.state))

    def run(*arguments: str, status: int = 0) -> list[Any]:
        capsys.readouterr()
        got = cli.run([*arguments, "--json"])
        shown = capsys.readouterr()
        assert got == status, shown.err
        run.err = shown.err  # type: ignore[attr-defined]
        return [json.loads(line) for line in shown.out.splitlines()]

    return run


@pytest.fixture
def session(told: Run) -> str:
    name = f"s-{secrets.token_hex(4)}"
    told("session", "create", name, "--owner", "ana")
    return name


def kinds(told: Run, session: str) -> list[str]:
    return [line["kind"] for line in told("timeline", session)]


def booked(told: Run, session: str, party: int = 4) -> str:
    """Ana books a table; its id in the world."""
    told("say", session, f"Book Fri 19:00 for {party}", "--as", "ana")
    eventually_sync(lambda: "turn.done" in kinds(told, session))
    line = next(line for line in told("timeline", session) if line["kind"] == "tool.committed")
    return str(line["text"].rpartition(" ")[2])


def offer(reservation: str, party: int = 4) -> str:
    return json.dumps({"reservation": reservation, "offer": {"party": party, "day": "Sat", "time": "20:30"}})


def ask(told: Run, session: str, via: str = "amqp") -> dict[str, Any]:
    """The restaurant offers another table; the question that follows."""
    event = f"e-{secrets.token_hex(4)}"
    data = offer(booked(told, session))
    told("publish", "restaurant", "--id", event, "--type", "offer.other", "--data", data, "--via", via)
    return eventually_sync(lambda: told("actions", session))[0]  # type: ignore[no-any-return]


def test_from_an_event_on_the_exchange_to_one_effect(told: Run, session: str) -> None:
    asked = ask(told, session)
    assert "table for 4 people on Sat at 20:30" in asked["question"]
    assert asked in told("actions")
    receipt = told("accept", session, "A1", "--as", "ana")
    eventually_sync(lambda: kinds(told, session).count("turn.done") == 2)
    assert told("accept", session, "A1", "--as", "ana") == receipt
    ledger = told("operations", session)
    assert [(one["tool"], one["state"], one["action"]) for one in ledger] == [
        ("reserve_table", "committed", ""),
        ("reserve_table", "committed", "A1"),
    ]
    shown = next(one for one in told("sessions") if one["session"] == session)
    assert (shown["owner"], shown["turn"], shown["open_actions"]) == ("ana", None, [])


def test_a_session_is_replayed_by_todays_rules_and_by_others(
    told: Run, session: str, stack: Stack, tmp_path: Path
) -> None:
    ask(told, session)
    told("accept", session, "A1", "--as", "ana")
    eventually_sync(lambda: kinds(told, session).count("turn.done") == 2)
    (summary,) = told("replay", session)
    assert summary["differences"] == 0
    assert summary["replayed"] == summary["recorded"] > 5
    assert told("replay", session, "--plan-again") == [summary]
    shutil.copytree(stack.config.parent, tmp_path / "next")
    rules = tmp_path / "next" / "rules.yaml"
    text = rules.read_text()
    assert "reserve_table, args: {party" in text
    rules.write_text(text.replace("reserve_table, args: {party", "sunset, args: {x"))
    config = str(tmp_path / "next" / stack.config.name)
    assert told("replay", session, "--config", config) == [summary], "plans are those of the record"
    *found, summary = told("replay", session, "--config", config, "--plan-again", status=1)
    assert summary["differences"] > 0
    assert found[0]["version"] == 0
    assert "turn.failed" in str(found)


def test_a_declined_question_does_nothing(told: Run, session: str) -> None:
    ask(told, session, via="http")
    assert told("decline", session, "A1", "--as", "ana")[0]["state"] == "declined"
    eventually_sync(lambda: "action.declined" in kinds(told, session))
    assert len(told("operations", session)) == 1
    told("accept", session, "A1", "--as", "ana", status=1)
    assert "409 decided-otherwise" in told.err  # type: ignore[attr-defined]


def test_only_the_owner_speaks_and_decides(told: Run, session: str) -> None:
    told("say", session, "hello", "--as", "ben", status=1)
    assert "403" in told.err  # type: ignore[attr-defined]
    ask(told, session)
    told("accept", session, "A1", "--as", "ben", status=1)
    assert "403 not-the-approver" in told.err  # type: ignore[attr-defined]


def test_a_message_with_the_same_id_is_said_once(told: Run, session: str) -> None:
    first = told("say", session, "hello", "--as", "ana", "--id", "m1")
    again = told("say", session, "hello", "--as", "ana", "--id", "m1")
    assert (first[0]["status"], again[0]["status"]) == ("accepted", "duplicate")


def test_cancel_is_told_in_the_session(told: Run, session: str) -> None:
    told("cancel", session, "--as", "ana")
    eventually_sync(lambda: "reply" in kinds(told, session))


def test_the_timeline_can_be_followed(stack: Stack, told: Run, session: str) -> None:
    seen: list[str] = []

    def follow() -> None:
        with Client(of_stack(stack)) as client:
            for line in client.follow(session):
                seen.append(line.kind)
                if line.kind == "turn.done":
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    booked(told, session)
    thread.join(10)
    assert seen == kinds(told, session)


def test_what_is_held_can_be_released_to_its_session(told: Run, session: str) -> None:
    subject = f"x-{secrets.token_hex(4)}"
    answer = told("publish", "restaurant", "--id", subject, "--type", "table.note", "--data", offer(subject))
    assert answer[0]["status"] == "held"
    assert subject in [one["event"] for one in told("held", "list")]
    released = told("held", "release", f"reservation:{subject}", "--session", session)
    assert released[0]["released"] == 1
    eventually_sync(lambda: "turn.done" in kinds(told, session))
    assert subject not in [one["event"] for one in told("held", "list")]


def test_what_is_in_quarantine_can_be_looked_at_and_released(told: Run, session: str) -> None:
    event = f"q-{secrets.token_hex(4)}"
    reservation = booked(told, session)
    head = ("publish", "restaurant", "--id", event, "--type", "table.note", "--data")
    told(*head, json.dumps({"reservation": reservation, "text": "one"}))
    other = told(*head, json.dumps({"reservation": reservation, "text": "two"}))
    assert other[0]["status"] == "quarantined"
    entry = next(one for one in told("quarantine", "list") if one["event"] == event)
    assert "two" in told("quarantine", "show", entry["id"])[0]["body"]
    told("quarantine", "release", entry["id"])
    eventually_sync(lambda: kinds(told, session).count("turn.done") == 3)
    assert event not in [one["event"] for one in told("quarantine", "list")]


def bury(stack: Stack, session: str, kind: str, body: dict[str, Any], routing_key: str, exchange: str) -> str:
    """Put a letter on the dead queue, as a service does; its id."""
    message = Envelope(id=f"m-{secrets.token_hex(6)}", type=kind, session=session, body=body, at=1)
    letter = Envelope(
        id=f"l-{secrets.token_hex(6)}",
        type="dead.letter.v1",
        session=session,
        at=int(time.time() * 1000),
        body={
            "service": "tools",
            "reason": "attempts_spent",
            "detail": "a test",
            "exchange": exchange,
            "routing_key": routing_key,
            "message": orjson.loads(encode(message)),
        },
    )
    target = of_stack(stack)

    async def publish() -> None:
        async with await aio_pika.connect(target.amqp_url()) as connection:
            channel = await connection.channel()
            exchange = await channel.get_exchange(target.topology().dead, ensure=False)
            await exchange.publish(aio_pika.Message(encode(letter)), "")

    over_amqp(target, publish())
    return letter.id


def test_dead_letters_are_looked_at_without_being_taken(stack: Stack, told: Run, session: str) -> None:
    first = bury(stack, session, "tools.withdraw_operation.v1", {}, "tools", of_stack(stack).topology().work)
    second = bury(stack, session, "tools.withdraw_operation.v1", {}, "tools", of_stack(stack).topology().work)
    for _ in range(2):
        assert [one["id"] for one in told("dead", "list") if one["session"] == session] == [first, second]
    assert told("dead", "show", first)[0]["reason"] == "attempts_spent"
    told("dead", "drop", first)
    assert [one["id"] for one in told("dead", "list") if one["session"] == session] == [second]
    told("dead", "drop", second)
    told("dead", "drop", second, status=1)
    assert "dead list" in told.err  # type: ignore[attr-defined]


def test_a_dead_letter_is_sent_again_to_where_it_came_from(stack: Stack, told: Run, session: str) -> None:
    body = {"operation": "O1", "key": "k1", "not_after": int(time.time() * 1000) + 60_000}
    letter = bury(stack, session, "tools.withdraw_operation.v1", body, "tools", of_stack(stack).topology().work)
    told("dead", "replay", letter)
    eventually_sync(lambda: [one["state"] for one in told("operations", session)] == ["withdrawn"])
    assert letter not in [one["id"] for one in told("dead", "list")]


def test_what_had_its_effect_is_not_sent_again(stack: Stack, told: Run, session: str) -> None:
    booked(told, session)
    operation = told("operations", session)[0]
    topology = of_stack(stack).topology()
    run = bury(stack, session, "tools.run_step.v1", {"key": operation["key"]}, "tools", topology.work)
    told("dead", "replay", run, status=1)
    assert "O1 is committed" in told.err  # type: ignore[attr-defined]
    folded = bury(stack, session, "ingress.input_accepted.v1", {"input": {"number": 1}}, "p00", topology.sessions)
    told("dead", "replay", folded, status=1)
    assert "folded in" in told.err  # type: ignore[attr-defined]
    for letter in (run, folded):
        told("dead", "drop", letter)


def test_the_doctor_finds_nothing_wrong_and_then_what_is(stack: Stack, told: Run, session: str) -> None:
    assert all(finding["well"] for finding in told("doctor"))
    letter = bury(stack, session, "tools.withdraw_operation.v1", {}, "tools", of_stack(stack).topology().work)
    wrong = [finding for finding in told("doctor", status=1) if not finding["well"]]
    assert [finding["what"] for finding in wrong] == ["dead letters"]
    assert "turnkeeper dead list" in wrong[0]["todo"]
    told("dead", "drop", letter)


def test_a_service_that_was_killed_is_seen(stack: Stack, told: Run) -> None:
    stack.kill_service("consent-0")
    try:
        by_name = {one["name"]: one for one in told("status", status=1)}
        assert (by_name["consent-0"]["runs"], by_name["consent-0"]["ready"]) == (False, False)
        assert by_name["tools-0"]["ready"]
        wrong = [finding["what"] for finding in told("doctor", status=1) if not finding["well"]]
        assert "process consent-0" in wrong
    finally:
        stack.start_service("consent-0")
    assert all(one["ready"] for one in told("status"))


def test_a_token_of_the_command_line_is_the_users(stack: Stack, told: Run, session: str) -> None:
    made = told("token", "ana")[0]
    answer = httpx2.get(
        f"{stack.url('consent')}/v1/sessions/{session}/actions", headers={"authorization": f"Bearer {made['token']}"}
    )
    assert answer.json() == {"actions": []}
    told("token", "not a user", status=1)


def test_a_scenario_plays_on_a_running_stack(told: Run, stack: Stack, tmp_path: Path) -> None:
    played = told("demo", "twice", "--on-running")
    assert played[0]["world"][0].endswith("R1 Fri 19:00 x4; R2 Sat 20:30 x4")


def test_a_wrong_namespace_and_what_amqp_cannot_carry_are_told(told: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told("publish", "restaurant", "--via", "amqp", "--type", "x" * 300, status=1)
    assert "AMQP cannot carry this" in told.err  # type: ignore[attr-defined]
    monkeypatch.setenv("TURNKEEPER_NAMESPACE", "nowhere")
    told("dead", "list", status=1)
    assert "no queue 'nowhere.turnkeeper.dead'" in told.err  # type: ignore[attr-defined]
    told("publish", "restaurant", "--via", "amqp", status=1)
    assert "no exchange 'nowhere.turnkeeper.events'" in told.err  # type: ignore[attr-defined]
    told("doctor", status=1)


def test_a_session_that_is_not_there_has_no_operations_to_show(told: Run) -> None:
    told("operations", f"no-{secrets.token_hex(4)}", status=1)
    assert "404" in told.err  # type: ignore[attr-defined]

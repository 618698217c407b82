"""The command line as people and programs meet it: help that teaches, faults in one line, one JSON object a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aio_pika
import httpx2
import orjson
import pytest

from libs.contracts.application import load_application
from libs.contracts.codec import to_json
from libs.contracts.topology import Topology
from libs.runtime.composer import Composer
from services.session.domain import Arrived
from services.session.domain.plan import Plan
from services.session.domain.rules import Rules
from services.session.record import Recorder
from services.session.snapshot import Snapshot
from tests.support.session import ANA, FakeClock, Talk, make_input
from turnkeeper import cli
from turnkeeper.cli import options
from turnkeeper.client import Client, ClientError, over_amqp
from turnkeeper.demo import scenario as scenarios
from turnkeeper.target import DINNER, Target

COMMANDS = """init|up|down|status|doctor|demo|publish|say|cancel|actions|accept|decline|standing list|standing grant|
standing revoke|sessions|session create|timers|
timeline|explain|operations|resolve|pause|resume|replay|dead list|dead show|dead replay|dead drop|quarantine list|
quarantine show|quarantine release|held list|held release|token|secrets init|tools import openapi|
tools import mcp"""
ALL = [command.strip() for command in COMMANDS.split("|")]
Handler = Callable[[httpx2.Request], httpx2.Response]
Speak = Callable[[Handler], None]


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Speak:
    """Let the commands speak to a handler instead of a deployment."""

    def use(handler: Handler) -> None:
        target = Target(
            urls={name: f"http://{name}" for name in ("ingress", "session", "consent", "tools")},
            config=DINNER,
            user_secret="u" * 32,
            operator="operator",
            environment={"RESTAURANT_SECRET": "whsec_" + "QUFB" * 10},
        )
        transport = httpx2.MockTransport(handler)
        monkeypatch.setattr(options, "find_target", lambda state: target)
        monkeypatch.setattr(options, "Client", lambda found: Client(found, httpx2.Client(transport=transport)))

    return use


def problem(status: int, code: str, title: str) -> httpx2.Response:
    return httpx2.Response(status, json={"type": f"https://turnkeeper.dev/problems/{code}", "title": title})


@pytest.mark.parametrize("command", ALL)
def test_every_command_teaches_by_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: turnkeeper" in shown
    assert "Example" in shown, "the help has no example"
    assert f"turnkeeper {command}" in " ".join(shown.split()), "the example does not show the command"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "nonsense"),
        (["say", "dinner"], "text"),
        (["say", "dinner", "text"], "--as"),
        (["publish", "restaurant", "--via", "pigeon"], "pigeon"),
        (["up", "--replicas", "0"], "--replicas"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert says in told.err
    assert "--help" in told.err


@pytest.mark.parametrize(
    "arguments",
    [["sessions"], ["timeline", "dinner"], ["accept", "dinner", "A1", "--as", "ana"], ["dead", "list"], ["status"]],
)
def test_without_a_stack_each_command_says_how_to_get_one(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("INGRESS_URL", "SESSION_URL", "CONSENT_URL", "TOOLS_URL", "AMQP_URL"):
        monkeypatch.delenv(f"TURNKEEPER_{name}", raising=False)
    monkeypatch.setenv("TURNKEEPER_STATE", str(tmp_path / "none"))
    assert cli.run(arguments) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "turnkeeper up" in told.err


def test_a_service_that_does_not_answer_is_one_line(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    def gone(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    speak(gone)
    assert cli.run(["sessions"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "session at http://session does not answer" in told
    assert "turnkeeper doctor" in told


def test_a_refusal_tells_the_problem(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    speak(lambda request: problem(403, "not-the-owner", "This session belongs to another user"))
    assert cli.run(["say", "dinner", "hello", "--as", "ben"]) == 1
    assert capsys.readouterr().err == "turnkeeper: This session belongs to another user (403 not-the-owner)\n"


def test_what_a_service_says_cannot_speak_to_the_terminal(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    speak(lambda request: problem(409, "taken", "no\x1b[2Jno"))
    assert cli.run(["sessions"]) == 1
    held = {"source": "restaurant", "event": "e\x1b[2J", "type": "", "subject": "s", "session": "", "deadline": 1}
    speak(lambda request: httpx2.Response(200, json={"held": [held]}))
    assert cli.run(["held", "list"]) == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "\\u{1B}" in told.out
    assert "\\u{1B}" in told.err


def test_accept_fetches_the_question_and_binds_the_yes_to_it(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[Any] = []

    def consent(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"question": "A1: book\x1b[31m it?", "question_digest": "d" * 64})
        sent.append((request.headers["authorization"], json.loads(request.content)))
        return httpx2.Response(200, json={"state": "accepted", "by": "ana", "decided_at": 1_800_000_000_000})

    speak(consent)
    assert cli.run(["accept", "dinner", "A1", "--as", "ana"]) == 0
    assert sent[0][1] == {"decision": "accept", "question_digest": "d" * 64}
    assert sent[0][0].startswith("Bearer ey")
    shown = capsys.readouterr().out
    assert "question: A1: book\\u{1B}[31m it?" in shown, "what a stranger wrote must not speak to the terminal"
    assert "A1 accepted by ana" in shown


def test_a_rejected_event_is_a_fault_and_a_duplicate_is_none(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    speak(lambda request: httpx2.Response(200, json={"status": "duplicate", "id": "x"}))
    assert cli.run(["publish", "restaurant", "--id", "e1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["event"], told["http"]) == ("duplicate", "e1", 200)
    speak(lambda request: problem(401, "not-verified", "The delivery could not be verified"))
    assert cli.run(["publish", "restaurant", "--id", "e1"]) == 1
    assert "401 not-verified" in capsys.readouterr().err


def test_an_unknown_source_and_data_that_is_no_json_are_told(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    speak(lambda request: httpx2.Response(500))
    assert cli.run(["publish", "nobody"]) == 1
    assert "restaurant" in capsys.readouterr().err
    assert cli.run(["publish", "restaurant", "--data", "{reservation: R1}"]) == 1
    assert "not JSON" in capsys.readouterr().err


def test_the_timeline_is_one_object_a_line_for_programs(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"seq": 1, "at": 5, "kind": "input", "text": "ana: hello\nthere", "origin": "user"},
        {"seq": 2, "at": 6, "kind": "turn.start", "text": "origin=restaurant", "turn": "T1"},
    ]
    speak(lambda request: httpx2.Response(200, json={"lines": lines}))
    assert cli.run(["timeline", "dinner", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert set(shown[0]) == {
        "seq", "at", "kind", "text", "turn", "origin", "event", "action", "operation", "cause"
    }  # fmt: skip
    assert cli.run(["timeline", "dinner"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "  1 input             ana: hello\\u{A}there",
        "  2 turn.start        origin=restaurant",
    ]


def test_pending_timers_are_a_table_for_people_and_whole_for_programs(
    speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {
        "timer": "tm1", "next": 1_800_000_000_000, "rule": "FREQ=DAILY", "zone": "Europe/Berlin", "due": 1,
        "misfire": "skip", "lateness": 5, "subject": "", "data": {"text": "pick\x1b[2J"}, "setter": "user app ana",
        "operation": "O1", "set_at": 1, "fired": 2, "skipped": 0,
    }  # fmt: skip
    asked: list[tuple[str, str]] = []

    def ingress(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.url.host, request.url.path))
        return httpx2.Response(200, json={"timers": [one]})

    speak(ingress)
    assert cli.run(["timers", "dinner", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == one
    assert cli.run(["timers", "dinner"]) == 0
    shown = capsys.readouterr().out
    assert "tm1" in shown
    assert "\x1b" not in shown
    assert asked == [("ingress", "/v1/sessions/dinner/timers")] * 2
    speak(lambda request: httpx2.Response(200, json={"timers": []}))
    assert cli.run(["timers", "dinner"]) == 0
    assert capsys.readouterr().out == "no timer is pending\n"


def test_explain_sends_the_event_and_shows_what_would_be(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[Any] = []

    def session(request: httpx2.Request) -> httpx2.Response:
        sent.append((request.method, request.url.path, request.headers["authorization"], json.loads(request.content)))
        findings = [{"about": "route", "says": "by reservation:R1", "rule": "sources.restaurant.route"}]
        return httpx2.Response(200, json={"session": "dinner", "findings": findings})

    speak(session)
    event = {"source": "restaurant", "type": "table.gone", "data": {}}
    assert cli.run(["explain", "dinner", "--event", json.dumps(event), "--json"]) == 0
    assert sent == [("POST", "/v1/sessions/dinner/explain", "Bearer operator", event)]
    assert json.loads(capsys.readouterr().out)["rule"] == "sources.restaurant.route"
    assert cli.run(["explain", "dinner", "--event", json.dumps(event)]) == 0
    assert "by reservation:R1" in capsys.readouterr().out


@pytest.mark.parametrize("event", ["{source: x}", "[]", '"x"'])
def test_explain_wants_an_object(event: str, speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    speak(lambda request: httpx2.Response(500))
    assert cli.run(["explain", "dinner", "--event", event]) == 1
    assert "--event" in capsys.readouterr().err


def test_resolve_sends_the_operators_word(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[Any] = []

    def tools(request: httpx2.Request) -> httpx2.Response:
        sent.append((request.url.path, request.headers["authorization"], json.loads(request.content)))
        return httpx2.Response(200, json={"operation": "O3", "tool": "reserve_table", "state": "committed"})

    speak(tools)
    assert cli.run(["resolve", "dinner", "O3", "committed", "--note", "they say so"]) == 0
    path = "/v1/sessions/dinner/operations/O3/resolve"
    assert sent == [(path, "Bearer operator", {"state": "committed", "note": "they say so"})]
    assert "dinner O3 (reserve_table): committed" in capsys.readouterr().out


PAUSED = {
    "kind": "tool", "name": "reserve_table", "by": "operator", "note": "twice", "stopped": True, "in_flight": [],
    "waiting": 2, "waits": [],
}  # fmt: skip


def test_pause_asks_until_no_send_begins_any_more(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    flying = [{"session": "s1", "operation": "O3", "tool": "reserve_table"}]
    answers = [(202, {"stopped": False}), (200, {"in_flight": flying}), (200, {})]
    sent: list[Any] = []

    def tools(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        status, told = answers[len(sent) - 1]
        return httpx2.Response(status, json={**PAUSED, **told})

    speak(tools)
    assert cli.run(["pause", "tool", "reserve_table", "--note", "twice"]) == 0
    assert len(sent) == 3
    assert [sent[0][name] for name in ("kind", "name", "note")] == ["tool", "reserve_table", "twice"]
    assert "tool reserve_table paused by operator: twice (2 waiting)" in capsys.readouterr().out


def test_pause_names_what_was_sent_before_and_has_no_answer(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    flying = [{"session": "s1", "operation": "O3", "tool": "reserve_table"}]
    speak(lambda _: httpx2.Response(201, json={**PAUSED, "in_flight": flying}))
    assert cli.run(["pause", "tool", "reserve_table", "--wait", "0"]) == 0
    assert "sent before, without an answer yet: s1 O3 reserve_table" in capsys.readouterr().out


def test_pause_alone_lists_and_resume_ends(speak: Speak, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[tuple[str, str]] = []

    def tools(request: httpx2.Request) -> httpx2.Response:
        sent.append((request.method, request.url.path))
        if request.method == "GET":
            return httpx2.Response(200, json={"pauses": [PAUSED]})
        ended = {"kind": "all", "name": "", "ended": len(sent) == 2, "released": 2}
        return httpx2.Response(200, json=ended)

    speak(tools)
    assert cli.run(["pause"]) == 0
    assert cli.run(["resume", "all"]) == 0
    assert cli.run(["resume", "all"]) == 0
    assert sent == [("GET", "/v1/pauses"), ("DELETE", "/v1/pauses/all"), ("DELETE", "/v1/pauses/all")]
    out = capsys.readouterr().out
    assert "tool reserve_table paused by operator" in out
    assert "all goes on; 2 waiting calls with it" in out
    assert "all was not paused" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pause", "world", "x"], "there is no kind 'world'"),
        (["pause", "all", "x"], "all has no name"),
        (["pause", "tool"], "say which tool"),
        (["resume"], "say what"),
        (["resume", "session"], "say which session"),
    ],
)
def test_what_cannot_be_paused_is_a_fault_in_one_line(
    words: list[str], says: str, speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    speak(lambda _: httpx2.Response(500))
    assert cli.run(words) == 1
    assert says in capsys.readouterr().err


def record_of(*texts: str) -> dict[str, Any]:
    """A record of messages to the dinner application that nothing came of but a reply."""
    rules = Rules(load_application(DINNER), lambda tool, args: [], operation_wait_ms=1, not_after_ms=1)
    talk = Talk(rules=rules, planner=lambda turn, body: Plan(reply=f"{body.data['text']}?" if body else ""))
    recorder, entries = Recorder(rules), []
    composer = Composer(Topology(), FakeClock())
    for version, text in enumerate(texts):
        snapshot = Snapshot(talk.state, version, [], recorded=version > 0)
        decision = talk.give(Arrived(make_input(version + 1, "message", ANA, {"text": text})))
        sent = [composer.compose(send.message, session="s1", id_parts=send.id_parts) for send in decision.sends]
        after = to_json(decision.state, exclude_defaults=True)
        entries.append(orjson.loads(recorder.entry(snapshot, decision, sent, after).raw))
    state = talk.state.model_dump(mode="json", exclude_defaults=True)
    return {"session": "s1", "version": len(texts), "state": state, "entries": entries}


def test_a_replay_without_differences_is_one_sentence_and_status_0(
    speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.url.path, request.headers["authorization"]))
        return httpx2.Response(200, json=record_of("hello", "again"))

    speak(answer)
    assert cli.run(["replay", "s1"]) == 0
    assert capsys.readouterr().out == "2 of 2 recorded commits of s1 decided again: no difference\n"
    assert asked == [("/v1/sessions/s1/record", "Bearer operator")]


def test_a_replay_with_other_plans_shows_what_differs_and_ends_with_1(
    speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    speak(lambda request: httpx2.Response(200, json=record_of("hello")))
    assert cli.run(["replay", "s1", "--plan-again"]) == 1
    told = capsys.readouterr()
    assert "line" in told.out
    assert "reply hello?" in told.out
    assert "reply I do not know" in told.out
    assert "from version 0 on (Arrived 1 message e1 from app)" in told.out
    assert "the states" not in told.out
    assert cli.run(["replay", "s1", "--plan-again", "--json"]) == 1
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown[0].keys() == {"kind", "version", "at", "input", "what", "recorded", "today"}
    assert [line["kind"] for line in shown] == ["difference", "summary"]
    assert (shown[-1]["differences"], shown[-1]["replayed"]) == (1, 1)


@pytest.mark.parametrize(
    ("record", "options", "says"),
    [
        ({"session": "s1", "version": 0, "entries": []}, [], "nothing is recorded of s1"),
        ({"session": "s1", "version": 1, "entries": [{"colour": "red"}]}, [], "the record cannot be read"),
        ({"session": "s1", "version": 0, "entries": []}, ["--config", "/nowhere/x.yaml"], "/nowhere/x.yaml"),
    ],
)
def test_a_replay_that_cannot_be_is_one_line(
    record: Any, options: list[str], says: str, speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    speak(lambda request: httpx2.Response(200, json=record))
    assert cli.run(["replay", "s1", *options]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert says in told.err


def test_the_list_of_scenarios_is_one_name_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo", "--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == scenarios.names()
    assert shown[0] == "offer"


def test_a_scenario_with_settings_is_refused_on_a_running_stack(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo", "offer-by-role", "--on-running"]) == 1
    assert "without --on-running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["timeline", "a/../b"], "'a/../b' cannot be a session's id"),
        (["operations", ""], "'' cannot be a session's id"),
        (["accept", "dinner", "A1?x", "--as", "ana"], "cannot be an action's id"),
        (["say", "dinner", "hello", "--as", "a b"], "'a b' cannot be a user's id: letters, digits, - and _"),
        (["session", "create", "dinner", "--owner", "a.b"], "cannot be a user's id"),
        (["resolve", "dinner", "O3/../O4", "failed", "--note", "n"], "cannot be an operation's id"),
        (["say", "dinner", "hello", "--as", "ana", "--id", ""], "nothing cannot be a key"),
        (["publish", "restaurant", "--id", ""], "nothing cannot be an event's id"),
        (["publish", "restaurant", "--id", "a\nb"], "cannot be an event's id"),
        (["say", "dinner", "hello", "--as", "ana", "--id", "käse"], "HTTP cannot carry this to ingress"),
    ],
)
def test_an_id_that_can_be_none_is_told_before_anything_is_sent(
    arguments: list[str], says: str, speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    speak(lambda request: pytest.fail(f"sent {request.url}"))
    assert cli.run(arguments) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_an_event_id_is_one_segment_of_its_path() -> None:
    seen: list[bytes] = []

    def ingress(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.raw_path)
        return httpx2.Response(200, json={})

    target = Target(urls={"ingress": "http://ingress"}, config=DINNER, operator="operator")
    with Client(target, httpx2.Client(transport=httpx2.MockTransport(ingress))) as client:
        client.event_outcome("restaurant", "a/../b?c")
    assert seen == [b"/v1/events/restaurant/a%2F..%2Fb%3Fc"]


def test_what_amqp_cannot_carry_and_what_the_broker_has_not_is_one_line() -> None:
    target = Target(urls={}, config=DINNER, amqp="amqp://there:5672/", namespace="staging")

    async def fails(error: Exception) -> None:
        raise error

    with pytest.raises(ClientError, match="AMQP cannot carry this"):
        over_amqp(target, fails(ValueError("routing key too long")))
    told = "NOT_FOUND - no queue 'staging.turnkeeper.dead' in vhost '/'"
    with pytest.raises(ClientError, match=r"has no queue 'staging\.turnkeeper\.dead'.*'staging'.*TURNKEEPER_NAMESPACE"):
        over_amqp(target, fails(aio_pika.exceptions.ChannelNotFoundEntity(told)))


def test_a_fault_of_ours_is_one_line_and_its_traceback_is_kept(
    speak: Speak, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(request: httpx2.Request) -> httpx2.Response:
        raise KeyError("unforeseen")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    speak(breaks)
    assert cli.run(["sessions"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "a fault of ours" in told
    kept = next(tmp_path.glob("turnkeeper-fault-*"))
    assert str(kept) in told
    assert "Traceback" in kept.read_text()
    monkeypatch.setenv("TURNKEEPER_DEBUG", "1")
    assert cli.run(["sessions"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_folder_without_a_stack_cannot_be_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["down", "--state", str(tmp_path / "typo")]) == 1
    assert "there is no stack in" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_operations_of_a_session_that_is_not_there_are_a_fault(
    speak: Speak, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "tools":
            return httpx2.Response(200, json={"operations": []})
        return problem(404, "no-such-session", "There is no such session")

    speak(answer)
    assert cli.run(["operations", "nosuch"]) == 1
    assert "404 no-such-session" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["sessions", "actions", "operations"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_list_that_was_cut_says_so(
    command: str, count: int, speak: Speak, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "MOST_SESSIONS", 3)
    shown = {"session": "s", "owner": "ana", "turn": None, "queued": 0, "open_actions": [], "applied": 0}

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/sessions":
            return httpx2.Response(200, json={"sessions": [f"s{n}" for n in range(count)]})
        return httpx2.Response(200, json={**shown, "actions": [], "operations": []})

    speak(answer)
    assert cli.run([command, "--json"]) == 0
    assert ("only the newest 3 sessions" in capsys.readouterr().err) == (count == 3)

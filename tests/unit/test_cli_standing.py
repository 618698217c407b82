"""`turnkeeper standing`: what is typed becomes the wish that consent is sent, and what cannot be meant is one line."""

import json
import time
from typing import Any

import httpx2
import pytest

from turnkeeper import cli
from turnkeeper.cli import options
from turnkeeper.client import Client
from turnkeeper.target import DINNER, Target

SHOWN = {
    "id": "S1", "tool": "reserve_table", "limits": {"party": {"maximum": 6}}, "sources": ["restaurant"], "uses": 2,
    "left": 1, "begins_at": 0, "ends_at": 1_900_000_000_000, "made_at": 1, "revoked_at": 0, "state": "live",
    "used": [{"operation": "O3", "session": "dinner", "source": "restaurant", "at": 1_800_000_000_000,
              "args": {"party": 4}, "state": "spent"}],
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[httpx2.Request]:
    """What consent was asked."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"standing": [SHOWN]} if request.method == "GET" else SHOWN)

    target = Target(
        urls={name: f"http://{name}" for name in ("ingress", "session", "consent", "tools")}, config=DINNER,
        user_secret="u" * 32, operator="operator", environment={},
    )  # fmt: skip
    monkeypatch.setattr(options, "find_target", lambda state: target)
    monkeypatch.setattr(
        options, "Client", lambda found: Client(found, httpx2.Client(transport=httpx2.MockTransport(answer)))
    )
    return seen


def granted(asked: list[httpx2.Request], *arguments: str) -> dict[str, Any]:
    before = int(time.time() * 1000)
    assert cli.run(["standing", "grant", "reserve_table", "--as", "ana", "--for", "1h", *arguments]) == 0
    wish: dict[str, Any] = json.loads(asked[-1].content)
    assert before + 3_600_000 <= wish.pop("ends_at") <= int(time.time() * 1000) + 3_600_000
    return wish


def test_a_wish_is_what_was_typed(asked: list[httpx2.Request], capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--limit", 'party={"maximum": 6}', "--limit", "day=Fri", "--limit", "time=20", "--any", "note"]
    wish = granted(asked, *limits, "--uses", "2", "--source", "restaurant", "--key", "k1")
    assert wish == {
        "tool": "reserve_table", "uses": 2, "sources": ["restaurant"],
        "limits": {"note": {}, "party": {"maximum": 6}, "day": {"const": "Fri"}, "time": {"const": 20}},
    }  # fmt: skip
    assert (asked[-1].method, asked[-1].url.path) == ("POST", "/v1/users/ana/standing")
    assert asked[-1].headers["idempotency-key"] == "k1"
    assert asked[-1].headers["authorization"] != "Bearer operator"
    assert "S1: reserve_table, 1 of 2 uses left" in capsys.readouterr().out


def test_each_wish_has_a_key_of_its_own(asked: list[httpx2.Request]) -> None:
    granted(asked)
    granted(asked)
    first, second = (request.headers["idempotency-key"] for request in asked)
    assert first != second


def test_a_list_shows_what_is_granted_and_each_use(
    asked: list[httpx2.Request], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["standing", "list", "--as", "ana"]) == 0
    shown = capsys.readouterr().out
    for text in ("S1", "reserve_table", "live", "restaurant", "O3", "dinner", "spent"):
        assert text in shown
    assert cli.run(["standing", "list", "--as", "ana", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SHOWN


def test_a_revocation_names_the_approval(asked: list[httpx2.Request]) -> None:
    assert cli.run(["standing", "revoke", "S1", "--as", "ana"]) == 0
    assert (asked[-1].method, asked[-1].url.path) == ("DELETE", "/v1/users/ana/standing/S1")


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "--for 7d"),
        (["--for", "1h", "--until", "2027-01-01T12:00:00+01:00"], "--for 7d"),
        (["--for", "long"], "--for"),
        (["--until", "2027-01-01T12:00:00"], "offset"),
        (["--for", "1h", "--limit", "party"], "is no limit"),
        (["--for", "1h", "--limit", "party={maximum: 6}"], "not JSON"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    asked: list[httpx2.Request], capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.run(["standing", "grant", "reserve_table", "--as", "ana", *arguments]) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
    assert asked == []

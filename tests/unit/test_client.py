"""The two clients: the same requests, the same refusals, and a timeline that is followed across a cut."""

import asyncio
import contextlib
import doctest
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

import turnkeeper
from turnkeeper import async_client, calls, client, signing
from turnkeeper.scaffold import write_application
from turnkeeper.serving import planners, tools
from turnkeeper.target import DINNER, Target

D = "d" * 64
SECRET = "whsec_" + "QUFB" * 10
TARGET = Target(
    urls={name: f"http://{name}" for name in ("ingress", "session", "consent", "tools")},
    config=DINNER,
    user_secret="u" * 32,
    operator="operator",
    environment={"RESTAURANT_SECRET": SECRET},
)
BODY = {"status": "accepted", "sessions": ["s"], "actions": [], "lines": [], "operations": [], "state": "accepted"}
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("say", ("s", "hello", "ana", "k1"), {}),
    ("cancel", ("s", "ana", "k2"), {}),
    ("create_session", ("s", "ana"), {}),
    ("create_session", ("s", "ana"), {"trial": True}),
    ("sessions", (), {}),
    ("session", ("s",), {"user": "ana"}),
    ("timeline", ("s", 3), {}),
    ("actions", ("s",), {"user": "ana"}),
    ("action", ("s", "A1"), {}),
    ("operations", ("s", "unknown"), {}),
    ("operation", ("s", "O1"), {}),
    ("event_outcome", ("restaurant", "e1"), {}),
]
Handler = Callable[[httpx2.Request], httpx2.Response]


def sync(handler: Handler, **more: Any) -> turnkeeper.Client:
    return turnkeeper.Client(TARGET, httpx2.Client(transport=httpx2.MockTransport(handler)), **more)


def unsync(handler: Handler) -> turnkeeper.AsyncClient:
    return turnkeeper.AsyncClient(TARGET, httpx2.AsyncClient(transport=httpx2.MockTransport(handler)))


def noted(sent: list[Any]) -> Handler:
    def answer(request: httpx2.Request) -> httpx2.Response:
        kept = ("idempotency-key", "accept", "content-type", "webhook-id", "webhook-signature")
        who = "user" if request.headers.get("authorization", "").startswith("Bearer ey") else "other"
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        sent.append((request.method, str(request.url), request.content, who, headers))
        return httpx2.Response(200, json=BODY)

    return answer


@pytest.mark.parametrize(("name", "args", "keywords"), CALLS, ids=lambda part: part if isinstance(part, str) else "")
def test_both_clients_send_the_same_and_answer_the_same(name: str, args: Any, keywords: Any) -> None:
    one, other = [], []
    got = getattr(sync(noted(one)), name)(*args, **keywords)
    assert asyncio.run(getattr(unsync(noted(other)), name)(*args, **keywords)) == got
    assert one == other
    assert len(one) == 1


def test_whatever_the_async_client_can_the_sync_one_can_with_the_same_parameters() -> None:
    public = [name for name in vars(turnkeeper.AsyncClient) if not name.startswith("_")]
    assert len(public) > 14
    for name in public:
        one, other = (getattr(kind, name) for kind in (turnkeeper.Client, turnkeeper.AsyncClient))
        assert inspect.signature(one).parameters == inspect.signature(other).parameters, name


def test_a_decision_is_bound_to_the_question_and_carries_the_users_own_token() -> None:
    sent: list[Any] = []
    sync(noted(sent)).decide("s", "A1", "accept", "ana", D)
    ((method, url, content, who, _),) = sent
    assert (method, url, who) == ("POST", "http://consent/v1/sessions/s/actions/A1/decision", "user")
    assert orjson.loads(content) == {"decision": "accept", "question_digest": D}


@pytest.mark.parametrize("of", ["sync", "async"])
def test_a_refused_event_is_raised_with_its_id_and_code(of: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(401, json={"type": "https://turnkeeper.dev/problems/not-verified", "title": "No"})

    def publish() -> Any:
        made: Any = sync(answer) if of == "sync" else unsync(answer)
        sent = made.publish("restaurant", "offer.table", {}, id="e1")
        return asyncio.run(sent) if of == "async" else sent

    with pytest.raises(turnkeeper.Refused, match="restaurant e1: No") as caught:
        publish()
    assert (caught.value.status, caught.value.code) == (401, "not-verified")


def test_an_event_carries_no_token_and_a_users_token_may_come_from_the_application() -> None:
    seen: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("authorization"))
        return httpx2.Response(200, json=BODY)

    made = sync(answer, tokens=lambda user: f"token-of-{user}")
    made.publish("restaurant", "offer.table", {})
    made.say("s", "hello", "ana")
    made.actions("s")
    assert seen == [None, "Bearer token-of-ana", "Bearer operator"]


def line(seq: int, kind: str = "reply") -> dict[str, Any]:
    return {"seq": seq, "at": 1, "kind": kind, "text": f"line {seq}"}


def streams(asked: list[str]) -> Handler:
    """Each stream gives the next line and is cut."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if "text/event-stream" not in request.headers["accept"]:
            return httpx2.Response(200, json=BODY)
        asked.append(request.headers["last-event-id"])
        number = int(asked[-1]) + 1
        if number == 2 and asked.count("1") == 1:
            raise httpx2.ReadError("cut", request=request)
        told = f"id: {number}\nevent: line\ndata: {orjson.dumps(line(number)).decode()}\n\n: still here\n\n"
        return httpx2.Response(200, text=told, headers={"content-type": "text/event-stream"})

    return answer


def test_a_timeline_is_followed_across_a_cut_after_the_last_line_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AGAIN_SECONDS", 0)
    monkeypatch.setattr(async_client, "AGAIN_SECONDS", 0)
    one: list[str] = []
    with contextlib.closing(sync(streams(one)).follow("s")) as following:
        assert [next(following).seq for _ in range(3)] == [1, 2, 3]

    async def followed() -> list[int]:
        seen = []
        async with contextlib.aclosing(unsync(streams(other)).follow("s")) as lines:
            async for found in lines:
                seen.append(found.seq)
                if len(seen) == 3:
                    break
        return seen

    other: list[str] = []
    assert asyncio.run(followed()) == [1, 2, 3]
    assert one == other == ["0", "1", "1", "2"]


def test_a_line_that_never_comes_is_a_fault_that_names_the_last() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"lines": [line(4, "turn.failed")]})

    with pytest.raises(turnkeeper.ClientError, match=r"turn\.failed: line 4"):
        sync(answer).until("s", "reply", within=0)
    with pytest.raises(turnkeeper.ClientError, match=r"turn\.failed: line 4"):
        asyncio.run(unsync(answer).until("s", "reply", within=0))
    assert sync(answer).until("s", "turn.failed", within=0).seq == 4


def test_the_helper_signs_as_publish_does_and_as_the_reference_verifies() -> None:
    from standardwebhooks import Webhook

    made = turnkeeper.sign(SECRET, "offer.table", {"a": 1}, id="e1", source="restaurant")
    Webhook(SECRET).verify(made.body, dict(made.headers))
    seconds = int(made.headers["webhook-timestamp"])
    assert made == sync(noted([])).sign("restaurant", event="e1", type="offer.table", data={"a": 1}, seconds=seconds)
    block = {"scheme": "hmac", "header": "x-sig", "prefix": "sha256=", "signed": "{body}", "id": "{{ id }}"}
    assert turnkeeper.sign("secret", "a", {}, id="e1", verify=block).headers["x-sig"].startswith("sha256=")


@pytest.mark.parametrize("verify", [{"scheme": "none-such"}, {"scheme": "hmac"}, {"scheme": "user-token"}])
def test_what_cannot_be_signed_is_told_without_the_secret(verify: dict[str, Any]) -> None:
    with pytest.raises(turnkeeper.SigningError) as caught:
        turnkeeper.sign("my-own-secret", "a", {}, verify=verify)
    assert "my-own-secret" not in str(caught.value)


@pytest.mark.parametrize("module", [signing, planners, tools], ids=lambda module: module.__name__)
def test_the_examples_of_docstrings_that_need_no_stack_hold(module: Any) -> None:
    done = doctest.testmod(module)
    assert (done.failed, done.attempted > 0) == (0, True)


def test_every_public_name_can_be_had_and_no_other() -> None:
    assert all(getattr(turnkeeper, name) for name in turnkeeper.__all__)
    assert sorted(turnkeeper.__all__) == sorted(turnkeeper._HOME)
    with pytest.raises(AttributeError):
        turnkeeper.nothing  # noqa: B018
    root = Path(turnkeeper.__file__).parents[1]
    assert (root / "turnkeeper" / "py.typed").is_file()
    assert (root / "libs" / "py.typed").is_file()
    assert calls.Refused is turnkeeper.Refused


@pytest.fixture
def files() -> set[str]:
    return {".gitignore", "README.md", "orders.py", "rules.yaml", "test_application.py", "turnkeeper.yaml"}


def test_init_writes_into_a_new_folder_and_into_an_empty_one(tmp_path: Path, files: set[str]) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "deep" / "er"):
        assert {path.name for path in write_application(folder)} == files == {path.name for path in folder.iterdir()}


def test_init_changes_nothing_in_a_folder_that_holds_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from turnkeeper import cli

    (tmp_path / ".hidden").write_text("mine")
    for wrong in (tmp_path, tmp_path / ".hidden"):
        assert cli.run(["init", str(wrong)]) == 1
        told = capsys.readouterr()
        assert told.err.count("\n") == 1
        assert "name a new folder" in told.err
    assert [path.name for path in tmp_path.iterdir()] == [".hidden"]
    assert (tmp_path / ".hidden").read_text() == "mine"


def test_init_says_what_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from turnkeeper import cli

    assert cli.run(["init", str(tmp_path / "my agent")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("next: cd '")
    assert "turnkeeper up" in last

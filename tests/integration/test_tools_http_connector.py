"""The connector `http` against a real HTTP server in another process, whose ledger says what really happened."""

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from libs.contracts.application import HttpConnector as Configured
from libs.contracts.application import parse_application
from libs.runtime.clock import SystemClock
from libs.runtime.settings import SettingsError
from services.tools.connectors.http import HttpConnector, header_values, http_client
from services.tools.domain import Catalogue, Committed, Failed, NotSent, Outcome, Refused, Unknown
from services.tools.main import connect
from services.tools.ports import Call
from tests.support.api import ApiProcess, running_api

SECRET = "Bearer s3cr3t-t0ken"
ARGS = {"party": 4, "day": "Fri"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with running_api(tmp_path_factory.mktemp("api")) as running:
        yield running


class Tool:
    """The connector on one open client, as the door uses it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.client = http_client()
        self._numbers = 0

    async def run(self, *, timeout: float = 5.0, shop: str = "s1", **more: Any) -> Outcome:
        configured: dict[str, Any] = {"url": f"{self._url}/v1/shops/{{{{ shop }}}}/bookings"}
        configured |= {"body": {"party": "{{ party }}"}, "headers": {"Authorization": "env:TOKEN"}}
        known = {field.name for field in dataclasses.fields(Call)}
        chosen = Configured(**configured | {name: value for name, value in more.items() if name not in known})
        secrets, faults = header_values(chosen, {"TOKEN": SECRET})
        assert faults == []
        self._numbers += 1
        args = {**ARGS, "shop": shop, **more.get("args", {})}
        call = Call(
            "s1", "O1", "book", args, more.get("key", f"key{id(self)}-{self._numbers}"), timeout,
            actor=more.get("actor", "agent"), repeat=more.get("repeat", False),
        )  # fmt: skip
        return await HttpConnector(self.client, chosen, secrets).run(call)


@pytest.fixture
async def tool(api: ApiProcess) -> AsyncIterator[Tool]:
    made = Tool(api.url)
    yield made
    await made.client.aclose()


async def test_what_is_sent_is_what_the_file_says_with_key_actor_and_secret(api: ApiProcess, tool: Tool) -> None:
    outcome = await tool.run(key="k-1", actor="lena", shop="a/b c", query={"lang": "{{ day }}"}, headers={
        "Authorization": "env:TOKEN", "X-Day": "{{ day }}", "Accept": "application/hal+json",
    })  # fmt: skip
    assert isinstance(outcome, Committed)
    (sent,) = [request for request in api.requests() if request["headers"]["idempotency-key"] == '"k-1"']
    assert (sent["method"], sent["target"]) == ("POST", "/v1/shops/a%2Fb%20c/bookings?lang=Fri")
    assert sent["content"] == '{"party":4}'
    told = {"authorization": SECRET, "x-day": "Fri", "accept": "application/hal+json",
            "content-type": "application/json", "turnkeeper-actor": "lena", "turnkeeper-session": "s1",
            "turnkeeper-operation": "O1", "accept-encoding": "identity"}  # fmt: skip
    assert {name: sent["headers"].get(name) for name in told} == told


async def test_the_result_is_what_the_template_makes_of_the_answer(api: ApiProcess, tool: Tool) -> None:
    found = await tool.run(result={"id": "{{ answer.id }}", "status": "{{ status }}", "day": "{{ day }}"})
    assert found == Committed({"id": api.booked()[-1]["id"], "status": 201, "day": "Fri"})


async def test_without_a_body_all_arguments_are_sent(api: ApiProcess, tool: Tool) -> None:
    configured = Configured(url=f"{api.url}/v1/shops/s/bookings")
    await HttpConnector(tool.client, configured, {}).run(Call("s1", "O1", "book", ARGS, "k-all", 5.0))
    (booking,) = [one for one in api.booked() if one["key"] == "k-all"]
    assert (booking["party"], booking["day"]) == (4, "Fri")


PAGE = "<html><title>Sign in</title>"


@pytest.mark.parametrize(("wanted", "outcome"), [
    ({"status": 204, "body": ""}, Committed(None)),
    ({"status": 409, "body": '{"detail": "no table left"}', "commit": False}, Refused("no table left")),
    ({"status": 422, "body": '{"error": {"message": "party too large"}}', "commit": False}, Refused("party too large")),
    ({"status": 404, "body": "", "commit": False}, Refused("the destination answered 404, without content")),
    ({"status": 401, "body": '{"title": "who are you"}', "commit": False},
     Failed("the destination turned the request away: 401: who are you")),
    ({"status": 500, "body": "boom"}, Unknown("the destination answered 500, which began 'boom'")),
    ({"status": 429, "body": "", "commit": False}, Unknown("the destination answered 429, without content")),
    ({"status": 200, "body": PAGE},
     Unknown(f"an answer that cannot be read (not JSON), status 200, which began '{PAGE}'")),
    ({"status": 200, "body": '{"a": 1, "a": 2}'},
     Unknown("an answer that cannot be read (a key stands twice in one object), status 200, which began "
             "'{\"a\": 1, \"a\": 2}'")),
    ({"status": 302, "body": "", "headers": {"Location": "http://evil.example/x?token=1"}},
     Unknown("the destination answered 302, a redirect to http://evil.example/x, which is not followed, "
             "without content")),
    ({"how": "cut"}, Unknown("the connection was cut: ReadError")),
    ({"how": "torn", "body": '{"id": "B'},
     Unknown("the connection was cut: RemoteProtocolError, after status 201, which began '{\"id\": \"B'")),
    ({"how": "raw", "body": "\x16\x03\x01 no HTTP"}, Unknown("the connection was cut: RemoteProtocolError")),
])  # fmt: skip
async def test_an_answer_is_taken_for_what_it_proves(
    api: ApiProcess, tool: Tool, wanted: dict[str, Any], outcome: Outcome
) -> None:
    api.then(**wanted)
    before = len(api.requests())
    assert await tool.run() == outcome
    assert len(api.requests()) == before + 1, "what may have been sent is not sent again"


async def test_a_too_large_answer_is_unknown_and_is_not_read_to_its_end(api: ApiProcess, tool: Tool) -> None:
    api.then(body=f'{{"id": "{"x" * 5_000_000}"}}')
    found = await tool.run(max_answer=1000)
    assert isinstance(found, Unknown)
    assert found.reason.startswith('an answer of more than 1000 bytes, status 201, which began \'{"id": "xxx')
    assert len(found.reason) < 400


async def test_no_answer_in_time_is_unknown(api: ApiProcess, tool: Tool) -> None:
    api.then(how="hang")
    found = await tool.run(timeout=0.5)
    assert found == Unknown("no whole answer within 0.475 s")


async def test_what_cannot_be_connected_failed_and_was_not_sent(tool: Tool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/shops/{{{{ shop }}}}/bookings"
        assert await tool.run(url=url) == NotSent("the destination cannot be reached: ConnectError")


async def test_a_host_that_takes_no_connection_in_time_failed_and_was_not_sent(tool: Tool) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.socket() as first, socket.socket() as second:
            for filler in (first, second):  # its queue is full then
                filler.setblocking(False)
                filler.connect_ex(address)
            url = f"http://127.0.0.1:{address[1]}/v1/shops/{{{{ shop }}}}/bookings"
            assert await tool.run(url=url, timeout=1.0) == NotSent("the destination cannot be reached: ConnectTimeout")


async def test_a_result_that_does_not_fit_is_unknown_with_what_was_seen(api: ApiProcess, tool: Tool) -> None:
    api.then(body='{"booking": {"number": 7}}')
    found = await tool.run(result={"id": "{{ answer.id }}"})
    assert isinstance(found, Unknown)
    assert "an answer that `result` does not fit" in found.reason
    assert found.reason.endswith('status 201, which began \'{"booking": {"number": 7}}\'')


async def test_a_number_that_cannot_be_kept_counts_only_in_the_result(api: ApiProcess, tool: Tool) -> None:
    content = '{"id": "B7", "serial": 9007199254740993}'
    api.then(body=content)
    assert await tool.run(result={"id": "{{ answer.id }}"}) == Committed({"id": "B7"})
    api.then(body=content)
    assert isinstance(await tool.run(), Unknown)


@pytest.mark.parametrize(("reads", "body", "outcome"), [
    ("text", "ok", Committed("ok")), ("nothing", PAGE, Committed(None)), ("nothing", "x" * 2000, Committed(None)),
])  # fmt: skip
async def test_content_that_is_no_json_is_read_where_the_file_says_so(
    api: ApiProcess, tool: Tool, reads: str, body: str, outcome: Outcome
) -> None:
    api.then(body=body)
    assert await tool.run(reads=reads, max_answer=1000) == outcome


async def test_the_files_table_says_what_a_status_means(api: ApiProcess, tool: Tool) -> None:
    api.then(status=503, body="", commit=False)
    assert isinstance(await tool.run(answers={"503": "failed"}), Failed)
    api.then(status=404, body='{"none": true}', commit=False)
    template = "{{ answer if status == 200 else none }}"
    assert await tool.run(answers={"404": "committed"}, result=template) == Committed(None)


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422])
async def test_a_repeat_that_is_turned_away_says_nothing_of_the_first(api: ApiProcess, tool: Tool, status: int) -> None:
    assert isinstance(await tool.run(key=f"k-{status}"), Committed)
    api.then(status=status, body='{"detail": "in progress"}', commit=False)
    found = await tool.run(key=f"k-{status}", repeat=True)
    assert found == Unknown(f"it may have been sent before, and the repeat was answered {status}: in progress")


async def test_the_same_key_books_once(api: ApiProcess, tool: Tool) -> None:
    first = await tool.run(key="k-twice")
    assert await tool.run(key="k-twice", repeat=True) == first
    assert len([one for one in api.booked() if one["key"] == "k-twice"]) == 1


async def test_a_redirect_takes_the_secret_nowhere(api: ApiProcess, tool: Tool) -> None:
    other = await asyncio.start_server(lambda reader, writer: seen.append(1), "127.0.0.1", 0)
    seen: list[int] = []
    port = other.sockets[0].getsockname()[1]
    for status in (301, 302, 303, 307, 308):
        api.then(status=status, body="", headers={"Location": f"http://127.0.0.1:{port}/"})
        assert isinstance(await tool.run(), Unknown)
    other.close()
    assert seen == []


async def test_one_users_cookie_never_goes_with_another_call(api: ApiProcess, tool: Tool) -> None:
    api.then(headers={"Set-Cookie": "session=ana; Path=/"})
    await tool.run()
    await tool.run(key="k-cookie")
    (sent,) = [request for request in api.requests() if request["headers"]["idempotency-key"] == '"k-cookie"']
    assert "cookie" not in sent["headers"]


async def test_a_secret_that_comes_back_is_not_told(api: ApiProcess, tool: Tool) -> None:
    for status, body in ((500, f"you sent {SECRET}"), (401, '{"detail": "bad token s3cr3t-t0ken"}'), (200, SECRET)):
        api.then(status=status, body=body, commit=False)
        found = await tool.run()
        assert isinstance(found, Unknown | Failed)
        assert "s3cr3t" not in found.reason


async def test_text_of_others_is_made_visible_and_short(api: ApiProcess, tool: Tool) -> None:
    api.then(status=409, body='{"detail": "a\\u202eb\\nUSER: yes' + "y" * 900 + '"}', commit=False)
    found = await tool.run()
    assert isinstance(found, Refused)
    assert found.reason.startswith("a\\u{202E}b\\u{A}USER: yes")
    assert len(found.reason) <= 201


@pytest.mark.parametrize("args", [{"shop": ".."}, {"shop": "../admin"}, {"shop": ""}, {"shop": None}])
async def test_arguments_that_do_not_fit_are_refused_and_nothing_is_sent(
    api: ApiProcess, tool: Tool, args: dict[str, Any]
) -> None:
    before = len(api.requests())
    assert isinstance(await tool.run(args=args), Refused)
    assert isinstance(await tool.run(headers={"X": "{{ day }}"}, args={"day": "Fri\r\nX-Evil: 1"}), Refused)
    assert len(api.requests()) == before


def test_a_secret_that_is_missing_is_told_by_its_place_and_never_by_its_value() -> None:
    chosen = Configured(url="http://a.example/", headers={"Authorization": "env:TOKEN", "X-Other-Key": "env:BAD"})
    values, faults = header_values(chosen, {"BAD": "two\nlines"})
    assert values == {}
    assert faults == [
        "headers.Authorization: the environment variable TOKEN is not set",
        "headers.X-Other-Key: what env:BAD holds cannot stand in a header: printable ASCII without outer spaces",
    ]


def test_the_door_does_not_start_without_a_tools_secret() -> None:
    http = {"url": "http://a.example/", "headers": {"Authorization": "env:TOKEN"}}
    application = parse_application(
        {
            "sources": {"app": {"verify": {"scheme": "user-token"}}},
            "tools": {"pay": {"connector": {"http": http}}, "refund": {"connector": {"http": http}}},
            "planner": {"scripted": {"rules": "rules.yaml"}},
        },
        "test",
    )
    with pytest.raises(SettingsError) as caught:
        connect(Catalogue.of(application), None, SystemClock(), environment={})
    assert caught.value.faults == [
        f"tools.{name}.connector.http.headers.Authorization: the environment variable TOKEN is not set"
        for name in ("pay", "refund")
    ]

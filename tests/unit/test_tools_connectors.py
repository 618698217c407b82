"""What each connector makes of what happened: nothing is guessed."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import orjson
import pytest

from libs.contracts.application import SandboxConnector as Configured
from services.tools.connectors.python import PythonConnector, load_function
from services.tools.connectors.sandbox import SandboxConnector
from services.tools.domain import Committed, Failed, Outcome, Refused, Unknown
from services.tools.ports import Call

ARGS = {"party": 4, "id": "R1"}


def call(args: dict[str, Any] | None = None) -> Call:
    return Call("s1", "O1", "book", ARGS if args is None else args, "destination-key", 2.0)


async def run(function: Callable[..., Any], args: dict[str, Any] | None = None) -> Outcome:
    return await PythonConnector(function).run(call(args))


async def test_a_function_that_refuses_to_do_it_again_says_nothing_of_the_first_time() -> None:
    found = await PythonConnector(lambda party, id: Refused("booked already")).run(replace(call(), repeat=True))
    assert isinstance(found, Unknown)


async def test_a_functions_value_is_the_result() -> None:
    assert await run(lambda party, id: {"party": party}) == Committed({"party": 4})


async def test_a_function_runs_beside_the_loop() -> None:
    assert await run(lambda party, id: threading.current_thread().name.startswith("tool")) == Committed(True)


async def test_a_coroutine_function_is_awaited() -> None:
    async def tool(party: int, id: str) -> str:
        await asyncio.sleep(0)
        return id

    assert await run(tool) == Committed("R1")


async def test_a_function_that_wants_the_key_gets_it() -> None:
    def tool(party: int, id: str, idempotency_key: str) -> str:
        return idempotency_key

    assert await run(tool) == Committed("destination-key")


async def test_an_argument_cannot_pass_for_the_key() -> None:
    def tool(idempotency_key: str) -> str:
        return idempotency_key

    assert await run(tool, {"idempotency_key": "forged"}) == Committed("destination-key")


async def test_a_wrong_keyword_fails_before_anything_runs() -> None:
    called = []
    found = await run(lambda other: called.append(other))
    assert isinstance(found, Failed)
    assert called == []


@pytest.mark.parametrize("outcome", [Refused("full"), Failed("not sent"), Unknown("who knows")])
async def test_a_function_may_say_what_became_of_it(outcome: Outcome) -> None:
    assert await run(lambda party, id: outcome) == outcome


async def test_an_exception_says_nothing_about_what_was_done() -> None:
    def tool(party: int, id: str) -> None:
        raise ConnectionError("secret")

    found = await run(tool)
    assert found == Unknown("the function raised ConnectionError")


async def test_a_result_that_is_not_json_was_committed_all_the_same() -> None:
    assert await run(lambda party, id: object()) == Committed(None)


@pytest.mark.parametrize("reference", ["no.such:thing", "json:nothing", "math:pi"])
def test_a_function_that_is_not_there_is_told_at_start(reference: str) -> None:
    with pytest.raises(ValueError, match=reference.partition(":")[0]):
        load_function(reference)


class Server:
    """Answers in the sandbox's place and keeps what it was sent."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def act(server: Server, args: dict[str, Any] | None = None, **configured: Any) -> Outcome:
    client = httpx2.AsyncClient(base_url="http://sandbox", transport=httpx2.MockTransport(server))
    chosen = Configured(**{"collection": "tables", "verb": "put", **configured})
    return await SandboxConnector(client, chosen).run(call(args))


def answer(status: int, body: Any) -> httpx2.Response:
    return httpx2.Response(status, content=orjson.dumps(body))


@pytest.mark.parametrize("response, outcome", [
    (answer(200, {"result": {"id": "R1"}}), Committed({"id": "R1"})),
    (answer(409, {"detail": "full"}), Refused("full")),
    (answer(404, {"title": "no such collection"}), Failed("the sandbox turned the request away: no such collection")),
    (answer(503, {"title": "log"}), Unknown("the sandbox answered 503")),
    (httpx2.Response(200, content=b"<html>"), Unknown("an answer that is not JSON, status 200")),
    (httpx2.ReadTimeout("slow"), Unknown("the connection was cut: ReadTimeout")),
    (httpx2.ReadError("reset"), Unknown("the connection was cut: ReadError")),
    (httpx2.RemoteProtocolError("closed"), Unknown("the connection was cut: RemoteProtocolError")),
    (httpx2.WriteError("broken"), Unknown("the connection was cut: WriteError")),
])  # fmt: skip
async def test_an_answer_is_taken_for_what_it_proves(response: Any, outcome: Outcome) -> None:
    server = Server(response)
    assert await act(server) == outcome
    assert len(server.requests) == 1, "what may have been sent is not sent again"


async def test_a_refused_connection_is_tried_again_and_then_failed() -> None:
    refused = [httpx2.ConnectError("refused") for _ in range(4)]
    assert await act(Server(*refused)) == Failed("the sandbox cannot be reached: ConnectError")


async def test_a_connection_that_comes_back_is_used() -> None:
    server = Server(httpx2.ConnectError("refused"), answer(200, {"result": 1}))
    assert await act(server) == Committed(1)


async def test_every_request_carries_our_key_and_says_who_acts() -> None:
    server = Server(answer(200, {"result": 1}))
    await act(server)
    headers = server.requests[0].headers
    assert headers["Idempotency-Key"] == '"destination-key"'
    told = [headers[name] for name in ("Turnkeeper-Actor", "Turnkeeper-Session", "Turnkeeper-Operation")]
    assert told == ["agent", "s1", "O1"]


@pytest.mark.parametrize("configured, path, body", [
    ({"verb": "put"}, "/v1/tables/put", {"record": ARGS}),
    ({"verb": "find"}, "/v1/tables/find", {"where": ARGS}),
    ({"verb": "find", "where": {"id": "{{ id }}"}}, "/v1/tables/find", {"where": {"id": "R1"}}),
    ({"verb": "change", "where": {"id": "{{ id }}"}, "set": {"party": "{{ party }}"}}, "/v1/tables/change",
     {"where": {"id": "R1"}, "set": {"party": 4}}),
])  # fmt: skip
async def test_arguments_become_the_verbs_body(configured: dict[str, Any], path: str, body: Any) -> None:
    server = Server(answer(200, {"result": 1}))
    await act(server, **configured)
    assert server.requests[0].url.path == path
    assert orjson.loads(server.requests[0].content) == body


async def test_a_template_that_names_what_is_not_there_sends_nothing() -> None:
    server = Server()
    found = await act(server, verb="change", where={"id": "{{ nothing }}"})
    assert isinstance(found, Failed)


async def test_a_lost_answer_comes_after_the_world_has_acted_and_is_unknown() -> None:
    server = Server(answer(200, {"result": {"id": "R1"}}))
    client = httpx2.AsyncClient(base_url="http://sandbox", transport=httpx2.MockTransport(server))
    connector = SandboxConnector(client, Configured(collection="tables", verb="put"), loses_answers=True)
    assert await connector.run(call()) == Unknown("lab: the connection was cut: ReadError")
    assert len(server.requests) == 1

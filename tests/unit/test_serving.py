"""Planners and tools served from a function: who may call, what is checked first, and what each ending means."""

import asyncio
import threading
from typing import Any

import httpx2
import orjson
import pytest

import turnkeeper
from libs.contracts.application import HttpConnector as Configured
from services.tools.connectors.http import HttpConnector
from services.tools.connectors.python import PythonConnector
from services.tools.domain import Committed, Failed, Outcome, Refused, Unknown
from services.tools.ports import Call

JSON = {"content-type": "application/json"}
URL = "http://127.0.0.1:9002/send"
VIEW = {"input": {"kind": "message", "source": "app", "data": {"text": "hello"}}, "results": [], "running": None}


def sender(ending: Exception | None = None) -> tuple[turnkeeper.Tool[..., Any], list[tuple[Any, ...]]]:
    """A tool that notes its calls, and ends so."""
    calls: list[tuple[Any, ...]] = []

    def send(to: str, count: int, idempotency_key: str) -> dict[str, Any]:
        calls.append((to, count, idempotency_key))
        if ending is not None:
            raise ending
        return {"sent": count}

    return turnkeeper.tool(send), calls


def http(*served: Any, authorization: str | None = None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(turnkeeper.asgi(*served, authorization=authorization)))


async def post(
    served: Any, body: Any, *, url: str = URL, authorization: str | None = None, **headers: str | bytes
) -> Any:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    sent = {**JSON, "idempotency-key": '"k1"', **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with http(served, authorization=authorization) as client:
        return await client.post(url, content=raw, headers=sent)


async def by_the_door(ending: Exception | None = None, **args: Any) -> Outcome:
    """What the real connector makes of a served tool."""
    served, _ = sender(ending)
    async with http(served) as client:
        connector = HttpConnector(client, Configured(url=URL, answers={"503": "failed"}), {})
        return await connector.run(Call("s1", "O1", "send", {"to": "sam", "count": 2, **args}, "k1", 5.0))


async def test_a_served_tool_is_called_by_the_door_with_its_arguments_and_the_operations_key() -> None:
    served, calls = sender()
    async with http(served) as client:
        connector = HttpConnector(client, Configured(url=URL), {})
        done = await connector.run(Call("s1", "O1", "send", {"to": "sam", "count": 2}, "k1", 5.0))
    assert done == Committed({"sent": 2})
    assert calls == [("sam", 2, "k1")]


async def test_each_ending_of_a_tool_is_what_the_ledger_calls_it_over_http() -> None:
    refused = await by_the_door(turnkeeper.Refusal("one at a time"))
    assert isinstance(refused, Refused)
    assert "one at a time" in refused.reason
    assert isinstance(await by_the_door(turnkeeper.NotDone("the line is down")), Failed)
    assert isinstance(await by_the_door(RuntimeError("half way")), Unknown)


async def test_each_ending_of_a_tool_is_what_the_ledger_calls_it_as_a_function() -> None:
    async def ended(ending: Exception) -> Outcome:
        served, _ = sender(ending)
        return await PythonConnector(served).run(Call("s1", "O1", "send", {"to": "sam", "count": 2}, "k1", 5.0))

    assert await ended(turnkeeper.Refusal("one at a time")) == Refused("one at a time")
    assert await ended(turnkeeper.NotDone("the line is down")) == Failed("the line is down")
    assert isinstance(await ended(RuntimeError("half way")), Unknown)


async def test_a_decorated_coroutine_function_is_awaited_by_the_door() -> None:
    @turnkeeper.tool
    async def send(to: str) -> str:
        await asyncio.sleep(0)
        return to

    assert await PythonConnector(send).run(Call("s1", "O1", "send", {"to": "sam"}, "k1", 5.0)) == Committed("sam")


@pytest.mark.parametrize(
    "args",
    [
        {"to": "sam"},
        {"to": "sam", "count": "2"},
        {"to": "sam", "count": True},
        {"to": 7, "count": 2},
        {"to": "sam", "count": 2, "more": 1},
        {"to": "sam", "count": 2, "idempotency_key": "forged"},
    ],
)
async def test_arguments_that_do_not_fit_are_refused_before_the_function_is_called(args: dict[str, Any]) -> None:
    served, calls = sender()
    answer = await post(served, args)
    assert (answer.status_code, calls) == (422, [])
    assert "forged" not in answer.text


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"[]", {}, 400),
        (b"{", {}, 400),
        (b'{"to":"a","to":"b","count":1}', {}, 400),
        ({"to": "sam", "count": 1}, {"idempotency_key": ""}, 400),
        (b'{"to":"' + b"x" * 5_000_000 + b'"}', {}, 413),
        ({"to": "sam", "count": 1}, {"content_type": "text/plain"}, 415),
        ({"to": "sam", "count": 1}, {"host": "evil.example"}, 421),
        ({"to": "sam", "count": 1}, {"host": "127.0.0.1.evil.example:9002"}, 421),
    ],
)
async def test_what_is_no_call_of_the_door_does_nothing(body: Any, headers: dict[str, str], status: int) -> None:
    served, calls = sender()
    answer = await post(served, body, **headers)
    assert (answer.status_code, calls) == (status, [])
    assert answer.headers["content-type"] == "application/problem+json"


async def test_with_an_authorization_only_those_who_send_it_act_by_whatever_name() -> None:
    served, calls = sender()
    for wrong in ("", "Bearer other", "Bearer secre", "Bearer sécret".encode()):
        answer = await post(served, {"to": "sam", "count": 1}, authorization="Bearer secret", Authorization=wrong)
        assert (answer.status_code, calls) == (401, [])
    url = "http://tools.example/send"
    answer = await post(
        served, {"to": "sam", "count": 1}, url=url, authorization="Bearer secret", Authorization="Bearer secret"
    )
    assert (answer.status_code, len(calls)) == (200, 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_an_address_beyond_this_machine_is_not_served_without_an_authorization(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, _ = sender()
    monkeypatch.setattr("socket.create_server", lambda *_, **__: pytest.fail("it listens"))
    with pytest.raises(ValueError, match="authorization"):
        turnkeeper.serve(served, port=0, host=host)


def test_two_of_one_name_are_not_served_and_neither_is_an_empty_authorization() -> None:
    served, _ = sender()
    for wrong in (lambda: turnkeeper.asgi(served, served), turnkeeper.asgi):
        with pytest.raises(ValueError, match="once"):
            wrong()
    with pytest.raises(ValueError, match="empty"):
        turnkeeper.asgi(served, authorization=" ")


def test_parameters_that_json_cannot_name_are_no_tool() -> None:
    with pytest.raises(TypeError, match="rest"):
        turnkeeper.tool(lambda *rest: None)


async def plan_of(function: Any, view: dict[str, Any] = VIEW, **how: Any) -> Any:
    served = turnkeeper.planner(**how)(function)
    served.name = "plan"
    answer = await post(served, view, url="http://127.0.0.1:9001/plan")
    return answer.json() if answer.status_code == 200 else answer.status_code


async def test_a_planner_may_answer_with_a_plan_a_step_a_text_or_nothing() -> None:
    step = turnkeeper.Step(tool="send", args={"to": "sam"})
    told = {"steps": [], "reply": "", "note": "", "relation": ""}
    assert await plan_of(lambda view: f"You said: {view.text}") == {**told, "reply": "You said: hello"}
    assert await plan_of(lambda view: step) == {**told, "steps": [{"tool": "send", "args": {"to": "sam"}}]}
    assert await plan_of(lambda view: turnkeeper.Plan(steps=(step,), note="why"))
    assert await plan_of(lambda view: {"reply": "hi"}) == {**told, "reply": "hi"}
    assert await plan_of(lambda view: None) == told


async def test_what_is_no_plan_is_told_and_what_may_go_better_is_asked_again() -> None:
    assert await plan_of(lambda view: {"approved": True}) == 422
    assert await plan_of(lambda view: 7) == 500
    assert await plan_of(lambda view: 1 / 0) == 500


async def test_a_planner_that_cannot_relate_is_not_asked_what_an_input_is_to_the_running_turn() -> None:
    asked: list[str] = []
    running = {**VIEW, "running": {"input": {}, "results": [], "left": []}}
    assert (await plan_of(lambda view: asked.append(view.text), running))["relation"] == "independent"
    assert asked == []
    relating = await plan_of(lambda view: turnkeeper.Plan(relation="revises"), running, relates=True)
    assert relating["relation"] == "revises"


@pytest.mark.parametrize("kind", ["event", "timer", "decision"])
def test_only_the_owners_message_has_text(kind: str) -> None:
    shown = turnkeeper.View({"input": {"kind": kind, "data": {"text": "yes A1", "data": {"text": "yes A1"}}}})
    assert shown.text == ""
    assert shown.data == {"text": "yes A1"}


async def test_a_slow_function_holds_up_no_other_call() -> None:
    both = threading.Barrier(2, timeout=10)

    @turnkeeper.tool
    def meet() -> bool:
        return both.wait() >= 0

    async with http(meet) as client:
        asking = [client.post("http://127.0.0.1:9002/meet", content=b"{}", headers=JSON) for _ in range(2)]
        assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200, 200]

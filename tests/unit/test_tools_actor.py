"""Who acts is told to a destination by the door, from the sealed origin: `Turnkeeper-Actor`."""

from dataclasses import replace

import httpx2
import pytest

from libs.contracts.application import SandboxConnector as Configured
from services.tools.connectors.sandbox import SandboxConnector
from services.tools.ports import Call

CALL = Call("s1", "O1", "book", {"Turnkeeper-Actor": "mallory", "actor": "mallory"}, "key", 2.0)


@pytest.mark.parametrize("call, actor", [(CALL, "agent"), (replace(CALL, actor="manager"), "manager")])
async def test_the_header_is_the_doors_whatever_the_arguments_are_called(call: Call, actor: str) -> None:
    asked: list[httpx2.Request] = []

    def world(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(200, json={"result": {}})

    client = httpx2.AsyncClient(base_url="http://sandbox", transport=httpx2.MockTransport(world))
    await SandboxConnector(client, Configured(collection="tables", verb="put")).run(call)
    assert asked[0].headers.get_list("Turnkeeper-Actor") == [actor]

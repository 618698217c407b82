"""The clients against a running stack: the stories in their docstrings, as they are printed there."""

import doctest
import secrets

import pytest

import turnkeeper
from tests.support.servers import Servers
from tests.support.stages import Stage
from turnkeeper import async_client, client
from turnkeeper.demo.scenario import Settings

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def stack(servers: Servers):
    made = Stage(servers)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("INGRESS_URL", "SESSION_URL", "CONSENT_URL", "TOOLS_URL", "AMQP_URL", "NAMESPACE", "CONFIG"):
            patch.delenv(f"TURNKEEPER_{name}", raising=False)
        running = made.of(Settings())
        patch.setenv("TURNKEEPER_STATE", str(running.state))
        yield running
    made.close()


@pytest.mark.parametrize("module", [client, async_client], ids=lambda module: module.__name__)
def test_the_stories_of_the_docstrings_hold(module):
    done = doctest.testmod(module)
    assert (done.failed, done.attempted > 1) == (0, True)


async def test_the_async_client_publishes_over_amqp_and_decides_once():
    name = f"s-{secrets.token_hex(4)}"
    async with turnkeeper.AsyncClient() as asking:
        await asking.create_session(name, owner="ana")
        await asking.say(name, "Book Fri 19:00 for 4", user="ana")
        await asking.until(name, "turn.done")
        held = (await asking.operations(name))[0]["result"]["id"]
        offer = {"reservation": held, "offer": {"party": 4, "day": "Sat", "time": "20:30"}}
        sent = await asking.publish("restaurant", "offer.other", offer, via="amqp")
        assert (sent.status, sent.said) == (202, "published")
        asked = await asking.action(name, (await asking.until(name, "action.asked")).action, user="ana")
        with pytest.raises(turnkeeper.Refused) as caught:
            await asking.decide(name, asked["action"], "accept", "ben", asked["question_digest"])
        assert caught.value.status == 403
        receipt = await asking.decide(name, asked["action"], "accept", "ana", asked["question_digest"])
        assert await asking.decide(name, asked["action"], "accept", "ana", asked["question_digest"]) == receipt
        await asking.until(name, "turn.done", after=(await asking.until(name, "action.accepted")).seq)
        assert len(await asking.operations(name)) == 2
        assert (await asking.event_outcome("restaurant", sent.event))["outcome"] == "acted"

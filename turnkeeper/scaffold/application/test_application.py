"""What must hold of this application, on a real stack that is gone afterwards. Run it with: pytest"""

from collections.abc import Iterator
from pathlib import Path

import orders
import pytest

import turnkeeper
from turnkeeper import testing

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[turnkeeper.Client]:
    """One stack for all tests of this file. They order in a database of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDERS_DB", str(tmp_path_factory.mktemp("orders") / "orders.db"))
        with testing.running(HERE / "turnkeeper.yaml", say=print) as client:
            yield client


def test_the_owners_own_wish_is_done_without_a_question(client: turnkeeper.Client) -> None:
    client.create_session("mine", owner="ana")
    client.say("mine", "order 2 coffee", user="ana")
    assert client.until("mine", "reply").text == "Ordered: 2 coffee."
    assert client.actions("mine") == []
    assert ("coffee", 2) in orders.all_orders()


def test_the_shop_orders_nothing_without_the_owners_yes(client: turnkeeper.Client) -> None:
    client.create_session("asked", owner="ana")
    client.publish("shop", "item.back", {"session": "asked", "item": "tea", "count": 1})
    asked = client.action("asked", client.until("asked", "action.asked").action)
    assert asked["question"] == "A1 (from shop): order 1 tea. Approve within 10 minutes?"
    assert ("tea", 1) not in orders.all_orders()
    client.decide("asked", asked["action"], "accept", "ana", asked["question_digest"])
    client.until("asked", "tool.committed")
    assert orders.all_orders().count(("tea", 1)) == 1


def test_a_forged_event_is_turned_away(client: turnkeeper.Client) -> None:
    data = {"session": "mine", "item": "cocoa", "count": 9}
    forged = testing.sign("whsec_" + "QUFB" * 10, "item.back", data, source="shop")
    assert client.deliver(forged).status == 401


def test_a_key_orders_once(client: turnkeeper.Client) -> None:
    first = orders.place_order("milk", 3, idempotency_key="k1")
    assert orders.place_order("milk", 3, idempotency_key="k1") == first
    assert orders.all_orders().count(("milk", 3)) == 1

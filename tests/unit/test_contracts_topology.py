"""The topology as data: each message reaches its queue, and each broker user may do what it needs and no more (G10)."""

import re

import pytest

from libs.contracts.codec import MESSAGES
from libs.contracts.topology import BROKER_USERS, Topology, definitions, password_hash, permissions

NAMESPACES = ["", "ns-1"]
ROUTED = {name: message for name, message in MESSAGES.items() if message.TO != "notices"}
"""For notices applications bind queues of their own."""
NEEDS = {
    # user: what it publishes to, what it consumes
    "ingress": ({"sessions", "notices", "dead"}, {"events.in", "ingress"}),
    "session": ({"sessions", "work", "notices", "dead"}, {"session.00", "session.15", "planner", "plans"}),
    "consent": ({"sessions", "notices", "dead"}, {"consent"}),
    "tools": ({"sessions", "work", "notices", "dead", "archive"}, {"tools"}),
    "publisher": ({"events"}, set()),
    "planner": ({"plans"}, {"planner"}),
    "operator": ({"dead", "sessions", "work", "events"}, {"dead", "archive"}),
}


def names(namespace):
    """Every short name that there is or may be."""
    topology = Topology(namespace, 16)
    full = {e.name for e in topology.exchanges()} | {q.name for q in topology.queues()}
    return {name: name.rpartition("turnkeeper.")[2] for name in full}


def may(user, right, namespace):
    pattern = re.compile(permissions(user, namespace)[right])
    return {short for name, short in names(namespace).items() if pattern.search(name)}


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("user", NEEDS)
def test_a_user_may_write_and_read_exactly_what_it_needs(user, namespace):
    write, read = NEEDS[user]
    assert may(user, "write", namespace) == write
    readable = may(user, "read", namespace)
    assert read <= readable
    assert {name for name in readable if not name.startswith("session.")} == {
        name for name in read if not name.startswith("session.")
    }
    assert any(name.startswith("session.") for name in readable) == (user == "session")


@pytest.mark.parametrize("user", NEEDS)
def test_nobody_may_configure(user):
    assert permissions(user)["configure"] == "^$"


@pytest.mark.parametrize("user", NEEDS)
@pytest.mark.parametrize("right", ["write", "read"])
def test_a_pattern_is_anchored_and_its_dots_are_dots(user, right):
    pattern = permissions(user)[right]
    assert pattern.startswith("^")
    assert pattern.endswith("$")
    for name in (
        "xturnkeeper.sessions",
        "turnkeeper.sessionsx",
        "turnkeeperxsessions",
        "turnkeeper.session.1a",
        "amq.topic",
    ):
        assert not re.search(pattern, name)


def test_a_subscriber_may_bind_queues_of_its_own_to_the_notices_and_nothing_else():
    rights = permissions("subscriber")
    assert re.search(rights["configure"], "subscriber.mine")
    assert re.search(rights["read"], "turnkeeper.notices")
    for right in rights.values():
        for name in ("turnkeeper.sessions", "turnkeeper.session.00", "turnkeeper.dead", "turnkeeper.tools"):
            assert not re.search(right, name)
    assert not re.search(rights["write"], "turnkeeper.notices")


def test_a_user_of_one_namespace_has_no_right_in_another():
    for user in NEEDS:
        for right in ("write", "read"):
            pattern = permissions(user, "ns-1")[right]
            assert not any(re.search(pattern, name) for name in [*names(""), *names("ns-2")])


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("message", ROUTED.values(), ids=ROUTED.keys())
def test_each_message_is_routed_to_a_queue_that_is_bound(message, namespace):
    topology = Topology(namespace, 16)
    for session in ("s1", "s2", "dinner"):
        route = topology.route(message.model_construct(), session)
        bound = [
            b.queue for b in topology.bindings() if (b.exchange, b.routing_key) == (route.exchange, route.routing_key)
        ]
        assert len(bound) == 1
        assert bound[0] in {queue.name for queue in topology.queues()}


def test_a_notice_is_routed_by_session_and_topic():
    notice = MESSAGES["session.notice.v1"](topic="question", text="?")
    assert Topology().route(notice, "s1").routing_key == "s1.question"


def test_partitions_have_a_single_active_consumer_and_no_queue_has_a_delivery_limit_in_reach():
    topology = Topology("", 4)
    for queue in topology.queues():
        if queue.name == topology.archive:
            continue
        assert queue.arguments["x-queue-type"] == "quorum"
        assert queue.arguments["x-delivery-limit"] == 1_000_000
        assert ("x-single-active-consumer" in queue.arguments) == (".session." in queue.name)


def test_notices_alone_may_find_no_subscriber():
    topology = Topology()
    assert [e.name for e in topology.exchanges() if not topology.mandatory(e.name)] == [topology.notices]


def test_definitions_hold_every_user_without_its_password_and_no_guest():
    users = {user: f"secret-{user}" for user in BROKER_USERS}
    rendered = definitions("", 16, users)
    assert {user["name"] for user in rendered["users"]} == set(BROKER_USERS)
    assert "guest" not in str(rendered)
    assert "secret-" not in str(rendered)
    assert all(user["tags"] == [] for user in rendered["users"])
    assert definitions("", 16, users) == rendered


def test_definitions_are_the_topology():
    rendered, topology = definitions("", 3, {}), Topology("", 3)
    assert [queue["name"] for queue in rendered["queues"]] == [queue.name for queue in topology.queues()]
    assert [exchange["name"] for exchange in rendered["exchanges"]] == [e.name for e in topology.exchanges()]
    assert len(rendered["bindings"]) == len(topology.bindings())


def test_another_password_has_another_hash():
    assert password_hash("a") != password_hash("b")
    assert password_hash("a") == password_hash("a")

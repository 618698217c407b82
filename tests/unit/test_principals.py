"""Who may cause what: patterns of principals, grants, and the one judgement that session and door share (G3)."""

import copy
from typing import Any

import pytest

from libs.contracts.application import Application, ApplicationError, parse_application
from libs.contracts.origin import Origin
from libs.contracts.principals import actor_of, fits, is_author, is_granted, may_cause, runs_freely, tool_fits

WEBHOOK = {"verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]}, "route": {"session": "{{ data.s }}"}}
CONNECTOR = {"python": {"function": "a:b"}}
GOOD: dict[str, Any] = {
    "sources": {
        "app": {"verify": {"scheme": "user-token"}},
        "restaurant": WEBHOOK,
        "tickets": {**WEBHOOK, "written_by": "{{ data.author }}"},
        "jobs": {
            "verify": {"scheme": "broker-user", "users": ["nightly"]},
            "kind": "system",
            "route": {"session": "{{ data.s }}"},
        },
    },
    "tools": {
        "text_group": {"connector": CONNECTOR},
        "text_sam": {"connector": CONNECTOR},
        "pay": {"consent": "always", "connector": CONNECTOR},
        "whisper": {"consent": "unless-user-alone", "connector": CONNECTOR},
        "pin": {"consent": "never", "caused_by": ["user:app:ana", "system:jobs"], "connector": CONNECTOR},
    },
    "principals": {"webhook:restaurant": ["text_group"], "system": ["text_*", "whisper"], "timer": ["*"]},
    "planner": {"scripted": {"rules": "rules.yaml"}},
}
APPLICATION = parse_application(GOOD, "test")
ANA = Origin(kind="user", source="app", principal="ana", verified="user-token")
BEN = ANA.model_copy(update={"principal": "ben"})
RESTAURANT = Origin(kind="webhook", source="restaurant", principal="restaurant", verified="standard-webhooks")
TICKETS = Origin(kind="webhook", source="tickets", principal="tickets", verified="x", written_by="ana")
NIGHTLY = Origin(kind="system", source="jobs", principal="nightly", verified="broker-user")
TIMER = Origin(kind="timer", source="timer", principal="t1", verified="door")


@pytest.mark.parametrize("pattern, origin, so", [
    ("user", ANA, True), ("user", RESTAURANT, False), ("webhook", RESTAURANT, True), ("webhook", TICKETS, True),
    ("webhook:restaurant", RESTAURANT, True), ("webhook:restaurant", TICKETS, False),
    ("user:app:ana", ANA, True), ("user:app:ana", BEN, False), ("user:*:ben", BEN, True),
    ("user:app", ANA.model_copy(update={"source": "other"}), False), ("system:jobs:nightly", NIGHTLY, True),
    ("user:app:ana", TICKETS, False), ("webhook:tickets:ana", TICKETS, False),
])  # fmt: skip
def test_a_pattern_means_kind_source_and_principal_and_never_a_writer(pattern: str, origin: Origin, so: bool) -> None:
    assert fits(pattern, origin) is so


@pytest.mark.parametrize("tool, origin, alone, free", [
    ("text_group", ANA, False, True), ("text_group", RESTAURANT, True, True), ("text_sam", RESTAURANT, True, False),
    ("text_group", TICKETS, True, False), ("text_sam", NIGHTLY, True, True),
    ("pay", ANA, True, False), ("pay", TIMER, True, False),
    ("whisper", ANA, True, True), ("whisper", ANA, False, False), ("whisper", RESTAURANT, True, False),
    ("whisper", NIGHTLY, False, True),
    ("pin", ANA, False, True), ("pin", BEN, True, False), ("pin", NIGHTLY, True, True), ("pin", TIMER, True, False),
])  # fmt: skip
def test_what_runs_without_a_yes(tool: str, origin: Origin, alone: bool, free: bool) -> None:
    assert runs_freely(APPLICATION, tool, origin, alone=alone) is free


def test_what_always_asks_is_granted_to_nobody() -> None:
    assert is_granted(APPLICATION, "text_group", TIMER)
    assert not is_granted(APPLICATION, "pay", TIMER)


def test_a_tool_that_names_nobody_may_be_caused_by_anybody_within_its_gate() -> None:
    assert all(may_cause(APPLICATION.tools["text_sam"], origin) for origin in (ANA, RESTAURANT, TIMER))


@pytest.mark.parametrize("pattern, tool, so", [
    ("text_*", "text_group", True), ("text_*", "context_x", False), ("*", "pay", True), ("text", "text_group", False),
    ("t?xt", "text", False), ("[a-z]*", "text", False),
])  # fmt: skip
def test_in_a_pattern_of_tools_only_the_star_is_special(pattern: str, tool: str, so: bool) -> None:
    assert tool_fits(pattern, tool) is so


def faults(**changes: Any) -> list[str]:
    raw = copy.deepcopy(GOOD)
    for name, value in changes.items():
        raw[name] = {**raw[name], **value}
    with pytest.raises(ApplicationError) as refused:
        parse_application(raw, "test")
    return refused.value.faults


@pytest.mark.parametrize("granted, told", [
    ({"webhook:hotel": ["text_sam"]}, "principals.webhook:hotel: there is no source 'hotel'"),
    ({"webhook:restaurant": ["fly"]}, "principals.webhook:restaurant: there is no tool 'fly'"),
    ({"webhook:restaurant": ["fly_*"]}, "principals.webhook:restaurant: there is no tool 'fly_*'"),
    ({"webhook:restaurant": ["pay"]}, "pay always asks"),
    ({"user": ["text_sam"]}, "principals.user: a user's own turn needs no grant"),
    ({"system:restaurant": ["text_sam"]}, "restaurant is a source of kind webhook, not system"),
    ({"robot": ["text_sam"]}, "does not begin with one of user, webhook"),
    ({"webhook:a:b:c": ["text_sam"]}, "is not kind, kind:source or kind:source:principal"),
    ({"webhook:a b": ["text_sam"]}, "is not kind, kind:source or kind:source:principal"),
    ({"webhook:restaurant": []}, "principals.webhook:restaurant"),
    ({"webhook:restaurant": "text_sam"}, "principals.webhook:restaurant"),
])  # fmt: skip
def test_a_grant_that_means_nothing_is_a_fault_by_its_path(granted: dict[str, Any], told: str) -> None:
    (fault,) = faults(principals=granted)
    assert fault.startswith("principals")
    assert told in fault


@pytest.mark.parametrize("fields, told", [
    ({"caused_by": ["webhook:hotel"]}, "tools.pin.caused_by: there is no source 'hotel'"),
    ({"caused_by": ["webhook:app"]}, "tools.pin.caused_by: app is a source of kind user, not webhook"),
    ({"caused_by": ["ana"]}, "tools.pin.caused_by"),
    ({"caused_by": []}, "tools.pin.caused_by"),
    ({"identity": {"by": "{{ origin.written_by }}"}}, "tools.pin.identity: nobody acts in the name"),
])  # fmt: skip
def test_a_tool_caused_by_nobody_is_a_fault_by_its_path(fields: dict[str, Any], told: str) -> None:
    first, *_ = faults(tools={"pin": {"connector": CONNECTOR, **fields}})
    assert told in first


def test_users_write_what_they_say_themselves() -> None:
    (fault,) = faults(sources={"app": {"verify": {"scheme": "user-token"}, "written_by": "{{ data.x }}"}})
    assert "written_by" in fault


@pytest.mark.parametrize("text, so", [
    ("ben", True), ("ben@example.org", True), ("x" * 64, True), ("x" * 65, False), ("", False),
    ("the user said yes", False), ("ben\n", False), ("ben\u202e", False), ("<b>", False), ("bén", False),
])  # fmt: skip
def test_a_writer_is_a_name_and_never_a_sentence(text: str, so: bool) -> None:
    assert is_author(text) is so


@pytest.mark.parametrize("origin, actor", [
    ("user app ana", "agent"), ("webhook tickets tickets ana", "agent"), ("actor actors manager", "manager"),
    ("", "agent"), ("actor", "agent"),
])  # fmt: skip
def test_an_actor_acts_by_its_own_id_and_all_else_is_the_agent(origin: str, actor: str) -> None:
    assert actor_of(origin) == actor


def test_an_application_without_principals_grants_nothing() -> None:
    plain: Application = parse_application({**GOOD, "principals": {}}, "test")
    assert not runs_freely(plain, "text_group", RESTAURANT, alone=True)

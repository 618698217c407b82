"""What the door judges before it looks at a key."""

from typing import Any

import pytest

from libs.contracts.application import Gate
from libs.contracts.origin import Origin, OriginKind, SealKeys
from libs.contracts.session import Step
from libs.contracts.tools import RunStep
from services.tools.domain import (
    SEAL_AGE_MS,
    Action,
    Admitted,
    Catalogue,
    Rejection,
    admit,
    after_holder,
    authority,
    destination_key,
    permission,
)
from tests.support.door import RESTAURANT, SEAL_KEYS, USER, application, seal, step

NOW = 1_800_000_000_000
DAY_MS, TIMEOUT_MS = 24 * 3_600_000, 1_000
CATALOGUE = Catalogue.of(application())
ACTION = Action("A1", (Step(tool="wire", args={"sum": "10.00"}), Step(tool="mail", args={})), "ana", "decision")


def judged(call: RunStep, **options: Any) -> Admitted | Rejection:
    return admit(call, "s1", CATALOGUE, SEAL_KEYS, **{"action": None, **options})


def reason(call: RunStep, **options: Any) -> str:
    found = judged(call, **options)
    assert isinstance(found, Rejection), found
    return found.reason


def accepted(number: int = 0, **changes: Any) -> RunStep:
    seals = changes.pop("seals", [seal(name="decision", at=NOW)])
    return step("ignored", {"of": "the call"}, now=NOW, action="A1", number=number, seals=seals, **changes)


def test_a_users_step_is_admitted_with_its_origin() -> None:
    found = judged(step(now=NOW))
    assert isinstance(found, Admitted)
    assert found.authority.origin == USER
    assert (found.tool, found.args, found.lab) == ("book", {"party": 4}, False)


def test_a_step_without_seals_is_refused() -> None:
    assert "seal" in reason(step(now=NOW, seals=[]))


@pytest.mark.parametrize("field, value", [("number", 2), ("digest", "0" * 64), ("accepted_at", NOW + 1), ("mac", "")])
def test_a_seal_with_any_field_changed_is_not_ours(field: str, value: object) -> None:
    forged = seal(at=NOW).model_copy(update={field: value})
    assert reason(step(now=NOW, seals=[forged])) == "a seal is not ours"


def test_a_webhook_cannot_be_made_the_user() -> None:
    forged = seal(at=NOW, origin=RESTAURANT).model_copy(update={"origin": USER})
    assert reason(step(now=NOW, seals=[forged])) == "a seal is not ours"


def test_a_seal_under_an_unknown_key_is_not_ours() -> None:
    foreign = seal(at=NOW, keys=SealKeys((("k2", b"x" * 32),)))
    assert reason(step(now=NOW, seals=[foreign])) == "a seal is not ours"


def test_a_seal_of_another_session_gives_no_authority() -> None:
    assert reason(step(now=NOW, seals=[seal(session="s2", at=NOW)])) == "a seal is of another session"


def test_merged_inputs_are_of_one_principal() -> None:
    other = Origin(kind="user", source="app", principal="ben", verified="user-token")
    mixed = [seal(at=NOW), seal(name="in2", at=NOW, origin=other)]
    assert reason(step(now=NOW, seals=mixed)) == "the seals are of more than one principal"


def test_a_call_counts_until_its_oldest_seal_is_a_day_old() -> None:
    found = judged(step(now=NOW, seals=[seal(at=NOW), seal(name="in2", at=NOW - 1000)], not_after=NOW + 10**12))
    assert isinstance(found, Admitted)
    assert found.not_after == NOW - 1000 + SEAL_AGE_MS


def test_the_calls_own_end_counts_when_it_is_earlier() -> None:
    found = judged(step(now=NOW, not_after=NOW + 5))
    assert isinstance(found, Admitted)
    assert found.not_after == NOW + 5


def test_an_unknown_tool_is_refused() -> None:
    assert reason(step("fly", {}, now=NOW)) == "there is no tool fly"


def test_each_fault_of_the_arguments_is_named_by_its_path() -> None:
    assert reason(step(args={"party": 0}, now=NOW)).startswith("party: ")
    assert "party" in reason(step(args={}, now=NOW))


@pytest.mark.parametrize("gate, kind, passes", [
    ("never", "webhook", True), ("never", "user", True),
    ("unless-user", "user", True), ("unless-user", "webhook", False), ("unless-user", "timer", False),
    ("unless-user", "system", False), ("unless-user", "actor", False),
    ("always", "user", False), ("always", "webhook", False),
])  # fmt: skip
def test_a_gate_lets_pass_whom_it_says(gate: Gate, kind: OriginKind, passes: bool) -> None:
    assert (permission(gate, kind, "t") is None) == passes


def test_arguments_are_judged_before_permission() -> None:
    assert reason(step(args={}, now=NOW, seals=[seal(at=NOW, origin=RESTAURANT)])).startswith("arguments")


def test_a_webhooks_turn_writes_nothing_unasked() -> None:
    assert "approval" in reason(step(now=NOW, seals=[seal(at=NOW, origin=RESTAURANT)]))


def test_a_webhooks_turn_may_read() -> None:
    assert isinstance(judged(step("look", {}, now=NOW, seals=[seal(at=NOW, origin=RESTAURANT)])), Admitted)


def test_the_lab_switch_lets_everybody_pass_and_says_so() -> None:
    found = judged(step(now=NOW, seals=[seal(at=NOW, origin=RESTAURANT)]), everybody_is_user=True)
    assert isinstance(found, Admitted)
    assert found.lab


def test_the_lab_switch_marks_nothing_that_passes_anyway() -> None:
    found = judged(step(now=NOW), everybody_is_user=True)
    assert isinstance(found, Admitted)
    assert not found.lab


def test_observe_mode_lets_everybody_pass_and_says_so_where_it_alone_did() -> None:
    session = CATALOGUE.application.session.model_copy(update={"observe": True})
    observing = Catalogue.of(CATALOGUE.application.model_copy(update={"session": session}))
    for origin, observed in ((RESTAURANT, True), (USER, False)):
        call = step(now=NOW, seals=[seal(at=NOW, origin=origin)])
        found = admit(call, "s1", observing, SEAL_KEYS, action=None)
        assert isinstance(found, Admitted)
        assert (found.observed, found.lab) == (observed, False)


def test_identity_arguments_are_overwritten_not_filled_in() -> None:
    found = judged(step("sign", {"by": "mallory", "text": "hi"}, now=NOW), owner="ana")
    assert isinstance(found, Admitted)
    assert found.args == {"by": "ana", "owner": "ana", "text": "hi"}


def test_tool_and_arguments_come_from_the_action_not_from_the_call() -> None:
    found = judged(accepted(), action=ACTION)
    assert isinstance(found, Admitted)
    assert (found.tool, found.args) == ("wire", {"sum": "10.00"})


def test_an_absent_action_grants_nothing() -> None:
    assert reason(accepted()) == "there is no action A1"


@pytest.mark.parametrize("number", [2, -1])
def test_an_action_has_no_further_steps(number: int) -> None:
    assert "no step" in reason(accepted(number), action=ACTION)


def test_an_actions_step_has_its_own_key() -> None:
    assert reason(accepted(key="another"), action=ACTION) == "the key is not that of the action's step"


def test_only_the_seal_of_the_decision_opens_an_action() -> None:
    message = [seal(name="a-later-message", at=NOW)]
    assert "not that of the decision" in reason(accepted(seals=message), action=ACTION)


def test_an_action_is_opened_by_its_approver_only() -> None:
    ben = Origin(kind="user", source="app", principal="ben", verified="user-token")
    for origin in (ben, RESTAURANT):
        seals = [seal(name="decision", at=NOW, origin=origin)]
        assert "approver" in reason(accepted(seals=seals), action=ACTION)


@pytest.mark.parametrize("tool, age_ms, then", [
    ("book", 0, "send"), ("book", DAY_MS - TIMEOUT_MS, "send"), ("book", DAY_MS - TIMEOUT_MS + 1, "unknown"),
    ("mail", 0, "unknown"), ("look", 10**9, "send"), ("gone", 0, "unknown"),
])  # fmt: skip
def test_what_may_have_been_sent_is_sent_again_only_where_it_cannot_happen_twice(
    tool: str, age_ms: int, then: str
) -> None:
    assert after_holder(CATALOGUE.tool(tool), NOW, NOW + age_ms) == then


def test_two_deployments_never_share_a_destination_key() -> None:
    assert destination_key("a", "s1", "k") != destination_key("b", "s1", "k")
    assert destination_key("a", "s1", "k") == destination_key("a", "s1", "k")


def test_an_input_may_not_be_named_twice() -> None:
    twice = authority([seal(at=NOW), seal(at=NOW + 1)], "s1", SEAL_KEYS)
    assert isinstance(twice, Rejection)


def test_nobody_acts_in_the_name_of_who_wrote_a_text() -> None:
    raw = CATALOGUE.application
    signed = raw.tools["sign"].model_copy(update={"identity": {"by": "{{ origin.written_by }}"}, "consent": "never"})
    catalogue = Catalogue.of(raw.model_copy(update={"tools": {**raw.tools, "sign": signed}}))
    by_ana = RESTAURANT.model_copy(update={"written_by": "ana"})
    found = admit(
        step("sign", {}, now=NOW, seals=[seal(at=NOW, origin=by_ana)]), "s1", catalogue, SEAL_KEYS, action=None
    )
    assert isinstance(found, Rejection)
    assert found.code == "no_identity"

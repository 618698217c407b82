"""Keys: one hash tag a script, no way out of it, and each service's rights no wider than its families (G10)."""

import fnmatch
import re

import pytest

from libs.contracts.keys import DAY_MS, FAMILIES, SERVICES, Keys, acl_rules

KEYS = Keys("", 16)
SPACED = Keys("ns", 16)
TAG = re.compile(r"\{[^{}]*\}")


def every_key(keys, session="s1"):
    """One key of each family, as some service builds it."""
    found = {}
    for family in FAMILIES:
        match family.tag:
            case "p":
                found[family.name] = keys.of_session(family.name, session)
            case "i":
                found[family.name] = keys.of_event(family.name, "identity", "more")
            case "s":
                found[family.name] = keys.of_subject(family.name, "reservation:r1")
            case "u":
                found[family.name] = keys.of_user(family.name, "ana")
            case "meta":
                found[family.name] = keys.meta(family.name)
    bare = ["admitted", "quarantineindex", "heldindex", "waitingindex", "deadline", "sessions", "expiry", "grant"]
    bare += ["timers", "lease", "trim", "unknown", "lookup", "standinguse", "pauses", "parked", "parkedorder"]
    bare += ["parkedends", "evidencedue"]
    found |= {name: key.rsplit(":", 1)[0] for name, key in found.items() if name in bare}
    messages, due = keys.outbox("session", keys.partition(session))
    return {**found, "outbox": messages, "outboxdue": due}


def allowed(rules, key, *, write):
    """Whether Redis would let a user with these rules use the key; its glob has `*` and no braces, as fnmatch's."""
    marks = ("~",) if write else ("~", "%R~")
    patterns = [rule[len(mark) :] for rule in rules for mark in marks if rule.startswith(mark)]
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def test_families_are_named_once():
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_has_a_time_to_live_or_a_cap(family):
    assert re.search(r"window|days|hold time|ttl|emptied|trimmed|newest|one key|h\)|gone within|day", family.ttl)
    assert family.writers


@pytest.mark.parametrize("keys", [KEYS, SPACED])
def test_every_key_has_one_hash_tag_and_its_namespace(keys):
    for name, key in every_key(keys).items():
        assert len(TAG.findall(key)) == 1, name
        assert key.startswith("tk:ns:{" if keys.namespace else "tk:{")


@pytest.mark.parametrize("session", ["s1", "s2", "dinner"])
def test_the_keys_of_a_session_share_the_tag_of_its_partition(session):
    keys = [KEYS.of_session(name, session) for name in ("state", "timeline", "history", "inbox", "owner")]
    keys += [KEYS.of_session_partition("deadline", session), *KEYS.outbox("session", KEYS.partition(session))]
    keys += [KEYS.outcome_bucket(session, "i1", 5 * DAY_MS), KEYS.binding_bucket(session, "i1", 5 * DAY_MS)]
    assert {TAG.search(key)[0] for key in keys} == {f"{{p{KEYS.partition(session):02}}}"}


def test_the_dedupe_keys_of_an_event_share_a_tag_and_look_at_tomorrow_first():
    now = 10 * DAY_MS + 5
    keys = KEYS.dedupe_days("restaurant", "identity", now, 2 * DAY_MS)
    assert [key.split(":")[4] for key in keys] == ["11", "10", "9", "8"]
    assert len({TAG.search(key)[0] for key in [*keys, KEYS.of_event("event", "identity")]}) == 1


def test_another_source_has_other_dedupe_keys():
    now = 10 * DAY_MS
    assert not set(KEYS.dedupe_days("a", "i", now, DAY_MS)) & set(KEYS.dedupe_days("b", "i", now, DAY_MS))


@pytest.mark.parametrize("subject", ["a}b", "{x}", "a:b", "*", "a b", "ä" * 100])
def test_a_subject_cannot_leave_its_tag(subject):
    key = KEYS.of_subject("subject", subject)
    assert len(TAG.findall(key)) == 1
    assert subject not in key


def test_namespaces_are_apart():
    ours, theirs = set(every_key(KEYS).values()), set(every_key(SPACED).values())
    assert not ours & theirs
    for key in theirs:
        assert not any(allowed(acl_rules(service), key, write=False) for service in SERVICES), key


@pytest.mark.parametrize("keys", [KEYS, SPACED])
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_write_its_own_families_and_read_what_it_reads_and_nothing_else(service, keys):
    rules = acl_rules(service, keys.namespace)
    own = dict(zip(("outbox", "outboxdue"), keys.outbox(service, 4), strict=True))
    for family in FAMILIES:
        key = {**every_key(keys), **own}[family.name]
        assert allowed(rules, key, write=True) == (service in family.writers), family.name
        assert allowed(rules, key, write=False) == (service in (*family.writers, *family.readers)), family.name


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_may_touch_the_outbox_of_another(service):
    for other in set(SERVICES) - {service}:
        for key in KEYS.outbox(other, 0):
            assert not allowed(acl_rules(service), key, write=False)


def test_the_session_service_can_write_neither_owner_nor_action_nor_operation():
    rules = acl_rules("session")
    for name in ("owner", "action", "operation", "binding", "number", "subject", "dedupe"):
        assert not allowed(rules, every_key(KEYS)[name], write=True)


def test_a_user_starts_from_nothing_and_gets_no_dangerous_command():
    rules = acl_rules("tools")
    assert rules[:2] == ["resetchannels", "-@all"]
    for command in ("flushall", "config", "config|set", "eval", "keys", "script", "acl", "debug", "shutdown", "@all"):
        assert f"+{command}" not in rules

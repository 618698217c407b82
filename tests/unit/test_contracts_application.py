"""The application file: a wrong one is refused whole, each fault by its path, and no secret in the text."""

import copy

import pytest
import yaml

from libs.contracts.application import ApplicationError, load_application, parse_application, resolve_secret, seconds

CONNECTOR = {"python": {"function": "a:b"}}
GOOD = {
    "sources": {
        "app": {"verify": {"scheme": "user-token"}},
        "shop": {
            "verify": {"scheme": "standard-webhooks", "secrets": ["env:S"]},
            "route": {"subject": "order:{{ data.id }}"},
            "types": {"order.*": {}, "order.gone": {"gone": True}},
        },
        "cinema": {
            "verify": {"scheme": "hmac", "secrets": ["env:C"], "header": "x-sig", "id_header": "x-id"},
            "route": {"session": "{{ data.s }}"},
        },
    },
    "tools": {"pay": {"connector": CONNECTOR}, "look": {"effect": "read", "connector": CONNECTOR}},
    "planner": {"scripted": {"rules": "rules.yaml"}},
}
GONE = object()


def changed(*changes):
    raw = copy.deepcopy(GOOD)
    for path, value in changes:
        *parents, last = path.split("/")
        part = raw
        for name in parents:
            part = part[name]
        if value is GONE:
            del part[last]
        else:
            part[last] = value
    return raw


def faults(*changes):
    with pytest.raises(ApplicationError) as refused:
        parse_application(changed(*changes), "turnkeeper.yaml")
    return refused.value.faults


def test_a_good_file_is_read():
    application = parse_application(GOOD, "x")
    assert application.user_source == "app"
    assert application.sources["shop"].dedupe.window == 96 * 3600
    assert application.sources["shop"].unrouted.hold == 600
    assert application.session.caps.steps == 20


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("colour", "red", "colour"),
        ("sources", {}, "sources"),
        ("planner", GONE, "planner"),
        ("sources/a.b", {"verify": {"scheme": "user-token"}}, "sources.a.b.[key]"),
        ("sources/shop/verify", GONE, "sources.shop.verify"),
        ("sources/shop/verify/scheme", "none", "sources.shop.verify"),
        ("sources/shop/verify/secrets", [], "sources.shop.verify.standard-webhooks.secrets"),
        ("sources/shop/verify/tolerance", "5 minutes", "sources.shop.verify.standard-webhooks.tolerance"),
        ("sources/shop/verify/tolerance", 0, "sources.shop.verify.standard-webhooks.tolerance"),
        ("sources/shop/verify/tolerance", float("inf"), "sources.shop.verify.standard-webhooks.tolerance"),
        ("sources/shop/verify/tolerance", float("nan"), "sources.shop.verify.standard-webhooks.tolerance"),
        ("sources/shop/dedupe", {"window": "99999999d"}, "sources.shop.dedupe.window"),
        ("sources/shop/route", GONE, "sources.shop"),
        ("sources/shop/route", {}, "sources.shop.route"),
        ("sources/shop/route/session", "x", "sources.shop.route"),
        ("sources/shop/route/subject", "{{ data.id", "sources.shop.route.subject"),
        ("sources/shop/unrouted", {"hold": "1m", "reject": True}, "sources.shop.unrouted"),
        ("sources/shop/kind", "user", "sources.shop"),
        ("sources/shop/types", {"a": {"goner": True}}, "sources.shop.types.a.goner"),
        ("sources/app/route", {"session": "x"}, "sources.app"),
        ("sources/cinema/verify/signed", "{id}", "sources.cinema.verify.hmac"),
        ("sources/cinema/verify/signed", "{timestamp}.{body}", "sources.cinema.verify.hmac"),
        ("sources/cinema/verify/timestamp_header", "x-time", "sources.cinema.verify.hmac"),
        ("sources/cinema/verify/id_header", GONE, "sources.cinema.verify.hmac"),
        ("sources/cinema/verify/header", GONE, "sources.cinema.verify.hmac.header"),
        ("tools/pay/connector", {}, "tools.pay.connector"),
        ("tools/pay/connector", {"python": {"function": "no colon"}}, "tools.pay.connector.python.function"),
        ("tools/pay/args", {"type": "strnig"}, "tools.pay"),
        ("tools/pay/args", {"type": "array"}, "tools.pay"),
        ("tools/pay/consent", "sometimes", "tools.pay.consent"),
        ("tools/pay/ask", "{{", "tools.pay.ask"),
        ("tools/pay/keyed", {"for": "soon"}, "tools.pay.keyed.for"),
        ("tools/pay/lookup", {"tool": "nothing"}, "tools.pay.lookup.tool"),
        (
            "tools/pay/connector",
            {"sandbox": {"collection": "none", "verb": "put"}},
            "tools.pay.connector.sandbox",
        ),
        ("sources/second", {"verify": {"scheme": "user-token"}}, "sources"),
        ("session", {"caps": {"steps": 0}}, "session.caps.steps"),
        ("session", {"action_ttl": True}, "session.action_ttl"),
    ],
)
def test_a_wrong_file_names_the_path_of_its_fault(path, value, where):
    (fault,) = faults((path, value))
    assert fault.startswith(f"{where}: ")


def test_every_fault_is_listed():
    found = faults(
        ("colour", 1), ("tools/pay/consent", "x"), ("sources/shop/route", {}), ("session", {"caps": {"a": 1}})
    )
    assert len(found) == 4


def test_names_that_do_not_exist_are_listed_one_by_one():
    elsewhere = {"sandbox": {"collection": "none", "verb": "put"}}
    found = faults(("tools/pay/connector", elsewhere), ("sources/second", {"verify": {"scheme": "user-token"}}))
    assert [fault.partition(":")[0] for fault in found] == ["tools.pay.connector.sandbox", "sources"]


@pytest.mark.parametrize("whole", [None, [], "text", 3])
def test_what_is_no_mapping_is_one_fault_of_the_file(whole):
    with pytest.raises(ApplicationError) as refused:
        parse_application(whole, "x")
    assert refused.value.faults[0].startswith("file: ")


SECRET = "whsec_c2VjcmV0LXNlY3JldA"


@pytest.mark.parametrize("text", ["a: [\n  secrets: {0}", "a: {0}: {0}", "\tsecrets: {0}", "a: *{0}", "a: !!x {0}"])
def test_a_file_that_is_not_yaml_is_told_by_line_without_its_text(tmp_path, text):
    path = tmp_path / "turnkeeper.yaml"
    path.write_text(text.replace("{0}", SECRET))
    with pytest.raises(ApplicationError) as refused:
        load_application(path)
    assert "line " in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_secret_in_a_wrong_place_is_not_told():
    for found in (
        faults(("sources/shop/verify/secrets", SECRET)),
        faults(("sources/shop/verify/secrets", [{SECRET: 1}])),
        faults(("sources/shop/verify/tolerance", SECRET)),
    ):
        assert SECRET not in " ".join(found)


def test_a_file_that_is_not_there_or_not_text_is_a_fault(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ApplicationError, match="file: "):
            load_application(path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ApplicationError, match="file: not YAML"):
        load_application(tmp_path / "b.yaml")


def test_the_example_is_a_good_file(pytestconfig):
    load_application(pytestconfig.rootpath / "examples/dinner/turnkeeper.yaml")


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("5m", 300), ("96h", 345_600), ("1.5d", 129_600), (3, 3), (0.25, 0.25)]
)
def test_durations_are_read_in_seconds(text, value):
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "5 m", "-5m", "m", True, None, [], "5w", "١m"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError):
        seconds(text)


def test_a_secret_is_read_from_where_its_reference_points(tmp_path):
    path = tmp_path / "secret"
    path.write_text("s3\n")
    assert resolve_secret("env:A", {"A": "s1"}) == "s1"
    assert resolve_secret("env:A", {"A_FILE": str(path)}) == "s3"
    assert resolve_secret(f"file:{path}", {}) == "s3"


@pytest.mark.parametrize("reference", ["env:A", "file:/nowhere", SECRET, "", "file:/"])
def test_a_secret_that_is_not_there_is_named_by_reference_only(reference):
    with pytest.raises(ValueError) as refused:
        resolve_secret(reference, {})
    assert SECRET not in str(refused.value)


def test_an_empty_secret_file_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        resolve_secret(f"file:{path}", {})


def test_a_type_has_its_own_meaning_before_that_of_a_pattern():
    shop = parse_application(GOOD, "x").sources["shop"]
    assert shop.meaning("order.gone").gone
    assert not shop.meaning("order.new").gone
    assert not shop.meaning("other").gone


def test_the_yaml_of_a_good_file_round_trips():
    assert parse_application(yaml.safe_load(yaml.safe_dump(GOOD)), "x") == parse_application(GOOD, "x")


def test_every_application_has_timers():
    application = parse_application(GOOD, "x")
    assert list(application.tools) == ["pay", "look", "set_timer", "cancel_timer"]
    assert application.tools["set_timer"].gate == "unless-user"
    assert list(parse_application(changed(("tools", {})), "x").tools) == ["set_timer", "cancel_timer"]
    assert list(parse_application(changed(("tools", GONE)), "x").tools) == ["set_timer", "cancel_timer"]


@pytest.mark.parametrize("name", ["set_timer", "cancel_timer"])
def test_the_names_of_built_in_tools_are_reserved(name):
    assert faults((f"tools/{name}", {"connector": CONNECTOR})) == [
        f"tools.{name}: the name is reserved for the built-in tool"
    ]


def test_timers_are_reached_by_the_built_in_tools_alone():
    assert faults(("tools/pay/connector", {"timer": {"verb": "set"}})) == [
        "tools.pay.connector.timer: only the built-in tools use it"
    ]


def test_a_look_up_neither_writes_nor_wants_an_origin():
    lookup = ("tools/pay/lookup", {"tool": "look", "result": "{{ found.one }}", "stands": "{{ found.one.held }}"})
    assert parse_application(changed(lookup), "x").tools["pay"].lookup.result == "{{ found.one }}"
    assert "writes" in faults(("tools/pay/lookup", {"tool": "pay"}))[0]
    assert "an origin" in faults(lookup, ("tools/look/identity", {"by": "{{ origin.principal }}"}))[0]
    assert "template" in faults(("tools/pay/lookup", {"tool": "look", "result": "{{ found."}))[0]


@pytest.mark.parametrize(
    ("condition", "look", "says"),
    [
        ({"tool": "none"}, {}, "tools.pay.precondition.tool: there is no tool 'none'"),
        ({"tool": "look"}, {"effect": "write"}, "tools.pay.precondition.tool: look writes; a precondition must not"),
        ({"tool": "look"}, {"consent": "always"}, "look asks its owner; a precondition is read without asking"),
        ({"tool": "look"}, {"identity": {"by": "{{ origin.principal }}"}}, "look wants an origin"),
        ({"tool": "look", "digest": "{{"}, {}, "tools.pay.precondition.digest: template"),
    ],
)
def test_a_precondition_is_a_reading_that_needs_nobody(condition, look, says):
    tool = {"effect": "read", "connector": CONNECTOR, **look}
    found = faults(("tools/pay/precondition", condition), ("tools/look", tool))
    assert any(says in fault for fault in found), found


@pytest.mark.parametrize("gate", ["never", "always"])
def test_only_what_is_asked_at_times_can_be_granted_in_advance(gate):
    (fault,) = faults(("tools/pay/standing", True), ("tools/pay/consent", gate))
    assert fault.startswith("tools.pay: standing:")
    assert parse_application(changed(("tools/pay/standing", True)), "x").tools["pay"].standing

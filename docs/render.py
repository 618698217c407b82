"""Render `docs/{state,messages,settings,door}.md` from the code, so that they cannot disagree.

make docs                        write them

python docs/render.py            write them
python docs/render.py --check    exit 1 when one of them is out of date
"""

import sys
from pathlib import Path

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from libs.contracts.codec import MESSAGES
from libs.contracts.door import CHECKS
from libs.contracts.envelope import Envelope
from libs.contracts.keys import FAMILIES, acl_rules
from libs.contracts.topology import BROKER_USERS, Topology, permissions
from libs.runtime.settings import RuntimeSettings
from services.consent.settings import ConsentSettings
from services.ingress.settings import IngressSettings
from services.session.settings import SessionSettings
from services.tools.settings import ToolsSettings

HERE = Path(__file__).parent
TAGS = {
    "i": "`{iNN}`: shard of an event's identity",
    "s": "`{sNN}`: shard of a subject",
    "p": "`{pNN}`: partition of a session",
    "u": "`{uNN}`: shard of a user",
    "meta": "`{meta}`: the deployment",
}
SETTINGS: dict[str, type[RuntimeSettings]] = {
    "ingress": IngressSettings,
    "session": SessionSettings,
    "consent": ConsentSettings,
    "tools": ToolsSettings,
}


def state() -> str:
    """Every key family: tag, type, writers, time to live, bytes."""
    lines = [
        "# State in Redis",
        "",
        "Rendered from `libs/contracts/keys.py` by `make docs`. A key reads `tk:{tag}:family:…`, with a namespace "
        "`tk:NAMESPACE:{tag}:family:…`. All keys of one script share one tag, so the same code runs on one Redis, on "
        "Sentinel and on a cluster. `NN` is a partition or shard number. Every family has a time to live or a cap.",
    ]
    for tag, title in TAGS.items():
        lines += ["", f"## {title}", "", "| family | holds | type | written by | read by | lives | bytes |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| `{f.name}` | {f.holds} | {f.type} | {', '.join(f.writers)} | {', '.join(f.readers)} "
            f"| {f.ttl} | {f.bytes} |"
            for f in FAMILIES
            if f.tag == tag
        ]
    lines += ["", "## Who may touch what", "", "The Redis ACL of each service, from the same table:", ""]
    for service in ("ingress", "session", "consent", "tools"):
        patterns = [rule for rule in acl_rules(service) if "~" in rule]
        lines += [f"- **{service}**: " + " ".join(f"`{pattern}`" for pattern in patterns)]
    return "\n".join(lines) + "\n"


def messages() -> str:
    """Every message, its fields, and the topology that carries it."""
    lines = [
        "# Messages",
        "",
        "Rendered from `libs/contracts` by `make docs`. Each AMQP message between services is a bundle: a JSON array "
        "of envelopes for one queue. Notices travel alone. A golden JSON Schema of each message lies in "
        "`libs/contracts/schemas`; a test fails when a message changes in a way that its readers would not survive.",
        "",
        "## The envelope",
        "",
        "| field | meaning |",
        "|---|---|",
    ]
    properties = Envelope.model_json_schema()["properties"]
    meanings = {
        "id": "stable across attempts, derived from type, session and what it is about",
        "type": "wire name",
        "session": "the session it belongs to, which is also its lane",
        "cause": "id of the message or input that led to it",
        "correlation": "id of the input from outside that all began with",
        "depth": "causation depth: how many turns led here",
        "trace": "W3C traceparent",
        "epoch": "store epoch that the sender saw",
        "at": "when it was made, ms (Unix)",
        "body": "the message",
    }
    lines += [f"| `{name}` | {meanings[name]} |" for name in properties]
    for type_, message in sorted(MESSAGES.items()):
        lines += ["", f"## `{type_}`", "", f"To: {message.TO}. " + " ".join((message.__doc__ or "").split()), ""]
        schema = message.model_json_schema()
        lines += ["| field | type | required |", "|---|---|---|"]
        required = schema.get("required", [])
        lines += [
            f"| `{name}` | {_type(field)} | {'yes' if name in required else 'no'} |"
            for name, field in schema["properties"].items()
        ]
    return "\n".join([*lines, "", *_topology()]) + "\n"


def _type(field: dict[str, object]) -> str:
    if "enum" in field:
        return " ".join(f"`{value}`" for value in field["enum"])  # type: ignore[attr-defined]
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "items" in field:
        return f"list of {_type(field['items'])}"  # type: ignore[arg-type]
    return str(field.get("type", "JSON"))


def _topology() -> list[str]:
    topology = Topology()
    lines = ["## Exchanges and queues", "", "| exchange | type | bound queues |", "|---|---|---|"]
    for exchange in topology.exchanges():
        bound = [f"`{b.queue}` ({b.routing_key or '-'})" for b in topology.bindings() if b.exchange == exchange.name]
        shown = ", ".join(bound if len(bound) < 6 else [*bound[:2], "…", bound[-1]]) or "applications bind their own"
        lines.append(f"| `{exchange.name}` | {exchange.type} | {shown} |")
    lines += ["", "## Broker users", "", "| user | configure | write | read |", "|---|---|---|---|"]
    for user in BROKER_USERS:
        granted = permissions(user)
        cells = (granted[what].replace("|", "\\|") for what in ("configure", "write", "read"))
        lines.append(f"| {user} | " + " | ".join(f"`{cell}`" for cell in cells) + " |")
    return lines


def settings() -> str:
    """Every environment variable of the services, from the descriptions of the settings' fields."""
    lines = [
        "# Settings",
        "",
        "Rendered from the settings classes by `make docs`. Each is an environment variable, or a file of the same "
        "name in lower case under `/run/secrets`. A service reads them once, at its start, and lists every fault at "
        "once, without values. What an application is (sources, tools, limits of a turn) stands in `turnkeeper.yaml`.",
        "",
        "## Every service",
        "",
        *_settings_table(RuntimeSettings.model_fields),
    ]
    common = set(RuntimeSettings.model_fields)
    for service, kind in SETTINGS.items():
        own = {name: field for name, field in kind.model_fields.items() if name not in common}
        lines += ["", f"## {service}", "", *_settings_table(own)]
    return "\n".join(lines) + "\n"


def _settings_table(fields: dict[str, FieldInfo]) -> list[str]:
    rows = [
        f"| `TURNKEEPER_{name.upper()}` | {_default(field)} | {_bounds(field)} | {field.description} |"
        for name, field in fields.items()
    ]
    return ["| variable | default | bounds | meaning |", "|---|---|---|---|", *rows]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    if field.default_factory is not None:
        return "(host name)"
    value = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
    return "" if value in (None, "") else f"`{value}`"


def _bounds(field: FieldInfo) -> str:
    """The limits that pydantic checks, for people."""
    limits = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    found = [f"{sign} {getattr(rule, name)}" for rule in field.metadata for name, sign in limits if hasattr(rule, name)]
    return ", ".join(found)


def door() -> str:
    """What the door checks, in order, with what each check answers."""
    lines = [
        "# What the door checks",
        "",
        "Rendered from `libs/contracts/door.py` by `make docs`. The door is the only way to a side effect. It makes "
        "these checks in this order, and of two faults tells the first. Nothing is sent, and no key is claimed, where "
        "one of them says no. The checks of `key`, `binding` and `grant` are one script in the store, together with "
        "the claim.",
        "",
        "The answer to the session (`tools.step_finished.v1`) carries `state`, `code`, `status` and a `reason` for "
        "people; the log has one line, `step.turned_away`, with `check`, `code`, `state` and `status`, a warning for "
        "wrong seals; the metric `turnkeeper_tools_operations_total{tool,outcome}` counts the state. A key that is "
        "known is answered with its stored outcome (`replay: true`) and has no code.",
        "",
        "| # | check | code | state | status | when |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {number} | {check.stage} | `{check.code}` | `{check.state}` | {check.status} | {check.means} |"
        for number, check in enumerate(CHECKS, start=1)
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check."""
    rendered = {
        HERE / "state.md": state(),
        HERE / "messages.md": messages(),
        HERE / "settings.md": settings(),
        HERE / "door.md": door(),
    }
    if "--check" in sys.argv:
        stale = [path.name for path, text in rendered.items() if not path.exists() or path.read_text() != text]
        print(f"docs: out of date: {', '.join(stale)}; run make docs" if stale else "docs: up to date")
        return 1 if stale else 0
    for path, text in rendered.items():
        path.write_text(text)
    print(f"docs: wrote {', '.join(path.name for path in rendered)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

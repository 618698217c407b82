"""Who may do what over HTTP: one row for each route of the four services, and the credentials that are tried on it.

The routes are read from the services' own applications, so a new one without a row fails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute, Mount, Route

from libs.runtime import health
from services.consent.edge import Edge as ConsentEdge
from services.consent.standing import StandingEdge
from services.ingress.edge import Edge as IngressEdge
from services.ingress.main import application_of
from services.ingress.operators import OperatorRoutes
from services.ingress.timer_routes import TimerRoutes
from services.session.edge import make_app
from services.tools.edge import Edge as ToolsEdge
from services.tools.edge import create_app
from services.tools.evidence_edge import EvidenceEdge, add_evidence_routes
from services.tools.stopping import Stopping
from services.tools.stopping import add_routes as add_pause_routes

Who = Literal["everybody", "sender", "owner", "operator", "owner or operator"]
SCOPES = ("read", "sessions", "resolve", "release", "pause")


@dataclass(frozen=True)
class Row:
    """Who may call a route. `scope` is the operator's; `body` and `headers` make a call that goes through."""

    who: Who
    scope: str = ""
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    foreign: int = 403
    """What another user's valid token gets: 401 where no user has anything to do."""


_OPEN = Row("everybody")
_KEYED = {"Idempotency-Key": "tried-by-somebody"}
_READ = Row("operator", "read", foreign=401)
_PAUSE = Row("operator", "pause", foreign=401)
_OF_USER = Row("owner")
_OF_OWNER = Row("owner or operator", "read")
ROWS: dict[tuple[str, str, str], Row] = {
    **{
        (service, "GET", path): _OPEN
        for service in ("ingress", "session", "consent", "tools")
        for path in ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json")
    },
    ("consent", "GET", "/docs/oauth2-redirect"): _OPEN,
    ("tools", "GET", "/docs/oauth2-redirect"): _OPEN,
    # what the application can do is no secret of a session's
    ("tools", "GET", "/v1/tools"): _OPEN,
    # public keys: whoever keeps heads checks them with these
    ("tools", "GET", "/v1/evidence/keys"): _OPEN,
    ("ingress", "POST", "/v1/events/{source}"): Row("sender", body={"type": "table.note", "data": {}}, foreign=401),
    ("ingress", "POST", "/v1/sessions/{session}/messages"): Row("owner", body={"text": "hello"}, headers=_KEYED),
    ("ingress", "POST", "/v1/sessions/{session}/cancel"): Row("owner", body={}, headers=_KEYED),
    ("ingress", "PUT", "/v1/sessions/{session}"): Row("operator", "sessions", {"owner": "mallory"}, foreign=401),
    ("ingress", "GET", "/v1/events/{source}/{event_id:path}"): _READ,
    ("ingress", "GET", "/v1/held"): _READ,
    ("ingress", "POST", "/v1/held/release"): Row(
        "operator", "release", {"subject": "reservation:held", "session": "{session}"}, foreign=401
    ),
    ("ingress", "GET", "/v1/quarantine"): _READ,
    ("ingress", "GET", "/v1/quarantine/{id}"): _READ,
    ("ingress", "POST", "/v1/quarantine/{id}/release"): Row("operator", "release", {}, foreign=401),
    ("ingress", "GET", "/v1/log"): _READ,
    ("ingress", "GET", "/v1/sessions/{session}/timers"): _OF_OWNER,
    ("session", "GET", "/v1/sessions"): _READ,
    ("session", "GET", "/v1/sessions/{session}"): _OF_OWNER,
    ("session", "GET", "/v1/sessions/{session}/timeline"): _OF_OWNER,
    ("session", "GET", "/v1/sessions/{session}/history"): _READ,
    ("session", "GET", "/v1/sessions/{session}/record"): _READ,
    ("session", "POST", "/v1/sessions/{session}/explain"): Row(
        "owner or operator", "read", {"text": "hello", "as": "ana"}
    ),
    ("consent", "GET", "/v1/sessions/{session}/actions"): _OF_OWNER,
    ("consent", "GET", "/v1/sessions/{session}/actions/{action}"): _OF_OWNER,
    ("consent", "POST", "/v1/sessions/{session}/actions/{action}/decision"): Row(
        "owner", body={"decision": "accept", "question_digest": "{digest}"}
    ),
    ("consent", "GET", "/v1/users/{user}/standing"): _OF_USER,
    ("consent", "POST", "/v1/users/{user}/standing"): Row(
        "owner", body={"tool": "reserve_table", "limits": {}, "uses": 1, "ends_at": 1}, headers=_KEYED
    ),
    ("consent", "DELETE", "/v1/users/{user}/standing"): _OF_USER,
    ("consent", "GET", "/v1/users/{user}/standing/{id}"): _OF_USER,
    ("consent", "DELETE", "/v1/users/{user}/standing/{id}"): _OF_USER,
    ("tools", "GET", "/v1/sessions/{session}/evidence"): _READ,
    ("tools", "POST", "/v1/sessions/{session}/evidence/seals"): Row("operator", "read", {"seals": {}}, foreign=401),
    ("tools", "GET", "/v1/pauses"): _READ,
    ("tools", "POST", "/v1/pauses"): Row(
        "operator", "pause", {"kind": "session", "name": "{session}", "wait_seconds": 0}, foreign=401
    ),
    ("tools", "DELETE", "/v1/pauses/{kind}"): _PAUSE,
    ("tools", "DELETE", "/v1/pauses/{kind}/{name}"): _PAUSE,
    ("tools", "GET", "/v1/operations"): _READ,
    ("tools", "GET", "/v1/operations/{session}/{operation}"): _READ,
    ("tools", "POST", "/v1/sessions/{session}/operations/{operation}/resolve"): Row(
        "operator", "resolve", {"state": "failed", "note": "said by somebody"}, foreign=401
    ),
}


def every_route() -> Iterator[tuple[str, str, str]]:
    """(service, method, path) of each route that a service serves."""
    nothing: Any = None
    edge, operators, timers = (object.__new__(kind) for kind in (IngressEdge, OperatorRoutes, TimerRoutes))
    consent, tools = object.__new__(ConsentEdge).app(), create_app(object.__new__(ToolsEdge))
    object.__new__(StandingEdge).add_to(consent)
    add_pause_routes(tools, object.__new__(Stopping))
    add_evidence_routes(tools, object.__new__(EvidenceEdge))
    apps = {
        "ingress": application_of(edge, operators, timers),
        "session": make_app(nothing, nothing, nothing, nothing, nothing, stopping=nothing, most_streams=1),
        "consent": consent,
        "tools": tools,
    }
    for service, app in apps.items():
        whole = health.routes(CollectorRegistry(), {}, app, [])
        yield from ((service, method, path) for method, path in _routes(whole.routes))


def _routes(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _routes(list(route.routes))
        elif isinstance(route, Route):
            yield from ((method, route.path) for method in sorted((route.methods or set()) - {"HEAD"}))
        else:
            raise AssertionError(f"{route!r} is a kind of route that is not known here")


def refused(row: Row, who: str) -> int:
    """The status that credentials of this name get, 0 where they are let in.

    `who` is none, garbage, expired, wrong key, no algorithm, other user, owner, operator, or `only <scope>`.
    """
    if row.who == "everybody":
        return 0
    if row.who == "sender":
        return 401  # bearer tokens are nothing to a source that signs
    if who == "owner":
        return 0 if "owner" in row.who else 401
    if who == "other user":
        return row.foreign
    if who == "operator":
        return 0 if "operator" in row.who else 401
    if who.startswith("only "):
        if "operator" not in row.who:
            return 401
        return 0 if who == f"only {row.scope}" else 403
    return 401

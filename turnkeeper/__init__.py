"""Turnkeeper, for programs: the clients, the decorators that serve a planner or a tool, and what signs an event.

    from turnkeeper import AsyncClient, Client, planner, sign, tool

Each name is loaded when it is first asked for: a tool that only says `turnkeeper.Refusal` pays for nothing else.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libs.contracts.refusals import NotDone, Refusal
    from libs.contracts.session import Step, TimelineLine
    from turnkeeper.async_client import AsyncClient
    from turnkeeper.client import Action, Answer, Client, ClientError, Receipt, Refused, TargetError, Unreachable
    from turnkeeper.serving import Plan, Planner, Tool, View, asgi, planner, serve, tool
    from turnkeeper.signing import Outward, SigningError, sign

_HOMES = {
    "libs.contracts.refusals": ("NotDone", "Refusal"),
    "libs.contracts.session": ("Step", "TimelineLine"),
    "turnkeeper.async_client": ("AsyncClient",),
    "turnkeeper.client": (
        "Action", "Answer", "Client", "ClientError", "Receipt", "Refused", "TargetError", "Unreachable",
    ),
    "turnkeeper.serving": ("Plan", "Planner", "Tool", "View", "asgi", "planner", "serve", "tool"),
    "turnkeeper.signing": ("Outward", "SigningError", "sign"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Action",
    "Answer",
    "AsyncClient",
    "Client",
    "ClientError",
    "NotDone",
    "Outward",
    "Plan",
    "Planner",
    "Receipt",
    "Refusal",
    "Refused",
    "SigningError",
    "Step",
    "TargetError",
    "TimelineLine",
    "Tool",
    "Unreachable",
    "View",
    "asgi",
    "planner",
    "serve",
    "sign",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)

"""Principals as the application file names them (`kind[:source[:principal]]`), and what they may cause (G3).

One judgement for all who need it: the session asks by it, consent refuses to ask by it, and the door holds it.
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import AfterValidator

from libs.contracts.ids import is_slug
from libs.contracts.origin import Origin, OriginKind

if TYPE_CHECKING:
    from libs.contracts.application import Application, Tool

ACTOR_HEADER = "Turnkeeper-Actor"
"""Tells a destination who acts. Only the door sets it, from the sealed origin."""
AGENT = "agent"
"""Who acts in every turn but an actor's own: the agent."""
ANYBODY = "*"
_AUTHOR = re.compile(r"[A-Za-z0-9._@+-]{1,64}")


def is_author(text: str) -> bool:
    """Whether `text` may say who wrote an event: a login, an address or an id, never a sentence, since it is shown in
    questions and somebody else chose it."""
    return _AUTHOR.fullmatch(text) is not None


def _checked(pattern: str) -> str:
    _parsed(pattern)
    return pattern


@lru_cache(maxsize=1024)
def _parsed(pattern: str) -> tuple[str, str, str]:
    kind, *rest = pattern.split(":")
    if kind not in get_args(OriginKind):
        raise ValueError(f"{pattern[:80]!r} does not begin with one of {', '.join(get_args(OriginKind))}")
    if len(rest) > 2 or any(part != ANYBODY and not is_slug(part) for part in rest):
        raise ValueError(f"{pattern[:80]!r} is not kind, kind:source or kind:source:principal; * is any")
    source, principal = (*rest, ANYBODY, ANYBODY)[:2]
    return kind, source, principal


PrincipalPattern = Annotated[str, AfterValidator(_checked)]
"""`user`, `webhook:restaurant`, `system:broker:nightly`; `*` stands for any source or principal."""


def source_of(pattern: str) -> str:
    """The source that a pattern names; "*" for any."""
    return _parsed(pattern)[1]


def kind_of(pattern: str) -> str:
    """The kind of origin that a pattern names."""
    return _parsed(pattern)[0]


def fits(pattern: str, origin: Origin) -> bool:
    """Whether a pattern means this origin. Who wrote what it signed plays no part."""
    kind, source, principal = _parsed(pattern)
    return kind == origin.kind and source in (ANYBODY, origin.source) and principal in (ANYBODY, origin.principal)


def may_cause(tool: "Tool", origin: Origin) -> bool:
    """Whether the tool's `caused_by` lets this origin; a tool without one lets anybody, within its `consent`."""
    return tool.caused_by is None or any(fits(pattern, origin) for pattern in tool.caused_by)


def is_granted(application: "Application", tool: str, origin: Origin) -> bool:
    """Whether `principals` lets this origin cause the tool without asking. What always asks is never granted."""
    if application.tools[tool].gate == "always":
        return False
    return any(
        tool_fits(wanted, tool)
        for pattern, tools in application.principals.items()
        if fits(pattern, origin)
        for wanted in tools
    )


def tool_fits(pattern: str, tool: str) -> bool:
    """Whether a pattern of tools (`text_*`) means this one. Only `*` is special."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), tool) is not None


def runs_freely(application: "Application", tool: str, origin: Origin, *, alone: bool) -> bool:
    """Whether a turn of this origin may have this tool run without its owner's yes.

    `alone`: nothing but the user's own words was in the planner's view. The door cannot know that; it asks with True
    and holds what it can, that every seal is the user's.
    """
    if not may_cause(application.tools[tool], origin):
        return False
    match application.tools[tool].gate:
        case "never":
            return True
        case "always":
            return False
        case "unless-user":
            return origin.kind == "user" or is_granted(application, tool, origin)
        case "unless-user-alone":
            return (origin.kind == "user" and alone) or is_granted(application, tool, origin)


def actor_of(origin: str) -> str:
    """Who acts, for `Turnkeeper-Actor`, from a sealed origin as one text (`kind source principal`): an actor by its own
    id, else the agent."""
    kind, _, rest = origin.partition(" ")
    return rest.split(" ")[1] if kind == "actor" and " " in rest else AGENT

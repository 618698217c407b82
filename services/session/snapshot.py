"""A session as its owner holds it in memory: the stored state, its version, and what the planner is shown."""

from dataclasses import dataclass, field

from libs.contracts.canonical import JSON
from libs.contracts.ingress import Input
from services.session.domain.state import SessionState


@dataclass
class Snapshot:
    """The version check at commit makes a stale one harmless. `bodies` holds inputs that were read already."""

    state: SessionState
    version: int
    history: list[dict[str, JSON]]
    bodies: dict[int, Input] = field(default_factory=dict)
    recorded: bool = False
    """Whether the newest entry of the record led to this version, and can be decided again."""

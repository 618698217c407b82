"""What the planner is shown of an input, once it is the planner's business."""

from libs.contracts.canonical import JSON
from libs.contracts.ingress import Input


def entry_of(input: Input) -> dict[str, JSON]:
    """The history entry of an input: the owner's words are theirs, everything else is data with its source (G7).

    Made when the input's turn begins or when it joins one, not when it arrives: what waits behind a turn of another
    origin is before that turn's planner in no form (design §4.2).
    """
    if input.kind == "message" and input.origin.kind == "user":
        return {"kind": "user", "text": text_of(input.data)}
    author: dict[str, JSON] = {"written_by": input.origin.written_by} if input.origin.written_by else {}
    return {
        "kind": "event",
        "source": input.source,
        **author,
        "verified": input.origin.verified,
        "event": input.event,
        "type": input.type,
        "data": input.data,
    }


def text_of(data: JSON) -> str:
    """The text of a message's body."""
    return str(data.get("text", "")) if isinstance(data, dict) else ""

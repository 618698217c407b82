"""Bytes to messages and back. The only place that knows the wire form.

One AMQP message holds a *bundle*: a JSON array of envelopes for the same queue. Notices travel alone, since
applications subscribe to them.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from libs.contracts import consent, ingress, session, tools
from libs.contracts.envelope import Envelope, Message
from libs.contracts.errors import ContractError

BUNDLE_TYPE = "application/vnd.turnkeeper.bundle+json"
MESSAGE_TYPE = "application/vnd.turnkeeper.message+json"
MAX_BUNDLE_MEMBERS = 64
MAX_BUNDLE_BYTES = 256 * 1024


def _messages() -> Iterable[type[Message]]:
    for module in (ingress, session, consent, tools):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value.__module__ == module.__name__:
                yield value


MESSAGES: dict[str, type[Message]] = {message.wire_type(): message for message in _messages()}


def encode(envelope: Envelope, message: Message | None = None) -> bytes:
    """One envelope as JSON bytes; a message that is given takes the place of the body, in a third of the time."""
    if message is None:
        return orjson.dumps(envelope.model_dump())
    return orjson.dumps({**envelope.__dict__, "body": orjson.Fragment(to_json(message))})


def to_json(model: BaseModel, *, exclude_defaults: bool = False) -> bytes:
    """A model as JSON bytes. As `model_dump_json`, without the text in between. Raises ValueError."""
    return model.__pydantic_serializer__.to_json(model, exclude_defaults=exclude_defaults)


def join(members: Iterable[bytes]) -> bytes:
    """Encoded envelopes as one bundle."""
    return b"[" + b",".join(members) + b"]"


def split(raw: bytes) -> list[Any]:
    """The members of a bundle, not yet validated. Raises ContractError if it is no JSON array, or one of too many."""
    try:
        members = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ContractError(f"a bundle that is not JSON: {error}") from error
    if not isinstance(members, list):
        raise ContractError("a bundle that is not a JSON array")
    if len(members) > MAX_BUNDLE_MEMBERS:
        raise ContractError(f"a bundle of {len(members)} members, where {MAX_BUNDLE_MEMBERS} are the most")
    return members


def decode(member: Any) -> tuple[Envelope, Message]:
    """One member of a bundle as envelope and message. Raises ContractError with the first fault by path."""
    try:
        envelope = Envelope.model_validate(member)
        message = MESSAGES.get(envelope.type)
        if message is None:
            raise ContractError(f"unknown wire type {envelope.type[:80]!r}")
        return envelope, message.model_validate(envelope.body)
    except RecursionError as error:
        raise ContractError("nested too deeply") from error
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        path = ".".join(str(part) for part in fault["loc"])
        raise ContractError(f"{path or 'message'}: {fault['msg']}") from error

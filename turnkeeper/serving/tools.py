"""A tool that is a function: its parameters are the tool's arguments, checked before it is called."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from libs.contracts.refusals import Refusal

P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_PORT = 9002
KEY_PARAMETER = "idempotency_key"


class Tool(Generic[P, R]):
    """A function that acts, and the ways to serve it. Call it as the function that it was."""

    def __init__(self, function: Callable[P, R]) -> None:
        """Raises TypeError for a function whose parameters cannot be named by a JSON object."""
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__name__", "tool")
        self._function = function
        self._arguments, self.wants_key = _arguments(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns."""
        return self._function(*args, **kwargs)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments, for `args` of the tool in the application file."""
        return self._arguments.model_json_schema()

    async def run(self, body: bytes, key: str) -> Any:
        """Call it with the arguments of a JSON object. `key` goes to the parameter `idempotency_key`, if there is one.

        A function that is no coroutine runs in a thread. Raises Refusal for arguments that do not fit, which names them
        and not their values, and what the function raises.
        """
        try:
            read = self._arguments.model_validate_json(body, strict=True)
        except ValidationError as error:
            raise Refusal(_faults(error)) from None
        keywords: dict[str, Any] = {name: getattr(read, name) for name in type(read).model_fields}
        if self.wants_key:
            keywords[KEY_PARAMETER] = key
        called: Callable[..., Any] = self._function
        if inspect.iscoroutinefunction(called):
            return await called(**keywords)
        return await asyncio.to_thread(called, **keywords)

    def serve(self, port: int = DEFAULT_PORT, host: str = "127.0.0.1", authorization: str | None = None) -> None:
        """Serve it over HTTP at `/NAME` until interrupted: see `turnkeeper.serve`."""
        from turnkeeper.serving.http import serve  # it imports us

        serve(self, port=port, host=host, authorization=authorization)


def tool(function: Callable[P, R]) -> Tool[P, R]:
    """Make a tool of a function with typed parameters that returns a JSON value.

    Raise `turnkeeper.Refusal` where the rules of the world say no, `turnkeeper.NotDone` where it provably was not done.
    Any other exception leaves the outcome unknown, since nobody can say how far it came. A parameter `idempotency_key`
    gets the operation's key: do nothing twice under the same one.

    >>> import turnkeeper
    >>> @turnkeeper.tool
    ... def send_note(to: str, text: str) -> dict[str, str]:
    ...     if to == "everybody":
    ...         raise turnkeeper.Refusal("one at a time")
    ...     return {"sent_to": to}
    >>> send_note("sam", "hello")
    {'sent_to': 'sam'}
    >>> sorted(send_note.schema["properties"])
    ['text', 'to']

    `send_note.serve(port=9002)` then answers `connector: {http: {url: "http://127.0.0.1:9002/send_note"}}`.
    """
    return Tool(function)


def _arguments(function: Callable[..., Any]) -> tuple[type[BaseModel], bool]:
    """A model of the parameters, and whether one of them is for the key."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    wants_key = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function!r}: {name} cannot be given by name, so no JSON object can hold it")
        if name == KEY_PARAMETER:
            wants_key = True
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    return create_model("Arguments", __config__=config, **fields), wants_key


def _faults(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'arguments'}: {fault['msg']}" for fault in found
    )


def key_of(header: str) -> str:
    """The key in an `Idempotency-Key`: in quotes, as the draft of the IETF has it, or bare as others send it."""
    text = header.strip()
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text

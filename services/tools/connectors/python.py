"""A tool that is a Python function."""

import asyncio
import functools
import importlib
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from libs.contracts.canonical import canonical
from libs.contracts.errors import ContractError
from libs.contracts.refusals import NotDone, Refusal
from services.tools.domain import Committed, Failed, Outcome, Refused, Unknown
from services.tools.ports import Call, Stopped

log = structlog.get_logger(__name__)

KEY_PARAMETER = "idempotency_key"
_THREADS = 32


def load_function(reference: str) -> Callable[..., Any]:
    """The function behind `module:name`. Raises ValueError, saying what is missing."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot load {reference}: {error}") from error
    if not callable(found):
        raise ValueError(f"{reference} is not a function")
    return found  # type: ignore[no-any-return]


class PythonConnector:
    """Calls a function with the arguments as keywords, in a thread unless it is a coroutine function.

    The function gets the destination's key if it has a parameter `idempotency_key`. What it returns, a JSON value, is
    the result; it may also return `Refused(reason)` or `Failed(reason)`, or raise `turnkeeper.Refusal` or
    `turnkeeper.NotDone`. Another exception says nothing about what it had done by then, so it is unknown.
    """

    _threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tool")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        self._wants_key = KEY_PARAMETER in self._signature.parameters

    async def run(self, call: Call) -> Outcome:
        """Call it once. That a function refuses to do it once more says nothing of the first time (G4)."""
        outcome = await self._run(call)
        if call.repeat and isinstance(outcome, Refused):
            return Unknown(f"it may have been done before, and the repeat was refused: {outcome.reason}")
        return outcome

    async def _run(self, call: Call) -> Outcome:
        keywords = {**call.args, KEY_PARAMETER: call.key} if self._wants_key else dict(call.args)
        try:
            self._signature.bind(**keywords)
        except TypeError as error:
            return Failed(f"the function does not take these arguments: {error}")
        try:
            return _outcome(await self._called(keywords, call), call.tool)
        except Stopped:
            raise
        except Refusal as refusal:
            return Refused(str(refusal) or "the function refused")
        except NotDone as failed:
            return Failed(str(failed) or "the function could not do it")
        except Exception as error:
            log.warning("function.raised", tool=call.tool, operation=call.operation, error=repr(error)[:300])
            return Unknown(f"the function raised {type(error).__name__}")

    async def _called(self, keywords: dict[str, Any], call: Call) -> Any:
        if inspect.iscoroutinefunction(inspect.unwrap(self._function)):  # also one that is decorated
            return await self._function(**keywords)
        loop = asyncio.get_running_loop()
        # It may have waited for a thread, and a pause may have come meanwhile.
        return await loop.run_in_executor(self._threads, functools.partial(_begun, call, self._function, keywords))


def _begun(call: Call, function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    call.before_send()
    return function(**keywords)


def _outcome(value: Any, tool: str) -> Outcome:
    if isinstance(value, Committed | Refused | Failed | Unknown):
        return value
    try:
        canonical(value)
    except ContractError as error:
        # It ran: only its answer cannot be kept.
        log.error("result.not_json", tool=tool, error=str(error))
        return Committed(None)
    return Committed(value)

"""The planner `openai`: any server that speaks Chat Completions. Tools go as functions; calls come back as steps.

What is not exactly what was asked for is a fault and becomes `turn.failed`, never an effect: an unknown function,
arguments that are no JSON object, an answer that was cut off or withheld, two choices, no choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from libs.contracts.application import OpenaiPlanner as Configured
from libs.contracts.canonical import JSON
from libs.contracts.session import PlanRequested, Step
from libs.contracts.strict_json import Malformed, parse
from services.session.domain.view import CHARACTERS_A_TOKEN, SYSTEM, Entry, escaped, fit
from services.session.planners.answers import MOST_STEPS, Answer, PlannerFault, strictly
from services.session.planners.calls import Endpoint

RELATE = "relate"
READ_TURN = "read_turn"
RESERVED = frozenset({RELATE, READ_TURN, "read_event", "ask_owner"})
"""Functions of the runtime's own: no tool of an application may have such a name with this planner."""
RELATIONS = ("adds", "independent", "revises", "unclear")
RELATE_WANTED = (
    " A turn is running; read_turn shows it and the input that came meanwhile. Call relate to say what that input is to"
    " the turn: adds (more for the same wish: also call what it wants beside), independent (another wish), revises (the"
    " wish is now another), unclear (also write the question to the owner)."
)
_STATE = ("running", "action", "asked", "failing", "added", "done", "answer")
"""What of a view is not in its messages; while a turn runs the input in question too."""
_RELATE: Entry = {
    "name": RELATE,
    "description": "Say what the input that came while the turn runs is to that turn.",
    "parameters": {
        "type": "object",
        "properties": {"relation": {"type": "string", "enum": list(RELATIONS)}},
        "required": ["relation"],
        "additionalProperties": False,
    },
}
_ROLES = frozenset({"system", "user", "assistant", "tool"})


class OpenaiPlanner:
    """Asks one server. `tools` are those of the application, for a view that names none."""

    def __init__(self, configured: Configured, endpoint: Endpoint, tools: Sequence[Entry]) -> None:
        self._configured = configured
        self._endpoint = endpoint
        self._tools = {str(tool["name"]): tool for tool in tools}

    async def ask(self, request: PlanRequested, session: str) -> Answer:
        """The answer to a request. Raises PlannerFault."""
        view = request.view
        functions = _functions(view, self._tools)
        body = orjson.dumps(self._body(view, functions))
        raw = await self._endpoint.ask(body, request.deadline)
        return read_completion(raw, {str(function["name"]) for function in functions}, view)

    def _body(self, view: Mapping[str, JSON], functions: Sequence[Entry]) -> dict[str, JSON]:
        configured = self._configured
        offered = [{"type": "function", "function": function} for function in functions]
        room = configured.tokens * CHARACTERS_A_TOKEN - len(orjson.dumps(offered))
        body: dict[str, JSON] = {
            "model": configured.model,
            "messages": fit(chat_of(view, configured.instructions), room),
            answer_limit(configured.url): configured.answer_tokens,
            "stream": False,
        }
        return {**body, "tools": offered, "tool_choice": "auto"} if offered else body


def answer_limit(url: str) -> str:
    """The field that limits an answer: OpenAI's newer models refuse `max_tokens`, and other servers know only that."""
    host = urlsplit(url).hostname or ""
    newer = host == "api.openai.com" or host.endswith(".openai.azure.com")
    return "max_completion_tokens" if newer else "max_tokens"


def chat_of(view: Mapping[str, JSON], instructions: str = "") -> list[Entry]:
    """The view's messages with the instructions, and what the runtime says of the turn as the result of a call (G7)."""
    messages = view.get("messages") or [{"role": "system", "content": SYSTEM}]
    if not isinstance(messages, list | tuple) or not all(_is_message(message) for message in messages):
        raise PlannerFault("the view holds what is no chat message")
    head, *rest = messages if messages[0]["role"] == "system" else [{"role": "system", "content": SYSTEM}, *messages]
    added = f"\n\n{instructions}" if instructions else ""
    if view.get("running"):
        added += RELATE_WANTED
    return [{**head, "content": f"{head['content']}{added}"}, *rest, *_turn_of(view)]


def _turn_of(view: Mapping[str, JSON]) -> list[Entry]:
    """The state of the turn. Its words are not the owner's, so that it comes as a call's result."""
    names = (*_STATE, "input", "data") if view.get("running") else _STATE
    told = {name: view[name] for name in names if view.get(name)}
    if not told:
        return []
    call = {"id": READ_TURN, "type": "function", "function": {"name": READ_TURN, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": READ_TURN, "content": escaped(told)},
    ]


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in _ROLES


def _functions(view: Mapping[str, JSON], known: Mapping[str, Entry]) -> list[Entry]:
    """The view's tools as functions, with what is known of them from the application file."""
    tools = view.get("tools")
    shown = tools if isinstance(tools, list | tuple) else known.values()
    functions = [_function({**known.get(str(tool.get("name")), {}), **tool}) for tool in shown]
    return [*functions, _RELATE] if view.get("running") else functions


def _function(tool: Entry) -> Entry:
    return {name: tool[name] for name in ("name", "description", "parameters") if name in tool}


def read_completion(raw: bytes, offered: set[str], view: Mapping[str, JSON]) -> Answer:
    """Steps and reply of a Chat Completions answer. Raises PlannerFault for what was not asked for."""
    message = _message_of(strictly(raw))
    said = [message.get("content"), message.get("refusal")]
    if any(text is not None and not isinstance(text, str) for text in said):
        raise PlannerFault("the model's content is no text")
    calls = list(_calls_of(message.get("tool_calls"), offered))
    steps = tuple(Step(tool=name, args=args) for name, args in calls if name != RELATE)
    reply = str(said[0] or said[1] or "").strip()
    relation = _relation_of([args for name, args in calls if name == RELATE])
    asked = view.get("input")
    if not (calls or reply or view.get("results")) and isinstance(asked, dict) and asked.get("kind") == "message":
        raise PlannerFault("the model answered the owner with nothing")
    return Answer(steps=steps, reply=reply, relation=relation)


def _message_of(value: JSON) -> dict[str, JSON]:
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        raise PlannerFault("the answer is no chat completion: it has no list of choices")
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise PlannerFault(f"the answer has {len(choices)} choices, where one was asked for")
    finished, message = choices[0].get("finish_reason"), choices[0].get("message")
    if finished not in ("stop", "tool_calls"):
        why = {"length": "was cut off at its most tokens", "content_filter": "was withheld by a content filter"}
        raise PlannerFault(f"the model's answer {why.get(str(finished), f'ended as {finished!r}')}")
    if not isinstance(message, dict):
        raise PlannerFault("the choice has no message")
    if message.get("function_call"):
        raise PlannerFault("the model answered with a function_call, which is older than tools")
    return message


def _calls_of(calls: JSON, offered: set[str]) -> Iterator[tuple[str, dict[str, JSON]]]:
    """Name and arguments of each call, in order."""
    if calls is None:
        return
    if not isinstance(calls, list):
        raise PlannerFault("tool_calls is no list")
    if len(calls) > MOST_STEPS:
        raise PlannerFault(f"the model made {len(calls)} calls, where {MOST_STEPS} are the most")
    for number, call in enumerate(calls):
        is_function = isinstance(call, dict) and call.get("type", "function") == "function"
        function = call.get("function") if is_function else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str):
            raise PlannerFault(f"tool_calls.{number} is no call of a function")
        if name not in offered:
            raise PlannerFault(f"the model called {name[:64]!r}, a function that it was not offered")
        yield name, _arguments_of(name, function.get("arguments"))


def _arguments_of(name: str, arguments: JSON) -> dict[str, JSON]:
    if not isinstance(arguments, str):
        raise PlannerFault(f"the arguments of {name} are no text")
    try:
        # A call without arguments comes as no text at all from some servers.
        value = parse(arguments.encode() or b"{}")
    except (Malformed, UnicodeEncodeError) as fault:
        why = str(fault) if isinstance(fault, Malformed) else "no UTF-8"
        raise PlannerFault(f"the arguments of {name} cannot be read: {why}") from None
    if not isinstance(value, dict):
        raise PlannerFault(f"the arguments of {name} are no JSON object")
    return value


def _relation_of(calls: Sequence[Mapping[str, JSON]]) -> str:
    relations = {str(call.get("relation")) for call in calls if set(call) == {"relation"}}
    if not calls:
        return ""
    if len(relations) != 1 or not relations <= set(RELATIONS) or any(set(call) != {"relation"} for call in calls):
        raise PlannerFault(f"relate was not called with one relation of {', '.join(RELATIONS)}")
    return relations.pop()

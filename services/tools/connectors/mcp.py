"""A tool of an MCP server, over streamable HTTP or stdio with the official SDK.

What counts as sent: everything up to the list of tools, which is asked for before each call, is not the call, so a
server that cannot be reached, hangs or has changed by then failed or is refused, and nothing was done. From the moment
that the call is handed to the session, no answer means unknown.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema_rs
import orjson
import structlog

from libs.contracts.application import McpConnector, Tool, resolve_secret
from libs.contracts.canonical import JSON, canonical
from libs.contracts.errors import ContractError
from libs.contracts.mcp import KEY_META, plain, raised
from libs.runtime.mcp_server import Address, Listed, McpServer, ServerFault, Session
from services.tools.domain import Committed, Failed, NotSent, Outcome, Refused, Unknown
from services.tools.ports import Call

log = structlog.get_logger(__name__)

_SHARE_BEFORE = 0.5
"""Of a call's timeout, for session and list: what does not come in this time provably was not sent."""
_TRIES = 2
"""To list the tools: a server that was started again has forgotten the session."""
_TURNED_AWAY = frozenset({401, 403, 404, 405, 406, 411, 413, 415, 421})
"""Statuses that say no before the message is read as a call: MCP answers a call that it takes with 200."""

Gate = Callable[[str, Tool], None]
"""Told of a tool whose gate its server's hints have raised."""


def address_of(connector: McpConnector, environment: Mapping[str, str]) -> Address:
    """The server of a tool, its references resolved. Raises ValueError naming the reference, never a value."""
    return Address(
        url=connector.url or "",
        headers=_resolved(connector.headers, environment),
        command=connector.command or (),
        env=_resolved(connector.env, environment),
        limit=connector.max_answer,
    )


def _resolved(references: Mapping[str, str], environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, resolve_secret(reference, environment)) for name, reference in sorted(references.items()))


class McpServers:
    """The servers of an application, each once."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._servers: dict[Address, McpServer] = {}

    def of(self, connector: McpConnector) -> McpServer:
        """The server of a tool. Raises ValueError where a reference holds nothing."""
        address = address_of(connector, self._environment)
        return self._servers.setdefault(address, McpServer(address))

    def all(self) -> Sequence[McpServer]:
        """All that were asked for."""
        return tuple(self._servers.values())


class McpTool:
    """One tool of one server. `gate` is told when the server's hints ask for more than the file does."""

    def __init__(self, name: str, tool: Tool, connector: McpConnector, server: McpServer, gate: Gate) -> None:
        self._name = name
        self._tool = tool
        self._connector = connector
        self._server = server
        self._gate = gate
        server.watch(self._look_at)

    async def run(self, call: Call) -> Outcome:
        """Call it once, if the server still has the tool that was imported."""
        loop = asyncio.get_running_loop()
        until = loop.time() + call.timeout * _SHARE_BEFORE
        fault = ""
        for _ in range(_TRIES):
            try:
                async with self._server.session(until - loop.time()) as session:
                    listed = await self._listed(session, until - loop.time())
                    unfit = self._unfit(listed)
                    if listed is None or unfit is not None:
                        return _not_done(call, unfit or Failed("there is no such tool"))
                    return await self._call(session, listed, call)
            except ServerFault as error:
                fault = str(error)
        return _not_done(call, NotSent(f"the MCP server {self._server.address.name}: {fault}"))

    async def _listed(self, session: Session, within: float) -> Listed | None:
        try:
            async with asyncio.timeout(within):
                tools = await session.tools()
        except TimeoutError:
            session.lose("it does not list its tools in time")
            raise ServerFault("it does not list its tools in time") from None
        except ServerFault as fault:
            session.lose(str(fault))
            raise
        return self._mine(tools)

    def _mine(self, tools: Sequence[Listed]) -> Listed | None:
        return next((tool for tool in tools if tool.name == self._connector.tool), None)

    def _look_at(self, tools: Sequence[Listed]) -> None:
        """At each start of a session: say early what would be refused, and raise the gate before the first call."""
        self._unfit(self._mine(tools))

    def _unfit(self, listed: Listed | None) -> Refused | Failed | None:
        """Why the tool is not called though its server answers; None where it may be."""
        if listed is None:
            log.warning("mcp.tool_missing", tool=self._name, server=self._server.address.name)
            return Refused(f"the server no longer has the tool {self._connector.tool}: import it again")
        try:
            changed = listed.digest != self._connector.schema_digest
        except ContractError:
            changed = True
        if changed:
            log.warning("mcp.schema_changed", tool=self._name, server=self._server.address.name)
            return Refused(f"the server has changed the schema of {self._connector.tool}: import it again")
        higher = raised(self._tool, listed.hints)
        if higher is None:
            return None
        log.warning("mcp.gate_raised", tool=self._name, hints=listed.hints.said, effect=higher.effect, gate=higher.gate)
        self._tool = higher  # never lowered again, whatever the server says later
        self._gate(self._name, higher)
        return Failed(f"the server says that {self._connector.tool} writes, so it is asked about from now on")

    async def _call(self, session: Session, listed: Listed, call: Call) -> Outcome:
        from libs.runtime.mcp_transport import noted

        call.before_send()  # reaching the server and reading its list took time
        with noted() as attempt:
            try:
                answer = await _send(session, self._connector.tool, call)
            except Exception as error:
                if attempt.status == 404:
                    session.lose("the server has forgotten the session")
                return _not_done(call, _of_fault(error, attempt))
        return self._of_answer(answer, listed)

    def _of_answer(self, answer: Any, listed: Listed) -> Outcome:
        texts = [block.text for block in answer.content if block.type == "text"]
        if answer.is_error:
            # MCP: an error of the tool's own execution, which may be a rule of the world or an API that broke halfway.
            said = plain(" ".join(texts)) or "an error without a text"
            harmless = self._tool.effect != "write" or self._connector.errors == "refused"
            return Refused(said) if harmless else Unknown(f"the tool reports an error: {said}")
        result = _result(answer, texts)
        if fault := _misfit(listed.output_schema, answer.structured_content):
            return Unknown(f"the answer does not fit the tool's own outputSchema: {fault}")
        try:
            canonical(result)
        except ContractError as error:
            log.error("result.not_json", tool=self._name, error=plain(str(error)))
            return Committed(None)
        return Committed(result)


def _not_done(call: Call, outcome: Outcome) -> Outcome:
    """What it means that this request was not taken. Of an earlier one with the same key it says nothing (G4)."""
    if call.repeat and isinstance(outcome, Failed | Refused):
        return Unknown(f"it may have been sent before, and could not be sent again: {outcome.reason}")
    return outcome


async def _send(session: Session, tool: str, call: Call) -> Any:
    """The server's answer to the call, whatever it says. Not the SDK's `call_tool`: that one also checks the answer,
    by a validator that a server's pattern can hold up, and asks a server again that wants more input."""
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

    params = CallToolRequestParams(name=tool, arguments=dict(call.args), _meta={KEY_META: call.key})
    return await session.client.send_request(CallToolRequest(params=params), CallToolResult)


def _of_fault(error: Exception, attempt: Any) -> Outcome:
    """What a call without a result means. That there is no such method came before the tool ran; any other error, that
    of wrong parameters too, a tool can raise itself, after its effect."""
    from mcp_types import METHOD_NOT_FOUND

    if attempt.unsent:
        return NotSent(attempt.fault)
    code = getattr(error, "code", None)
    if code == METHOD_NOT_FOUND and not attempt.fault:
        return Refused(f"the server does not take the call: {plain(str(error))}")
    if attempt.status in _TURNED_AWAY and not attempt.fault:
        return Failed(f"the server turned the request away with status {attempt.status}")
    what = attempt.fault or (plain(str(error)) if code is not None else "it is no result of a tool call")
    return Unknown(f"no usable answer: {what}")


def _result(answer: Any, texts: Sequence[str]) -> JSON:
    """What is kept of an answer: its structured content; else the JSON object that its one text holds, as servers
    send that know no structured content; else its texts, and the kinds of what is no text."""
    if answer.structured_content is not None:
        return answer.structured_content
    kinds = [block.type for block in answer.content if block.type != "text"]
    if len(texts) == 1 and not kinds:
        try:
            parsed = orjson.loads(texts[0])
        except orjson.JSONDecodeError:
            parsed = None
        if isinstance(parsed, dict):
            return parsed
    return {"text": "\n".join(texts), **({"left_out": kinds} if kinds else {})}


def _misfit(schema: Mapping[str, Any] | None, content: Any) -> str:
    if schema is None:
        return ""
    if content is None:
        return "there is no structured content"
    try:
        validator = _validator(orjson.dumps(schema, option=orjson.OPT_SORT_KEYS))
    except (jsonschema_rs.ValidationError, ValueError):
        return "which is no JSON Schema"
    error = next(validator.iter_errors(content), None)
    return "" if error is None else ".".join(str(part) for part in error.instance_path)[:100] or "as a whole"


@functools.lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    return jsonschema_rs.validator_for(orjson.loads(schema), retriever=_nothing_outside)


def _nothing_outside(uri: str) -> Any:
    raise ValueError("a schema of a server refers to nothing outside itself")

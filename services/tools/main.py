"""Composition root of the door: alone in naming concrete classes."""

import importlib
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping

import httpx2

from libs.contracts.evidence import Signer
from libs.contracts.tools import LookUpOperation, RunStep, WithdrawOperation
from libs.runtime.auth import Operators
from libs.runtime.clock import Clock
from libs.runtime.lifecycle import Runtime, run
from libs.runtime.openapi import publish
from libs.runtime.settings import LATE_CALL, LOSE_ANSWER, SettingsError
from libs.runtime.trials import read_application
from services.tools.answers import Answers
from services.tools.circuit import Change
from services.tools.conditions import Conditions
from services.tools.connectors.guard import Teller, guarded
from services.tools.connectors.http import HttpConnector, header_values, http_client
from services.tools.connectors.mcp import McpServers, McpTool
from services.tools.connectors.python import PythonConnector, load_function
from services.tools.connectors.sandbox import SandboxConnector, sandbox_client
from services.tools.connectors.timer import TimerConnector
from services.tools.domain import Catalogue
from services.tools.edge import Edge, create_app
from services.tools.evidence_edge import EvidenceEdge, add_evidence_routes
from services.tools.execution import Executor
from services.tools.faults import TrialFaults
from services.tools.handlers import ToolHandlers
from services.tools.late import LateCalls
from services.tools.lookups import Reconciler
from services.tools.metrics import ToolMetrics
from services.tools.notary import Evidence
from services.tools.openapi import DOCUMENT
from services.tools.pauses import Stops
from services.tools.ports import Call, Connector
from services.tools.settings import ToolsSettings
from services.tools.standing import RedisGrants, UseSweeper
from services.tools.stopping import Stopping, add_routes
from services.tools.stops import RedisPauses
from services.tools.store import RedisLedger
from services.tools.sweeper import Sweeper

TRIM_SECONDS = 30.0
COUNT_SECONDS = 2.0
ASK_ABOUT_ALL_SECONDS = 300.0
OBEY_SECONDS = 0.1
"""So often a replica looks at what is paused. Nothing that is paused is claimed meanwhile; `pause` waits for the word
of those that had claimed before."""
PREFETCH = 256
BEGIN_SECONDS = 0.01
MCP_SDK = "libs.runtime.mcp_transport"
"""Imports the SDK, which takes a second or more: before the first call comes, and only where a tool needs it."""


def connect(
    catalogue: Catalogue,
    client: httpx2.AsyncClient | None,
    clock: Clock,
    *,
    loses: Collection[str] = (),
    servers: McpServers | None = None,
    environment: Mapping[str, str] | None = None,
    on_close: Callable[[Callable[[], Awaitable[None]]], None] = lambda close: None,
) -> dict[str, Connector]:
    """Each tool's connector. `loses`: the tools whose answers a lab switch loses, which act in the sandbox. `servers`
    gets the MCP servers, whose sessions somebody has to serve. `environment`: what secrets are resolved in, without it
    the process's own. `on_close` is given what ends the connectors.

    Raises SettingsError with every one that cannot be built.
    """
    application = catalogue.application
    known = os.environ if environment is None else environment
    trusted = httpx2.create_ssl_context() if any(tool.connector.http for tool in application.tools.values()) else None
    servers = servers or McpServers(known)
    connectors: dict[str, Connector] = {}
    faults = []
    for name, tool in application.tools.items():
        if tool.connector.python is not None:
            try:
                connectors[name] = PythonConnector(load_function(tool.connector.python.function))
            except ValueError as error:
                faults.append(f"tools.{name}.connector.python: {error}")
        if tool.connector.sandbox is not None:
            if client is None:
                faults.append(f"TURNKEEPER_SANDBOX_URL: tools.{name} acts in the sandbox, so say where it is")
            else:
                lost = name in loses
                connectors[name] = SandboxConnector(client, tool.connector.sandbox, loses_answers=lost)
        if tool.connector.http is not None:
            values, wrong = header_values(tool.connector.http, known)
            faults += [f"tools.{name}.connector.http.{fault}" for fault in wrong]
            own = http_client(trusted)
            on_close(own.aclose)
            connectors[name] = HttpConnector(own, tool.connector.http, values)
        if tool.connector.mcp is not None:
            try:
                server = servers.of(tool.connector.mcp)
                connectors[name] = McpTool(name, tool, tool.connector.mcp, server, catalogue.raised.__setitem__)
            except ValueError as error:
                faults.append(f"tools.{name}.connector.mcp: {error}")
        if tool.connector.timer is not None:
            connectors[name] = TimerConnector(tool.connector.timer.verb, clock)
    for name in loses:
        if name not in application.tools or application.tools[name].connector.sandbox is None:
            faults.append(f"TURNKEEPER_LAB: {LOSE_ANSWER}: there is no tool {name} in the sandbox")
    if faults:
        raise SettingsError(faults)
    return connectors


async def build(rt: Runtime[ToolsSettings]) -> None:
    """Wire the door into its runtime. Raises ApplicationError or SettingsError for a wrong file or setting."""
    settings = rt.settings
    application = read_application(settings)
    # Functions of the application lie beside its file.
    sys.path.append(str(settings.config.resolve().parent))
    client = sandbox_client(settings.sandbox_url) if settings.sandbox_url else None
    if client is not None:
        rt.on_close(client.aclose)
    loses, late = settings.lab_values(LOSE_ANSWER), settings.lab_values(LATE_CALL)
    for switch, names in ((LOSE_ANSWER, loses), (LATE_CALL, late)):
        for name in sorted(names):
            rt.log.warning("lab.on", switch=switch, tool=name)
    if missing := sorted(late - set(application.tools)):
        raise SettingsError([f"TURNKEEPER_LAB: {LATE_CALL}: there is no tool {name}" for name in missing])
    catalogue, servers = Catalogue.of(application), McpServers(os.environ)
    connectors = connect(catalogue, client, rt.clock, loses=loses, servers=servers, on_close=rt.on_close)
    if servers.all():
        importlib.import_module(MCP_SDK)
    for server in servers.all():
        rt.every(BEGIN_SECONDS, server.serve, f"mcp {server.address.name}")  # never returns
    _serve(rt, catalogue, connectors)


def _serve(rt: Runtime[ToolsSettings], catalogue: Catalogue, connectors: Mapping[str, Connector]) -> None:
    settings, application = rt.settings, catalogue.application
    metrics = ToolMetrics(rt.registry, application.tools)
    incarnation, stops = secrets.token_hex(8), Stops()
    ledger = RedisLedger(
        rt.store,
        rt.keys,
        rt.outbox,
        replica=settings.replica,
        incarnation=incarnation,
        step_cap=application.session.caps.steps,
    )
    answers = Answers(rt.composer, catalogue, settings.keys_of_seals)
    connectors = guarded(application, connectors, metrics, _teller(ledger, answers, rt.clock))
    executor = Executor(
        catalogue,
        ledger,
        connectors,
        answers,
        metrics,
        clock=rt.clock,
        namespace=settings.namespace,
        lease_grace_ms=round(settings.tools_lease_grace_seconds * 1000),
        store_back=rt.store.wait_back,
        stops=stops,
        faults=TrialFaults(rt.store, rt.keys, catalogue) if settings.trials else None,
    )
    if settings.trials:
        rt.log.warning("trials.on", faults=len(application.faults))
    reconciler = Reconciler(
        catalogue, ledger, connectors, answers, metrics, clock=rt.clock, namespace=settings.namespace, stops=stops
    )
    grants = RedisGrants(rt.store, rt.keys)
    conditions = Conditions(
        catalogue, ledger, grants, connectors, settings.keys_of_seals, metrics, clock=rt.clock,
        namespace=settings.namespace, stops=stops,
    )  # fmt: skip
    pauses = RedisPauses(rt.store, rt.keys, rt.outbox, stops, replica=settings.replica, incarnation=incarnation)
    operators = _operators(settings)
    stopping = Stopping(application, pauses, stops, ledger, operators, metrics, rt.clock)
    by_role = "authority_by_role" in settings.labs
    late = settings.lab_values(LATE_CALL)
    handlers = ToolHandlers(
        catalogue, ledger, executor, answers, reconciler, metrics, settings.keys_of_seals, conditions,
        everybody_is_user=by_role, late=LateCalls(late) if late else None, parking=pauses,
    )  # fmt: skip
    if by_role:
        rt.log.warning("lab.on", switch="authority_by_role")
    if application.session.observe:
        rt.log.warning("observe.on", blocks="nothing")
    sweeper = Sweeper(ledger, executor, reconciler, metrics, rt.clock)
    rt.consume(
        rt.topology.work_queue("tools"),
        {
            RunStep: handlers.on_run_step,
            WithdrawOperation: handlers.on_withdraw_operation,
            LookUpOperation: handlers.on_look_up_operation,
        },
        prefetch=PREFETCH,
    )
    rt.every(settings.tools_sweep_seconds, sweeper.take_over_ended, "leases")
    rt.every(settings.tools_sweep_seconds, sweeper.reconcile, "lookups")
    rt.every(settings.tools_sweep_seconds, UseSweeper(grants, ledger, metrics, rt.clock).sweep, "standing")
    rt.every(ASK_ABOUT_ALL_SECONDS, sweeper.ask_about_all, "unasked")
    rt.every(TRIM_SECONDS, sweeper.trim, "trim")
    rt.every(COUNT_SECONDS, sweeper.count_unknown, "unknown")
    evidence = _evidence(rt)
    rt.every(OBEY_SECONDS, stopping.obey, "pauses")
    rt.every(settings.tools_sweep_seconds, stopping.wake, "parked")
    rt.every(settings.tools_evidence_seconds, evidence.seal_due, "evidence")
    app = create_app(Edge(catalogue, ledger, answers, operators, rt.clock))
    add_routes(app, stopping)
    add_evidence_routes(app, EvidenceEdge(evidence, ledger, settings.keys_of_seals, operators))
    publish(app, DOCUMENT)
    rt.serve(app)


def _teller(ledger: RedisLedger, answers: Answers, clock: Clock) -> Teller:
    async def tell(call: Call, change: Change, reason: str) -> None:
        now = clock.now_ms()
        await ledger.answer(call.session, [answers.circuit(call.tool, call.session, change, reason, now)], now)

    return tell


def _evidence(rt: Runtime[ToolsSettings]) -> Evidence:
    signer = Signer.parse(rt.settings.evidence_key.get_secret_value())
    if not signer.keys:
        rt.log.warning("evidence.unsigned", setting="TURNKEEPER_EVIDENCE_KEY")
    return Evidence(rt.store, rt.keys, rt.outbox, rt.composer, rt.clock, signer)


def _operators(settings: ToolsSettings) -> Operators:
    try:
        return Operators.parse(settings.operator_tokens.get_secret_value())
    except ValueError as error:
        raise SettingsError([f"TURNKEEPER_OPERATOR_TOKENS: {error}"]) from error


def main() -> None:
    """Run the door until SIGTERM."""
    run(ToolsSettings, build, service="tools")

"""Composition root of the door: alone in naming concrete classes."""

import secrets
import sys
from collections.abc import Collection, Mapping

import httpx2

from libs.contracts.application import Application, load_application
from libs.contracts.evidence import Signer
from libs.contracts.tools import LookUpOperation, RunStep, WithdrawOperation
from libs.runtime.auth import Operators
from libs.runtime.clock import Clock
from libs.runtime.lifecycle import Runtime, run
from libs.runtime.settings import LATE_CALL, LOSE_ANSWER, SettingsError
from services.tools.answers import Answers
from services.tools.connectors.python import PythonConnector, load_function
from services.tools.connectors.sandbox import SandboxConnector, sandbox_client
from services.tools.connectors.timer import TimerConnector
from services.tools.domain import Catalogue
from services.tools.edge import Edge, create_app
from services.tools.evidence_edge import EvidenceEdge, add_evidence_routes
from services.tools.execution import Executor
from services.tools.handlers import ToolHandlers
from services.tools.late import LateCalls
from services.tools.lookups import Reconciler
from services.tools.metrics import ToolMetrics
from services.tools.notary import Evidence
from services.tools.ports import Connector
from services.tools.settings import ToolsSettings
from services.tools.store import RedisLedger
from services.tools.sweeper import Sweeper

TRIM_SECONDS = 30.0
COUNT_SECONDS = 2.0
ASK_ABOUT_ALL_SECONDS = 300.0
PREFETCH = 256


def connect(
    application: Application, client: httpx2.AsyncClient | None, clock: Clock, *, loses: Collection[str] = ()
) -> dict[str, Connector]:
    """Each tool's connector. `loses`: the tools whose answers a lab switch loses, which act in the sandbox.

    Raises SettingsError with every one that cannot be built.
    """
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
    application = load_application(settings.config)
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
    _serve(rt, application, connect(application, client, rt.clock, loses=loses))


def _serve(rt: Runtime[ToolsSettings], application: Application, connectors: Mapping[str, Connector]) -> None:
    settings = rt.settings
    catalogue = Catalogue.of(application)
    metrics = ToolMetrics(rt.registry, application.tools)
    ledger = RedisLedger(
        rt.store,
        rt.keys,
        rt.outbox,
        replica=settings.replica,
        incarnation=secrets.token_hex(8),
        step_cap=application.session.caps.steps,
    )
    answers = Answers(rt.composer, catalogue, settings.keys_of_seals)
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
    )
    reconciler = Reconciler(
        catalogue, ledger, connectors, answers, metrics, clock=rt.clock, namespace=settings.namespace
    )
    by_role = "authority_by_role" in settings.labs
    late = settings.lab_values(LATE_CALL)
    handlers = ToolHandlers(
        catalogue, ledger, executor, answers, reconciler, metrics, settings.keys_of_seals,
        everybody_is_user=by_role, late=LateCalls(late) if late else None,
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
    rt.every(ASK_ABOUT_ALL_SECONDS, sweeper.ask_about_all, "unasked")
    rt.every(TRIM_SECONDS, sweeper.trim, "trim")
    rt.every(COUNT_SECONDS, sweeper.count_unknown, "unknown")
    operators = _operators(settings)
    app = create_app(Edge(catalogue, ledger, answers, operators, rt.clock))
    evidence = _evidence(rt)
    add_evidence_routes(app, EvidenceEdge(evidence, ledger, settings.keys_of_seals, operators))
    rt.every(settings.tools_evidence_seconds, evidence.seal_due, "evidence")
    rt.serve(app)


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

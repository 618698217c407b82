"""Composition root: the only module that names concrete classes."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jsonschema_rs
import structlog

from libs.contracts.application import Application
from libs.contracts.canonical import JSON
from libs.contracts.errors import LostOwnership, StoreAway
from libs.contracts.ingress import InputAccepted, TimerSkipped
from libs.contracts.keys import Keys
from libs.contracts.session import PlanMade
from libs.contracts.tools import LookedUp, StepFinished
from libs.contracts.topology import PLANNER
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.consumer import Consumer
from libs.runtime.lifecycle import Runtime, run
from libs.runtime.partitions import priority
from libs.runtime.trials import read_application
from services.session.domain.rules import Rules
from services.session.edge import make_app
from services.session.handlers import HANDLED, Handlers
from services.session.metrics import SessionMetrics
from services.session.planners.build import Elsewhere, build_remote
from services.session.planners.scripted import ScriptedPlanner, load_rules
from services.session.planners.worker import Plans, PlansIn, PlanWorker
from services.session.ports import Planner
from services.session.record import Recorder
from services.session.settings import SessionSettings
from services.session.store import RedisSessions

log = structlog.get_logger(__name__)

DEADLINE_SECONDS = 1.0


async def build(rt: Runtime[SessionSettings]) -> None:
    """Wire the service."""
    settings = rt.settings
    application = read_application(settings)
    take_plans(rt, application)
    planner = planner_inside(application, settings.config)
    metrics = SessionMetrics(rt.registry)
    rules = Rules(
        application=application,
        check_arguments=ArgumentSchemas(application),
        operation_wait_ms=round(settings.operation_wait_seconds * 1000),
        not_after_ms=round(settings.operation_not_after_hours * 3_600_000),
        labs=settings.labs,
    )
    recorder = Recorder(rules) if settings.session_record else None
    sessions = RedisSessions(rt.store, rt.outbox, rt.keys, rt.clock, metrics.conflicts.inc, recorder)
    if application.session.observe:
        log.warning("observe.on", blocks="nothing")
    handlers = Handlers(sessions, planner, rules, rt.composer, rt.clock, metrics)
    consumer = rt.consumer(
        {
            InputAccepted: handlers.on_input,
            StepFinished: handlers.on_step_finished,
            LookedUp: handlers.on_news,
            TimerSkipped: handlers.on_news,
            PlanMade: handlers.on_plan_made,
            **dict.fromkeys(HANDLED, handlers.on_told),
        },
        on_dead=handlers.on_dead,
    )
    for partition in range(settings.partitions):
        rt.take(
            rt.topology.partition_queue(partition),
            consumer,
            prefetch=settings.session_prefetch,
            priority=priority(settings.replica, partition),
        )
    sweep = partial(sweep_deadlines, rt.keys, sessions, handlers, consumer, rt.clock.now_ms)
    rt.every(DEADLINE_SECONDS, sweep, "deadlines")
    tokens = UserTokens(
        settings.user_token_secret.get_secret_value() if settings.user_token_secret else None,
        settings.user_token_jwks_url,
        rt.clock,
    )
    rt.serve(
        make_app(
            sessions,
            tokens,
            Operators.parse(settings.operator_tokens.get_secret_value()),
            rt.clock,
            rules,
            stopping=rt.stopping,
            most_streams=settings.session_streams,
        )
    )


def take_plans(rt: Runtime[SessionSettings], application: Application) -> None:
    """Where the planner is outside: ask it over HTTP, or take what agents answered. Raises SettingsError."""
    plans = Plans(rt.composer, rt.publisher)
    most = rt.settings.session_planner_calls
    if remote := build_remote(application, os.environ, rt.clock, most):
        planner, endpoint = remote
        worker = PlanWorker(planner, plans, rt.topology, rt.clock, rt.metrics)
        rt.intake(rt.topology.work_queue(PLANNER), worker.on_delivery, prefetch=most, slow=True)
        rt.on_close(endpoint.close)
    elif application.planner.amqp is not None:
        rt.intake(rt.topology.plans, PlansIn(plans, rt.metrics).on_delivery)


async def sweep_deadlines(
    keys: Keys, sessions: RedisSessions, handlers: Handlers, consumer: Consumer, now: Callable[[], int]
) -> None:
    """Look at the sessions whose durable deadline is reached, each in its lane. One that fails stops no other."""
    for partition in range(keys.partitions):
        for session in await sessions.due(partition, now()):
            try:
                await consumer.run_in_lane(session, partial(handlers.on_deadline, session))
            except LostOwnership:
                continue  # another replica was first
            except StoreAway:
                raise
            except Exception:
                log.exception("deadline.failed", session=session)


class ArgumentSchemas:
    """Validators of the tools' arguments, compiled once."""

    def __init__(self, application: Application) -> None:
        self._validators = {name: jsonschema_rs.validator_for(tool.args) for name, tool in application.tools.items()}

    def __call__(self, tool: str, args: Mapping[str, JSON]) -> list[str]:
        return [
            f"{'.'.join(str(part) for part in error.instance_path) or 'arguments'}: {error.message}"
            for error in self._validators[tool].iter_errors(dict(args))
        ]


def planner_inside(application: Application, config: Path) -> Planner:
    """The planner that answers at once, by rules beside the application file; for others, nobody."""
    scripted = application.planner.scripted
    return Elsewhere() if scripted is None else ScriptedPlanner(load_rules(config.parent / scripted.rules))


def main() -> None:
    """Run the session service."""
    run(SessionSettings, build, service="session")

"""Composition root of ingress: reads the application, builds the parts, says which loops run."""

import os
from collections.abc import Mapping

from starlette.applications import Starlette

from libs.contracts.application import Application, resolve_secret
from libs.contracts.ingress import RegisterSubject, SetTimer, StopTimer
from libs.contracts.keys import SESSION_TTL_MS
from libs.runtime.apidocs import docs_routes
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.lifecycle import Runtime, incarnation, run
from libs.runtime.problems import problem_handlers
from libs.runtime.settings import SettingsError
from libs.runtime.trials import read_application
from services.ingress.admission import Admissions, Forgetting
from services.ingress.deliveries import Configured, Deliveries, Log, signed_tolerance
from services.ingress.edge import Edge
from services.ingress.handlers import EventsIn, RegisterHandler
from services.ingress.inbox import Inbox
from services.ingress.metrics import IngressMetrics
from services.ingress.misfire import SOURCE as TIMER_SOURCE
from services.ingress.openapi import DOCUMENT
from services.ingress.operators import OperatorRoutes
from services.ingress.ports import Limits
from services.ingress.rates import Rates
from services.ingress.schemes import build_verifier
from services.ingress.settings import IngressSettings
from services.ingress.store import IngressStore
from services.ingress.sweepers import Releases, Sweepers
from services.ingress.timer_routes import TimerRoutes
from services.ingress.timer_store import TimerStore
from services.ingress.timers import TimerHandler, TimerSweep

FORGET_SECONDS = 0.5
SWEEP_SECONDS = 1.0
TIMER_SECONDS = 0.5
TRIM_SECONDS = 60.0


def configured_sources(
    application: Application, settings: IngressSettings, environment: Mapping[str, str]
) -> dict[str, Configured]:
    """Every source with its verifier. Raises SettingsError with every fault: a source that cannot be verified does
    not start."""
    sources, faults = {}, []
    for name, source in application.sources.items():
        verifier, wrong = build_verifier(source.verify, lambda reference: resolve_secret(reference, environment))
        faults += [f"sources.{name}.verify.{fault}" for fault in wrong]
        if name == TIMER_SOURCE:
            faults.append(f"sources.{name}: this name is kept for what timers fire")
        faults += _window_faults(name, source.dedupe.window, signed_tolerance(source.verify))
        if source.verify.scheme == "user-token" and not (settings.user_token_secret or settings.user_token_jwks_url):
            faults.append(
                f"sources.{name}.verify: users' tokens cannot be checked; "
                "set TURNKEEPER_USER_TOKEN_SECRET or TURNKEEPER_USER_TOKEN_JWKS_URL"
            )
        sources[name] = Configured(name, source, verifier)
    if faults:
        raise SettingsError(faults)
    return sources


def _window_faults(name: str, window: float, tolerance: float | None) -> list[str]:
    if tolerance is None or window >= 2 * tolerance:
        return []
    return [f"sources.{name}.dedupe.window: at least twice the tolerance, or a copy outlives its dedupe entry (C075)"]


async def build(rt: Runtime[IngressSettings]) -> None:
    """Put ingress together. Raises ApplicationError or SettingsError, which stop the start."""
    settings = rt.settings
    application = read_application(settings)
    sources = configured_sources(application, settings, os.environ)
    mine = incarnation(settings.replica, rt.clock.now_ms())
    metrics = IngressMetrics(rt.registry, sources)
    ring = Log(settings.ingress_log_lines)
    deliveries = Deliveries(metrics, ring)
    limits = Limits(
        session_ttl_ms=SESSION_TTL_MS,
        subject_ttl_ms=settings.subject_ttl_seconds * 1000,
        held=settings.ingress_held_limit,
        outbox_limit=settings.outbox_limit,
    )
    store = IngressStore(rt.store, rt.keys, rt.outbox, limits)
    forgetting = Forgetting(store.forget)
    inbox = Inbox(store, rt.outbox, rt.composer, settings.keys_of_seals, rt.clock)
    admissions = Admissions(store, inbox, rt.clock, forgetting.add)
    releases = Releases(store, admissions)
    sweepers = Sweepers(store, admissions, releases, ring, rt.clock)

    secret = settings.user_token_secret
    users = UserTokens(secret.get_secret_value() if secret else None, settings.user_token_jwks_url, rt.clock)
    rt.on_close(users.aclose)
    edge = Edge(
        sources,
        next((configured for configured in sources.values() if configured.source.verify.scheme == "user-token"), None),
        admissions,
        deliveries,
        users,
        Rates(settings.ingress_events_per_second, settings.ingress_burst, rt.clock),
        rt.clock,
        max_body=settings.ingress_max_body_bytes,
        body_seconds=settings.ingress_body_seconds,
        incarnation=mine,
    )
    operator_tokens = Operators.parse(settings.operator_tokens.get_secret_value())
    operators = OperatorRoutes(
        store,
        sources,
        admissions,
        releases,
        operator_tokens,
        ring,
        rt.clock,
        body_seconds=settings.ingress_body_seconds,
        application=application if settings.trials else None,
    )
    timers = TimerStore(rt.store, rt.keys, rt.outbox, limits)
    timer_routes = TimerRoutes(timers, admissions, users, operator_tokens)
    rt.serve(application_of(edge, operators, timer_routes))

    rt.metrics.declare(["event"], ["dead", "refused"])
    events_in = EventsIn(
        sources,
        admissions,
        deliveries,
        store,
        rt.topology,
        rt.clock,
        lambda outcome: rt.metrics.messages.labels("ingress", "event", outcome).inc(),
        max_body=settings.ingress_max_body_bytes,
        incarnation=mine,
    )
    register = RegisterHandler(store, store, releases, settings.keys_of_seals, metrics)
    rt.intake(rt.topology.events_in, events_in.on_delivery, prefetch=settings.ingress_prefetch)
    set_stop = TimerHandler(timers, timers.time, settings.keys_of_seals, metrics, cap=application.session.caps.timers)
    rt.consume(
        rt.topology.work_queue("ingress"),
        {
            RegisterSubject: register.on_register_subject,
            SetTimer: set_stop.on_set_timer,
            StopTimer: set_stop.on_stop_timer,
        },
    )
    grace_ms = round(settings.ingress_timer_grace_seconds * 1000)
    firing = TimerSweep(timers, timers.time, inbox, rt.composer, metrics, grace_ms=grace_ms)
    rt.every(FORGET_SECONDS, forgetting.flush, "forget")
    rt.every(SWEEP_SECONDS, sweepers.relay, "admitted")
    rt.every(SWEEP_SECONDS, sweepers.held, "held")
    rt.every(SWEEP_SECONDS, sweepers.waiting, "waiting")
    rt.every(TIMER_SECONDS, firing.sweep, "timers")
    rt.every(TRIM_SECONDS, sweepers.trim, "trim")


def application_of(edge: Edge, operators: OperatorRoutes, timers: TimerRoutes) -> Starlette:
    """The ASGI application: senders first, since theirs is the hot path."""
    docs = docs_routes(DOCUMENT)
    return Starlette(
        routes=[*edge.routes(), *operators.routes(), *timers.routes(), *docs],
        exception_handlers=problem_handlers,
    )


def main() -> None:
    """Run ingress until it is told to stop."""
    run(IngressSettings, build, service="ingress")

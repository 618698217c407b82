"""Composition root of consent: the one place that names concrete classes."""

import secrets
from functools import partial

from libs.contracts.consent import CancelAction, DecideByText, IssueAction, SupersedeActions
from libs.contracts.envelope import Message
from libs.runtime.auth import Operators, UserTokens
from libs.runtime.composer import Composer
from libs.runtime.lifecycle import Runtime, run
from libs.runtime.openapi import publish
from libs.runtime.publisher import Outgoing
from libs.runtime.trials import read_application
from services.consent.decisions import Decisions
from services.consent.domain import Record, Rules
from services.consent.edge import Edge
from services.consent.handlers import ConsentHandlers
from services.consent.metrics import ConsentMetrics
from services.consent.openapi import DOCUMENT
from services.consent.ports import Emit
from services.consent.settings import ConsentSettings
from services.consent.standing import RedisStanding, StandingEdge
from services.consent.store import RedisActions
from services.consent.sweeper import Sweeper

MEASURE_SECONDS = 1.0


def nonce() -> str:
    """Tells one attempt from another."""
    return secrets.token_hex(8)


def emit_for(composer: Composer, session: str, record: Record | None) -> Emit:
    """Messages that no message caused: they carry on the trace and the depth of the action, where there is one."""

    def emit(message: Message, *id_parts: object) -> Outgoing:
        if record is None:
            return composer.compose(message, session=session, id_parts=id_parts)
        return composer.compose(
            message,
            session=session,
            id_parts=id_parts,
            correlation=record.correlation,
            depth=record.depth,
            trace=record.trace,
        )

    return emit


async def build(rt: Runtime[ConsentSettings]) -> None:
    """Wire the service into its runtime."""
    settings = rt.settings
    application = read_application(settings)
    rules = Rules(application, settings.keys_of_seals, question_by_note="question_by_note" in settings.labs)
    metrics = ConsentMetrics(rt.registry)
    actions = RedisActions(rt.store, rt.outbox, rt.keys, rt.clock, settings.outbox_limit)
    decisions = Decisions(actions, rules, metrics)
    handlers = ConsentHandlers(actions, decisions, rules, metrics, nonce)
    rt.consume(
        rt.topology.work_queue("consent"),
        {
            IssueAction: handlers.on_issue_action,
            CancelAction: handlers.on_cancel_action,
            SupersedeActions: handlers.on_supersede_actions,
            DecideByText: handlers.on_decide_by_text,
        },
    )
    emit = partial(emit_for, rt.composer)
    sweeper = Sweeper(actions, metrics, emit, nonce)
    rt.every(MEASURE_SECONDS, sweeper.measure, "pending")
    if settings.consent_sweep_seconds > 0:
        rt.every(settings.consent_sweep_seconds, sweeper.sweep, "sweep")
    secret = settings.user_token_secret.get_secret_value() if settings.user_token_secret else None
    users = UserTokens(secret, settings.user_token_jwks_url, rt.clock)
    operators = Operators.parse(settings.operator_tokens.get_secret_value())
    app = Edge(actions, decisions, rules, users, operators, emit, nonce).app()
    StandingEdge(RedisStanding(rt.store, rt.keys, rt.clock), application, users).add_to(app)
    publish(app, DOCUMENT)
    rt.serve(app)


def main() -> None:
    """Run the service until it is told to stop."""
    run(ConsentSettings, build, service="consent")

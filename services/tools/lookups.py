"""Asking a destination what became of an operation: the reconciler of what is unknown, and look-ups that the session
wants (design §3.4, §4.1). A look-up reads; nothing is ever run again."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import structlog

from libs.contracts.application import Lookup
from libs.contracts.canonical import JSON
from libs.contracts.reasons import OperationState
from libs.contracts.templates import TemplateError, fill
from libs.runtime.clock import Clock
from services.tools.answers import Answers
from services.tools.calling import called
from services.tools.domain import (
    Catalogue,
    Found,
    Nothing,
    Said,
    Silent,
    destination_key,
    honoured_until,
    lookup_args,
    read_lookup,
)
from services.tools.metrics import ToolMetrics
from services.tools.pauses import Stops
from services.tools.ports import Call, Connector, Ledger, Stopped, Work

log = structlog.get_logger(__name__)

_AT_ONCE = 32
_HOLD_MS = 2_000
"""Beyond a look-up's timeout, for what comes before and after it."""


@dataclass(frozen=True)
class Subject:
    """The operation that is asked about. `result` is what it answered, None where that is not known."""

    session: str
    key: str
    operation: str
    tool: str
    args: Mapping[str, JSON]
    result: JSON = None


class Reconciler:
    """Asks destinations. Several replicas may do so at once: one of them gets each look-up, and one settles it."""

    def __init__(
        self,
        catalogue: Catalogue,
        ledger: Ledger,
        connectors: Mapping[str, Connector],
        answers: Answers,
        metrics: ToolMetrics,
        *,
        clock: Clock,
        namespace: str,
        stops: Stops | None = None,
    ) -> None:
        self._stops = stops or Stops()
        self._catalogue = catalogue
        self._ledger = ledger
        self._connectors = connectors
        self._answers = answers
        self._metrics = metrics
        self._clock = clock
        self._namespace = namespace
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def can_ask(self, tool: str) -> bool:
        """Whether the tool's destination can be asked about an operation."""
        return self._lookup(tool) is not None

    async def reconcile(self, session: str, key: str, *, at_once: bool = False) -> Said | None:
        """Ask about an unknown operation if it is due, and settle it if the destination knows. What it said; None if
        it was not asked."""
        tool = (await self._ledger.read(session, key)).get("tool", "")
        lookup = self._lookup(tool)
        begun = await self._ledger.begin_lookup(
            session, key, ask_ms=self._timeout_ms(tool) + _HOLD_MS, at_once=at_once, now=self._clock.now_ms(),
            asks=lookup.tool if lookup else "",
        )  # fmt: skip
        if not isinstance(begun, Work):
            return None
        said = await self.ask(Subject(session, key, begun.operation, begun.tool, begun.args))
        match said:
            case Found(result):
                await self._settle(begun, "committed", result, self._reason(begun.tool, "found by"))
            case Nothing():
                await self._settle(begun, "failed", None, self._reason(begun.tool, "not known to"))
            case Silent(reason):
                log.warning("lookup.silent", session=session, operation=begun.operation, reason=reason)
        return said

    async def ask(self, subject: Subject) -> Said:
        """One look-up. Never raises for what the destination did."""
        async with self._slots:
            said = await self._ask(subject)
        self._metrics.looked_up(subject.tool, _FOUND[type(said)] if not isinstance(said, Found) else _stands(said))
        return said

    async def _ask(self, subject: Subject) -> Said:
        lookup = self._lookup(subject.tool)
        if lookup is None:
            return Silent(f"{subject.tool} has no look-up")
        key = destination_key(self._namespace, subject.session, subject.key)
        try:
            args = lookup_args(lookup, subject.args, key=key, result=subject.result)
            args = await self._with_owner(lookup.tool, args, subject.session)
        except TemplateError as error:
            return Silent(f"the look-up's arguments: {error}")
        if faults := self._catalogue.faults(lookup.tool, args):
            return Silent("; ".join(faults))
        if lookup.tool in self._catalogue.raised:
            return Silent(f"{lookup.tool} writes, as its server says; a look-up must not")
        timeout = self._timeout_ms(subject.tool) / 1000
        own_key = f"{subject.key}-lookup"
        call = Call(
            subject.session, subject.operation, lookup.tool, args,
            destination_key(self._namespace, subject.session, own_key), timeout, own_key,
            before_send=lambda: self._stops.check(lookup.tool, subject.session),
        )  # fmt: skip
        try:
            outcome = await called(self._connectors[lookup.tool], call)
        except Stopped as stopped:
            return Silent(stopped.reason)
        return read_lookup(lookup, subject.args, outcome)

    async def _with_owner(self, tool: str, args: dict[str, JSON], session: str) -> dict[str, JSON]:
        """A look-up has no turn and so no origin; of identity it may name the session's owner."""
        known = self._catalogue.tool(tool)
        if known is None or not known.identity:
            return args
        return {**args, **fill(dict(known.identity), {"owner": await self._ledger.owner(session)})}

    async def _settle(self, work: Work, state: OperationState, result: JSON, reason: str) -> None:
        now = self._clock.now_ms()
        tool = self._catalogue.tool(work.tool)
        silent_ms = round(tool.connector.timeout * 1000) if tool else 0
        released = honoured_until(tool, work.keyed_from) if tool else 0
        spent = state == "failed" and now > released
        reason, messages = self._answers.outcome(work, state, result, reason, now, spent=spent)
        stands = await self._ledger.settle_lookup(
            work, state, result, reason, messages, silent_ms=silent_ms, released_until=released, now=now
        )
        if stands is None:
            self._metrics.count(work.tool, state)
        log.info(
            "operation.reconciled", session=work.session, operation=work.operation, tool=work.tool,
            state=state if stands is None else stands,
        )  # fmt: skip

    def _lookup(self, tool: str) -> Lookup | None:
        known = self._catalogue.tool(tool)
        return known.lookup if known else None

    def _timeout_ms(self, tool: str) -> int:
        lookup = self._lookup(tool)
        asked = self._catalogue.tool(lookup.tool) if lookup else None
        return round(asked.connector.timeout * 1000) if asked else 0

    def _reason(self, tool: str, how: str) -> str:
        lookup = self._lookup(tool)
        return f"{how} {lookup.tool}" if lookup else ""


_FOUND = {Nothing: "none", Silent: "silent"}


def _stands(found: Found) -> str:
    return "stands" if found.stands else "gone"


def subject_of(session: str, key: str, fields: Mapping[str, str]) -> Subject | None:
    """What is asked about, from an operation as it is stored; None once only its tombstone is left."""
    if "args" not in fields:
        return None
    result = orjson.loads(fields["result"]) if fields.get("result") else None
    return Subject(session, key, fields["id"], fields["tool"], orjson.loads(fields["args"]), result)

"""Faults on purpose, at the door, in sessions that are marked as trials (design §3.4; `libs.contracts.faults`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from libs.contracts.errors import StoreAway
from libs.contracts.faults import Fault, FaultMode, Trial, due
from libs.contracts.keys import DAY_MS, Keys
from libs.contracts.principals import actor_of
from libs.runtime.batch import Store
from libs.runtime.scripts import load_script
from services.tools.domain import Catalogue
from services.tools.ports import Work

log = structlog.get_logger(__name__)

COUNT_TTL_MS = 30 * DAY_MS
_COUNT = load_script("services.tools", "count_call")


@dataclass(frozen=True)
class Injected:
    """The fault that a call meets: as the `number`-th of its action."""

    mode: FaultMode
    number: int
    delay_seconds: float

    @property
    def told(self) -> str:
        """For the ledger and the log: which one it was."""
        return f"{self.mode} at call {self.number}"


class TrialFaults:
    """Counts the calls of trials across replicas. Only built where trials are switched on."""

    def __init__(self, store: Store, keys: Keys, catalogue: Catalogue) -> None:
        self._store = store
        self._keys = keys
        self._catalogue = catalogue

    async def draw(self, work: Work) -> Injected | None:
        """The fault that a freshly claimed operation meets, written down beside it. None where its session is no trial,
        or where it cannot be counted: never a guess."""
        try:
            return await self._draw(work)
        except StoreAway:
            log.warning("fault.not_counted", session=work.session, operation=work.operation)
            return None

    async def _draw(self, work: Work) -> Injected | None:
        key = self._keys.of_session("trial", work.session)
        while raw := await self._store.command("GET", key):
            trial = Trial.model_validate_json(raw)
            faults = [
                fault for fault in trial.faults if fault.selects(self._actions(work), work.args, actor_of(work.origin))
            ]
            numbers = await self._numbers(work, key, raw, trial, list(dict.fromkeys(f.selector for f in faults)))
            if numbers is None:
                continue  # replaced meanwhile
            fault = due(faults, numbers)
            return await self._written(work, fault, numbers[fault.selector]) if fault is not None else None
        return None

    async def _numbers(
        self, work: Work, key: str, raw: bytes, trial: Trial, selectors: Sequence[str]
    ) -> dict[str, int] | None:
        keys = [key, self._keys.of_session("faultcount", work.session)]
        call = f"{work.key}:{work.attempt}"
        reply = await self._store.run(
            _COUNT, keys, [raw, trial.version, call, COUNT_TTL_MS, len(selectors), *selectors]
        )
        if reply.tag == "changed":
            return None
        return {selector: reply.int(place) for place, selector in enumerate(selectors)}

    async def _written(self, work: Work, fault: Fault, number: int) -> Injected:
        """Evidence first: what is injected is in the ledger before it happens."""
        operation = self._keys.of_session("operation", work.session, work.key)
        await self._store.command("HSET", operation, "fault", fault.mode, "call_number", number)
        log.warning(
            "fault.injected", session=work.session, operation=work.operation, tool=work.tool, mode=fault.mode,
            call=number,
        )  # fmt: skip
        return Injected(fault.mode, number, fault.delay_seconds)

    def _actions(self, work: Work) -> tuple[str, ...]:
        tool = self._catalogue.tool(work.tool)
        return (work.tool,) if tool is None else tool.actions(work.tool)

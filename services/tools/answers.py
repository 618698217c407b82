"""The messages that tell of an operation. What is told was stored before, or is stored with them (G8)."""

import secrets
from collections.abc import Mapping
from typing import Literal, cast

import structlog

from libs.contracts.canonical import JSON
from libs.contracts.door import check_of, code_of
from libs.contracts.envelope import Message
from libs.contracts.ids import is_text_id
from libs.contracts.ingress import RegisterSubject, SetTimer, StopTimer
from libs.contracts.origin import SealKeys, attest
from libs.contracts.reasons import OperationState
from libs.contracts.session import Notice
from libs.contracts.templates import TemplateError, render
from libs.contracts.tools import LookedUp, LookUpOperation, StepFinished
from libs.runtime.composer import Composer
from libs.runtime.publisher import Outgoing
from services.tools.domain import Catalogue
from services.tools.ports import Known, Told, Work
from services.tools.timers import lateness_ms

log = structlog.get_logger(__name__)

LAB_MARK = "lab"
OBSERVE_MARK = "observe"
_NEVER_RAN = ("needs_consent", "precondition_failed", "withdrawn", "expired")


class Answers:
    """Composes answers with stable ids: the same outcome of the same attempt has the same message (G2)."""

    def __init__(self, composer: Composer, catalogue: Catalogue, keys: SealKeys) -> None:
        self._composer = composer
        self._catalogue = catalogue
        self._keys = keys

    def outcome(
        self, work: Work, state: OperationState, result: JSON, reason: str, now: int,
        *, spent: bool = False, heard: tuple[OperationState, str] | None = None,
    ) -> tuple[str, list[Outgoing]]:  # fmt: skip
        """The reason as it is told, and an outcome's messages: to the session, to applications, and the subject
        that a committed operation registers. `spent`: it failed, and its key is not released. `heard`: state and reason
        that session and applications hear instead, where a fault was injected."""
        reason = _marked(work.context, reason)
        told, why = heard or (state, reason)
        finished = StepFinished(
            operation=work.operation, key=work.key, state=told, result=None if heard else result, reason=why,
            spent=spent, standing=work.context.standing,
        )  # fmt: skip
        parts = (work.key, work.attempt, told)
        messages = [
            self._compose(finished, work.session, parts, work.context, now),
            self._compose(_notice(work.operation, work.tool, told, why), work.session, parts, work.context, now),
        ]
        subject = self._subject(work, result) if state == "committed" else None
        if subject is not None:
            attestation = attest(self._keys, "subject", subject, work.session, work.operation)
            message = RegisterSubject(subject=subject, operation=work.operation, attestation=attestation)
            messages.append(self._compose(message, work.session, (subject, work.operation), work.context, now))
        timer = self._timer(work, result) if state == "committed" else None
        if timer is not None:
            messages.append(self._compose(timer, work.session, (timer.timer, work.key), work.context, now))
        return reason, messages

    def resolved(
        self, session: str, key: str, fields: Mapping[str, str], state: OperationState, note: str, told: Told, now: int
    ) -> list[Outgoing]:
        """The messages of an operator's word."""
        operation, tool = fields["id"], fields.get("tool", "")
        finished = StepFinished(operation=operation, key=key, state=state, reason=note, spent=state == "failed")
        parts = (key, fields.get("attempt", "0"), state)
        return [
            self._compose(finished, session, parts, told, now),
            self._compose(_notice(operation, tool, state, note), session, parts, told, now),
        ]

    def known(self, operation: str, key: str, session: str, known: Known, told: Told, now: int) -> Outgoing:
        """A stored answer. To the very call that it answered it is the same message again, else marked a replay."""
        same = known.call == told.call
        code = code_of(known.state, "") if known.state in _NEVER_RAN else ""
        finished = StepFinished(
            operation=operation, key=key, state=known.state, result=known.result, reason=known.reason,
            replay=not same, spent=known.spent, code=code, status=check_of(code).status if code else 0,
            standing="" if known.state in _NEVER_RAN else told.standing,
        )  # fmt: skip
        parts = (key, known.attempt, known.state) if same else ("replay", told.call, known.state)
        return self._compose(finished, session, parts, told, now)

    def looked_up(
        self, wish: LookUpOperation, session: str, found: Literal["stands", "gone", "unknown"], result: JSON,
        told: Told, now: int,
    ) -> Outgoing:  # fmt: skip
        """What the destination says of an operation. The same wish has the same answer's id."""
        message = LookedUp(operation=wish.operation, key=wish.key, found=found, result=result)
        return self._compose(message, session, ("looked-up", told.call), told, now)

    def circuit(self, tool: str, session: str, change: str, reason: str, now: int) -> Outgoing:
        """A notice to operators that a tool was given a pause (`opened`), or is called again (`closed`)."""
        text = f"{tool} circuit {change}" + (f": {reason}" if reason else "")
        data: dict[str, JSON] = {"tool": tool, "circuit": change, "reason": reason}
        notice = Notice(topic="operation", text=text, data=data)
        return self._compose(notice, session, ("circuit", tool, change, secrets.token_hex(8)), Told(), now)

    def turned(
        self, operation: str, key: str, session: str, state: OperationState, reason: str, told: Told, now: int,
        *, code: str = "",
    ) -> Outgoing:  # fmt: skip
        """What the door says when nothing was claimed. `code` is that of the check which said so."""
        status = check_of(code).status if code else 0
        finished = StepFinished(
            operation=operation, key=key, state=state, reason=_marked(told, reason), code=code, status=status
        )  # fmt: skip
        return self._compose(finished, session, ("door", told.call, state), told, now)

    def held_back(
        self, operation: str, key: str, tool: str, session: str, state: OperationState, result: JSON, reason: str,
        told: Told, now: int,
    ) -> list[Outgoing]:  # fmt: skip
        """What the door says when nothing is sent for good; applications hear of it where nobody is asked instead."""
        code = code_of(state, reason)
        finished = StepFinished(
            operation=operation, key=key, state=state, result=result, reason=reason,
            code=code, status=check_of(code).status,
        )  # fmt: skip
        parts = ("held-back", key, told.call, state)
        messages = [self._compose(finished, session, parts, told, now)]
        if state != "needs_consent":
            messages.append(self._compose(_notice(operation, tool, state, reason), session, parts, told, now))
        return messages

    def waits(
        self, operation: str, key: str, tool: str, session: str, reason: str, told: Told, now: int
    ) -> list[Outgoing]:
        """The word that a call is kept until a pause ends. The same call has the same words, however often kept."""
        message = StepFinished(operation=operation, key=key, state="in_progress", reason=_marked(told, reason))
        parts = ("waits", told.call, reason)
        return [
            self._compose(message, session, parts, told, now),
            self._compose(_notice(operation, tool, "in_progress", reason), session, parts, told, now),
        ]

    def _subject(self, work: Work, result: JSON) -> str | None:
        tool = self._catalogue.tool(work.tool)
        if tool is None or tool.registers is None:
            return None
        try:
            subject = render(tool.registers, {**work.args, "result": result})
        except TemplateError as error:
            log.error("subject.not_registered", tool=work.tool, operation=work.operation, error=str(error))
            return None
        if not is_text_id(subject):
            log.error("subject.not_registered", tool=work.tool, operation=work.operation, error="not a subject")
            return None
        return subject

    def _timer(self, work: Work, result: JSON) -> SetTimer | StopTimer | None:
        """What ingress is told of a timer that was set or cancelled through the door, under our attestation."""
        tool = self._catalogue.tool(work.tool)
        if tool is None or tool.connector.timer is None or not isinstance(result, dict):
            return None
        timer, args = str(result["timer"]), work.args
        if tool.connector.timer.verb == "cancel":
            stop = StopTimer(timer=timer, reason=f"cancelled by {work.operation}")
            return stop.model_copy(update={"attestation": attest(self._keys, *stop.attested(work.session))})
        unsigned = SetTimer(
            timer=timer, operation=work.operation, setter=work.origin, due=cast(int, result["due"]),
            rule=str(result.get("rule", "")), zone=str(result.get("zone", "UTC")),
            misfire=cast("Literal['run-late', 'skip', 'coalesce']", args.get("misfire", "run-late")),
            lateness=lateness_ms(args), subject=str(result["subject"]), data={"text": args["text"]}, attestation="",
        )  # fmt: skip
        return unsigned.model_copy(update={"attestation": attest(self._keys, *unsigned.attested(work.session))})

    def _compose(self, message: Message, session: str, parts: tuple[object, ...], told: Told, now: int) -> Outgoing:
        return self._composer.compose(
            message, session=session, id_parts=parts, cause=told.call, correlation=told.correlation,
            depth=told.depth, trace=told.trace, now=now,
        )  # fmt: skip


def _notice(operation: str, tool: str, state: OperationState, reason: str) -> Notice:
    text = f"{operation} {tool} {state}" + (f": {reason}" if reason else "")
    data: dict[str, JSON] = {"operation": operation, "tool": tool, "state": state, "reason": reason}
    return Notice(topic="operation", text=text, data=data)


def _marked(told: Told, reason: str) -> str:
    if told.lab:
        return f"{LAB_MARK}: {reason or 'authority_by_role'}"
    return f"{OBSERVE_MARK}: {reason or 'its owner would have been asked'}" if told.observed else reason

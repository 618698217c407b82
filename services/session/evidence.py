"""What a session's commit tells its chain of evidence: what was decided by it, and what it sent to door and consent."""

from libs.contracts.canonical import JSON, digest, digest_bytes
from libs.contracts.consent import IssueAction
from libs.contracts.evidence import pack_entry
from libs.contracts.evidence_entries import entry, steps_digest
from libs.contracts.tools import RunStep
from services.session.domain.draft import Decision


def commit(decision: Decision, version: int, after: bytes) -> bytes:
    """One commit; `version` is the one that it makes, `after` the state as stored."""
    turn = decision.state.turn
    told = entry(
        "turn", who="session", outcome="committed", cause=decision.cause,
        behalf=f"{turn.origin.kind} {turn.origin.source} {turn.origin.principal}" if turn else "",
        version=version, state=digest_bytes(after),
        lines=[[line.kind, line.turn, line.event or line.operation or line.action] for line in decision.lines],
        asks=[_asked(send.message) for send in decision.sends if isinstance(send.message, IssueAction)],
        sends=[_sent(send.message) for send in decision.sends if isinstance(send.message, RunStep)],
        ended=[[end.origin, end.outcome] for end in decision.ends],
    )  # fmt: skip
    return pack_entry("committed", told)


def _asked(message: IssueAction) -> dict[str, JSON]:
    inputs: list[JSON] = [seal.input for seal in message.seals]
    return {"action": message.action, "turn": message.turn, "steps": steps_digest(message.steps), "inputs": inputs}


def _sent(message: RunStep) -> dict[str, JSON]:
    inputs: list[JSON] = [seal.input for seal in message.seals]
    return {
        "operation": message.operation, "key": message.key, "turn": message.turn, "tool": message.tool,
        "args": digest(message.args), "consent": message.action, "step": message.step, "inputs": inputs,
    }  # fmt: skip

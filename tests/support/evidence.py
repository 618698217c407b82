"""A session's evidence made up without a store: an event, its question, the owner's yes, one effect."""

from typing import Any

from libs.contracts.evidence import Chain, Entry, Signer, extend, genesis, pack_entry
from libs.contracts.evidence_entries import action_record, entry, operation_record, sets
from turnkeeper.evidence.source import Evidence

SESSION = "dinner"
AT = 1_796_000_000_000
NOW = AT + 60_000
SIGNER = Signer.parse("e1:" + "QUFB" * 10 + "QUE=")
STEPS, QUESTION, ARGS = "5" * 64, "7" * 64, "a" * 64
KEY = "k" * 32
OPERATION = {
    "state": "committed", "call": "m4", "owner": "tools-0/x/m4", "lease_until": str(AT + 5 + 3_000), "id": "O1",
    "args": '{"party":4}', "result": '{"id":"R1"}', "reason": "", "attempt": "1", "claimed_at": str(AT + 5),
    "finished_at": str(AT + 6), "not_after": str(NOW + 1), "action": "A1", "step": "0",
}  # fmt: skip
ACTION = {
    "state": "accepted", "question": "A1: book?", "question_digest": QUESTION, "approver": "ana", "asked_number": "1",
    "replaced": "A0 ", "decision": "accept", "decided_by": "ana", "s0": KEY, "done": str(AT + 5),
}  # fmt: skip


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """(note, body) of each entry, in order."""
    operation, action = operation_record(KEY), action_record("A1")
    identity = {name: OPERATION[name] for name in ("call", "not_after", "id", "action", "step")}
    asked = {name: ACTION[name] for name in ("question", "question_digest", "approver")}
    decided = {name: ACTION[name] for name in ("decision", "decided_by")}
    attempt = sets(
        operation, {"state": "pending"}, {"owner": OPERATION["owner"]}, identity, {"args": OPERATION["args"]},
        stamped=["claimed_at"], noted=["attempt"], after={"lease_until": 3_000}, cleared=["result", "finished_at"],
    ) + sets(action, {"s0": KEY}, stamped=["done"])  # fmt: skip
    outcome = sets(
        operation, {"state": "committed"}, {"result": OPERATION["result"]}, {"reason": ""}, stamped=["finished_at"]
    )
    asks = [{"action": "A1", "turn": "T1", "steps": STEPS, "inputs": ["i1"]}]
    sends = [{"operation": "O1", "key": KEY, "turn": "T2"}]
    return [
        ("-", entry("session", who="ingress", outcome="created", owner="ana", sets=sets("session", {"owner": "ana"}))),
        ("-", entry("input", who="webhook restaurant restaurant", outcome="appended", input="i1", number=1,
                    what="event", source="restaurant", event="evt_1", dedupe="d" * 32, bytes="b" * 64, seal={})),
        ("-", entry("turn", who="session", outcome="committed", asks=asks, sends=[])),
        ("1/A0,", entry("question", who="consent", outcome="asked", action="A1", approver="ana", steps=STEPS,
                        question=QUESTION, sets=sets(action, asked, {"state": "pending"},
                                                     noted=["asked_number", "replaced"]))),
        ("-", entry("decision", who="ana", outcome="accepted", action="A1", question=QUESTION, input="i2", typed=0,
                    sets=sets(action, decided, {"state": "accepted"}))),
        ("-", entry("input", who="user app ana", outcome="appended", input="i2", number=2, what="decision", seal={})),
        ("-", entry("turn", who="session", outcome="committed", asks=[], sends=sends)),
        ("1", entry("attempt", who=OPERATION["owner"], outcome="pending", behalf="user app ana", operation="O1",
                    key=KEY, tool="reserve_table", args=ARGS, turn="T2", consent="A1", step=0, decision="i2",
                    inputs=["i2"], sets=attempt)),
        ("-", entry("outcome", who=OPERATION["owner"], outcome="committed", operation="O1", key=KEY,
                    tool="reserve_table", sets=outcome)),
    ]  # fmt: skip


def lines_of(told: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """As they are stored. The attempt is at `AT + 5`, the outcome a millisecond later, the rest at `AT`."""
    at = {"attempt": AT + 5, "outcome": AT + 6}
    return [
        f"{at.get(body['kind'], AT)} {note} ".encode() + pack_entry("case", body).split(b" ", 1)[1]
        for note, body in told
    ]


def sealed(lines: list[bytes], *, heads: tuple[int, ...] = (4,), session: str = SESSION, **changes: Any) -> Evidence:
    """Evidence of these lines, all sealed, with heads after these entries and the last."""
    links = extend(genesis(session), 1, [Entry.parse(line) for line in lines])
    signed = [SIGNER.sign(session, number, links[number - 1], NOW).model_dump_json() for number in (*heads, len(lines))]
    chain = Chain(session, 0, genesis(session), lines, links, signed, len(lines), links[-1])
    values: dict[str, Any] = {
        "records": {
            "session": {"owner": "ana"}, f"operation:{KEY}": dict(OPERATION), "action:A1": dict(ACTION),
        },
        "seals": {"i1": True, "i2": True}, "public": SIGNER.public, "marks": {"i1": "d" * 32},
    } | changes  # fmt: skip
    return Evidence(chain, **values)


def evidence(**changes: Any) -> Evidence:
    """The whole of it, unbroken."""
    return sealed(lines_of(bodies()), **changes)

"""What ingress tells the session's chain of evidence: its owner, and each input that got a number."""

import orjson

from libs.contracts.evidence import pack_entry
from libs.contracts.evidence_entries import SESSION_RECORD, entry, sets
from libs.contracts.inputs_evidence import input_entry


def created(owner: str) -> bytes:
    """A session and its owner, written once."""
    told = entry("session", who="ingress", outcome="created", behalf=owner, owner=owner,
                 sets=sets(SESSION_RECORD, {"owner": owner}))  # fmt: skip
    return pack_entry("created", told)


def appended(packed: bytes, mark: str) -> bytes:
    """A sealed input as it lies in the inbox; `mark` is what its dedupe entry holds."""
    return pack_entry("appended", input_entry(orjson.loads(packed), mark=mark))

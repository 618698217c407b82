"""Evidence beside the change that it tells of: the last keys and arguments of a script that includes `evidence.lua`."""

from libs.contracts.keys import Keys
from libs.runtime.batch import Arg


def evidence_keys(keys: Keys, session: str) -> list[str]:
    """The two keys that `evidence_add` needs. They go at the end of KEYS."""
    return [keys.of_session("evidence", session), keys.of_session_partition("evidencedue", session)]


def evidence_args(session: str, *lines: bytes) -> list[Arg]:
    """The arguments for `evidence_add`, from lines of `pack_entry`. They go at the end of ARGV."""
    return [session, b"\n".join(lines)]

"""Every Redis key family: who writes it, who reads it, how long it lives. Keys are spelled only here.

All keys of one script share one hash tag, so the same code runs on one Redis, on Sentinel and on a cluster
(design §6). `docs/state.md` and the ACL file are rendered from `FAMILIES`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from libs.contracts.commands import commands_of
from libs.contracts.ids import partition_of, shard_of

Service = Literal["ingress", "session", "consent", "tools"]
SERVICES: tuple[Service, ...] = ("ingress", "session", "consent", "tools")
DAY_MS = 86_400_000
SESSION_TTL_MS = 400 * DAY_MS
"""A session's life after its last input. Fixed, since four services write keys that must live equally long."""
SLOTS = 512
"""Small hashes per tag and day. A hash of at most 128 fields stays compact: about 23 bytes a field (5-facts)."""


@dataclass(frozen=True)
class Family:
    """One kind of key. `bytes` is a rule of thumb for sizing, measured on Redis 7.0."""

    name: str
    tag: Literal["i", "s", "p", "u", "meta"]
    holds: str
    type: str
    writers: tuple[Service, ...]
    readers: tuple[Service, ...]
    ttl: str
    bytes: str


FAMILIES: tuple[Family, ...] = (
    Family("dedupe", "i", "identity of an event → digest of its body", "hash, day and slot",
           ("ingress",), ("ingress",), "window + 2 days", "70 an event, 170 where a bucket holds one"),
    Family("event", "i", "an admitted event until it is appended", "string",
           ("ingress",), ("ingress",), "window", "0.4 k and the body, gone within ms"),
    Family("admitted", "i", "admitted and not yet appended, by time", "sorted set",
           ("ingress",), ("ingress",), "emptied by relay", "40 an entry, 120 above 128"),
    Family("quarantine", "i", "second bodies and misfits, newest 1,000 a tag, ten an id", "hash",
           ("ingress",), ("ingress",), "window", "0.8 k and twice the body"),
    Family("quarantineindex", "i", "quarantined bodies by time", "sorted set",
           ("ingress",), ("ingress",), "trimmed to the newest 1,000 a tag", "110 an entry"),
    Family("subject", "s", "subject → session and operation, written once", "string",
           ("ingress",), ("ingress",), "subject_ttl, 90 days", "120 each"),
    Family("held", "s", "events whose subject is not registered yet", "hash",
           ("ingress",), ("ingress",), "hold time + 1 day", "0.5 k and the body, each"),
    Family("heldindex", "s", "held subjects by deadline", "sorted set",
           ("ingress",), ("ingress",), "emptied by sweeper", "100 an entry"),
    Family("owner", "p", "a session's owner, written once", "string",
           ("ingress",), ("ingress", "session", "consent", "tools"), "session_ttl, 400 days", "90 a session"),
    Family("number", "p", "the last number given in a session's inbox", "string",
           ("ingress", "consent"), ("ingress", "consent"), "session_ttl", "70 a session"),
    Family("inbox", "p", "inputs by number until their turn ends", "hash",
           ("ingress", "consent", "session"), ("session",), "session_ttl", "0.7 k and the body, an input in work"),
    Family("outcome", "p", "input → session, number and what became of it", "hash, day and slot",
           ("ingress", "consent", "session"), ("ingress",), "window + 2 days", "55 an input, 140 alone"),
    Family("trial", "p", "the mark of a trial, for tests: its faults and their version", "string",
           ("ingress", "tools"), ("ingress", "tools"), "session_ttl", "0.2 k and the faults"),
    Family("waiting", "p", "events for a session that does not exist yet", "hash",
           ("ingress",), ("ingress",), "hold time + 1 day", "0.5 k and the body, each"),
    Family("waitingindex", "p", "such sessions by deadline", "sorted set",
           ("ingress",), ("ingress",), "emptied by sweeper", "100 an entry"),
    Family("timer", "p", "a timer: what it is, its next instant; a tombstone when it has ended", "hash",
           ("ingress",), ("ingress",), "session_ttl after its next instant; 7 days when ended",
           "0.5 k and the data, 0.1 k when ended"),
    Family("timers", "p", "pending timers by their next instant", "sorted set",
           ("ingress",), ("ingress",), "emptied by sweeper", "105 an entry"),
    Family("pendingtimers", "p", "a session's pending timers by their next instant", "sorted set",
           ("ingress",), ("ingress",), "ttl of its last timer; at most `caps.timers`", "60 an entry"),
    Family("state", "p", "a session's state, its version and last commit", "hash",
           ("session",), ("session",), "session_ttl", "1 to 3 k a session, 25 k with 100 operations"),
    Family("timeline", "p", "the newest 200 lines", "list",
           ("session",), ("session",), "session_ttl", "250 a line, up to 50 k a session"),
    Family("history", "p", "what the planner is shown of the past, newest 60 entries", "list",
           ("session",), ("session",), "session_ttl", "200 an entry, up to 12 k a session"),
    Family("record", "p", "what the newest 200 commits were decided from, and what came of each", "list",
           ("session",), ("session",), "session_ttl", "0.9 k an entry, up to 190 k a session"),
    Family("deadline", "p", "sessions by their next durable deadline", "sorted set",
           ("session",), ("session",), "emptied when reached", "100 a waiting session"),
    Family("sessions", "p", "known sessions of the partition", "sorted set",
           ("ingress",), ("session", "ingress"), "trimmed to session_ttl", "105 a session"),
    Family("action", "p", "an action: steps, question, approver, state, grant", "hash",
           ("consent", "tools"), ("consent", "tools"), "action_ttl + 30 days", "2 to 3 k each"),
    Family("actions", "p", "a session's actions by time, newest 200", "sorted set",
           ("consent",), ("consent",), "30 days", "60 an entry"),
    Family("open", "p", "a session's open questions: deadline and asking source", "hash",
           ("consent",), ("consent",), "30 days", "60 an entry"),
    Family("expiry", "p", "open questions by deadline", "sorted set",
           ("consent",), ("consent",), "emptied by sweeper", "105 an entry"),
    Family("grant", "p", "accepted actions by the end of their grant", "sorted set",
           ("consent",), ("consent",), "emptied by sweeper", "105 an entry"),
    Family("refused", "p", "marks: this refused decision was told to its session", "string",
           ("consent",), ("consent",), "1 day", "130 each"),
    Family("operation", "p", "an operation: fingerprint, state, lease, result", "hash",
           ("tools",), ("tools",), "twice not_after (48 h), small after not_after", "1.8 k each, 0.4 k when trimmed"),
    Family("operations", "p", "a session's operations, newest 500", "sorted set",
           ("tools",), ("tools",), "session_ttl", "50 an entry, 120 above 128"),
    Family("lease", "p", "pending operations by the end of their lease", "sorted set",
           ("tools",), ("tools",), "emptied by sweeper", "135 an entry"),
    Family("binding", "p", "turn → inputs and input → turn, written once, and steps a seal", "hash, day and slot",
           ("tools",), ("tools",), "3 days", "140 a turn, 60 where a bucket holds ten"),
    Family("unknown", "p", "operations whose outcome is unknown", "sorted set",
           ("tools",), ("tools",), "emptied by resolve", "135 an entry"),
    Family("lookup", "p", "unknown operations by when their destination is asked next", "sorted set",
           ("tools",), ("tools",), "emptied by reconciler", "135 an entry"),
    Family("evidence", "p", "a session's entries of evidence, newest 500 that are sealed", "list",
           SERVICES, ("tools",), "session_ttl", "0.6 k an entry, up to 300 k a session"),
    Family("evidencedue", "p", "sessions with entries that are not sealed yet, by the first one's time", "sorted set",
           SERVICES, ("tools",), "emptied by notary", "105 a session"),
    Family("chain", "p", "how far a session's evidence is sealed and where its kept entries begin", "hash",
           ("tools",), ("tools",), "session_ttl", "300 a session"),
    Family("links", "p", "the links of the kept entries", "list",
           ("tools",), ("tools",), "session_ttl", "70 an entry"),
    Family("heads", "p", "the newest 50 signed heads", "list",
           ("tools",), ("tools",), "session_ttl", "330 a head"),
    Family("trim", "p", "operations by not_after, until only a tombstone is left of each", "sorted set",
           ("tools",), ("tools",), "emptied by sweeper", "135 an operation of the last 24 h"),
    Family("faultcount", "p", "which call of an action each call of a trial was", "hash",
           ("tools",), ("tools",), "30 days", "200 a call"),
    Family("pauses", "p", "what is paused, as the door's scripts read it, and the version of that", "hash",
           ("tools",), ("tools",), "one key a partition, at most 500 pauses", "40 a pause"),
    Family("parked", "p", "calls that wait for the end of a pause, at most 5,000 a partition", "hash",
           ("tools",), ("tools",), "emptied by resume, or at the call's not_after", "1.5 k and the arguments, each"),
    Family("parkedorder", "p", "the same by the order in which they came", "sorted set",
           ("tools",), ("tools",), "emptied with parked", "110 an entry"),
    Family("parkedends", "p", "the same by their not_after", "sorted set",
           ("tools",), ("tools",), "emptied with parked", "110 an entry"),
    Family("attempts", "p", "our own count of attempts of a message", "string",
           SERVICES, SERVICES, "1 day", "100 each, only after a fault"),
    Family("outbox", "p", "committed messages of one service until confirmed", "hash",
           SERVICES, SERVICES, "emptied by relay; bounded", "size of the message, for ms"),
    Family("outboxdue", "p", "the same by time", "sorted set",
           SERVICES, SERVICES, "emptied by relay; bounded", "100 an entry"),
    Family("standing", "u", "a standing approval: what it grants, its end, each use", "hash",
           ("consent", "tools"), ("consent", "tools"), "its end + 7 days", "0.5 k and 0.4 k a use"),
    Family("standings", "u", "a user's standing approvals by when they are forgotten, at most 50", "sorted set",
           ("consent",), ("consent", "tools"), "its last end + 7 days", "80 an entry"),
    Family("standinguse", "u", "uses whose operation is not known to be claimed yet, by when that is looked at",
           "sorted set", ("tools",), ("tools",), "emptied by sweeper", "150 an entry, for seconds"),
    Family("partitions", "meta", "the partition count of the deployment, written once", "string",
           SERVICES, SERVICES, "none: one key", "60 once"),
    Family("epoch", "meta", "the store's epoch", "string",
           SERVICES, SERVICES, "none: one key", "60 once"),
    Family("pauselist", "meta", "what is paused: who, when, why", "hash",
           ("tools",), ("tools",), "one key, at most 500 pauses", "0.3 k a pause"),
    Family("pauseseen", "meta", "replica of the door → the version of the pauses that it obeys", "hash",
           ("tools",), ("tools",), "one key, a field a replica", "80 a replica"),
    Family("probe", "meta", "written by readiness, to see whether Redis takes writes", "string",
           SERVICES, SERVICES, "one key, 10 s", "60 once"),
)  # fmt: skip


@dataclass(frozen=True)
class Keys:
    """Builds keys of one deployment. `namespace` keeps several deployments on one server apart ("" for none)."""

    namespace: str = ""
    partitions: int = 16

    @cached_property
    def _heads(self) -> dict[str, str]:
        """What keys of each tag begin with: they are made a hundred times a turn."""
        head = f"tk:{self.namespace}:" if self.namespace else "tk:"
        tags = [f"{kind}{number:02}" for kind in "ispu" for number in range(self.partitions)]
        return {tag: f"{head}{{{tag}}}" for tag in (*tags, "meta")}

    def _key(self, tag: str, family: str, *rest: str) -> str:
        return ":".join((self._heads[tag], family, *rest))

    @property
    def everything(self) -> str:
        """A pattern for SCAN that matches the keys of this deployment; without a namespace those of all."""
        return f"tk:{self.namespace}:*" if self.namespace else "tk:*"

    def partition(self, session: str) -> int:
        """The partition number of a session."""
        return partition_of(session, self.partitions)

    def in_partition(self, family: str, partition: int, *rest: str) -> str:
        """A key of one partition: indexes, outboxes, leases."""
        return self._key(f"p{partition:02}", family, *rest)

    def of_session(self, family: str, session: str, *rest: str) -> str:
        """A key of one session, in its partition."""
        return self.in_partition(family, self.partition(session), session, *rest)

    def of_session_partition(self, family: str, session: str, *rest: str) -> str:
        """A key of the partition that holds a session."""
        return self.in_partition(family, self.partition(session), *rest)

    def in_shard(self, family: str, shard: int, *rest: str) -> str:
        """A key of one dedupe shard."""
        return self._key(f"i{shard:02}", family, *rest)

    def of_event(self, family: str, identity: str, *rest: str) -> str:
        """A key in the dedupe shard of an event's identity."""
        return self.in_shard(family, shard_of(identity, self.partitions), *rest)

    def dedupe_days(self, source: str, identity: str, now_ms: int, window_ms: int) -> list[str]:
        """The dedupe buckets to look at, tomorrow's first, today's second (where a new entry goes).

        Tomorrow's too, since two replicas with clocks on either side of midnight would each miss the other.
        """
        today = now_ms // DAY_MS
        oldest = (now_ms - window_ms) // DAY_MS
        slot, shard = str(shard_of("slot:" + identity, SLOTS)), shard_of(identity, self.partitions)
        days = [today + 1, today, *range(today - 1, oldest - 1, -1)]
        head = self.in_shard("dedupe", shard, source)
        return [f"{head}:{day}:{slot}" for day in days]

    def in_subject_shard(self, family: str, shard: int, *rest: str) -> str:
        """A key of one subject shard."""
        return self._key(f"s{shard:02}", family, *rest)

    def of_subject(self, family: str, subject: str) -> str:
        """A key of one subject. The subject is hashed: it is somebody else's text."""
        name = hashlib.blake2b(subject.encode(), digest_size=16).hexdigest()
        return self.in_subject_shard(family, self.subject_shard(subject), name)

    def subject_shard(self, subject: str) -> int:
        """The shard number of a subject."""
        return shard_of(subject, self.partitions)

    def outcome_bucket(self, session: str, input_id: str, accepted_at: int) -> str:
        """The small hash that holds what became of an input, by the day of its acceptance (ms, Unix)."""
        return self.outcome_bucket_in(self.partition(session), input_id, accepted_at)

    def outcome_bucket_in(self, partition: int, input_id: str, accepted_at: int) -> str:
        """The same in a given partition: a look-up by event id does not know the session."""
        slot = str(shard_of("slot:" + input_id, SLOTS))
        return self.in_partition("outcome", partition, str(accepted_at // DAY_MS), slot)

    def binding_bucket(self, session: str, input_id: str, accepted_at: int) -> str:
        """The small hash that holds the bindings of an input and its turn, by the day of its acceptance."""
        slot = str(shard_of("slot:" + input_id, SLOTS))
        return self.of_session_partition("binding", session, str(accepted_at // DAY_MS), slot)

    def in_user_shard(self, family: str, shard: int, *rest: str) -> str:
        """A key of one shard of users."""
        return self._key(f"u{shard:02}", family, *rest)

    def of_user(self, family: str, user: str, *rest: str) -> str:
        """A key of one user."""
        return self.in_user_shard(family, shard_of(user, self.partitions), user, *rest)

    def of_user_shard(self, family: str, user: str) -> str:
        """A key of the shard that holds a user."""
        return self.in_user_shard(family, shard_of(user, self.partitions))

    def outbox(self, service: str, partition: int) -> tuple[str, str]:
        """(messages, due times) of one service's outbox in one partition."""
        return (
            self.in_partition("outbox", partition, service),
            self.in_partition("outboxdue", partition, service),
        )

    def meta(self, family: Literal["partitions", "epoch", "probe", "pauselist", "pauseseen"]) -> str:
        """A key of the whole deployment."""
        return self._key("meta", family)


def acl_rules(service: Service, namespace: str = "") -> list[str]:
    """The rules of a service's Redis ACL user, without name and password: least commands, own key families (G10).

    Writing alone (`%W~`) is granted nowhere: EVALSHA, by which all writes go, demands both rights of each of its keys.
    """
    head = f"tk:{namespace}:" if namespace else "tk:"
    rules = ["resetchannels", "-@all", *(f"+{command}" for command in commands_of(service))]
    for family in FAMILIES:
        tag = "{meta}" if family.tag == "meta" else f"{{{family.tag}*}}"
        own = family.name.startswith("outbox")
        pattern = f"{head}{tag}:{family.name}" + (f":{service}" if own else "" if family.tag == "meta" else ":*")
        if family.tag != "meta" and family.name in _BARE:
            pattern = f"{head}{tag}:{family.name}"
        if service in family.writers:
            rules.append(f"~{pattern}")
        elif service in family.readers:
            rules.append(f"%R~{pattern}")
    return rules


_BARE: Sequence[str] = (
    "admitted",
    "quarantineindex",
    "heldindex",
    "waitingindex",
    "timers",
    "deadline",
    "sessions",
    "expiry",
    "grant",
    "lease",
    "trim",
    "unknown",
    "lookup",
    "standinguse",
    "pauses",
    "parked",
    "parkedorder",
    "parkedends",
    "evidencedue",
)
"""Families with one key a tag: their key ends with the family's name."""

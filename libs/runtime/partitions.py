"""Which replica should own which partition: rendezvous hashing, told to the broker as consumer priorities.

Every replica consumes every partition. From RabbitMQ 4 on, the consumer with the highest priority becomes the single
active one, so partitions spread evenly and only what must move moves; on 3.x the first keeps all (design §3.2).
"""

import hashlib

HIGHEST = 1_000_000


def priority(replica: str, partition: int) -> int:
    """The consumer priority of a replica for a partition: hash(replica, partition), 1 to 1,000,000."""
    raw = hashlib.blake2b(f"{replica}\n{partition}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(raw, "big") % HIGHEST


def expected_owner(replicas: list[str], partition: int) -> str:
    """The replica that should own a partition while these replicas live."""
    return max(replicas, key=lambda replica: (priority(replica, partition), replica))

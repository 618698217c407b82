"""Free TCP ports on loopback."""

import random
import socket
from pathlib import Path

_LOWEST = 15_000
_given: set[int] = set()
"""Ports given out by this process: what was free a moment ago may not be in use yet."""


def free_port() -> int:
    """A port that nothing listens on, below the range from which the system takes ports for outgoing connections.

    A server that is killed and started again needs its port back. From the outgoing range another client could take
    it meanwhile, and a client that keeps trying to reach it could even connect to itself.
    """
    highest = _outgoing_from() - 1
    chooser = random.SystemRandom()
    for _ in range(200):
        port = chooser.randint(_LOWEST, highest) if highest > _LOWEST + 1000 else _any_port()
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise OSError("no free port found on 127.0.0.1")


def is_free(port: int) -> bool:
    """Whether nothing is bound to this port on 127.0.0.1 now."""
    with socket.socket() as probe:
        # As servers do it: connections of a former server that still linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _outgoing_from() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 0

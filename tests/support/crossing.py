"""A TCP proxy between a service and Redis or RabbitMQ that stops the traffic at a named point.

A service that stands at a crossing is between two of its five moves (receive, decide, commit, send, settle), chosen by
the test and not by luck; there it can be killed, or paused and let go on.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

_BODY_FRAME = 3
_HEADER_BYTES = 8
"""Of the protocol's greeting (`AMQP0091`), and of a frame: type, channel, size, and the octet at its end."""


@dataclass
class Hold:
    """A point at which the traffic stops. `reply`: what was asked for is passed on, and its answer stops."""

    markers: tuple[bytes, ...]
    reply: bool = False
    reached: threading.Event = field(default_factory=threading.Event)
    _left: threading.Event = field(default_factory=threading.Event)
    _passes: bool = False

    def await_reached(self, within: float = 15.0) -> None:
        """Wait until the traffic stands here. Raises AssertionError."""
        assert self.reached.wait(within), f"no traffic came to this point within {within} s"

    def leave(self, *, passing: bool) -> None:
        """End it; what stands here is passed on, or never arrives."""
        self._passes = passing
        self._left.set()

    def fits(self, data: bytes) -> bool:
        """Whether this is what is waited for: it holds every marker, and nothing has stood here before."""
        return not self.reached.is_set() and all(marker in data for marker in self.markers)

    def wait(self) -> bool:
        """Stand here; whether to pass on."""
        self.reached.set()
        self._left.wait()
        return self._passes


@dataclass
class Pair:
    """One connection of the process, and the one to the server that goes with it."""

    client: socket.socket
    server: socket.socket
    answer: Hold | None = None

    def close(self) -> None:
        """End both."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Crossing:
    """One server's traffic of one process. `url` is what the process is told instead of the server's."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._amqp = parts.scheme.startswith("amqp")
        self._target = (parts.hostname or "127.0.0.1", parts.port or (5672 if self._amqp else 6379))
        self._listening = socket.create_server(("127.0.0.1", 0))
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        host, port = self._listening.getsockname()[:2]
        self.url = urlunsplit(parts._replace(netloc=f"{user}{host}:{port}"))
        self._hold: Hold | None = None
        self._pairs: list[Pair] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *markers: bytes, reply: bool = False) -> Hold:
        """Stop at the next request to Redis, or body of a message to RabbitMQ, that holds all markers."""
        self._hold = Hold(markers, reply)
        return self._hold

    def clear(self, *, passing: bool = False) -> None:
        """Let the traffic go again. What stood here never arrives, unless `passing`."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.leave(passing=passing)

    def cut(self) -> None:
        """To the server the process is gone, as after missed heartbeats."""
        for pair in list(self._pairs):
            pair.close()

    def close(self) -> None:
        """End it all."""
        self.clear()
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                pair = Pair(client, server)
                self._pairs.append(pair)
                for pump in self.pumps(pair):
                    threading.Thread(target=self._run, args=(pump, pair), daemon=True).start()

    def pumps(self, pair: Pair) -> tuple[Callable[[Pair], None], Callable[[Pair], None]]:
        """What carries a connection's traffic up to the server and down to the process, until either ends."""
        return self._frames_up if self._amqp else self._up, self._down

    def _run(self, pump: Callable[[Pair], None], pair: Pair) -> None:
        with contextlib.suppress(OSError):
            pump(pair)
        pair.close()
        with contextlib.suppress(ValueError):
            self._pairs.remove(pair)

    def _up(self, pair: Pair) -> None:
        while data := pair.client.recv(1 << 16):
            hold = self._hold
            if hold is not None and hold.fits(data):
                if hold.reply:
                    pair.answer = hold
                elif not hold.wait():
                    return
            pair.server.sendall(data)

    def _down(self, pair: Pair) -> None:
        while data := pair.server.recv(1 << 16):
            hold, pair.answer = pair.answer, None
            # A server that does not know the script yet has done nothing: it is asked again.
            if hold is not None and b"NOSCRIPT" not in data and not hold.wait():
                return
            pair.client.sendall(data)

    def _frames_up(self, pair: Pair) -> None:
        pair.server.sendall(exactly(pair.client, _HEADER_BYTES))
        while True:
            head = exactly(pair.client, _HEADER_BYTES - 1)
            kind, _, size = struct.unpack(">BHI", head)
            payload = exactly(pair.client, size + 1)
            hold = self._hold
            if hold is not None and kind == _BODY_FRAME and hold.fits(payload) and not hold.wait():
                return
            pair.server.sendall(head + payload)


def exactly(end: socket.socket, count: int) -> bytes:
    """So many bytes. Raises OSError where the stream ends before."""
    data = b""
    while len(data) < count:
        more = end.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data

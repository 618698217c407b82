"""Duplicates and other orders on every hop between services, by seed: what a broker and its couriers may legally do.

A `DisturbedCrossing` stands between a service and RabbitMQ. What the service publishes goes out twice, later, behind
its neighbour, or with the members of its bundle in another order, as after a confirm that was lost: the relay of the
outbox then sends again, alone or in other company. Now and then the connection over which a service consumes is cut,
so that RabbitMQ gives out again what was not acknowledged. Each publication of the service's own gets its own confirm,
whatever went out around it; nothing is lost, and nothing is made up.

What happens to a message is drawn from the seed, the message's id and how often it was seen: it does not depend on how
processes are scheduled. The first message of each type on its hop is always held back and sent twice.
"""

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from libs.contracts.codec import BUNDLE_TYPE, MAX_BUNDLE_MEMBERS
from tests.support.crossing import Crossing, Pair, exactly

_METHOD, _HEADER, _BODY = 1, 2, 3
_PUBLISH, _CONFIRM, _ACK, _NACK, _DELIVER = (60, 40), (85, 10), (60, 80), (60, 120), (60, 60)
_CHANNEL_CLOSE, _CONNECTION_CLOSE = (20, 40), (10, 50)
"""Class and method of what is looked into."""
_CHUNK = 100_000
"""Below the frame size that RabbitMQ and its clients agree on."""
HELD_SECONDS = 0.04
"""A message is held back until the next one on its channel has gone, or so long."""
COPY_SECONDS = (0.0, 0.05, 0.3, 1.0)
"""A copy follows at once, among later messages, or long after what it belongs to was done."""
CUT_ONE_IN = 250
"""Of so many deliveries one is the last on its connection."""


@dataclass(frozen=True)
class Moves:
    """What is done to one publication."""

    held: bool
    copies: tuple[float, ...]
    """Seconds after which a copy goes out."""
    shuffle: random.Random | None
    """Draws another order of the members of a bundle, with one of them twice."""


class Noise:
    """Draws the moves of one run from its seed, and counts what was done to which type of message."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.done: Counter[tuple[str, str]] = Counter()
        """By type of message, and by `held`, `copied`, `shuffled`; `connection`, `cut`."""
        self.quiet = threading.Event()
        """Set where nothing more is to be disturbed."""
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def moves(self, names: list[tuple[str, str]]) -> Moves:
        """What to do to a publication of messages with these ids and types."""
        with self._lock:
            first = any(self._seen[f"type {type_}"] == 0 for _, type_ in names)
            self._seen.update({f"type {type_}" for _, type_ in names})
            drawn = self._drawn("publication", names[0][0])
            held = drawn.random() < 0.25 or first
            copies = tuple(drawn.choice(COPY_SECONDS) for _ in range(drawn.choice((0, 0, 1, 2)) or first))
            shuffle = drawn if drawn.random() < 0.5 else None
        return Moves(held, copies, shuffle)

    def cuts(self, process: str, id: str) -> bool:
        """Whether the connection that brings this delivery ends with it."""
        with self._lock:
            return self._drawn("delivery", f"{process} {id}").randrange(CUT_ONE_IN) == 0

    def again(self, what: str, id: str) -> Literal["", "http", "amqp"]:
        """Whether who sent this from outside sends it again, and how. Nobody does where nothing is to be disturbed."""
        with self._lock:
            drawn: Literal["", "http", "amqp"] = self._drawn(what, id).choice(("", "http", "amqp"))
            drawn = "" if self.quiet.is_set() else drawn
            if drawn:
                self.done[what, "sent again"] += 1
        return drawn

    def _drawn(self, what: str, id: str) -> random.Random:
        """Two messages of one id differ by how often it was seen."""
        name = f"{what} {id}"
        self._seen[name] += 1
        return random.Random(f"{self.seed} {name} {self._seen[name]}")

    def count(self, what: str, types: set[str]) -> None:
        """Something was done to messages of these types."""
        with self._lock:
            self.done.update((type_, what) for type_ in types)


@dataclass
class _Publication:
    """One message on its way to the broker. `own`: the number that the service waits to see confirmed."""

    channel: int
    method: commands.Basic.Publish
    header: ContentHeader
    body: bytes
    own: int | None
    names: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [_name(member) for member in self.members()]

    def members(self) -> list[Any]:
        """The envelopes in it."""
        with contextlib.suppress(orjson.JSONDecodeError):
            found = orjson.loads(self.body)
            return found if isinstance(found, list) else [found]
        return []

    def types(self) -> set[str]:
        """The types of its messages."""
        return {type_ for _, type_ in self.names}

    def shuffled(self, drawn: random.Random) -> "_Publication":
        """In another order, with one member twice; as it is where it is no bundle."""
        members = self.members()
        if self.header.properties.content_type != BUNDLE_TYPE or not members:
            return self
        if len(members) < MAX_BUNDLE_MEMBERS:
            members.append(drawn.choice(members))
        drawn.shuffle(members)
        return _Publication(self.channel, self.method, self.header, orjson.dumps(members), self.own)

    def copy(self) -> "_Publication":
        """The same once more, of whose confirm nobody is told."""
        return _Publication(self.channel, self.method, self.header, self.body, None)

    def frames(self) -> bytes:
        """As it goes over the wire."""
        header = ContentHeader(properties=self.header.properties, body_size=len(self.body))
        chunks = (self.body[at : at + _CHUNK] for at in range(0, len(self.body), _CHUNK))
        parts: list[Any] = [self.method, header, *(ContentBody(chunk) for chunk in chunks)]
        return b"".join(frame.marshal(part, self.channel) for part in parts)


def _name(member: Any) -> tuple[str, str]:
    envelope = member if isinstance(member, dict) else {}
    return str(envelope.get("id", "")), str(envelope.get("type", "unreadable"))


@dataclass
class _Confirms:
    """Of one channel in confirm mode: which publication each of the broker's numbers stands for."""

    given: int = 0
    sent: int = 0
    open: dict[int, int | None] = field(default_factory=dict)
    """The broker's number → the service's own, None for a copy."""

    def of(self, tag: int, multiple: bool) -> list[int]:
        """The service's own numbers that the broker speaks of."""
        spoken = [number for number in self.open if number == tag or (multiple and number <= tag)]
        return [own for number in spoken if (own := self.open.pop(number)) is not None]


class DisturbedCrossing(Crossing):
    """A crossing to RabbitMQ that disturbs what passes, unless something stands at it."""

    def __init__(self, url: str, process: str, noise: Noise) -> None:
        self.process = process
        self.noise = noise
        super().__init__(url)

    def pumps(self, pair: Pair) -> tuple[Callable[[Pair], None], Callable[[Pair], None]]:
        """Each connection has its own numbers."""
        relay = _Relay(pair, self)
        return relay.up, relay.down

    def stands(self, body: bytes) -> bool:
        """Wait where the test says so; whether the traffic ends here."""
        hold = self._hold
        return hold is not None and hold.fits(body) and not hold.wait()


class _Relay:
    """One connection: frames up and down, whole, with publications and their confirms in between."""

    def __init__(self, pair: Pair, crossing: DisturbedCrossing) -> None:
        self._pair = pair
        self._crossing = crossing
        self._noise = crossing.noise
        self._confirming: dict[int, _Confirms] = {}
        self._building: dict[int, list[Any]] = {}
        """By channel, a publication of which not all has come: method, header, body so far."""
        self._held: dict[int, tuple[float, _Publication]] = {}
        """By channel, what is held back, and until when."""
        self._copies: list[tuple[float, _Publication]] = []
        self._lock = threading.Lock()

    def up(self, pair: Pair) -> None:
        """From the service to the broker."""
        pair.server.sendall(exactly(pair.client, 8))
        while True:
            if not _readable(pair.client, self._until_due()):
                self._send_due()
                continue
            kind, channel, payload, raw = _frame_of(pair.client)
            publication = self._collected(kind, channel, payload)
            if publication is not None:
                if self._crossing.stands(publication.body):
                    return
                self._publish(publication)
            elif channel not in self._building:
                self._send_held()
                self._look_at(kind, channel, payload)
                pair.server.sendall(raw)
            self._send_due()

    def _look_at(self, kind: int, channel: int, payload: bytes) -> None:
        """A channel begins to confirm, or ends: nothing may be published on it any more."""
        spoken = struct.unpack_from(">HH", payload) if kind == _METHOD else None
        with self._lock:
            if spoken == _CONFIRM:
                self._confirming[channel] = _Confirms()
            elif spoken == _CHANNEL_CLOSE:
                self._confirming.pop(channel, None)
            elif spoken == _CONNECTION_CLOSE:
                self._confirming.clear()

    def _collected(self, kind: int, channel: int, payload: bytes) -> _Publication | None:
        """A publication that is whole now."""
        if kind == _METHOD and channel in self._confirming and struct.unpack_from(">HH", payload) == _PUBLISH:
            self._building[channel] = [_read(kind, channel, payload), None, b""]
        elif kind == _HEADER and channel in self._building:
            self._building[channel][1] = _read(kind, channel, payload)
        elif kind == _BODY and channel in self._building:
            self._building[channel][2] += payload
        else:
            return None
        method, header, body = self._building[channel]
        if header is None or len(body) < header.body_size:
            return None
        del self._building[channel]
        confirms = self._confirming[channel]
        confirms.given += 1
        return _Publication(channel, method, header, body, confirms.given)

    def _publish(self, publication: _Publication) -> None:
        if not publication.names or self._noise.quiet.is_set():
            self._send(publication)
            return
        now, types, moves = time.monotonic(), publication.types(), self._noise.moves(publication.names)
        self._copies.extend((now + seconds, publication.copy()) for seconds in moves.copies)
        if moves.copies:
            self._noise.count("copied", types)
        if moves.shuffle is not None:
            publication, before = publication.shuffled(moves.shuffle), publication
            if publication is not before:
                self._noise.count("shuffled", types)
        earlier = self._held.pop(publication.channel, None)
        if moves.held:
            self._noise.count("held", types)
            self._held[publication.channel] = (now + HELD_SECONDS, publication)
        else:
            self._send(publication)
        if earlier is not None:
            self._send(earlier[1])

    def _until_due(self) -> float | None:
        times = [at for at, _ in (*self._held.values(), *self._copies)]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _send_due(self) -> None:
        now = time.monotonic()
        for channel, (at, publication) in list(self._held.items()):
            if at <= now:
                del self._held[channel]
                self._send(publication)
        for at, publication in list(self._copies):
            if at <= now:
                self._copies.remove((at, publication))
                self._send(publication)

    def _send_held(self) -> None:
        """Before anything that is no publication, such as the end of a channel."""
        for _, publication in self._held.values():
            self._send(publication)
        self._held.clear()

    def _send(self, publication: _Publication) -> None:
        with self._lock:
            confirms = self._confirming.get(publication.channel)
            if confirms is None:
                return
            confirms.sent += 1
            confirms.open[confirms.sent] = publication.own
        self._pair.server.sendall(publication.frames())

    def down(self, pair: Pair) -> None:
        """From the broker to the service."""
        cutting: dict[int, bool] = {}
        while True:
            kind, channel, payload, raw = _frame_of(pair.server)
            spoken = struct.unpack_from(">HH", payload) if kind == _METHOD else None
            if spoken in (_CHANNEL_CLOSE, _CONNECTION_CLOSE):
                self._look_at(kind, channel, payload)
            if spoken in (_ACK, _NACK) and channel in self._confirming:
                self._confirm(channel, _read(kind, channel, payload))
                continue
            pair.client.sendall(raw)
            if spoken == _DELIVER:
                cutting[channel] = True
            elif kind == _BODY and cutting.pop(channel, False) and self._cuts(payload):
                return

    def _confirm(self, channel: int, told: Any) -> None:
        with self._lock:
            confirms = self._confirming.get(channel)
            own = confirms.of(told.delivery_tag, told.multiple) if confirms else []
        again = (
            commands.Basic.Ack(delivery_tag=number)
            if isinstance(told, commands.Basic.Ack)
            else commands.Basic.Nack(delivery_tag=number, requeue=False)
            for number in own
        )
        self._pair.client.sendall(b"".join(frame.marshal(one, channel) for one in again))

    def _cuts(self, body: bytes) -> bool:
        """Whether the delivery that has just gone down is the last one here."""
        if self._noise.quiet.is_set():
            return False
        with contextlib.suppress(orjson.JSONDecodeError):
            members = orjson.loads(body)
            if isinstance(members, list) and members and self._noise.cuts(self._crossing.process, _name(members[0])[0]):
                self._noise.count("cut", {"connection"})
                return True
        return False


def _readable(end: socket.socket, seconds: float | None) -> bool:
    """Whether something can be read before so many seconds are over. Raises OSError where it is closed."""
    if end.fileno() < 0:
        raise OSError("closed")
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def _frame_of(end: socket.socket) -> tuple[int, int, bytes, bytes]:
    head = exactly(end, 7)
    kind, channel, size = struct.unpack(">BHI", head)
    rest = exactly(end, size + 1)
    return kind, channel, rest[:-1], head + rest


def _read(kind: int, channel: int, payload: bytes) -> Any:
    raw = struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
    return frame.unmarshal(raw)[2]

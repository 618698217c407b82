"""Builds outgoing messages: stable id, envelope, route. The one place where an envelope is filled in."""

from collections.abc import Sequence

from libs.contracts.codec import encode
from libs.contracts.envelope import Envelope, Message
from libs.contracts.ids import derive_id
from libs.contracts.topology import Topology
from libs.runtime.clock import Clock
from libs.runtime.publisher import Outgoing


class Composer:
    """Knows the topology and the store's epoch."""

    def __init__(self, topology: Topology, clock: Clock) -> None:
        self._topology = topology
        self._clock = clock
        self.epoch = 0

    def compose(
        self,
        message: Message,
        *,
        session: str,
        id_parts: Sequence[object],
        cause: str = "",
        correlation: str = "",
        depth: int = 0,
        trace: str = "",
        now: int | None = None,
    ) -> Outgoing:
        """One message ready to be committed. The same type, session and `id_parts` give the same id (G2)."""
        type_ = message.wire_type()
        id = derive_id(type_, session, *id_parts)
        route = self._topology.route(message, session)
        envelope = Envelope.model_construct(
            id=id,
            type=type_,
            session=session,
            cause=cause,
            correlation=correlation or cause or id,
            depth=depth,
            trace=trace,
            epoch=self.epoch,
            at=self._clock.now_ms() if now is None else now,
            body={},
        )
        return Outgoing(id, route.exchange, route.routing_key, encode(envelope, message))

    def again(self, envelope: Envelope, message: Message) -> Outgoing:
        """A message that was received, to be received once more: with its own id, so that it is known again (G2)."""
        route = self._topology.route(message, envelope.session)
        return Outgoing(envelope.id, route.exchange, route.routing_key, encode(envelope, message))

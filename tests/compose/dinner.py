"""The main job against a compose deployment: a dinner is booked, the restaurant takes it back, the user is asked."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aio_pika
from standardwebhooks import Webhook

from libs.contracts.topology import Topology
from tests.compose.deployment import Deployment
from tests.support.eventually import eventually

USER = "ana"
SESSION = "dinner"
EVENT = "evt_offer_1"
BOOKING = "book Friday at 19:00 for 4 and tell the group"
OFFER = {"day": "Friday", "time": "20:30", "party": 4}
STEP_SECONDS = 30
"""Longest time for one step of the story, generous for a machine that runs nine containers."""


@dataclass
class Dinner:
    """One session's story, told from the host. `asked` and `done` hold the effects when the user had been asked, and
    at the end."""

    deployment: Deployment
    offer: dict[str, Any] = field(default_factory=dict)
    question: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)

    async def play(self) -> None:
        """Book, lose the table, be asked, say yes. Raises AssertionError at the step that does not come about."""
        self.deployment.cli("session", "create", SESSION, "--owner", USER)
        self.deployment.cli("say", SESSION, BOOKING, "--as", USER)
        booked = await eventually(lambda: self._effects(2), STEP_SECONDS)
        self.offer = {"reservation": booked[0]["records"][0]["id"], "offer": OFFER}
        await self.publish(EVENT, self.offer)
        self.question = await eventually(self._open_question, STEP_SECONDS)
        self.asked = self.effects()
        self.deployment.cli("accept", SESSION, self.question["action"], "--as", USER)
        self.done = await eventually(lambda: self._effects(4), STEP_SECONDS)

    async def publish(self, event: str, data: dict[str, Any]) -> None:
        """Send a signed event to the exchange, as the restaurant would with the broker user `publisher`."""
        body, headers = self.signed(event, data)
        async with await aio_pika.connect(self.deployment.amqp_url("publisher"), timeout=10) as connection:
            exchange = await (await connection.channel()).get_exchange(Topology().events, ensure=False)
            message = aio_pika.Message(body, headers=dict(headers), delivery_mode=2, content_type="application/json")
            await exchange.publish(message, "restaurant.offer.gone", mandatory=True, timeout=10)

    def signed(self, event: str, data: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        """Body and headers after Standard Webhooks, by the scheme's own library."""
        now = datetime.now(UTC)
        # byte for byte what `turnkeeper publish` sends: an id that comes again with another body is no duplicate
        body = json.dumps({"type": "offer.gone", "data": data}, separators=(",", ":"))
        signature = Webhook(self.deployment.secret("restaurant_secret")).sign(event, now, body)
        stamp = str(int(now.timestamp()))
        return body.encode(), {"webhook-id": event, "webhook-timestamp": stamp, "webhook-signature": signature}

    def effects(self) -> list[dict[str, Any]]:
        """What was really done for this session, in order."""
        return [effect for effect in self.deployment.effects() if effect["session"] == SESSION]

    def _effects(self, count: int) -> list[dict[str, Any]]:
        found = self.effects()
        assert len(found) >= count, f"only {len(found)} of {count} effects"
        return found

    def _open_question(self) -> dict[str, Any]:
        actions = [json.loads(line) for line in self.deployment.cli("actions", SESSION, "--json").splitlines()]
        pending = [action for action in actions if action["state"] == "pending"]
        assert pending, f"nothing is asked: {actions}"
        return dict(pending[0])

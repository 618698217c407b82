"""The built-in tools `set_timer` and `cancel_timer` (design §4.4). Nothing is sent from here: the message to ingress
leaves with the record of the outcome, sealed by the door."""

from typing import Literal

from libs.runtime.clock import Clock
from services.tools.domain import Committed, Outcome, Refused
from services.tools.ports import Call
from services.tools.timers import timer_id, when


class TimerConnector:
    """One verb of the runtime's timers."""

    def __init__(self, verb: Literal["set", "cancel"], clock: Clock) -> None:
        self._verb = verb
        self._clock = clock

    async def run(self, call: Call) -> Outcome:
        """When the timer is due, as the result; a wish that cannot be kept is refused with the reason."""
        if self._verb == "cancel":
            return Committed({"timer": str(call.args["timer"])})
        try:
            due = when(call.args, self._clock.now_ms())
        except ValueError as fault:
            return Refused(str(fault))
        return Committed({"timer": timer_id(call.own_key), **due})

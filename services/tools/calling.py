"""One call of a connector within its time. Whatever goes wrong on the way, it may have been sent: that is `Unknown`."""

import asyncio

import structlog

from libs.contracts.faults import INJECTED
from libs.runtime.tasks import cancelling
from services.tools.domain import Failed, Outcome, Unknown
from services.tools.ports import Call, Connector, Stopped

log = structlog.get_logger(__name__)


async def called(connector: Connector, call: Call, *, late_seconds: float = 0.0) -> Outcome:
    """What became of one call, which has `call.timeout` seconds. Never raises for what the connector did.

    Raises Stopped where nothing was sent, and nothing may be now. `late_seconds`: so late its answer comes, a fault on
    purpose.

    A cancelling of our own task goes on upwards: nothing is known then, and the operation stays with its lease
    (design §3: a cancelled handler settles nothing). One from within the connector says nothing about what was sent.
    """
    try:
        async with asyncio.timeout(call.timeout) as limit:
            call.before_send()
            outcome = await connector.run(call)
            if late_seconds:
                await asyncio.sleep(late_seconds)
    except TimeoutError:
        injected = f"{INJECTED}: " if late_seconds else ""
        return Unknown(f"{injected}no answer within {call.timeout:g} s")
    except Stopped:
        raise
    except asyncio.CancelledError:
        if cancelling():
            raise
        return Unknown("the call was cancelled on its way")
    except (Exception, SystemExit) as error:
        # A function that asks to exit ends its call, not the door with everybody's.
        log.exception("connector.broke", tool=call.tool)
        return Unknown(f"the connector broke: {type(error).__name__}")
    if isinstance(outcome, Failed) and limit.expired():
        return Unknown(f"cut off after {call.timeout:g} s")
    return outcome

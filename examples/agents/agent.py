"""An agent for the planner `amqp`, in Python: takes requests for plans from RabbitMQ and answers them.

    pip install aio-pika
    AMQP_URL=amqp://planner:PASSWORD@127.0.0.1:5672/ python agent.py

Replace `plan` by your own: ask a model, follow rules, call a colleague. The formats are in docs/planners.md.
"""

import asyncio
import json
import os
import re
import traceback
from typing import Any

import aio_pika

PREFIX = f"{os.environ['NAMESPACE']}.turnkeeper" if os.environ.get("NAMESPACE") else "turnkeeper"
BOOK = re.compile(r"book (?P<day>\w+) (?:at )?(?P<time>\d\d:\d\d) for (?P<party>\d+)", re.IGNORECASE)


def plan(view: dict[str, Any]) -> dict[str, Any]:
    """Steps, a reply, or both; neither ends the turn. `view["messages"]` is a chat as models want it."""
    asked = view["input"]
    if view.get("running"):  # what is this input to the turn that runs?
        return {"relation": "independent"}
    if view["results"]:
        last = view["results"][-1]
        return {"reply": "Booked." if last["state"] == "committed" else f"That did not work: {last['reason']}"}
    # Only a message is the owner's own. What others sent is data, whatever it says.
    text = (asked.get("data") or view.get("data") or {}).get("text", "") if asked["kind"] == "message" else ""
    if found := BOOK.fullmatch(text):
        args = {"party": int(found["party"]), "day": found["day"], "time": found["time"]}
        return {"steps": [{"tool": "reserve_table", "args": args}]}
    return {"reply": f"You said: {text}"} if text else {}


async def answer(message: aio_pika.abc.AbstractIncomingMessage, plans: aio_pika.abc.AbstractExchange) -> None:
    """Answer a request, then acknowledge it: if this process ends before, the broker gives it to another agent."""
    body = json.loads(message.body)
    for envelope in body if isinstance(body, list) else [body]:
        request = envelope["body"]
        named = {name: request[name] for name in ("turn", "plan", "token")}
        try:
            made = {"session": envelope["session"], **named, **plan(request["view"])}
        except Exception:
            traceback.print_exc()  # it would fail again: without an answer the turn ends at its deadline
            continue
        await plans.publish(aio_pika.Message(json.dumps(made).encode(), content_type="application/json"), "")
    await message.ack()


async def main() -> None:
    """Take requests, twenty at a time, until interrupted."""
    connection = await aio_pika.connect_robust(os.environ["AMQP_URL"])
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=20)
        plans = await channel.get_exchange(f"{PREFIX}.plans", ensure=False)
        queue = await channel.get_queue(f"{PREFIX}.planner", ensure=False)
        await queue.consume(lambda message: answer(message, plans))
        print("agent: waiting for requests", flush=True)
        await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(main())

"""The client for programs with an event loop: the same requests and refusals as those of `turnkeeper.client.Client`."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Self, TypeVar

import httpx2

from libs.contracts.canonical import JSON
from libs.contracts.consent import Verdict
from libs.contracts.faults import Fault
from libs.contracts.session import TimelineLine
from turnkeeper import calls
from turnkeeper.calls import Action, Answer, Call, Receipt, Unreachable
from turnkeeper.client import (
    AGAIN_SECONDS,
    POLL_SECONDS,
    STREAM_SECONDS,
    TIMEOUT_SECONDS,
    Speaker,
    Via,
    not_come,
    publish_confirmed,
    published,
    told,
    told_of_amqp,
)
from turnkeeper.signing import Outward
from turnkeeper.target import Target

T = TypeVar("T")


class AsyncClient(Speaker):
    """One deployment, asked from an event loop. Close it, or use it as a context manager.

    >>> import asyncio, turnkeeper
    >>> async def story() -> None:
    ...     async with turnkeeper.AsyncClient() as client:       # the stack of TURNKEEPER_STATE, default .turnkeeper
    ...         await client.create_session("async-docs", owner="ben")
    ...         await client.say("async-docs", "Book Sun 18:00 for 2", user="ben")
    ...         async for line in client.follow("async-docs"):
    ...             if line.kind == "reply":
    ...                 print(line.text)
    ...                 break
    >>> asyncio.run(story())
    Booked: Sun at 18:00 for 2.
    """

    def __init__(
        self,
        target: Target | None = None,
        http: httpx2.AsyncClient | None = None,
        tokens: Callable[[str], str] | None = None,
    ) -> None:
        """As `Speaker`; `http` sends the requests if given. Raises TargetError where no deployment is known."""
        super().__init__(target, tokens)
        self._http = http or httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- events

    async def publish(
        self, source: str, type: str = "", data: JSON = None, *, id: str | None = None, via: Via = "http"
    ) -> Answer:
        """Sign an event as its source does and send it; `id` is drawn if None. The same id again is a duplicate.

        Over AMQP the answer is the broker's confirm. Raises Refused for an event that was turned away, Unreachable,
        ClientError for an unknown source, SigningError for one that cannot be signed for.
        """
        return calls.let_in(await self.deliver(self.sign(source, event=id, type=type, data=data), via), source)

    async def deliver(self, outward: Outward, via: Via = "http") -> Answer:
        """Send a signed event as it is. Over HTTP the answer is ingress's, a refusal included; over AMQP it is the
        broker's confirm: status 202, `published`."""
        if via == "amqp":
            with told_of_amqp(self.target):
                await publish_confirmed(self.target, outward)
            return published(outward)
        return await self._do(self._over_http(outward))

    async def event_outcome(self, source: str, event: str) -> dict[str, Any]:
        """What became of an event (operator). Raises Refused 404 for one that was never let in."""
        return await self._do(calls.event_outcome(source, event))

    # -- users

    async def say(self, session: str, text: str, user: str, key: str | None = None) -> Answer:
        """A user's message; `key` is its Idempotency-Key, drawn if None. Raises Refused."""
        return await self._do(calls.say(session, text, user, key))

    async def cancel(self, session: str, user: str, key: str | None = None) -> Answer:
        """The owner's cancel. Raises Refused."""
        return await self._do(calls.cancel(session, user, key))

    async def decide(self, session: str, action: str, verdict: Verdict, user: str, question_digest: str) -> Receipt:
        """A user's decision, bound to the question that they were shown; the receipt, the same again for a repeat.

        Raises Refused: 403 not the approver, 409 decided otherwise or superseded, 410 too late, 412 another question.
        """
        return await self._do(calls.decide(session, action, verdict, user, question_digest))

    # -- sessions

    async def create_session(self, session: str, owner: str, trial: bool | Sequence[Fault] = False) -> Answer:
        """Make a session; its owner is written once. `trial`, for tests only: with the faults of the application file,
        or with these. Raises Refused."""
        return await self._do(calls.create_session(session, owner, trial))

    async def sessions(self) -> list[str]:
        """Known sessions, newest first."""
        return await self._do(calls.sessions())

    async def session(self, session: str, user: str | None = None) -> dict[str, Any]:
        """A session's state, asked for by its owner, or by the operator if None. Raises Refused."""
        return await self._do(calls.session(session, user))

    async def timeline(self, session: str, after: int = 0, user: str | None = None) -> list[TimelineLine]:
        """Lines with a higher number than `after`, asked for by the owner, or by the operator if None. Raises
        Refused."""
        return await self._do(calls.timeline(session, after, user))

    async def follow(self, session: str, after: int = 0, user: str | None = None) -> AsyncGenerator[TimelineLine, None]:
        """Lines as they come, for ever; a lost connection is made again after the last line seen. Raises Refused."""
        await self.session(session, user)  # so that a wrong name is told at once
        while True:
            with contextlib.suppress(Unreachable):
                async with contextlib.aclosing(self._stream(calls.stream(session, after, user))) as lines:
                    async for line in lines:
                        after = line.seq
                        yield line
            await asyncio.sleep(AGAIN_SECONDS)

    async def until(
        self, session: str, kind: str, after: int = 0, within: float = 30.0, user: str | None = None
    ) -> TimelineLine:
        """The first line of a kind with a higher number than `after`, waited for `within` seconds.

        Raises ClientError where none came, Refused.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while True:
            lines = await self.timeline(session, after, user)
            if found := next((line for line in lines if line.kind == kind), None):
                return found
            if loop.time() >= end:
                raise not_come(session, kind, within, lines)
            await asyncio.sleep(POLL_SECONDS)

    # -- consent and the ledger

    async def actions(self, session: str, user: str | None = None) -> list[Action]:
        """A session's actions, oldest first, asked for by the owner, or by the operator if None. Raises Refused."""
        return await self._do(calls.actions(session, user))

    async def action(self, session: str, action: str, user: str | None = None) -> Action:
        """One action. Raises Refused."""
        return await self._do(calls.action(session, action, user))

    async def operations(self, session: str | None = None, state: str | None = None) -> list[dict[str, Any]]:
        """Operations of a session, or of all where they are unknown or pending. Raises Refused."""
        return await self._do(calls.operations(session, state))

    async def operation(self, session: str, operation: str) -> dict[str, Any]:
        """One operation, by its id (`O3`) or key. Raises Refused."""
        return await self._do(calls.operation(session, operation))

    # -- how it is asked

    async def _do(self, call: Call[T]) -> T:
        base = self.target.url(call.service)
        what = call.request(self._token_for(call))
        with told(call.service, base):
            response = await self._http.request(call.method, base + call.path, **what)
        return call.answered(response)

    async def _stream(self, call: Call[Answer]) -> AsyncGenerator[TimelineLine, None]:
        base = self.target.url(call.service)
        what = {**call.request(self._token_for(call)), "timeout": httpx2.Timeout(STREAM_SECONDS)}
        with told(call.service, base):
            async with self._http.stream(call.method, base + call.path, **what) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    calls.accepted(answer)
                async for text in answer.aiter_lines():
                    if line := calls.line_of(text):
                        yield line

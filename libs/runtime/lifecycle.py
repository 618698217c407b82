"""From start to drain: builds what a service needs, waits for store and broker, stops without losing anything."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import structlog
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from libs.contracts.application import ApplicationError
from libs.contracts.envelope import Message
from libs.contracts.errors import StoreAway
from libs.contracts.ids import derive_id
from libs.contracts.keys import Keys
from libs.contracts.secrecy import masked_text, remember
from libs.contracts.topology import Topology
from libs.runtime import health, lenient_amqp, logs
from libs.runtime.batch import Store
from libs.runtime.clock import SystemClock
from libs.runtime.composer import Composer
from libs.runtime.connections import Broker, connect_redis, with_password
from libs.runtime.consumer import Consumer, Handler, OnDead
from libs.runtime.intake import Delivery, Intake
from libs.runtime.metrics import RuntimeMetrics
from libs.runtime.outbox import Outbox
from libs.runtime.publisher import Publisher
from libs.runtime.settings import RuntimeSettings, SettingsError, read_settings
from libs.runtime.tasks import cancelling

log = structlog.get_logger(__name__)
S = TypeVar("S", bound=RuntimeSettings)

RELAY_SECONDS = 1.0
MAX_CONCURRENT_REQUESTS = 2_000
"""Connections and requests at once; above, a request is answered 503 instead of eating up memory."""


class Runtime(Generic[S]):
    """What the runtime gives to a service's `build`."""

    def __init__(self, settings: S, service: str) -> None:
        self.settings = settings
        self.service = service
        self.clock = SystemClock()
        self.registry = CollectorRegistry()
        self.keys = Keys(settings.namespace, settings.partitions)
        self.topology = Topology(settings.namespace, settings.partitions)
        self.composer = Composer(self.topology, self.clock)
        self.metrics = RuntimeMetrics(self.registry, service)
        self.log = log
        self.stopping = asyncio.Event()
        """Set when the drain begins: what answers for long, such as a stream of events, ends itself then."""
        name = f"turnkeeper-{service}-{settings.replica}"
        self.store = Store(connect_redis(_redis_url(settings), name))
        self.broker = Broker(_amqp_url(settings), name)
        self.publisher = Publisher(self.broker, self.topology)
        self.outbox = Outbox(service, self.store, self.publisher, self.keys, self.clock, self.metrics)
        self._app: Any = None
        self._intakes: list[Intake] = []
        self._consumers: list[Consumer] = []
        self._sweeps: list[tuple[float, Callable[[], Awaitable[None]], str]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._broken: asyncio.Future[BaseException] | None = None
        self._store_check = health.StoreCheck(
            self.store,
            self.keys,
            allow_volatile=settings.allow_volatile_store,
            appendfsync=settings.redis_appendfsync,
        )
        self.checks: dict[str, health.Check] = {
            "redis": self._store_check,
            "rabbitmq": self.broker.ready,
            "consumers": self._consuming,
        }

    def serve(self, app: Any) -> None:
        """Serve this ASGI application beside /livez, /readyz and /metrics."""
        self._app = app

    def consumer(self, handlers: Mapping[type[Message], Handler], on_dead: OnDead | None = None) -> Consumer:
        """A consumer whose intakes are added with `take`: for a service with many queues and one set of lanes."""
        consumer = Consumer(
            self.service,
            handlers,
            store=self.store,
            outbox=self.outbox,
            keys=self.keys,
            topology=self.topology,
            composer=self.composer,
            clock=self.clock,
            metrics=self.metrics,
            on_dead=on_dead,
        )
        self._consumers.append(consumer)
        return consumer

    def take(self, queue: str, consumer: Consumer, *, prefetch: int, priority: int | None = None) -> Intake:
        """Feed a consumer from a queue, over a channel of its own."""
        intake = Intake(self.broker, queue, consumer.start, prefetch=prefetch, priority=priority)
        self._intakes.append(intake)
        return intake

    def consume(self, queue: str, handlers: Mapping[type[Message], Handler], *, prefetch: int = 64) -> Consumer:
        """Handle the messages of one queue."""
        consumer = self.consumer(handlers)
        self.take(queue, consumer, prefetch=prefetch)
        return consumer

    def intake(
        self,
        queue: str,
        handle: Callable[[Delivery], Awaitable[None]],
        *,
        prefetch: int = 256,
        slow: bool = False,
    ) -> Intake:
        """Handle raw deliveries: returning means durable, StoreAway means keep it and try again once Redis answers.

        Nothing waits for what is `slow`: each delivery is acknowledged by itself, in no order, and a drain gives up
        what is under way instead of holding up the partitions; another replica begins it anew.
        """
        raw = _RawHandler(self.store, handle, slow=slow)
        intake = Intake(self.broker, queue, raw.start, prefetch=prefetch, singly=slow)
        self._intakes.append(intake)
        self._consumers.append(raw)  # type: ignore[arg-type]
        return intake

    def every(self, seconds: float, sweep: Callable[[], Awaitable[None]], name: str) -> None:
        """Run a sweep again and again, `seconds` apart, for as long as the process lives."""
        self._sweeps.append((seconds, sweep, name))

    def on_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close something at the very end."""
        self._closers.append(close)

    async def _consuming(self) -> str | None:
        missing = [intake.queue for intake in self._intakes if not intake.consuming]
        return f"not consuming from {', '.join(missing)}" if missing else None

    async def run(self) -> int:
        """Live until SIGTERM or SIGINT, then drain. The exit status."""
        stop = asyncio.Event()
        self._broken = asyncio.get_running_loop().create_future()
        self._on_signals(stop)
        app = health.routes(self.registry, self.checks, self._app, self._store_check.warnings)
        server = _Server(app, self.settings)
        self._background(self.store.serve(), "store")
        self._background(self.publisher.serve(), "publisher")
        self._background(self.outbox.serve(), "outbox")
        serving = asyncio.create_task(server.serve())
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(stop.wait())
        ends: set[asyncio.Future[Any]] = {serving, stopping, self._broken}
        await asyncio.wait({*ends, starting}, return_when=asyncio.FIRST_COMPLETED)
        fault = starting.exception() if starting.done() and not starting.cancelled() else None
        if fault is None and not stop.is_set():
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            fault = fault or self._broken.result()
        starting.cancel()
        await self._drain(server, serving)
        stopping.cancel()
        if fault is not None:
            log.error("service.failed", error=str(fault))
            return 1
        return 0 if stop.is_set() else 1

    async def _start(self) -> None:
        """Wait for the store and agree on the partitions, then begin to consume."""
        said = ""
        while fault := await self._store_check():
            if "partitions, TURNKEEPER_PARTITIONS" in fault:
                raise SettingsError([fault])
            if fault != said:
                log.warning("service.waiting", fault=fault)
                said = fault
            await asyncio.sleep(0.5)
        for warning in self._store_check.warnings:
            log.warning("store.volatile", warning=warning)
        self.composer.epoch = await self._epoch()
        for intake in self._intakes:
            self._background(intake.serve(), intake.queue)
        own = [
            (RELAY_SECONDS, self.outbox.relay, "relay"),
            (RELAY_SECONDS, self.broker.keep, "broker"),
            (RELAY_SECONDS, self._follow_epoch, "epoch"),
        ]
        for seconds, sweep, name in [*self._sweeps, *own]:
            self._background(self._repeat(seconds, sweep, name), name)
        await self.broker.publishing.get()
        log.info("service.started", partitions=self.keys.partitions, namespace=self.keys.namespace)

    async def _epoch(self) -> int:
        key = self.keys.meta("epoch")
        await self.store.redis.set(key, "1", nx=True)
        return int(await self.store.redis.get(key) or 1)

    async def _follow_epoch(self) -> None:
        """Hear of a raised epoch while running: messages carry the store's epoch of when they were made (design §5)."""
        found = await self.store.command("GET", self.keys.meta("epoch"))
        if found is not None and int(found) != self.composer.epoch:
            log.warning("epoch.changed", before=self.composer.epoch, now=int(found))
            self.composer.epoch = int(found)

    async def _repeat(self, seconds: float, sweep: Callable[[], Awaitable[None]], name: str) -> None:
        while not cancelling():
            await asyncio.sleep(seconds)
            try:
                await sweep()
            except StoreAway:
                await self.store.wait_back()
            except Exception:
                log.exception("sweep.failed", sweep=name)

    def _background(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        """What works in the background never ends by a fault: without it the process would only seem to live."""
        fault = None if task.cancelled() else task.exception()
        if fault is not None and self._broken is not None and not self._broken.done():
            log.error("background.failed", task=task.get_name(), exc_info=fault)
            self._broken.set_result(fault)

    def _on_signals(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def ask() -> None:
            if stop.is_set():
                log.warning("service.killed")
                sys.exit(130)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)

    async def _drain(self, server: "_Server", serving: "asyncio.Task[None]") -> None:
        """Stop taking, finish the current hand-offs, close the channels, then the connections (5-facts).

        The queues are handed on as soon as their own work is done: a client that keeps its HTTP request open must
        not hold up a partition.
        """
        log.info("service.draining")
        self.stopping.set()
        for intake in self._intakes:
            intake.stop_taking()
        server.should_exit = True
        end = asyncio.get_running_loop().time() + self.settings.drain_seconds
        await asyncio.gather(_until(end, serving), self._hand_on(end))
        await _until(end, self.outbox.drained())  # what the last HTTP requests committed
        await self.broker.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for close in self._closers:
            await close()
        await self.store.redis.aclose()
        log.info("service.stopped")

    async def _hand_on(self, end: float) -> None:
        """Finish what was taken, then close the channels of the queues, so that other replicas get the rest."""
        await _until(end, self._finish())
        for consumer in self._consumers:
            consumer.cancel()
        for intake in self._intakes:
            await intake.stop()
        await asyncio.sleep(0)
        consuming = [task for task in self._tasks if task.get_name() in {intake.queue for intake in self._intakes}]
        if consuming:
            await asyncio.wait(consuming, timeout=3)

    async def _finish(self) -> None:
        await asyncio.gather(*(consumer.drained() for consumer in self._consumers), return_exceptions=True)
        await self.outbox.drained()


async def _until(end: float, work: Awaitable[Any]) -> None:
    """Wait for it, at most until then (the loop's time); its own faults are told where it runs."""
    try:
        await asyncio.wait_for(work, max(0.1, end - asyncio.get_running_loop().time()))
    except TimeoutError:
        log.warning("drain.cut_short")
    except Exception:
        log.exception("drain.failed")


class _RawHandler:
    """Handles deliveries that hold no envelope, side by side."""

    def __init__(self, store: Store, handle: Callable[[Delivery], Awaitable[None]], *, slow: bool = False) -> None:
        self._store = store
        self._handle = handle
        self._slow = slow
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._until_durable(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_durable(self, delivery: Delivery) -> None:
        delay = 0.05
        while not delivery.stale:
            try:
                await self._handle(delivery)
            except StoreAway:
                await self._store.wait_back()
            except Exception:
                log.exception("delivery.failed", routing_key=delivery.routing_key)
            else:
                delivery.done()
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, 2.0)

    async def drained(self) -> None:
        if self._slow:
            self.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


class _Server(uvicorn.Server):
    """uvicorn in our loop and without its own signal handlers."""

    def __init__(self, app: Any, settings: RuntimeSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.http_host,
                port=settings.http_port,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=int(settings.drain_seconds),
                server_header=False,
                limit_concurrency=MAX_CONCURRENT_REQUESTS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def _redis_url(settings: RuntimeSettings) -> str:
    password = settings.redis_password.get_secret_value() if settings.redis_password else None
    return with_password(settings.redis_url, password, settings.redis_user)


def _amqp_url(settings: RuntimeSettings) -> str:
    password = settings.amqp_password.get_secret_value() if settings.amqp_password else None
    return with_password(settings.amqp_url, password)


def incarnation(replica: str, started_ms: int) -> str:
    """A name for this very process, not for its successor of the same replica name."""
    return derive_id("incarnation", replica, started_ms)


def calm_the_collector() -> None:
    """Look for cycles less often, and never in what was loaded at start: messages make none, and looking through
    thousands of cached sessions cost a fifth of the session service's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def run(kind: type[S], build: Callable[["Runtime[S]"], Awaitable[None]], service: str) -> None:
    """The main function of a service: read settings, build, live, drain, exit. Faults are told in one go."""
    try:
        settings = read_settings(kind)
    except SettingsError as error:
        sys.exit(f"turnkeeper {service}: {error}")
    remember(*settings.secrets())
    logs.configure(service, settings.replica, settings.log_level)
    lenient_amqp.install()

    async def live() -> int:
        runtime: Runtime[S] = Runtime(settings, service)
        await build(runtime)
        calm_the_collector()
        return await runtime.run()

    try:
        status = uvloop.run(live())
    except (ApplicationError, SettingsError) as error:
        sys.exit(masked_text(f"turnkeeper {service}: {error}"))
    sys.exit(status)

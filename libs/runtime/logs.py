"""JSON logs: one wide line a message, context bound once, no payloads and no secrets."""

import logging
import sys

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger


def _names(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Fields named as everywhere: `ts level msg service …`."""
    event["msg"] = event.pop("event", "")
    return event


def configure(service: str, replica: str, level: str) -> None:
    """Send structured logs to standard error, and the libraries' warnings with them."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _names,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service, replica=replica)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format='{"level":"%(levelname)s","msg":"%(name)s"}')
    # The drivers put URLs with passwords into some of their messages, so only their names and levels are kept.
    for noisy in ("aiormq", "aio_pika", "redis", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


def _dumps(value: object, **_: object) -> bytes:
    return orjson.dumps(value, default=str)

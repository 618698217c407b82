"""JSON logs: one wide line a message, context bound once, no payloads and no secrets (`libs.contracts.secrecy`)."""

import datetime
import logging
import re
import sys
import traceback
from types import TracebackType

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

from libs.contracts.secrecy import masked, masked_text


class Line:
    """The one processor of our own lines: fields named as everywhere, `ts level msg service …`, as JSON bytes.

    One step instead of the six that structlog brings for it: a turn writes five lines.
    """

    def __init__(self, service: str, replica: str) -> None:
        self._bound = {"service": service, "replica": replica}

    def __call__(self, _: WrappedLogger, method: str, event: EventDict) -> bytes:
        """The line, without its newline."""
        if event.get("exc_info"):
            event = structlog.processors.format_exc_info(_, method, event)
            event["exception"] = _without_passwords(str(event.get("exception", "")))
        msg = event.pop("event", "")
        level = "error" if method == "exception" else method
        return _dumps({**event, **self._bound, "level": level, "ts": _now(), "msg": msg})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def configure(service: str, replica: str, level: str) -> None:
    """Send structured logs to standard error, and the libraries' warnings with them."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    structlog.configure(
        processors=[Line(service, replica)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(file=sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    sys.excepthook = _last_words
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(service, replica))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # The drivers put URLs with passwords into some of their messages, so only their names and levels are kept.
    # What an MCP server says is not ours to log; the SDK's sessions log as `client`.
    for noisy in ("aiormq", "aio_pika", "redis", "httpx2", "mcp", "client"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


class JsonLines(logging.Formatter):
    """What libraries log, tracebacks included, as one JSON line each, without the passwords of URLs.

    Only uvicorn's messages are kept whole; of any other library its name says enough.
    """

    def __init__(self, service: str, replica: str) -> None:
        super().__init__()
        self._bound = {"service": service, "replica": replica}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        own = record.name.startswith("uvicorn")
        line = {
            "ts": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "msg": _without_passwords(record.getMessage()) if own else record.name,
            "logger": record.name,
            **self._bound,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = _without_passwords(self.formatException(record.exc_info))
        return _dumps(line).decode()


def _without_passwords(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://***@", text)


def _dumps(value: object, **_: object) -> bytes:
    return masked(orjson.dumps(value, default=str))


def _last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What ends a process is told like any other line: the drivers' exceptions hold URLs with passwords."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(masked_text(_without_passwords(text)))

"""Draining and logging, without servers."""

import asyncio
import json
import logging
import sys

import pytest
from pydantic import ValidationError

from libs.runtime.lifecycle import Runtime
from libs.runtime.logs import JsonLines
from libs.runtime.settings import RuntimeSettings
from services.ingress.settings import IngressSettings
from services.session.settings import SessionSettings

URLS = {"redis_url": "redis://127.0.0.1:1/0", "amqp_url": "amqp://127.0.0.1:1/"}


class Intake:
    """An intake that tells when it was closed."""

    queue = "q"

    def __init__(self):
        self.closed = asyncio.Event()

    def stop_taking(self):
        """It takes nothing anyway."""

    async def stop(self):
        self.closed.set()


class Server:
    """A server that is only asked to stop."""

    should_exit = False


async def test_an_open_http_stream_holds_up_no_partition_and_is_told_to_end():
    runtime = Runtime(RuntimeSettings(**URLS, drain_seconds=10.0), "session")
    intake, stream = Intake(), asyncio.Event()
    runtime._intakes.append(intake)
    serving = asyncio.create_task(stream.wait())
    draining = asyncio.create_task(runtime._drain(Server(), serving))
    await asyncio.wait_for(intake.closed.wait(), 2)
    assert runtime.stopping.is_set()
    assert not draining.done()
    stream.set()
    await asyncio.wait_for(draining, 2)


async def test_a_stream_that_never_ends_is_cut_at_the_end_of_the_drain():
    runtime = Runtime(RuntimeSettings(**URLS, drain_seconds=0.2), "session")
    serving = asyncio.create_task(asyncio.Event().wait())
    await asyncio.wait_for(runtime._drain(Server(), serving), 2)
    assert serving.cancelled()


def line_of(name, message):
    try:
        raise RuntimeError("no way to amqp://user:geheim@host/")
    except RuntimeError:
        record = logging.LogRecord(name, logging.ERROR, __file__, 1, message, (), sys.exc_info())
    return JsonLines("session", "r1").format(record)


def test_a_traceback_of_a_library_is_one_json_line_without_passwords():
    text = line_of("uvicorn.error", "Exception in ASGI application\n")
    line = json.loads(text)
    assert "\n" not in text
    assert "RuntimeError" in line["exception"]
    assert "geheim" not in text
    assert (line["level"], line["service"], line["msg"]) == ("error", "session", "Exception in ASGI application\n")


def test_of_other_libraries_only_the_name_is_a_message():
    assert json.loads(line_of("aiormq.connection", "amqp://u:p@h/"))["msg"] == "aiormq.connection"


@pytest.mark.parametrize(
    ("kind", "name"), [(SessionSettings, "session_prefetch"), (IngressSettings, "ingress_prefetch")]
)
def test_a_prefetch_beyond_what_amqp_can_say_is_refused(kind, name):
    with pytest.raises(ValidationError, match=name):
        kind(**URLS, **{name: 65_536})

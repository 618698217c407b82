"""Ingress with no more rights than its own, and a store that is full."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from libs.contracts.errors import StoreAway
from libs.contracts.keys import acl_rules
from libs.runtime.connections import connect_redis, with_password
from services.ingress.domain import Misfit
from tests.support.eventually import eventually_sync
from tests.support.ingress import NOW, Replica, a_stop, a_timer, an_event, ingress_replica


async def test_all_that_ingress_does_fits_into_its_redis_rights(redis_url: str, namespace: str) -> None:
    """G10: one ACL user a service, with its own key families and the commands that it uses."""
    admin = connect_redis(redis_url, "test")
    user = f"ingress-{namespace}"
    await admin.execute_command("ACL", "SETUSER", user, "on", ">invented", *acl_rules("ingress", namespace))
    parts = urlsplit(redis_url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    try:
        async with ingress_replica(with_password(bare, "invented", user), namespace) as one:
            about = an_event("held", session="", route_subject="reservation:r1", hold_ms=1_000)
            waits = an_event("waits", session="s2", hold_ms=1_000)
            body = an_event("body", by_body=True)
            assert (await one.admissions.admit(about, "t1", b"{}")).status == "held"
            assert (await one.admissions.admit(waits, "t2", b"{}")).status == "held"
            one.clock.now = NOW + 5_000
            await one.sweepers.held()
            await one.sweepers.waiting()
            await one.store.create_session("s1", "ana", NOW)
            assert (await one.admissions.admit(body, "t3", b"{}")).status == "accepted"
            await one.admissions.admit(an_event("body", by_body=True, mark="e" * 32), "t4", b"{}")
            await one.admissions.quarantine(Misfit("no_route", an_event("q")), b"{}")
            assert len(await one.store.quarantined()) == 2
            again = an_event("again", session="", route_subject="reservation:r2")
            await one.admissions.admit(again, "t5", b"{}")
            await one.store.register("reservation:r2", "s1", "O1")
            assert await one.releases.subject("reservation:r2", "s1") == 1
            await one.forgetting.flush()
            await one.sweepers.relay()
            await one.sweepers.trim()
            await _timers(one)
            await one.store.tell("s1", [message for _, message in one.outbox.posted[:1]], NOW)
            assert await one.store.record("restaurant", body.id, NOW, body.window_ms) is not None
    finally:
        await admin.execute_command("ACL", "DELUSER", user)
        await admin.aclose()


async def _timers(one: Replica) -> None:
    """Set, refused, fired, skipped, stopped, listed."""
    for id, more in (("fires", {}), ("skips", {"misfire": "skip"}), ("ends", {}), ("refused", {"rule": "FREQ=NEVER"})):
        message = a_timer(id, **more)
        await one.handler.on_set_timer(message, one.context(message))
    end = a_stop("ends")
    await one.handler.on_stop_timer(end, one.context(end))
    assert [timer.timer for timer in await one.timers.of_session("s1")] == ["fires", "skips"]
    one.clock.now = NOW + 120_000
    await one.firing.sweep()
    assert await one.timers.time() > 0
    assert one.timers_counted() == {"set": 3, "refused": 1, "stopped": 1, "fired": 1, "skipped": 1}


@pytest.fixture
def small_redis(tmp_path: Path) -> Iterator[str]:
    """A Redis of its own, so that filling it disturbs nobody."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def listening() -> bool:
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", port)) == 0

    eventually_sync(listening)
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait(10)


async def test_a_full_store_is_come_back_later_and_writes_nothing(small_redis: str, namespace: str) -> None:
    async with ingress_replica(small_redis, namespace) as one:
        await one.store.create_session("s1", "ana", NOW)
        await one.raw.redis.config_set("maxmemory", "1")
        with pytest.raises(StoreAway) as caught:
            await one.admissions.admit(an_event(), "t1", b"{}")
        assert caught.value.retry_after is not None
        await one.raw.redis.config_set("maxmemory", "0")
        assert (await one.store.admitted_before(NOW, 10))[0] == []
        assert (await one.admissions.admit(an_event(), "t2", b"{}")).status == "accepted"

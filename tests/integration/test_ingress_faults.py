"""Lost replies, a store that is away, kills between two moves, and starts that must not happen."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from libs.contracts.errors import StoreAway
from libs.contracts.keys import Keys
from libs.runtime.connections import connect_redis
from services.ingress.ports import Accepted
from tests.support.eventually import eventually
from tests.support.ingress import NOW, an_event, ingress_replica
from tests.support.ingress_process import (
    APPLICATION,
    OPERATOR_HEADERS,
    PARTITIONS,
    IngressProcess,
    environment,
    signed,
    start_ingress,
)
from tests.support.proxy import Proxy
from turnkeeper.ports import free_port


async def test_a_lost_reply_to_admit_is_recognised_by_its_own_token(redis_url: str, namespace: str) -> None:
    proxy = Proxy(redis_url)
    url = await proxy.start()
    async with ingress_replica(url, namespace) as one:
        await one.ask("PING")
        await one.store.admit(an_event("warm-up"), "t0", NOW)  # the script is loaded
        proxy.lose_next_reply_to = b"token-of-mine"
        with pytest.raises(StoreAway):
            await one.store.admit(an_event(), "token-of-mine", NOW)
        assert proxy.lost == 1
        assert await one.store.admit(an_event(), "token-of-mine", NOW) == Accepted()
        assert len((await one.store.admitted_before(NOW, 10))[0]) == 2
    await proxy.stop()


async def test_a_lost_reply_to_append_is_recognised_by_the_input_id(redis_url: str, namespace: str) -> None:
    proxy = Proxy(redis_url)
    url = await proxy.start()
    async with ingress_replica(url, namespace) as one:
        await one.store.create_session("s1", "ana", NOW)
        await one.admissions.place(an_event("warm-up"))
        proxy.lose_next_reply_to = b"identity-of-e1"
        with pytest.raises(StoreAway):
            await one.admissions.place(an_event("e1"))
        assert (await one.admissions.place(an_event("e1"))).number == 2
        assert (await one.admissions.place(an_event("e2"))).number == 3
        assert len(await one.inbox("s1")) == 3
    await proxy.stop()


async def test_the_store_away_is_503_and_comes_back_by_itself(
    redis_url: str, amqp_url: str, namespace: str, tmp_path: Path
) -> None:
    proxy = Proxy(redis_url)
    url = await proxy.start()
    (process,) = await start_ingress(url, amqp_url, namespace, tmp_path)
    body = b'{"data":{"session":"s1"}}'
    try:
        async with httpx2.AsyncClient(base_url=process.url, timeout=20) as client:

            async def post(id: str) -> httpx2.Response:
                return await client.post("/v1/events/direct", content=body, headers=signed(id, body))

            await client.put("/v1/sessions/s1", json={"owner": "ana"}, headers=OPERATOR_HEADERS)
            assert (await post("before")).status_code == 202
            proxy.refuse = True
            away = await post("during")
            assert away.status_code == 503
            assert int(away.headers["retry-after"]) >= 1
            # A forgery is told nothing about the store.
            assert (await client.post("/v1/events/direct", content=body, headers={})).status_code == 401
            proxy.refuse = False

            async def accepted() -> bool:
                return (await post("during")).status_code in (200, 202)

            await eventually(accepted, within=15)
            assert (await post("during")).json()["status"] == "duplicate"
    finally:
        process.stop()
        await proxy.stop()


async def test_the_broker_away_is_no_reason_to_refuse(redis_url: str, namespace: str, tmp_path: Path) -> None:
    """RabbitMQ away: stored, so acknowledged, and rung later (design §3.1)."""
    config = tmp_path / "turnkeeper.yaml"
    config.write_text(yaml.safe_dump(APPLICATION), encoding="utf-8")
    nowhere = f"amqp://guest@127.0.0.1:{free_port()}/"
    process = IngressProcess(environment(redis_url, nowhere, namespace, config), tmp_path / "ingress.log")
    process.start()
    redis, keys = connect_redis(redis_url, "test"), Keys(namespace, PARTITIONS)
    body = b'{"data":{"session":"s1"}}'
    try:
        async with httpx2.AsyncClient(base_url=process.url, timeout=20) as client:

            async def made() -> bool:
                try:
                    answer = await client.put("/v1/sessions/s1", json={"owner": "ana"}, headers=OPERATOR_HEADERS)
                except httpx2.HTTPError:
                    return False
                return answer.is_success

            await eventually(made, within=20)
            assert (await client.post("/v1/events/direct", content=body, headers=signed("e1", body))).status_code == 202
            assert (await client.get("/readyz")).status_code == 503
        assert await redis.hlen(keys.outbox("ingress", keys.partition("s1"))[0]) == 1
        assert await redis.hlen(keys.of_session("inbox", "s1")) == 1
    finally:
        process.stop(signal.SIGKILL)
        await redis.aclose()


async def test_a_kill_between_admit_and_append_loses_nothing_and_doubles_nothing(
    redis_url: str, amqp_url: str, namespace: str, tmp_path: Path
) -> None:
    """C070 and anchor A1: the event is stored and its process dies; another brings it to its session."""
    async with ingress_replica(redis_url, namespace) as dead:
        await dead.store.create_session("s1", "ana", NOW)
        event = an_event(accepted_at=1)
        assert await dead.store.admit(event, "t1", 1) == Accepted()
    (process,) = await start_ingress(redis_url, amqp_url, namespace, tmp_path)
    redis = connect_redis(redis_url, "test")
    try:
        inbox = Keys(namespace, PARTITIONS).of_session("inbox", "s1")

        async def arrived() -> bool:
            return int(await redis.hlen(inbox)) == 1

        await eventually(arrived, within=15)
        stored = json.loads((await redis.hvals(inbox))[0])
        assert (stored["id"], stored["accepted_at"]) == (event.id, 1)
    finally:
        process.stop()
        await redis.aclose()


async def test_a_killed_replica_leaves_its_traffic_to_the_other(
    redis_url: str, amqp_url: str, namespace: str, tmp_path: Path
) -> None:
    one, two = await start_ingress(redis_url, amqp_url, namespace, tmp_path, replicas=2)
    redis = connect_redis(redis_url, "test")
    try:
        async with httpx2.AsyncClient(timeout=20) as client:
            await client.put(one.url + "/v1/sessions/s1", json={"owner": "ana"}, headers=OPERATOR_HEADERS)

            async def deliver(n: int) -> None:
                body = json.dumps({"data": {"session": "s1", "n": n}}).encode()

                async def answered() -> bool:
                    for replica in (one, two):
                        try:
                            url = replica.url + "/v1/events/direct"
                            if (await client.post(url, content=body, headers=signed(f"n{n}", body))).is_success:
                                return True
                        except httpx2.HTTPError:
                            continue
                    return False

                await eventually(answered, within=20)

            tasks = [asyncio.ensure_future(deliver(n)) for n in range(150)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            one.stop(signal.SIGKILL)
            await asyncio.gather(*tasks)
        inbox = await redis.hgetall(Keys(namespace, PARTITIONS).of_session("inbox", "s1"))
        assert sorted(int(number) for number in inbox) == list(range(1, 151))
        assert {json.loads(value)["data"]["n"] for value in inbox.values()} == set(range(150))
    finally:
        one.stop()
        two.stop()
        await redis.aclose()


def refused_start(folder: Path, application: dict[str, Any], **env: str) -> str:
    """What a start says that must not happen."""
    config = folder / "turnkeeper.yaml"
    config.write_text(yaml.safe_dump(application), encoding="utf-8")
    variables = environment("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/", "", config, **env)
    ended = subprocess.run(
        [sys.executable, "-m", "services.ingress"], env=variables, capture_output=True, timeout=30, text=True
    )
    assert ended.returncode != 0
    return ended.stderr


def test_every_source_that_cannot_be_verified_stops_the_start_and_no_secret_is_shown(tmp_path: Path) -> None:
    application = {**APPLICATION, "sources": {**APPLICATION["sources"]}}
    application["sources"]["short"] = {
        "verify": {"scheme": "standard-webhooks", "secrets": ["env:SHORT", "env:ABSENT"]},
        "route": {"session": "{{ data.session }}"},
    }
    application["sources"]["empty"] = {
        "verify": {
            "scheme": "hmac",
            "secrets": ["env:BLANK"],
            "header": "x-signature",
            "timestamp_header": "x-time",
            "signed": "{timestamp}.{body}",
            "id": "{{ id }}",
        },
        "dedupe": {"window": "1m"},
        "route": {"session": "{{ data.session }}"},
    }
    told = refused_start(tmp_path, application, SHORT="whsec_c2hvcnQtc2VjcmV0", BLANK=" ")
    assert "sources.short.verify.secrets" in told
    assert "ABSENT" in told
    assert "sources.empty.verify.secrets" in told
    assert "sources.empty.dedupe.window" in told
    assert "c2hvcnQ" not in told
    assert "Traceback" not in told


def test_no_sender_may_take_the_name_of_what_timers_fire(tmp_path: Path) -> None:
    application = {**APPLICATION, "sources": {**APPLICATION["sources"]}}
    application["sources"]["timer"] = application["sources"]["direct"]
    told = refused_start(tmp_path, application)
    assert "sources.timer: this name is kept for what timers fire" in told


def test_settings_that_are_wrong_are_told_all_at_once_without_their_values(tmp_path: Path) -> None:
    told = refused_start(
        tmp_path,
        APPLICATION,
        TURNKEEPER_SEAL_KEYS="k:c2hvcnQ=",
        TURNKEEPER_USER_TOKEN_SECRET="short-secret",
        TURNKEEPER_OPERATOR_TOKENS="op:fly:abc",
    )
    for name in ("TURNKEEPER_SEAL_KEYS", "TURNKEEPER_USER_TOKEN_SECRET", "TURNKEEPER_OPERATOR_TOKENS"):
        assert name in told
    for value in ("c2hvcnQ", "short-secret"):
        assert value not in told


def test_users_without_a_way_to_check_their_tokens_stop_the_start(tmp_path: Path) -> None:
    config = tmp_path / "turnkeeper.yaml"
    config.write_text(yaml.safe_dump(APPLICATION), encoding="utf-8")
    variables = environment("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/", "", config)
    del variables["TURNKEEPER_USER_TOKEN_SECRET"]
    ended = subprocess.run(
        [sys.executable, "-m", "services.ingress"], env=variables, capture_output=True, timeout=30, text=True
    )
    assert ended.returncode != 0
    assert "sources.app.verify" in ended.stderr

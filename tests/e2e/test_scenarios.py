"""Each scenario, played on real services, Redis and RabbitMQ, comes out as it was recorded."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pytest
import redis

from libs.contracts.topology import Topology
from tests.support.leftovers import naming
from tests.support.servers import Servers, skip_or_fail
from tests.support.stages import Stage
from turnkeeper.demo import play
from turnkeeper.demo import scenario as scenarios
from turnkeeper.demo.runner import Played
from turnkeeper.demo.scenario import Scenario, Settings
from turnkeeper.demo.show import Watching
from turnkeeper.demo.stand import throw_away
from turnkeeper.engines import EngineUnavailable, local

pytestmark = pytest.mark.engine

OWN_SERVERS = ("crash",)
"""They kill Redis and RabbitMQ, so they cannot play on those of the run."""


def _by_settings(name: str) -> str:
    # Those with equal settings side by side, so that each stack is started once.
    return scenarios.load(name).settings.model_dump_json()


SHARED = sorted((name for name in scenarios.names() if name not in OWN_SERVERS), key=_by_settings)


@pytest.fixture(scope="module")
def stage(servers: Servers) -> Iterator[Stage]:
    made = Stage(servers)
    yield made
    made.close()


@pytest.mark.parametrize("name", SHARED)
def test_a_scenario_comes_out_as_it_was_recorded(stage: Stage, name: str) -> None:
    scenario = scenarios.load(name)
    played = play.play_on_stack(stage.of(scenario.settings), scenario, Watching())
    _assert_as_recorded(scenario, played)
    _assert_lab_is_said(scenario, played)


def test_a_scenario_can_be_played_again_where_it_was_played_before(stage: Stage) -> None:
    scenario = scenarios.load(scenarios.MAIN)
    for _ in range(2):
        played = play.play_on_stack(stage.of(scenario.settings), scenario, Watching())
        _assert_as_recorded(scenario, played)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_SERVERS)
def test_crashes_change_no_outcome_and_nothing_in_the_world(name: str) -> None:
    _need_programs()
    scenario = scenarios.load(name)
    with throw_away(scenario.settings, engine="local", say=print) as stack:
        played = play.play_on_stack(stack, scenario, Watching())
        folder = stack.state
    _assert_as_recorded(scenario, played)
    assert naming(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "engine"), [(signal.SIGTERM, "local"), (signal.SIGINT, "external")])
def test_a_demo_that_is_told_to_end_leaves_no_process(servers: Servers, number: signal.Signals, engine: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEPER_")}
    if engine == "local":
        _need_programs()
    else:
        environment |= servers.environment()
    command = [sys.executable, "-m", "turnkeeper.cli", "demo", "--engine", engine]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    folder = _until_ready(child)
    child.send_signal(number)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130, told
    assert naming(folder) == []


def test_a_lab_setting_is_refused_outside_a_demo(stage: Stage) -> None:
    environment = {**os.environ, "TURNKEEPER_LAB": "authority_by_role", "TURNKEEPER_REDIS_URL": "redis://127.0.0.1:1/0"}
    environment["TURNKEEPER_AMQP_URL"] = "amqp://127.0.0.1:1/"
    done = subprocess.run(
        [sys.executable, "-m", "services.session"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "TURNKEEPER_LAB" in done.stdout + done.stderr


def test_a_throw_away_stack_takes_its_queues_and_keys_with_it(stage: Stage, servers: Servers) -> None:
    namespace = stage.of(Settings()).namespace
    prefix, queue = f"tk:{namespace}:*", Topology(namespace).dead
    with redis.Redis.from_url(servers.redis_url()) as client:
        assert next(client.scan_iter(match=prefix, count=1_000), None) is not None
        stage.close()
        assert list(client.scan_iter(match=prefix, count=1_000)) == []
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        asyncio.run(_declared(servers.amqp_url(), queue))


async def _declared(url: str, queue: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(queue, passive=True)


def _assert_as_recorded(scenario: Scenario, played: Played) -> None:
    wrong = play.faults(scenario, played)
    assert not wrong, "\n".join(wrong)


def _assert_lab_is_said(scenario: Scenario, played: Played) -> None:
    said = any("lab" in line.text for line in played.lines)
    assert said == bool(scenario.settings.lab)


def _until_ready(child: "subprocess.Popen[str]") -> Path:
    assert child.stderr is not None
    for line in child.stderr:
        if found := re.search(r"stack: ready in (\S+)", line):
            return Path(found[1])
    raise AssertionError("it ended before its stack was ready")


def _need_programs() -> None:
    try:
        local.find_programs()
    except EngineUnavailable as missing:
        skip_or_fail(str(missing))


def test_the_issue_names_exactly_these_scenarios() -> None:
    assert set(scenarios.names()) >= {
        "offer",
        "offer-by-role",
        "party-of-twelve",
        "party-of-twelve-by-note",
        "continuation",
        "twice",
        "late-yes",
        "wrong-person",
        "free-text-yes",
        "stale-replay",
        "who-is-this",
        "crash",
        "four-arrivals",
        "superseded",
        "lost-answer",
        "early-bird",
        "loop",
        "also-sam",
        "restaurant-says-sam",
        "sunset",
        "unclear",
        "saturday",
        "restart-by-turn",
        "restart",
        "two-wishes",
        "two-wishes-kept",
        "late-withdraw",
    }
    assert scenarios.load("offer").settings == Settings()

"""Engines: private servers that are durable, on loopback only, and gone with everything they started."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aio_pika
import pytest
import redis

from libs.contracts.topology import QUORUM
from tests.support.eventually import eventually, eventually_sync
from tests.support.leftovers import listening_addresses, naming
from tests.support.servers import Servers
from turnkeeper import engines, processes
from turnkeeper.engines import Engine, EngineError, EngineUnavailable, docker, external, local, probe

LOOPBACK = ("0100007F:", "00000000000000000000000001000000:")
NOBODY = 65534


@pytest.fixture(scope="module")
def state(servers: Servers) -> Iterator[Path]:
    """A folder whose name has a space, as people's folders do, with both servers running in it."""
    if servers.kind != "local":
        pytest.skip("the engine under test here is local")
    with tempfile.TemporaryDirectory(prefix="turnkeeper engines ") as name:
        folder = Path(name) / "state"
        try:
            engines.start(folder, "local")
        except EngineUnavailable as missing:
            if os.environ.get("CI") == "true":
                raise
            pytest.skip(str(missing))
        yield folder
        engines.stop(folder)
        assert naming(folder) == []


@pytest.fixture
def engine(state: Path) -> Engine:
    """The engine of the shared folder."""
    return local.engine_of(state)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing runs, and in which nothing may be left."""
    folder = tmp_path / "state"
    yield folder
    left = naming(folder)
    engines.stop(folder)
    assert left == []


@pytest.mark.slow
def test_servers_listen_on_loopback_only(state: Path) -> None:
    # Redis, AMQP, Erlang distribution, epmd
    eventually_sync(lambda: len(listening_addresses(processes.marked(state))) >= 4)

    addresses = listening_addresses(processes.marked(state))
    assert [address for address in addresses if not address.startswith(LOOPBACK)] == []


@pytest.mark.slow
def test_redis_appends_with_fsync_always_and_evicts_nothing(engine: Engine) -> None:
    with redis.Redis.from_url(engine.redis_url) as client:
        settings = client.config_get("append*", "maxmemory-policy")

    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"


@pytest.mark.slow
def test_another_user_of_the_machine_gets_into_neither_server(engine: Engine) -> None:
    without = "redis://" + engine.redis_url.rpartition("@")[2]
    with redis.Redis.from_url(without) as client, pytest.raises(redis.AuthenticationError):
        client.get("x")
    assert "turnkeeper:" in engine.amqp_url
    assert ":guest@" not in engine.amqp_url


@pytest.mark.slow
async def test_the_default_user_guest_is_refused(engine: Engine) -> None:
    as_guest = "amqp://guest:guest@" + engine.amqp_url.rpartition("@")[2]
    with pytest.raises(aio_pika.exceptions.AMQPError):
        await aio_pika.connect(as_guest, timeout=10)


@pytest.mark.slow
def test_only_the_owner_can_read_the_folder(state: Path) -> None:
    assert state.stat().st_mode & 0o777 == 0o700
    for secret in ("local.json", "redis/redis.conf", "rabbitmq/rabbitmq.conf"):
        assert (state / secret).stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_killed_redis_comes_back_on_its_port_with_its_data(state: Path, engine: Engine) -> None:
    with redis.Redis.from_url(engine.redis_url) as client:
        client.set("kept", "yes")
    engines.kill(state, "redis")
    assert probe.redis_fault(engine.redis_url) is not None

    engines.restart(state, "redis")

    with redis.Redis.from_url(engine.redis_url) as client:
        assert client.get("kept") == b"yes"


@pytest.mark.slow
async def test_a_killed_rabbitmq_comes_back_on_its_port_with_its_data(state: Path, engine: Engine) -> None:
    connection = await aio_pika.connect(engine.amqp_url)
    async with connection, connection.channel(publisher_confirms=True) as channel:
        await channel.declare_queue("kept", durable=True, arguments=dict(QUORUM))
        message = aio_pika.Message(b"yes", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "kept", timeout=10)
        # RabbitMQ 3.10 writes a new quorum queue's name down a second after it confirmed the queue; killed before,
        # the queue comes back and never elects a leader (rabbitmq/rabbitmq-server#10070).
        await eventually(lambda: b"kept" in next(state.rglob("quorum/*/names.dets")).read_bytes())
        engines.kill(state, "rabbitmq")

    engines.restart(state, "rabbitmq")

    connection = await aio_pika.connect(engine.amqp_url)
    async with connection, connection.channel() as channel:
        queue = await channel.declare_queue("kept", durable=True, arguments=dict(QUORUM))
        assert (await queue.get(timeout=10)).body == b"yes"


@pytest.mark.slow
def test_two_brokers_live_side_by_side(engine: Engine, amqp_url: str) -> None:
    assert probe.rabbitmq_fault(amqp_url) is None
    assert probe.rabbitmq_fault(engine.amqp_url) is None
    assert amqp_url != engine.amqp_url


@pytest.mark.slow
def test_a_second_start_in_the_same_folder_is_refused(state: Path) -> None:
    with pytest.raises(EngineError, match="already runs"):
        local.start(state)


def test_folders_are_started_at_once_and_stopped_apart(tmp_path: Path, redis_url: str) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        urls = list(pool.map(local.start_redis, folders))
    assert len(set(urls)) == 4

    local.stop(folders[0])

    assert naming(folders[0]) == []
    assert [probe.redis_fault(url) for url in urls[1:]] == [None, None, None]
    for folder in folders[1:]:
        local.stop(folder)
    assert naming(tmp_path) == []


def test_a_stopped_folder_goes_on_where_it_was(fresh: Path, redis_url: str) -> None:
    before = local.start_redis(fresh)
    with redis.Redis.from_url(before) as client:
        client.set("kept", "yes")
    local.stop(fresh)

    after = local.start_redis(fresh)

    assert after == before
    with redis.Redis.from_url(after) as client:
        assert client.get("kept") == b"yes"
    local.stop(fresh)


def test_a_port_that_was_taken_meanwhile_is_replaced(fresh: Path, redis_url: str, tmp_path: Path) -> None:
    first = local.start_redis(fresh)
    local.stop(fresh)
    port = first.rpartition(":")[2].partition("/")[0]
    squatter = subprocess.Popen(["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", ""], cwd=tmp_path)
    try:
        eventually_sync(lambda: probe.redis_fault(f"redis://127.0.0.1:{port}") is None)
        second = local.start_redis(fresh)
    finally:
        squatter.kill()
        squatter.wait()

    assert second != first
    local.stop(fresh)


def test_a_server_that_does_not_come_up_is_told_with_its_last_lines_and_leaves_nothing(
    fresh: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = local._rabbitmq

    def broken(*given: object) -> tuple[list[str], dict[str, str]]:
        argv, env = real(*given)  # type: ignore[arg-type]
        (fresh / "rabbitmq" / "rabbitmq.conf").write_text("no such setting = 1\n")
        return argv, dict(env)

    monkeypatch.setattr(local, "_rabbitmq", broken)
    with pytest.raises(EngineError, match=r"(?s)rabbitmq ended at its start.*failed_to_parse_configuration_file"):
        local.start(fresh)

    assert naming(fresh) == []


@pytest.mark.parametrize("moment", ["while it waits", "in the middle of starting", "before it recorded anything"])
def test_what_a_killed_parent_left_is_ended_by_stop(fresh: Path, redis_url: str, moment: str) -> None:
    program = textwrap.dedent(
        """
        import sys, signal
        from pathlib import Path
        from turnkeeper import processes
        from turnkeeper.engines import local
        state = Path(sys.argv[1])
        """
    )
    body = {
        "while it waits": "local.start_redis(state)",
        "in the middle of starting": "local.start(state)",
        "before it recorded anything": (
            "real = processes.write_private\n"
            "processes.write_private = lambda p, t: None if p.parent.name == 'run' else real(p, t)\n"
            "settings = local._prepare(processes.private_folder(state), ('redis',), None)\n"
            "local._spawn(state, 'redis', local.find_programs(('redis',)), settings)"
        ),
    }[moment]
    parent = subprocess.Popen([sys.executable, "-c", f"{program}\n{body}\nsignal.pause()", str(fresh)])
    wanted = 3 if moment == "in the middle of starting" else 1
    eventually_sync(lambda: len(processes.marked(fresh)) >= wanted, within=30)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    engines.stop(fresh)

    assert processes.marked(fresh) == []


def test_stop_ends_no_process_that_only_has_the_same_pid(fresh: Path, redis_url: str) -> None:
    local.start_redis(fresh)
    record = processes.read(fresh, "redis")
    assert record is not None
    bystander = subprocess.Popen(["sleep", "60"])  # after Redis answered, so that it is of a later clock tick
    try:
        text = (fresh / "run" / "redis.json").read_text()
        (fresh / "run" / "redis.json").write_text(text.replace(f'"pid": {record.pid}', f'"pid": {bystander.pid}'))

        engines.stop(fresh)

        assert bystander.poll() is None
        assert processes.marked(fresh) == []
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; as one, every test here is this test")
def test_an_ordinary_user_starts_and_stops_both_servers(redis_url: str, amqp_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="turnkeeper-nobody-") as name:
        os.chown(name, NOBODY, NOBODY)
        folder = Path(name) / "state"
        closed = Path(name) / "roots"
        closed.mkdir(mode=0o700)

        def work() -> None:
            engine = local.start(folder)
            owners = {Path(f"/proc/{pid}").stat().st_uid for pid in engine.pids.values()}
            assert owners == {NOBODY}, owners
            assert probe.rabbitmq_fault(engine.amqp_url) is None
            local.stop(folder)
            assert processes.marked(folder) == []

        assert _as_nobody(work, closed) == 0
        assert naming(folder) == []


def _as_nobody(work: Callable[[], None], cwd: Path) -> int:
    """Run `work` in a fork that gave up root, in a folder that it may not read; its exit status.

    A fork, since root's Python may be closed to others.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chdir(cwd)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            status = 0
        except BaseException as error:
            print(f"as nobody: {type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_missing_program_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(local, "_SEARCH", ())
    monkeypatch.setattr(local, "_RABBITMQ_HOMES", ())

    with pytest.raises(EngineUnavailable) as raised:
        local.start(tmp_path / "state")

    assert "no redis-server and rabbitmq-server here" in str(raised.value)
    assert "apt-get install -y --no-install-recommends redis-server rabbitmq-server" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which engines were tried, none of them really started; docker is not there."""
    tried: list[str] = []

    def give(kind: engines.Kind) -> Callable[..., Engine]:
        def start(*_: object, **__: object) -> Engine:
            tried.append(kind)
            if kind == "docker":
                raise EngineUnavailable("engine docker: no docker command here")
            return Engine(redis_url="redis://r", amqp_url="amqp://a", kind=kind)

        return start

    for module, kind in ((external, "external"), (docker, "docker"), (local, "local")):
        monkeypatch.setattr(module, "start", give(kind))  # type: ignore[arg-type]
    monkeypatch.delenv(external.REDIS_URL, raising=False)
    monkeypatch.delenv(external.AMQP_URL, raising=False)
    return tried


def test_external_comes_first_when_both_urls_are_given(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(external.REDIS_URL, "redis://r")
    monkeypatch.setenv(external.AMQP_URL, "amqp://a")

    assert engines.start(tmp_path).kind == "external"
    assert chosen == ["external"]


def test_one_url_alone_does_not_choose_external(
    chosen: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(external.REDIS_URL, "redis://r")

    assert engines.start(tmp_path).kind == "local"
    assert chosen == ["docker", "local"]


def test_a_named_engine_is_not_replaced_by_another(chosen: list[str], tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable):
        engines.start(tmp_path, "docker")
    assert chosen == ["docker"]


def test_an_unknown_engine_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="unknown engine 'podman': one of external, docker, local"):
        engines.start(tmp_path, "podman")


def test_external_servers_are_neither_killed_nor_stopped(
    redis_url: str, amqp_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(external.REDIS_URL, redis_url)
    monkeypatch.setenv(external.AMQP_URL, amqp_url)
    monkeypatch.setenv(external.NAMESPACE, "mine")
    engine = engines.start(tmp_path)

    with pytest.raises(EngineError, match="not ours"):
        engines.kill(tmp_path, "redis")
    engines.stop(tmp_path)

    assert (engine.kind, engine.namespace, dict(engine.pids)) == ("external", "mine", {})
    assert probe.redis_fault(redis_url) is None
    assert probe.rabbitmq_fault(amqp_url) is None


def test_an_external_server_that_is_away_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(external, "_PATIENCE_SECONDS", 0)
    monkeypatch.setenv(external.REDIS_URL, "redis://:hunter2@127.0.0.1:1/0")
    monkeypatch.setenv(external.AMQP_URL, "amqp://u:hunter2@127.0.0.1:1/")

    with pytest.raises(EngineError, match=r"Redis at 127\.0\.0\.1:1 does not answer") as raised:
        engines.start(tmp_path)

    assert "hunter2" not in str(raised.value)


@pytest.mark.slow
def test_containers_serve_on_loopback_keep_data_over_a_kill_and_are_removed(tmp_path: Path) -> None:
    try:
        engine = engines.start(tmp_path, "docker")
    except EngineUnavailable as missing:
        pytest.skip(str(missing))
    try:
        with redis.Redis.from_url(engine.redis_url) as client:
            client.set("kept", "yes")
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
        engines.kill(tmp_path, "redis")
        engines.restart(tmp_path, "redis")
        with redis.Redis.from_url(engine.redis_url) as client:
            assert client.get("kept") == b"yes"
        assert probe.rabbitmq_fault(engine.amqp_url) is None
    finally:
        engines.stop(tmp_path)
    listed = ["docker", "ps", "--all", "--quiet", "--filter", f"label=turnkeeper.state={tmp_path}"]
    assert subprocess.run(listed, capture_output=True, text=True, check=True).stdout == ""


def test_the_shared_redis_of_a_run_is_durable(redis_url: str, namespace: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        client.set(f"{namespace}:x", "1", ex=60)


def test_a_test_run_leaves_no_process_and_no_folder(servers: Servers, tmp_path: Path) -> None:
    if servers.kind != "local":
        pytest.skip("the run's servers are not its own processes")
    inner = f"{__file__}::test_the_shared_redis_of_a_run_is_durable"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", inner]
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
    assert naming(tmp_path / "turnkeeper-tests-") == []
    assert list(tmp_path.glob("turnkeeper-tests-*")) == []

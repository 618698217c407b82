"""An effect with consent, through real services: why it happened, and what is seen when its evidence is changed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from libs.contracts.evidence import Head
from libs.contracts.keys import Keys
from tests.support.eventually import eventually_sync
from tests.support.servers import Servers
from tests.support.stages import Stage
from turnkeeper.cli import run
from turnkeeper.client import Client
from turnkeeper.demo import play
from turnkeeper.demo import scenario as scenarios
from turnkeeper.demo.show import Watching
from turnkeeper.evidence import archive
from turnkeeper.stack import Stack
from turnkeeper.target import Target, of_stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SESSION = "dinner"
WORKING = {
    "operation": {"looked_up", "asker"},
    "action": set(),
}
"""Fields that only say who asks a destination next, and how often it was asked: no evidence is told of them."""


@dataclass
class Played:
    stack: Stack
    redis: "redis.Redis[bytes]"
    keys: Keys

    @property
    def target(self) -> Target:
        return of_stack(self.stack)

    @property
    def state(self) -> list[str]:
        return ["--state", str(self.stack.state)]

    def key(self, family: str, *rest: str) -> str:
        return self.keys.of_session(family, SESSION, *rest)

    def at_rest(self) -> bool:
        """Whether everything that was told is sealed, and given to the archive."""
        due = self.keys.of_session_partition("evidencedue", SESSION)
        _, out = self.keys.outbox("tools", self.keys.partition(SESSION))
        return self.redis.zscore(due, SESSION) is None and self.redis.zcard(out) == 0


@pytest.fixture(scope="module")
def played(servers: Servers) -> Iterator[Played]:
    stage = Stage(servers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNKEEPER_TOOLS_EVIDENCE_SECONDS", "0.2")
        scenario = scenarios.load(scenarios.MAIN)
        stack = stage.of(scenario.settings)
        play.play_on_stack(stack, scenario, Watching())
    with redis.Redis.from_url(servers.redis_url()) as client:
        made = Played(stack, client, Keys(stack.namespace, stack.partitions))
        eventually_sync(made.at_rest, within=30)
        yield made
    stage.close()


def told(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str]:
    capsys.readouterr()
    status = run(list(command))
    return status, capsys.readouterr().out


def verify(played: Played, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    return told(capsys, "verify", SESSION, *played.state, *more)


def test_why_prints_every_link_of_an_effect_with_consent(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(played.target) as client:
        approved = next(one for one in client.operations(SESSION) if one["action"])
    status, out = told(capsys, "why", SESSION, approved["operation"], *played.state, "--json")
    links = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    kinds = [link["what"] for link in links]
    assert kinds[:11] == [
        "effect", "attempt", "reconciliation", "approver", "question", "proposal", "turn",
        "event", "signature", "dedupe", "bytes",
    ]  # fmt: skip
    assert [link["fault"] for link in links if link["fault"]] == []
    text = {link["what"]: link["text"] for link in reversed(links)}
    assert "ana accepted A1" in text["approver"]
    assert "Approve within 10 minutes?" in text["question"]
    assert "webhook restaurant" in text["event"]
    assert "standard-webhooks" in text["signature"]
    assert "it was acted" in text["dedupe"]


def test_untouched_evidence_holds(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = verify(played, capsys)
    assert (status, "hold" in out) == (0, True), out


@pytest.mark.parametrize("family", ["evidence", "links", "heads"])
def test_a_byte_of_any_stored_entry_link_or_head_that_is_flipped_is_named(
    played: Played, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    key = played.key(family)
    for at, raw in enumerate(played.redis.lrange(key, 0, -1)):
        for place in (0, len(raw) // 2, len(raw) - 1):
            played.redis.lset(key, at, flipped(raw, place))
            status, out = verify(played, capsys, "--no-archive")
            played.redis.lset(key, at, raw)
            named = "head " if family == "heads" else f"entry {at + 1}"
            assert (status, out.splitlines()[0].startswith("BROKEN ")) == (1, True)
            assert named in out.splitlines()[0], (at, place, out)
    assert verify(played, capsys, "--no-archive")[0] == 0


@pytest.mark.parametrize("family", ["operation", "action", "chain"])
def test_a_byte_of_any_field_of_a_live_record_that_is_flipped_is_named(
    played: Played, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    keys = [played.key("chain")] if family == "chain" else list(played.redis.scan_iter(match=played.key(family, "*")))
    assert keys
    for key in keys:
        for field, raw in played.redis.hgetall(key).items():
            if field.decode() in WORKING.get(family, set()) or not raw:
                continue
            played.redis.hset(key, field, flipped(raw, len(raw) // 2))
            status, out = verify(played, capsys, "--no-archive")
            played.redis.hset(key, field, raw)
            assert status == 1, (key, field)
            assert family in out.splitlines()[0] or family == "chain", (field, out)
            assert field.decode() in out.splitlines()[0] or family == "chain", (field, out)
    assert verify(played, capsys, "--no-archive")[0] == 0


def test_a_session_that_changes_its_owner_is_named(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.redis.set(played.key("owner"), "bna", keepttl=True)
    status, out = verify(played, capsys, "--no-archive")
    played.redis.set(played.key("owner"), "ana", keepttl=True)
    assert (status, out.startswith("BROKEN session owner")) == (1, True), out


def test_a_dedupe_mark_that_is_changed_is_named(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    told_of = [json.loads(line.split(b" ", 3)[3]) for line in played.redis.lrange(played.key("evidence"), 0, -1)]
    event = next(one for one in told_of if one["kind"] == "input" and one["what"] == "event")
    buckets = [key for key in played.redis.scan_iter(match=f"tk:{played.keys.namespace}:{{i*}}:dedupe:*")
               if played.redis.hexists(key, event["input"])]  # fmt: skip
    assert len(buckets) == 1
    mark = played.redis.hget(buckets[0], event["input"])
    played.redis.hset(buckets[0], event["input"], flipped(mark, 3))
    status, out = verify(played, capsys, "--no-archive")
    played.redis.hset(buckets[0], event["input"], mark)
    assert (status, out.startswith(f"BROKEN dedupe {event['input']}")) == (1, True), out


def test_a_tail_that_is_cut_off_everywhere_is_seen_against_a_kept_head_and_against_the_archive(
    played: Played, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [played.key(family) for family in ("evidence", "links", "heads", "chain")]
    saved = {name: played.redis.dump(name) for name in names}
    heads = [Head.model_validate_json(raw) for raw in played.redis.lrange(played.key("heads"), 0, -1)]
    kept, earlier = heads[-1], heads[-2]
    played.redis.ltrim(played.key("evidence"), 0, earlier.number - 1)
    played.redis.ltrim(played.key("links"), 0, earlier.number - 1)
    played.redis.ltrim(played.key("heads"), 0, -2)
    played.redis.hset(played.key("chain"), mapping={"n": earlier.number, "hash": earlier.hash})
    file = tmp_path / "heads.jsonl"
    file.write_text(kept.model_dump_json() + "\n")
    answers = [
        verify(played, capsys, "--no-archive", "--head", f"{kept.number}:{kept.hash}"),
        verify(played, capsys, "--no-archive", "--head", str(file)),
        verify(played, capsys),
    ]
    for name, raw in saved.items():
        played.redis.restore(name, 0, raw, replace=True)
    for status, out in answers:
        assert status == 1
        assert f"kept head {kept.number}: the chain ends at entry {earlier.number}" in out, out
    assert verify(played, capsys)[0] == 0


def test_what_the_store_no_longer_keeps_is_read_from_the_archive(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [played.key(family) for family in ("evidence", "links", "chain")]
    saved = {name: played.redis.dump(name) for name in names}
    cut = 10
    before = played.redis.lindex(played.key("links"), cut - 1)
    played.redis.ltrim(played.key("evidence"), cut, -1)
    played.redis.ltrim(played.key("links"), cut, -1)
    played.redis.hset(played.key("chain"), mapping={"base": cut, "previous": before})
    with Client(played.target) as client:
        first = client.operations(SESSION)[0]["operation"]
    alone = told(capsys, "verify", SESSION, *played.state, "--no-archive", "--json")
    whole = verify(played, capsys)
    why = told(capsys, "why", SESSION, first, *played.state)
    for name, raw in saved.items():
        played.redis.restore(name, 0, raw, replace=True)
    assert json.loads(alone[1])["first"] == cut + 1
    assert whole[0] == 0, whole[1]
    assert "entries 1 to" in whole[1]
    assert why[0] == 0, why[1]


def test_the_archive_holds_every_entry_and_every_head_is_signed_by_the_shown_key(played: Played) -> None:
    found = archive.blocks(played.target, SESSION)
    lines = [line.encode("latin-1") for block in found for line in block.lines]
    assert lines == played.redis.lrange(played.key("evidence"), 0, -1)
    with Client(played.target) as client:
        public = client.evidence(SESSION)["keys"]
    assert {block.head.key for block in found} == set(public)


def test_a_session_without_evidence_and_an_operation_without_any_are_told_apart(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(played, capsys)[0] == 0
    status, _ = told(capsys, "why", SESSION, "O99", *played.state)
    assert status == 1


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]

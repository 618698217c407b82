"""The key table of design §3.4 over two replicas of the door, each cell reached by a real `kill -9`.

The destination is a process of its own with a ledger on disk, and that ledger says what happened. What counts as which
cell is read from both ledgers after the kill, not from what the test meant to do. `SEED=n` draws the same calls again.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from secrets import token_hex

import pytest
import pytest_asyncio

from libs.contracts.tools import StepFinished, WithdrawOperation
from libs.runtime.scripts import load_script
from services.tools.domain import destination_key
from tests.support.destination_process import Entry
from tests.support.doors import MODES, Doors, Operation, Stored, two_doors
from tests.support.eventually import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

POINTS = ("claimed", "sent", "done", "answered", "recorded")
"""What the holder had come to when it was killed."""
SWITCHES = ("restart", "take_over")
"""Who goes on: the replica itself, started again under its name, or the other one alone."""
A_BUNDLE, A_FEW = 28, 6
LEAST = 500
CLAIM, RECORD = (load_script("services.tools", name).sha.encode() for name in ("claim_operation", "record_operation"))
TOLD = StepFinished.wire_type().encode()
PLAIN_HOWS = (
    "commit", "commit", "commit", "refuse", "turn_away", "error", "cut_before", "cut_after", "garbage_before",
    "garbage_after",
)  # fmt: skip
NOTHING_DONE = ("failed", "refused", "withdrawn", "expired", "conflict")


@dataclass
class Table:
    """All operations of this file, and how many were in which cell."""

    operations: list[Operation] = field(default_factory=list)
    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def draw(self, random: Random, hows: Sequence[str], count: int, modes: Sequence[str] = MODES) -> list[Operation]:
        """Operations of each mode that end as `hows` say."""
        drawn = [
            Operation(
                session=f"s{len(self.operations) + number}", mode=modes[number % len(modes)], how=random.choice(hows),
                late=random.choice(("do", "drop")),
            )
            for number in range(count)
        ]  # fmt: skip
        self.operations += drawn
        return drawn

    def count(self, row: str, operation: Operation, became: str) -> None:
        """One operation was in this cell, and became this."""
        self.cells[row, operation.mode, became] += 1

    def lines(self) -> list[str]:
        """The counts, one cell a line."""
        return [
            f"{row:<22} {mode:<6} → {became:<9} {count:>4}" for (row, mode, became), count in sorted(self.cells.items())
        ]


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors(redis_url: str, amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    folder: Path = tmp_path_factory.mktemp("key-table")
    async with two_doors(redis_url, amqp_url, f"keytable-{token_hex(6)}", folder) as opened:
        yield opened


class World:
    """What the destination's ledger says, by operation."""

    def __init__(self, doors: Doors) -> None:
        self._namespace = doors.keys.namespace
        self._lines: dict[tuple[str, str], list[Entry]] = {}
        for entry in doors.destination.entries():
            self._lines.setdefault((entry.collection, entry.key), []).append(entry)

    def count(self, operation: Operation, what: str, name: str = "") -> int:
        """How often it was received, done, answered or turned away; of one call alone where it is named."""
        key = destination_key(self._namespace, operation.session, "k")
        found = [line for line in self._lines.get((operation.mode, key), []) if line.what == what]
        return len([line for line in found if not name or line.operation == f"{operation.session}/{name}"])

    def point(self, operation: Operation) -> str:
        """How far a pending operation had come."""
        for what, point in (("answered", "answered"), ("turned", "answered"), ("did", "done"), ("received", "sent")):
            if self.count(operation, what):
                return point
        return "claimed"


def check(doors: Doors, operations: Sequence[Operation], stored: dict[str, Stored]) -> None:
    """G4, and that nothing was told that is not so."""
    world = World(doors)
    for one in operations:
        state, did = stored[one.session].state, world.count(one, "did")
        assert did <= 1, f"done {did} times: {one}, {state}"
        if one.mode in ("plain", "asked"):
            sends = world.count(one, "received") - world.count(one, "turned")
            assert sends <= 1, f"sent {sends} times where it could happen twice: {one}, {state}"
        assert state != "committed" or did == 1, f"told committed, and it was not done: {one}"
        assert state not in NOTHING_DONE or did == 0, f"told {state}, and it was done: {one}"
        for told in doors.told[one.session]:
            if told.state == "committed":
                assert did == 1, f"{told.operation} was told committed: {one}"
            if told.state in NOTHING_DONE:
                assert not world.count(one, "did", told.operation), f"{told.operation} was told {told.state}: {one}"


def expected(operation: Operation, point: str) -> set[str]:
    """What may become of a pending operation whose holder was killed (the table's rows)."""
    if operation.mode == "plain" or operation.mode == "brief":
        return {"unknown"}
    if operation.mode == "asked":
        return {"unknown", "committed", "failed"}  # the destination may have been asked by now
    if point == "claimed":
        return {"committed", "refused", "unknown", "failed"}  # sent for the first time, and all that can come of it
    return {"refused"} if operation.how == "refuse" else {"committed"}


async def stand(doors: Doors, point: str, victim: int, operations: Sequence[Operation]) -> None:
    """Send them, and wait until the victim stands at the point."""
    crossing = doors.crossings[victim]
    hold = None
    if point in ("claimed", "answered"):
        hold = crossing.hold(CLAIM if point == "claimed" else RECORD, reply=point == "claimed")
    elif point == "recorded":
        hold = doors.brokers[victim].hold(TOLD)
    half = len(operations) // 2
    for some in (operations[:half], operations[half:]):
        await doors.send([(one, doors.call(one)) for one in some])
    if hold is not None:
        await asyncio.to_thread(hold.await_reached)
    else:
        await eventually(lambda: _all_held(doors, A_BUNDLE + A_FEW))
    if point == "recorded":
        await eventually(lambda: _recorded(doors, victim, operations))


async def _recorded(doors: Doors, victim: int, operations: Sequence[Operation]) -> bool:
    mine = [one for one in (await doors.stored(operations)).values() if one.replica == str(victim)]
    return len(mine) >= A_FEW and not [one for one in mine if one.state == "pending"]


async def _all_sent(doors: Doors, operations: Sequence[Operation]) -> bool:
    """Whether each has come to the destination, or to its end without it on a busy machine."""
    stored, world = await doors.stored(operations), World(doors)
    return all(
        world.count(one, "received") or stored[one.session].state not in ("absent", "pending") for one in operations
    )


async def _all_held(doors: Doors, count: int) -> bool:
    return await doors.destination.held() >= count


def hows(point: str) -> tuple[str, ...]:
    """What the calls of a point may come to."""
    return {"sent": ("hold",), "done": ("did_hold",), "answered": ("commit", "commit", "refuse")}.get(point, PLAIN_HOWS)


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("point", POINTS)
async def test_what_a_killed_holder_left_is_ended_by_the_table(
    doors: Doors, table: Table, seed: int, point: str, switch: str
) -> None:
    random = Random(f"{seed} {point} {switch}")
    operations = table.draw(random, hows(point), 2 * A_BUNDLE)
    victim = random.randrange(2)
    await doors.ready()
    await stand(doors, point, victim, operations)
    doors.kill(victim)
    left, world = await doors.stored(operations), World(doors)
    mine = [one for one in operations if left[one.session].replica == str(victim)]
    pending = {one: world.point(one) for one in mine if left[one.session].state == "pending"}
    await doors.destination.release()
    if switch == "restart":
        doors.replicas[victim].start()
    again = random.sample(operations, A_BUNDLE)
    await doors.send([(one, doors.call(one)) for one in again[: A_BUNDLE // 2]])
    await doors.send([(one, doors.call(one, name="O2")) for one in again[A_BUNDLE // 2 :]])
    became = await doors.settled(operations)
    check(doors, operations, became)
    for one, reached in pending.items():
        assert became[one.session].state in expected(one, reached), f"killed when it was {reached}: {one}"
        table.count(f"killed {reached}", one, became[one.session].state)
    for one in mine:
        if one not in pending and left[one.session].state != "absent":
            table.count("killed recorded", one, became[one.session].state)
    reached = set(pending.values()) | ({"recorded"} if len(mine) > len(pending) else set())
    assert point in reached, f"nothing was {point} when its holder was killed: {reached}"
    for one in operations:
        if left[one.session].state == "absent" or one not in mine:
            table.count("alive", one, became[one.session].state)
    await hear_again(doors, table, random.sample(operations, A_BUNDLE), became)


async def hear_again(doors: Doors, table: Table, operations: Sequence[Operation], before: dict[str, Stored]) -> None:
    """Call once more for what has an end: it is told again, and only what provably did not happen is tried anew."""
    await doors.send([(one, doors.call(one, name="O3")) for one in operations])

    def answered() -> bool:
        return all("O3" in {told.operation for told in doors.told[one.session]} for one in operations)

    await eventually(answered)
    for one in operations:
        (told,) = [told for told in doors.told[one.session] if told.operation == "O3"]
        old = before[one.session].state
        if old == "failed":
            continue
        assert told.state == old or (old == "unknown" and one.mode in ("asked", "both")), f"{told}: {one}"
        assert told.replay
        table.count("called again", one, told.state)
    check(doors, operations, await doors.stored(operations))


async def test_a_holder_that_was_stopped_for_longer_than_its_lease_changes_nothing(
    doors: Doors, table: Table, seed: int
) -> None:
    random = Random(f"{seed} stopped")
    operations = table.draw(random, ("did_hold",), A_BUNDLE)
    await doors.ready()
    await doors.send([(one, doors.call(one)) for one in operations])
    await eventually(lambda: _all_sent(doors, operations))
    holder = int(next(iter((await doors.stored(operations)).values())).replica)
    await stopped(doors, holder)
    left = await doors.stored(operations)
    operations = [one for one in operations if left[one.session].state == "pending"]
    assert operations
    try:
        became = await doors.settled(operations)
        await doors.destination.release()
    finally:
        os.kill(_pid(doors, holder), signal.SIGCONT)
    later = await back(doors, holder, operations)
    for one in operations:
        assert became[one.session].replica == str(1 - holder)
        assert later[one.session].state in (became[one.session].state, *_found(one)), one
        table.count("holder late", one, later[one.session].state)
    check(doors, operations, later)


async def test_a_holder_that_was_stopped_before_it_sent_does_not_send_after_its_lease(
    doors: Doors, table: Table, seed: int
) -> None:
    random = Random(f"{seed} late send")
    operations = table.draw(random, ("commit",), A_BUNDLE, ("plain", "asked"))
    await doors.ready()
    holds = [crossing.hold(CLAIM, reply=True) for crossing in doors.crossings]
    await doors.send([(one, doors.call(one)) for one in operations])
    await eventually(lambda: any(hold.reached.is_set() for hold in holds))
    holder = next(number for number, hold in enumerate(holds) if hold.reached.is_set())
    await stopped(doors, holder)
    try:
        doors.crossings[1 - holder].clear(passing=True)
        doors.crossings[holder].clear(passing=True)  # the answer waits for it
        claimed = [one for one in operations if (await doors.stored([one]))[one.session].state == "pending"]
        assert claimed
        became = await doors.settled(claimed)
    finally:
        os.kill(_pid(doors, holder), signal.SIGCONT)
    await back(doors, holder, claimed)
    world = World(doors)
    for one in claimed:
        assert became[one.session].state in ("unknown", *_found(one)), one
        assert world.count(one, "received") == 0, f"sent after its lease: {one}"
        table.count("stopped claimed", one, became[one.session].state)
    check(doors, operations, await doors.settled(operations))


async def stopped(doors: Doors, number: int) -> None:
    """Stop a replica; to the broker it is gone, as after missed heartbeats it would be."""
    os.kill(_pid(doors, number), signal.SIGSTOP)


def _pid(doors: Doors, number: int) -> int:
    process = doors.replicas[number].process
    assert process is not None
    return process.pid


def _found(operation: Operation) -> tuple[str, ...]:
    return ("committed", "failed") if operation.mode in ("asked", "both") else ()


async def back(doors: Doors, number: int, operations: Sequence[Operation]) -> dict[str, Stored]:
    """Wait until a replica that was stopped works again: it answers what only it is asked."""
    await doors.replicas[number].ready()
    await doors.replicas[1 - number].ready()
    return await doors.settled(operations)


async def test_a_destination_that_dies_while_it_answers_is_believed_only_by_its_ledger(
    doors: Doors, table: Table, seed: int
) -> None:
    random = Random(f"{seed} destination")
    operations = table.draw(random, ("did_hold", "hold"), 2 * A_BUNDLE)
    await doors.ready()
    await doors.send([(one, doors.call(one)) for one in operations])
    await eventually(lambda: _all_sent(doors, operations))
    doors.destination.end(signal.SIGKILL)
    never_sent = await not_reached(doors, table, random)
    became = await doors.settled(operations)
    await asyncio.to_thread(doors.destination.start)
    world = World(doors)
    for one in operations:
        state = became[one.session].state
        assert state == "unknown" or (state == "failed" and not world.count(one, "received")), one
        table.count("cut by destination", one, state)
    check(doors, operations, became)
    await doors.send([(one, doors.call(one, name="O2")) for one in never_sent])
    await eventually(lambda: all("O2" in {told.operation for told in doors.told[one.session]} for one in never_sent))
    stored = await doors.stored(never_sent)
    for one in never_sent:
        assert stored[one.session].attempt == 2, one
        table.count("released", one, stored[one.session].state)
    check(doors, never_sent, stored)


async def not_reached(doors: Doors, table: Table, random: Random) -> list[Operation]:
    """Operations that failed since nobody listens at the destination."""
    for _ in range(10):
        some = table.draw(random, ("commit",), 2 * len(MODES))
        await doors.send([(one, doors.call(one)) for one in some])
        became = await doors.settled(some)
        for one in some:
            state = became[one.session].state
            assert state in ("failed", "unknown"), one  # unknown: its time was over before it had given up connecting
            table.count("never sent", one, state)
        if failed := [one for one in some if became[one.session].state == "failed"]:
            return failed
    raise AssertionError("no call gave up connecting in its time")


async def test_the_rows_without_a_crash(doors: Doors, table: Table, seed: int) -> None:
    random = Random(f"{seed} rows")
    await doors.ready()
    late, gone, other = (table.draw(random, ("commit",), 10) for _ in range(3))
    held = table.draw(random, ("did_hold",), 10)
    await doors.send([(one, doors.call(one, not_after=1)) for one in late])
    await doors.send([(one, WithdrawOperation(operation="O1", key="k", not_after=1)) for one in gone])
    await doors.send([(one, doors.call(one)) for one in other])
    await eventually(lambda: all(doors.told[one.session] for one in (*late, *gone, *other)))
    await doors.send([(one, doors.call(one, name="O2")) for one in gone])
    await doors.send([(one, doors.call(one, name="O2", args={**one.args, "n": "else"})) for one in other])
    await doors.send([(one, doors.call(one)) for one in held])
    await eventually(lambda: _all_held(doors, len(held)))
    await doors.send([(one, doors.call(one, name="O2")) for one in held])

    def state(one: Operation, name: str) -> str:
        return next((told.state for told in reversed(doors.told[one.session]) if told.operation == name), "")

    rows = (("expired", late, "O1"), ("withdrawn", gone, "O2"), ("conflict", other, "O2"), ("in_progress", held, "O2"))
    await eventually(lambda: all(state(one, name) for _, operations, name in rows for one in operations))
    for row, operations, name in rows:
        for one in operations:
            # On a busy machine a hold may be over before it is asked about.
            assert state(one, name) in (row, *(("unknown",) if row == "in_progress" else ())), one
            table.count("no crash", one, state(one, name))
    await doors.destination.release()
    check(doors, [*other, *held], await doors.settled([*other, *held]))
    world = World(doors)
    assert not [one for one in (*late, *gone) if world.count(one, "received")]


async def test_calls_from_before_the_store_was_set_back_are_not_new(doors: Doors, table: Table, seed: int) -> None:
    random = Random(f"{seed} epoch")
    before, since = (table.draw(random, ("commit",), 2 * len(MODES)) for _ in range(2))
    await doors.ready()
    epoch = int(await doors.redis.incr(doors.keys.meta("epoch")))
    await eventually(lambda: all(b"epoch.changed" in replica.log.read_bytes() for replica in doors.replicas))
    for said, some in ((epoch - 1, before), (epoch, since)):
        doors.composer.epoch = said
        await doors.send([(one, doors.call(one)) for one in some])
    doors.composer.epoch = 0
    became, world = await doors.settled([*before, *since]), World(doors)
    for one in before:
        new = one.mode in ("keyed", "both")
        assert world.count(one, "received") == (1 if new else 0), one
        assert became[one.session].state in (("committed",) if new else ("unknown", *_found(one))), one
        table.count("older epoch", one, became[one.session].state)
    assert {became[one.session].state for one in since} == {"committed"}
    check(doors, [*before, *since], became)


async def test_all_that_can_be_asked_about_is_found_out_and_nothing_was_done_twice_or_told_wrongly(
    doors: Doors, table: Table, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if not any(row == "no crash" for row, _, _ in table.cells):
        pytest.skip("it counts what the tests before it did")
    await doors.ready()
    can_be_asked = [one for one in table.operations if one.mode in ("asked", "both")]

    async def found_out() -> dict[str, Stored] | None:
        stored = await doors.stored(can_be_asked)
        assert not [name for name, one in stored.items() if one.state == "unknown"]
        return stored

    stored = await eventually(found_out)
    assert stored is not None
    failed = [one for one in can_be_asked if stored[one.session].resolved_by and stored[one.session].state == "failed"]
    for one in can_be_asked:
        if stored[one.session].resolved_by:
            table.count("looked up", one, stored[one.session].state)
    for start in range(0, len(failed), A_BUNDLE):
        some = failed[start : start + A_BUNDLE]
        await doors.send([(one, doors.call(one, name="O4")) for one in some])
    await eventually(lambda: all(doors.told[one.session][-1].operation == "O4" for one in failed))
    for one in failed:
        last = doors.told[one.session][-1]
        assert (last.state, last.spent) == (("committed", False) if one.mode == "both" else ("failed", True)), one
        table.count("tried anew", one, last.state)
    check(doors, table.operations, await doors.stored(table.operations))
    with capsys.disabled():
        print(f"\n{len(table.operations)} operations, 0 done twice, 0 wrongly reported; SEED={seed}")
        print("\n".join(table.lines()))
    assert len(table.operations) >= LEAST

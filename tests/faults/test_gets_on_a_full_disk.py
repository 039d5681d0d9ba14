"""Promise 8: a get works on a full disk, even if it first has to count attempts, expire messages or end branches."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

import spool
from spool.coordination.locks import coordinator_byte
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid
from tests import door
from tests.at_once import AT_ONCE
from tests.children import exit_code, living, start
from tests.clocks import MovedClock
from tests.full import FullDisk
from tests.meanwhile import prepare

MESSAGES = 20
DURABILITIES = ("flush", "none")


@pytest.fixture(params=DURABILITIES)
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> FullDisk:
    """The disk of a space with twenty messages, which is not full yet."""
    (tmp_path / "space").mkdir(mode=0o700)
    disk = FullDisk(str(tmp_path / "space"))
    with spool.create(disk, defaults=AT_ONCE) as space:
        space.create_queue("errors", role="error")
        space.create_queue("q", durability=request.param, retries=3, error_queue="errors")
        for number in range(MESSAGES):
            space.put("q", number)
    return disk


def another(disk: FullDisk) -> FullDisk:
    """The same disk, for another process or another opening."""
    found = FullDisk(disk.root)
    found.full = disk.full
    return found


def holding(disk: FullDisk, hold: Callable[..., object]) -> AbstractContextManager[int]:
    """Let another process hold messages; kill it at the end of the block."""

    def program(ready: Callable[[], object]) -> object:
        space = spool.open(another(disk))
        if hold is in_a_worker:
            return in_a_worker(space, ready)
        kept = hold(space)
        ready()
        return space, kept

    return living(program)


def in_a_transaction(space: spool.Space, count: int = 3) -> object:
    transaction = space.transaction().__enter__()
    return transaction, transaction.get_many("q", count)


def in_claims(space: spool.Space, count: int = 3, *, begun: bool = True) -> object:
    claims = space.claims()
    for message in claims.take("q", count):
        if begun:
            claims.begin(message)
    return claims


def in_a_worker(space: spool.Space, ready: Callable[[], object]) -> object:
    def handle(_: spool.Message) -> None:
        ready()
        signal.pause()

    return space.work("q", handle, timeout=None)


HOLDERS: dict[str, tuple[Callable[..., object], dict[int, int]]] = {
    "transaction": (in_a_transaction, {0: 1, 1: 1, 2: 1}),
    "begun claims": (in_claims, {0: 1, 1: 1, 2: 1}),
    "claims": (partial(in_claims, begun=False), {}),
    "worker": (in_a_worker, {0: 1}),
}


def take_all(space: spool.Space) -> dict[int, int]:
    """Return the attempts of each message that a get took, by body."""
    found: dict[int, int] = {}
    while True:
        try:
            message = space.get("q")
        except spool.Empty:
            return found
        assert message.body not in found, "twice"
        found[message.body] = message.attempts


def claim_all(space: spool.Space) -> dict[int, int]:
    """Take all messages as the adaptors do."""
    found: dict[int, int] = {}
    with space.claims() as claims:
        while messages := claims.take("q", 2):
            for message in messages:
                claims.begin(message)
                assert message.body not in found, "twice"
                found[message.body] = message.attempts
            claims.remove(messages).result(60)
    return found


def expect_room_again(disk: FullDisk, space: spool.Space) -> None:
    disk.full = False
    space.put("q", "room")
    assert space.get("q").body == "room"
    assert space.check() == []


@pytest.mark.parametrize("take", [take_all, claim_all], ids=["get", "claims"])
@pytest.mark.parametrize(("hold", "attempts"), HOLDERS.values(), ids=HOLDERS)
def test_the_messages_of_a_dead_holder_are_taken_with_their_attempts(
    disk: FullDisk,
    hold: Callable[[spool.Space], object],
    attempts: dict[int, int],
    take: Callable[[spool.Space], dict[int, int]],
) -> None:
    with spool.open(disk) as space:
        with holding(disk, hold):
            disk.full = True
        with pytest.raises(spool.DiskFailure):
            space.put("q", bytes(100_000))
        assert take(space) == {**dict.fromkeys(range(MESSAGES), 0), **attempts}
        expect_room_again(disk, space)


@pytest.mark.parametrize(("hold", "attempts"), HOLDERS.values(), ids=HOLDERS)
def test_other_processes_take_beside_each_other(
    disk: FullDisk, hold: Callable[[spool.Space], object], attempts: dict[int, int], tmp_path: Path
) -> None:
    with spool.open(disk) as space:
        with holding(disk, hold):
            disk.full = True

        def take_some(number: int) -> None:
            with spool.open(another(disk)) as own:
                found = take_all(own)
            (tmp_path / str(number)).write_text(repr(found))

        children = [start(partial(take_some, number)) for number in range(3)]
        assert [exit_code(child) for child in children] == [0, 0, 0]
        found = [eval((tmp_path / str(number)).read_text()) for number in range(3)]
        assert sum(map(len, found)) == MESSAGES
        assert {body: count for each in found for body, count in each.items() if count} == attempts
        expect_room_again(disk, space)


@pytest.mark.parametrize(("hold", "attempts"), HOLDERS.values(), ids=HOLDERS)
def test_the_space_is_opened_and_emptied_after_its_only_process_died(
    disk: FullDisk, hold: Callable[[spool.Space], object], attempts: dict[int, int]
) -> None:
    with holding(disk, hold):
        disk.full = True
    with spool.open(disk) as space:
        assert take_all(space) == {**dict.fromkeys(range(MESSAGES), 0), **attempts}
        expect_room_again(disk, space)


@pytest.mark.parametrize("take", [take_all, claim_all], ids=["get", "claims"])
def test_messages_whose_attempts_find_no_room_wait_and_others_are_taken(
    disk: FullDisk, take: Callable[[spool.Space], dict[int, int]]
) -> None:
    """The files that are kept for attempts were used up, e.g. by earlier deaths."""
    with spool.open(disk) as space:
        with holding(disk, in_a_transaction):
            disk.full = True
        kept = [Path(disk.path(layout.FREE)) / name for name in disk.names(layout.FREE)]
        for path in kept[3:]:
            path.unlink()
        found = take(space)
        assert next(iter(found)) == 3, "the messages of the dead process wait"
        assert found == {**dict.fromkeys(range(MESSAGES), 0), 0: 1, 1: 1, 2: 1}
        expect_room_again(disk, space)


def test_the_attempts_of_a_thousand_commits_wait_for_room_and_are_counted_once(disk: FullDisk) -> None:
    more = 1000
    with spool.open(disk) as space:
        for number in range(MESSAGES, MESSAGES + more):
            space.put("q", number)
        with holding(disk, partial(in_a_transaction, count=more)):
            disk.full = True
        found = {}
        with pytest.raises(spool.DiskFailure, match="free space on the disk"):
            while True:
                message = space.get("q")
                found[message.body] = message.attempts
        assert found == dict.fromkeys(range(more, more + MESSAGES), 0)
        disk.full = False
        assert take_all(space) == dict.fromkeys(range(more), 1)
        assert space.check() == []


def test_the_attempts_of_ten_thousand_messages_of_one_commit_are_counted(disk: FullDisk) -> None:
    with spool.open(disk) as space:
        take_all(space)
        space.put_many("q", range(10_000))
        with holding(disk, partial(in_a_transaction, count=10_000)):
            disk.full = True
        assert {message.attempts for message in space.get_many("q", 10_000)} == {1}
        expect_room_again(disk, space)


@pytest.mark.parametrize("goes", ["error", "drop"])
@pytest.mark.parametrize("take", [take_all, claim_all], ids=["get", "claims"])
def test_expired_messages_do_not_hold_up_a_get(
    disk: FullDisk, goes: str, take: Callable[[spool.Space], dict[int, int]]
) -> None:
    clock = disk.clock = MovedClock()
    with spool.open(disk) as space:
        space.change_queue("q", on_expiry=goes)
        for number in range(100, 103):
            space.put("q", number, time_to_live=10.0)
        disk.full = True
        clock.later = 20.0
        assert take(space) == dict.fromkeys(range(MESSAGES), 0)
        expect_room_again(disk, space)
        assert space.stats("q").ready == 0
        assert [message.body for message in space.browse("errors")] == ([100, 101, 102] if goes == "error" else [])


def in_a_prepared_branch(space: spool.Space) -> object:
    """The branch of a coordinator of our own, which dies before its decision."""
    xid = Xid(FORMAT_ROUND, b"round", b"1")
    assert door.store(space).shared.xids.try_lock(coordinator_byte(xid.gtrid))
    prepare(space, xid, queue="q", take=True)
    return space


def test_the_messages_of_a_branch_without_its_coordinator_are_taken(disk: FullDisk) -> None:
    with spool.open(disk) as space:
        with holding(disk, in_a_prepared_branch):
            disk.full = True
            assert space.get("q").body == 1
        assert take_all(space) == dict.fromkeys([0, *range(2, MESSAGES)], 0)
        expect_room_again(disk, space)

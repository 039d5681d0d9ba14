"""The guarantees for applications, through the public interface; tests are named after the feature rows."""

import copy
import errno
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from unittest import mock

import msgpack
import pytest

import spool
import xa
from spool.disk import Disk
from spool.transactions.transaction import end_block
from tests import door
from tests.at_once import AT_ONCE
from tests.clocks import MovedClock, timed


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock(wall=1_000_000.0)


@pytest.fixture
def space(tmp_path: Path, clock: MovedClock) -> Iterator[spool.Space]:
    with spool.create(timed(tmp_path / "space", clock), defaults=AT_ONCE) as space:
        space.create_queue("q")
        space.create_queue("ranked", order=("priority", "fifo"))
        space.create_queue("errors")
        yield space


def bodies(space: spool.Space, queue: str = "q") -> list[object]:
    return [m.body for m in space.browse(queue)]


def test_q02_the_higher_priority_comes_first_and_fifo_within_it(space: spool.Space) -> None:
    for body, priority in (("c", 1), ("a", 100), ("b1", 50), ("b2", 50)):
        space.put("ranked", body, priority=priority)
        space.put("q", body, priority=priority)
    assert [space.get("ranked").body for _ in range(4)] == ["a", "b1", "b2", "c"]
    assert [space.get("q").body for _ in range(4)] == ["c", "a", "b1", "b2"], "a fifo queue does not look at it"


def test_q04_a_failed_try_of_a_message_taken_by_key_does_not_bring_it_forward(space: spool.Space, clock: MovedClock):
    wanted = space.put("q", "later", delay=100)
    with space.transaction() as tx:
        tx.get("q", message_id=wanted)
        tx.set_rollback_only()
    with pytest.raises(spool.Empty):
        space.get("q")
    clock.wall += 101
    assert space.get("q").attempts == 1


def test_stats_count_a_held_message_as_claimed_only(space: spool.Space, clock: MovedClock) -> None:
    now, later = space.put("q", "now"), space.put("q", "later", delay=100)
    space.put("q", "free", delay=100)
    with space.transaction() as tx:
        tx.get("q", message_id=now)
        tx.get("q", message_id=later)
        stats = space.stats("q")
        assert (stats.ready, stats.delayed, stats.claimed, stats.oldest_age) == (0, 1, 2, None)
    clock.wall += 130
    assert 25 < space.stats("q").oldest_age < 60, "a delayed message is ready since it is due"


def test_a_get_that_cannot_read_releases_its_message(space: spool.Space, monkeypatch: pytest.MonkeyPatch) -> None:
    space.put("q", "x")

    read = Disk.read_at

    def broken(self: Disk, handle: int, offset: int, length: int) -> bytes:
        if offset:  # a body: the counters lie at the start of their file
            raise OSError(5, "Input/output error")
        return read(self, handle, offset, length)

    with space.transaction() as tx:
        monkeypatch.setattr(Disk, "read_at", broken)
        with pytest.raises(spool.DiskFailure):
            tx.get("q")
        monkeypatch.undo()
        assert space.get("q", transaction=None).body == "x"


def test_many_large_headers_are_read_back(space: spool.Space) -> None:
    with space.transaction() as tx:
        for turn in range(3000):
            tx.put("q", b"x", headers={"h": f"{turn}" + "x" * 8_000})
    path = space.path
    space.close()
    with spool.open(path) as again:
        assert {len(m.headers["h"]) // 1000 for m in again.browse("q")} == {8}
        assert again.stats("q").ready == 3000
        assert again.check() == []


def test_q18_each_failure_has_its_own_error_and_leaves_the_transaction_usable(space: spool.Space) -> None:
    space.create_queue("before", out_of_order=("before",), max_messages=2)
    with space.transaction() as tx:
        for call, error, diagnostic in (
            (lambda: tx.put("nowhere", "x"), spool.QueueNotFound, "QMEBADQUEUE"),
            (lambda: tx.get("q"), spool.Empty, "QMENOMSG"),
            (lambda: tx.put("q", "x", before="0" * 32), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.put("before", "x", before="0" * 32), spool.BadMessageId, "QMEBADMSGID"),
            (lambda: tx.put_many("before", [1, 2, 3]), spool.Full, "QMENOSPACE"),
            (lambda: tx.put("q", "x", priority=101), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.put("q", "x", delay=1, not_before=2.0), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.put("q", object()), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.put("q", "x", correlation_id="c" * 256), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.put("q", "x", headers={"k": "v" * 9000}), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.get("q", timeout=-1), spool.InvalidArgument, "QMEINVAL"),
            (lambda: tx.get_many("q", 0), spool.InvalidArgument, "QMEINVAL"),
        ):
            with pytest.raises(error) as caught:
                call()
            assert caught.value.diagnostic == diagnostic
        tx.put("q", "still fine")
    assert bodies(space) == ["still fine"]
    with pytest.raises(TypeError):
        space.put("q", "x", prioritty=1)


def test_q20_a_transaction_that_takes_too_long_is_rolled_back_and_says_so(tmp_path: Path) -> None:
    clock = MovedClock()
    with spool.create(timed(tmp_path / "s", clock), defaults=AT_ONCE) as space:
        space.create_queue("q")
        space.put("q", "x")
        with pytest.raises(spool.TransactionTimeout, match="took longer than 5 s"), space.transaction(timeout=5) as tx:
            tx.get("q")
            clock.ahead = 6
            with suppress(spool.TransactionTimeout):
                tx.put("q", "y")
        idle = space.transaction(timeout=5)
        idle.get("q")
        clock.ahead = 12
        door.housekeep(space)
        assert bodies(space) == ["x"]
        with pytest.raises(spool.TransactionTimeout):
            idle.put("q", "y")
        idle.rollback()


def test_q20_a_block_that_ends_during_the_rollback_raises(tmp_path: Path) -> None:
    clock, ends = MovedClock(), list[Future[None]]()
    with spool.create(timed(tmp_path / "s", clock)) as space, ThreadPoolExecutor() as pool:
        tx = space.transaction(timeout=5)
        end = door.hold(tx).end

        def beside(**how: bool) -> None:
            ends.append(pool.submit(end_block, tx, None, None))
            wait(ends, 0.2)  # it waits for the rollback
            end(**how)

        clock.ahead = 6
        with mock.patch.object(door.hold(tx), "end", beside):
            door.housekeep(space)
        with pytest.raises(spool.TransactionTimeout):
            ends[0].result()


def test_e11_x04_a_commit_is_one_file_one_position_number_and_visible_at_once(space: spool.Space) -> None:
    ids = space.put_many("q", [b"x"] * 3000)
    found = list(space.browse("q"))
    assert [m.id for m in found] == ids
    assert {m.position.number for m in found} == {found[0].position.number}
    assert len(set(ids)) == 3000
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in ids)
    assert len(list(Path(space.path, "committed").iterdir())) == 1


def test_e12_a_flipped_bit_is_never_delivered_and_the_rest_is(space: spool.Space) -> None:
    space.put_many("q", [b"a" * 500, b"b" * 500, b"c" * 500])
    (path,) = Path(space.path, "committed").iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(b"b" * 500) + 250] ^= 1
    path.write_bytes(data)
    assert [m.body for m in space.get_many("q", 10)] == [b"a" * 500, b"c" * 500]
    assert len(space.quarantined()) == 1
    (kept,) = [p for p in Path(space.path, "quarantine").iterdir() if not p.name.endswith(".reason.txt")]
    found = msgpack.unpackb(kept.read_bytes())
    assert (found["queue"], len(found["body"])) == ("q", 500), "what is left of the body is kept with what it was"


def test_consume_commits_each_body_and_rolls_back_the_one_that_raises(space: spool.Space) -> None:
    space.put_many("q", ["1", "2", "3"])
    seen = []
    with pytest.raises(RuntimeError):
        for tx, message in space.consume("q", timeout=0):
            seen.append(message.body)
            tx.put("errors", message.body)
            if message.body == "2":
                raise RuntimeError
    assert seen == ["1", "2"]
    assert (bodies(space), bodies(space, "errors")) == (["2", "3"], ["1"])


def test_a_large_transaction_streams_and_is_still_all_or_nothing(space: spool.Space) -> None:
    body = bytes(1 << 20)
    for commit in (False, True):
        tx = space.transaction(timeout=None)
        tx.put_many("q", [body] * 40)
        tx.put("q", "last")
        assert any(Path(space.path, "active").iterdir()), "it streams"
        assert bodies(space) == []
        tx.commit() if commit else tx.rollback()
    assert [len(m.body) for m in space.browse("q")] == [1 << 20] * 40 + [4]
    path = space.path
    space.close()
    with spool.open(path) as again:
        assert [len(m.body) for m in again.get_many("q", 100)] == [1 << 20] * 40 + [4]


def test_counts_since_the_space_was_created_survive_reclaim_and_restarts(space: spool.Space) -> None:

    for _ in range(3):
        space.put_many("q", [b"x"] * 5)
        space.get_many("q", 4)
        door.reclaim(space)
    path, stats = space.path, space.stats("q")
    assert (stats.enqueued, stats.dequeued, stats.ready) == (15, 12, 3)
    space.close()
    with spool.open(path) as again:
        assert again.stats("q").enqueued == 15
        again.get_many("q", 3)
        while door.reclaim(again):
            pass
        assert (again.stats("q").enqueued, again.stats("q").dequeued) == (15, 15)
        assert len(list(Path(path, "committed").iterdir())) <= 2, "the space of a drained queue returns"


def test_spaces_that_are_none_newer_or_there_already_are_named_errors(space: spool.Space, tmp_path: Path) -> None:
    with pytest.raises(spool.SpaceExists):
        spool.create(space.path, defaults=AT_ONCE)
    with pytest.raises(spool.NotASpace, match="spool-admin init"):
        spool.open(tmp_path)
    with pytest.raises(spool.NotASpace):
        spool.open(tmp_path / "nowhere")
    with pytest.raises(spool.QueueExists):
        space.create_queue("q")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "space.toml").write_text("format = 2\n")
    with pytest.raises(spool.NewerFormat):
        spool.open(tmp_path / "newer")


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.deepcopy])
def test_a_pickled_or_copied_space_names_the_way_to_another_process(
    space: spool.Space, duplicate: Callable[[object], object]
) -> None:
    worker = spool.Worker(space, "q", lambda message: None)
    with space.transaction() as transaction:
        for one in (space, [space], transaction, worker, xa.ResourceManager(space)):
            with pytest.raises(TypeError, match=r"call spool\.open or spool\.connect in each process"):
                duplicate(one)


def test_a_closed_space_says_so(space: spool.Space) -> None:
    space.close()
    space.close()
    calls = [lambda: space.put("q", "x"), lambda: space.get("q"), lambda: list(space.browse("q"))]
    for call in (*calls, space.queues, space.__enter__):
        with pytest.raises(spool.NotOpen, match="open it again"):
            call()


def test_a_directory_under_an_unpublished_number_does_not_stop_the_opening(space: spool.Space) -> None:
    """A power cut on a file system without a journal can leave such an entry under a number that was never
    acknowledged."""
    space.put("q", "one")
    path = Path(space.path)
    space.close()
    (path / "committed" / f"{2:016}.msgpack").mkdir()
    with spool.open(path) as again:
        assert [f.name for f in again.quarantined()] == [f"quarantine/committed.{2:016}.msgpack"]
        again.put("q", "two")
        assert bodies(again) == ["one", "two"]
        assert again.check() == []


def test_a_rollback_of_many_messages_is_one_command(space: spool.Space) -> None:
    space.create_queue("many", retries=3)
    space.put_many("many", range(500))
    with space.transaction() as tx:
        tx.get_many("many", 400)
        tx.set_rollback_only()
    assert door.index(space).messages.queue("many").entries == 2
    assert [message.attempts for message in space.get_many("many", 500)] == [1] * 400 + [0] * 100


@pytest.mark.parametrize("end", [spool.Transaction.commit, spool.Transaction.rollback])
def test_an_ended_transaction_is_freed_at_once(space: spool.Space, end: Callable[[spool.Transaction], None]) -> None:
    """Its bodies take memory, and each cycle of references costs time in Python's garbage collector."""
    space.put("q", b"one")
    gc.disable()
    try:
        tx = space.transaction()
        tx.get("q")
        tx.put("q", b"two")
        end(tx)
        gone = weakref.ref(tx.writes)  # which has its bodies
        del tx
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("inspect", [spool.plan_recovery, spool.mirrors.describe])
def test_an_inspection_of_an_unreadable_space_raises_an_error_of_the_library(
    space: spool.Space, inspect: Callable[[str], object]
) -> None:
    unreadable = PermissionError(errno.EACCES, "Permission denied", f"{space.path}/space.toml")
    with (
        mock.patch("spool.opening.inspect_store", side_effect=unreadable),
        pytest.raises(spool.DiskFailure, match="inspecting the queue space: Permission denied: "),
    ):
        inspect(space.path)

"""A checkpoint of the index: it spares an opener the reading, and is believed only if nothing has changed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spool
from spool.disk import Disk
from spool.format.reader import contents_of
from spool.log import checkpoint
from spool.model import layout
from tests import door
from tests.at_once import AT_ONCE
from tests.compaction import small_compactions


class Counting(Disk):
    """A disk that records the committed files that were opened."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def open(self, name: str, *, write: bool = False) -> int:
        self.opened += [name] if name.startswith(layout.COMMITTED) else []
        return super().open(name, write=write)


class Alone(Disk):
    """No housekeeping thread works beside the test's own calls."""

    def run_beside(self, name: str, run: Callable[[], None]) -> bool:
        return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed space with a bit of everything, and its checkpoint."""
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("errors", order=("priority", "fifo"))
        space.create_queue("orders", retries=1, error_queue="errors")
        with small_compactions():
            for n in range(20):
                space.put("orders", b"%d" % n, correlation_id=f"c{n % 3}")
            door.compact(space)
            space.put_many("orders", [b"long" * n for n in range(5)], priority=7, delay=1000)
            space.put_many("errors", [b"same size"] * 4)
            for _ in range(2):
                with space.transaction() as tx:
                    tx.get("orders")
                    tx.set_rollback_only()
            space.get("errors")
            space.get("orders", correlation_id="c2")
        assert save(space)
    return tmp_path / "space"


def save(space: spool.Space) -> bool:
    checkpoint_is_durable = door.counters(space).published
    door.store(space).shared.counters.store_durable(checkpoint_is_durable)  # (reclaim flushes the counts of attempts)
    return checkpoint.save(door.disk(space), door.store(space).shared.counters, door.store(space).view)


@pytest.fixture
def opened(path: Path) -> Iterator[tuple[spool.Space, Counting]]:
    disk = Counting(str(path))
    with spool.open(disk) as space:
        yield space, disk


def everything(space: spool.Space) -> object:
    index = door.index(space)
    return (
        {queue: [message.as_dict() for message in space.browse(queue)] for queue in space.queues()},
        [str(space.find("orders", correlation_id=key)) for key in ("c0", "c1", "absent")],
        {queue: vars(figures) | {"oldest_age": None} for queue, figures in space.stats().items()},
        {
            n: (s.live, s.live_bytes, s.body_bytes, set(s.addressed), s.facts, s.superseded_by)
            for n, s in index.files.items()
        },
        index.idle,
        index.unread,
        index.subscriptions,
        index.facts,
        index.applied,
    )


@pytest.mark.unled("this process has not read its last commit as it closes")
def test_an_opener_sees_the_same_with_and_without_a_checkpoint(path: Path) -> None:
    with spool.open(path) as space:
        assert door.index(space).restored == door.index(space).applied > 0
        believed = everything(space)
    os.unlink(path / layout.CHECKPOINT)
    with spool.open(path) as space:
        assert door.index(space).restored == 0
        assert everything(space) == believed


def test_nothing_is_read_that_has_not_changed(opened: tuple[spool.Space, Counting]) -> None:
    space, disk = opened
    read = list(disk.opened)
    newest = contents_of(disk, read[0])
    above = {layout.committed(number) for number in range(newest.header.durable_mark + 1, newest.header.number + 1)}
    assert set(read) <= above, "only the newest files, which have the durable marks"
    assert space.get("errors").body == b"same size"


def test_commits_after_the_checkpoint_are_read(path: Path) -> None:
    with spool.open(path) as space:
        space.put("errors", "urgent", priority=99)
    disk = Counting(str(path))
    with spool.open(disk) as space:
        assert door.index(space).restored > 0
        assert space.get("errors").body == "urgent"


@pytest.mark.parametrize("damage", ["rewritten", "shorter", "gone", "linked", "another"])
def test_a_checkpoint_of_files_that_are_not_as_they_were_is_not_believed(path: Path, damage: str) -> None:
    victim = sorted((path / layout.COMMITTED).iterdir())[0]
    content = victim.read_bytes()
    if damage == "rewritten":
        victim.write_bytes(content)
    elif damage == "shorter":
        os.truncate(victim, len(content) - 1)
    elif damage == "linked":
        os.link(victim, path / "second name")
    elif damage == "another":
        (victim.parent / f"{0:015d}1.msgpack").write_bytes(content)
    else:
        victim.unlink()
    with spool.open(path) as space:
        assert door.index(space).restored == 0
        damaged = [finding for finding in space.recovery.findings if finding.kind.name == "DAMAGED"]
        assert damaged or damage in ("rewritten", "linked", "another")


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"nonsense", b"\x8d\xd5\x93\xd3\x80", None])
def test_a_checkpoint_that_is_none_is_not_believed(path: Path, content: bytes | None) -> None:
    file = path / layout.CHECKPOINT
    if content is None:
        content = file.read_bytes().replace(b"\xa8priority\x07", b"\xa8priority\x08")
        assert content != file.read_bytes()
    file.write_bytes(content)
    with spool.open(path) as space:
        assert door.index(space).restored == 0
        assert space.check() == []


def test_a_checkpoint_for_another_order_is_not_believed(path: Path) -> None:
    settings = path / layout.SETTINGS
    text = settings.read_text()
    assert text.count("priority") == 1
    settings.write_text(text.replace('["priority", "fifo"]', '["fifo"]'))
    with spool.open(path) as space:
        assert door.index(space).restored == 0


def test_no_checkpoint_is_written_of_files_that_a_power_cut_could_change(path: Path) -> None:
    with spool.open(path) as space:
        with space.transaction() as tx:
            tx.get("orders")
            tx.set_rollback_only()
        assert not checkpoint.save(door.disk(space), door.store(space).shared.counters, door.store(space).view), (
            "the count of that attempt was not flushed"
        )


def test_a_close_of_a_compacted_space_with_few_files_leaves_a_checkpoint(tmp_path: Path) -> None:
    """A segment's table takes as long to read as hundreds of small files."""
    with small_compactions(), spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        for n in range(20):
            space.put("orders", n)
        door.compact(space)
        save_point = door.index(space).applied
    disk = Counting(str(tmp_path / "space"))
    with spool.open(disk) as space:
        assert door.index(space).restored >= save_point
        assert len(disk.opened) <= 1
        assert space.stats("orders").ready == 20


def test_a_close_of_a_space_with_few_small_files_leaves_no_checkpoint(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders")
        space.put("orders", "one")
    assert not (tmp_path / "space" / layout.CHECKPOINT).exists()


def test_a_close_leaves_a_checkpoint_of_the_remaining_files(tmp_path: Path) -> None:
    """A reclaim after the last checkpoint makes that checkpoint useless."""
    (tmp_path / "space").mkdir()
    with spool.create(Alone(str(tmp_path / "space")), defaults=AT_ONCE) as space:
        space.create_queue("orders")
        for n in range(700):
            space.put("orders", n)
        door.save(space, 1)
        space.get_many("orders", 300)
        door.reclaim_behind(space)
        assert len(door.index(space).files) < 450
    with spool.open(tmp_path / "space") as space:
        assert door.index(space).restored > 0
        assert space.get("orders").body == 300


def test_a_close_during_a_reclaim_leaves_a_checkpoint(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next opener would read all remaining files."""
    space = spool.create(Alone(str(memory)), defaults=AT_ONCE)
    space.create_queue("orders")
    for n in range(1400):
        space.put("orders", n)
    space.stats("orders")  # which applies them
    door.save(space, 1)
    housekeeper, guard = door.housekeeper(space), door.store(space).guard
    housekeeper.next_look = 10_000
    space.get_many("orders", 700)
    space.stats("orders")
    steps = iter([guard.check, guard.check, guard.end])

    def pause() -> None:
        next(steps)()
        guard.check()

    monkeypatch.setattr(housekeeper, "_pause", pause)
    with guard:
        housekeeper._do_steps(due=False)
    left = sum(1 for _ in (memory / layout.COMMITTED).iterdir())
    assert 1380 < left < 1400, "it went on for two steps"
    with spool.open(memory) as space:
        assert door.index(space).restored > 0
        assert space.get("orders").body == 700

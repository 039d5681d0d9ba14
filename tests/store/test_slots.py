"""The ring of slots: a slot has the note that was written for its number, or counts as empty."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.disk import Disk
from spool.disk import stat as file_stat
from spool.errors import SpaceStopped
from spool.model import layout
from spool.store import feed
from spool.store.feed import NOTE_BYTES, Feed
from tests.full import no_room

SLOTS = 4
notes = st.binary(max_size=NOTE_BYTES)
numbers = st.integers(1, 3 * SLOTS)


@pytest.fixture(autouse=True)
def _four_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "SLOTS", SLOTS)


@pytest.fixture(params=["mapped", "by calls"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The directory of a space, on a file system that overwrites in place, and on one that does not."""
    monkeypatch.setattr(file_stat, "overwrites_in_place", lambda path: request.param == "mapped")
    (tmp_path / layout.RUN).mkdir()
    return str(tmp_path)


def started(root: str) -> Feed:
    one = Feed(Disk(root), make=True)
    one.start()
    return one


def test_a_note_is_there_for_all_until_a_later_number_has_its_slot(root: str) -> None:
    with closing(started(root)) as ours, closing(Feed(Disk(root), make=False)) as theirs:

        @given(st.lists(st.tuples(numbers, notes)))
        def holds(written: list[tuple[int, bytes]]) -> None:
            ours.start()
            theirs._share()
            there: dict[int, tuple[int, bytes]] = {}
            for place, (number, note) in enumerate(written):
                (ours, theirs)[place % 2].write(number, note)
                there[number % SLOTS] = number, note
            for number in range(3 * SLOTS + 1):
                assert ours.read(number) == theirs.read(number) == dict(there.values()).get(number)
            theirs._life = b"of later"  # (as after a power cut that kept slots of an earlier life)
            assert {theirs.read(number) for number, _ in there.values()} <= {None}

        holds()


def test_a_slot_that_is_half_written_is_none(root: str) -> None:
    with closing(started(root)) as one:
        one.write(1 + SLOTS, b"new" * 50)
        new = slot(root, 1)
        for size in range(len(new)):
            one.write(1, b"an old note" * 20)
            old = slot(root, 1)
            half = new[:size] + old[size:]
            overwrite(root, 1, half)
            assert one.read(1 + SLOTS) in (None, b"new" * 50)
            assert one.read(1) == (b"an old note" * 20 if half == old else None)


def test_a_slot_of_any_bytes_is_the_written_note_or_none(root: str) -> None:
    with closing(started(root)) as one:

        @given(notes, st.integers(0, feed.SLOT_BYTES - 1), st.binary(min_size=1, max_size=feed.SLOT_BYTES))
        def holds(note: bytes, place: int, planted: bytes) -> None:
            one.write(2, note)
            there = slot(root, 2)
            overwrite(root, 2, (there[:place] + planted + there[place + len(planted) :])[: feed.SLOT_BYTES])
            assert one.read(2) in (note, None)

        holds()


def test_nothing_of_an_earlier_life_is_there(root: str) -> None:
    """A number may be given out again after a power cut, and its note may have survived."""
    with closing(started(root)) as one:
        one.write(1, b"before")
    with closing(started(root)) as again:
        assert again.read(1) is None
        again.write(1, b"behind")
        assert again.read(1) == b"behind"


@pytest.mark.parametrize("size", [0, 1, feed.SLOT_BYTES, 100_000])
def test_a_file_of_another_length_is_made_again(root: str, size: int) -> None:
    Path(root, layout.FEED).write_bytes(b"\xff" * size)
    with closing(started(root)) as one:
        one.write(SLOTS - 1, b"last")
        assert one.read(SLOTS - 1) == b"last"
    assert Path(root, layout.FEED).stat().st_size == (SLOTS + 1) * feed.SLOT_BYTES


def test_on_a_full_disk_there_are_no_slots_for_all(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Disk, "write_at", no_room)
        ours = started(root)
    with closing(ours), closing(Feed(Disk(root), make=False)) as theirs:
        for one in (ours, theirs):
            one.write(1, b"note")
            assert one.read(1) is None
    with closing(started(root)) as later:
        later.write(1, b"note")
        assert later.read(1) == b"note"


def test_other_errors_of_the_disk_are_raised(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(disk: Disk, handle: int, offset: int, data: bytes) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Disk, "write_at", fails)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        started(root)


def test_a_note_that_cannot_be_written_is_none_but_never_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of a number's last writer, which died before its file had its name, is not the truth."""
    monkeypatch.setattr(file_stat, "overwrites_in_place", lambda path: False)
    (tmp_path / layout.RUN).mkdir()
    with closing(started(str(tmp_path))) as one:
        one.write(1, b"of the dead")
        monkeypatch.setattr(Disk, "write_at", no_room)
        one.write(2, b"note")
        assert one.read(2) is None
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            one.write(1, b"note")


def test_a_ring_that_is_gone_is_not_made_beside_others(root: str) -> None:
    with closing(started(root)):
        Path(root, layout.FEED).unlink()
        with pytest.raises(SpaceStopped, match="run/feed was deleted"):
            Feed(Disk(root), make=False)


def test_a_closed_ring_says_so(root: str) -> None:
    with closing(started(root)) as one:
        pass
    for use in (lambda: one.read(1), lambda: one.write(1, b"note")):
        with pytest.raises(OSError, match="the space is closed"):
            use()


class closing:
    """Close the ring's disk at the end."""

    def __init__(self, one: Feed) -> None:
        self._one = one

    def __enter__(self) -> Feed:
        return self._one

    def __exit__(self, *_: object) -> None:
        self._one.disk.close_all()


def slot(root: str, number: int) -> bytes:
    start = (1 + number % SLOTS) * feed.SLOT_BYTES
    return Path(root, layout.FEED).read_bytes()[start : start + feed.SLOT_BYTES]


def overwrite(root: str, number: int, data: bytes) -> None:
    with Path(root, layout.FEED).open("r+b") as file:
        file.seek((1 + number % SLOTS) * feed.SLOT_BYTES)
        file.write(data)

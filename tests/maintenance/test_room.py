"""A purge gives the room of its messages back before it returns, beside other processes, too; so does a repair."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import spool
from spool.disk import recycler
from spool.maintenance import disk_space
from tests import door
from tests.at_once import AT_ONCE
from tests.beside.company import two_that_commit

_BODY = bytes(1_000_000)
_LITTLE = recycler.QUIET_BYTES + 500_000


def _bytes_of(path: Path) -> int:
    """The bytes of all files of messages, and of consumed files. Other processes may move a file meanwhile."""
    size = 0
    for file in (file for stage in ("committed", "free") for file in (path / stage).iterdir()):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


@pytest.fixture
def space(tmp_path: Path) -> spool.Space:
    with spool.create(tmp_path / "space", defaults=AT_ONCE) as made:
        made.create_queue("errors")
    return spool.open(tmp_path / "space")


@pytest.mark.parametrize("keys", [False, True], ids=["plain", "with keys that are remembered"])
def test_a_purged_message_takes_no_room_when_the_purge_returns(space: spool.Space, keys: bool) -> None:
    with space:
        for number in range(20):
            space.put("errors", _BODY, deduplication_key=f"key {number}" if keys else None)
        assert _bytes_of(Path(space.path)) > 20_000_000
        assert space.purge("errors") == 20
        assert _bytes_of(Path(space.path)) < _LITTLE
        if keys:
            assert space.put("errors", "again", deduplication_key="key 7").duplicate  # type: ignore[attr-defined]
        assert space.check() == []


def _purge_nine_of_ten(space: spool.Space, commits: int, body: bytes) -> list[str]:
    """Purge nine messages of each commit; return the ids of the others."""
    ids = [id for _ in range(commits) for id in space.put_many("errors", [body] * 10)]
    assert sum(space.purge("errors", message_id=id) for id in ids if id not in ids[::10]) == 9 * commits
    assert [message.id for message in space.browse("errors")] == ids[::10]
    assert space.check() == []
    return ids[::10]


def test_a_purge_of_some_messages_of_large_commits_frees_their_room(space: spool.Space) -> None:
    with space:
        _purge_nine_of_ten(space, 4, _BODY)
        assert _bytes_of(Path(space.path)) < 4 * len(_BODY) + 16_000_000 + _LITTLE


def test_on_a_disk_that_is_short_of_room_a_purge_frees_all_but_a_tenth(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "SHORT_BYTES", 1 << 62)
    with space:
        kept = _purge_nine_of_ten(space, 8, bytes(100_000))
        assert _bytes_of(Path(space.path)) < 1.1 * len(kept) * 100_000 + 2 * recycler.STOCKED_BYTES
    with spool.open(space.path) as again:
        assert [again.get("errors").id for _ in kept] == kept


def test_a_dry_run_frees_nothing(space: spool.Space) -> None:
    with space:
        for _ in range(20):
            space.get(space.put("errors", _BODY) and "errors")
        space.put("errors", "one")
        before = _bytes_of(Path(space.path))
        assert space.purge("errors", dry_run=True) == 1
        assert _bytes_of(Path(space.path)) == before


def test_a_purge_frees_the_room_beside_two_processes_that_commit(tmp_path: Path) -> None:
    path = tmp_path / "space"
    with spool.create(path, defaults=AT_ONCE) as space:
        space.create_queue("errors")
        for _ in range(20):
            space.put("errors", _BODY)
        with two_that_commit(tmp_path):
            assert space.purge("errors") == 20
            assert _bytes_of(path) < _LITTLE + 10_000_000, "the two have messages and consumed files, too"


def test_a_repair_frees_the_room_of_consumed_messages(space: spool.Space) -> None:
    with space:
        for _ in range(20):
            space.put("errors", _BODY)
            space.get("errors")
        space.check(repair=True)
        assert _bytes_of(Path(space.path)) < _LITTLE


def test_a_program_that_takes_a_large_message_and_ends_frees_its_room(space: spool.Space) -> None:
    with space:
        space.put("errors", bytes(20_000_000))
    with spool.open(space.path) as again:
        again.get("errors")
    assert _bytes_of(Path(space.path)) < _LITTLE


_PURGES = """
import os, signal, spool, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
def say(done):
    if done < 10_000:
        os.kill(os.getpid(), signal.SIGTERM)
with spool.open(sys.argv[1]) as space:
    space.purge("errors", progress=say)
"""


def test_a_signal_ends_a_purge_between_two_commits_and_the_next_purge_ends_it(space: spool.Space) -> None:
    with space:
        with space.transaction() as transaction:
            for number in range(10_000):  # no two neighbours have the same control fields
                transaction.put("errors", number, priority=50 + number % 2)
        done = subprocess.run([sys.executable, "-c", _PURGES, space.path], env=dict(os.environ), check=False)
        assert done.returncode == 7
        left = space.stats("errors").ready
        assert 0 < left < 10_000
        assert space.purge("errors") == left
        assert space.check() == []


def test_a_commit_on_a_full_disk_tries_again_while_another_process_commits(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the other process may begin and end between two looks: it gives files afterwards."""
    monkeypatch.setattr(disk_space, "_OTHERS_SECONDS", 60.0)
    with space, spool.open(space.path) as other:
        space.put("errors", "earlier")
        attempts = disk_space.rooms(door.store(space))
        assert next(attempts)
        assert next(attempts)
        other.put("errors", "meanwhile")
        assert next(attempts, None), "it gave up"
        assert len(list(attempts)) < 10, "nobody commits any more"

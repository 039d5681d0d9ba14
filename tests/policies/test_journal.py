"""The journal of attempts: the death of a process counts one attempt for each message in work, and none for others."""

import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import spool
from spool.disk.disk import Disk
from spool.model import layout
from spool.model.xid import FORMAT_ROUND, Xid, new_local_xid
from spool.policies import attempt_journal
from spool.policies.attempt_journal import clean_up_after_dead
from spool.transactions.hold import Hold
from spool.transactions.two_phase import rollback_prepared
from tests import door
from tests.at_once import AT_ONCE
from tests.children import die, let_die
from tests.corruption.readers import NOTE, note_bytes
from tests.full import no_room
from tests.meanwhile import XID, prepare


@pytest.fixture
def path(memory: Path) -> Path:
    with spool.create(memory / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders", error_queue=None, retries=None)
        space.put_many("orders", ["1", "2", "3"])
    return memory / "space"


def journals(path: Path) -> list[Path]:
    return list((path / layout.ACTIVE).glob(f"*{layout.JOURNAL_SUFFIX}"))


def attempts(path: Path) -> dict[object, int]:
    with spool.open(path) as space:
        return {message.body: message.attempts for message in space.browse("orders")}


def test_all_transactions_of_a_process_share_a_file_which_the_close_removes(path: Path) -> None:
    found = []
    with spool.open(path) as space:
        space.put_many("orders", range(600))
        for end in (spool.Transaction.commit, spool.Transaction.rollback, spool.Transaction.commit):
            transactions = [space.transaction() for _ in range(100)]
            for transaction in transactions:
                transaction.get("orders")
                transaction.get("orders")
            assert len(door.in_work(space)) == 200
            for transaction in transactions:
                end(transaction)
            assert door.in_work(space) == []
            found += [(one.name, one.stat().st_size) for one in journals(path)]
    assert len(found) == 3
    assert len(set(found)) == 1, "ended attempts leave their slots to later ones"
    assert journals(path) == []


@pytest.mark.parametrize("large", [1 << 20, 0])
def test_threads_that_begin_and_end_attempts_at_once_do_not_share_a_slot(
    path: Path, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``large``: the size from which an unused file is removed."""
    monkeypatch.setattr(attempt_journal, "_LARGE_BYTES", large)

    def program(space: spool.Space) -> None:
        space.put_many("orders", range(600))
        kept: list[Any] = []

        def work() -> None:
            for end in (spool.Transaction.commit, spool.Transaction.abandon) * 20:
                transaction = space.transaction()
                transaction.get_many("orders", 3)
                end(transaction)
            kept.extend((transaction := space.transaction(), transaction.get_many("orders", 3)))

        with ThreadPoolExecutor(8) as threads:
            for _ in range(8):
                threads.submit(work)
        assert door.in_work(space) == sorted(message.position for messages in kept[1::2] for message in messages)

    let_die(lambda: program(spool.open(path)))
    assert sorted(attempts(path).values()) == [0] * (603 - 8 * 60 - 24) + [1] * 24


def test_a_killed_count_is_finished_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_die(lambda: spool.open(path).transaction().get_many("orders", 2))
    with monkeypatch.context() as patch:
        patch.setattr(attempt_journal, "unlink_unless_gone", die)
        let_die(lambda: spool.open(path))
    assert len(journals(path)) == 1
    assert attempts(path) == {"1": 1, "2": 1, "3": 0}


@pytest.mark.parametrize("is_decided_first", [False, True])
@pytest.mark.parametrize("xid", [XID, Xid(FORMAT_ROUND, b"round", b"1")], ids=["foreign", "of our coordinator"])
def test_a_vote_takes_its_messages_out_of_the_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, xid: Xid, is_decided_first: bool
) -> None:
    """The process dies right after its vote. Only the rollback of a foreign coordinator counts an attempt."""
    with spool.open(path) as space:
        with monkeypatch.context() as patch:
            patch.setattr(Hold, "end", die)
            let_die(lambda: prepare(spool.open(path), xid, take=True))
        for act in (rollback_prepared, clean_up_after_dead)[:: 1 if is_decided_first else -1]:
            act(door.store(space), *([xid] if act is rollback_prepared else []), door.deadline(space))
        assert [message.attempts for message in space.browse("orders")] == [int(xid == XID), 0, 0]
        assert journals(path) == []


def test_an_unknown_outcome_ends_the_attempt(path: Path) -> None:
    def program(space: spool.Space) -> None:
        with door.unknown_attempts(happened=False), pytest.raises(spool.CommitUnknown), space.transaction() as begun:
            begun.get("orders")

    let_die(lambda: program(spool.open(path)))
    assert attempts(path) == {"1": 0, "2": 0, "3": 0}


def test_a_failed_write_of_a_slot_stops_no_get_and_its_place_is_used_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with spool.open(path) as space:
        first, second = space.transaction(), space.transaction()
        first.get("orders")
        with monkeypatch.context() as full:
            full.setattr(Disk, "write_at", no_room)
            second.get("orders")
            first.abandon()
        texts = "claims cannot be recorded: ", "the end of an attempt could not be recorded: "
        assert all(map(caplog.text.__contains__, texts))
        third = space.transaction()
        third.get("orders")
        second.abandon()
        assert door.in_work(space) == [(1, 0)]


# -- journals of the version before -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "counted"),
    [
        (note_bytes([[1, 0, 2], [1, 0, 1, zlib.crc32(b"0 orders")]]), [1, 1, 0]),
        (note_bytes([[1, 0, 2], [1, 0, 1, zlib.crc32(b"7 orders")]]), [0, 1, 0]),
        (b"\xc4\3\0\1\0" + note_bytes([[1, 0, 3]]), [0, 1, 0]),
        (note_bytes([[1, 0, 1], [1, 1, 1]])[:-1], [1, 0, 0]),
    ],
    ids=["not counted yet", "counted", "marks", "torn"],
)
def test_a_journal_of_the_version_before_is_counted_and_removed(path: Path, records: bytes, counted: list[int]) -> None:
    (path / layout.attempt_journal(new_local_xid())).write_bytes(note_bytes(NOTE[:1]) + records)
    assert list(attempts(path).values()) == counted
    assert journals(path) == []

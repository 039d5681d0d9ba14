"""Files of ended journals of claims are used again: the kill of a process counts the right attempts all the same."""

import os
import signal
from pathlib import Path

import pytest

import spool
from spool.disk.disk import Disk
from spool.model import layout
from spool.policies import claim_journal
from tests import door
from tests.at_once import AT_ONCE
from tests.children import exit_code_of


@pytest.fixture
def path(memory: Path) -> Path:
    with spool.create(memory / "space", defaults=AT_ONCE) as space:
        space.create_queue("orders", error_queue=None)
        space.put_many("orders", ["1", "2", "3"])
    return memory / "space"


def journals(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path / layout.ACTIVE) if name.endswith(layout.JOURNAL_SUFFIX))


def test_x06_a_file_is_used_again_and_removed_at_the_close(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[str] = []
    create = Disk.create

    def counted(disk: Disk, name: str) -> int:
        created.append(name)
        return create(disk, name)

    monkeypatch.setattr(Disk, "create", counted)
    with spool.open(path) as space:
        for _ in range(3):
            with space.transaction() as transaction:
                transaction.get("orders")
            [spare] = journals(path)
            assert (path / layout.ACTIVE / spare).stat().st_size == 0, "without claims"
        assert sum(name.endswith(layout.JOURNAL_SUFFIX) for name in created) == 1
    assert journals(path) == []


def test_x06_the_death_of_a_process_counts_the_attempts_of_its_last_transaction_only(path: Path) -> None:
    def program() -> None:
        with spool.open(path) as space:
            with space.transaction() as first:
                first.get("orders")
                first.rollback()
            second = space.transaction()
            second.get("orders", message_id=space.browse("orders").__next__().id)
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code_of(program) == -signal.SIGKILL
    with spool.open(path) as space:
        assert [message.attempts for message in space.browse("orders")] == [2, 0, 0]


def test_x06_a_process_that_dies_between_two_transactions_counts_nothing(path: Path) -> None:
    def program() -> None:
        with spool.open(path) as space:
            with space.transaction() as only:
                only.get("orders")
            os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code_of(program) == -signal.SIGKILL
    with spool.open(path) as space:
        assert [(message.body, message.attempts) for message in space.browse("orders")] == [("2", 0), ("3", 0)]
        assert journals(path) == []


def test_x06_a_file_that_another_process_removed_is_created_again(path: Path) -> None:
    with spool.open(path) as space:
        for _ in range(2):
            with space.transaction() as transaction:
                transaction.get("orders")
            [spare] = journals(path)
            (path / layout.ACTIVE / spare).unlink()
        with space.transaction() as transaction:
            transaction.get("orders")


def test_x06_a_reader_does_not_take_the_claims_of_another_transaction_for_those_of_a_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file gets its new name between the opening and the reading."""
    with spool.open(path) as space:
        with space.transaction() as first:
            first.get("orders")
        with space.transaction() as second:
            read_at, disk = Disk.read_at, door.disk(space)
            used_again: list[None] = []

            def meanwhile(self: Disk, handle: int, offset: int, length: int) -> bytes:
                if not used_again:
                    used_again.append(None)
                    second.get("orders")
                    length = self.handle_identity(handle).size
                return read_at(self, handle, offset, length)

            with monkeypatch.context() as patched:
                patched.setattr(Disk, "read_at", meanwhile)
                found = claim_journal.read_journal(disk, first.xid)
            assert (used_again, found.ranges) == ([None], [])


def test_x06_many_spares_are_not_kept(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [str(number) for number in range(40)])
        transactions = [space.transaction() for _ in range(30)]
        for transaction in transactions:
            transaction.get("orders")
        for transaction in transactions:
            transaction.commit()
        assert len(journals(path)) == 16
    assert journals(path) == []

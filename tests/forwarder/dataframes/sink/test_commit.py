"""A write of rows is one commit, or none, and one with a name is committed once."""

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import spool
from forwarder.dataframes import sink
from forwarder.dataframes.sink import BatchWriter
from spool.coordination.locks import coordinator_byte
from spool.policies.applications import BatchOf
from spool.remote import remote_adoption
from spool.remote.remote_branch import RemoteBranch
from spool.transactions.two_phase import resolve_orphans
from tests import door
from tests.forwarder.dataframes.sink.writes import Attempts, job, texts
from tests.shown import bodies, left_over

# -- all or none -------------------------------------------------------------------------------------------------------


def test_x05_all_rows_of_all_tasks_are_one_commit_in_the_order_of_the_partitions(
    space: spool.Space, attempts: Attempts
) -> None:
    writer = BatchWriter(job(space))
    second = attempts.write(writer, 1, texts("c"), texts("d"))
    first = attempts.write(writer, 0, texts("a", "b"))
    empty = attempts.write(writer, 2)
    assert empty.vote is None
    assert bodies(space) == [], "nothing is visible before the commit"
    writer.commit([first, second, empty])
    found = list(space.browse("orders"))
    assert [message.body for message in found] == ["a", "b", "c", "d"]
    assert len({message.position.number for message in found}) == 1
    assert left_over(space.path) == []


def test_x05_of_several_attempts_of_a_task_the_chosen_one_counts(space: spool.Space, attempts: Attempts) -> None:
    """A speculative duplicate has prepared, too; another one comes when all is over."""
    writer = BatchWriter(job(space))
    attempts.write(writer, 0, texts("a"))
    chosen = attempts.write(writer, 0, texts("a"))
    writer.commit([chosen])
    assert bodies(space) == ["a"]
    assert left_over(space.path) == []
    with pytest.raises(spool.TransactionRolledBack):
        attempts.write(writer, 0, texts("a"))
    assert left_over(space.path) == []


def test_x05_an_attempt_that_fails_in_the_middle_leaves_nothing(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, "body string, priority int"))
    rows = pa.schema([("body", pa.string()), ("priority", pa.int32())])
    with pytest.raises(spool.InvalidArgument, match="priority") as failed:
        attempts.write(
            writer,
            3,
            pa.record_batch([["a", "b"], [1, 2]], schema=rows),
            pa.record_batch([["c", "d"], [3, 500]], schema=rows),
        )
    assert failed.value.__notes__ == ["(row 3 of partition 3, counted from 0)"]
    assert left_over(space.path) == []
    writer.abort([None])
    assert bodies(space) == []


def test_x05_a_write_that_is_aborted_leaves_nothing(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space))
    done = attempts.write(writer, 0, texts("a"))
    writer.abort([done, None])
    assert bodies(space) == []
    assert left_over(space.path) == []
    with pytest.raises(spool.TransactionRolledBack, match="write the DataFrame again"):
        writer.commit([done])


def test_x05_an_abort_behind_a_commit_that_was_made_undoes_nothing(space: spool.Space, attempts: Attempts) -> None:
    """Spark aborts when it lost the process that committed."""
    writer = BatchWriter(job(space))
    done = attempts.write(writer, 0, texts("a"))
    writer.commit([done])
    writer.abort([done])
    assert bodies(space) == ["a"]


def test_x05_a_write_whose_driver_dies_is_rolled_back_by_the_next_consumer(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfd_open = os.pidfd_open
    with subprocess.Popen(["sleep", "1000"]) as process:
        monkeypatch.setattr(os, "pidfd_open", lambda _: pidfd_open(process.pid))
        writer = BatchWriter(job(space))
        attempts.write(writer, 0, texts("a"))
        process.send_signal(signal.SIGKILL)
    store = door.store(space)
    byte = coordinator_byte(writer.coordinator.id)
    store.shared.xids.lock(byte, store.deadline(), "the coordinator")
    store.shared.xids.unlock(byte)
    assert left_over(space.path) != []
    with pytest.raises(spool.Empty):
        space.get("orders")
    assert left_over(space.path) == []


def test_x05_a_commit_whose_coordinator_was_killed_writes_nothing(space: spool.Space, attempts: Attempts) -> None:
    """Any process may roll back the branches of a dead coordinator, so the commit finds all of them, or raises."""
    writer = BatchWriter(job(space))
    done = [attempts.write(writer, 0, texts("a")), attempts.write(writer, 1, texts("b"))]
    writer.coordinator.end()
    with door.store(space).guard:
        assert len(resolve_orphans(door.store(space), door.deadline(space))) == 2
    with pytest.raises(spool.TransactionRolledBack, match="write the DataFrame again"):
        writer.commit(done)
    assert bodies(space) == []


def test_a_write_that_does_not_fit_writes_nothing(space: spool.Space, attempts: Attempts) -> None:
    space.change_queue("orders", max_messages=3)
    writer = BatchWriter(job(space))
    done = [attempts.write(writer, 0, texts("a", "b")), attempts.write(writer, 1, texts("c", "d"))]
    with pytest.raises(spool.Full, match="nothing was put"):
        writer.commit(done)
    writer.abort(done)
    assert bodies(space) == []
    assert left_over(space.path) == []


def test_messages_of_attempts_that_were_not_chosen_take_no_room(space: spool.Space, attempts: Attempts) -> None:
    space.change_queue("orders", max_messages=3)
    writer = BatchWriter(job(space))
    done = [attempts.write(writer, 0, texts("a", "b", "c"))]
    attempts.write(writer, 0, texts("a", "b", "c"))  # a duplicate attempt, which is not chosen
    writer.commit(done)
    assert bodies(space) == ["a", "b", "c"]


def test_a_disk_that_fails_while_branches_are_read_is_told_as_the_library_tells_it(
    space: spool.Space, attempts: Attempts
) -> None:
    writer = BatchWriter(job(space))
    done = [attempts.write(writer, 0, texts("a"))]
    with (
        mock.patch.object(remote_adoption, "voted_contents", side_effect=OSError(errno.EIO, "Input/output error")),
        pytest.raises(spool.DiskFailure, match="committing branches"),
    ):
        writer.commit(done)
    writer.abort(done)
    assert left_over(space.path) == []


def test_a_large_partition_goes_to_the_disk_while_it_is_written(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0
    put = RemoteBranch.put

    def watched(self: RemoteBranch, *args: Any, **options: Any) -> None:
        nonlocal largest
        put(self, *args, **options)
        largest = max(largest, self.writes.size)

    monkeypatch.setattr(RemoteBranch, "put", watched)
    writer = BatchWriter(job(space))
    megabyte = "x" * (1 << 20)
    done = attempts.write(writer, 0, *(texts(megabyte, f"{place}") for place in range(40)))
    writer.commit([done])
    assert largest < 17 << 20, "more than a section stayed in memory"
    assert bodies(space)[1::2] == [str(place) for place in range(40)]


def test_a_write_of_more_rows_than_a_commit_has_is_refused(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MAX_ORDINAL", 2)
    writer = BatchWriter(job(space))
    with pytest.raises(spool.InvalidArgument, match="in parts"):
        attempts.write(writer, 0, texts("a", "b"), texts("c", "d"))
    done = [attempts.write(writer, 0, texts("a", "b")), attempts.write(writer, 1, texts("c", "d"))]
    with pytest.raises(spool.InvalidArgument, match="at most 3 rows"):
        writer.commit(done)
    writer.abort(done)
    assert bodies(space) == []


# -- a write with a name -----------------------------------------------------------------------------------------------


def test_x05_a_write_with_a_name_is_committed_once(space: spool.Space, attempts: Attempts) -> None:
    for expected in (["a"], ["a"]):
        writer = BatchWriter(job(space, applicationId="import", batchId=1))
        writer.commit([attempts.write(writer, 0, texts("a"))])
        assert bodies(space) == expected
        assert left_over(space.path) == []
    for batch, expected in ((0, ["a"]), (2, ["a", "b"]), (1, ["a", "b"])):
        writer = BatchWriter(job(space, applicationId="import", batchId=batch))
        writer.commit([attempts.write(writer, 0, texts("b"))])
        assert bodies(space) == expected


@pytest.mark.parametrize(("options", "level"), [({}, "WARNING"), ({"batchId": 0}, "INFO")])
def test_a_write_that_writes_nothing_warns_if_its_application_does_not_number_it(
    space: spool.Space, attempts: Attempts, options: dict[str, int], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spool")
    for _ in range(2):
        writer = BatchWriter(job(space, applicationId="import", **options))
        writer.commit([attempts.write(writer, 0, texts("a"))])
    assert bodies(space) == ["a"]
    (told,) = [record for record in caplog.records if "nothing is written" in record.getMessage()]
    assert told.levelname == level
    assert ("give each write of the application a batchId" in told.getMessage()) == (level == "WARNING")


def test_x05_of_two_drivers_that_write_the_same_batch_at_once_one_does(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one commits between the first one's look and its commit."""
    first, second = (BatchWriter(job(space, applicationId="import")) for _ in range(2))
    done = attempts.write(first, 0, texts("a"))
    also = attempts.write(second, 0, texts("a"))
    commit = remote_adoption.CoordinatedTransaction.commit

    def meanwhile(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        second.commit([also])
        commit(*args, **options)

    monkeypatch.setattr(remote_adoption.CoordinatedTransaction, "commit", meanwhile)
    first.commit([done])
    assert bodies(space) == ["a"]
    assert left_over(space.path) == []


def test_the_name_of_a_write_is_remembered_by_a_space_that_was_opened_again(tmp_path: Path, attempts: Attempts) -> None:
    with spool.create(tmp_path / "space") as space:
        space.create_queue("orders")
        writer = BatchWriter(job(space, applicationId="import"))
        writer.commit([attempts.write(writer, 0, texts("a"))])
        assert space.get("orders").body == "a"
    for name in (tmp_path / "space" / "run").iterdir():
        name.unlink()
    with spool.open(tmp_path / "space") as space:
        writer = BatchWriter(job(space, applicationId="import"))
        writer.commit([attempts.write(writer, 0, texts("a"))])
        assert bodies(space) == []


def test_the_name_of_a_write_does_not_keep_the_files_of_its_messages(space: spool.Space, attempts: Attempts) -> None:
    for number in range(2):
        writer = BatchWriter(job(space, applicationId="import", batchId=number))
        writer.commit([attempts.write(writer, 0, texts("a", "b"))])
        assert [message.body for message in space.get_many("orders", 2)] == ["a", "b"]
    space.put("orders", "c")
    with door.store(space).guard:
        door.reclaim(space)
    assert [file for file in (Path(space.path) / "committed").iterdir() if "-" in file.name] == []
    writer = BatchWriter(job(space, applicationId="import", batchId=1))
    writer.commit([attempts.write(writer, 0, texts("a", "b"))])
    assert bodies(space) == ["c"]


def test_the_record_of_a_later_batch_stays_the_newest(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later batch is committed between the commit of one and its second record."""
    first, second = (BatchWriter(job(space, applicationId="import", batchId=number)) for number in (1, 2))
    done, also = attempts.write(first, 0, texts("a")), attempts.write(second, 0, texts("b"))
    record_apart = BatchOf.record_apart

    def meanwhile(*args: Any) -> None:
        monkeypatch.undo()
        second.commit([also])
        record_apart(*args)

    monkeypatch.setattr(BatchOf, "record_apart", meanwhile)
    first.commit([done])
    assert bodies(space) == ["a", "b"]
    writer = BatchWriter(job(space, applicationId="import", batchId=2))
    writer.commit([attempts.write(writer, 0, texts("b"))])
    assert bodies(space) == ["a", "b"]

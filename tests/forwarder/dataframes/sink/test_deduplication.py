"""A deduplication key is put once, whichever task, write or program puts it."""

import threading
from typing import Any

import pyarrow as pa
import pytest

import spool
from forwarder.dataframes.sink import BatchWriter
from spool.coordination.locks import LockFile
from spool.remote import remote_adoption
from tests import door
from tests.forwarder.dataframes.sink.writes import Attempts, job
from tests.shown import bodies, left_over

KEYED = "body string, deduplication_key string"


def keyed(*rows: tuple[str, str | None]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(2)]
    return pa.record_batch(columns, names=["body", "deduplication_key"])


def test_x08_a_key_is_put_once_whichever_task_has_it(space: spool.Space, attempts: Attempts) -> None:
    space.change_queue("orders", max_messages=6)
    writer = BatchWriter(job(space, KEYED))
    done = [
        attempts.write(writer, 0, keyed(("a", "1"), ("b", None), ("c", "1")), keyed(("d", "1"), ("e", "2"))),
        attempts.write(writer, 1, keyed(("f", "3"), ("g", "2"), ("h", None))),
        attempts.write(writer, 2, keyed(("i", "4"))),
    ]
    attempts.write(writer, 2, keyed(("i", "4")))  # a duplicate attempt, which is not chosen
    writer.commit(done)
    assert bodies(space) == ["a", "b", "e", "f", "h", "i"], "exactly as many as fit"
    assert left_over(space.path) == []
    known = {message.body: message.id for message in space.browse("orders")}
    for key, body in (("1", "a"), ("2", "e"), ("3", "f"), ("4", "i")):
        assert space.put("orders", "again", deduplication_key=key) == known[body]


def test_x08_of_neighbours_with_one_key_the_first_counts(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, KEYED))
    rows = keyed(("a", "1"), ("b", "1"), ("c", "1"), ("d", None), ("e", None), ("f", "2"))
    writer.commit([attempts.write(writer, 0, rows, keyed(("g", "2"), ("h", "3")))])
    assert bodies(space) == ["a", "d", "e", "f", "h"]


def test_x08_a_key_that_was_put_before_is_left_out_and_the_order_stays(space: spool.Space, attempts: Attempts) -> None:
    space.put("orders", "first", deduplication_key="1")
    space.put("invoices", "elsewhere", deduplication_key="2")
    for expected in (["first", "b", "c", "d", "e"], ["first", "b", "c", "d", "e", "b", "e"]):  # (without keys: again)
        writer = BatchWriter(job(space, KEYED))
        done = [
            attempts.write(writer, 0, keyed(("b", None), ("c", "2"))),
            attempts.write(writer, 1, keyed(("a", "1"), ("d", "3"))),
            attempts.write(writer, 2, keyed(("e", None))),
        ]
        writer.commit(done)
        assert bodies(space) == expected
        assert left_over(space.path) == []


def test_x08_a_write_of_nothing_new_writes_nothing(space: spool.Space, attempts: Attempts) -> None:
    space.put("orders", "first", deduplication_key="1")
    for number in range(2):
        writer = BatchWriter(job(space, KEYED, applicationId="import", batchId=number))
        writer.commit([attempts.write(writer, 0, keyed(("a", "1")))])
        assert bodies(space) == ["first"]
        assert left_over(space.path) == []


def test_x08_many_messages_are_copied_without_those_put_before(space: spool.Space, attempts: Attempts) -> None:
    """The messages fill more than one section of the file, and more than one piece of the copy."""
    space.put("orders", "first", deduplication_key="last")
    large = "x" * (9 << 20)
    writer = BatchWriter(job(space, KEYED))
    rows = [(f"{place}", None) for place in range(3000)]
    done = attempts.write(
        writer, 0, keyed((large, "a"), *rows), keyed((large, "b"), ("left out", "last"), (large, "c"), ("end", "d"))
    )
    writer.commit([done])
    assert bodies(space) == ["first", large, *(f"{place}" for place in range(3000)), large, large, "end"]
    last = list(space.browse("orders"))[-1]
    assert space.put("orders", "again", deduplication_key="d") == last.id


def test_x08_a_put_of_a_key_that_is_being_written_is_told_to_wait(space: spool.Space, attempts: Attempts) -> None:
    writer = BatchWriter(job(space, KEYED))
    done = attempts.write(writer, 0, keyed(("a", "1")))
    with pytest.raises(spool.MessageInUse, match="in doubt"):
        space.put("orders", "b", deduplication_key="1")
    writer.commit([done])
    space.put("orders", "b", deduplication_key="1")
    assert bodies(space) == ["a"]


def test_x08_a_transaction_that_put_the_key_before_it_was_prepared_is_waited_for(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has not seen the branch, and would put the key again after it."""
    waiting = threading.Event()
    pauses = LockFile.pauses

    def told(self: LockFile, *args: Any) -> Any:
        waiting.set()
        return pauses(self, *args)

    with spool.open(space.path) as other:
        transaction = other.transaction()
        transaction.put("orders", "first", deduplication_key="1")
        writer = BatchWriter(job(space, KEYED))
        done = attempts.write(writer, 0, keyed(("a", "1"), ("b", "2")))
        committing = threading.Thread(target=writer.commit, args=([done],))
        monkeypatch.setattr(LockFile, "pauses", told)
        committing.start()
        while committing.is_alive() and not waiting.wait(0.01):
            pass
        transaction.commit()
        committing.join()
    assert bodies(space) == ["first", "b"]


def test_x08_of_two_writes_of_a_key_at_once_one_does(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one to commit finds the other one in doubt; the second one finds the key in the commit."""
    first, second = (BatchWriter(job(space, KEYED)) for _ in range(2))
    done = attempts.write(first, 0, keyed(("a", "1"), ("b", "2")))
    also = attempts.write(second, 0, keyed(("c", "1"), ("d", "3")))
    with pytest.raises(spool.MessageInUse, match="'1' is in doubt"):
        first.commit([done])
    first.abort([done])
    second.commit([also])
    assert bodies(space) == ["c", "d"]


def test_x08_a_branch_that_came_into_doubt_during_the_commit_is_seen(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (BatchWriter(job(space, KEYED)) for _ in range(2))
    done = attempts.write(first, 0, keyed(("a", "1")))
    wait_for_puts = remote_adoption._wait_for_puts

    def meanwhile(*args: Any) -> None:
        monkeypatch.setattr(remote_adoption, "_wait_for_puts", wait_for_puts)
        attempts.write(second, 0, keyed(("b", "1")))
        wait_for_puts(*args)

    monkeypatch.setattr(remote_adoption, "_wait_for_puts", meanwhile)
    with pytest.raises(spool.MessageInUse, match="'1' is in doubt"):
        first.commit([done])
    first.abort([done])
    second.abort([None])
    assert bodies(space) == []


def test_x08_a_commit_that_comes_behind_the_look_is_looked_at(
    space: spool.Space, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BatchWriter(job(space, KEYED))
    done = attempts.write(writer, 0, keyed(("a", "1"), ("b", "2")))
    commit = remote_adoption.CoordinatedTransaction.commit

    def meanwhile(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        door.commit(space, ("fact", "deduplication:orders:1", "0" * 32, 4e9))
        commit(*args, **options)

    monkeypatch.setattr(remote_adoption.CoordinatedTransaction, "commit", meanwhile)
    writer.commit([done])
    assert bodies(space) == ["b"]

"""The end of a program: submitted messages, spaces that were left open, transactions that were dropped."""

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import spool
from tests import door
from tests.spaces import path_with

PATIENT_SECONDS = 60


@pytest.fixture(autouse=True, scope="module")
def _only_new_objects() -> None:
    """Let the collections of garbage of these tests pass over the objects of earlier tests, which may be many."""
    gc.collect()
    gc.freeze()


path = path_with("q")


@pytest.fixture
def space(path: Path) -> Iterator[spool.Space]:
    with spool.open(path) as found:
        yield found


def run(program: str, path: Path) -> str:
    """Run the program, and return its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=PATIENT_SECONDS, check=True
    )
    return done.stderr


def ready(path: Path) -> int:
    with spool.open(path) as space:
        return space.stats("q").ready


# -- the end of the program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "code", "told"), [("", 0, ""), ("; sys.exit('no')", 1, "no\n")])
def test_submitted_messages_are_committed_as_the_program_ends(path: Path, end: str, code: int, told: str) -> None:
    program = f"import spool, sys; s = spool.open(sys.argv[1]); [s.submit('q', i) for i in range(2000)]{end}"
    command = [sys.executable, "-c", program, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_SECONDS)
    assert (done.returncode, done.stderr) == (code, told)
    assert ready(path) == 2000


FORKED = """
import os, spool, sys
space = spool.open(sys.argv[1])
for i in range(2000):
    space.submit("q", i)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

POOLED = """
import multiprocessing, spool, sys

def work(path):
    space = spool.open(path)
    for i in range(1000):
        space.submit("q", i)

child = multiprocessing.get_context("fork").Process(target=work, args=sys.argv[1:])
child.start()
child.join()
"""


def test_a_forked_child_commits_nothing_of_its_parent_s(path: Path) -> None:
    assert run(FORKED, path) == ""
    assert ready(path) == 2000


def test_a_process_of_multiprocessing_commits_its_submissions(path: Path) -> None:
    run(POOLED, path)
    assert ready(path) == 1000


@pytest.fixture
def asleep(space: spool.Space) -> Iterator[spool.Space]:
    """Submitted messages wait until no more are accepted."""
    with door.asleep_until_drained(space):
        yield space


def test_a_warning_counts_the_messages_that_cannot_be_committed_at_the_end(
    asleep: spool.Space, caplog: pytest.LogCaptureFixture
) -> None:
    asleep.change_queue("q", max_messages=2)
    futures = [asleep.submit("q", n) for n in range(5)]
    door.end_program(asleep)
    assert [future.exception() is None for future in futures] == [True, True, False, False, False]
    assert [record.args[1] for record in caplog.records if isinstance(record.args, tuple)] == [3]


def test_nothing_is_accepted_after_the_end(asleep: spool.Space) -> None:
    future = asleep.submit("q", 1)
    door.end_program(asleep)
    assert future.done()
    with pytest.raises(spool.NotOpen, match="the program is ending"):
        asleep.submit("q", 2)


def test_an_end_is_silent_if_all_was_committed(asleep: spool.Space, caplog: pytest.LogCaptureFixture) -> None:
    asleep.submit("q", 1)
    door.end_program(asleep)
    door.end_program(asleep)
    asleep.close()
    door.end_program(asleep)
    assert not caplog.records


# -- spaces and transactions that a program drops without ending them -------------------------------------------------


@contextmanager
def warned_of() -> Iterator[list[str]]:
    """The ResourceWarnings of the body, and of objects that are collected at its end."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told: list[str] = []
        yield told
        gc.collect()
        told += [str(one.message) for one in caught if one.category is ResourceWarning]


def test_a_space_that_is_dropped_warns_and_its_transactions_go_on(path: Path) -> None:
    with warned_of() as told:
        tx = spool.open(path).transaction()
    assert told == [f"the space {path} was dropped, and not closed: use it in a with statement"]
    tx.put("q", "still there")
    tx.commit()
    store = door.store(tx)
    assert ready(path) == 1
    store.guard.close()


def test_a_space_that_was_closed_or_never_open_does_not_warn(path: Path, tmp_path: Path) -> None:
    with warned_of() as told:
        spool.open(path).close()
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "space.toml").write_text("format = 1\ncolour = 2\n")
        for bad in (tmp_path / "bad", tmp_path / "none"):
            with pytest.raises(spool.SpoolError):
                spool.open(bad)
    assert told == []


def test_the_futures_of_a_dropped_transaction_fail_and_it_is_rolled_back(space: spool.Space) -> None:
    space.put("q", "held")
    with warned_of() as told:
        tx = space.transaction()
        tx.get("q")
        tx.put("q", "put")
        future = tx.submit("q", "half done")
        del tx
    assert len(told) == 1
    assert "was dropped without a commit or a rollback" in told[0]
    door.housekeep(space, due=False)
    assert isinstance(future.exception(30), spool.TransactionRolledBack)  # (the housekeeper may have begun a round)
    assert [(message.body, message.attempts) for message in space.browse("q")] == [("held", 1)]
    assert space.get("q").body == "held"


def test_the_futures_of_a_dropped_transaction_fail_as_the_space_closes(path: Path) -> None:
    with spool.open(path) as space, warned_of():
        tx = space.transaction()
        future = tx.submit("q", "half done")
        del tx
    assert isinstance(future.exception(0), spool.TransactionRolledBack)
    assert ready(path) == 0


@pytest.mark.parametrize("how", ["dropped", "rolled back"])
def test_a_try_that_cannot_be_counted_while_the_space_closes_is_counted_by_the_next_opener(
    path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closing(*_: object) -> None:
        raise spool.NotOpen("the space is closed: open it again")

    with spool.open(path) as space:
        space.put("q", "held")
        tx = space.transaction()
        tx.get("q")
        monkeypatch.setattr("spool.policies.retries.count_failures", closing)
        if how == "rolled back":
            tx.rollback()
            del tx
        else:
            with warned_of():
                del tx
            door.housekeep(space, due=False)
        monkeypatch.undo()
    with spool.open(path) as space:
        assert [(message.body, message.attempts) for message in space.browse("q")] == [("held", 1)]
        assert space.get("q").body == "held"


@pytest.mark.parametrize("end", ["commit", "rollback", "commit_async", "close"])
def test_a_transaction_that_has_ended_does_not_warn(path: Path, end: str) -> None:
    with spool.open(path) as space:
        space.put("q", "held")
        with warned_of() as told:
            tx = space.transaction()
            tx.get("q")
            if end == "close":
                space.close()
            elif (done := getattr(tx, end)()) is not None and end == "commit_async":
                done.result(PATIENT_SECONDS)
            del tx
        assert told == []
        assert not door.store(space).dropped

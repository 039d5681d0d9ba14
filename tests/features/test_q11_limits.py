"""Q10, Q11: how much a queue and a space hold, exactly, in however many processes; and the command at the high mark."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from spool.intake import Intake
from spool.model.xid import Xid
from spool.transactions.coordinated import CoordinatedTransaction
from tests import door
from tests.features.conftest import Reopen, drained
from tests.spaces import fail_one

PATIENT_SECONDS = 60


def test_q11_a_queue_is_full_at_its_messages_or_bytes(space: spool.Space, again: Reopen) -> None:
    space.create_queue("few", max_messages=3)
    space.create_queue("small", max_bytes=10)
    space.put_many("few", [1, 2])
    with pytest.raises(spool.Full, match=r"at most 3 \(max_messages\)"):
        again().put_many("few", [3, 4])
    submitted = [space.submit("few", body) for body in (3, 4, 5)]
    with pytest.raises(spool.Full, match=r"holds 3 messages of at most 3 \(max_messages\), so 1 more"):
        submitted[2].result()
    space.get("few")
    space.put("few", 4)
    space.put("small", b"x" * 6)
    with pytest.raises(spool.Full, match=r"at most 10 \(max_bytes\)"):
        space.put("small", b"x" * 5)
    space.put("small", b"x" * 4)
    assert drained(space, "few") == [2, 3, 4]


def test_q11_the_space_is_full_at_its_own_limits(tmp_path: Path) -> None:
    with spool.create(tmp_path / "space", max_messages=3, max_bytes=100) as space:
        space.create_queue("a")
        space.create_queue("b")
        space.put_many("a", [1, 2])
        with pytest.raises(spool.Full, match="the space holds 2 messages"):
            space.put_many("b", [3, 4])
        with pytest.raises(spool.Full, match="the space"):
            space.put("b", b"x" * 200)
        space.put("b", 3)


def test_q11_larger_messages_in_place_of_taken_ones_are_counted(space: spool.Space) -> None:
    space.create_queue("q", max_bytes=10)
    space.put_many("q", [b"aa", b"bb"])
    first, second = space.transaction(), space.transaction()
    for tx in (first, second):
        tx.get("q")
        tx.put("q", b"x" * 6)
    first.commit()
    with pytest.raises(spool.Full):
        second.commit()


def test_q11_messages_that_a_transaction_takes_make_room_for_its_puts(space: spool.Space) -> None:
    space.create_queue("q", max_messages=2)
    space.put_many("q", [1, 2])
    with space.transaction() as tx:
        tx.get("q")
        tx.put("q", 3)
        with pytest.raises(spool.Full):
            tx.put("q", 4)
    assert drained(space, "q") == [2, 3]


def test_q11_two_open_transactions_that_fit_one_by_one_do_not_fit_together(space: spool.Space) -> None:
    space.create_queue("q", max_messages=1)
    one, two = space.transaction(), space.transaction()
    one.put("q", 1)
    two.put("q", 2)
    one.commit()
    with pytest.raises(spool.Full):
        two.commit()
    with pytest.raises(spool.TransactionRolledBack):
        two.commit()
    assert drained(space, "q") == [1]


def test_q11_a_put_is_refused_or_taken_as_things_stand_with_others(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q", max_messages=1)
    other = again()
    with space.transaction() as tx:
        other.put("q", 1)
        with pytest.raises(spool.Full):
            tx.put("q", 2)
        other.get("q")
        tx.put("q", 3)
    assert drained(space, "q") == [3]


@pytest.mark.parametrize("end", [CoordinatedTransaction.commit, CoordinatedTransaction.prepare])
def test_q11_a_limit_that_another_process_sets_holds_for_a_transaction_that_is_open(
    space: spool.Space, again: Reopen, end: Callable[[CoordinatedTransaction], object]
) -> None:
    space.create_queue("q")
    branch = door.branch(space, xid=Xid(7, b"one", b""), timeout=30.0)
    branch.put("q", 2)
    other = again()
    other.put("q", 1)
    other.change_queue("q", max_messages=1)
    with pytest.raises(spool.Full):
        end(branch)
    assert drained(space, "q") == [1]


def test_q11_a_vote_holds_its_place_until_it_is_decided(space: spool.Space, again: Reopen) -> None:
    space.create_queue("q", max_messages=1)
    branch = door.branch(space, xid=Xid(7, b"one", b""), timeout=30.0)
    branch.put("q", 1)
    assert branch.prepare()
    with pytest.raises(spool.Full):
        again().put("q", 2)
    late = door.branch(space, xid=Xid(7, b"two", b""), timeout=30.0)
    with pytest.raises(spool.Full):
        late.put("q", 3)


def test_q11_of_those_that_commit_together_only_those_that_do_not_fit_fail(space: spool.Space) -> None:
    space.create_queue("q", max_messages=10)
    futures = [space.submit("q", n) for n in range(25)]
    outcomes = [future.exception(PATIENT_SECONDS) for future in futures]
    assert sum(outcome is None for outcome in outcomes) == 10
    assert all(isinstance(outcome, spool.Full) for outcome in outcomes if outcome is not None)
    assert space.stats("q").ready == 10


def _put_until_full(path: str, done: Any) -> None:
    with spool.open(path) as space:
        count = 0
        try:
            while True:
                space.put("q", b"x")
                count += 1
        except spool.Full:
            done.put(count)


def test_q11_the_limit_is_exact_with_several_processes(path: Path, space: spool.Space) -> None:
    space.create_queue("q", max_messages=100)
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Queue()
    members = [spawn.Process(target=_put_until_full, args=(str(path), done)) for _ in range(4)]
    for member in members:
        member.start()
    assert sum(done.get(timeout=PATIENT_SECONDS) for _ in members) == 100
    for member in members:
        member.join()
    assert space.stats("q").ready == 100


def test_q11_a_failed_message_moves_to_its_error_queue_full_or_not(space: spool.Space) -> None:
    space.create_queue("errors", max_messages=0)
    space.create_queue("q", retries=0, error_queue="errors")
    message_id = space.put("q", 1)
    with pytest.raises(spool.Full):
        space.move(message_id, "errors")
    fail_one(space, "q")
    assert drained(space, "errors") == [1]


def test_q11_a_full_queue_keeps_no_other_from_its_files(space: spool.Space) -> None:
    space.create_queue("full", max_messages=1)
    space.create_queue("ok")
    space.put("full", 0)
    for queue in ("full", "ok"):
        Path(space.path, "drop", queue, "file").write_text("dropped")
    for _ in range(2):
        Intake(space).run(once=True)
    assert drained(space, "ok") == [b"dropped"]
    space.get("full")
    Intake(space).run(once=True)
    assert drained(space, "full") == [b"dropped"]


# -- Q10 --------------------------------------------------------------------------------------------------------------


def _wait_for_commands() -> None:
    for thread in threading.enumerate():
        if thread.name == "xaspool capacity":
            while thread.ident is None:  # it is just being started
                time.sleep(0.001)
            thread.join(PATIENT_SECONDS)


def _lines(file: Path) -> list[str]:
    _wait_for_commands()
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(
    ("high", "low", "bodies"),
    [("4 messages", "1 message", b"x"), ("80%", "20%", b"x"), ("4 kB", "1 kB", b"x" * 1000)],
    ids=["messages", "percent", "bytes"],
)
def test_q10_the_command_runs_once_at_the_high_mark_and_not_again_before_the_low_one(
    path: Path, tmp_path: Path, high: str, low: str, bodies: bytes
) -> None:
    said = tmp_path / "said"
    command = f'echo "$SPOOL_QUEUE $SPOOL_MESSAGES" >> {said}'
    with spool.create(path) as space:
        space.create_queue("q", max_messages=5, capacity_high=high, capacity_low=low, capacity_command=command)
        space.put_many("q", [bodies] * 3)
    assert _lines(said) == []
    for _ in range(2):
        with spool.open(path) as space:  # each close checks; so does the housekeeper of an open space
            space.put("q", bodies)
            space.get("q")
            space.put("q", bodies)
        with spool.open(path) as space:
            space.get("q")
    assert _lines(said) == ["q 4"]
    with spool.open(path) as space:
        space.get_many("q", 4)
    with spool.open(path) as space:
        space.put_many("q", [bodies] * 4)
    assert len(_lines(said)) == 2


def test_q10_a_mark_that_is_changed_or_set_again_is_a_new_mark(path: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = f'echo "$SPOOL_MESSAGES" >> {said}'
    with spool.create(path) as space:
        space.create_queue("q", capacity_high="3 messages", capacity_command=command)
        space.put_many("q", range(3))
    with spool.open(path) as space:
        space.change_queue("q", capacity_high="5 messages")
        space.put_many("q", range(2))
    assert _lines(said) == ["3", "5"]
    with spool.open(path) as space:
        space.change_queue("q", capacity_high=None, capacity_command=None)
        space.purge("q")
        space.put_many("q", range(5))
    with spool.open(path) as space:
        space.change_queue("q", capacity_high="5 messages", capacity_command=command)
    assert _lines(said) == ["3", "5", "5"]


def test_q10_a_process_that_stays_runs_it_outside_any_commit(space: spool.Space, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.01; done; echo done >> {tmp_path / 'said'}"
    space.create_queue("q", capacity_high="2 messages", capacity_command=command)
    door.store(space).wake, wake = mock.Mock(), door.store(space).wake
    with space.transaction():
        space.put_many("q", [1, 2])
    door.store(space).wake.assert_called()
    door.store(space).wake = wake
    while not any(thread.name == "xaspool capacity" for thread in threading.enumerate()):
        space.put("q", 3)  # no call waits for the command
    gate.touch()
    assert _lines(tmp_path / "said") == ["done"]


def test_q10_a_command_that_fails_or_takes_too_long_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with spool.create(path) as space:
        space.create_queue("bad", capacity_high="1 message", capacity_command="echo no such pager; exit 3")
        space.create_queue("slow", capacity_high="1 message", capacity_command="sleep 60", capacity_timeout=0.05)
        space.put("bad", 1)
        space.put("slow", 1)
    _wait_for_commands()
    assert "queue bad failed with exit status 3: no such pager" in caplog.text
    assert "queue slow was ended: it took longer than 0.05 s" in caplog.text


def test_q10_a_command_s_output_is_cut_and_its_background_processes_delay_nothing(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"
    behind = f"(while [ -d {tmp_path} ] && [ ! -e {gate} ]; do sleep 0.01; done) &"
    with spool.create(path) as space:
        space.create_queue(
            "q", capacity_high="1 message", capacity_command=f"{behind} yes much | head -c 1000000; echo end; exit 3"
        )
        space.put("q", 1)
    _wait_for_commands()
    gate.touch()
    [record] = caplog.records
    assert "failed with exit status 3: " in record.getMessage()
    assert record.getMessage().endswith("much end")
    assert len(record.getMessage()) < 1000


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity_high": "lots"}, "a mark like"),
        ({"capacity_high": "0 messages"}, "above 0"),
        ({"capacity_high": "101%", "max_messages": 1}, "a mark like"),
        ({"capacity_high": "80%"}, "needs max_messages or max_bytes"),
        ({"capacity_low": "1 message"}, "needs a capacity_high"),
        ({"capacity_command": "true"}, "needs a capacity_high"),
        ({"capacity_high": "5 messages", "capacity_low": "1 kB"}, "in the same unit"),
        ({"capacity_high": "5 messages", "capacity_low": "6 messages"}, "at most capacity_high"),
    ],
)
def test_q10_marks_that_mean_nothing_are_refused(space: spool.Space, options: dict[str, Any], text: str) -> None:
    with pytest.raises(spool.InvalidArgument, match=text):
        space.create_queue("q", **options)

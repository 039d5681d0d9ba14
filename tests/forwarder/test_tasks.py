"""Tasks of a round: their branches, and the remains of a task after it, its worker or its coordinator has ended."""

import sqlite3
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

import spool
from forwarder.round import Route, TaskDied
from forwarder.services import parse
from forwarder.task import Chunk, TaskResult, deliver
from spool.coordination.locks import coordinator_byte
from spool.errors import ProtocolError, SpaceStopped, SystemFailure, TransactionRolledBack
from spool.model.xid import FORMAT_ROUND, Xid
from spool.remote.remote_branch import RemoteBranch
from spool.transactions import two_phase
from spool.transactions.two_phase import resolve_orphans
from spool.workers.effects import Effect
from tests import door
from tests.forwarder.rounds import Scripted, answers, attempts, dies, echo, forward, in_process, run_round
from tests.shown import bodies


def test_no_process_rolls_back_the_branches_of_a_live_round(space: spool.Space) -> None:
    """Another process checks the branches after each task, and after all tasks have voted."""
    space.put_many("work", [b"%d" % i for i in range(4)])
    with spool.open(space.path) as other:

        def looked_at(chunks: list[Chunk]) -> list[TaskResult]:
            blocks = []
            for chunk in chunks:
                blocks += in_process([chunk])
                assert resolve_orphans(door.store(other), door.deadline(other)) == []
            return blocks

        assert forward(space, echo, job=looked_at).effects == {Effect.DELIVERED: 4}
        assert len(bodies(other, "replies")) == 4


def test_one_branch_of_a_round_is_written_by_one_task(space: spool.Space) -> None:
    """A task that Spark repeats while its first attempt lives has another xid, or none."""
    xid = Xid(FORMAT_ROUND, b"round", b"1")
    with spool.open(space.path) as coordinator:
        assert door.store(coordinator).shared.xids.try_lock(coordinator_byte(xid.gtrid))
        first = RemoteBranch(space.path, xid)
        with pytest.raises(ProtocolError):
            RemoteBranch(space.path, xid)
        first.close()
        RemoteBranch(space.path, xid).close()


def test_a_task_whose_coordinator_has_ended_writes_nothing(space: spool.Space) -> None:
    """The task checks its coordinator when it begins, and again before it votes."""
    xid = Xid(FORMAT_ROUND, b"round", b"1")
    with pytest.raises(TransactionRolledBack):
        RemoteBranch(space.path, xid)
    with spool.open(space.path) as coordinator:
        assert door.store(coordinator).shared.xids.try_lock(coordinator_byte(xid.gtrid))
        branch = RemoteBranch(space.path, xid)
        door.add(branch, ("put", "work", [b"late"], {}))
    with pytest.raises(TransactionRolledBack):
        branch.prepare()
    branch.close()
    assert not two_phase.is_prepared(door.store(space), xid)


def test_a_task_does_not_vote_for_a_message_into_a_queue_that_was_deleted_since_it_began(space: spool.Space) -> None:
    space.create_queue("elsewhere")
    xid = Xid(FORMAT_ROUND, b"round", b"1")
    assert door.store(space).shared.xids.try_lock(coordinator_byte(xid.gtrid))
    branch = RemoteBranch(space.path, xid)
    door.add(branch, ("put", "elsewhere", [b"late"], {}))
    space.delete_queue("elsewhere")
    with pytest.raises(spool.QueueNotFound):
        branch.prepare()
    branch.close()
    assert not two_phase.is_prepared(door.store(space), xid)


def test_a_task_writes_nothing_into_a_space_that_has_stopped(space: spool.Space) -> None:
    xid = Xid(FORMAT_ROUND, b"round", b"1")
    assert door.store(space).shared.xids.try_lock(coordinator_byte(xid.gtrid))
    door.store(space).stop()
    with pytest.raises(SpaceStopped):
        RemoteBranch(space.path, xid)


def ids(chunk: Chunk) -> list[str]:
    return [one.part(one.first + n, 1).id for one in chunk.runs for n in range(one.length)]


def test_a_message_that_kills_its_worker_is_found_and_counted(space: spool.Space) -> None:
    wanted = [space.put("work", b"%d" % i) for i in range(9)]

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        if any(wanted[5] in ids(chunk) for chunk in chunks):
            in_process([chunk for chunk in chunks if wanted[5] not in ids(chunk)])
            raise TaskDied("worker exited unexpectedly")
        return in_process(chunks)

    answers["it"] = echo
    result = run_round(space, Route("work", Scripted("it")), job, limit=1000, tasks=2, timeout=0)
    assert result.effects == {Effect.DELIVERED: 8, Effect.RETRIED: 1}
    assert len(bodies(space, "replies")) == 8
    assert [m.id for m in space.browse("work")] == [wanted[5]]
    assert space.show(wanted[5]).attempts == 1
    assert not list(Path(space.path, "prepared").iterdir()), "what the failed jobs prepared is rolled back"


@pytest.mark.parametrize(
    ("options", "effect"),
    [
        ({"retries": 1}, Effect.RETRIED),
        ({"retries": 0}, Effect.DEAD_LETTERED),
        ({"retries": 0, "error_queue": None}, Effect.DROPPED),
    ],
)
def test_a_message_that_kills_its_worker_is_counted_by_its_outcome(
    space: spool.Space, options: dict[str, Any], effect: Effect
) -> None:
    space.change_queue("work", **options)
    space.put("work", b"x")

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        raise TaskDied("Python worker exited unexpectedly")

    result = forward(space, echo, job=job)
    assert result.effects == {effect: 1}
    assert result.failures.last(effect) == "the worker that handled it died: Python worker exited unexpectedly"


def test_a_call_that_had_to_be_ended_with_its_worker_took_too_long(space: spool.Space, monkeypatch: pytest.MonkeyPatch):
    wanted = space.put("work", b"x")
    answers["it"] = echo
    monkeypatch.setattr("forwarder.round.GRACE_SECONDS", 0.0)

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        raise TaskDied("Python worker exited unexpectedly")

    run_round(space, Route("work", Scripted("it", watched=0.0)), job, limit=9, tasks=2, timeout=0)
    assert space.show(wanted).failure_reason == "took longer than 0 s, and did not stop: its worker was ended"


def test_a_round_that_dies_leaves_its_messages_to_the_next(space: spool.Space, tmp_path: Path) -> None:
    space.put_many("work", [b"1", b"2"])
    with pytest.raises(KeyboardInterrupt):
        forward(space, echo, job=dies)
    with spool.open(space.path) as other:
        assert [m.body for m in other.get_many("work", 10)] == [b"1", b"2"]
        assert bodies(other, "replies") == []


def test_of_two_attempts_at_a_task_only_the_named_one_commits(space: spool.Space) -> None:
    space.put("work", b"x")

    def job(chunks: list[Chunk]) -> list[TaskResult]:
        deliver(chunks[0], 0, next(attempts))
        return [deliver(chunks[0], 0, next(attempts))]

    forward(space, echo, job=job)
    assert bodies(space, "replies") == [b"re: x"]
    with spool.open(space.path) as other:
        assert bodies(other, "replies") == [b"re: x"]
        assert not list(Path(space.path, "prepared").iterdir()), "the loser was rolled back"
        assert not other.check()


def test_q12_a_service_that_a_new_worker_cannot_open_costs_no_attempt_and_is_opened_when_it_is_back(
    space: spool.Space, tmp_path: Path
) -> None:
    """A worker that was idle ends, and the next one begins while the directory is away."""
    (place := tmp_path / "place").mkdir()
    wanted = space.put("work", b"x")
    route = Route("work", parse(f"file:{place}"))
    place.rmdir()
    result = run_round(space, route, in_process, limit=9, tasks=2, timeout=0)
    assert f"the service was not reached (on {gethostname()}: there is no directory" in result.down
    assert space.show(wanted).attempts == 0
    place.mkdir()
    assert run_round(space, route, in_process, limit=9, tasks=2, timeout=0).effects == {Effect.DELIVERED: 1}


def test_q12_an_error_of_any_kind_by_which_a_service_does_not_open_costs_no_attempt(
    space: spool.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(service: Scripted) -> Scripted:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(Scripted, "open", fails)
    space.put("work", b"x")
    result = run_round(space, Route("work", Scripted("of its own")), in_process, limit=9, tasks=2, timeout=0)
    assert "OperationalError: unable to open database file" in result.down


def test_a_task_that_cannot_write_its_result_ends_the_round_and_loses_nothing(space: spool.Space) -> None:
    space.put("work", b"x")
    with pytest.raises(SystemFailure, match="disk is full"):
        forward(space, echo, job=lambda chunks: [TaskResult(error="the disk is full")])
    assert bodies(space, "work") == [b"x"]

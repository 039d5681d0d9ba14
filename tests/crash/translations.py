"""Histories of a pipeline's translation: its results and the removal of its source are one commit."""

from contextlib import AbstractContextManager
from unittest import mock

import spool
from forwarder.pipelines.dispositions import Continue
from forwarder.pipelines.draft import Draft
from forwarder.pipelines.pipeline_functions import Function
from forwarder.pipelines.stages import PipelineStage, Way
from spool.coordination.locks import coordinator_byte
from spool.model.message import Message
from spool.model.xid import FORMAT_ROUND, Xid
from spool.remote import remote_branch as remote
from spool.workers.attempt import Attempt
from spool.workers.effects import Effect, OutcomePolicy, record
from spool.workers.worker_run import WorkerRun
from tests import door
from tests.crash.contents import EMPTY, Expectation, History
from tests.machine import PowerCut
from tests.simdisk import ROOT, SimulatedDisk

_ROUND = Xid(FORMAT_ROUND, b"round-of-translations", b"1")


def _split(message: spool.Message) -> list[Continue]:
    return [Continue(f"{message.body}{part}") for part in "12"]


def _fail(message: spool.Message) -> None:
    raise ValueError


ROUTES = PipelineStage(
    (
        Way("whole", (), (), ("b",), alone=False),
        Way("parts", (), (Function.of(_split),), ("b", "after"), alone=False),
        Way("fails", (), (Function.of(_fail),), ("b",), alone=True),
    ),
    last_queues=(), failures="a", unrouted="error", retries=0, timeout=1.0,
)  # fmt: skip


def _two_messages(space: spool.Space) -> None:
    space.put("a", "m")
    space.put("a", "n")


TWO = EMPTY.put("a", "m", "n")


def _translated(expected: Expectation) -> AbstractContextManager[None]:
    return expected.becoming(
        expected.contents.got("a").put("b", "m", "m1", "m2").put("after", "m1", "m2").put("a", "m")
    )


def _by_a_worker(space: spool.Space, expected: Expectation) -> None:
    attempt = Attempt(door.core(space), WorkerRun(door.store(space), "a", print, once=True))
    attempt.take("a", 0.0)
    assert attempt.message is not None
    outcome = ROUTES.translated(Draft.of(attempt.message, b"m"))
    assert attempt.begin()
    with _translated(expected):
        assert attempt.conclude(outcome)[0] is Effect.DELIVERED


def _in_a_round(space: spool.Space, expected: Expectation) -> None:
    """A task writes it and votes; until the round has committed it, it is as if nothing had happened."""
    machine = door.disk(space).machine  # type: ignore[attr-defined]
    of_task = SimulatedDisk(machine)
    try:
        _round(space, expected, of_task)
    except PowerCut:  # if only processes die, it is both; tests.crash.scenarios has one that survives the other
        machine.kill(of_task)
        machine.kill(door.disk(space))
        raise


def _round(space: spool.Space, expected: Expectation, disk: SimulatedDisk) -> None:
    store = door.store(space)
    byte = coordinator_byte(_ROUND.gtrid)
    assert store.shared.xids.try_lock(byte)
    transaction = door.branch(space, timeout=None, counted=False)
    [held] = transaction.hold("a", 1)
    with mock.patch.object(remote, "Disk", return_value=disk):
        task = remote.RemoteBranch(ROOT, _ROUND)
    raw = next(task.messages([held])).raw
    message = Message(held.id, held.queue, raw.decode(), held.committed_at, held.position, held.attributes)
    known = store.settings.known.config
    policy = OutcomePolicy.of(known, "a")
    record(door.batch(task), policy, message, raw, ROUTES.translated(Draft.of(message, raw)), store.clock.now())
    with _translated(expected):
        assert task.prepare() is not None
        task.close()
        transaction.commit(adopt=[_ROUND])
    transaction.abandon()
    store.shared.xids.unlock(byte)


TRANSLATIONS = (
    History("translation by a worker", _two_messages, TWO, _by_a_worker, survivors=2),
    History("translation in a round", _two_messages, TWO, _in_a_round, survivors=2),
)

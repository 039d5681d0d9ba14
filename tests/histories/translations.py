"""Histories of a pipeline's translation: its results and the removal of its source are one commit."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from unittest import mock

import spool
from forwarder.pipelines.dispositions import Continue
from forwarder.pipelines.draft import Draft
from forwarder.pipelines.pipeline_functions import Function
from forwarder.pipelines.stages import PipelineStage, Way
from spool.coordination.locks import coordinator_byte
from spool.disk import Disk
from spool.errors import DiskFailure
from spool.model.message import Message
from spool.model.xid import FORMAT_ROUND, Xid
from spool.remote import remote_branch as remote
from spool.transactions.two_phase import resolve_orphans
from spool.workers.attempt import Attempt
from spool.workers.effects import Effect, OutcomePolicy, record
from spool.workers.worker_run import WorkerRun
from tests import door
from tests.histories.branches import abandoned
from tests.histories.contents import EMPTY, Contents
from tests.histories.history import Expectation, History, did
from tests.machine import PowerCut

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


def _translate(contents: Contents) -> Contents:
    return contents.got("a").put("b", "m", "m1", "m2").put("after", "m1", "m2").put("a", "m")


def _by_a_worker(space: spool.Space, expected: Expectation) -> None:
    attempt = Attempt(door.core(space), WorkerRun(door.store(space), "a", print, once=True))
    try:
        attempt.take("a", 0.0)
        did(attempt.message is not None)
        outcome = ROUTES.translated(Draft.of(attempt.message, b"m"))
        assert attempt.begin()
        with expected.becoming(_translate):
            did(attempt.conclude(outcome)[0] is Effect.DELIVERED)
    except BaseException:
        attempt.release()
        raise


@contextmanager
def _reported_alike() -> Iterator[None]:
    """The forwarder reports an error of the system and a failure of the disk alike."""
    try:
        yield
    except OSError as error:
        raise error if isinstance(error, DiskFailure) else DiskFailure(error.errno, str(error)) from error


def _in_a_round(space: spool.Space, expected: Expectation) -> None:
    """A task writes it and votes; until the round has committed it, it is as if nothing had happened."""
    of_task = copy.copy(door.disk(space))
    of_task._handles, of_task._memory = {}, []  # (otherwise the end of the task would unmap the memory of the space)
    try:
        with _reported_alike():
            _round(space, expected, of_task)
    except PowerCut:  # if only processes die, it is both; tests.crash.scenarios has one that survives the other
        for disk in (of_task, door.disk(space)):
            disk.machine.kill(disk)  # type: ignore[attr-defined]
        raise


def _round(space: spool.Space, expected: Expectation, disk: Disk) -> None:
    store = door.store(space)
    byte = coordinator_byte(_ROUND.gtrid)
    with expected.becoming(_translate), ExitStack() as ends:
        assert store.shared.xids.try_lock(byte)
        ends.callback(store.shared.xids.unlock, byte)
        transaction = ends.enter_context(abandoned(door.branch(space, timeout=None, counted=False)))
        [held] = transaction.hold("a", 1)
        with mock.patch.object(remote, "Disk", return_value=disk):
            task = ends.enter_context(closing(remote.RemoteBranch(space.path, _ROUND)))
        raw = next(task.messages([held])).raw
        message = Message(held.id, held.queue, raw.decode(), held.committed_at, held.position, held.attributes)
        policy = OutcomePolicy.of(store.settings.known.config, "a")
        record(door.batch(task), policy, message, raw, ROUTES.translated(Draft.of(message, raw)), store.clock.now())
        assert task.prepare() is not None
        task.close()
        transaction.commit(adopt=[_ROUND])


def _end_vote(space: spool.Space) -> None:
    """The next get or commit rolls back the branch of a round that has ended without its commit."""
    resolve_orphans(door.store(space), door.deadline(space))


TRANSLATIONS = (
    History("translation by a worker", _two_messages, TWO, _by_a_worker, survivors=2),
    History("translation in a round", _two_messages, TWO, _in_a_round, finish=_end_vote, survivors=2, by_task=True),
)

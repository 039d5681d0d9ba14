"""Group commit: what threads, tasks and coroutines commit at the same time shares one numbered file and one flush.

A caller who finds nobody committing commits at once, in his own thread: nothing is handed over, and no timer makes him
wait for company. What comes while a flush is under way is the next commit's. A failure is everybody's who was in the
file: before it has its number they are rolled back, after that nobody knows, and each hears so of his own messages.

What streams, and what adopts prepared branches, has a file of its own (see ``transaction``).
"""

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from spool.coordination.locks import xid_byte
from spool.errors import NO_ROOM, CommitUnknown, Full, NotOpen, QueueNotFound
from spool.format.batch import CommitBatch
from spool.format.writer import CommitFileWriter
from spool.log import quota
from spool.log.commit import commit
from spool.log.commit_queue import CLOSED, CommitQueue, PutRequest, Stage, Work, tell
from spool.log.exit import finish_at_exit
from spool.model.xid import Xid, new_local_xid
from spool.runtime import interrupts
from spool.runtime.clock import Deadline
from spool.store.store import Store

log = logging.getLogger("spool")


class _NoRoomError(Exception):
    """These works do not fit; each has its error."""

    def __init__(self, works: list[Work]) -> None:
        self.works = works


class GroupCommit:
    """All of one open space that commit together. ``committed`` is called by its own thread behind its commits.

    ``make_room``: called once if the disk is full. ``failed``: how many messages that no caller waited for were not
    committed.
    """

    def __init__(self, store: Store, make_room: Callable[[], object]) -> None:
        self.store = store
        self._make_room = make_room
        self.committed: Callable[[], None] = _nothing
        self.failed = 0
        self.line = CommitQueue(self._wake)
        self._name: Xid | None = None  # of the file in active/, one at a time; its byte is held
        self._wakes = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    # -- for who waits ----------------------------------------------------------------------------------------------

    def commit(self, work: Work) -> None:
        """Durable and visible when this returns; inside a step. Raises what kept it from that."""
        line = self.line
        if line.join(work) or line.wait(work, self._look_up):
            try:
                line.gather()
                while work.stage is not Stage.DONE:
                    self._commit(line.take(), work)
            finally:
                line.hand_on()
        if work.error is not None:
            raise work.error

    def _look_up(self) -> None:
        interrupts.admit()
        self.store.gate.check()

    # -- for who does not -------------------------------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        """``work.told`` hears of it when it is durable and visible, or has failed. Waits while too much is waiting."""
        self.line.wait_for_room(work, self._look_up)
        self.send(work)

    def send(self, work: Work) -> None:
        """The same without waiting, for who bounds what he sends."""
        if self._thread is None:
            self._start()
        self.line.put(work)

    def future(self, work: PutRequest) -> "Future[str]":
        """Submit it; a future of its first message's id."""
        work.future = future = Future[str]()
        work.begin = future.set_running_or_notify_cancel
        work.told = self._tell_futures
        self.submit(work)
        return future

    def _tell_futures(self, works: Sequence[Work]) -> None:
        for work in works:
            if work.error is None:
                work.future.set_result(work.id)
                continue
            self.failed += work.messages
            if work.number is not None or work.future.running() or work.begin():
                work.future.set_exception(self.spoken(work.error))

    def spoken(self, error: BaseException) -> BaseException:
        """The error as a caller is to see it, for who is not there to catch it himself."""
        return self.store.spoken("committing", error) if isinstance(error, OSError) else error

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                finish_at_exit(self)
                thread = threading.Thread(target=self._run, name="xaspool store", daemon=True)
                thread.start()
                self._thread = thread

    def _wake(self) -> None:
        self._wakes.release()

    def _run(self) -> None:
        """The store's thread: leads when it is woken, until nothing waits."""
        while True:
            self._wakes.acquire()
            try:
                with self.store.gate:
                    self._lead()
                    self.committed()
            except NotOpen:
                return
            except Exception as error:
                log.error("commits are held up: %s", error)

    def _lead(self) -> None:
        try:
            while works := self.line.take():
                self._commit(works)
        finally:
            self.line.hand_on()

    # -- the end ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many messages are not committed yet."""
        return self.line.waiting

    def drain(self, because: str = CLOSED) -> None:
        """What was accepted is committed when this returns, or has failed; inside a step. No more is accepted."""
        self.line.end(because)
        if self._thread is not None:
            self.commit(Work(None, 0, 0))  # the last in the line

    def end(self) -> None:
        """The space is closed: nobody leads any more, and the thread goes."""
        left = self.line.abandon()
        for work in left:
            work.error = NotOpen("the space was closed before this was committed: nothing of it happened")
        tell(left)
        self._wakes.release()

    # -- committing -------------------------------------------------------------------------------------------------

    def _commit(self, works: list[Work], own: Work | None = None) -> None:
        """All in one file, and each is told. ``own``: the leader's, who hears of it by himself."""
        try:
            while works and (failed := self._try(works)):
                out = set(map(id, failed))
                works = [work for work in works if id(work) not in out]
                tell(failed)
        except BaseException as error:  # a signal, in the leader's thread
            if any(work.number is not None for work in works):
                text = f"its commit was interrupted by {type(error).__name__}: open the space again and look"
                for work in works:
                    work.error = CommitUnknown(text, tuple(work.ids))
                tell(works)
            else:
                self.line.put_back([work for work in works if work is not own])
                if own is not None:
                    tell([own])
            raise
        tell(works)

    def _try(self, works: list[Work]) -> list[Work]:
        """Commit them; those that failed and are to be left out when the others are tried again, or []: all is said."""
        busy = [work for work in works if not work.empty]
        try:
            if busy:
                self._write(busy)
        except CommitUnknown as error:
            for work in busy:
                work.error = CommitUnknown(str(error), tuple(work.ids))
                work.error.__cause__ = error.__cause__
        except _NoRoomError as error:
            return error.works if len(error.works) < len(busy) else []
        except Exception as error:
            failed = self._to_blame(error, busy) or busy
            failed[0].error = error
            for work in failed[1:]:
                work.error = copy.copy(error)  # each is raised in a thread of its own
                work.error.__cause__ = error
            return failed if len(failed) < len(busy) else []
        return []

    def _to_blame(self, error: Exception, works: Sequence[Work]) -> list[Work]:
        """Without whom the others may commit; [] if that is nobody in particular."""
        if isinstance(error, QueueNotFound):
            queues = self.store.config.queues
            return [work for work in works if not all(queue in queues for queue in work.targets())]
        # On a full disk what only removes must still be able to.
        full = isinstance(error, OSError) and error.errno in NO_ROOM
        return [work for work in works if work.messages] if full else []

    def _write(self, works: Sequence[Work]) -> None:
        """One numbered file, durable and visible."""
        file = CommitFileWriter(self.store.files.disk, self._file_name())
        batch = batch_of(works)
        deadline = self.store.deadline()
        check = partial(self._check_room, works, deadline)
        try:
            commit(self.store, file, batch, deadline, check=check, page=works[-1].page, make_room=self._make_room)
        except BaseException:
            self._forget_name()
            raise
        finally:
            if file.number is not None:
                for work in works:
                    work.number = file.number

    def _check_room(self, works: Sequence[Work], deadline: Deadline) -> None:
        """Under the number lock: if anything has a limit, those that do not fit are left out."""
        if not self.store.config.limited:
            return
        quota.see_all(self.store, deadline)
        together: dict[str, quota.Load] = {}
        with self.store.view.mutex:
            doubtful = quota.in_doubt(self.store)
        failed = [work for work in works if not _fits(self.store, work, together, doubtful)]
        if failed:
            raise _NoRoomError(failed)

    def _file_name(self) -> Xid:
        """A name in ``active/`` whose byte this process holds: a cleaner removes only what is free."""
        if self._name is None:
            name = new_local_xid()
            self.store.shared.xids.lock(xid_byte(name), self.store.deadline(), f"the branch {name}")
            self._name = name
        return self._name

    def _forget_name(self) -> None:
        """A file may be left under it."""
        if self._name is not None:
            name, self._name = self._name, None
            with suppress(OSError):
                self.store.shared.xids.unlock(xid_byte(name))


def _nothing() -> None:
    pass


def _fits(store: Store, work: Work, together: dict[str, quota.Load], doubtful: quota.Loads) -> bool:
    """Behind those that fit, ``together``, which grows by this one; else it has its error."""
    change = work.usage(store)
    grown = quota.joined(together, change)
    try:
        if any(load.messages > 0 for load in change.values()):
            quota.check_room(store, grown, doubtful)
    except Full as error:
        work.error = error
        return False
    together.update(grown)
    return True


def batch_of(works: Sequence[Work]) -> CommitBatch:
    """All of them, in their order."""
    batch = CommitBatch()
    for work in works:
        work.append_to(batch)
    return batch

"""Group commit: threads, tasks and coroutines that commit at the same time share one numbered file and one flush.

A thread that finds no leader leads at once, without handing its request to another thread. The leader waits for further
requests only if other threads waited for the last two commits. This wait takes at most ``LINGER_SECONDS``. Requests
that arrive during a flush are in the next commit.

A failure before numbering rolls back every request of the group; a later failure leaves the outcome of each request
unknown. Each caller gets the ids of its own messages.

Decisions to commit prepared branches are grouped like other requests. Votes of branches are also grouped. A vote needs
no number, and the leader flushes the files of the votes before it commits the other requests. A transaction that was
streamed to its own file is committed separately, and so is a forwarding round with its branches.

If the program ends without closing its space, submitted messages are committed as the interpreter exits.
``concurrent.futures`` also completes its futures at this time.
"""

import atexit
import copy
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import filterfalse
from operator import attrgetter

from spool.coordination.locks import xid_byte
from spool.errors import NO_ROOM, CommitUnknown, Full, NotOpen, QueueNotFound, SpoolError
from spool.log import deciding, quota
from spool.log.adoption import move_adopted, refusal
from spool.log.combined import CombinedCommits
from spool.log.commit import Rooms, commit
from spool.log.commit_file import CommitFileWriter
from spool.log.commit_queue import CLOSED, CommitQueue, complete
from spool.log.vote import vote_together
from spool.log.write_set import Stage, WriteSet, destinations_of, merged
from spool.model.xid import Xid, new_local_xid
from spool.runtime.calls import call_later, enters, raise_interrupt
from spool.runtime.tearing import is_failed_step, is_torn_by
from spool.store.settings import Settings
from spool.store.store import Store

log = logging.getLogger("spool")


_IS_EMPTY, _IS_VOTE = attrgetter("is_empty"), attrgetter("preparation")


class GroupCommit:
    """Joins the commits of one open space.

    ``committed`` is called by the commit thread after each of its commits. ``failed``: the number of submitted messages
    that were not committed and for which no caller waited.
    """

    def __init__(self, store: Store, rooms: Rooms) -> None:
        """``rooms``: see ``commit``."""
        self.store = store
        self._rooms = rooms
        self.committed: Callable[[], None] = lambda: None
        self.failed = 0
        self.queue = CommitQueue(self._wake)
        self._combined = CombinedCommits(store, self._check_interrupts)
        self._name: Xid | None = None  # the name of the next file in active/; this process holds the name's byte
        self._wakes = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    # -- for callers that wait --------------------------------------------------------------------------------------

    def commit(self, request: WriteSet) -> None:
        """Commit the request; the request is durable and visible when this returns. Raises the request's error."""
        queue = self.queue
        if queue.join(request) or queue.wait(request, self._check_interrupts):
            try:
                if queue.expected > 1:
                    queue.linger()
                if request.stage is Stage.TAKEN:
                    self._commit([request], request)
                while request.stage is not Stage.DONE:
                    self._commit(queue.take_batch(), request)
            finally:
                queue.hand_over_lead()
        if request.error is not None:
            raise request.error

    def _check_interrupts(self) -> None:
        raise_interrupt()
        self.store.guard.check()

    # -- for callers that do not wait -------------------------------------------------------------------------------

    def submit(self, request: WriteSet) -> None:
        """Add the request to the queue; wait while the queue is full.

        ``request.on_done`` is called when the request is durable and visible, or has failed.
        """
        if not self.queue.has_room(request):  # (this check takes no lock, and nearly always finds room)
            self.queue.wait_for_room(request, self._check_interrupts)
        self.send(request)

    def send(self, request: WriteSet) -> None:
        """Submit without waiting for room.

        The caller limits its requests: in asyncio each task has one request at a time.
        """
        if self._thread is None:
            self._start()
        self.queue.add(request)

    def future(self, request: WriteSet) -> "Future[str]":
        """Submit the request, and return a future of the first message's id."""
        future: Future[str] = Future()  # (``Future[str]()`` takes a quarter more time)
        request.future = future
        request.begin = future.set_running_or_notify_cancel
        request.on_done = self._resolve_futures
        self.submit(request)
        return future

    def _resolve_futures(self, requests: Sequence[WriteSet]) -> None:
        """Set the futures once this thread's call has ended, because callbacks of futures may call the space."""
        call_later(partial(self._set_futures, requests))

    def _set_futures(self, requests: Sequence[WriteSet]) -> None:
        for request in requests:
            if request.error is None:
                request.future.set_result(f"{request.branch}{request.first:08x}")  # (the id of its first message)
                continue
            self.failed += request.messages
            if request.number is not None or request.future.running() or request.begin is None or request.begin():
                request.future.set_exception(self.translate_error(request.error))

    def translate_error(self, error: BaseException) -> BaseException:
        """Return the error for a caller that did not wait."""
        return self.store.translate_error("committing", error) if isinstance(error, OSError) else error

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                _commit_at_exit(self)
                thread = threading.Thread(target=self._run, name="xaspool store", daemon=True)
                thread.start()
                self._thread = thread

    def _wake(self) -> None:
        self._wakes.release()

    @enters
    def _run(self) -> None:
        """Until the space closes, lead a commit whenever this thread is woken."""
        while True:
            self._wakes.acquire()
            try:
                with self.store.guard:
                    self._lead()
                    self.committed()
            except NotOpen:
                return
            except Exception as error:
                log.error("commits are held up: %s", error)

    def _lead(self) -> None:
        """Make one commit; ``hand_over_lead`` wakes this thread again while requests wait."""
        try:
            if requests := self.queue.take_batch():
                self._commit(requests)
        finally:
            self.queue.hand_over_lead()

    # -- the end ----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Return the number of messages that are not committed yet."""
        return self.queue.waiting

    def drain(self, because: str = CLOSED) -> None:
        """Accept no more requests. When this returns, each accepted request is committed or has failed."""
        self.queue.close(because)
        if self._thread is not None:
            self.commit(WriteSet())  # an empty request, done after all earlier requests

    def end(self) -> None:
        """End the commit thread and fail the waiting requests: the space is closed."""
        left = self.queue.abandon()
        for request in left:
            request.error = NotOpen("the space was closed before this was committed: nothing of it happened")
        complete(left)
        self._wakes.release()

    # -- committing -------------------------------------------------------------------------------------------------

    def _commit(self, requests: list[WriteSet], own: WriteSet | None = None) -> None:
        """Vote for the branches of some requests, commit the others in one file, and complete each request.

        ``own``: the leader's request, which is not requeued. The file may also have requests of other processes, or be
        the file of another process. If requests are refused, they are completed, and the rest is tried again. The
        threads of votes sleep until the end, so they do not take the interpreter from the leader at each call of the
        disk.
        """
        combined, left, combines = self._combined, requests, False
        votes = list(filter(_IS_VOTE, requests))
        if votes:
            left = requests = list(filterfalse(_IS_VOTE, requests))
        rest = left
        try:
            if votes:
                vote_together(self.store, votes)
            if requests and (combines := combined.has_company(requests[-1].page)):
                self._name = self._name or self._file_name()  # the name's byte is locked before the lead
                left = combined.lead_or_post(requests)
                if left is not requests:
                    self._move_adopted([request for request in requests if request.stage is Stage.DONE])
                rest = [*combined.join(), *left]
            while rest and (refused := self._try(rest)):
                complete(refused)
                rest = [request for request in rest if request.stage is not Stage.DONE]
        except BaseException as error:
            rest = [request for request in left if request.stage is not Stage.DONE]
            if is_torn_by(error) or not isinstance(error, Exception):  # e.g. a signal in the leader's thread
                self._requeue([*votes, *rest], own)
                raise
            # The processes cannot commit together.
            _fail([request for request in rest if request.number is None], error)
        finally:
            if combines:
                combined.end_lead()
        complete([*votes, *rest] if votes else rest)

    def _try(self, requests: Sequence[WriteSet]) -> Sequence[WriteSet]:
        """Commit requests in one file. Return the refused requests, with their errors: see ``_fate_of``."""
        if requests[1:]:
            requests = list(filterfalse(_IS_EMPTY, requests))
        if not requests:
            return []
        store, combined, usages = self.store, self._combined, None
        file = CommitFileWriter(store.files.disk, self._name or self._file_name())
        try:
            batch = merged(requests)
            if not (batch.messages or batch.commands) and batch.is_empty:
                return []
            settled = bool(batch.adopts)
            if store.settings.known.config.has_limits:
                usages, settled = self._usages(requests), True
            check = partial(self._check, requests, usages)
            issued = partial(combined.take, requests) if combined.joined else None
            number = commit(store, file, batch, check=check, settled=settled, page=batch.page,
                rooms=self._rooms, issued=issued, requests=len(requests))  # fmt: skip
            combined.last = number
            for request in requests:
                request.number = number
            if batch.adopts:
                self._move_adopted(requests)
            if issued is not None:
                combined.finish(number)
        except BaseException as error:
            self._forget_name()
            return self._fate_of(requests, file.number, error)
        return []

    def _fate_of(self, requests: Sequence[WriteSet], number: int | None, error: BaseException) -> Sequence[WriteSet]:
        """Decide what a failure means for the requests of a commit, and set their errors. Return the refused requests.

        | the file has     | the failure                   | the requests                                           |
        |------------------|-------------------------------|--------------------------------------------------------|
        | a number         | any                           | may be committed: each has the error CommitUnknown     |
        | no number        | of a check of some requests   | are refused; the others are tried again                |
        | no number        | a queue was deleted           | that put into the queue are refused, likewise          |
        | no number        | the disk is full              | that put messages are refused: a removal must succeed  |
        | no number        | another one of a step         | all are refused                                        |
        | any              | comes from outside, a signal  | are as above; the exception is raised                  |
        """
        if number is not None:
            _fail_unknown(requests, error, number)
            if not is_failed_step(error):
                raise error
            return []
        if is_torn_by(error) or not isinstance(error, Exception):
            raise error
        refused: Sequence[WriteSet] = [request for request in requests if request.error is not None]
        if refused:
            return refused
        if isinstance(error, QueueNotFound):
            queues = self.store.settings.known.config.queues.keys()
            refused = [request for request in requests if not queues >= set(destinations_of(request.tables))]
        elif isinstance(error, OSError) and error.errno in NO_ROOM:
            refused = [request for request in requests if request.messages]
        _fail(refused or requests, error)
        return refused or requests

    def _check(
        self, requests: Sequence[WriteSet], usages: Sequence[quota.UsageByQueue] | None, settings: Settings
    ) -> None:
        """Set the error of each request that an earlier decision about its branch (rule 5) or a quota refuses.

        Raise one of these errors. The caller holds the number lock; if there are adoptions, every issued commit is
        applied.
        """
        page, others = None, set[Xid]()
        for request in requests:
            for adopted, contents in zip(request.adopts, request.adopted, strict=True):
                page = page or self.store.shared.counters.read()
                request.error = refusal(self.store, page, adopted.xid, contents, others) or request.error
                others.add(adopted.xid)
        if settings.config.has_limits:
            # (``usages`` is None if a limit was set a moment ago)
            self._check_room(requests, self._usages(requests) if usages is None else usages, settings)
        for request in requests:
            if request.error is not None:
                raise request.error

    def _usages(self, requests: Sequence[WriteSet]) -> list[quota.UsageByQueue]:
        """Return the usage of each request. The usage cannot change until the commit, because the request's owner holds
        the messages that the request removes or moves."""
        deciding.settle_and_catch_up(self.store, self.store.deadline())  # (requests may remove others' messages)
        view = self.store.view
        with view.mutex:
            quota.prepared_usage(view.prepared)  # computed once for each prepared branch
        return [quota.change_by(view, request.tables) for request in requests]

    def _check_room(
        self, requests: Sequence[WriteSet], usages: Sequence[quota.UsageByQueue], settings: Settings
    ) -> None:
        """Set the error of each request that does not fit into a quota beside the accepted requests."""
        deciding.settle_and_catch_up(self.store, self.store.deadline())
        view = self.store.view
        with view.mutex:
            prepared = quota.prepared_usage(view.prepared)
        added: quota.UsageByQueue = {}
        for request, change in zip(requests, usages, strict=True):
            if request.error is not None:
                continue
            grown = quota.combined(added, change)
            try:
                if any(usage.messages > 0 for usage in change.values()):
                    quota.check_room(view, settings, grown, prepared)
                added = grown
            except Full as error:
                request.error = error

    def _requeue(self, requests: Sequence[WriteSet], own: WriteSet | None) -> None:
        """Requeue the requests of which nothing has happened, after an exception that only the leader's caller gets.

        Complete the leader's request, votes that are listed, and requests with a number or an error.
        """
        begun: list[WriteSet] = []
        left: list[WriteSet] = []
        for request in requests:
            is_begun = request.preparation is not None and request.preparation.is_listed
            is_begun = is_begun or request.number is not None or request.error is not None
            (begun if is_begun or request is own else left).append(request)
        self.queue.requeue(left)
        complete(begun)

    def _move_adopted(self, requests: Sequence[WriteSet]) -> None:
        """Give the branches of these requests their committed names, after one commit has adopted the branches.

        If another process made the commit, that process has usually moved the branches.
        """
        moves, number = [], None
        for request in requests:
            if request.adopts and request.error is None:
                moves += [(place, adopted.xid) for place, adopted in enumerate(request.adopts, request.first)]
                number = request.number
        if number is not None:
            move_adopted(self.store, number, moves)

    def _file_name(self) -> Xid:
        """Return a name in ``active/`` whose byte this process holds, so that no process removes the file (rule 6)."""
        name = new_local_xid()
        self.store.shared.xids.lock(xid_byte(name), self.store.deadline(), f"the branch {name}")
        self._name = name
        return name

    def _forget_name(self) -> None:
        """Drop the name: the next file gets another name, because a file may remain under the old name."""
        if self._name is not None:
            name, self._name = self._name, None
            with suppress(OSError):
                self.store.shared.xids.unlock(xid_byte(name))


def _fail_unknown(requests: Sequence[WriteSet], error: BaseException, number: int) -> None:
    """Set the number and the error of requests that the commit with this number may contain."""
    text, cause = str(error), error.__cause__
    if not isinstance(error, CommitUnknown):
        text, cause = f"{type(error).__name__} interrupted the commit: it may or may not have happened", error
    for request in requests:
        request.error = CommitUnknown(text, tuple(request.ids))
        request.error.__cause__ = cause
        request.number = number  # last: a request with a number and no error is committed


def _fail(requests: Sequence[WriteSet], error: Exception) -> None:
    """Set the error of requests; each error is raised in a different thread."""
    for request in requests:
        request.error = error if request is requests[0] else copy.copy(error)
        if request.error is not error:
            request.error.__cause__ = error


# -- the end of the program -------------------------------------------------------------------------------------------

_submitted: "weakref.WeakSet[GroupCommit]" = weakref.WeakSet()  # those with submitted messages


def _commit_at_exit(submitted: GroupCommit) -> None:
    """Commit the messages when the interpreter exits. Called once for each space, before its first submission."""
    _submitted.add(submitted)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # a child process may end without atexit's functions

        Finalize(None, _commit_all, exitpriority=0)


@atexit.register
def _commit_all() -> None:
    for submitted in list(_submitted):
        commit_submitted(submitted)


@enters
def commit_submitted(submitted: GroupCommit) -> None:
    """Commit the submitted messages and accept no more. Log how many messages could not be committed."""
    store, before, why = submitted.store, submitted.failed, ""
    try:
        with store.guard:
            submitted.drain("the program is ending: nothing can be submitted any more")
    except NotOpen:  # the space was closed, or belongs to the parent process
        return
    except (KeyboardInterrupt, OSError, SpoolError) as error:
        why = f": {str(error) or type(error).__name__}"
    lost = submitted.failed - before + submitted.waiting
    if lost:
        where = store.files.disk.root
        log.warning("%s: the program ends, and %d messages that were submitted were not committed%s", where, lost, why)

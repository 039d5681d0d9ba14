"""The leader: which thread commits, and with whom. Threads, tasks and coroutines that commit at the same time share one
numbered file and one flush.

One thread at a time leads: the leader takes the waiting write sets, and commits them together. A thread that finds no
leader leads at once, in its own thread. A thread that finds a leader waits until its write set is done, or until the
thread gets the lead. For write sets without a waiting thread (``submit``), a commit thread is woken to lead. The leader
waits for further write sets only if other threads waited for the last two commits. This wait takes at most
``LINGER_SECONDS``. Write sets that arrive during a flush are in the next commit.

If some of these write sets are refused, the others are written again without them (see ``log.write.fate_of``). Each
caller gets the ids of its own messages.

Decisions to commit prepared branches are grouped like other write sets. Votes of branches are written together, each
into its own file, before the other write sets. A transaction that was streamed to its own file is committed separately,
and so is a forwarding round with its branches.

If the program ends without closing its space, submitted messages are committed as the interpreter exits.
``concurrent.futures`` also completes its futures at this time.
"""

import atexit
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from threading import get_ident

from spool.coordination.counters import CounterPage
from spool.coordination.locks import xid_byte
from spool.errors import NotOpen, SpoolError
from spool.log.commit_file import CommitFileWriter
from spool.log.ring import Alone, Ring
from spool.log.write import PREPARED, Rooms, Write, set_error, write
from spool.log.write_set import Stage, WriteSet
from spool.model.xid import Xid, new_local_xid
from spool.runtime.async_exceptions import is_torn_by
from spool.runtime.call_guard import call_later, enters, raise_interrupt
from spool.store.store import Store

log = logging.getLogger("spool")

# The limits of the waiting write sets and of one commit, in messages and bytes. A larger one is committed alone.
MOST_WAITING, MOST_WAITING_BYTES = 65_536, 32 << 20
MOST_TOGETHER, MOST_TOGETHER_BYTES = 65_536, 16 << 20

CLOSED = "the space is closed: open it again"

LOOK_SECONDS = 0.05
# The longest time that the leader waits for the threads that were woken by the last commits. This time is about half
# the time of a flush.
LINGER_SECONDS = 0.0002


class Leader:
    """Joins the commits of one open space. The write sets wait in order of arrival.

    committed: called by the commit thread after each of its commits.
    failed: the number of submitted messages that were not committed and for which no caller waited.
    waiting: the number of messages in the waiting write sets.
    page: the counters, if a thread has read them since write sets were taken. While write sets wait, other threads use
        these counters and need not read them again.
    expected: the number of threads that waited for the last two commits.
    """

    def __init__(self, store: Store, rooms: Rooms) -> None:
        """``rooms``: see ``log.write.Conditions``."""
        self.store = store
        self._rooms = rooms
        self.committed: Callable[[], None] = lambda: None
        self.failed = self.waiting = self.expected = 0
        self.page: CounterPage | None = None
        self._name: Xid | None = None  # the name of the next file in active/; this process holds the name's byte
        self._new_signal = threading.Lock  # makes a signal
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._waiting: deque[WriteSet] = deque()
        self._bytes = self._waiting_for_room = 0
        self._led = False
        self._ended: str | None = None  # the reason why no write set may be added any more
        self._callers: set[int] = set()  # threads that waited for the last commit
        self._wakes = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @cached_property
    def ring(self) -> Alone:
        """The ring, from the first commit on: the first opener begins it once the space is recovered."""
        return Ring(self.store, self._check_interrupts) if self.store.shared.requests.exist else Alone()

    # -- for callers that wait --------------------------------------------------------------------------------------

    def commit(self, request: WriteSet) -> None:
        """Commit the write set; it is durable and visible when this returns. Raises its error."""
        me = request.caller = get_ident()
        with self._mutex:
            if alone := not (self._led or self._waiting or self.expected > 1):  # neither waits, nor is expected
                self._led, self.page, request.stage = True, None, Stage.TAKEN
                self.expected = 1 if me in self._callers else 1 + len(self._callers)
                self._callers = {me}
        if alone or self._join(request) or self._wait(request):
            try:
                if alone:
                    self._write([request], request)
                elif self.expected > 1:
                    self._linger()
                while request.stage is not Stage.DONE:
                    self._write(self._take(), request)
            finally:
                with self._mutex:
                    self._led = waits = bool(self._waiting)
                if waits:
                    self._hand_over()
        if request.error is not None:
            raise request.error

    def _check_interrupts(self) -> None:
        raise_interrupt()
        self.store.guard.check()

    def _join(self, request: WriteSet) -> bool:
        """Add the write set of a waiting thread. Return True if the thread leads; otherwise call ``_wait`` next."""
        with self._mutex:
            self._waiting.append(request)
            self.waiting += request.messages
            self._bytes += request.size
            if not self._led:
                self._led = True
                return True
            request.signal = self._new_signal()
            request.signal.acquire()
            return False

    def _wait(self, request: WriteSet) -> bool:
        """Wait until the write set is done or this thread leads; return True if this thread leads.

        Until the write set is taken, an interrupt or the end of the space withdraws it: then it has no effect.
        """
        raised: BaseException | None = None
        assert request.signal is not None
        while not request.signal.acquire(timeout=LOOK_SECONDS):
            if request.stage is Stage.WAITING and raised is None:
                try:
                    self._check_interrupts()
                except BaseException as error:
                    if self._withdraw(request):
                        raise
                    raised = error  # the request has just been taken, so it is committed
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        return request.stage is Stage.LEADING

    def _withdraw(self, request: WriteSet) -> bool:
        with self._mutex:
            if request.stage not in (Stage.WAITING, Stage.LEADING):
                return False
            self._waiting.remove(request)
            self.page = None
            self.waiting -= request.messages
            self._bytes -= request.size
            leads = request.stage is Stage.LEADING
        if leads:
            self._hand_over()
        return True

    # -- leading ----------------------------------------------------------------------------------------------------

    def _linger(self) -> None:
        """Wait for further write sets of the threads that waited for the last two commits.

        The leader calls this before it takes some. If at most one thread is ``expected``, the leader need not call
        this.
        """
        until = time.monotonic() + LINGER_SECONDS
        while len(self._waiting) < self.expected and time.monotonic() < until:
            time.sleep(0)  # lets other threads run

    def _take(self) -> list[WriteSet]:
        """Take the write sets of the next commit; [] if none waits. The leader calls this."""
        taken: list[WriteSet] = []
        messages = size = 0
        callers: set[int] = set()
        with self._mutex:
            while self._waiting:
                request = self._waiting[0]
                if taken and (messages + request.messages > MOST_TOGETHER or size + request.size > MOST_TOGETHER_BYTES):
                    break
                self._waiting.popleft()
                self.waiting -= request.messages
                self._bytes -= request.size
                if request.begin is None or request.begin():
                    messages += request.messages
                    size += request.size
                    request.stage = Stage.TAKEN
                    taken.append(request)
                    if request.caller:
                        callers |= {request.caller}
            self.page = None
            if self._waiting_for_room:
                self._room.notify_all()
            self.expected = len(self._callers | callers)
            self._callers = callers
        return taken

    def _hand_over(self) -> None:
        """Hand the lead to the thread of the first write set, or to the commit thread if no thread waits for it.

        The leader calls this when its own write set is done.
        """
        with self._mutex:
            if not self._waiting:
                self._led = False
                return
            first = self._waiting[0]
            if first.signal is not None:
                first.stage = Stage.LEADING
                first.signal.release()
                return
        self._wakes.release()

    def _write(self, write_sets: list[WriteSet], own: WriteSet | None = None) -> None:
        """Write votes, each into its file, and the other write sets into one file; complete all.

        The file may also have write sets of other processes, or be the file of another process. The threads of votes
        sleep until the end, so they do not take the interpreter from the leader at each call of the disk.

        ``own``: the leader's write set, which is not requeued.
        """
        ring, number, exchanges = self.ring, None, False
        votes: list[Write] = []
        left: list[WriteSet] = []
        for one in write_sets:
            if one.is_vote:
                vote = Write(self.store, [one], one.file)
                vote.into, vote.limited, vote.rooms = PREPARED, True, self._rooms
                votes += (vote,)
            elif one.messages or one.commands or one.adopts or one.facts:
                left += (one,)
        try:
            if votes:
                write(*votes)
            if left:
                page = left[-1].page
                # (most often no other process has committed since the last commit of this one, and none is expected)
                if ring.expected or page is None or page.issued > ring.last:
                    exchanges = ring.expects_others(page)
                if exchanges:
                    self._name = self._name or self._file_name()  # the name's byte is locked before the lead
                    left = ring.exchange(left)
                number = self._commit(left)
        except BaseException as error:
            if is_torn_by(error) or not isinstance(error, Exception):  # e.g. a signal in the leader's thread
                write_sets = self._requeue(write_sets, own)
                raise
            # The processes cannot commit together.
            set_error([one for one in write_sets if one.number is None and one.error is None], error)
        finally:
            if exchanges:
                ring.end(number)
            if own is not None and write_sets == [own]:
                own.stage = Stage.DONE  # (most often; without a call)
            else:
                complete(write_sets)

    def _commit(self, left: Sequence[WriteSet]) -> int | None:
        """Commit write sets in one file; return its number. Refused ones leave it, and the others go again.

        None if no commit has succeeded.
        """
        while left:
            one = Write(self.store, left, CommitFileWriter(self.store.files.disk, self._name or self._file_name()))
            one.limited, one.rooms, one.issued = True, self._rooms, self.ring.take if self.ring.joined else None
            try:
                write(one)
            finally:
                if left[0].number is None or left[0].error is not None:
                    self._forget_name()
            if (number := left[0].number) is not None and left[0].error is None:
                self.ring.last = number
                return number
            left = [one for one in left if one.number is None and one.error is None]
        return None

    def _requeue(self, write_sets: Sequence[WriteSet], own: WriteSet | None) -> list[WriteSet]:
        """Requeue the write sets of which nothing has happened, after an exception that only the leader's caller gets.
        Return the others."""
        begun: list[WriteSet] = []
        with self._mutex:
            for one in reversed(write_sets):
                if one is own or one.number is not None or one.error is not None:
                    begun.append(one)
                    continue
                one.stage = Stage.WAITING
                one.begin = None  # (``begin`` was called when the write set was taken)
                self._waiting.appendleft(one)
                self.waiting += one.messages
                self._bytes += one.size
        return begun

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

    # -- for callers that do not wait -------------------------------------------------------------------------------

    def submit(self, request: WriteSet) -> None:
        """Add a write set for which no thread waits. Wait while too many wait.

        ``request.on_done`` is called when the request is durable and visible, or has failed.
        """
        if not self._has_room(request):  # (this check takes no lock, and nearly always finds room)
            self._wait_for_room(request)
        self.send(request)

    def send(self, request: WriteSet) -> None:
        """Submit without waiting for room.

        The caller limits its requests: in asyncio each task has one request at a time.
        """
        if self._thread is None:
            self._start()
        self._add(request)

    def future(self, request: WriteSet) -> "Future[str]":
        """Submit the request, and return a future of the first message's id."""
        future: Future[str] = Future()  # (``Future[str]()`` takes a quarter more time)
        request.future = future
        request.begin = future.set_running_or_notify_cancel
        # (after the call that this thread makes, because callbacks of futures may call the space)
        request.on_done = lambda requests: call_later(partial(self._set_futures, requests))
        self.submit(request)
        return future

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
        """Make one commit; ``_hand_over`` wakes this thread again while requests wait."""
        try:
            if requests := self._take():
                self._write(requests)
        finally:
            self._hand_over()

    def _add(self, request: WriteSet) -> None:
        """Add a write set that no thread waits for. Raises NotOpen once ``drain`` was called."""
        with self._mutex:
            if self._ended is not None:
                raise NotOpen(self._ended)
            self._waiting.append(request)
            self.waiting += request.messages
            self._bytes += request.size
            if self._led:
                return
            self._led = True
        self._wakes.release()

    def _wait_for_room(self, request: WriteSet) -> None:
        """Wait until a write set has room, or until an interrupt or the end of the space."""
        while not self._has_room(request):
            with self._room:
                if not self._has_room(request):
                    self._waiting_for_room += 1
                    self._room.wait(LOOK_SECONDS)
                    self._waiting_for_room -= 1
            self._check_interrupts()

    def _has_room(self, request: WriteSet) -> bool:
        """Return whether the write set has room beside those that wait. If none waits, any has room."""
        return (
            self.waiting + request.messages <= MOST_WAITING and self._bytes + request.size <= MOST_WAITING_BYTES
        ) or not self._waiting

    # -- the end ----------------------------------------------------------------------------------------------------

    def drain(self, because: str = CLOSED) -> None:
        """Accept no more write sets without a waiting thread. When this returns, each accepted one is committed or has
        failed."""
        with self._mutex:
            self._ended = because
        if self._thread is not None:
            self.commit(WriteSet())  # an empty write set, done after all earlier ones

    def end(self) -> None:
        """End the commit thread and fail the waiting write sets: the space is closed."""
        with self._mutex:
            left = list(self._waiting)
            self._waiting.clear()
            self.waiting = self._bytes = 0
            self._ended = CLOSED
            self._room.notify_all()
        for request in left:
            request.error = NotOpen("the space was closed before this was committed: nothing of it happened")
        complete(left)
        self._wakes.release()


def complete(requests: Sequence[WriteSet]) -> None:
    """Mark requests as done. Wake each waiting thread, and call each callback once with all its requests."""
    callbacks: dict[Callable[[Sequence[WriteSet]], None], list[WriteSet]] = {}
    for request in requests:
        request.stage = Stage.DONE
        if request.signal is not None:
            request.signal.release()
        elif request.on_done is not None:
            callbacks.setdefault(request.on_done, []).append(request)
    for on_done in callbacks:
        on_done(callbacks[on_done])


# -- the end of the program -------------------------------------------------------------------------------------------

_submitted: "weakref.WeakSet[Leader]" = weakref.WeakSet()  # those with submitted messages


def _commit_at_exit(submitted: Leader) -> None:
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
def commit_submitted(submitted: Leader) -> None:
    """Commit the submitted messages and accept no more. Log how many messages could not be committed."""
    store, before, why = submitted.store, submitted.failed, ""
    try:
        with store.guard:
            submitted.drain("the program is ending: nothing can be submitted any more")
    except NotOpen:  # the space was closed, or belongs to the parent process
        return
    except (KeyboardInterrupt, OSError, SpoolError) as error:
        why = f": {str(error) or type(error).__name__}"
    if lost := submitted.failed - before + submitted.waiting:
        where = store.files.disk.root
        log.warning("%s: the program ends, and %d messages that were submitted were not committed%s", where, lost, why)

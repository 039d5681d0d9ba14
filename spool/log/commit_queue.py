"""The queue of commit requests: which thread commits requests, and which requests share a commit.

One thread at a time leads: the leader takes the waiting requests and commits them together. A thread that finds no
leader leads at once (see ``linger``). A thread that finds a leader waits until its request is done, or until the thread
gets the lead. For requests without a waiting thread (``add``), the commit thread of ``group_commit`` is woken to lead.

This module only keeps state and makes decisions; ``group_commit`` does the work.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident

from spool.coordination.counters import CounterPage
from spool.errors import NotOpen
from spool.log.write_set import Stage, WriteSet

# The limits of the waiting requests and of one commit, in messages and bytes. A larger request is committed alone.
MOST_WAITING, MOST_WAITING_BYTES = 65_536, 32 << 20
MOST_TOGETHER, MOST_TOGETHER_BYTES = 65_536, 16 << 20

CLOSED = "the space is closed: open it again"

LOOK_SECONDS = 0.05
# The longest time that the leader waits for the threads that were woken by the last commits. This time is about half
# the time of a flush.
LINGER_SECONDS = 0.0002


class CommitQueue:
    """The requests in order of arrival. ``wake`` is called when requests wait and no thread leads."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._new_signal = threading.Lock  # makes a signal
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._requests: deque[WriteSet] = deque()
        self._led = False
        self._ended: str | None = None  # the reason why no request may be added any more
        self.waiting = 0  # the number of messages in the waiting requests
        self._bytes = 0
        # The counters, if a thread has read them since a batch was taken. While requests wait, other threads use these
        # counters and need not read them again.
        self.page: CounterPage | None = None
        self._waiting_for_room = 0
        self._callers: set[int] = set()  # threads that waited for the last commit
        self.expected = 0  # the number of threads that waited for the last two commits

    # -- adding -----------------------------------------------------------------------------------------------------

    def join(self, request: WriteSet) -> bool:
        """Add the request of a waiting thread. Return True if the thread leads; otherwise call ``wait`` next.

        If no other request waits or is expected, the request is taken at once: it is a batch of its own.
        """
        request.caller = get_ident()
        with self._mutex:
            if not (self._led or self._requests or self.expected > 1):
                self._led = True
                self.page = None
                request.stage = Stage.TAKEN
                self.expected = len(self._callers | {request.caller})
                self._callers = {request.caller}
                return True
            self._requests.append(request)
            self.waiting += request.messages
            self._bytes += request.size
            if not self._led:
                self._led = True
                return True
            request.signal = self._new_signal()
            request.signal.acquire()
            return False

    def add(self, request: WriteSet) -> None:
        """Add a request that no thread waits for. Raises NotOpen once the queue was closed."""
        with self._mutex:
            if self._ended is not None:
                raise NotOpen(self._ended)
            self._requests.append(request)
            self.waiting += request.messages
            self._bytes += request.size
            if self._led:
                return
            self._led = True
        self._wake()

    def wait_for_room(self, request: WriteSet, check: Callable[[], None]) -> None:
        """Wait until the queue has room for the request, or until ``check``, which is called repeatedly, raises."""
        while not self.has_room(request):
            with self._room:
                if not self.has_room(request):
                    self._waiting_for_room += 1
                    self._room.wait(LOOK_SECONDS)
                    self._waiting_for_room -= 1
            check()

    def has_room(self, request: WriteSet) -> bool:
        """Return whether the queue has room for the request. An empty queue has room for any request."""
        return (
            self.waiting + request.messages <= MOST_WAITING and self._bytes + request.size <= MOST_WAITING_BYTES
        ) or not self._requests

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, request: WriteSet, check: Callable[[], None]) -> bool:
        """Wait until the request is done or this thread leads; return True if this thread leads.

        Until the request is taken, ``check`` is called repeatedly. If ``check`` raises, the request is withdrawn and
        has no effect.
        """
        raised: BaseException | None = None
        assert request.signal is not None
        while not request.signal.acquire(timeout=LOOK_SECONDS):
            if request.stage is Stage.WAITING and raised is None:
                try:
                    check()
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
            self._requests.remove(request)
            self.page = None
            self.waiting -= request.messages
            self._bytes -= request.size
            leads = request.stage is Stage.LEADING
        if leads:
            self.hand_over_lead()
        return True

    # -- leading ----------------------------------------------------------------------------------------------------

    def linger(self) -> None:
        """Wait for further requests of the threads that waited for the last two commits.

        The leader calls this before it takes a batch. If at most one thread is ``expected``, the leader need not call
        this.
        """
        until = time.monotonic() + LINGER_SECONDS
        while len(self._requests) < self.expected and time.monotonic() < until:
            time.sleep(0)  # lets other threads run

    def take_batch(self) -> list[WriteSet]:
        """Take the requests of the next commit; [] if no request waits. The leader calls this."""
        taken: list[WriteSet] = []
        messages = size = 0
        callers: set[int] = set()
        with self._mutex:
            requests = self._requests
            while requests:
                request = requests[0]
                if taken and (messages + request.messages > MOST_TOGETHER or size + request.size > MOST_TOGETHER_BYTES):
                    break
                requests.popleft()
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

    def requeue(self, requests: Sequence[WriteSet]) -> None:
        """Return taken requests to the front of the queue after a commit without effect. The leader calls this."""
        with self._mutex:
            for request in reversed(requests):
                request.stage = Stage.WAITING
                request.begin = None  # (``begin`` was called when the request was taken)
                self._requests.appendleft(request)
                self.waiting += request.messages
                self._bytes += request.size

    def hand_over_lead(self) -> None:
        """Hand the lead to the thread of the first request, or to the commit thread if no thread waits for the request.

        The leader calls this when its own request is done.
        """
        with self._mutex:
            if not self._requests:
                self._led = False
                return
            first = self._requests[0]
            if first.signal is not None:
                first.stage = Stage.LEADING
                first.signal.release()
                return
        self._wake()

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self, because: str = CLOSED) -> None:
        """Refuse new requests that no thread waits for. Requests in the queue are still committed."""
        with self._mutex:
            self._ended = because

    def abandon(self) -> list[WriteSet]:
        """Remove and return the waiting requests; none of them will be committed. Later ``add`` calls raise NotOpen."""
        with self._mutex:
            left = list(self._requests)
            self._requests.clear()
            self.waiting = self._bytes = 0
            self._ended = CLOSED
            self._room.notify_all()
        return left


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

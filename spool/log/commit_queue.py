"""The line of what waits to be committed: who commits it, together with what, and who hears of it.

One at a time *leads*: he takes what has gathered and commits it, for all. Who comes while nobody leads, leads at once,
in his own thread; nobody waits for company. Who comes meanwhile waits until his work is done or the lead is handed to
him. Work that nobody waits for (``put``) is led by a thread of its own, which is woken for it.

State and decisions only; ``group`` does what there is to do.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from threading import get_ident
from typing import Any

from spool.coordination.counters import Page
from spool.errors import NotOpen
from spool.format.batch import CommitBatch
from spool.log.quota import Load, Loads, change_by
from spool.store.store import Store, targets_of

# What may wait, and what one commit carries at most; one piece of work that is larger goes alone.
MOST_WAITING, MOST_WAITING_BYTES = 65_536, 32 << 20
MOST_TOGETHER, MOST_TOGETHER_BYTES = 65_536, 16 << 20

CLOSED = "the space is closed: open it again"

LOOK_SECONDS = 0.05
# As long as this who leads lets those come whom the last commits woke, if there were any; about half a flush.
PATIENCE_SECONDS = 0.0002


class Stage(Enum):
    WAITING = "waiting"
    LEADING = "waiting, and its waiter leads"
    TAKEN = "taken"
    DONE = "done"


class Work:
    """One caller's part of a commit. ``number``: of the commit, once it may be there; ``error``: why it is not.

    ``begin`` is asked as it is taken, and says no if it was cancelled; ``told`` is called once with all of its works
    that are done together; ``future`` is the teller's business.
    """

    __slots__ = (
        "begin", "branch", "bytes", "caller", "error", "first", "future", "messages", "number", "page",
        "signal", "stage", "told",
    )  # fmt: skip

    def __init__(self, page: Page | None, messages: int, size: int) -> None:
        self.page = page  # the counters, as its caller has read them
        self.messages = messages
        self.bytes = size
        self.branch = ""  # its messages' branch, in hex, and the ordinal of the first one in it
        self.first = 0
        self.number: int | None = None
        self.error: BaseException | None = None
        self.caller = 0  # the thread that waits, if one does
        self.stage = Stage.WAITING
        self.signal: threading.Lock | None = None
        self.begin: Callable[[], bool] = _yes
        self.told: Callable[[Sequence[Work]], None] | None = None
        self.future: Any = None

    @property
    def empty(self) -> bool:
        return not self.messages

    def targets(self) -> Iterable[str]:
        """The queues into which it puts, or moves, messages."""
        return ()

    def usage(self, _store: Store) -> Loads:
        """By queue, what it adds, less what it takes away."""
        return {}

    def append_to(self, batch: CommitBatch) -> None:
        """Add its content to a batch, behind what is there."""

    @property
    def ids(self) -> list[str]:
        """Of its messages, once it has its place."""
        return [f"{self.branch}{ordinal:08x}" for ordinal in range(self.first, self.first + self.messages)]

    @property
    def id(self) -> str:
        """Of its first message."""
        return f"{self.branch}{self.first:08x}"


class PutRequest(Work):
    """Messages of one queue, as ``validation.encoded`` groups them; neighbours in the line share a branch."""

    __slots__ = ("groups", "queue")

    def __init__(self, page: Page, queue: str, groups: list[tuple[Sequence[bytes], dict[str, Any]]]) -> None:
        messages = size = 0
        for bodies, _ in groups:
            messages += len(bodies)
            size += sum(map(len, bodies))
        super().__init__(page, messages, size)
        self.queue = queue
        self.groups = groups

    def targets(self) -> Iterable[str]:
        return (self.queue,)

    def usage(self, _store: Store) -> Loads:
        return {self.queue: Load(self.messages, self.bytes)}

    def append_to(self, batch: CommitBatch) -> None:
        self.branch, self.first = batch.shared_branch()
        for bodies, attributes in self.groups:
            batch.put(self.queue, bodies, attributes)


class BranchRequest(Work):
    """A transaction's draft."""

    __slots__ = ("draft",)

    def __init__(self, page: Page, branch: str, draft: CommitBatch) -> None:
        super().__init__(page, draft.messages, draft.size)
        self.branch = branch
        self.draft = draft

    @property
    def empty(self) -> bool:
        return self.draft.empty

    def targets(self) -> Iterable[str]:
        return targets_of(self.draft.tables)

    def usage(self, store: Store) -> Loads:
        return change_by(store, self.draft.tables)

    def append_to(self, batch: CommitBatch) -> None:
        batch.append(self.draft)


class CommitQueue:
    """All that waits, first come, first served. ``wake`` is called when work is there that no caller leads."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._new_signal = threading.Lock  # held until the one who waits is called
        self._mutex = threading.Lock()
        self._room = threading.Condition(self._mutex)
        self._works: deque[Work] = deque()
        self._led = False
        self._ended: str | None = None  # why no more may be put
        self._messages = 0
        self._bytes = 0
        self._page: Page | None = None
        self._callers: set[int] = set()  # who waited for the last commit, and for the one before
        self._callers_before: set[int] = set()

    # -- the counters: who comes while others wait need not read them again ------------------------------------------

    @property
    def page(self) -> Page | None:
        """As they were read since the last commit was taken, if somebody waits."""
        return self._page if self._works else None

    @page.setter
    def page(self, page: Page) -> None:
        self._page = page

    @property
    def waiting(self) -> int:
        """How many messages."""
        return self._messages

    # -- coming -----------------------------------------------------------------------------------------------------

    def join(self, work: Work) -> bool:
        """By a caller who waits. True: he leads; False: he has to ``wait``."""
        work.caller = get_ident()
        with self._mutex:
            self._add(work)
            if not self._led:
                self._led = True
                return True
            work.signal = self._new_signal()
            work.signal.acquire()
            return False

    def put(self, work: Work) -> None:
        """By a caller who does not wait. NotOpen once the line has ended."""
        with self._mutex:
            if self._ended is not None:
                raise NotOpen(self._ended)
            self._add(work)
            if self._led:
                return
            self._led = True
        self._wake()

    def wait_for_room(self, work: Work, check: Callable[[], None]) -> None:
        """Until there is room for it; a piece that is larger than all room waits until the line is empty.

        ``check`` is called now and then, and raises if there is nothing to wait for any more.
        """
        while not self._has_room(work):  # most callers need no lock to see it
            with self._room:
                if not self._has_room(work):
                    self._room.wait(LOOK_SECONDS)
            check()

    def _has_room(self, work: Work) -> bool:
        return (
            self._messages + work.messages <= MOST_WAITING and self._bytes + work.bytes <= MOST_WAITING_BYTES
        ) or not self._works

    def _add(self, work: Work) -> None:
        self._works.append(work)
        self._messages += work.messages
        self._bytes += work.bytes

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, work: Work, check: Callable[[], None]) -> bool:
        """Until the work is done (False), or the lead is the waiter's (True). While it has not been taken, ``check``
        is called now and then; if it raises, the work is withdrawn, and nothing of it happens."""
        raised: BaseException | None = None
        assert work.signal is not None
        while not work.signal.acquire(timeout=LOOK_SECONDS):
            if work.stage is Stage.WAITING and raised is None:
                try:
                    check()
                except BaseException as error:
                    if self._withdraw(work):
                        raise
                    raised = error  # it was taken in this instant: it happens, whole
        if raised is not None and not isinstance(raised, Exception):
            raise raised
        return work.stage is Stage.LEADING

    def _withdraw(self, work: Work) -> bool:
        with self._mutex:
            if work.stage not in (Stage.WAITING, Stage.LEADING):
                return False
            self._works.remove(work)
            self._gone(work)
            leads = work.stage is Stage.LEADING
        if leads:
            self.hand_on()
        return True

    def _gone(self, work: Work) -> None:
        self._messages -= work.messages
        self._bytes -= work.bytes

    # -- leading ----------------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """By who leads: callers who waited for the last two commits are just going on, and likely to come again.

        Who was alone in both never waits here.
        """
        wanted = len(self._callers | self._callers_before)
        if wanted > 1 and len(self._works) < wanted:
            until = time.monotonic() + PATIENCE_SECONDS
            while len(self._works) < wanted and time.monotonic() < until:
                time.sleep(0)  # lets them run

    def take(self) -> list[Work]:
        """By who leads: what is committed together next; [] if there is nothing."""
        taken: list[Work] = []
        messages = size = 0
        with self._mutex:
            while self._works:
                work = self._works[0]
                messages += work.messages
                size += work.bytes
                if taken and (messages > MOST_TOGETHER or size > MOST_TOGETHER_BYTES):
                    break
                self._works.popleft()
                self._gone(work)
                if work.begin():
                    work.stage = Stage.TAKEN
                    taken.append(work)
                else:
                    messages -= work.messages
                    size -= work.bytes
            self._page = None
            self._room.notify_all()
            self._callers_before = self._callers
            self._callers = {work.caller for work in taken if work.caller}
        return taken

    def put_back(self, works: Sequence[Work]) -> None:
        """By who leads and must give up before anything of it happened: they come first again."""
        with self._mutex:
            for work in reversed(works):
                work.stage = Stage.WAITING
                work.begin = _yes  # it has begun
                self._works.appendleft(work)
                self._messages += work.messages
                self._bytes += work.bytes

    def hand_on(self) -> None:
        """The leader's work is done: who is next leads, if anybody waits."""
        with self._mutex:
            if not self._works:
                self._led = False
                return
            first = self._works[0]
            if first.signal is not None:
                first.stage = Stage.LEADING
                first.signal.release()
                return
        self._wake()

    # -- the end ----------------------------------------------------------------------------------------------------

    def end(self, because: str = CLOSED) -> None:
        """Nobody may ``put`` any more; what waits is still committed."""
        with self._mutex:
            self._ended = because

    def abandon(self) -> list[Work]:
        """What waits, and will never be committed."""
        with self._mutex:
            left = list(self._works)
            self._works.clear()
            self._messages = self._bytes = 0
            self._ended = CLOSED
            self._room.notify_all()
        return left


def _yes() -> bool:
    return True


def tell(works: Sequence[Work]) -> None:
    """They are done: each hears of it, once, those with a common ear in one call."""
    ears: dict[Callable[[Sequence[Work]], None], list[Work]] = {}
    for work in works:
        work.stage = Stage.DONE
        if work.signal is not None:
            work.signal.release()
        elif work.told is not None:
            ears.setdefault(work.told, []).append(work)
    for told, theirs in ears.items():
        told(theirs)

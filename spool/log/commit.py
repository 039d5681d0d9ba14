"""The one way to commit: how a batch becomes a numbered file that is durable, visible and applied.

A put, a get, a transaction, a group of them, counted tries, expired messages, merged tombstones, a compaction and an
adoption of prepared branches each are a ``CommitBatch``, which ``commit`` takes through the same nine steps. One kind
of file gets a number elsewhere: the empty commit in the place of what a dead writer left, since that number was
issued before (``sequence.finish_dead_writer``).

Invariants. The rules are those of docs/architecture.md, "The rules that keep processes apart":

1. Until a file's number is stored as issued nothing has happened: whatever fails before, the file is removed, or, if it
   has its name by then, it ends as an empty commit.
2. Behind that it is never removed or written again: whatever fails then, the outcome is unknown, and the caller is told
   so (CommitUnknown).
3. A number is given out under the number lock, in this order: hold its byte, rename the file without replacing, store
   *issued* (rule 1). The file is stamped with it behind that: no two files ever carry one number, and what is not
   issued did nothing.
4. What ``check`` has seen is still so when the file gets its number: both happen under one hold of the number lock
   (rule 5).
5. A number is published behind its flush and behind all earlier numbers; only then does the caller hear of it (rule 2).
6. A number's byte is held from before it is issued until it is published or the space has stopped (rules 3 and 7).
7. A file in ``active/`` has an owner: the byte of its xid is held while it lies there (rule 6).
8. A flush that fails is not tried again; the space stops before any lock is let go of (rule 7).
9. A commit is published without a flush only if it concerns no queue but those that may lose messages, or its caller
   asks for that; and what it moves into another queue is flushed with it (rule 16).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from spool.coordination.counters import CounterPage
from spool.coordination.locks import NUMBER, LockFile, xid_byte
from spool.disk.disk import Disk, FlushFailed
from spool.errors import NO_ROOM, CommitUnknown, NotOpen, QueueNotFound, SpaceStopped, SystemFailure
from spool.format.batch import CommitBatch, destinations_of
from spool.format.header import stamp
from spool.format.reader import FileContents
from spool.format.schema import ADDRESSING
from spool.format.table import Table
from spool.format.writer import CommitFileWriter
from spool.index.commit import Commit, Part
from spool.log.sequence import flush_commit, flush_published, settle_all, settle_to, with_number_lock
from spool.log.visibility import apply_own, catch_up
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.xid import new_local_xid
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.parts import View
from spool.store.settings import Settings
from spool.store.store import WAIT_SECONDS, Store

# Called under the number lock, with the settings as they are then; raises if the commit must not happen.
Check = Callable[[Settings], object]


def commit(
    store: Store,
    file: CommitFileWriter,
    batch: CommitBatch,
    *,
    seconds: float | None = WAIT_SECONDS,
    check: Check | None = None,
    flush: bool = True,
    page: CounterPage | None = None,
    make_room: Callable[[], object] | None = None,
) -> int:
    """Commit a batch in a file of its own; returns the number. The caller holds the byte of the file's xid.

    Args:
        seconds: how long each lock that is not free is waited for; None: without a limit. No wait counts the time that
            a large file, a full disk or the flush took.
        check: what must still be so when the file gets its number.
        flush: False publishes the commit without a flush: a power cut may forget it. True flushes it, unless it is
            about queues alone that may lose messages.
        page: the counters, if the caller has just read them.
        make_room: called once if the disk is full, before the file is written again.

    Raises:
        CommitUnknown: the file has its number, and what followed failed. Of everything else nothing has happened.
    """
    asked, known = flush, store.settings.known
    try:
        # 1. Write the whole file in active/, where nothing refers to it yet. A file that supersedes others must be true
        #    at its own number: its end is written in step 3, behind ``check``.
        if flush and known.config.may_lose:
            flush = file.streamed or _needs_flush(store.view, known.config, batch, batch.tables)
            if not flush:
                _keep_pace(store, page)
        if not batch.supersedes:
            write(store, file, batch, page, flush=flush, recycle=flush, make_room=make_room)
        number, contents = _issue(store, file, batch, seconds, check)  # steps 2 to 6
    except BaseException:
        file.abandon()
        raise
    try:
        # 7. Stamp the file with its number, and flush it, here and in the mirror: it is committed if its bytes are on
        #    the disk.
        assert file.handle is not None
        store.files.disk.write_at(file.handle, *stamp(number))
        flush = flush or (asked and store.settings.known is not known)  # its queue may have durability by now
        if store.view.index.unflushed:
            flush = _flush_moved(store, batch, contents.tables) or flush
        if store.files.mirror is not None:
            store.files.mirror.flush_both(number, file.flush if flush else _nothing)
        elif flush:
            file.flush()
        # 8. Publish it behind all earlier numbers: now it is visible to all processes.
        if not store.shared.counters.publish_next(number, durable=flush):
            _publish_behind(store, number, seconds, flushed=flush)
    except FlushFailed as error:
        store.stop()  # before the byte is free: no process may take this file for a whole one
        raise CommitUnknown(f"flushing commit {number} failed ({error}); {_LOOK}") from error
    except (WaitExpired, SpaceStopped, NotOpen) as error:
        raise CommitUnknown(f"commit {number} could not be made visible: {error}; {_LOOK}") from error
    except OSError as error:
        raise CommitUnknown(f"commit {number} could not be finished ({error}); {_LOOK}") from error
    finally:
        store.shared.numbers.unlock(number)
        file.close()
    # 9. Keep what it did: the next look of this process applies it, behind the commits of others.
    _keep(store, number, contents, batch)
    return number


# Commits of this process that are kept until a look applies them; behind one of so many messages they are applied now.
_MOST_OWN, _LARGE_MESSAGES = 16, 1024
_LOOK = "the commit may or may not have happened: open the space again, and look for its messages"


def _issue(
    store: Store, file: CommitFileWriter, batch: CommitBatch, seconds: float | None, check: Check | None
) -> tuple[int, FileContents]:
    """Give the file its number; returns it, and the file as a reader finds it. This process holds the number's byte
    then."""
    # 2. One process at a time, from the last look at what is there to the name of the file. (Here and below, a deadline
    #    is made only where a lock is not free.)
    if not store.shared.control.try_lock(NUMBER):
        with_number_lock(store.shared.control, store.deadline(seconds))
    try:
        # 3. Look whether it may still happen: the space has not stopped, the queues are there, and ``check``. If it
        #    supersedes others, every commit before it is applied now, and ``check`` may complete the batch by that.
        if store.guard.closed:
            store.guard.check()
        page = store.shared.counters.read()
        if page.is_stopped:
            page.check()
        settings = store.settings.known
        if page.settings != settings.version:
            settings = store.settings.current(page)
        check_destinations(settings, file.tables)
        if batch.supersedes:
            settle_all(store, store.deadline(seconds))
            catch_up(store)
        if check is not None:
            check(settings)
        if batch.supersedes:
            write(store, file, batch, page)
        # 4. Hold the byte of the next number.
        number = _hold_number(store, page.issued + 1, seconds)
        try:
            # 5. Note in shared memory what it does, and rename the file. Until the file is stamped, too, it is no
            #    commit.
            contents = file.contents(number)
            store.shared.feed.put(number, contents, batch.adopted)
            store.files.disk.rename_new(file.name, layout.COMMITTED_FILE % number)
            # 6. Store it as issued. A file that is not issued is never stamped: if this fails, the number ends as an
            #    empty commit.
            store.shared.counters.store_issued(number)
            file.number = number
        except BaseException:
            store.shared.numbers.unlock(number)
            raise
        return number, contents
    finally:
        store.shared.control.unlock(NUMBER)


def _hold_number(store: Store, number: int, seconds: float | None) -> int:
    """Hold the byte of the next number, from this one on, that no file has; returns the number.

    A file has it whose writer died before *issued* was stored. The look comes behind the lock: the process that had the
    byte may have been finishing the number.
    """
    while number <= layout.MAX_NUMBER:
        if not store.shared.numbers.try_lock(number):
            store.shared.numbers.lock(number, store.deadline(seconds), f"the number {number}")
        free = False
        try:
            free = not store.files.disk.exists(layout.COMMITTED_FILE % number)
            if free:
                return number
        finally:
            if not free:
                store.shared.numbers.unlock(number)
        number += 1
    raise SystemFailure("the space has used up its commit numbers: export it and import it into a new one")


def _publish_behind(store: Store, number: int, seconds: float | None, *, flushed: bool) -> None:
    """Publish the number once all earlier ones are published. Caller holds its byte. Rule 2.

    Other processes wait for it, so the close of the space does not end the wait.
    """
    page = settle_to(store, number - 1, store.deadline(seconds)._replace(check=None))
    if page.published < number:  # never back, whatever happened to run/
        store.shared.counters.store_published(number, durable=flushed and page.durable == number - 1)


def check_destinations(settings: Settings, tables: Iterable[Table]) -> None:
    """Raise QueueNotFound if a queue is gone into which these put or move messages.

    Caller holds a lock under which no queue can be deleted; ``settings`` are current under it.
    """
    queues = settings.config.queues
    for queue in destinations_of(tables):
        if queue not in queues:
            raise QueueNotFound(f"queue {queue!r} was deleted meanwhile: nothing was put into it")


def write(
    store: Store,
    file: CommitFileWriter,
    batch: CommitBatch,
    page: CounterPage | None = None,
    *,
    flush: bool = True,
    recycle: bool = False,
    make_room: Callable[[], object] | None = None,
) -> None:
    """Write the whole batch and its header into the file in ``active/``, without a number: step 1, and a vote.

    Args:
        recycle: overwrite a consumed file, if there is one. Only a file that is flushed and gets a number may: by its
            number it is told from its old content after a power cut, and given its name again (Rule 13).
        page, flush, make_room: see ``commit``.
    """
    now, durable = store.clock.now(), (page or store.shared.counters.read()).durable
    pool = store.files.recycler if recycle else None
    try:
        file.complete(batch, now, durable, flushed=flush, pool=pool)
    except OSError as error:
        if make_room is None or file.streamed or error.errno not in NO_ROOM:
            raise
        file.abandon()
        make_room()
        file.complete(batch, now, durable, flushed=flush, pool=pool)


# -- commits without a flush: rule 16 ----------------------------------------------------------------------------------

# An opener after a power cut makes that many numbers durable one by one, and gives up at far more that have no file.
MOST_UNFLUSHED = 4_096


def _needs_flush(view: View, config: SpaceConfig, batch: CommitBatch, tables: Iterable[Table]) -> bool:
    """Whether a commit may not be lost: unless all that it puts, changes, moves and removes is of queues that may lose
    messages. ``tables``: all of the batch."""
    if batch.facts or batch.adopts or batch.supersedes:
        return True
    for table in tables:
        if not config.may_lose.issuperset(table.queues):
            return True
        for name, *about in table.commands:
            if name not in ADDRESSING or not config.may_lose.issuperset(_queues_of(view, *about)):
                return True
    return False


def _queues_of(view: View, number: int, first: int, count: int, how: str | Mapping[str, Any]) -> set[str]:
    """Return the queues of the messages that a command addresses, and that into which it moves them; "" stands for
    those of messages that are gone, or compacted: to look for these may fail."""
    queues = {how["queue"]} if isinstance(how, Mapping) and "queue" in how else set[str]()
    end = first + count
    with view.mutex:
        while first < end:
            run, first = view.index.messages.run_at(number, first, end)
            queues.add("" if run is None else run.queue.name)
    return queues


def _flush_moved(store: Store, batch: CommitBatch, tables: Iterable[Table]) -> bool:
    """Flush the files, published without that, of messages which these tables, or branches that the batch adopts, move
    into queues that lose none. Returns whether there are any: then the commit must be flushed, too."""
    durable, may_lose = store.shared.counters.read().durable, store.settings.known.config.may_lose
    moved = {
        command[1]
        for table in chain(tables, *(branch.tables for branch in batch.adopted))
        for command in table.commands
        if command[0] == "update" and "queue" in command[4] and command[4]["queue"] not in may_lose
    }
    late = [number for number in moved & store.view.index.unflushed if number > durable]
    for number in late:
        flush_commit(store.files.disk, number)
    return bool(late)


def _keep_pace(store: Store, page: CounterPage | None) -> None:
    """Flush what was published without a flush, if that is much by now."""
    page = page or store.shared.counters.read()
    if page.issued - page.durable >= MOST_UNFLUSHED:
        flush_published(store)


def _nothing() -> None:
    pass


def _as_read(number: int, own: FileContents, batch: CommitBatch) -> Commit:
    """Return the commit as a process reads it from its files. ``own``: what its own file holds."""
    new = tuple.__new__  # (a named tuple's own is a function of Python)
    parts = [new(Part, (0, None, 0, own))]
    for place, (adoption, contents) in enumerate(zip(batch.adopts, batch.adopted, strict=True), 1):
        parts += (new(Part, (place, adoption.xid, adoption.first, contents)),)
    return new(Commit, (number, parts, []))


def _keep(store: Store, number: int, contents: FileContents, batch: CommitBatch) -> None:
    """Keep what a commit of this process did, for its next look, which need not read the file.

    So a process that only puts neither reads what others wrote nor sorts what it wrote itself. When many are kept, they
    are applied, or, where a commit of another process comes before them, the oldest are dropped.
    """
    view = store.view
    with view.mutex:
        if number > view.index.applied:  # else another thread was faster, and has read it
            own = view.own_commits
            own[number] = partial(_as_read, number, contents, batch)
            if len(own) > _MOST_OWN or batch.messages >= _LARGE_MESSAGES:
                apply_own(store)
                while len(own) > _MOST_OWN:
                    del own[next(iter(own))]


# -- commits of the engine's own ---------------------------------------------------------------------------------------


@contextmanager
def own_file(
    disk: Disk, xids: LockFile, deadline: Deadline, header_room: int | None = None
) -> Iterator[CommitFileWriter]:
    """Make a new file in ``active/`` and hold its xid's byte; the file is gone afterwards unless it was committed."""
    xid = new_local_xid()
    byte = xid_byte(xid)
    xids.lock(byte, deadline, f"the branch {xid}")
    try:
        file = CommitFileWriter(disk, xid, header_room)
        try:
            yield file
        finally:
            if file.number is None:
                file.abandon()
    finally:
        xids.unlock(byte)


def commit_batch(
    store: Store, batch: CommitBatch, deadline: Deadline, *, flush: bool, check: Check | None = None
) -> int:
    """Commit a batch of the engine's own, without a caller's transaction; returns the number, which is applied here.

    Arguments and errors as of ``commit``.
    """
    with own_file(store.files.disk, store.shared.xids, deadline) as file:
        number = commit(store, file, batch, seconds=deadline.seconds, check=check, flush=flush)
    catch_up(store)
    return number

"""The one way to commit: how a batch becomes a numbered file that is durable, visible and applied.

Each change is a ``WriteSet``: a put, a get, a transaction or a group of transactions, counted attempts, expired
messages, merged tombstones, a compaction, or an adoption of prepared branches. ``commit`` takes every batch through the
same nine steps. Besides ``commit`` only ``sequence.finish_dead_writer`` writes numbered files: empty commits under
numbers that were issued to dead writers.

Invariants, with the numbers of the rules in docs/architecture.md, "The rules that keep processes apart":

1. Until a file's number is stored as issued, the batch has no effect. If a step fails before that point, the file is
   removed. If the file has its numbered name already, the number ends as an empty commit.
2. Once the number is issued the file is never removed or rewritten; any later failure raises CommitUnknown. If no step
   expects the failure, e.g. a MemoryError, the space closes itself, and other processes settle the number as a dead
   writer's number.
3. A number is issued under the number lock, in this order: hold the number's byte, rename the file without replacing
   another file, store *issued* (rule 1). The file is stamped with the number afterwards. So no two files ever carry the
   same number, and a file without an issued number has no effect.
4. The number lock is held from ``check`` to the numbering. So the state that ``check`` accepted is unchanged when the
   file gets its number (rule 5).
5. A number is published after the flush of its file and after all earlier numbers. The call returns only after the
   publication (rule 2).
6. A process takes a number's byte before it issues the number. The process holds the byte until the number is published
   or the space stops (rules 3, 7).
7. Each file in ``active/`` has an owner. The owner holds the byte of the file's xid until the file leaves ``active/``
   (rule 6).
8. A failed flush is never retried; the space stops before any lock is released (rule 7).
9. A commit is published without a flush only if all its queues may lose messages, or the caller passes ``flush=False``.
   If a commit moves messages into a queue that must not lose any, the files of these messages are flushed with the
   commit (rule 16).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from time import perf_counter

from spool.coordination.counters import CounterPage
from spool.coordination.locks import NUMBER, xid_byte
from spool.disk.disk import FlushFailed
from spool.errors import NO_ROOM, CommitUnknown, NotOpen, QueueNotFound, SpaceStopped, SystemFailure
from spool.format.commands import Addressing
from spool.format.header import stamp
from spool.format.reader import FileContents
from spool.format.table import CompactedTable, Table
from spool.index.commit import Commit, Part
from spool.log.commit_file import CommitFileWriter
from spool.log.deciding import lock_settled
from spool.log.sequence import flush_commit, flush_published, settle_to, with_number_lock
from spool.log.visibility import apply_own, catch_up
from spool.log.write_set import WriteSet, destinations_of
from spool.model import layout
from spool.model.settings import SpaceConfig
from spool.model.xid import new_local_xid
from spool.runtime.clock import Deadline, WaitExpired
from spool.runtime.tearing import is_failed_step, raise_if_torn, was_delivered
from spool.store.feed import note_of
from spool.store.parts import View
from spool.store.settings import Settings
from spool.store.store import WAIT_SECONDS, Store

# Called under the number lock, with the current settings; raises if the commit must not happen.
Check = Callable[[Settings], object]
# Returns an iterator that yields each time when a commit may find room on a full disk.
Rooms = Callable[[], Iterator[object]]
no_rooms: Rooms = partial(iter, ())


def commit(
    store: Store,
    file: CommitFileWriter,
    batch: WriteSet,
    *,
    seconds: float | None = WAIT_SECONDS,
    check: Check | None = None,
    settled: bool = False,
    on_applied: Callable[[], object] = lambda: None,
    flush: bool = True,
    page: CounterPage | None = None,
    rooms: Rooms = no_rooms,
    issued: Callable[[int], object] | None = None,
    requests: int = 1,
) -> int:
    """Commit a batch in a separate file, and return its number. The caller holds the byte of the file's xid.

    Args:
        seconds: the limit of each wait for a lock, or None without a limit. ``seconds`` does not limit the time to
            write a large file, to make room on a full disk, or to flush.
        check: called just before the file gets its number; raises if the commit must not happen any more. The number
            lock is held, so the time of the call must not depend on the size of any commit. Unless the commit is
            ``settled`` or supersedes others, ``check`` is called only if the settings have limits.
        settled: whether ``check`` needs every issued commit to be applied. If so, commits are applied before the number
            lock is taken, and few small commits are left for ``check``.
        on_applied: called after these commits are applied, without the lock: see ``lock_settled``.
        flush: False publishes the commit without a flush: a power cut may lose the commit. True flushes the commit,
            unless all its queues may lose messages. On a full disk, the commit overwrites a kept file, and is flushed.
        page: the counters, if the caller has just read them.
        rooms: called if the disk is full; the file is written again at each value that the iterator yields.
        issued: called with the number once it is issued, before the file is stamped.
        requests: the number of puts, gets and transactions in the batch, for the meters.

    Raises:
        CommitUnknown: a step failed after the number was issued. After any other error nothing has happened.
        LockTimeout, WaitExpired: a lock did not become free in time.
        Overtaken: the batch supersedes commits, and other processes commit too fast.
    """
    asked, known, begun = flush, store.settings.known, perf_counter()
    flush_seconds: float | None = None
    try:
        # 1. Write the whole file in active/, where nothing refers to the file yet. A file that supersedes others must
        #    be correct at the moment when it gets its number. So step 3 completes the file, after ``check``.
        if flush and known.config.may_lose:
            flush = file.streamed or _needs_flush(store.view, known.config, batch, batch.tables)
            if not flush:
                _keep_pace(store, page)
        if not batch.supersedes:
            write(store, file, batch, page, flush=flush, recycle=flush, rooms=rooms)
            flush = flush or file.recycled != ""
        number, contents = _issue(store, file, batch, seconds, check, settled, on_applied, issued)  # steps 2 to 6
        try:
            # 7. Stamp the file with its number, and flush the file and its copy in the mirror. The batch is committed
            #    once the bytes are on the disk.
            assert file.handle is not None
            store.files.disk.write_at(file.handle, *stamp(number))
            flush = flush or (asked and store.settings.known is not known)  # an edit may have made a queue durable
            if store.view.index.unflushed:
                flush = _flush_moved(store, batch, contents.tables) or flush
            if flush:
                flushed_from = perf_counter()
                store.files.copies.flush_commit(number, file.handle, stamped=file.recycled != "")
                flush_seconds = perf_counter() - flushed_from
            else:
                store.files.copies.copy(number)
            # 8. Publish the number after all earlier numbers: now the commit is visible to all processes.
            tables: Iterable[Table] = contents.tables
            if batch.adopted:
                tables = chain(tables, *(branch.tables for branch in batch.adopted))
            arrived = arrived_in(tables)
            if not store.shared.counters.publish_next(number, durable=flush, arrived=arrived):
                _publish_behind(store, number, seconds, flushed=flush, arrived=arrived)
        except FlushFailed as error:
            store.stop()  # stop before the byte is released, so that no process takes this file for a whole commit
            raise CommitUnknown(f"flushing commit {number} failed ({error}); {_LOOK}") from error
        except (WaitExpired, SpaceStopped, NotOpen) as error:
            raise CommitUnknown(f"commit {number} could not be made visible: {error}; {_LOOK}") from error
        except OSError as error:
            raise_if_torn(error)
            raise CommitUnknown(f"commit {number} could not be finished ({error}); {_LOOK}") from error
        finally:
            store.shared.numbers.unlock(number)
            file.close()
        # 9. Keep the commit in memory: the index of this process applies the commit after all earlier ones.
        _keep(store, number, contents, batch)
        store.meters.note_commit((requests, perf_counter() - begun, flush_seconds))
        return number
    except CommitUnknown:
        raise
    except BaseException as error:
        if file.number is None:
            file.abandon()
            raise
        if not was_delivered(error):
            store.guard.tear(error)  # a lock may still be held: it is released as the space closes
        if not is_failed_step(error):
            raise
        raise CommitUnknown(f"{type(error).__name__} interrupted commit {file.number}; {_LOOK}") from error


# The index applies the kept commits of this process once more than ``_MOST_OWN`` are kept, and after a commit that
# puts, removes or changes at least ``_LARGE_MESSAGES`` messages.
_MOST_OWN, _LARGE_MESSAGES = 16, 1024
_LOOK = "the commit may or may not have happened: open the space again, and look for its messages"


def _issue(
    store: Store,
    file: CommitFileWriter,
    batch: WriteSet,
    seconds: float | None,
    check: Check | None,
    settled: bool,
    on_applied: Callable[[], object],
    issued: Callable[[int], object] | None,
) -> tuple[int, FileContents]:
    """Give the file its number, and hold the number's byte; return the number and the file's contents."""
    # 2. Take the number lock: only one process at a time takes the steps 3 to 6. No step under the lock takes longer
    #    for a larger commit. (Here and below, a deadline is made only if a lock is not free.)
    destinations = None if batch.settings == store.settings.known.version else destinations_of(file.tables)
    settled = settled or bool(batch.supersedes)
    if settled:
        lock_settled(store, seconds, insists=not batch.supersedes, on_applied=on_applied)
    elif not store.shared.control.try_lock(NUMBER):
        with_number_lock(store.shared.control, store.deadline(seconds))
    try:
        # 3. Check that the commit may still happen: the space has not stopped, the queues exist, and ``check`` passes.
        #    If the commit supersedes others, every earlier commit is applied now, and ``check`` may complete the batch.
        if store.guard.closed:
            store.guard.check()
        page = store.shared.counters.read()
        if page.is_stopped:
            page.check()
        settings = store.settings.known
        if page.settings != settings.version:
            settings = store.settings.current(page)
        if batch.settings != page.settings:  # (otherwise the caller has found the queues under these settings)
            check_destinations(settings, destinations_of(file.tables) if destinations is None else destinations)
        if check is not None and (settled or settings.config.has_limits):
            check(settings)
        if batch.supersedes:
            write(store, file, batch, page)
        # 4. Hold the byte of the next number, and rename the file. The file is no commit until it is stamped.
        number = _take_number(store, file.name, page.issued + 1, seconds)
        try:
            # 5. Record the effects in shared memory.
            contents = file.contents(number)
            store.shared.feed.write(number, note_of(contents, batch.adopted))
            # 6. Store the number as issued. A file without an issued number is never stamped: if this step fails, the
            #    number ends as an empty commit.
            store.shared.counters.store_issued(number)
            file.number = number
            if issued is not None:
                issued(number)
        except BaseException:
            store.shared.numbers.unlock(number)
            raise
        return number, contents
    finally:
        store.shared.control.unlock(NUMBER)


def _take_number(store: Store, name: str, number: int, seconds: float | None) -> int:
    """Rename the file to the first free number at or above ``number``; return this number, and hold its byte.

    A writer may have died before it stored *issued*, and left a file with the next number. The rename finds such a file
    while this thread holds the byte, because the last holder may have been finishing the number.
    """
    while number <= layout.MAX_NUMBER:
        if not store.shared.numbers.try_lock(number):
            store.shared.numbers.lock(number, store.deadline(seconds), f"the number {number}")
        try:
            store.files.disk.rename_new(name, layout.COMMITTED_FILE % number)
            return number
        except BaseException as error:
            store.shared.numbers.unlock(number)
            if not isinstance(error, FileExistsError):
                raise
        number += 1
    raise SystemFailure("the space has used up its commit numbers: export it and import it into a new one")


def _publish_behind(
    store: Store, number: int, seconds: float | None, *, flushed: bool, arrived: Mapping[str, int] | None
) -> None:
    """Publish the number once all earlier numbers are published. Caller holds the number's byte. Rule 2.

    Other processes wait for this number, so a close of the space does not end the wait.
    """
    page = settle_to(store, number - 1, store.deadline(seconds)._replace(check=None))
    if page.published < number:  # *published* never goes back, even if run/ was damaged
        durable = flushed and page.durable == number - 1
        store.shared.counters.store_published(number, durable=durable, arrived=arrived)


# The control fields of messages that some waiting calls cannot take at once.
_NOT_FOR_ALL = frozenset(("delay", "not_before", "group"))


def arrived_in(tables: Iterable[Table]) -> dict[str, int] | None:
    """Return, for each queue, the number of messages in these tables that any waiting call can take at once.

    None if the tables may also make other messages available, or messages that only some calls can take.
    """
    arrived: dict[str, int] = {}
    for table in tables:
        if type(table) is CompactedTable:
            continue
        for command in table.commands:
            if command.name != "remove":
                return None
        for queue, attributes, count in table.runs:
            if not _NOT_FOR_ALL.isdisjoint(table.attributes[attributes]):
                return None
            name = table.queues[queue]
            arrived[name] = arrived.get(name, 0) + count
    return arrived


def check_destinations(settings: Settings, destinations: Iterable[str]) -> None:
    """Raise QueueNotFound if one of these queues, into which a file puts or moves messages, was deleted.

    The caller holds a lock under which no queue can be deleted. ``settings``: the current settings under that lock.
    """
    queues = settings.config.queues
    for queue in destinations:
        if queue not in queues:
            raise QueueNotFound(f"queue {queue!r} was deleted meanwhile: nothing was put into it")


def write(
    store: Store,
    file: CommitFileWriter,
    batch: WriteSet,
    page: CounterPage | None = None,
    *,
    flush: bool = True,
    recycle: bool = False,
    rooms: Rooms = no_rooms,
) -> None:
    """Write the whole batch and its header into the file in ``active/``, without a number. Step 1 of ``commit`` and a
    vote call this.

    Args:
        recycle: overwrite a consumed file, if one exists. Recycling is safe only for a file that is flushed and gets a
            number or the mark of a vote. After a power cut, this stamp distinguishes the new content from the old, and
            restores the name (Rule 13). On a full disk, every file that gets a number overwrites a consumed file, and
            must then be flushed.
        page, flush, rooms: see ``commit``.
    """
    now, durable = store.clock.now(), (page or store.shared.counters.read()).durable
    pool = store.files.recycler if recycle else None
    left: Iterator[object] | None = None
    while True:
        try:
            return file.complete(batch, now, durable, flushed=flush, pool=pool)
        except OSError as error:
            if file.streamed or batch.supersedes or error.errno not in NO_ROOM:
                raise
            file.abandon()
            if pool is None:
                pool, flush = store.files.recycler, True
                continue
            if left is not None and batch.messages:
                raise  # a put does not wait for the few files that are kept for gets
            left = rooms() if left is None else left
            if not next(left, None):
                raise


# -- commits without a flush: rule 16 ----------------------------------------------------------------------------------

# The greatest number of published commits that are not flushed yet. After a power cut an opener makes up to this many
# numbers durable one by one, and gives up if far more numbers have no file.
MOST_UNFLUSHED = 4_096


def _needs_flush(view: View, config: SpaceConfig, batch: WriteSet, tables: Iterable[Table]) -> bool:
    """Return whether a commit must be flushed.

    A commit that has ``facts``, adopts branches or supersedes commits needs a flush. Any other commit needs no flush if
    all its queues may lose messages.

    ``tables``: all tables of contents of the batch.
    """
    if batch.facts or batch.adopts or batch.supersedes:
        return True
    for table in tables:
        if not config.may_lose.issuperset(table.queues):
            return True
        for command in table.commands:
            if command.name == "take" or command.name == "left":
                return True
            if not config.may_lose.issuperset(_queues_of(view, command)):
                return True
    return False


def _queues_of(view: View, command: Addressing) -> set[str]:
    """Return the queues of the messages that a command addresses, and the target queue of a move.

    "" stands for the queue of a consumed or compacted message, because a search for that message may fail.
    """
    queues = {command.changes["queue"]} if command.name == "update" and "queue" in command.changes else set[str]()
    first, end = command.first, command.first + command.length
    with view.mutex:
        while first < end:
            run, first = view.index.messages.run_at(command.number, first, end)
            queues.add("" if run is None else run.queue.name)
    return queues


def _flush_moved(store: Store, batch: WriteSet, tables: Iterable[Table]) -> bool:
    """Flush the files of messages that the batch or its branches move into queues that must not lose messages.

    Files that are durable already are skipped. Returns True if a file was flushed: then the commit must also be
    flushed.
    """
    durable, may_lose = store.shared.counters.read().durable, store.settings.known.config.may_lose
    moved = {
        command.number
        for table in chain(tables, *(branch.tables for branch in batch.adopted))
        for command in table.commands
        if command.name == "update" and "queue" in command.changes and command.changes["queue"] not in may_lose
    }
    late = [number for number in moved & store.view.index.unflushed if number > durable]
    for number in late:
        flush_commit(store.files.disk, number)
    return bool(late)


def _keep_pace(store: Store, page: CounterPage | None) -> None:
    """Flush the commits that were published without a flush, if there are at least ``MOST_UNFLUSHED``."""
    page = page or store.shared.counters.read()
    if page.issued - page.durable >= MOST_UNFLUSHED:
        flush_published(store)


def _as_read(number: int, own: FileContents, adopted: Sequence[FileContents]) -> Commit:
    """Return the commit as a process reads it from the commit's files.

    ``own``: the contents of the numbered file. ``adopted``: those of the branches that it adopts.
    """
    new = tuple.__new__  # (NamedTuple's own ``__new__`` runs Python code)
    parts: list[Part] = [new(Part, (0, None, 0, own))]
    for place, (adoption, contents) in enumerate(zip(own.header.adopts, adopted, strict=True), 1):
        parts += (new(Part, (place, adoption.xid, adoption.first, contents)),)
    return new(Commit, (number, parts, []))


def _keep(store: Store, number: int, contents: FileContents, batch: WriteSet) -> None:
    """Keep the effects of this process's own commit, so that its index need not read the file.

    So a process that only puts messages neither reads the commits of other processes nor sorts its own messages. When
    many commits are kept, the index applies them. If the index lacks an earlier commit of another process, the oldest
    kept commits are dropped instead.
    """
    view = store.view
    with view.mutex:
        if number > view.index.applied:  # otherwise another thread has read the file already
            own, messages = view.own_commits, batch.messages
            for adoption in batch.adopts:
                messages += adoption.count
            for file in (contents, *batch.adopted):
                for table in file.tables:
                    for command in table.commands:
                        messages += command.length if command.name == "remove" or command.name == "update" else 1
            own[number] = partial(_as_read, number, contents, batch.adopted)
            if len(own) > _MOST_OWN or messages >= _LARGE_MESSAGES:
                apply_own(store)
                while len(own) > _MOST_OWN:
                    del own[next(iter(own))]


# -- commits by the engine itself ------------------------------------------------------------------------------------


@contextmanager
def own_file(store: Store, deadline: Deadline, supersedes: int = 0) -> Iterator[CommitFileWriter]:
    """Create a file in ``active/`` and hold the byte of its xid; at the end an uncommitted file is removed.

    Args:
        supersedes: the greatest number of commits that the file will supersede. The header has the numbers of these
            commits, and is written last, under the number lock. If the header became too large for its reserved space,
            all sections would have to move.
    """
    xid = new_local_xid()
    with store.shared.xids.holding(xid_byte(xid), deadline, f"the branch {xid}"):
        file = CommitFileWriter(store.files.disk, xid, (16 << 10) + 10 * supersedes if supersedes else None)
        try:
            yield file
        finally:
            if file.number is None:
                file.abandon()


def commit_batch(
    store: Store,
    batch: WriteSet,
    deadline: Deadline,
    *,
    flush: bool,
    check: Check | None = None,
    settled: bool = False,
) -> int:
    """Commit a batch of the engine itself, outside of any transaction; return the number.

    Afterwards the index of this process has the commit. For the arguments and errors, see ``commit``.
    """
    with own_file(store, deadline) as file:
        number = commit(store, file, batch, seconds=deadline.seconds, check=check, settled=settled, flush=flush)
    catch_up(store)
    return number


class _Outdated(Exception):
    """The condition of ``commit_if`` does not hold any more."""


def commit_if(store: Store, batch: WriteSet, holds: Callable[[], bool]) -> int | None:
    """Commit a batch as ``commit_batch`` does, with a flush, if a condition holds; return the number, or None.

    The condition is checked under the number lock, once every issued commit is applied. So no other commit can change
    the result.
    """

    def check(_: object) -> None:
        if not holds():
            raise _Outdated

    try:
        return commit_batch(store, batch, store.deadline(), flush=True, check=check, settled=True)
    except _Outdated:
        return None

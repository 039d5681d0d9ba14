"""The one way to commit and to vote: a file takes the next number, or the name of a vote, and is then made durable.

Each change is a ``WriteSet``: a put, a get, a transaction or a group of transactions, counted attempts, expired
messages, merged tombstones, a compaction, an adoption of prepared branches, or a vote. ``write`` takes each of them
through the same steps. ``COMMITTED`` and ``PREPARED`` are the two places for the file, and have all that differs.
Besides ``write`` only ``sequence.finish_dead_writer`` writes numbered files: empty commits under numbers that were
issued to dead writers. ``fate_of`` alone decides what a failure means.

Invariants, with the numbers of the rules in docs/architecture.md, "The rules that keep processes apart":

1. Until a file's number is stored as issued, the write sets have no effect. If a step fails before that point, the file
   is removed. If the file has its numbered name already, the number ends as an empty commit.
2. Once the number is issued the file is never removed or rewritten; any later failure raises CommitUnknown. If no step
   expects the failure, e.g. a MemoryError, the space closes itself, and other processes settle the number as a dead
   writer's number.
3. A number is issued under the number lock, in this order: hold the number's byte, rename the file without replacing
   another file, store *issued* (rule 1). The file is stamped with the number afterwards. So no two files ever carry the
   same number, and a file without an issued number has no effect.
4. The number lock is held from the checks to the numbering. So the state that they accepted is unchanged when the
   file gets its number (rule 5).
5. A number is published after the flush of its file and after all earlier numbers. The call returns only after the
   publication (rule 2).
6. A process takes a number's byte before it issues the number. The process holds the byte until the number is published
   or the space stops (rules 3, 7).
7. Each file in ``active/`` has an owner. The owner holds the byte of the file's xid until the file leaves ``active/``
   (rule 6).
8. A failed flush is never retried; the space stops before any lock is released (rule 7).
9. A vote is visible by its name, and acknowledged once its file is durable. The file is marked as a vote, so that
   recovery finds a vote without its name (rule 13). A vote that fails after it has its name is withdrawn.
10. A commit is published without a flush only if all its queues may lose messages, or the caller passes
    ``flush=False`` (``unflushed``, rule 16).
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TypedDict, Unpack

from spool.coordination.counters import CounterPage
from spool.coordination.locks import NUMBER, PREPARED_LIST
from spool.disk.disk import FlushFailed, is_full
from spool.disk.recycler import Recycler
from spool.errors import CommitUnknown, NotOpen, QueueNotFound, SpaceStopped, SystemFailure
from spool.format.header import VOTE, stamp
from spool.format.reader import FileContents
from spool.format.table import CompactedTable, Table
from spool.index.commit import Commit, CommitFile
from spool.log import quota
from spool.log.adoption import move_adopted, refuse_decided
from spool.log.commit_file import CommitFileWriter
from spool.log.sequence import settle_to, with_number_lock
from spool.log.settled_lock import lock_settled
from spool.log.unflushed import flush_moved, keep_pace, needs_flush
from spool.log.visibility import apply_own
from spool.log.vote import unknown, withdraw
from spool.log.write_set import WriteSet, destinations_of, merged
from spool.model import layout
from spool.runtime.async_exceptions import is_failed_step, is_torn_by, was_delivered
from spool.runtime.clock import WaitExpired
from spool.store.feed import note_of
from spool.store.settings_reader import Settings
from spool.store.store import WAIT_SECONDS, Store

# Called under the number lock, with the current settings; raises if the write must not happen.
Check = Callable[[Settings], object]
# Returns an iterator that yields each time when a write may find room on a full disk.
Rooms = Callable[[], Iterator[object]]
no_rooms: Rooms = partial(iter, ())


class Conditions(TypedDict, total=False):
    """The conditions of a write.

    into: ``COMMITTED`` (the default) or ``PREPARED``.
    check: called just before the file gets its name; raises if the write must not happen any more. The number lock is
        held, so the time of the call must not depend on the size of any commit.
    settled: whether ``check`` needs every issued commit to be applied. If so, commits are applied before the number
        lock is taken, and few small commits are left for ``check``.
    limited: whether the quotas of queues apply.
    on_applied: called after these commits are applied, without the lock: see ``lock_settled``.
    seconds: the limit of each wait for a lock, or None without a limit. ``seconds`` does not limit the time to write a
        large file, to make room on a full disk, or to flush.
    flush: False publishes the commit without a flush: a power cut may lose the commit. True flushes the commit, unless
        all its queues may lose messages. On a full disk, the commit overwrites a kept file, and is flushed.
    rooms: called if the disk is full; the file is written again at each value that the iterator yields.
    issued: called with the write sets and the number once it is issued, before the file is stamped.
    """

    into: "Committed | Prepared"
    check: Check | None
    settled: bool
    limited: bool
    on_applied: Callable[[], object]
    seconds: float | None
    flush: bool
    rooms: Rooms
    issued: Callable[[Sequence[WriteSet], int], object] | None


class Write:
    """One file on its way into its place, with the write sets that share it.

    file: the file, which may have a part of the content already. The caller holds the byte of its xid.
    whole: the write sets, merged. ``contents``: the file as a reader sees it.
    flushes: whether the file is flushed.
    byte: the number whose byte this process holds.
    unlocked: whether the locks under which the file got its name are released.
    pool: the consumed files, one of which the file may overwrite, because it is flushed and gets a number or the mark
        of a vote. After a power cut, this stamp distinguishes the new content from the old, and restores the name (Rule
        13).
    found: the result of ``rooms``, once it was called.
    """

    into: "Committed | Prepared"
    check: Check | None = None
    settled = limited = unlocked = False
    on_applied: Callable[[], object] = staticmethod(lambda: None)
    seconds: float | None = WAIT_SECONDS
    flush = flushes = True
    rooms: Rooms = no_rooms
    issued: Callable[[Sequence[WriteSet], int], object] | None = None
    byte: int | None = None
    contents: FileContents
    pool: Recycler | None = None
    found: Iterator[object] | None = None

    def __init__(
        self, store: Store, write_sets: Sequence[WriteSet], file: CommitFileWriter, **conditions: Unpack[Conditions]
    ) -> None:
        self.store, self.write_sets, self.file, self.begun = store, write_sets, file, perf_counter()
        self.whole, self.known = write_sets[0], store.settings.known
        self.destinations: Sequence[str] | None = None
        if conditions:
            self.__dict__.update(conditions)

    def name(self) -> None:
        """Write the file, give it its name in its place, and stamp it: the steps 1 to 7."""
        store, file = self.store, self.file
        whole = self.whole = merged(self.write_sets)
        known = self.known
        usages = quota.usages_of(store, self.write_sets) if self.limited and known.config.has_limits else None
        exact = self.settled or usages is not None or bool(whole.supersedes)
        settled, lists = exact or bool(whole.adopts), exact or self.check is not None  # (an adoption needs no list)
        # 1. Write the whole file in active/, where nothing refers to the file yet. A file that supersedes others must
        #    be correct at the moment when it gets its number. So step 3 completes the file, after ``check``.
        self.flushes = self.flush
        if self.flush and known.config.may_lose and self.into is COMMITTED:
            self.flushes = file.streamed or needs_flush(store.view, known.config, whole)
            if not self.flushes:
                keep_pace(store, whole.page)
        self.pool = store.files.recycler if self.flushes else None
        now, durable = store.clock.now(), (whole.page or store.shared.counters.read()).durable
        while not whole.supersedes:
            try:
                file.complete(whole, now, durable, flushed=self.flushes, pool=self.pool)
                break
            except OSError as error:
                if not is_full(error) or not self._finds_room():
                    raise
        self.flushes = self.flushes or file.recycled != ""
        self.destinations = None if whole.settings == known.version else destinations_of(file.tables)
        # 2. Take the number lock: only one process at a time takes the steps 3 to 6. No step under the lock takes
        #    longer for a larger commit. (Here and below, a deadline is made only if a lock is not free.) A vote without
        #    a condition needs no number lock.
        control, locks = store.shared.control, settled or self.into is COMMITTED or self.check is not None
        if settled:
            lock_settled(store, self.seconds, insists=not whole.supersedes, lists=lists, on_applied=self.on_applied)
        elif locks and not control.try_lock(NUMBER):
            with_number_lock(control, store.deadline(self.seconds))
        try:
            # 3. Check that the write may still happen. If the commit supersedes others, every earlier commit is applied
            #    now, and ``check`` may complete the batch.
            if store.guard.closed:
                store.guard.check()
            page = store.shared.counters.read()
            if page.is_stopped:
                page.check()
            settings = store.settings.known
            if page.settings != settings.version:
                settings = store.settings.current(page)
            if whole.adopts:
                refuse_decided(store, page, self.write_sets)
            if self.check is not None:
                self.check(settings)
            if self.limited and settings.config.has_limits:
                quota.refuse_full(store, settings, self.write_sets, usages)
            for one in self.write_sets:
                if one.error is not None:
                    raise one.error
            if whole.supersedes:
                file.complete(whole, store.clock.now(), page.durable, flushed=self.flushes)
            # 4 to 6. The name.
            mark = self.into.name(self, page, settings)
        finally:
            if locks:
                control.unlock(NUMBER)
        # 7. Stamp the file. A commit has happened once the stamped bytes are on the disk.
        self.unlocked = True
        if mark:
            assert file.handle is not None
            store.files.disk.write_at(file.handle, *stamp(mark))

    def _finds_room(self) -> bool:
        """Make room on a full disk for another attempt to write the file; return False if none can be made.

        On a full disk, every file overwrites a consumed file, and must then be flushed.
        """
        if self.file.streamed:
            return False
        self.file.abandon()
        if self.pool is None:
            self.pool, self.flushes = self.store.files.recycler, True
            return True
        if self.found is not None and self.whole.messages:
            return False  # a put does not wait for the few files that are kept for gets
        self.found = self.rooms() if self.found is None else self.found
        return bool(next(self.found, None))

    def check_destinations(self, settings: Settings) -> None:
        """Raise QueueNotFound if a queue was deleted into which the file puts or moves messages.

        The caller holds a lock under which no queue can be deleted. ``settings``: the current settings under that lock.
        """
        queues = settings.config.queues
        for queue in destinations_of(self.file.tables) if self.destinations is None else self.destinations:
            if queue not in queues:
                raise QueueNotFound(f"queue {queue!r} was deleted meanwhile: nothing was put into it")

    def release(self) -> None:
        """Release the byte of the number, and close the file."""
        if self.byte is not None:
            byte, self.byte = self.byte, None
            self.store.shared.numbers.unlock(byte)
        if self.file.handle is not None:
            self.file.disk.close(self.file.handle)
            self.file.handle = None
        if self.store.settings.known.config.has_marks:
            self.store.wake()


def write(*writes: Write) -> None:
    """Name files, then make each durable. Afterwards each write set has its number, or its error. A write set that has
    neither stood beside a refused one, and may be written again.

    The flushes of several votes begin together. After a failed flush nothing is flushed, because the next flush may
    find no name to write, and so report no error. An exception from outside is raised in the end: first the other files
    that have their names are made durable, because their callers wait.
    """
    left, one = list(writes), writes[0]
    outside: BaseException | None = None
    failed: FlushFailed | None = None
    while left:
        try:
            for one in left:
                if one.file.number is None:
                    one.name()
            for other in left if left[1:] and failed is None else ():
                assert other.file.handle is not None
                other.store.files.disk.begin_flush(other.file.handle)
            while left:
                one = left[0]
                if failed is not None:
                    raise copy.copy(failed)
                one.into.make_durable(one)
                del left[0]
        except BaseException as error:
            left.remove(one)
            failed = error if isinstance(error, FlushFailed) else failed
            try:
                outside = fate_of(one, error) or outside
            except BaseException as another:  # e.g. a signal in a wait of a withdrawal
                outside = another
                for each in one.write_sets if one.file.number is not None else ():
                    each.error = each.error or CommitUnknown(f"{type(another).__name__} interrupted it: {_LOOK}")
            finally:
                one.release()
            if outside is not None:
                left = [other for other in left if other.file.number is not None]
    if outside is not None:
        raise outside


def fate_of(one: Write, error: BaseException) -> BaseException | None:
    """Decide what a failure means for the write sets of a file, and set their errors: the only place that decides it.

    | the file has     | the failure                   | the write sets                                         |
    |------------------|-------------------------------|--------------------------------------------------------|
    | no name          | of a check of some write sets | are refused; the others may be written again           |
    | no name          | a queue was deleted           | that put into the queue are refused, likewise          |
    | no name          | the disk is full              | that put messages are refused: a removal must succeed  |
    | no name          | another one of a step         | all are refused                                        |
    | a number         | any                           | may be committed: each has the error CommitUnknown     |
    | a vote's name    | of the disk                   | the vote is withdrawn: the failure is its error        |
    | a vote's name    | any other                     | may have voted: CommitUnknown                          |
    | any              | comes from outside, a signal  | are as above, but not refused; the exception is raised |

    A failed flush stops the space, before the caller releases any lock. A failure that no step expects closes the
    space. Returns the exception that comes from outside, or None.
    """
    store, write_sets, torn = one.store, one.write_sets, is_torn_by(error)
    if isinstance(error, FlushFailed):
        store.stop()
    if one.file.number is None:
        one.file.abandon()
        if torn or not isinstance(error, Exception):
            return error
        if any(each.error is not None for each in write_sets):
            return None
        guilty: Sequence[WriteSet] = ()
        if isinstance(error, QueueNotFound):
            queues = store.settings.known.config.queues.keys()
            guilty = [each for each in write_sets if not queues >= set(destinations_of(each.tables))]
        elif isinstance(error, OSError) and is_full(error):
            guilty = [each for each in write_sets if each.messages]
        set_error(guilty or write_sets, error)
        return None
    expected = one.unlocked and not torn and isinstance(error, WaitExpired | SpaceStopped | NotOpen | OSError)
    if not expected and not was_delivered(error):
        store.guard.tear(error)  # a lock may still be held: it is released as the space closes
    failed = one.into.failed(one, error, expected=expected)
    for each in write_sets:
        each.error = failed if each is write_sets[0] else copy.copy(failed)
        if isinstance(failed, CommitUnknown):
            each.error = CommitUnknown(str(failed), () if one.file.streamed else tuple(each.ids))
        each.error.__cause__ = failed.__cause__
        each.number = one.file.number  # last: a write set with a number and no error is committed
    return None if is_failed_step(error) else error


def set_error(write_sets: Sequence[WriteSet], error: Exception) -> None:
    """Set the error of write sets; each error is raised in a different thread."""
    for one in write_sets:
        one.error = error if one is write_sets[0] else copy.copy(error)
        if one.error is not error:
            one.error.__cause__ = error


# -- the places -------------------------------------------------------------------------------------------------------

# ``name`` gives the file its name in the place, and returns its stamp, or 0; once the file's number is set, the outcome
# is no longer "nothing". ``failed`` returns the error of the callers of a file that has its name.

_LOOK = "the commit may or may not have happened: open the space again, and look for its messages"


class Committed:
    """The place of commits: ``committed/``, where each file has a number."""

    def name(self, write: Write, page: CounterPage, settings: Settings) -> int:
        """Hold the byte of the next number, rename the file, record its effects, and store *issued*.

        A writer may have died before it stored *issued*, and left a file with the next number. The rename finds such a
        file while this thread holds the byte, because the last holder may have been finishing the number.
        """
        store, file, whole, number = write.store, write.file, write.whole, page.issued + 1
        numbers = store.shared.numbers
        if whole.settings != page.settings:  # (otherwise the caller has found the queues under these settings)
            write.check_destinations(settings)
        # 4. Hold the byte of the next number, and rename the file. The file is no commit until it is stamped.
        while number <= layout.MAX_NUMBER:
            if not numbers.try_lock(number):
                numbers.lock(number, store.deadline(write.seconds), f"the number {number}")
            write.byte = number
            try:
                store.files.disk.rename_new(file.name, layout.COMMITTED_FILE % number)
                break
            except FileExistsError:
                write.byte = None
                numbers.unlock(number)
                number += 1
        else:
            raise SystemFailure("the space has used up its commit numbers: export it and import it into a new one")
        # 5. Record the effects in shared memory.
        write.contents = contents = file.contents(number)
        store.shared.feed.write(number, note_of(contents, whole.adopted))
        # 6. Store the number as issued. A file without an issued number is never stamped: if this step fails, the
        #    number ends as an empty commit.
        store.shared.counters.store_issued(number)
        file.number = number
        if write.issued is not None:
            write.issued(write.write_sets, number)
        return number

    def make_durable(self, write: Write) -> None:
        """Flush the stamped file, publish the number after all earlier numbers, and keep the commit in memory."""
        store, file, whole, number = write.store, write.file, write.whole, write.file.number
        assert number is not None
        assert file.handle is not None
        flush, flush_seconds = write.flushes, None
        # (an edit of the settings may have made a queue durable)
        flush = flush or (write.flush and store.settings.known is not write.known)
        tables = list(write.contents.tables)
        if store.view.index.unflushed:
            flush = flush_moved(store, whole, tables) or flush
        if flush:
            flushed_from = perf_counter()
            store.files.copies.flush_commit(number, file.handle, stamped=file.recycled != "")
            flush_seconds = perf_counter() - flushed_from
        else:
            store.files.copies.copy(number)
        # 8. Publish the number after all earlier numbers: now the commit is visible to all processes.
        for branch in whole.adopted:
            tables += branch.tables
        arrived = arrived_in(tables)
        if not store.shared.counters.publish_next(number, durable=flush, arrived=arrived):
            # (other processes wait for this number, so a close of the space does not end the wait)
            settle_to(store, number - 1, store.deadline(write.seconds)._replace(check=None))
            store.shared.counters.publish_next(number, durable=flush, arrived=arrived)
        # 9. Keep the commit in memory: the index of this process applies the commit after all earlier ones.
        keep(store, number, write.contents, whole)
        store.meters.note_commit((len(write.write_sets), perf_counter() - write.begun, flush_seconds))
        for one in write.write_sets:
            one.number = number
        if whole.adopts:
            move_adopted(store, number, [(place, one.xid) for place, one in enumerate(whole.adopts, 1)])
        write.release()  # (rule 9: reclaim keeps the files of a number whose byte is held)

    def failed(self, write: Write, error: BaseException, *, expected: bool) -> Exception:
        text = f"{type(error).__name__} interrupted commit {write.file.number}; {_LOOK}"
        if isinstance(error, FlushFailed):
            text = f"flushing commit {write.file.number} failed ({error}); {_LOOK}"
        elif expected and isinstance(error, WaitExpired | SpaceStopped | NotOpen):
            text = f"commit {write.file.number} could not be made visible: {error}; {_LOOK}"
        elif expected:
            text = f"commit {write.file.number} could not be finished ({error}); {_LOOK}"
        return unknown(text, error)


class Prepared:
    """The place of votes: ``prepared/``, where each file has the name of its branch."""

    def name(self, write: Write, page: CounterPage, settings: Settings) -> int:
        """Raise the version of the list of prepared branches, then rename the file; return the mark of the vote.

        In the other order, a process could list the new name under the old version, and not list again.
        """
        store, file = write.store, write.file
        control, counters = store.shared.control, store.shared.counters
        if not control.try_lock(PREPARED_LIST):
            control.lock(PREPARED_LIST, store.deadline(), "the list of prepared branches")
        try:
            page = counters.read()
            write.check_destinations(settings if page.settings == settings.version else store.settings.current(page))
            version = counters.bump_prepared(page)
            store.files.disk.rename_new(file.name, layout.prepared(file.xid))
            file.number = VOTE
            with store.view.mutex:
                store.view.prepared.add(version, file.xid, file.contents(0))
        finally:
            control.unlock(PREPARED_LIST)
        return VOTE | layout.origin_in(file.recycled) if file.recycled else 0

    def make_durable(self, write: Write) -> None:
        """Flush the file: now the branch has voted."""
        file = write.file
        assert file.handle is not None
        write.store.files.copies.flush_vote(file.xid, file.handle, stamped=file.recycled != "")
        for one in write.write_sets:
            one.number = VOTE
        write.release()

    def failed(self, write: Write, error: BaseException, *, expected: bool) -> Exception:
        if expected and isinstance(error, OSError):
            return withdraw(write.store, write.file.xid, error)
        return unknown(f"{type(error).__name__} interrupted the vote of branch {write.file.xid}", error)


COMMITTED, PREPARED = Committed(), Prepared()
Write.into = COMMITTED


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
            fields, name = table.attributes[attributes], table.queues[queue]
            if fields and not _NOT_FOR_ALL.isdisjoint(fields):
                return None
            arrived[name] = count if name not in arrived else arrived[name] + count
    return arrived


# The index applies the kept commits of this process once more than ``_MOST_OWN`` are kept, and after a commit that
# puts, removes or changes at least ``_LARGE_MESSAGES`` messages.
_MOST_OWN, _LARGE_MESSAGES = 16, 1024


def keep(store: Store, number: int, contents: FileContents, whole: WriteSet) -> None:
    """Keep the effects of this process's own commit, so that its index need not read the file.

    So a process that only puts messages neither reads the commits of other processes nor sorts its own messages. When
    many commits are kept, the index applies them. If the index lacks an earlier commit of another process, the oldest
    kept commits are dropped instead.
    """
    view = store.view
    with view.mutex:
        if number > view.index.applied:  # otherwise another thread has read the file already
            own, messages = view.own_commits, whole.messages
            for adoption in whole.adopts:
                messages += adoption.count
            for file in (contents, *whole.adopted):
                for table in file.tables:
                    for command in table.commands:
                        messages += command.length if command.name == "remove" or command.name == "update" else 1
            own[number] = partial(_as_read, number, contents, whole.adopted)
            if len(own) > _MOST_OWN or messages >= _LARGE_MESSAGES:
                apply_own(store)
                while len(own) > _MOST_OWN:
                    del own[next(iter(own))]


def _as_read(number: int, own: FileContents, adopted: Sequence[FileContents]) -> Commit:
    """Return the commit as a process reads it from the commit's files.

    ``own``: the contents of the numbered file. ``adopted``: those of the branches that it adopts.
    """
    new = tuple.__new__  # (NamedTuple's own ``__new__`` runs Python code)
    files: list[CommitFile] = [new(CommitFile, (0, None, 0, own))]
    for place, (adoption, contents) in enumerate(zip(own.header.adopts, adopted, strict=True), 1):
        files += (new(CommitFile, (place, adoption.xid, adoption.first, contents)),)
    return new(Commit, (number, files, []))

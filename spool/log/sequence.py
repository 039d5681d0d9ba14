"""The numbers of other writers: which of them are published, and how the number of a dead writer is finished.

``write`` issues and publishes the numbers of this process.

Invariants, with the numbers of the rules in docs/architecture.md, "The rules that keep processes apart":

1. Numbers are published in order: a number is published only after all earlier numbers (rule 2).
2. Only the process that holds a number's byte finishes the number for its writer. The kernel releases the byte of a
   dead writer (rules 3 and 6).
3. The bytes of a dead writer's file may not be on the disk, even if they can be read. Before the number is published,
   these bytes are copied and flushed, or replaced by an empty commit (rule 3).
4. Every issued number has a file: no number is issued twice.
5. The durable mark passes a number only after its file was flushed. The process that publishes the next number stores
   the mark. A process that flushes published numbers stores the mark under the number lock (rule 16).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from spool.coordination.counters import CounterPage
from spool.coordination.locks import NUMBER, LockFile
from spool.disk.content import new_file, opened, replace_by_copy
from spool.disk.disk import Disk
from spool.disk.quarantine import FileCause, FileReason, quarantine
from spool.errors import CorruptedFile
from spool.format.header import Header, encode_header, stamp
from spool.format.reader import prove
from spool.format.writer import writer_name
from spool.model import layout
from spool.model.xid import new_local_xid
from spool.runtime.clock import Deadline, LockTimeout, WaitExpired
from spool.store.store import Store

_FEW = 8  # files; a flush of more files one by one takes longer than a flush of the whole file system


def with_number_lock(control: LockFile, deadline: Deadline, failed: str = "the transaction was rolled back") -> None:
    """Take the number lock; the caller releases it.

    Raises LockTimeout if the lock does not become free; the text of the error ends with ``failed``, which names the
    consequence for the call.
    """
    try:
        control.lock(NUMBER, deadline, "the lock on commit numbers")
    except WaitExpired as error:
        raise LockTimeout(f"{error}; {failed}") from None


@contextmanager
def number_locked(
    control: LockFile, deadline: Deadline, failed: str = "the transaction was rolled back"
) -> Iterator[None]:
    """Hold the number lock while the body runs: see ``with_number_lock``."""
    with_number_lock(control, deadline, failed)
    try:
        yield
    finally:
        control.unlock(NUMBER)


def highest_number(disk: Disk, page: CounterPage) -> int:
    """Return the highest sequence number that is not free.

    A writer may have died between the rename and the store of *issued*. So the result includes files beyond the
    counter, although these files are not stamped and have no effect. The result is exact if the caller holds the number
    lock.

    Args:
        page: the counters, just read.
    """
    number = page.issued
    while disk.exists(layout.COMMITTED_FILE % (number + 1)):
        number += 1
    return number


def settle_to(store: Store, number: int, deadline: Deadline, page: CounterPage | None = None) -> CounterPage:
    """Wait until every number up to ``number`` is published; finish the numbers of dead writers. Rule 3.

    Args:
        page: the counters, if they have just been read.

    Returns:
        The counters afterwards.

    Raises:
        WaitExpired: a live writer did not publish in time; the text names the writer.
        SpaceStopped: a flush failed in some process.
    """
    pauses = None
    while True:
        page = (page or store.shared.counters.read()).check()
        published = page.published
        if published >= number:
            return page
        page = None
        # The writer of a number releases its byte after publication.
        pauses = pauses or store.shared.numbers.pauses(number, deadline)
        with store.shared.numbers.trying(published + 1) as ours:
            if ours:
                finish_dead_writer(store, published + 1)
        if not ours and not next(pauses, False):
            raise store.shared.numbers.expired(published + 1, deadline, f"commit {published + 1}")


def settle_all(store: Store, deadline: Deadline) -> CounterPage:
    """Wait until every number that was issued before this call is published. See ``settle_to``."""
    page = store.shared.counters.read()
    return settle_to(store, page.issued, deadline, page)


def finish_dead_writer(store: Store, number: int) -> None:
    """Publish a number whose writer died after the rename of the file and before the publication. Caller holds the
    number's byte.

    The bytes in the page cache may not be on the disk: after a failed flush the kernel reports success for a second
    flush. So a whole file is copied to a new inode and flushed there; a second flush makes the new name durable. If the
    file is missing or not whole, an empty commit takes its place.
    """
    if store.shared.counters.read().published >= number:
        return  # another process finished the number before the lock was taken
    name = layout.committed(number)
    with store.stopping():
        if _is_whole(store.files.disk, number):
            copy_over(store.files.disk, name)
        else:
            write_empty(store, number)
        store.files.copies.copy(number)
        store.shared.feed.retract(number)  # the slot has the intended effects of the dead writer
        page = store.shared.counters.read().check()
        store.shared.counters.store_published(number, durable=page.durable == number - 1)


def finish_dead_writers(store: Store, page: CounterPage) -> CounterPage:
    """Publish the next numbers as long as their writers are dead; do not wait for a live writer.

    Args:
        page: the counters, just read.

    Returns:
        The counters afterwards.
    """
    while page.issued > page.published:
        number = page.published + 1
        with store.shared.numbers.trying(number) as ours:
            if not ours:
                break
            finish_dead_writer(store, number)
        page = store.shared.counters.read()
    return page


def flush_published(store: Store, most: int | None = None) -> None:
    """Flush the commits that were published without a flush, and advance the durable mark. Rule 16.

    Args:
        most: flush nothing if more files than this would have to be flushed one by one.

    Raises:
        FlushFailed: the space has stopped now.
        SpaceStopped: a flush failed in another process. The kernel may report the error to that process only.
        LockTimeout: the number lock does not become free.
    """
    disk, page = store.files.disk, store.shared.counters.read()
    reached, published = page.durable, page.published
    with store.stopping():
        few = _FEW if most is None else min(_FEW, most)
        if published - reached > few and disk.durability.flush_all(disk, store.shared.open_lock.handle):
            reached = published
        elif most is not None and published - reached > most:
            return
        while reached < published and flush_commit(disk, reached + 1):
            reached += 1
    if reached == page.durable:
        return
    with number_locked(store.shared.control, store.deadline(), "earlier messages are not known to be flushed"):
        if store.shared.counters.read().check().durable < reached:
            store.shared.counters.store_durable(reached)


def flush_commit(disk: Disk, number: int) -> bool:
    """Make the numbered file of a published commit durable; return False if the file does not exist."""
    with suppress(FileNotFoundError), opened(disk, layout.committed(number)) as handle:
        disk.make_durable(handle, layout.COMMITTED)
        return True
    return False


def _is_whole(disk: Disk, number: int) -> bool:
    """Return whether the number's file exists and is proven whole. Moves a file with damaged bytes to quarantine."""
    name = layout.committed(number)
    identity = disk.identity(name)
    if identity is None or (identity.is_regular and not identity.size):
        return False  # no file, or a power cut came before its bytes were flushed: there is nothing to keep
    reason = "it is not a regular file: a power cut left something else under its name"
    if identity.is_regular:
        try:
            with opened(disk, name) as handle:
                found = prove(disk, handle).header.number
            if found == number:
                return True
            if found == 0:
                return False  # its writer died before the stamp: nothing was committed, and nothing is lost
            reason = f"it carries the number {found}: stale bytes of another commit, or a torn write"
        except CorruptedFile as error:
            reason = f"{error}; its writer died before it was flushed"
    quarantine(disk, name, FileReason(reason, FileCause.UNFLUSHED))
    return False


def write_empty(store: Store, number: int) -> None:
    """Write an empty commit.

    The caller holds the number's byte. If the number is published already, the caller may hold the reclaim lock
    instead.
    """
    xid = new_local_xid()
    durable = store.shared.counters.read().durable
    encoded = bytearray(encode_header(Header(0, store.clock.now(), writer_name(), durable_mark=durable)))
    offset, stamped = stamp(number)
    encoded[offset : offset + len(stamped)] = stamped
    name = layout.copy(xid)
    with new_file(store.files.disk, name) as handle:
        store.files.disk.write_at(handle, 0, bytes(encoded))
        store.files.disk.rename(name, layout.committed(number))
        store.files.disk.make_durable(handle, layout.COMMITTED)


def copy_over(disk: Disk, name: str) -> None:
    """Replace a file of the space by a durable copy with the same bytes on a new inode."""
    replace_by_copy(disk, name, layout.copy(new_local_xid()))

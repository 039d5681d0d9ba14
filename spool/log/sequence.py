"""Numbers: how a commit is issued, published, and finished if its writer dies.

Its rules stand in docs/architecture.md, "The rules that keep processes apart".

A number is *issued* under the number lock, in this order: hold its byte, stamp the file, rename it without replacing,
store issued. It is *published* in order, after its flush. A dead writer's number is *finished* by who gets its byte.
Each rule here, left out, loses or doubles messages; the model checker shows the trace.
"""

from contextlib import ExitStack

from spool.coordination.counters import Page
from spool.coordination.locks import NUMBER
from spool.disk.disk import FlushFailed
from spool.disk.quarantine import quarantine
from spool.errors import CorruptedFile, TransactionTimeout
from spool.format.format import encode_header, stamp
from spool.format.reader import prove
from spool.model import layout
from spool.model.xid import new_local_xid
from spool.runtime.clock import Deadline, WaitExpired
from spool.store.store import Store

_COPY_BYTES = 1 << 20


def with_number_lock(store: Store, deadline: Deadline) -> None:
    try:
        store.shared.control.lock(NUMBER, deadline, "the lock on commit numbers")
    except WaitExpired as error:
        raise TransactionTimeout(f"{error}; the transaction was rolled back") from None


def highest_issued(store: Store, page: Page) -> int:
    """The highest number given out, with ``page`` just read; exact under the number lock, at least what this process
    may have seen without."""
    number = page.issued
    while store.files.disk.exists(layout.committed(number + 1)):
        number += 1
    return number


def publish(store: Store, number: int, deadline: Deadline, *, flushed: bool) -> None:
    """Wait for every earlier number, then make this one visible. The caller holds the number's byte."""
    page = settle_to(store, number - 1, deadline)
    if page.published < number:  # never back, whatever became of run/
        store.shared.counters.store_published(number, durable=flushed and page.durable == number - 1)


def settle_to(store: Store, number: int, deadline: Deadline, page: Page | None = None) -> Page:
    """Wait for each writer up to ``number`` to publish, and finish the dead ones'; WaitExpired names a slow writer.

    ``page``: the counters, just read. Returns them as they were then, of a space that has not stopped.
    """
    for _ in deadline.polls():
        while True:
            page = (page or store.shared.counters.read()).check()
            published = page.published
            if published >= number:
                return page
            page = None
            if not store.shared.numbers.try_lock(published + 1):
                break
            try:
                finish_dead_writer(store, published + 1)
            finally:
                store.shared.numbers.unlock(published + 1)
    raise store.shared.numbers.expired(published + 1, deadline, f"commit {published + 1}")


def settle_all(store: Store, deadline: Deadline, page: Page | None = None) -> Page:
    """Every number that may have been given out is published when this returns, with the counters as they are then.

    ``page``: the counters, read after the caller's look began.
    """
    page = page or store.shared.counters.read()
    return settle_to(store, highest_issued(store, page), deadline, page)


def finish_dead_writer(store: Store, number: int) -> None:
    """A writer died between its rename and its publication. The caller holds the number's byte.

    The bytes in the page cache prove nothing (a failed flush drops them silently), so a whole file is copied to a new
    inode and flushed there; the second flush makes the new name durable. Every issued number gets a file, so that no
    number is ever issued twice.
    """
    if store.shared.counters.read().published >= number:
        return  # somebody finished it between our look and our lock
    name = layout.committed(number)
    try:
        if _is_whole(store, number):
            copy_over(store, name)
        else:
            write_empty(store, number)
        if store.files.mirror is not None:
            store.files.mirror.keep(number)
        page = store.shared.counters.read().check()
        store.shared.counters.store_published(number, durable=page.durable == number - 1)
    except FlushFailed:
        store.stop()
        raise


def _is_whole(store: Store, number: int) -> bool:
    """Whether the number's file is there and proven. What is not goes to quarantine: nobody was promised it."""
    name = layout.committed(number)
    identity = store.files.disk.identity(name)
    if identity is None:
        return False
    if not identity.is_regular:
        quarantine(store.files.disk, name, "it is not a regular file: a power cut made something else of it")
        return False
    handle = store.files.disk.open(name)
    try:
        found = prove(store.files.disk, handle).header.number
        if found == number:
            return True
        reason = f"it carries the number {found}: stale bytes of another commit, or a torn write"
    except CorruptedFile as error:
        reason = f"{error}; its writer died before the commit was acknowledged"
    finally:
        store.files.disk.close(handle)
    quarantine(store.files.disk, name, reason)
    return False


def write_empty(store: Store, number: int) -> None:
    """A commit that did nothing. The caller holds the number's byte, or keeps reclaim from a published one."""
    xid = new_local_xid()
    encoded = bytearray(encode_header(store.header()))
    offset, stamped = stamp(number)
    encoded[offset : offset + len(stamped)] = stamped
    name = layout.copy(xid)
    handle = store.files.disk.create(name)
    try:
        store.files.disk.write_at(handle, 0, bytes(encoded))
        store.files.disk.rename(name, layout.committed(number))
        store.files.disk.make_durable(handle, layout.COMMITTED)
    finally:
        store.files.disk.close(handle)


def copy_over(store: Store, name: str) -> None:
    """The same bytes under the same name, on a new inode, durable."""
    copy = layout.copy(new_local_xid())
    with ExitStack() as opened:
        source = store.files.disk.open(name)
        opened.callback(store.files.disk.close, source)
        target = store.files.disk.create(copy)
        opened.callback(store.files.disk.close, target)
        offset = 0
        while data := store.files.disk.read_at(source, offset, _COPY_BYTES):
            store.files.disk.write_at(target, offset, data)
            offset += len(data)
        store.files.disk.make_durable(target, layout.ACTIVE, new=True)  # the bytes, before they have the name
        store.files.disk.rename(copy, name)
        store.files.disk.make_durable(target, name.partition("/")[0])

"""An open space, as one process has it: its files, what processes share, what this one knows, and the settings.

``spool.log``, ``spool.policies`` and ``spool.transactions`` hold the protocol, as functions of a store or of a part.

Locks are taken in this order: a transaction's own, its xid's byte, the number lock, a number's byte, ``view.mutex``.
"""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from spool.coordination.counters import Page
from spool.disk import Disk
from spool.disk.advice import advice
from spool.disk.disk import FlushFailed
from spool.disk.kernel import Unsupported
from spool.disk.requirements import unsafe
from spool.errors import DiskFailure, QueueNotFound, SpoolError
from spool.format.format import Header, Table
from spool.format.writer import writer_name
from spool.index import Index
from spool.model.settings import SpaceConfig
from spool.runtime.clock import Clock, Deadline
from spool.runtime.gate import Gate
from spool.store.parts import Files, Shared, View
from spool.store.settings import read_settings

log = logging.getLogger("spool")

WAIT_SECONDS = 30.0


def targets_of(tables: Iterable[Table]) -> Iterator[str]:
    """The queues into which messages are put, or moved; what a sweep writes stays in its own."""
    for table in tables:
        if table.origins is None:
            yield from table.queues
        for command in table.commands:
            if command[0] == "update" and "queue" in command[4]:
                yield command[4]["queue"]


class Store:
    """One open space, as one process (more exactly: one ``spool.open``) sees it.

    Whoever makes one closes its disk if that fails, and its gate in the end.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.clock = clock
        self.gate = Gate(self._shut)
        self.at_end: dict[Callable[[], None], None] = {}  # what is to be called when it is closed
        self.dropped: deque[Callable[[], None]] = deque()  # undo the transactions that were dropped before their end
        self.files = Files(disk)
        _stores.add(self)
        self.config: SpaceConfig = read_settings(disk)
        if self.config.flush != "auto":
            disk.ordered = disk.flush_carries_name = self.config.flush == "ordered"
        self.files.open(self.config)
        self.shared = Shared(disk, clock)
        self.view = View(self.new_index())
        self.order_changed: Callable[[], None] | None = None  # called before what is swept comes back into memory
        self.raw_bodies = False  # who only shows messages needs no codecs
        self.polling: dict[str, threading.Lock] = {}  # by queue: held by the one thread that looks for all that wait
        self.settings_version = -1
        self.settings_cells = b""  # the version, as the counters have it
        self.settings_seen: tuple[int, int, int] | None = None  # which file was read last: inode, size, time

    def _shut(self) -> None:
        """Nobody is inside any more."""
        try:
            self.files.close()
        finally:
            for end in list(self.at_end):
                end()

    def new_index(self) -> Index:
        return Index(self.files.cache, self.config.queues)

    # -- time ---------------------------------------------------------------------------------------------------------

    def deadline(self, seconds: float | None = WAIT_SECONDS) -> Deadline:
        return Deadline(self.clock, seconds, self.gate.check)

    # -- settings -----------------------------------------------------------------------------------------------------

    def refresh_settings(self) -> None:
        """Read the file again if somebody changed it since."""
        page = self.shared.counters.read()
        version = page.settings
        if version == self.settings_version:
            return
        config = read_settings(self.files.disk)
        with self.view.mutex:
            if version < self.settings_version:
                return  # another thread was faster, and read what came later
            queues = {name: self.view.index.messages.queue(name) for name in config.queues}
            changed = [name for name, queue in queues.items() if queue.order.differs(config.queues[name])]
            self.config = config
            if changed and self.order_changed is not None:
                self.order_changed()
            for name in changed:
                queues[name].configure(config.queues[name])
            self.settings_version = version
            self.settings_cells = page.settings_cells

    def check_targets(self, tables: Iterable[Table], page: Page) -> None:
        """Nobody deleted a queue that these put messages into, since that was looked at. The caller holds a lock that
        keeps queues from being deleted; ``page``: the counters, just read."""
        if page.settings_cells != self.settings_cells:
            self.refresh_settings()
        queues = self.config.queues
        for queue in targets_of(tables):
            if queue not in queues:
                raise QueueNotFound(f"queue {queue!r} was deleted meanwhile: nothing was put into it")

    # -- usable or not ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.gate.closed

    def check_usable(self) -> Page:
        """The counters as they are now, of a space that is open and has not stopped."""
        self.gate.check()
        try:
            return self.shared.counters.read().check()
        except OSError as error:
            raise self.spoken("reading the space's counters", error) from error

    def stop(self) -> None:
        """After a failed flush: nobody may commit or publish any more, in any process."""
        log.critical("%s: a flush failed; the space has stopped", self.files.disk.root)
        try:
            self.shared.counters.stop()
        except OSError as error:  # this process has stopped all the same; the others trust no bytes but new ones
            log.critical("%s: other processes cannot be told: %s", self.files.disk.root, error)

    def fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the operating system's error as the caller is to see it; after a failed flush the space has stopped."""
        spoken = self.spoken(doing, error)
        if spoken is error:
            raise error
        raise spoken from error

    def spoken(self, doing: str, error: OSError) -> Exception:
        """The error as a caller is to see it."""
        if self.gate.abandoned:
            self.gate.check()
        if isinstance(error, SpoolError):
            return error
        if isinstance(error, FlushFailed):
            self.stop()
        if isinstance(error, Unsupported):
            return unsafe(self.files.disk, doing, error)
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        text = f"{doing}: {error.strerror or error}{where}; nothing was lost: {advice(error)}"
        return DiskFailure(error.errno or 0, text)

    # -- headers ------------------------------------------------------------------------------------------------------

    def header(self, page: Page | None = None, **fields: object) -> Header:
        """``page``: the counters, if they have been read; an older durable mark is as true."""
        return Header(
            number=0,
            time=self.clock.now(),
            writer=writer_name(),
            durable_mark=(page or self.shared.counters.read()).durable,
            **fields,  # type: ignore[arg-type]
        )


# A forked child shares its parent's locks: it closes its copies of the descriptors, and unlocks nothing.
_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()


def _disown() -> None:
    for store in list(_stores):
        store.files.disk.disown()
        if store.files.mirror is not None:
            store.files.mirror.disk.disown()
        store.at_end.clear()  # whoever waits for something waits in the parent
        store.gate.close_at_once("the space was opened before this process was forked: open it again in the child")
    _stores.clear()


os.register_at_fork(after_in_child=_disown)

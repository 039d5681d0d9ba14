"""The log of a coordinator of this process: each decision to commit is durable before any branch is committed.

Threads that decide at the same time share a flush: each thread writes its slot, and the first thread flushes for all. A
full log is rewritten: the new file has only the decisions whose branches have not ended yet. If a flush fails, the
log stops: the kernel has dropped the pages, so the disk may or may not have the last decisions. The next recovery may
find these decisions or not. Either outcome is correct, because no branch is committed before the flush.
"""

import os
import threading
import weakref
from collections.abc import Sequence

from spool.decisions.directory import LogDirectory
from spool.decisions.records import COORDINATOR_BYTES, MAX_FILE_BYTES, SLOTS, LogContents, pack_slots, slot_offset
from spool.errors import CommitUnknown, InvalidArgument, NotOpen, SystemFailure
from spool.format.writer import writer_name

_MOST_RESOURCE_BYTES = MAX_FILE_BYTES // 4

_open_logs: "weakref.WeakSet[DecisionLog]" = weakref.WeakSet()


class DecisionLog:
    """A log that this process writes. Many threads may use it. ``coordinator``: the random id, 12 bytes.

    Methods raise NotOpen after ``close`` and in a forked child, SystemFailure after a failed flush, and OSError.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self.directory = directory
        self.coordinator = os.urandom(COORDINATOR_BYTES)
        self._disk = directory.disk
        self._resources: dict[str, None] = {}
        self._outstanding: dict[int, None] = {}  # decisions whose branches have not ended
        self._handle = self._start = 0
        self._written = self._durable = 0  # numbers of slots
        self._generation = 0  # the number of files that were written so far
        self._refusal: Exception | None = None
        self.is_disowned = False  # in a forked child
        self._writing = threading.Lock()
        self._flushing = threading.Lock()  # taken before ``_writing``
        _open_logs.add(self)  # (before the first file is written, because another thread may fork meanwhile)
        try:
            self._write_again()
        except BaseException:
            self._disk.close_all()
            raise

    def register(self, resource: str) -> None:
        """Record durably that the coordinator uses a resource. The caller begins work in the resource only
        afterwards."""
        self.check()
        if resource in self._resources:
            return
        with self._flushing, self._writing:
            self.check()
            if resource in self._resources:
                return
            resources = (*self._resources, resource)
            if sum(len(each.encode(errors="surrogateescape")) for each in resources) > _MOST_RESOURCE_BYTES:
                raise InvalidArgument("one transaction manager cannot use so many resources: use several managers")
            self._write_again(resources)
            self._resources[resource] = None  # (only now, because other threads read this without the lock)

    def keep_only(self, resources: Sequence[str]) -> None:
        """Record that branches and decisions can remain only in these resources. The coordinator calls this method when
        it ends."""
        with self._flushing, self._writing:
            self.check()
            self._write_again(tuple(resources))
            self._resources = dict.fromkeys(resources)

    def record(self, serial: int) -> None:
        """Durably decide to commit a transaction.

        Raises CommitUnknown if the decision may or may not be durable. Then the branches remain prepared until another
        transaction manager recovers them.
        """
        with self._writing:
            self.check()
            generation, place = self._generation, self._written
            if place < SLOTS:
                self._outstanding[serial] = None
                self._write_slot(place, serial)
                self._written += 1
        if place < SLOTS:
            self._flush(generation, place)
        else:
            self._make_room(generation)
            self.record(serial)

    def end(self, serial: int) -> None:
        """Note that all branches of a committed transaction have durably ended."""
        self._outstanding.pop(serial, None)

    def close(self, *, remove: bool) -> None:
        """Unlock the log; a second call does nothing.

        ``remove``: whether no branch can be in doubt, so that the log is removed.
        """
        with self._flushing, self._writing:
            if isinstance(self._refusal, NotOpen):
                return
            stopped, self._refusal = self._refusal, NotOpen("the transaction manager is closed: create another one")
            try:
                if remove and stopped is None and not self._outstanding:
                    self.directory.remove(self.coordinator)
            finally:
                self._disk.close_all()

    def disown(self) -> None:
        """Close this forked child's copies of the descriptors, because the child is not the coordinator."""
        self._writing, self._flushing = threading.Lock(), threading.Lock()
        self.is_disowned = True
        self._refusal = NotOpen(
            "the transaction manager was created before this process was forked: create another one in the child"
        )
        self._disk.disown()

    # -- the file ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise NotOpen or SystemFailure if the log takes no more decisions."""
        if self._refusal is not None:
            raise self._refusal

    def _write_slot(self, place: int, serial: int) -> None:
        slot = pack_slots([serial], place, self._durable)
        try:
            self._disk.write_at(self._handle, slot_offset(self._start, place), slot)
        except OSError as error:
            raise self._stop(error) from error

    def _flush(self, generation: int, place: int) -> None:
        """Make a slot durable, together with all slots that were written before the flush begins."""
        with self._flushing:
            if self._generation != generation or self._durable > place:
                return  # another thread has flushed the slot
            with self._writing:
                written, handle = self._written, self._handle
                stopped = self._refusal
            if stopped is not None:
                raise self._unknown(stopped) from stopped
            try:
                self._disk.flush(handle, data_only=True)
            except OSError as error:
                raise self._stop(error) from error
            self._durable = written

    def _make_room(self, generation: int) -> None:
        """Write a full log again, unless another thread has done so."""
        with self._flushing, self._writing:
            self.check()
            if len(self._outstanding) >= SLOTS:
                raise SystemFailure(
                    f"{SLOTS:,} committed transactions have branches that have not ended: give their resources to "
                    "TransactionManager.recover"
                )
            if self._generation == generation:
                self._write_again()

    def _write_again(self, resources: Sequence[str] | None = None) -> None:
        """Write the log with the outstanding decisions. The caller holds both locks.

        If the call fails after the new file got the name, the log stops, because no recovery reads the old file.
        """
        if resources is None:
            resources = tuple(self._resources)
        contents = LogContents(
            self.directory.id, self.coordinator, resources, frozenset(self._outstanding), dict(writer_name())
        )
        old = self._handle
        try:
            with self.directory.exclusive():
                handle, start = self.directory.write(contents, locked=True)
            self._handle, self._start = handle, start
            self._written = self._durable = len(contents.committed)
            self._generation += 1
            if old:
                self._disk.close(old)
        except BaseException as error:
            if old and self.directory.leads_to(self.coordinator, old) is not True:
                self._stop(error)
            raise

    def _stop(self, error: BaseException) -> CommitUnknown:
        """Take no more decisions; return the error for a decision that may or may not be durable."""
        self._refusal = SystemFailure(
            f"the decision log {self._disk.root} cannot be written ({error}): close this transaction manager, and "
            "create another one, which recovers the branches"
        )
        return self._unknown(error)

    def _unknown(self, error: BaseException) -> CommitUnknown:
        return CommitUnknown(
            f"the decision may or may not be durable ({error}); the branches remain prepared: close this transaction "
            "manager, create another one, and let it recover"
        )


def _disown_all() -> None:
    for log in list(_open_logs):
        log.disown()


os.register_at_fork(after_in_child=_disown_all)

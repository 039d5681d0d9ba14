"""The directory of the decision logs, which all coordinators of an application on one machine share.

``spool.decisions.place`` describes the identity of the directory. ``<coordinator>.log`` is the log of a coordinator. A
log gets its name only when it is complete, durable and locked. The lock is an open-file-description lock on the first
byte. A log that is being written has the suffix ``.new``; the directory is locked (flock) meanwhile.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from spool.decisions.place import MANAGER, UNFINISHED, Identity, identify
from spool.decisions.records import (
    COORDINATOR_BYTES,
    MAX_FILE_BYTES,
    DamagedLogError,
    LogContents,
    pack_log,
    unpack_log,
)
from spool.disk.advice import is_directory, translated
from spool.disk.content import opened, read_start, unlink_unless_gone
from spool.disk.disk import Disk
from spool.disk.kernel import await_turn
from spool.disk.requirements import check_kind
from spool.errors import CorruptedFile, InvalidArgument

_LOCKED_BYTE = 0
_LOG = re.compile(rf"([0-9a-f]{{{2 * COORDINATOR_BYTES}}})\.log")


class LogDirectory:
    """A directory of decision logs.

    identity: the ids of the directory: see ``spool.decisions.place``.

    Args:
        disk: the disk of the directory. A missing directory is created.

    Raises:
        InvalidArgument: the directory has other files, e.g. of a queue space.
        CorruptedFile: the file ``manager`` is damaged.
        UnsafeFileSystem: the directory lies on a network file system, whose locks can fail silently.
        OSError: the directory cannot be created, read or written.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        if not is_directory(disk.root):
            disk.make_directory("")
        check_kind(disk, None)
        self.identity = self._identify()

    def _identify(self) -> Identity:
        if not self.disk.exists(MANAGER):
            self._refuse_other_files()
            with suppress(PermissionError):  # (an administrator may have created the directory for this user)
                Disk(os.path.dirname(self.disk.root)).flush_directory("")
        with self.exclusive():
            found = identify(self.disk)
            self.disk.flush_directory("")  # the process that created the files may have been killed before its flush
        return found

    def _refuse_other_files(self) -> None:
        others = sorted(name for name in self.disk.names("") if not name.endswith(UNFINISHED))
        if others and not self.disk.exists(MANAGER):
            raise InvalidArgument(
                f"{self.disk.root} is no directory of decision logs, because it has other files ({others[0]}): choose "
                "an empty or a new directory"
            )

    @property
    def id(self) -> bytes:
        """The id of the transactions that begin now."""
        return self.identity.id

    def decides(self, id: bytes) -> bool:
        """Return whether this directory decides the transactions that begin with the given directory id."""
        return id == self.identity.id or id in self.identity.former

    def knows(self, id: bytes) -> bool:
        """Return whether this directory has the given directory id, or had the id before the directory was copied."""
        return self.decides(id) or id in self.identity.others

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes and threads from creating, copying and removing logs."""
        handle = self.disk.open_directory("")
        try:
            await_turn(self.disk.flock, handle, self.disk.root)
            yield
        finally:
            with suppress(OSError):  # (explicitly, because a copy of the handle in a forked child would keep the lock)
                self.disk.funlock(handle)
            self.disk.close(handle)

    # -- the logs of coordinators ------------------------------------------------------------------------------------

    def coordinators(self) -> list[bytes]:
        """Return the ids of the coordinators that have a log, living and dead."""
        with self.exclusive():  # some file systems do not list a file that is renamed during the listing
            names = self.disk.names("")
        return sorted(bytes.fromhex(match[1]) for match in map(_LOG.fullmatch, names) if match is not None)

    def is_alive(self, coordinator: bytes) -> bool:
        """Return whether a coordinator lives. A stopped process counts as living. A coordinator without a log is
        dead."""
        name = log_name(coordinator)
        while True:
            try:
                with opened(self.disk, name) as handle:
                    if self.disk.some_lock(handle, _LOCKED_BYTE, 1) is not None:
                        return True
                    if self.disk.same_file(name, self.disk.handle_identity(handle)):
                        return False
            except FileNotFoundError:
                return False

    def read_dead(self, coordinator: bytes) -> LogContents | None:
        """Return the log of a dead coordinator, or None if the coordinator has no log.

        The method writes the log again, so that the decisions are durable when it returns. The coordinator may have
        died before its flush. Or the flush has failed, and a second flush of the same pages would wrongly report
        success.

        Raises CorruptedFile if a decision or the header was damaged.
        """
        name = log_name(coordinator)
        with self.exclusive():
            try:
                contents = unpack_log(read_start(self.disk, name, MAX_FILE_BYTES))
                if contents.coordinator != coordinator:
                    raise DamagedLogError("it is the log of another coordinator")
            except FileNotFoundError:
                return None
            except DamagedLogError as error:
                raise CorruptedFile(
                    f"the decision log {self.disk.path(name)} is damaged: {error}. Those of its transactions "
                    "whose database does not know the decision remain in doubt: decide them with spool-admin "
                    "transaction, then remove the file"
                ) from None
            if contents.committed and self.decides(contents.directory):
                handle, _ = self.write(contents)
                self.disk.close(handle)
        return contents

    def write(self, contents: LogContents, *, locked: bool = False) -> tuple[int, int]:
        """Write a log, which replaces the coordinator's earlier log; return the handle and the first slot's offset.

        The caller is inside ``exclusive``. ``locked``: whether this process is the coordinator, so that the returned
        handle holds the lock. The log is durable when this method returns. If the method fails after the log got its
        name, a living coordinator keeps the lock.
        """
        disk, name = self.disk, log_name(contents.coordinator)
        temporary = f"{name}{UNFINISHED}"
        unlink_unless_gone(disk, temporary)
        data, start = pack_log(contents)
        handle = disk.create(temporary)
        try:
            if locked:
                disk.lock(handle, _LOCKED_BYTE)
            disk.write_at(handle, 0, data)
            disk.make_durable(handle, "", new=True)
            disk.rename(temporary, name)
            disk.make_durable(handle, "")
        except BaseException:
            if not locked or self.leads_to(contents.coordinator, handle) is False:
                disk.close(handle)
            raise
        return handle, start

    def leads_to(self, coordinator: bytes, handle: int) -> bool | None:
        """Return whether a coordinator's log is the file of this handle, or None if the file system gives no answer."""
        try:
            return self.disk.same_file(log_name(coordinator), self.disk.handle_identity(handle))
        except OSError:
            return None

    def remove(self, coordinator: bytes) -> None:
        """Remove the log of a coordinator whose branches have ended. After a power cut, the log may exist again."""
        with self.exclusive():
            for name in (log_name(coordinator), f"{log_name(coordinator)}{UNFINISHED}"):
                unlink_unless_gone(self.disk, name)


def open_directory(path: str | os.PathLike[str]) -> LogDirectory:
    """Open or create a log directory. Raises the errors of ``LogDirectory``, but DiskFailure instead of OSError."""
    with translated("opening the decision logs", os.fspath(path)):
        return LogDirectory(Disk.of(path))


def log_name(coordinator: bytes) -> str:
    return f"{coordinator.hex()}.log"

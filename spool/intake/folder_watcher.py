"""Watch the drop folders by watchdog's reader of inotify(7). Events wake the intake, and prove renames.

A rename is evidence that a file is complete, because the writer gave the file its name at the end. No other change is
such evidence. For example, a ``chmod`` or a second name can change the file's status while the writer continues. If a
file existed before the watch began, no rename of the file is known.

watchdog watches each folder through a descriptor of ``Disk``, and touches no file of the space.

The evidence must be current when the intake judges a file. The observers of watchdog deliver a rename half a second
late, so the intake directly uses watchdog's inotify reader. The reader's thread may lag behind the kernel, so the
intake uses a *fence*. The intake writes into a separate file, which the same reader also watches, and waits for the
event of this write. The kernel has one queue for all events, so every earlier event arrives before the event of this
write.
"""

import os
import tempfile
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING

from spool.disk.disk import Disk
from spool.model import layout
from spool.runtime.clock import Clock

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, InotifyFD, WatchDescriptor

_FENCE_SECONDS = 10.0  # a reader that takes longer is considered dead


# Two entries of the queue do not come from the kernel. _WAKE: ``wake`` was called. _LOST: the kernel's queue was full,
# so some events were lost.
_WAKE, _LOST = "wake", "lost"


class FolderWatcher:
    """The files that arrive in the watched folders of one space.

    Only one thread uses an object of this class; any thread may call ``wake``.
    """

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._reader: InotifyFD | None = None
        self._fence: IO[bytes] | None = None
        self._fence_number = -1
        self._folders: dict[str, tuple[int, int, WatchDescriptor]] = {}  # by queue: the folder's device, inode, watch
        self._renamed: set[tuple[WatchDescriptor, str]] = set()
        # Not a threading.Event: a signal handler that sets an Event may wait forever for the interrupted thread.
        self._events: SimpleQueue[InotifyEvent | str] = SimpleQueue()

    def watch(self, queue: str) -> None:
        """Watch a queue's folder from now on. If the kernel refuses the watch, no rename in the folder is known."""
        from watchdog.observers.inotify_c import CallbackId, InotifyConstants, Mask

        folder = f"{layout.DROP}/{queue}"
        kinds = InotifyConstants
        mask = kinds.IN_MOVE | kinds.IN_CREATE | kinds.IN_DELETE | kinds.IN_CLOSE_WRITE | kinds.IN_ONLYDIR
        try:
            identity = self._disk.identity(folder)
            known = self._folders.get(queue, (None, None))[:2]
            if identity is not None and known != (identity.device, identity.inode):
                with self._disk.descriptor_path(folder) as path:
                    number = self._started().add_callback(path, Mask(mask), self, CallbackId(0))
                self._folders[queue] = (identity.device, identity.inode, number)
        except OSError:
            self._folders.pop(queue, None)

    def _started(self) -> "InotifyFD":
        from watchdog.observers.inotify_c import CallbackId, InotifyConstants, InotifyFD

        if self._reader is None:
            reader = InotifyFD()
            reader.start()  # first, because watchdog closes only the descriptors of a running reader
            self._reader = reader
        if self._fence is None:
            self._fence = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (``close`` closes it)
        if self._fence_number < 0:
            path = os.fsencode(f"/proc/self/fd/{self._fence.fileno()}")
            self._fence_number = self._reader.add_callback(path, InotifyConstants.IN_MODIFY, self, CallbackId(0))
        return self._reader

    # -- called by watchdog's thread -------------------------------------------------------------------------

    def on_event(self, event: "InotifyEvent") -> None:
        self._events.put(event)

    def on_queue_overflow(self) -> None:
        self._events.put(_LOST)

    def on_watch_deleted(self, wd: "WatchDescriptor") -> None:
        """Do nothing. The folder was removed. If the queue gets a new folder, ``watch`` watches that folder."""

    # -- called by the intake -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End ``wait``. A signal handler, or another thread, may call this method."""
        self._events.put(_WAKE)

    def wait(self, seconds: float) -> None:
        """Wait until a file arrives, ``wake`` is called, or the time is over. A lost event may delay the return."""
        end = self._clock.monotonic() + seconds
        try:
            while not self._note(self._events.get(timeout=max(0.0, end - self._clock.monotonic()))):
                pass
            while True:  # all arrivals of this moment wake the intake once
                self._note(self._events.get_nowait())
        except Empty:
            pass

    def is_renamed(self, queue: str, name: str) -> bool:
        """Return whether the file with this name was renamed into place.

        The caller has read the file's identity before this call, so the kernel has queued each earlier change of the
        name.
        """
        return queue in self._folders and self._pass_fence() and (self._folders[queue][2], name) in self._renamed

    def _pass_fence(self) -> bool:
        """Record every event that the kernel has queued until now. Return False if the reader has died."""
        assert self._fence is not None
        self._fence.seek(0)
        self._fence.write(b".")
        try:
            while True:
                event = self._events.get(timeout=_FENCE_SECONDS)
                self._note(event)
                if getattr(event, "wd", None) == self._fence_number:
                    return True
        except Empty:
            return False

    def _note(self, event: "InotifyEvent | str") -> bool:
        """Record an event; return whether it wakes the intake."""
        if isinstance(event, str):
            if event == _LOST:
                self._renamed.clear()
            return True
        if event.wd == self._fence_number:
            return False
        name = (event.wd, os.fsdecode(event.name))
        if event.is_moved_to:
            self._renamed.add(name)
        elif not event.is_close_write:
            self._renamed.discard(name)
        return event.is_moved_to or event.is_close_write

    def close(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader.join()
        if self._fence is not None:
            self._fence.close()
        self._reader, self._fence, self._fence_number = None, None, -1
        self._folders.clear()
        self._renamed.clear()

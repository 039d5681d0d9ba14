"""Late writes: bytes that a writer adds to a dropped file after the file became messages.

If the kernel does not tell whether a file has a writer, the file counts as complete after ``drop_settle`` seconds
without a change (see ``dropped_states``). After the commit, the intake does not remove such a file, but keeps it in the
folder ``.late.<size>.<modified_ns>/`` of the capture directory. The folder's name has the size and the modification
time of the file when the intake read it. The file remains there for ten minutes, or for ``drop_settle`` seconds if that
is longer.

A file that changes in this time is moved to quarantine. A program that has the file open continues to write into the
moved file, so no bytes are lost. The log names the part of the file that is in the messages. Later intakes continue the
watch.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from spool.disk.content import directory_of, is_directory
from spool.disk.stat import FileIdentity
from spool.policies.dropped_states import WATCH, Verdict, late
from spool.runtime.call_guard import step
from spool.store.store import Store

_WATCHED_SECONDS = 600.0
_FOLDER = re.compile(r"\.late\.([0-9]+)\.(-?[0-9]+)")


class _LateFile(NamedTuple):
    """A file that has become messages. ``size``, ``modified_ns``: the size and the modification time when the file was
    read."""

    queue: str
    path: str
    size: int
    modified_ns: int


class LateWrites:
    """Watches the files of one intake for late writes.

    ``end``: a function that does the step of a decision about a file at a path, whose queue is the third argument.
    """

    def __init__(self, store: Store, end: Callable[[Verdict, str, str], None]) -> None:
        self._store = store
        self._disk = store.files.disk
        self._end = end
        self._files: list[_LateFile] = []

    def watch(self, queue: str, path: str, read: FileIdentity) -> None:
        """Watch a file whose messages are committed. ``read``: the identity of the file when it was read."""
        directory, _, name = path.rpartition("/")
        folder = f"{directory}/.late.{read.size}.{read.modified_ns}"
        self._disk.make_directory(folder)
        try:
            self._disk.rename_new(path, f"{folder}/{name}")
        except FileExistsError:  # a power cut left both names of the file
            self._disk.unlink(path)
        self._files.append(_LateFile(queue, f"{folder}/{name}", read.size, read.modified_ns))

    def take_over(self, queue: str, folder: str) -> None:
        """Watch the late files of a dead intake. Do nothing if ``folder``, an entry of its capture directory, is no
        folder of late files."""
        named = _FOLDER.fullmatch(folder.rpartition("/")[2])
        if named is not None and is_directory(self._disk, folder):
            if not (names := self._disk.names(folder)):
                self._disk.remove_directory(folder)
            self._files += [_LateFile(queue, f"{folder}/{name}", int(named[1]), int(named[2])) for name in names]

    def check(self) -> None:
        """Move each changed file to quarantine. Remove each unchanged file that was watched long enough."""
        self._files = [file for file in self._files if self._still_watched(file)]

    @step("looking at files that were taken")
    def _still_watched(self, file: _LateFile) -> bool:
        period = max(_WATCHED_SECONDS, self._store.settings.known.config.drop_settle)
        identity = self._disk.identity(file.path)
        is_over = identity is not None and abs(self._store.clock.now() - identity.changed_ns / 1e9) >= period
        decision = late(file.size, file.modified_ns, identity, is_over)
        if decision is WATCH:
            return True
        self._end(decision, file.path, file.queue)
        with suppress(OSError):  # the folder still has another file
            self._disk.remove_directory(directory_of(file.path))
        return False

    def close(self) -> None:
        """Leave the files to the next intake."""
        self._files.clear()

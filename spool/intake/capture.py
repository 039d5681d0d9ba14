"""Capture of dropped files: an intake moves each file to its own directory; the next intake takes over from a dead one.

Only the intake that owns the directory opens its files by name. If an intake dies, the next intake removes each file
that a commit names, and reads every other file in the directory. No file is put back.

On a file system that does not order renames, a captured file briefly has two names. The intake does not remove the
first name directly, because a program may have renamed its next file to the same name. Instead, the intake renames the
first name to ``.first.<name>`` in the capture directory. If this name then belongs to the captured file, the intake
removes the name. Otherwise the name belongs to another file, which the intake captures under this name.
"""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

from spool.admin.quarantined import finish_restoring
from spool.coordination.locks import drop_folder_byte
from spool.disk.content import opened
from spool.disk.disk import Disk
from spool.disk.durability import Move
from spool.disk.kernel import Unsupported
from spool.disk.stat import FileIdentity
from spool.intake import safety_copies
from spool.intake.directories import CapturedFile, CaptureDirectories
from spool.intake.late_writes import LateWrites
from spool.log.sequence import settle_all
from spool.log.visibility import catch_up
from spool.model import layout
from spool.policies.dropped_states import REMOVE, WATCH, Action, Proof, Seen, Verdict, committed, committed_by_the_dead
from spool.runtime.call_guard import step
from spool.store.store import Store

log = logging.getLogger("spool")


class Capture:
    """The captured files of one intake.

    end: a function that does the step of a decision about a file at a path, whose queue is the third argument.
    """

    def __init__(self, store: Store, end: Callable[[Verdict, str, str], None]) -> None:
        self.late_writes = LateWrites(store, end)
        self._store = store
        self._disk = store.files.disk
        self._end = end
        self._directories = CaptureDirectories(store)
        self._locked_folders: set[str] = set()  # queues whose ``drop_folder_byte`` this intake holds

    def capture(self, queue: str, arrivals: Sequence[tuple[str, Seen | None]]) -> list[CapturedFile]:
        """Move dropped files, by name, to a capture directory.

        Returns:
            The captured files, and the files of dead intakes that were found meanwhile.
        """
        if not arrivals:
            return []
        self._directories.release_unused()
        batch = _Batch()
        arrived = (
            _FileMove(self, batch, CapturedFile(queue, self._directories.for_file(queue, name), name, seen))
            for name, seen in arrivals
            if name not in batch.left_to_others
        )
        with self._disk.keeping(*self._directories.newest(queue)):
            self._disk.durability.move(arrived, partial(self._alone_at, queue, batch))
        return batch.captured

    @contextmanager
    def _alone_at(self, queue: str, batch: "_Batch") -> Iterator[None]:
        """Keep other intakes away from a queue's folder while files of the folder have two names or a copy."""
        with self._folder_locked(queue):
            if self._copied_names(queue):
                batch.captured += self.finish_dead_intakes()
            batch.left_to_others = self._copied_names(queue)  # another intake will finish these files
            self._directories.flush_of_the_dead(queue)
            yield
            for folder in batch.folders_with_copies:
                self._disk.flush_directory(folder)
                for spare in safety_copies.folders(self._disk, folder):
                    safety_copies.remove(self._disk, spare)

    @contextmanager
    def _folder_locked(self, queue: str) -> Iterator[None]:
        if queue in self._locked_folders:
            yield
            return
        what = f"the folder {layout.DROP}/{queue}"
        with self._store.shared.xids.holding(drop_folder_byte(queue), self._store.deadline(), what):
            self._locked_folders.add(queue)
            try:
                yield
            finally:
                self._locked_folders.remove(queue)

    def _report(self, path: str, queue: str, why: str) -> None:
        self._end(Verdict(Action.REPORT, why), path, queue)

    def _copied_names(self, queue: str) -> set[str]:
        directories = [f"{layout.ACTIVE}/{name}" for name in self._directories.names(queue)]
        folders = [folder for directory in directories for folder in safety_copies.folders(self._disk, directory)]
        return {name for folder in folders for name in self._disk.names(folder)}

    def _is_captured(self, file: CapturedFile, identity: FileIdentity) -> bool:
        """Return whether a dead intake had already given the file its new name."""
        return any(
            identity.same_file(self._disk.identity(f"{layout.ACTIVE}/{directory}/{file.name}"))
            for directory in self._directories.names(file.queue)
        )

    # -- around the commit --------------------------------------------------------------------------------------------

    def make_durable(self, batch: list[CapturedFile]) -> None:
        """Flush the folders that captured files left before the commit, so that after a power cut no captured file is
        in drop/ again.

        This flush is also needed on btrfs, where a commit's flush covers only the renames of the commit's own file.
        """
        disk = self._disk
        try:
            for folder in sorted({f"{layout.DROP}/{file.queue}" for file in batch}):
                try:
                    disk.flush_directory(folder)
                except FileNotFoundError:
                    disk.flush_directory(layout.DROP)  # the removal of the folder is in this directory
            for folder in sorted({file.folder for file in batch}):
                disk.durability.flush_arrivals(disk, folder)
        except OSError as error:
            self._store.fail("taking dropped files", error)

    def remove(self, file: CapturedFile) -> None:
        """Remove a marker, or a file whose messages are committed. If the file may still have a writer, watch the file
        first (see ``late_writes``)."""
        seen = file.seen
        identity = None if seen is None or seen.proof is not Proof.DECLARED else self._disk.identity(file.path)
        self._finish(file, REMOVE if seen is None else committed(seen, identity))

    def _finish(self, file: CapturedFile, decision: Verdict) -> None:
        try:
            if decision is REMOVE:
                self._disk.unlink(file.path)
            elif decision is WATCH and file.seen is not None:
                self.late_writes.watch(file.queue, file.path, file.seen.identity)
            else:
                self._end(decision, file.path, file.queue)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s was taken and cannot be removed yet: %s", file.path, error)

    # -- intakes that died --------------------------------------------------------------------------------------------

    @step("finishing dropped files")
    def finish_dead_intakes(self) -> list[CapturedFile]:
        """Take over the files that intakes captured before they died.

        The files that a commit names are removed. The other files are returned. The intake reads the returned files in
        their directories.
        """
        captured: list[CapturedFile] = []
        for directory in self._directories.names():
            if not self._directories.take_over(directory):
                continue
            left = None
            try:
                left = self._finish_directory(directory)
            finally:
                if left is None:
                    self._directories.unlock(directory)  # a later call finishes the directory
            captured += left or []
        return captured

    def _finish_directory(self, directory: str) -> list[CapturedFile] | None:
        """Return the directory's files that must still be read, or None if this intake does not keep the directory. The
        caller holds the directory's byte."""
        path, queue = f"{layout.ACTIVE}/{directory}", layout.queue_of_capture(directory)
        if (identity := self._disk.identity(path)) is None:
            return None  # another intake was faster
        if not identity.is_directory:
            self._report(path, queue, "it is no directory, and left alone")
            return None
        if queue not in self._store.settings.current().config.queues:
            self._report(path, queue, f"files taken for queue {queue}, which was deleted: create it again")
            return None
        # A commit of the dead intake may be unpublished. So settle every number before deciding that no commit names a
        # file.
        settle_all(self._store, self._store.deadline())
        catch_up(self._store)
        self._repair_names(queue, directory)
        left = []
        for name in sorted(self._disk.names(path)):
            if not layout.is_captured(name):
                self.late_writes.take_over(queue, f"{path}/{name}")
                continue
            file = _captured(queue, directory, name)
            if name != file.name and self._is_one_file(file.path, f"{path}/{file.name}"):
                self._disk.unlink(file.path)
                continue
            found = [file]
            # A file has both names if the intake died, or because of a power cut.
            if self._is_one_file(file.first, file.path):
                for folder in (layout.ACTIVE, file.folder):
                    self._disk.flush_directory(folder)
                found = self._remove_first_name(file)
            if found and file.record in self._store.view.index.captured:
                self._remove_of_the_dead(file)
                del found[0]
            left += found
        self._directories.keep(directory)
        return left

    def _repair_names(self, queue: str, directory: str) -> None:
        """Recover the copies in a directory. After a failed flush, also change the names of captured files once more.

        The kernel may have dropped the changes that it had not written, and later flushes do not write them. So a file
        that has both names loses the new name, and is captured anew. A file that has only its new name gets its first
        name again, and loses it at once. Meanwhile no other intake renames files of the queue's folder.
        """
        path, disk, captured = f"{layout.ACTIVE}/{directory}", self._disk, self._store.view.index.captured
        has_copies = bool(safety_copies.folders(disk, path))
        is_suspect = disk.durability.defers_removal(self._store.shared.counters.read().is_suspect)
        with self._folder_locked(queue) if has_copies or is_suspect else nullcontext():
            if has_copies:
                safety_copies.recover(disk, path, queue)
            if not is_suspect:
                return
            files = [_captured(queue, directory, name) for name in disk.names(path) if layout.is_captured(name)]
            for file in [each for each in files if each.record not in captured]:
                if self._is_one_file(file.first, file.path):
                    disk.unlink(file.path)
                    continue
                with suppress(OSError):  # a new file has the name, or the kernel refuses a link to another user's file
                    disk.link(file.path, file.first)
                self._remove_first_name(file)
            disk.flush_directory(path)

    def _remove_of_the_dead(self, file: CapturedFile) -> None:
        """Remove a file that a commit of a dead intake names. If the file may still have a writer, watch the file."""
        identity, writer = self._disk.identity(file.path), None
        with suppress(OSError), opened(self._disk, file.path) as handle:
            writer = self._disk.has_writer(handle)
        if identity is not None:
            file.seen = Seen(Proof.UNCHANGED, identity)
        self._finish(file, committed_by_the_dead(identity, writer))

    # -- where a file has two names for a moment ----------------------------------------------------------------------

    def _is_one_file(self, path: str, other: str) -> bool:
        identity = self._disk.identity(path)
        return identity is not None and identity.same_file(self._disk.identity(other))

    def _remove_first_name(self, file: CapturedFile) -> list[CapturedFile]:
        """Remove the first name of a file whose new name is durable. Return the captured files, this file first.

        If another file already has the first name, that file is not touched. If another file gets the name during the
        removal, that file is also captured. If this user may not remove files from the folder, the file stays there,
        and loses its new name, unless a commit names it.
        """
        if not self._is_one_file(file.first, file.path):
            return [file]
        moved = CapturedFile(file.queue, file.directory, file.name, came_meanwhile=True)
        try:
            self._disk.rename_new(file.first, moved.path)
        except FileNotFoundError:  # the file's owner removed the file
            return [file]
        except PermissionError as error:
            self._report(file.first, file.queue, f"it cannot be removed from its folder: {error.strerror}")
            if file.record not in self._store.view.index.captured:
                self._disk.unlink(file.path)
            return []
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENAMETOOLONG):
                raise
            with suppress(FileNotFoundError):  # the check above has shown that the name belongs to the captured file
                self._disk.unlink(file.first)
            return [file]
        if self._is_one_file(moved.path, f"{moved.folder}/{moved.name}"):
            self._disk.unlink(moved.path)
            return [file]
        self._disk.flush_directory(moved.folder)  # a power cut must not lose both names of the file
        return [file, moved]

    # -- the end ------------------------------------------------------------------------------------------------------

    @step("finishing dropped files")
    def close(self) -> None:
        """Release the capture directories. The files in the directories wait for the next intake."""
        self.late_writes.close()
        self._directories.release_all()


def _captured(queue: str, directory: str, entry: str) -> CapturedFile:
    name = entry.removeprefix(layout.FIRST_PREFIX)
    return CapturedFile(queue, directory, name, came_meanwhile=name != entry)


@dataclass
class _Batch:
    """The files of one call of ``capture``. ``left_to_others``: the names of files that another intake finishes."""

    captured: list[CapturedFile] = field(default_factory=list)
    folders_with_copies: dict[str, None] = field(default_factory=dict)
    left_to_others: set[str] = field(default_factory=set)


class _FileMove(Move):
    """The move of a dropped file to its capture directory. A file that cannot be moved is reported, and remains in its
    folder.

    If another user's file cannot get a second name, the intake creates a durable copy before the rename. A file that is
    too large for a message gets no copy, because it goes to quarantine after the rename.
    """

    disk: Disk

    def __init__(self, capture: Capture, batch: _Batch, file: CapturedFile) -> None:
        super().__init__(capture._disk, file.first, file.path)
        self._capture = capture
        self._batch = batch
        self._file = file
        self._moves_at_release = False

    def rename(self) -> None:
        seen = self._file.seen
        identity = self.disk.identity(self.source) if seen is None else seen.identity
        if self._attempt(partial(self.disk.rename_new, self.source, self.target), identity):
            self._batch.captured.append(self._file)

    def link(self) -> bool:
        identity = self.disk.identity(self.source)
        return self._attempt(partial(self._link_or_copy, identity), identity)

    def release(self) -> None:
        if not self._moves_at_release:
            self._batch.captured += self._capture._remove_first_name(self._file)
        elif self._attempt(super().rename):
            self._batch.captured.append(self._file)

    def _attempt(self, move: Callable[[], None], identity: FileIdentity | None = None) -> bool:
        """Move the file. Return False if the file remains in its folder, or if a dead intake had already moved it."""
        try:
            if identity is not None and identity.links > 1 and self._capture._is_captured(self._file, identity):
                self._batch.captured += self._capture.finish_dead_intakes()
                return False
            move()
        except FileNotFoundError:
            return False  # the file's owner removed the file, or another intake was faster
        except OSError as error:
            self._capture._report(self._file.first, self._file.queue, f"it cannot be taken: {error.strerror}")
            return False
        self._capture._directories.note_used(self._file)
        return True

    def _link_or_copy(self, identity: FileIdentity | None) -> None:
        if identity is not None and identity.links > 1:
            finish_restoring(self.disk, self.source, identity)
        try:
            super().link()
        except Unsupported:
            most = self._capture._store.settings.known.config.max_dropped_bytes
            if identity is None or identity.size <= most:
                safety_copies.make(self.disk, self.source, self._file.folder, most)
                self._batch.folders_with_copies[self._file.folder] = None
            self._moves_at_release = True

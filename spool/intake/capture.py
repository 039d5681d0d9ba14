"""Capture of dropped files: an intake moves each file to a directory in which only this intake opens files by name.

If an intake dies, the next intake takes over the directory and the captured files. The next intake removes each file
that a commit names, and reads every other file in the directory. No file is put back.

On a file system that does not order renames, a captured file briefly has two names. The intake does not remove the
first name directly, because a program may have renamed its next file to the same name. Instead, the intake renames the
first name to ``.first.<name>`` in the capture directory. If this name then belongs to the captured file, the intake
removes the name. Otherwise the name belongs to another file, which the intake captures under this name.
"""

import errno
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from spool.admin.quarantined import finish_restoring
from spool.coordination.locks import drop_folder_byte
from spool.disk.disk import Disk
from spool.disk.durability import Move
from spool.disk.kernel import Unsupported
from spool.disk.quarantine import Cause
from spool.disk.stat import FileIdentity
from spool.intake import safety_copies
from spool.intake.directories import CapturedFile, CaptureDirectories
from spool.intake.late_writes import LateWrites, growth_reason
from spool.log.sequence import settle_all
from spool.log.visibility import catch_up
from spool.model import layout
from spool.policies.writers import Complete, Evidence
from spool.runtime.calls import step
from spool.store.store import Store

log = logging.getLogger("spool")


class Capture:
    """The captured files of one intake.

    queues: a function that returns the names of all queues.
    report: a function with the arguments (name, reason), which is called for each file that the intake does not take.
    move_to_quarantine: a function that moves a file to quarantine. The arguments of the function are (path, queue,
        reason, cause).
    """

    def __init__(
        self,
        store: Store,
        queues: Callable[[], Collection[str]],
        report: Callable[[str, str], None],
        move_to_quarantine: Callable[[str, str, str, Cause], None],
    ) -> None:
        self.late_writes = LateWrites(store, move_to_quarantine)
        self._store = store
        self._disk = store.files.disk
        self._queues = queues
        self._report = report
        self._quarantine = move_to_quarantine
        self._directories = CaptureDirectories(store)
        self._locked_folders: set[str] = set()  # queues whose ``drop_folder_byte`` this intake holds

    @step("taking dropped files")
    def capture(self, queue: str, arrivals: Sequence[tuple[str, Complete | None]]) -> list[CapturedFile]:
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
        what = f"the folder {layout.DROP}/{queue}"
        with self._store.shared.xids.holding(drop_folder_byte(queue), self._store.deadline(), what):
            self._locked_folders.add(queue)
            try:
                yield
            finally:
                self._locked_folders.remove(queue)

    def _report_failure(self, file: CapturedFile, error: OSError) -> None:
        self._report(file.first, f"it cannot be taken: {error.strerror}")

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
        """Flush the directories of captured files before the commit, so that after a power cut no captured file is in
        drop/ again.

        This flush is also needed on btrfs, where a commit's flush covers only the renames of the commit's own file.
        """
        folders = {f"{layout.ACTIVE}/{file.directory}" for file in batch}
        folders |= {f"{layout.DROP}/{file.queue}" for file in batch} | {layout.ACTIVE}
        try:
            for folder in sorted(folders):
                if self._disk.exists(folder):
                    self._disk.flush_directory(folder)
        except OSError as error:
            self._store.fail("taking dropped files", error)

    def remove(self, file: CapturedFile) -> None:
        """Remove a file whose messages are committed. If the file may still have a writer, watch the file first (see
        ``late_writes``)."""
        try:
            if file.seen is None or file.seen.evidence is Evidence.NO_WRITER:
                self._disk.unlink(file.path)
            elif file.seen.evidence is Evidence.UNCHANGED:
                self.late_writes.watch(file.queue, file.path, file.seen.identity)
            else:
                seen, identity = file.seen, self._disk.identity(file.path)
                if identity is None or seen.is_still(identity):
                    self._disk.unlink(file.path)
                else:
                    reason = growth_reason(seen.identity.size, identity.size)
                    self._quarantine(file.path, file.queue, reason, Cause.CHANGED)
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
        identity = self._disk.identity(path)
        if identity is None:
            return None  # another intake was faster
        if not identity.is_directory:
            self._report(path, "it is no directory, and left alone")
            return None
        if queue not in self._queues():
            self._report(path, f"files taken for queue {queue}, which was deleted: create it again")
            return None
        # A commit of the dead intake may be unpublished. So settle every number before deciding that no commit names a
        # file.
        settle_all(self._store, self._store.deadline())
        catch_up(self._store)
        self._recover_copies(queue, path)
        left = []
        for name in sorted(self._disk.names(path)):
            if not layout.is_captured(name):
                self.late_writes.take_over(queue, f"{path}/{name}")
                continue
            meanwhile = name.startswith(layout.FIRST_PREFIX)
            file = CapturedFile(queue, directory, name.removeprefix(layout.FIRST_PREFIX), came_meanwhile=meanwhile)
            if meanwhile and self._is_second_name(file):
                self._disk.unlink(file.path)
                continue
            if self._has_first_name(file):  # the file has both names because the intake died, or because of a power cut
                for folder in (layout.ACTIVE, file.folder):
                    self._disk.flush_directory(folder)
                left += self._remove_first_name(file)
            if file.record in self._store.view.index.captured:
                self._remove_of_the_dead(file)
            else:
                left.append(file)
        self._directories.keep(directory)
        return left

    def _recover_copies(self, queue: str, path: str) -> None:
        """Recover the copies in a directory. Meanwhile no other intake renames files of the queue's folder."""
        if not safety_copies.folders(self._disk, path):
            return
        with nullcontext() if queue in self._locked_folders else self._folder_locked(queue):
            safety_copies.recover(self._disk, path, queue)

    def _remove_of_the_dead(self, file: CapturedFile) -> None:
        """Remove a file that a commit of a dead intake names.

        It is not known in which state the dead intake read the file.
        """
        identity = self._disk.identity(file.path)
        if identity is None or not identity.is_regular or self._has_no_writer(file.path):
            self.remove(file)
        elif identity.modified_ns < identity.changed_ns:  # the rename of the capture came after the last write
            self.remove(replace(file, seen=Complete(Evidence.UNCHANGED, identity)))
        else:
            reason = "it became messages, its intake died, and it may have changed since: compare it with them"
            self._quarantine(file.path, file.queue, reason, Cause.CHANGED)

    def _has_no_writer(self, path: str) -> bool:
        with suppress(OSError):
            return self._disk.has_writer(path) is False
        return False

    # -- where a file has two names for a moment ----------------------------------------------------------------------

    def _has_first_name(self, file: CapturedFile) -> bool:
        identity = self._disk.identity(file.first)
        return identity is not None and identity.same_file(self._disk.identity(file.path))

    def _remove_first_name(self, file: CapturedFile) -> list[CapturedFile]:
        """Remove the first name of a file whose new name is durable.

        If another file already has the first name, that file is not touched. If another file gets the name during the
        removal, that file is also captured, and is returned.
        """
        if not self._has_first_name(file):
            return []
        moved = replace(file, seen=None, came_meanwhile=True)
        try:
            self._disk.rename_new(file.first, moved.path)
        except FileNotFoundError:  # the file's owner removed the file
            return []
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENAMETOOLONG):
                raise
            with suppress(FileNotFoundError):  # the check above has shown that the name belongs to the captured file
                self._disk.unlink(file.first)
            return []
        if self._is_second_name(moved):
            self._disk.unlink(moved.path)
            return []
        self._disk.flush_directory(moved.folder)  # a power cut must not lose both names of the file
        return [moved]

    def _is_second_name(self, moved: CapturedFile) -> bool:
        identity = self._disk.identity(moved.path)
        return identity is not None and identity.same_file(self._disk.identity(f"{moved.folder}/{moved.name}"))

    # -- the end ------------------------------------------------------------------------------------------------------

    @step("finishing dropped files")
    def close(self) -> None:
        """Release the capture directories. The files in the directories wait for the next intake."""
        self.late_writes.close()
        self._directories.release_all()


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
        self._attempt(lambda _: super(_FileMove, self).rename())

    def link(self) -> bool:
        return self._attempt(self._link_or_copy)

    def release(self) -> None:
        captured = self._batch.captured
        if not self._moves_at_release:
            captured += self._capture._remove_first_name(self._file)
            return
        try:
            super().rename()
        except OSError as error:
            captured.remove(self._file)
            if not isinstance(error, FileNotFoundError):
                self._capture._report_failure(self._file, error)

    def _attempt(self, move: Callable[[FileIdentity | None], None]) -> bool:
        """Move the file. Return False if the file remains in its folder, or if a dead intake had already moved it."""
        try:
            identity = self.disk.identity(self.source)
            if identity is not None and identity.links > 1 and self._capture._is_captured(self._file, identity):
                self._batch.captured += self._capture.finish_dead_intakes()
                return False
            move(identity)
        except FileNotFoundError:
            return False  # the file's owner removed the file, or another intake was faster
        except OSError as error:
            self._capture._report_failure(self._file, error)
            return False
        self._capture._directories.note_used(self._file)
        self._batch.captured.append(self._file)
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

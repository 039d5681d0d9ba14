"""Files that are taken from ``drop/``: moved to where only their intake opens them by name.

A *taking directory* lies in ``active/`` and belongs to the intake that holds its byte. Names in it are never used
twice, so a commit's record of one can never mean another file. What an intake took before it died belongs to whoever
gets the byte next: if a commit names the file, it is removed, otherwise it is read from where it lies, never put back.

Where renames are not ordered, a file has both its names for a moment. Then the first one is never removed from the
folder by its name alone, since a program may have renamed its next file to it. It is moved to ``.first.<name>`` in the
taking directory and compared there: the taken file's second name goes; another file is taken under that name.
"""

import errno
import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

from spool.admin.quarantined import finish_restoring
from spool.coordination.locks import dropping_byte, taken_byte
from spool.disk.identity import FileIdentity
from spool.disk.kernel import Unsupported
from spool.disk.quarantine import IS_MESSAGES
from spool.errors import SpoolError
from spool.intake import spares
from spool.intake.dropfile import is_unfinished
from spool.intake.late import Late, grown
from spool.intake.writers import Complete, Evidence
from spool.log.sequence import settle_all
from spool.log.visibility import catch_up
from spool.model import layout
from spool.runtime.gate import public_call
from spool.store.store import Store

log = logging.getLogger("spool")

_FIRST = ".first."
_MOST_NAMES = 10_000  # of one taking directory, since an intake remembers them


@dataclass(frozen=True)
class Taken:
    """A file in a taking directory: ``active/<directory>/<entry>``. ``name``: as it was dropped. ``seen``: as it was
    when it was found complete; None of what a dead intake had taken. ``came_meanwhile``: it came under the name of one
    that was being taken, and has another entry."""

    queue: str
    directory: str
    name: str
    seen: Complete | None = field(default=None, compare=False)
    came_meanwhile: bool = False

    @property
    def folder(self) -> str:
        return f"{layout.ACTIVE}/{self.directory}"

    @property
    def entry(self) -> str:
        return f"{_FIRST}{self.name}" if self.came_meanwhile else self.name

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.entry}"

    @property
    def first(self) -> str:
        """Where it was dropped."""
        return f"{layout.DROP}/{self.queue}/{self.name}"

    @property
    def record(self) -> tuple[str, bytes]:
        """As a commit names it: file names are bytes."""
        return self.directory, os.fsencode(self.entry)


class Taking:
    """The taking directories of one intake. ``queues`` names the queues there are; ``report`` is told of what is left
    alone, by name and reason; ``set_aside`` moves a file to quarantine, by path, queue and reason."""

    def __init__(
        self,
        store: Store,
        queues: Callable[[], Collection[str]],
        report: Callable[[str, str], None],
        set_aside: Callable[[str, str, str], None],
    ) -> None:
        self.late = Late(store, set_aside)
        self._store = store
        self._disk = store.files.disk
        self._queues = queues
        self._report = report
        self._set_aside = set_aside
        self._directories: dict[str, str] = {}  # by queue, where its next file goes
        self._held: list[str] = []  # directories of which this intake has the byte
        self._used: dict[str, set[str]] = {}  # names in each that files still go to
        self._folders: set[str] = set()  # queues of which this intake has the ``dropping_byte``

    @public_call("taking dropped files")
    def take(self, queue: str, arrivals: list[tuple[str, Complete]]) -> list[Taken]:
        """Move dropped files, by name, where nobody else can open them by name; what can be had of them, and what
        turned out to be a dead intake's.

        Where renames are not ordered, a power cut could lose both names of a file: there the new one is durable before
        the old one goes, or a copy is (``spares``), and meanwhile no other intake may look.
        """
        self._leave_empty()
        if self._disk.ordered:
            return [taken for name, seen in arrivals for taken in self._take_one(queue, name, seen, self._rename)]
        byte = dropping_byte(queue)
        self._store.shared.xids.lock(byte, self._store.deadline(), f"the folder {layout.DROP}/{queue}")
        self._folders.add(queue)
        try:
            return self._take_in_turn(queue, arrivals)
        finally:
            self._folders.remove(queue)
            self._store.shared.xids.unlock(byte)

    def _take_in_turn(self, queue: str, arrivals: list[tuple[str, Complete]]) -> list[Taken]:
        found = self.finish_dead_intakes() if self._spared(queue) else []
        spared = self._spared(queue)  # another intake is about to finish those
        self._flush_of_the_dead(queue)
        linked: list[Taken] = []
        copied: list[Taken] = []

        def link_or_copy(taken: Taken) -> None:
            try:
                self._disk.link(taken.first, taken.path)
                linked.append(taken)
            except Unsupported:
                spares.make(self._disk, taken.first, taken.folder)
                copied.append(taken)

        for name, seen in arrivals:
            if name not in spared:
                found += self._take_one(queue, name, seen, link_or_copy)
        for folder in {taken.folder for taken in linked + copied}:
            self._disk.flush_directory(folder)
        for taken in linked:
            found += self._remove_first_name(taken)
        gone = self._rename_copied(copied)
        return [taken for taken in found if taken not in gone]

    def _rename_copied(self, copied: list[Taken]) -> list[Taken]:
        """Files whose copies are durable; those that could not be had."""
        gone = []
        for taken in copied:
            try:
                self._rename(taken)
            except FileNotFoundError:
                gone.append(taken)
            except OSError as error:
                self._cannot_take(taken, error)
                gone.append(taken)
        for folder in {taken.folder for taken in copied}:
            self._disk.flush_directory(folder)
            for spare in spares.folders(self._disk, folder):
                spares.remove(self._disk, spare)
        return gone

    def _take_one(self, queue: str, name: str, seen: Complete, move: Callable[[Taken], None]) -> list[Taken]:
        taken = Taken(queue, self._directory(queue, name), name, seen)
        try:
            identity = self._disk.identity(taken.first)
            if identity is not None and identity.links > 1:
                if self._is_taken(taken, identity):
                    return self.finish_dead_intakes()
                if not self._disk.ordered:
                    finish_restoring(self._disk, taken.first, identity)
            move(taken)
        except FileNotFoundError:
            return []  # its owner thought better of it, or another intake was faster
        except OSError as error:
            self._cannot_take(taken, error)
            return []
        self._used[taken.directory].add(name)
        return [taken]

    def _rename(self, taken: Taken) -> None:
        self._disk.rename_new(taken.first, taken.path)

    def _cannot_take(self, taken: Taken, error: OSError) -> None:
        self._report(taken.first, f"it cannot be taken: {error.strerror}")

    def _spared(self, queue: str) -> set[str]:
        """Names of files of which intakes have copies."""
        directories = [f"{layout.ACTIVE}/{name}" for name in self._directories_of(queue)]
        folders = [folder for directory in directories for folder in spares.folders(self._disk, directory)]
        return {name for folder in folders for name in self._disk.names(folder)}

    def _flush_of_the_dead(self, queue: str) -> None:
        """An intake that removed a copy may have died before that was durable: the copy would come back, and count,
        once its original was taken."""
        for directory in self._directories_of(queue):
            identity = self._disk.identity(f"{layout.ACTIVE}/{directory}")
            if (
                identity is not None
                and identity.is_directory
                and self._store.shared.xids.is_free(taken_byte(directory))
            ):
                with suppress(FileNotFoundError):
                    self._disk.flush_directory(f"{layout.ACTIVE}/{directory}")

    def _directories_of(self, queue: str) -> list[str]:
        prefix = f"{layout.TAKEN_PREFIX}{queue}."
        return [name for name in self._disk.names(layout.ACTIVE) if name.startswith(prefix)]

    def _is_taken(self, taken: Taken, identity: FileIdentity) -> bool:
        """Whether an intake that died had given the file its new name already."""
        return any(
            identity.same_file(self._disk.identity(f"{layout.ACTIVE}/{directory}/{taken.name}"))
            for directory in self._directories_of(taken.queue)
        )

    def _directory(self, queue: str, name: str) -> str:
        """This intake's directory for the queue; a new one if the name was used in it before, or too many were."""
        directory = self._directories.get(queue)
        if directory is not None:
            used = self._used[directory]
            if name not in used and len(used) < _MOST_NAMES:
                return directory
        directory = f"{layout.TAKEN_PREFIX}{queue}.{os.urandom(8).hex()}"
        if not self._store.shared.xids.try_lock(taken_byte(directory)):
            raise SpoolError(f"the new directory {directory} is taken already")
        self._held.append(directory)
        self._disk.make_directory(f"{layout.ACTIVE}/{directory}")
        # Or what it holds could be lost with it. Itself first: without a journal its name could lead elsewhere.
        self._disk.flush_directory(f"{layout.ACTIVE}/{directory}")
        self._disk.flush_directory(layout.ACTIVE)
        self._used.pop(self._directories.get(queue, ""), None)
        self._directories[queue], self._used[directory] = directory, set()
        return directory

    def make_durable(self, batch: list[Taken]) -> None:
        """Before the commit: or a file could be back in drop/ after a power cut, and come again.

        On btrfs too, where the commit's flush covers the renames of its own file, and of no other.
        """
        folders = {f"{layout.ACTIVE}/{taken.directory}" for taken in batch}
        folders |= {f"{layout.DROP}/{taken.queue}" for taken in batch} | {layout.ACTIVE}
        try:
            for folder in sorted(folders):
                if self._disk.exists(folder):
                    self._disk.flush_directory(folder)
        except OSError as error:
            self._store.fail("taking dropped files", error)

    def remove(self, taken: Taken) -> None:
        """A file whose messages are committed; one that may still have a writer is looked at for a while (``late``)."""
        try:
            if taken.seen is None or taken.seen.evidence is Evidence.ASKED:
                self._disk.unlink(taken.path)
            elif taken.seen.evidence is Evidence.STILL:
                self.late.keep(taken.queue, taken.path, taken.seen.identity)
            else:
                self._remove_renamed(taken, taken.seen)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s was taken and cannot be removed yet: %s", taken.path, error)

    def _remove_renamed(self, taken: Taken, seen: Complete) -> None:
        identity = self._disk.identity(taken.path)
        if identity is None or seen.is_still(identity):
            self._disk.unlink(taken.path)
        else:
            self._set_aside(taken.path, taken.queue, grown(seen.identity.size, identity.size))

    # -- what others left -------------------------------------------------------------------------------------------

    @public_call("finishing dropped files")
    def finish_dead_intakes(self) -> list[Taken]:
        """What intakes took before they died: removed if a commit names it, else returned, to be read where it lies."""
        found: list[Taken] = []
        for directory in sorted(self._disk.names(layout.ACTIVE)):
            if not directory.startswith(layout.TAKEN_PREFIX):
                continue
            if not self._store.shared.xids.try_lock(taken_byte(directory)):
                continue  # its intake lives
            try:
                left = self._finish_directory(directory)
            except BaseException:
                self._store.shared.xids.unlock(taken_byte(directory))  # the next look finishes it
                raise
            if left is None:
                self._store.shared.xids.unlock(taken_byte(directory))
            else:
                found += left
        return found

    def _finish_directory(self, directory: str) -> list[Taken] | None:
        """What is to be read of a directory that is this intake's now, or None; the caller holds its byte."""
        path = f"{layout.ACTIVE}/{directory}"
        queue = directory.removeprefix(layout.TAKEN_PREFIX).rpartition(".")[0]
        identity = self._disk.identity(path)
        if identity is None:
            return None  # another intake was faster
        if not identity.is_directory:
            self._report(path, "it is no directory, and left alone")
            return None
        if queue not in self._queues():
            self._report(path, f"files taken for queue {queue}, which is gone: create it again")
            return None
        # A commit of the dead one may still be unpublished: see every number before believing that there is none.
        settle_all(self._store, self._store.deadline())
        catch_up(self._store)
        self._settle_copies(queue, path)
        left = []
        for name in sorted(self._disk.names(path)):
            if is_unfinished(name) and not name.startswith(_FIRST):  # no file that was dropped
                self.late.adopt(queue, f"{path}/{name}")
                continue
            taken = Taken(queue, directory, name.removeprefix(_FIRST), came_meanwhile=name.startswith(_FIRST))
            if taken.came_meanwhile and self._is_second_name(taken):
                self._disk.unlink(taken.path)
                continue
            if self._has_first_name(taken):  # a death or a power cut left it both
                for folder in (layout.ACTIVE, taken.folder):
                    self._disk.flush_directory(folder)
                left += self._remove_first_name(taken)
            if taken.record in self._store.view.index.captured:
                self._remove_of_the_dead(taken)
            else:
                left.append(taken)
        self._held.append(directory)
        return left

    def _settle_copies(self, queue: str, path: str) -> None:
        """While no other intake renames files of that folder."""
        if not spares.folders(self._disk, path):
            return
        if queue in self._folders:
            spares.settle(self._disk, path, queue)
            return
        byte = dropping_byte(queue)
        self._store.shared.xids.lock(byte, self._store.deadline(), f"the folder {layout.DROP}/{queue}")
        try:
            spares.settle(self._disk, path, queue)
        finally:
            self._store.shared.xids.unlock(byte)

    def _remove_of_the_dead(self, taken: Taken) -> None:
        """A file that a commit names, of which it is not known how it was read."""
        identity = self._disk.identity(taken.path)
        if identity is None or not identity.is_regular or self._has_no_writer(taken.path):
            self.remove(taken)
        elif identity.modified_ns < identity.changed_ns:  # the rename that took it came after all that was written
            self.remove(replace(taken, seen=Complete(Evidence.STILL, identity)))
        else:
            reason = f"{IS_MESSAGES}, its intake died, and it may have changed since: compare it with them"
            self._set_aside(taken.path, taken.queue, reason)

    def _has_no_writer(self, path: str) -> bool:
        try:
            return self._disk.has_writer(path) is False
        except OSError:
            return False

    # -- where a file has two names for a moment -----------------------------------------------------------------------

    def _has_first_name(self, taken: Taken) -> bool:
        identity = self._disk.identity(taken.first)
        return identity is not None and identity.same_file(self._disk.identity(taken.path))

    def _remove_first_name(self, taken: Taken) -> list[Taken]:
        """Of a file that has its new name durably; another file that lies under the first one by now is left there, or,
        if it comes at the very moment of the removal, returned: it is taken, too."""
        if not self._has_first_name(taken):
            return []
        moved = replace(taken, seen=None, came_meanwhile=True)
        try:
            self._disk.rename_new(taken.first, moved.path)
        except FileNotFoundError:  # its owner removed it
            return []
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENAMETOOLONG):
                raise
            with suppress(FileNotFoundError):  # it cannot be moved there, and was compared just now
                self._disk.unlink(taken.first)
            return []
        if self._is_second_name(moved):
            self._disk.unlink(moved.path)
            return []
        self._disk.flush_directory(moved.folder)  # at once: a power cut must not lose both its names
        return [moved]

    def _is_second_name(self, moved: Taken) -> bool:
        """Whether what was moved from the folder to be compared is the taken file (see the module)."""
        identity = self._disk.identity(moved.path)
        return identity is not None and identity.same_file(self._disk.identity(f"{moved.folder}/{moved.name}"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _leave_empty(self) -> None:
        """Directories to which no files go any more."""
        wanted = set(self._directories.values())
        self._held = [directory for directory in self._held if directory in wanted or not self._left_empty(directory)]

    def _left_empty(self, directory: str) -> bool:
        try:
            self._disk.remove_directory(f"{layout.ACTIVE}/{directory}")
        except FileNotFoundError:
            pass
        except OSError:
            return False  # not empty
        self._store.shared.xids.unlock(taken_byte(directory))
        return True

    @public_call("finishing dropped files")
    def leave(self) -> None:
        """Remove empty taking directories and let go of them all; what still has a writer, and what is looked at for a
        while, waits for the next intake."""
        self.late.leave()
        for directory in self._held:
            if not self._left_empty(directory):  # the next intake finishes it
                self._store.shared.xids.unlock(taken_byte(directory))
        self._held.clear()
        self._directories.clear()
        self._used.clear()

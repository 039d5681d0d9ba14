"""Files dropped from outside become messages, each exactly once, even if this process dies at any step (DESIGN §7).

A file is *taken* by renaming it into a directory of ``active/`` that is this intake's own: from then on nobody else can
open it by name. Then its messages are committed together with the fact that it was taken, and only then is it removed.
A file that a dead intake took is finished from where it lies, and never put back: if a commit names it, it is removed,
otherwise it is read again.

Names in a taking directory are never used twice, so a commit's record of one can never mean another file.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spool import layout
from spool.dropped import is_unfinished, puts_of
from spool.errors import InvalidArgument, SpoolError
from spool.locks import dropping_byte, taken_byte
from spool.publication import settle_all
from spool.quarantine import quarantine
from spool.space import Space
from spool.store import speaking
from spool.visibility import catch_up

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

log = logging.getLogger("spool")

_BATCH_FILES = 512
_BATCH_BYTES = 16 << 20
_RESCAN_SECONDS = 1.0
_SETTLED_SECONDS = 2.0


@dataclass
class IntakeCounts:
    """What an intake did so far."""

    files: int = 0
    messages: int = 0
    quarantined: int = 0


@dataclass(frozen=True)
class Taken:
    """A file in a taking directory: ``active/<directory>/<name>``."""

    queue: str
    directory: str
    name: str

    @property
    def path(self) -> str:
        return f"{layout.ACTIVE}/{self.directory}/{self.name}"

    @property
    def first(self) -> str:
        """Where it was dropped."""
        return f"{layout.DROP}/{self.queue}/{self.name}"

    @property
    def record(self) -> tuple[str, bytes]:
        """As a commit names it: file names are bytes."""
        return self.directory, os.fsencode(self.name)


class Intake:
    """Takes files from every ``drop/<queue>/`` of an open space.

    ``progress`` is called after each commit with the counts so far.
    """

    def __init__(self, space: Space, progress: Callable[[IntakeCounts], None] | None = None) -> None:
        self.space = space
        self.counts = IntakeCounts()
        self._store = space._store
        self._disk = space._store.disk
        self._progress = progress
        self._directories: dict[str, str] = {}
        self._used: set[tuple[str, str]] = set()
        self._waiting: list[Taken] = []
        self._found_late = False  # files of an intake that died while this one runs
        self._reported: set[str] = set()
        self._wake = threading.Event()
        self._stop = False

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, once: bool = False) -> IntakeCounts:
        """Take what is there; then, unless ``once``, what comes, until ``stop`` is called."""
        try:
            self.finish_dead_intakes()
            if once:
                self.take_all()
            else:
                self._run_until_stopped()
        finally:
            self._leave()
        return self.counts

    def _run_until_stopped(self) -> None:
        observer = self._watch()
        try:
            while not self._stop:
                self._wake.clear()  # before the scan: what arrives during it wakes the next round
                self.take_all()
                if not self._stop:
                    self._wake.wait(_RESCAN_SECONDS)
        finally:
            observer.stop()
            observer.join()

    def stop(self) -> None:
        """End ``run`` after the commit it is at; may be called from a signal handler or another thread."""
        self._stop = True
        self._wake.set()

    def _watch(self) -> "BaseObserver":
        """Events are hints and may be lost; they only shorten the wait for the next scan."""
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        wake = self._wake

        class Hint(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.event_type in ("created", "moved", "closed"):
                    wake.set()

        observer = Observer()
        observer.schedule(Hint(), self._disk.path(layout.DROP), recursive=True)
        observer.start()
        return observer

    def take_all(self) -> None:
        """Everything that is complete now."""
        batch: list[Taken] = []
        size = 0
        for taken, length in self._ready():
            batch.append(taken)
            size += length
            if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
                self._commit(batch)
                batch, size = [], 0
            if self._stop:
                break
        if batch:
            self._commit(batch)

    # -- taking -----------------------------------------------------------------------------------------------------

    def _ready(self) -> Iterator[tuple[Taken, int]]:
        """(file, bytes) of files that are taken and have no writer, oldest first."""
        yield from self._ready_of_waiting()
        for queue in self._queues():
            arrivals = self._arrivals(queue)
            for start in range(0, len(arrivals), _BATCH_FILES):
                for taken in self._take(queue, arrivals[start : start + _BATCH_FILES]):
                    yield from self._if_complete(taken)
        if self._found_late:
            self._found_late = False
            yield from self._ready_of_waiting()

    def _ready_of_waiting(self) -> Iterator[tuple[Taken, int]]:
        waiting, self._waiting = self._waiting, []
        for taken in waiting:
            yield from self._if_complete(taken)

    @speaking("looking for dropped files")
    def _queues(self) -> list[str]:
        known = self.space.queues()
        found = []
        for name in sorted(self._disk.names(layout.DROP)):
            if name in known:
                found.append(name)
            elif not is_unfinished(name):
                self._report(f"{layout.DROP}/{name}", f"there is no queue {name}: create it, or remove the folder")
        return found

    @speaking("looking for dropped files")
    def _arrivals(self, queue: str) -> list[str]:
        """Complete files, by the time of their last change, then by name."""
        folder = f"{layout.DROP}/{queue}"
        here = self._disk.identity(layout.ACTIVE)
        found = []
        try:
            names = self._disk.names(folder)
        except OSError as error:
            self._report(folder, f"it cannot be listed: {error.strerror}")
            return []
        for name in names:
            if is_unfinished(name):
                continue
            path = f"{folder}/{name}"
            identity = self._disk.identity(path)
            if identity is None:
                continue
            if not identity.is_regular:
                self._report(path, "it is no regular file, and is left alone")
            elif here is not None and identity.device != here.device:
                self._report(path, "it lies on another device, and is left alone")
            elif not self._has_writer(path):
                found.append((identity.modified_ns, name))
        return [name for _, name in sorted(found)]

    def _has_writer(self, path: str) -> bool:
        try:
            writer = self._disk.has_writer(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._report(path, f"it cannot be read ({error.strerror}), and is left alone")
            return True
        if writer is not None:
            return writer
        identity = self._disk.identity(
            path
        )  # this user may not ask: a file that has not changed for a while is complete
        return identity is not None and self._store.clock.now() - identity.modified_ns / 1e9 < _SETTLED_SECONDS

    @speaking("taking dropped files")
    def _take(self, queue: str, names: list[str]) -> list[Taken]:
        """Move them where nobody else can open them by name.

        Where renames are not ordered, a power cut could lose both names of a file: there the new one is durable before
        the old one goes, and while a file has both, no other intake may look.
        """
        if self._disk.ordered:
            return [taken for name in names if (taken := self._take_one(queue, name, self._disk.rename_new))]
        byte = dropping_byte(queue)
        self._store.xids.lock(byte, self._store.deadline(), f"the folder {layout.DROP}/{queue}")
        try:
            found = [taken for name in names if (taken := self._take_one(queue, name, self._disk.link))]
            for directory in {taken.directory for taken in found}:
                self._disk.flush_directory(f"{layout.ACTIVE}/{directory}")
            for taken in found:
                self._disk.unlink(taken.first)
        finally:
            self._store.xids.unlock(byte)
        return found

    def _take_one(self, queue: str, name: str, move: Callable[[str, str], None]) -> Taken | None:
        taken = Taken(queue, self._directory(queue, name), name)
        try:
            if self._is_taken(taken):
                self.finish_dead_intakes()
                self._found_late = True
                return None
            move(taken.first, taken.path)
        except FileNotFoundError:
            return None  # its owner thought better of it, or another intake was faster
        except OSError as error:
            self._report(taken.first, f"it cannot be taken: {error.strerror}")
            return None
        self._used.add((taken.directory, name))
        return taken

    def _is_taken(self, taken: Taken) -> bool:
        """Whether an intake that died had given the file its new name already."""
        identity = self._disk.identity(taken.first)
        if identity is None or identity.links == 1:
            return False
        prefix = f"{layout.TAKEN_PREFIX}{taken.queue}."
        directories = [name for name in self._disk.names(layout.ACTIVE) if name.startswith(prefix)]
        return any(
            identity.same_file(self._disk.identity(f"{layout.ACTIVE}/{directory}/{taken.name}"))
            for directory in directories
        )

    def _directory(self, queue: str, name: str) -> str:
        """This intake's directory for the queue; a new one if the name was used in it before."""
        directory = self._directories.get(queue)
        if directory is not None and (directory, name) not in self._used:
            return directory
        directory = f"{layout.TAKEN_PREFIX}{queue}.{os.urandom(8).hex()}"
        if not self._store.xids.try_lock(taken_byte(directory)):
            raise SpoolError(f"the new directory {directory} is taken already")
        self._disk.make_directory(f"{layout.ACTIVE}/{directory}")
        self._disk.flush_directory(layout.ACTIVE)  # or what it holds could be lost with it
        self._directories[queue] = directory
        return directory

    def _if_complete(self, taken: Taken) -> Iterator[tuple[Taken, int]]:
        size = self._complete_size(taken)
        if size is not None:
            yield taken, size

    @speaking("looking at a dropped file")
    def _complete_size(self, taken: Taken) -> int | None:
        """In bytes; None if the file is gone, or still has a writer and waits."""
        identity = self._disk.identity(taken.path)
        if identity is None:
            return None
        if self._has_writer(taken.path):
            self._waiting.append(taken)
            return None
        return identity.size

    # -- committing -------------------------------------------------------------------------------------------------

    def _commit(self, batch: list[Taken]) -> None:
        """The files' messages in one commit, which names them; then they go."""
        transaction = self.space.transaction(timeout=None)
        committed: list[Taken] = []
        messages = 0
        try:
            for taken in batch:
                try:
                    puts = puts_of(taken.name, self._read(taken), self._store.config.max_body_bytes)
                except InvalidArgument as error:
                    self._quarantine(taken, str(error))
                    continue
                except OSError as error:
                    self._report(taken.path, f"it cannot be read ({error.strerror}), and waits")
                    self._waiting.append(taken)
                    continue
                for put in puts:
                    transaction.put(taken.queue, put.body, **put.options)
                transaction.take_dropped(*taken.record)
                committed.append(taken)
                messages += len(puts)
            self._make_takes_durable(committed)
            transaction.commit()
        except BaseException:
            transaction.abandon()
            self._waiting += [taken for taken in batch if taken not in self._waiting]
            raise
        for taken in committed:
            self._remove(taken)
        self.counts.files += len(committed)
        self.counts.messages += messages
        if self._progress is not None:
            self._progress(self.counts)

    def _read(self, taken: Taken) -> bytes:
        limit = max(self._store.config.max_body_bytes, _BATCH_BYTES)
        handle = self._disk.open(taken.path)
        try:
            data = self._disk.read_at(handle, 0, limit + 1)
        finally:
            self._disk.close(handle)
        if len(data) > limit:
            raise InvalidArgument(f"it is larger than the space's max_body_bytes, {self._store.config.max_body_bytes}")
        return data

    def _make_takes_durable(self, batch: list[Taken]) -> None:
        """Or a file could be back in drop/ after a power cut, and come again.

        On btrfs too, where the commit's flush covers the renames of its own file, and of no other.
        """
        folders = {f"{layout.ACTIVE}/{taken.directory}" for taken in batch}
        folders |= {f"{layout.DROP}/{taken.queue}" for taken in batch} | {layout.ACTIVE}
        with self._store.disk_errors("taking dropped files"):
            for folder in sorted(folders):
                if self._disk.exists(folder):
                    self._disk.flush_directory(folder)

    @speaking("setting a dropped file aside")
    def _quarantine(self, taken: Taken, reason: str) -> None:
        quarantine(self._disk, taken.path, f"dropped for queue {taken.queue}: {reason}")
        self.counts.quarantined += 1

    def _remove(self, taken: Taken) -> None:
        try:
            self._disk.unlink(taken.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s was taken and cannot be removed yet: %s", taken.path, error)

    # -- what others left -------------------------------------------------------------------------------------------

    @speaking("finishing dropped files")
    def finish_dead_intakes(self) -> None:
        """Files that an intake took before it died: removed if a commit names them, else read from where they lie."""
        catch_up(self._store)
        for directory in sorted(self._disk.names(layout.ACTIVE)):
            if not directory.startswith(layout.TAKEN_PREFIX):
                continue
            if not self._store.xids.try_lock(taken_byte(directory)):
                continue  # its intake lives
            if not self._finish_directory(directory):
                self._store.xids.unlock(taken_byte(directory))

    def _finish_directory(self, directory: str) -> bool:
        """Whether there was one that is this intake's now; the caller holds its byte."""
        path = f"{layout.ACTIVE}/{directory}"
        queue = directory.removeprefix(layout.TAKEN_PREFIX).rpartition(".")[0]
        identity = self._disk.identity(path)
        if identity is None:
            return False  # another intake was faster
        if not identity.is_directory:
            self._report(path, "it is no directory, and left alone")
            return False
        if queue not in self.space.queues():
            self._report(path, f"files taken for queue {queue}, which is gone: create it again")
            return False
        # A commit of the dead one may still be unpublished: see every number before believing that there is none.
        settle_all(self._store, self._store.deadline())
        catch_up(self._store)
        left = [Taken(queue, directory, name) for name in sorted(self._disk.names(path))]
        for taken in left:
            self._remove_first_name(taken)
            if taken.record in self._store.index.taken:
                self._remove(taken)
            else:
                self._waiting.append(taken)
        self._directories[f"{queue}/{directory}"] = directory  # ours to leave behind empty
        return True

    def _remove_first_name(self, taken: Taken) -> None:
        """A death or a power cut may leave a file both its names, where renames are not ordered: it is taken."""
        identity = self._disk.identity(taken.first)
        if identity is not None and identity.same_file(self._disk.identity(taken.path)):
            for folder in (layout.ACTIVE, f"{layout.ACTIVE}/{taken.directory}"):
                self._disk.flush_directory(folder)
            self._disk.unlink(taken.first)

    def _leave(self) -> None:
        """Remove empty taking directories and let go of them all; what still has a writer waits for the next intake."""
        for directory in self._directories.values():
            try:
                self._disk.remove_directory(f"{layout.ACTIVE}/{directory}")
            except OSError:
                pass  # not empty: the next intake finishes it
            self._store.xids.unlock(taken_byte(directory))
        self._directories.clear()
        self._waiting.clear()  # whoever takes the directory's lock next finds them there

    def _report(self, name: str, text: str) -> None:
        """Once each."""
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s: %s", name, text)

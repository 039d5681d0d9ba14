"""Files dropped from outside become messages, each exactly once, even if this process dies at any step.

A file is *taken* first: nobody else can open it by name any more (see ``taking``). Then its messages are committed
together with the fact that it was taken, and only then is it removed.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from spool import layout
from spool.arguments import described
from spool.dropped import Put, is_unfinished, puts_of
from spool.errors import BadMessageId, Full, InvalidArgument, MessageInUse, NotOpen
from spool.gate import step
from spool.quarantine import quarantine
from spool.space import Space
from spool.store import speaking
from spool.taking import Taken, Taking

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
        self._taking = Taking(space._store, space.queues, self._report)
        self._waiting: list[Taken] = []
        self._reported: set[str] = set()
        # No Event: a signal's handler that sets one can wait for the very thread that it interrupts.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._stop = False

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, once: bool = False) -> IntakeCounts:
        """Take what is there; then, unless ``once``, what comes, until ``stop`` is called."""
        try:
            self._waiting += self._taking.finish_dead_intakes()
            if once:
                self.take_all()
            else:
                self._run_until_stopped()
        finally:
            with suppress(NotOpen):  # closing the space let go of them, too
                self._taking.leave()
            self._waiting.clear()  # whoever gets the directories' bytes next finds them there
        return self.counts

    def _run_until_stopped(self) -> None:
        observer = self._watch()
        try:
            while not self._stop:
                while not self._wake.empty():  # before the scan: what arrives during it wakes the next round
                    self._wake.get()
                self.take_all()
                with suppress(Empty):
                    self._wake.get(timeout=0 if self._stop else _RESCAN_SECONDS)
        finally:
            observer.stop()
            observer.join()

    def stop(self) -> None:
        """End ``run`` after the commit it is at; may be called from a signal handler or another thread."""
        self._stop = True
        self._wake.put(None)

    def _watch(self) -> "BaseObserver":
        """Events are hints and may be lost; they only shorten the wait for the next scan."""
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        wake = self._wake

        class Hint(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.event_type in ("created", "moved", "closed") and wake.empty():
                    wake.put(None)

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
        waiting, self._waiting = self._waiting, []
        for taken in waiting:
            yield from self._if_complete(taken)
        for queue in self._queues():
            arrivals = self._arrivals(queue)
            for start in range(0, len(arrivals), _BATCH_FILES):
                for taken in self._taking.take(queue, arrivals[start : start + _BATCH_FILES]):
                    yield from self._if_complete(taken)

    @step
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

    @step
    @speaking("looking for dropped files")
    def _arrivals(self, queue: str) -> list[str]:
        """Complete files, by the time of their last change, then by name."""
        folder = f"{layout.DROP}/{queue}"
        here, there = self._disk.identity(layout.ACTIVE), self._disk.identity(folder)
        if there is not None and not there.is_directory:
            self._report(folder, "it is no directory of the space's own, and is left alone")
            return []
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
        # This user may not ask: a file that has not changed for a while is complete. So is one from the future: it was
        # not changed since the clock was put back.
        identity = self._disk.identity(path)
        return identity is not None and abs(self._store.clock.now() - identity.modified_ns / 1e9) < _SETTLED_SECONDS

    def _if_complete(self, taken: Taken) -> Iterator[tuple[Taken, int]]:
        size = self._complete_size(taken)
        if size is not None:
            yield taken, size

    @step
    @speaking("looking at a dropped file")
    def _complete_size(self, taken: Taken) -> int | None:
        """In bytes; None if the file is gone, is none, or still has a writer and waits."""
        identity = self._disk.identity(taken.path)
        if identity is None:
            return None
        if not identity.is_regular:  # it became so after we had looked at it
            self._quarantine(taken, "it is no regular file")
            return None
        if self._has_writer(taken.path):
            self._waiting.append(taken)
            return None
        return identity.size

    # -- committing -------------------------------------------------------------------------------------------------

    @step
    def _commit(self, batch: list[Taken]) -> None:
        """Together, or one by one if the queue of one of them does not take it now: that one waits."""
        try:
            self._commit_together(batch)
        except (Full, MessageInUse, BadMessageId) as error:
            if len(batch) == 1:
                self._report(batch[0].path, f"it waits: {error}")
                return
            self._waiting = [taken for taken in self._waiting if taken not in batch]
            for taken in batch:
                self._commit([taken])

    def _commit_together(self, batch: list[Taken]) -> None:
        """The files' messages in one commit, which names them; then they go."""
        transaction = self.space.transaction(timeout=None)
        committed: list[Taken] = []
        messages = 0
        try:
            for taken in batch:
                try:
                    puts = self._puts_of(taken)
                except InvalidArgument as error:
                    self._quarantine(taken, str(error))
                    continue
                except OSError as error:
                    self._report(taken.path, f"it cannot be read ({error.strerror}), and waits")
                    self._waiting.append(taken)
                    continue
                for put in puts:
                    transaction.put(taken.queue, put.body, **put.options)
                transaction._take_dropped(*taken.record)
                committed.append(taken)
                messages += len(puts)
            self._taking.make_durable(committed)
            transaction.commit()
        except BaseException:
            transaction.abandon()
            self._waiting += [taken for taken in batch if taken not in self._waiting]
            raise
        for taken in committed:
            self._taking.remove(taken)
        self.counts.files += len(committed)
        self.counts.messages += messages
        if self._progress is not None:
            self._progress(self.counts)

    def _puts_of(self, taken: Taken) -> list[Put]:
        store = self._store
        if taken.queue not in store.config.queues:
            raise InvalidArgument("that queue was deleted")
        return puts_of(
            taken.name, self._read(taken), store.config.max_body_bytes,
            lambda **options: described(store, taken.queue, options),
        )  # fmt: skip

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

    @speaking("setting a dropped file aside")
    def _quarantine(self, taken: Taken, reason: str) -> None:
        quarantine(self._disk, taken.path, f"dropped for queue {taken.queue}: {reason}")
        self.counts.quarantined += 1

    def _report(self, name: str, text: str) -> None:
        """Once each."""
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s: %s", name, text)

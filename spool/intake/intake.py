"""Dropped files become messages, each file exactly once, even if this process dies at any step.

An intake first *captures* a file that seems complete (see ``writers``). Afterwards no other process opens the file by
name (see ``capture``). One commit puts the messages of the file and records that the file was captured. After the
commit the intake removes the file. If the file may still have a writer, the intake first watches the file for a while
(see ``late_writes``).
"""

import heapq
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from spool.disk.advice import advice
from spool.disk.content import is_directory, opened, protect_files
from spool.disk.quarantine import Cause, Reason, quarantine
from spool.disk.stat import FileIdentity
from spool.errors import BadMessageId, Full, InvalidArgument, MessageInUse, NotOpen, TransactionTimeout
from spool.intake.arrivals import Arrivals
from spool.intake.capture import Capture
from spool.intake.directories import CapturedFile
from spool.intake.dropfile import PutArguments, Refused, least_body_bytes, puts_of, type_of
from spool.intake.full_queues import FullQueues, Room
from spool.intake.markers import Markers
from spool.log.quota import Usage
from spool.model import layout
from spool.model.settings import QueueConfig
from spool.policies.writers import Complete, Evidence, Writers, standing
from spool.runtime.calls import step
from spool.space import Space
from spool.transactions.core import core_of
from spool.transactions.transaction import record_captured_file
from spool.transactions.validation import control_fields

log = logging.getLogger("spool")

_BATCH_FILES = 512
_BATCH_BYTES = 16 << 20
_BATCH_MESSAGES = 1 << 16
_RESCAN_SECONDS = 1.0
_LONG_IGNORED_SECONDS = 3600.0  # of a file that no upload still changes


@dataclass
class IntakeCounts:
    """The counts of an intake so far.

    files, messages: the numbers of taken files and of put messages.
    quarantined: the number of files that the intake has moved to ``quarantine/``.
    left: the number of entries of ``drop/`` that the last scan did not take.
    ignored: the number of files that the last scan ignored because of their names (``drop_ignore``). They do not count
        as left.
    """

    files: int = 0
    messages: int = 0
    quarantined: int = 0
    left: int = 0
    ignored: int = 0


class Intake:
    """Takes files from every ``drop/<queue>/`` of an open space.

    ``progress`` is called after each commit with the counts so far.
    """

    def __init__(self, space: Space, progress: Callable[[IntakeCounts], None] | None = None) -> None:
        self.space = space
        self.counts = IntakeCounts()
        self._store = store = core_of(space).store
        self._disk = store.files.disk
        self._progress = progress
        self._arrivals = Arrivals(self._disk, store.clock)
        self._writers = Writers(store, self._leave, self._report)
        self._capture = Capture(store, space.queues, self._report, self._quarantine)
        self._markers = Markers(store, self._capture)
        self._waiting: dict[tuple[str, bytes], CapturedFile] = {}  # the files that wait, by ``record``
        self._full = FullQueues(store)
        self._left: dict[str, str] = {}  # by name: the reason why the last scan did not take an entry
        self._ignored: dict[str, str] = {}  # by name: the reason why the last scan ignored a file
        self._reported: set[str] = set()
        self._stop = False

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, once: bool = False) -> IntakeCounts:
        """Take the files in ``drop/``. Without ``once``, continue with new files until ``stop`` is called.

        With ``once``, every remaining file is logged. Without ``once``, a file that waits for its writer is not logged.
        """
        try:
            self._left.clear()
            self._let_wait(*self._capture.finish_dead_intakes())
            if once:
                self.take_all()
                for name, text in self._left.items():
                    self._report(name, text)
            else:
                while not self._stop:
                    self._begin_look()
                    self._watch()
                    self.take_all()
                    self._arrivals.wait(0.0 if self._stop else _RESCAN_SECONDS)
        finally:
            with suppress(NotOpen):  # the close of the space has already released the folders
                self._release_folders()
            self._markers.clear()
            self._waiting.clear()  # the next intake that gets the directories finds the waiting files
        return self.counts

    def _begin_look(self) -> None:
        """Forget the names of removed entries, because an intake may run for years. Keep the names in a full queue's
        folder, because this folder may not be listed again."""
        self._reported.intersection_update((*self._left, *self._ignored))
        folders = tuple(f"{layout.DROP}/{queue}/" for queue in self._full)
        for entries in (self._left, self._ignored):
            for name in [name for name in entries if not name.startswith(folders)]:
                del entries[name]

    def stop(self) -> None:
        """End ``run`` after the commit under way. A signal handler, or another thread, may call this method."""
        self._stop = True
        self._arrivals.wake()

    @step("watching the folders")
    def _watch(self) -> None:
        """Watch the folders before the intake lists them. For a file from before the watch, no rename proves that the
        file is complete."""
        self._store.check_usable()  # (a commit would notice the same, but without a dropped file there is none)
        self._store.at_end[self._arrivals.close] = None  # the space may be closed before ``run`` ends
        for queue in self._queues():
            self._arrivals.watch(queue)

    @step("finishing dropped files")
    def _release_folders(self) -> None:
        self._store.at_end.pop(self._arrivals.close, None)
        self._arrivals.close()
        self._capture.close()

    def take_all(self) -> None:
        """Take every file that is complete now."""
        self._capture.late_writes.check()
        batch: list[CapturedFile] = []
        size = 0
        for file in self._ready():
            if self._waits_for_room(file):
                continue
            batch.append(file)
            size += file.seen.identity.size if file.seen is not None else 0
            if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
                self._commit(batch)
                batch, size = [], 0
            if self._stop:
                break
        if batch:
            self._commit(batch)
        waiting = self._full.tell(Counter(file.queue for file in self._waiting.values()))
        self.counts.left = len(self._left) + waiting
        self.counts.ignored = len(self._ignored)

    # -- looking ----------------------------------------------------------------------------------------------------

    def _ready(self) -> Iterator[CapturedFile]:
        """Yield captured and complete files, queue by queue. The files of each queue are in order."""
        waiting: Mapping[str, list[CapturedFile]] = defaultdict(list)
        for file in self._waiting.values():
            waiting[file.queue].append(file)
        self._waiting = {}
        for queue in dict.fromkeys((*waiting, *self._queues())):
            if not self._full.end_if_room(queue):
                self._let_wait(*waiting[queue])
                continue
            captured = sorted(filter(None, map(self._complete, waiting[queue])), key=CapturedFile.order)
            yield from heapq.merge(captured, self._captured(queue), key=CapturedFile.order)

    def _captured(self, queue: str) -> Iterator[CapturedFile]:
        """Capture the complete files of a queue's folder until the queue is full."""
        arrivals = self._complete_files(queue)
        for start in range(0, len(arrivals), _BATCH_FILES):
            if queue in self._full:
                self._full.note_folder(queue, len(arrivals) - start)
                return
            captured = self._markers.capture(queue, arrivals[start : start + _BATCH_FILES])
            yield from filter(None, map(self._complete, captured))

    @step("looking for dropped files")
    def _queues(self) -> list[str]:
        known = self.space.queues()
        found = []
        for name in sorted(self._disk.names(layout.DROP)):
            if name in known:
                found.append(name)
            elif not layout.is_unfinished(name):
                why = f"files are taken from the folders of queues only: move it into one, {layout.DROP}/QUEUE/"
                if is_directory(self._disk, f"{layout.DROP}/{name}"):
                    why = f"there is no queue {name}: create it with spool-admin queue create {name}, or remove the "
                    why += "folder"
                self._report(f"{layout.DROP}/{name}", why)
        return found

    @step("looking for dropped files")
    def _complete_files(self, queue: str) -> list[tuple[str, Complete]]:
        """Return the complete files of a queue's folder, sorted by the time of the last change, then by name."""
        folder = f"{layout.DROP}/{queue}"
        identity = self._disk.identity(folder)
        if identity is not None and not identity.is_directory:
            self._report(folder, "it is no directory of the space's own, and is left alone")
            return []
        if identity is not None and identity.lets_users_remove_files_of_others:
            with suppress(PermissionError):  # only the folder's owner may change the mode
                protect_files(self._disk, folder, identity)
        try:
            names = self._disk.names(folder)
        except OSError as error:
            self._report(folder, f"it cannot be listed: {error.strerror}: {advice(error)}")
            return []
        self._markers.remove_old()
        config = self._store.settings.known.config.queues.get(queue) or QueueConfig(queue)
        there = {*names, *self._markers.names(queue)}
        complete = []
        for name in names:
            path, stands = f"{folder}/{name}", standing(name, there, config)
            if stands.ignored:
                self._ignore(path, stands.ignored)
            elif stands.waits:
                self._leave(path, stands.waits)
            elif not stands.is_marker and (seen := self._arrival(queue, name)) is not None:
                complete.append((name, seen))
        return sorted(complete, key=lambda arrival: (arrival[1].identity.modified_ns, arrival[0]))

    def _arrival(self, queue: str, name: str) -> Complete | None:
        path, marker = f"{layout.DROP}/{queue}/{name}", self._markers.suffix(queue)
        identity = self._regular_file(path)
        if identity is None:
            return None
        if marker is None:
            return self._writers.judge(path, identity, path, lambda: self._arrivals.is_renamed(queue, name))
        if name + marker not in self._markers.names(queue) and self._regular_file(path + marker) is None:
            return None
        return self._writers.judge(path, identity, path, lambda: True)

    def _regular_file(self, path: str) -> FileIdentity | None:
        """Return the identity of a dropped file. Report the entry, and return None, if the intake cannot take it."""
        active, identity = self._disk.identity(layout.ACTIVE), self._disk.identity(path)
        if identity is None:
            return None
        if not identity.is_regular:
            self._report(path, "it is no regular file, and is left alone")
        elif active is not None and identity.device != active.device:
            self._report(path, "it lies on another device, and is left alone: copy it into the folder")
        else:
            return identity
        return None

    @step("looking at a dropped file")
    def _complete(self, file: CapturedFile) -> CapturedFile | None:
        """Return the file in its current state. Return None if the file was removed, is not a regular file, or waits.

        A file waits if it no longer seems complete: a writer may have opened the file before the capture. A marker is
        no message, and waits for its file.
        """
        if self._markers.keep(file):
            return None
        identity = self._disk.identity(file.path)
        if identity is None:
            return None
        if not identity.is_regular:  # the entry was replaced after drop/ was listed
            self._quarantine(file.path, file.queue, "it is no regular file")
            return None
        seen = file.seen
        if seen is not None and seen.evidence is not Evidence.NO_WRITER and seen.is_still(identity):
            return file
        complete = self._writers.judge(file.path, identity, file.first)
        if complete is None:
            self._let_wait(replace(file, seen=None))
            return None
        return replace(file, seen=complete)

    # -- committing -------------------------------------------------------------------------------------------------

    def _commit(self, batch: list[CapturedFile]) -> None:
        """Commit the files that have room, many in one commit. Files without room wait, as do all later files of their
        queues."""
        while batch:
            try:
                batch = self._commit_together(batch)
                if self._progress is not None:
                    self._progress(self.counts)
            except Full as error:  # another process has put messages since the check
                batch = self._put_off(batch, error)
            except (MessageInUse, BadMessageId) as error:
                if len(batch) == 1:
                    self._report(batch[0].first, f"it waits: {error}")
                    return
                self._forget(batch)
                for file in batch:  # one by one, so that only the file with the error waits
                    self._commit([file])
                return
            except TransactionTimeout as error:  # another process holds a lock of the space for very long
                self._report(batch[0].first, f"it waits: {error}")
                return

    @step("taking dropped files")
    def _commit_together(self, batch: list[CapturedFile]) -> list[CapturedFile]:
        """Commit the messages of files in one commit that names the files. Then remove the files.

        Returns:
            The last files of the batch, if their messages do not fit into this commit.
        """
        transaction = self.space.transaction(timeout=None)
        committed: list[CapturedFile] = []
        messages, rest = 0, list[CapturedFile]()
        try:
            room = Room(self._store)
            for place, file in enumerate(batch):
                if messages >= _BATCH_MESSAGES:
                    rest = batch[place:]
                    break
                puts = self._puts_with_room(file, room)
                if not puts:
                    continue
                for put in puts:
                    transaction.put(file.queue, put.body, **put.options)
                record_captured_file(transaction, *file.record)
                committed.append(file)
                messages += len(puts)
            if not committed:
                transaction.abandon()
                return rest
            self._capture.make_durable(committed)
            transaction.commit()
        except BaseException:
            transaction.abandon()
            self._let_wait(*(file for file in batch if file.record not in self._waiting))
            raise
        for file in committed:
            self._capture.remove(file)
        self.counts.files += len(committed)
        self.counts.messages += messages
        return rest

    def _puts_with_room(self, file: CapturedFile, room: Room) -> list[PutArguments]:
        """Return the puts for a file, and add their usage to ``room``. Return [] if the file waits, or was refused."""
        if self._waits_for_room(file):
            return []
        needed = self._least_usage(file)
        try:
            _check_room(room, file.queue, needed)  # before the file is read
            puts = self._puts_of(file)
            if puts is None:
                self._leave(file.first, "a program has just written to it: it waits")
                self._let_wait(replace(file, seen=None))
                return []
            needed = Usage(len(puts), sum(put.bytes for put in puts))
            _check_room(room, file.queue, needed)
        except Full:
            self._full.begin(file.queue, needed)
            self._waits_for_room(file)
            return []
        except InvalidArgument as error:
            cause = error.cause if isinstance(error, Refused) else Cause.REFUSED
            self._quarantine(file.path, file.queue, str(error), cause)
            return []
        except OSError as error:
            self._report(file.first, f"it cannot be read ({error.strerror}), and waits")
            self._let_wait(file)
            return []
        room.add(file.queue, needed)
        return puts

    def _least_usage(self, file: CapturedFile) -> Usage:
        """Return the least possible usage of a file's messages, without reading the file."""
        config = self._store.settings.known.config.queues.get(file.queue)
        if file.seen is None or config is None:
            return Usage(1, 0)
        return Usage(1, least_body_bytes(file.seen.identity.size, type_of(file.name, config.drop_types)))

    def _waits_for_room(self, file: CapturedFile) -> bool:
        """Let a file wait if earlier files of its queue wait for room, because the order is kept. Return whether it
        waits."""
        if file.queue not in self._full:
            return False
        self._let_wait(file)
        return True

    def _put_off(self, batch: list[CapturedFile], error: Full) -> list[CapturedFile]:
        """Let the files of the full queue wait, and return the other files. If the whole space is full, all files
        wait."""
        self._forget(batch)
        full = {error.queue} & {file.queue for file in batch} or {file.queue for file in batch}
        for file in batch:
            if file.queue in full and file.queue not in self._full:
                self._full.begin(file.queue, self._least_usage(file))
        return [file for file in batch if not self._waits_for_room(file)]

    def _forget(self, files: Iterable[CapturedFile]) -> None:
        for file in files:
            self._waiting.pop(file.record, None)

    def _puts_of(self, file: CapturedFile) -> list[PutArguments] | None:
        """Return the puts for a file, or None if the file has changed since the intake judged it complete."""
        store = self._store
        settings = store.settings.known
        if file.queue not in settings.config.queues:
            raise Refused("that queue was deleted", Cause.NO_QUEUE)
        data, identity = self._read(file)
        if file.seen is not None and not file.seen.is_still(identity):
            return None
        return puts_of(
            file.name,
            data,
            settings.config.max_body_bytes,
            lambda **options: control_fields(store, settings, file.queue, options),
            settings.config.queues[file.queue].drop_types,
            file.queue,
        )

    def _read(self, file: CapturedFile) -> tuple[bytes, FileIdentity]:
        config = self._store.settings.known.config
        with opened(self._disk, file.path) as handle:
            identity = self._disk.handle_identity(handle)
            if identity.size > config.max_dropped_bytes:
                text = f"it is larger than max_body_bytes, {config.max_body_bytes}"
                raise Refused(text, Cause.TOO_LARGE)
            data = self._disk.read_at(handle, 0, identity.size)
            return data, self._disk.handle_identity(handle)

    # -- files that remain, and files in quarantine --------------------------------------------------------------------

    @step("moving a dropped file to quarantine")
    def _quarantine(self, path: str, queue: str, text: str, cause: Cause = Cause.REFUSED) -> None:
        name = path.rpartition("/")[2].removeprefix(layout.FIRST_PREFIX)
        quarantine(self._disk, path, Reason(f"dropped for queue {queue}: {text}", cause, queue, name))
        self.counts.quarantined += 1

    def _let_wait(self, *files: CapturedFile) -> None:
        self._waiting.update((file.record, file) for file in files)

    def _leave(self, name: str, text: str) -> None:
        self._left[name] = text

    def _ignore(self, path: str, text: str) -> None:
        """Note an ignored file. Report the file once no upload can still change it."""
        if path.rpartition("/")[2].startswith("."):
            return
        self._ignored[path] = text
        identity = self._disk.identity(path) if path not in self._reported else None
        if identity is not None and self._store.clock.now() - identity.changed_ns / 1e9 > _LONG_IGNORED_SECONDS:
            self._tell(path, f"{text}, and it has not changed for an hour: rename it, or remove it")

    def _report(self, name: str, text: str) -> None:
        self._leave(name, text)
        self._tell(name, text)

    def _tell(self, name: str, text: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s: %s", name, text)


def _check_room(room: Room, queue: str, needed: Usage) -> None:
    """Raise Full if the queue is full. Raise Refused if even the empty queue has too little room."""
    try:
        room.check(queue, needed)
    except InvalidArgument as error:
        raise Refused(str(error), Cause.QUEUE_LIMIT) from None

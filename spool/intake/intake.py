"""Dropped files become messages, each file exactly once, even if this process dies at any step.

An intake first *captures* a file that seems complete (see ``dropped_states``). Afterwards no other process opens the
file by name (see ``capture``). One commit puts the messages of the file and records that the file was captured. After
the commit the intake removes the file. If the file may still have a writer, the intake first watches the file for a
while (see ``late_writes``).
"""

import heapq
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from spool.disk.advice import advice
from spool.disk.content import is_directory, opened, protect_files
from spool.disk.quarantine import FileCause, FileReason, quarantine
from spool.disk.stat import FileIdentity
from spool.errors import (
    NO_ROOM,
    BadMessageId,
    Full,
    InvalidArgument,
    MessageInUse,
    NotOpen,
    SpoolError,
    TransactionTimeout,
)
from spool.intake.capture import Capture
from spool.intake.directories import CapturedFile
from spool.intake.dropfile import NotTaken, PutArguments, least_body_bytes, puts_of, type_of
from spool.intake.folder_watcher import FolderWatcher
from spool.intake.full_queues import CommitRoom, FullQueues
from spool.intake.markers import Markers
from spool.log.quota import Usage
from spool.model import layout
from spool.model.settings import QueueConfig
from spool.policies.dropped_states import (
    MARK,
    TAKE,
    Action,
    Proof,
    Seen,
    Verdict,
    by_kind,
    by_name,
    judge,
    judge_named,
    unreadable,
)
from spool.runtime.call_guard import step
from spool.space import Space
from spool.transactions.core import core_of
from spool.transactions.transaction import Transaction, record_captured_file
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
        self._watcher = FolderWatcher(self._disk, store.clock)
        self._capture = Capture(store, self._do)
        self._markers = Markers(store, self._capture)
        self._waiting: dict[str, CapturedFile] = {}  # the captured files that are in no commit, by path
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
            self._let_wait(self._capture.finish_dead_intakes())
            if once:
                self.take_all()
                for name, text in self._left.items():
                    self._report(name, text)
            else:
                while not self._stop:
                    self._begin_look()
                    self._watch()
                    self.take_all()
                    self._watcher.wait(0.0 if self._stop else _RESCAN_SECONDS)
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
        self._watcher.wake()

    @step("watching the folders")
    def _watch(self) -> None:
        """Watch the folders before the intake lists them. For a file from before the watch, no rename proves that the
        file is complete."""
        self._store.at_end[self._watcher.close] = None  # the space may be closed before ``run`` ends
        for queue in self._queues():
            self._watcher.watch(queue)

    @step("finishing dropped files")
    def _release_folders(self) -> None:
        self._store.at_end.pop(self._watcher.close, None)
        self._watcher.close()
        self._capture.close()

    def take_all(self) -> None:
        """Take every file that is complete now."""
        self._capture.late_writes.check()
        batch: list[CapturedFile] = []
        size = 0
        for file in self._ready():
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
        for queue in dict.fromkeys((*waiting, *self._queues())):
            if queue not in self._full or self._full.end_if_room(queue):
                captured = sorted(filter(self._is_to_read, waiting[queue]), key=CapturedFile.order)
                found = heapq.merge(captured, self._captured(queue), key=CapturedFile.order)
                yield from (file for file in found if queue not in self._full)

    def _captured(self, queue: str) -> Iterator[CapturedFile]:
        """Capture the complete files of a queue's folder until the queue is full."""
        files = self._files(queue)
        for start in range(0, len(files), _BATCH_FILES):
            if queue in self._full:
                self._full.note_folder(queue, len(files) - start)
                return
            captured = self._capture_complete(queue, files[start : start + _BATCH_FILES])
            yield from (file for file in captured if file.seen is not None or self._is_to_read(file))

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
    def _files(self, queue: str) -> list[tuple[str, FileIdentity]]:
        """Return the files of a queue's folder that the intake may take, sorted by the time of the last change, then by
        name."""
        folder, disk = f"{layout.DROP}/{queue}", self._disk
        with disk.keeping(layout.DROP, folder):
            identity = disk.identity(folder)
            if identity is not None and identity.lets_users_remove_files_of_others:
                with suppress(PermissionError):  # only the folder's owner may change the mode
                    protect_files(disk, folder, identity)
            try:
                names = disk.names(folder)
            except OSError as error:
                self._report(folder, f"it cannot be listed: {error.strerror}: {advice(error)}")
                return []
            self._markers.remove_old()
            config = self._store.settings.known.config.queues.get(queue) or QueueConfig(queue)
            marked, files, active = self._markers.names(queue), [], disk.identity(layout.ACTIVE)
            there = {*names, *marked}
            for name in names:
                path = f"{folder}/{name}"
                by_its_name = decision = by_name(name, there, config)
                if decision in (TAKE, MARK):
                    identity = disk.identity(path)
                    decision = by_kind(identity, active)
                if decision is not TAKE or identity is None:
                    self._do(decision, path, queue)
                elif by_its_name is MARK:
                    marked.add(name)
                else:
                    files.append((name, identity))
        if config.drop_marker is not None:
            files = [file for file in files if file[0] + config.drop_marker in marked]
        return sorted(files, key=lambda file: (file[1].modified_ns, file[0]))

    @step("taking dropped files")
    def _capture_complete(self, queue: str, files: Sequence[tuple[str, FileIdentity]]) -> list[CapturedFile]:
        """Capture those files of a folder that are complete. The captured files wait for a commit."""
        folder, is_marked, complete = f"{layout.DROP}/{queue}", self._markers.suffix(queue) is not None, []
        with self._disk.keeping(layout.DROP, folder):
            for name, identity in files:
                path = f"{folder}/{name}"
                declared = partial(bool, True) if is_marked else partial(self._watcher.is_renamed, queue, name)
                decision, identity = judge_named(self._store, path, queue, identity, declared)
                if decision.step is Action.TAKE:
                    complete.append((name, Seen(decision.proof, identity)))
                else:
                    self._do(decision, path, queue)
            captured = self._markers.capture(queue, complete)
        self._let_wait(captured)
        return captured

    @step("looking at a dropped file")
    def _is_to_read(self, file: CapturedFile) -> bool:
        """Note the present state of a file that was captured earlier. Return False if the file was removed, or is a
        marker, which waits for its file."""
        identity = self._disk.identity(file.path)
        if identity is None or self._markers.keep(file):
            del self._waiting[file.path]
            return False
        if file.seen is None or not file.seen.is_still(identity):
            file.seen = Seen(None, identity)
        return True

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
            except (MessageInUse, BadMessageId, TransactionTimeout) as error:
                # TransactionTimeout: another process holds a lock of the space for very long.
                if len(batch) == 1 or isinstance(error, TransactionTimeout):
                    self._report(batch[0].first, f"it waits: {error}")
                    return
                for file in batch:  # one by one, so that only the file with the error waits
                    self._commit([file])
                return
            except OSError as error:
                if error.errno not in NO_ROOM or len(batch) == 1:
                    raise
                half = len(batch) // 2  # (the commit of fewer files needs less room, and their removal gives some back)
                self._commit(batch[:half])
                batch = batch[half:]

    @step("taking dropped files")
    def _commit_together(self, batch: list[CapturedFile]) -> list[CapturedFile]:
        """Commit the messages of files in one commit that names the files. Then remove the files.

        Returns:
            The last files of the batch, if their messages do not fit into this commit.
        """
        transaction = self.space.transaction(timeout=None)
        committed: list[CapturedFile] = []
        messages, rest = 0, deque(batch)
        with self._disk.keeping(*{file.folder for file in batch}):
            try:
                room = CommitRoom(self._store)
                while rest and messages < _BATCH_MESSAGES:
                    file = rest.popleft()
                    if file.queue not in self._full and (puts := self._put(transaction, file, room)):
                        committed.append(file)
                        messages += puts
                if committed:
                    self._capture.make_durable(committed)
                    transaction.commit()
            finally:
                transaction.abandon()
            for file in committed:
                del self._waiting[file.path]
                self._capture.remove(file)
        self.counts.files += len(committed)
        self.counts.messages += messages
        return list(rest)

    def _put(self, transaction: Transaction, file: CapturedFile, room: CommitRoom) -> int:
        """Put the messages of a file. Return their number, or 0 if the file waits, or was refused."""
        needed = self._least_usage(file)
        try:
            room.check(file.queue, needed)  # before the file is read
            puts = self._puts_of(file)
            needed = Usage(len(puts), sum([put.bytes for put in puts]))
            room.check(file.queue, needed)
            transaction.put(file.queue, puts[0].body, **puts[0].options)  # nothing is put if this call fails
        except Full:
            self._full.begin(file.queue, needed)
            return 0
        except NotTaken as error:
            decision = error.decision
        except InvalidArgument as error:
            decision = Verdict(Action.QUARANTINE, str(error))
        except OSError as error:
            if isinstance(error, SpoolError):  # not of the file, but of the space
                raise
            decision = unreadable(self._disk.identity(file.path), error)
        else:
            for put in puts[1:]:  # of a stream, whose puts were all checked
                transaction.put(file.queue, put.body, **put.options)
            record_captured_file(transaction, *file.record)
            room.add(file.queue, needed)
            return len(puts)
        self._do(decision, file.path, file.queue, file.first)
        if decision.step not in (Action.LEAVE, Action.REPORT):
            self._waiting.pop(file.path, None)  # (None: an earlier attempt has moved the file to quarantine)
        return 0

    def _least_usage(self, file: CapturedFile) -> Usage:
        """Return the least possible usage of a file's messages, without reading the file."""
        config = self._store.settings.known.config
        if not config.has_limits or file.seen is None or file.queue not in config.queues:
            return Usage(1, 0)
        kind = type_of(file.name, config.queues[file.queue].drop_types)
        return Usage(1, least_body_bytes(file.seen.identity.size, kind))

    def _put_off(self, batch: list[CapturedFile], error: Full) -> list[CapturedFile]:
        """Let the files of the full queue wait, and return the other files. If the whole space is full, all files
        wait."""
        full = {error.queue} & {file.queue for file in batch} or {file.queue for file in batch}
        for file in batch:
            if file.queue in full and file.queue not in self._full:
                self._full.begin(file.queue, self._least_usage(file))
        return [file for file in batch if file.queue not in self._full]

    def _puts_of(self, file: CapturedFile) -> list[PutArguments]:
        store = self._store
        settings = store.settings.known
        if file.queue not in settings.config.queues:
            raise NotTaken("that queue was deleted", FileCause.NO_QUEUE)
        return puts_of(
            file.name,
            self._read(file),
            settings.config.max_body_bytes,
            lambda **options: control_fields(store, settings, file.queue, options),
            settings.config.queues[file.queue].drop_types,
            file.queue,
        )

    def _read(self, file: CapturedFile) -> bytes:
        """Return the content of a captured file. Raises NotTaken if the file is not complete."""
        disk, config, seen = self._disk, self._store.settings.known.config, file.seen
        with opened(disk, file.path) as handle:
            identity = disk.handle_identity(handle)
            if seen is None or seen.proof in (None, Proof.NO_WRITER) or not seen.is_still(identity):
                decision = judge(self._store, handle, file.queue, identity)
                file.seen = seen = Seen(decision.proof, identity)
                if decision.step is not Action.TAKE:
                    raise NotTaken(decision.why, step=decision.step)
            if identity.size > config.max_dropped_bytes:
                raise NotTaken(f"it is larger than max_body_bytes, {config.max_body_bytes}", FileCause.TOO_LARGE)
            data = disk.read_at(handle, 0, identity.size)
            if not seen.is_still(disk.handle_identity(handle)):
                raise NotTaken("a program has just written to it: it waits", step=Action.LEAVE)
            return data

    # -- files that remain, and files in quarantine --------------------------------------------------------------------

    def _do(self, decision: Verdict, path: str, queue: str, first: str = "") -> None:
        """Do the step of a decision about a file that is not taken. ``first``: its path in ``drop/``, if another."""
        match decision.step:
            case Action.LEAVE:
                self._left[first or path] = decision.why
            case Action.REPORT:
                self._report(first or path, decision.why)
            case Action.IGNORE:
                self._ignore(path, decision.why)
            case Action.REMOVE:
                self._disk.unlink(path)
            case Action.QUARANTINE:
                name = path.rpartition("/")[2].removeprefix(layout.FIRST_PREFIX)
                text = f"dropped for queue {queue}: {decision.why}"
                quarantine(self._disk, path, FileReason(text, decision.cause, queue, name))
                self.counts.quarantined += 1

    def _let_wait(self, files: Iterable[CapturedFile]) -> None:
        self._waiting.update((file.path, file) for file in files)

    def _ignore(self, path: str, text: str) -> None:
        """Note an ignored file. Report the file once no upload can still change it."""
        if path.rpartition("/")[2].startswith("."):
            return
        self._ignored[path] = text
        identity = self._disk.identity(path) if path not in self._reported else None
        if identity is not None and self._store.clock.now() - identity.changed_ns / 1e9 > _LONG_IGNORED_SECONDS:
            self._tell(path, f"{text}, and it has not changed for an hour: rename it, or remove it")

    def _report(self, name: str, text: str) -> None:
        self._left[name] = text
        self._tell(name, text)

    def _tell(self, name: str, text: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s: %s", name, text)

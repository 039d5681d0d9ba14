"""A branch written by a process that has not opened the space, e.g. by a Spark task.

Such a process has no index and no claims, and recovers nothing: it reads bodies by their places, writes its own branch
and prepares the branch. The coordinator's process holds the claims and decides. Once the coordinator's lock is free,
the next process that meets the branch rolls the branch back.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple, Unpack

from spool.coordination.locks import coordinator_byte, xid_byte
from spool.disk.disk import Disk
from spool.disk.memory import SharedBytes
from spool.disk.requirements import on_another_machine
from spool.errors import CorruptedFile, ProtocolError, TransactionRolledBack, UnknownCodec
from spool.index.stored_run import StoredRun
from spool.log.commit_file import CommitFileWriter
from spool.log.engine_commit import commit
from spool.log.write import PREPARED
from spool.log.write_set import WriteSet
from spool.model import codecs, layout
from spool.model.message import Message, Origin, new_message, set_body, set_ordinal, set_origin
from spool.model.options import PutOptions
from spool.model.position import Position
from spool.model.xid import BRANCH_ID_BYTES, Xid
from spool.policies.attempt_journal import MARKED, UNMARKED, CallMarks
from spool.policies.deduplication import check_single, fact_key
from spool.runtime import call_guard
from spool.runtime.call_guard import public_call
from spool.store.store import Store, attach_store
from spool.transactions.validation import check_queue, encode_bodies
from spool.workers.effects import Effect, OutcomePolicy, effective_outcome, record
from spool.workers.outcome import Outcome

_ENDED = "its coordinator has ended: the transaction is rolled back"


class Vote(NamedTuple):
    """A prepared branch. ``size`` and ``checksum`` come from the header of the branch's file."""

    xid: Xid
    size: int
    checksum: int


class ReadMessage(NamedTuple):
    """A message. ``raw``: the stored bytes of its body.

    ``unreadable``: the reason why no codec here can decode the body; "" if the body was decoded. If no codec can decode
    the body, ``message`` also contains the stored bytes.
    """

    message: Message
    raw: bytes
    unreadable: str = ""


class DamagedMessage(NamedTuple):
    """A message whose body cannot be read, and the reason."""

    position: Position
    reason: str


class EndedCall(NamedTuple):
    """A call of a service that has ended. ``place``: the place of the message among the messages of its task.

    ``at``: the time when the call ended, in seconds since the epoch.
    """

    place: int
    found: ReadMessage
    outcome: Outcome
    at: float


def origin_of(part: StoredRun) -> Origin:
    """Return the fields that all messages of a run share."""
    first = part.first - part.in_branch
    return Origin(part.branch.hex(), first, part.queue, part.number, part.committed_at, part.attributes)


def decoded(origin: Origin, ordinal: int, raw: bytes) -> ReadMessage | DamagedMessage:
    """Return the message with this origin and ordinal. ``raw``: the stored bytes of its body."""
    body, unreadable = raw, ""
    try:
        body = codecs.decode(raw, origin.attributes.get("codec"))
    except UnknownCodec as error:  # a service that takes bytes needs no codec
        unreadable = str(error)
    except CorruptedFile as error:
        return DamagedMessage(Position(origin.number, ordinal), str(error))
    return ReadMessage(_message(origin, ordinal, body), raw, unreadable)


def without_body(origin: Origin, ordinal: int) -> ReadMessage:
    """Return the message with this origin and ordinal, with an empty body instead of its own."""
    return ReadMessage(_message(origin, ordinal, b""), b"")


def _message(origin: Origin, ordinal: int, body: Any) -> Message:
    message = new_message()
    set_origin(message, origin)
    set_ordinal(message, ordinal)
    set_body(message, body)
    return message


def identity_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode, which identify a directory on this machine; None if the directory does not exist."""
    found = Disk(path).identity("")
    return None if found is None else (found.device, found.inode)


def check_place(path: str) -> None:
    """Check that this process can write branches of this space; raises the errors of ``RemoteBranch``."""
    disk = Disk(path)
    with call_guard.deferred(disk.close_all):
        _attached(disk).guard.close()


def _attached(disk: Disk) -> Store:
    """Attach the space.

    Raises UnsafeFileSystem if a process of another kernel has the space open, because the locks of that process are not
    visible here.
    """
    store = attach_store(disk)
    page = store.check_usable()
    if page.boot_id != disk.boot_id():
        raise on_another_machine(disk.root)
    return store


class RemoteBranch:
    """One branch of a coordinator's transaction. Not thread-safe; the caller closes the branch, even after an error.

    ``put`` adds messages, ``record`` adds the effects of a call, and ``prepare`` votes.

    Args:
        path: the directory of the space.
        xid: the xid of the branch, whose gtrid is the coordinator's id.

    Raises:
        TransactionRolledBack: the coordinator has ended.
        ProtocolError: another process writes the branch.
        UnsafeFileSystem: the space is open on another machine.
    """

    def __init__(self, path: str, xid: Xid) -> None:
        self.xid = xid
        self._keys: set[str] = set()  # the keys of the facts in this branch
        self._marks: SharedBytes | None = None
        self._places: CallMarks
        disk = Disk(path)
        with call_guard.deferred(disk.close_all):
            self._store = _attached(disk)
            self._check_coordinator()
            self.writes, self._file = WriteSet(), CommitFileWriter(disk, xid)
            self.writes.begin_branch(xid, os.urandom(BRANCH_ID_BYTES))
            if not self._store.shared.xids.try_lock(xid_byte(xid)):
                raise ProtocolError(f"another process is writing the branch {xid}")

    def _check_coordinator(self) -> None:
        if self._store.shared.xids.is_free(coordinator_byte(self.xid.gtrid)):
            raise TransactionRolledBack(_ENDED)

    @public_call("putting into queue {queue}")
    def put(self, queue: str, bodies: Iterable[Any], **options: Unpack[PutOptions]) -> None:
        """Add messages with the same options; full sections of the branch's file are written to the disk.

        Raises the errors of ``Space.put_many``, but not Full, because the limits are checked when the branch is
        adopted. Of several messages with one ``deduplication_key``, the branch keeps only the first. ``adoption``
        checks whether another commit has put the key. The option ``before`` needs an index, so it is refused.
        """
        store, batch = self._store, self.writes
        settings = store.settings.known
        if queue not in settings.config.queues:
            settings = check_queue(store.settings, queue, store.shared.counters.read())
        groups = encode_bodies(store, settings, queue, list(bodies), options)
        if (key := options.get("deduplication_key")) is not None:
            check_single(sum(len(raws) for raws, _ in groups))
            name = fact_key(queue, key)
            if name in self._keys:
                return
            self._keys.add(name)
            window = settings.config.queues[queue].deduplication_window
            batch.fact(name, f"{batch.branch}{batch.messages:08x}", store.clock.now() + window)
        for raws, fields in groups:
            batch.put(queue, raws, fields)
        if batch.sections:
            self._file.stream(batch)

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._store.clock.now()

    def record(self, policy: OutcomePolicy, found: ReadMessage, outcome: Outcome, at: float) -> tuple[Effect, str]:
        """Add the effects of a service call with a message that the coordinator holds.

        Args:
            policy: see ``spool.workers.effects``.
            at: the time when the call ended, in seconds since the epoch.

        Returns:
            The effect on the message, and the reason if the call failed.
        """
        outcome = effective_outcome(policy, found.message, found.raw, outcome)
        return record(self.writes, policy, found.message, found.raw, outcome, at)

    def conclude(
        self, policy: OutcomePolicy, calls: Iterable[EndedCall]
    ) -> tuple[Vote | None, list[tuple[Effect, str]]]:
        """Record the effects of calls, and vote. Returns the vote, and the result of ``record`` for each call."""
        effects = [self.record(policy, call.found, call.outcome, call.at) for call in calls]
        return self.prepare(), effects

    def messages(self, runs: Iterable[StoredRun]) -> Iterator[ReadMessage | DamagedMessage]:
        """Read messages that the coordinator holds, in the given order; raises DiskFailure if a file cannot be read."""
        for part, found in self.bodies(runs):
            if isinstance(found, str):
                yield DamagedMessage(part.position, found)
                continue
            origin = origin_of(part)
            for ordinal, raw in enumerate(found, part.first):
                yield decoded(origin, ordinal, raw)

    def bodies(self, runs: Iterable[StoredRun]) -> Iterator[tuple[StoredRun, list[bytes] | str]]:
        """Yield runs of the messages, in the given order, with their stored bodies.

        A run with one damaged message has the reason instead. Raises DiskFailure if a file cannot be read.
        """
        for whole in runs:
            yield from self._read(whole)

    @public_call("reading messages")
    def _read(self, whole: StoredRun) -> list[tuple[StoredRun, list[bytes] | str]]:
        """Read the bodies of neighbouring messages together. If a body is damaged, read each body separately.

        Returns runs, each with its bodies, or with the reason why its only body cannot be read.
        """
        try:
            return [(whole, self._store.files.cache.bodies(whole, whole.first, whole.length, bytes))]
        except CorruptedFile as error:
            if whole.length == 1:
                return [(whole, str(error))]
        ordinals = range(whole.first, whole.first + whole.length)
        return [one for ordinal in ordinals for one in self._read(whole.part(ordinal, 1))]

    @public_call("opening the record of calls")
    def record_calls(self, marks: CallMarks) -> None:
        """Open the marks, with which ``begin_call`` records calls in progress.

        If a call kills all processes, an attempt is counted for the message of the call.

        Raises:
            TransactionRolledBack: the coordinator has ended.
        """
        disk = self._store.files.disk
        try:
            handle = disk.open(layout.attempt_journal(marks.xid), write=True)
        except FileNotFoundError:
            raise TransactionRolledBack(_ENDED) from None
        self._marks, self._places = disk.map(handle, disk.handle_identity(handle).size), marks

    def begin_call(self, place: int) -> None:
        """Record that the call with a message is in progress. ``place``: the place of the message's mark."""
        self._mark(place, MARKED)

    def end_call(self, place: int) -> None:
        """Record that the call has ended."""
        self._mark(place, UNMARKED)

    def _mark(self, place: int, mark: bytes) -> None:
        marks = self._marks  # (a copy: another thread may set the attribute to None)
        if marks is not None:
            at = self._places.place(place)
            try:
                marks[at : at + 1] = mark
            except OSError:  # the disk is full, and the marks are written by system calls: no attempt is counted
                self._marks = None

    @public_call("preparing a branch")
    def prepare(self) -> Vote | None:
        """Vote yes, durably; returns the vote, or None if the branch is empty."""
        store, file, request = self._store, self._file, self.writes
        if request.is_empty:
            return None
        commit(store, file, request, into=PREPARED, check=lambda _: self._check_coordinator())
        header = file.contents(0).header
        return Vote(self.xid, header.size, header.checksum)

    def close(self) -> None:
        """Release the lock on the xid, and remove the branch's file unless the branch has voted."""
        guard = self._store.guard
        with call_guard.deferred(guard.end), closing(guard):  # (a signal would leave descriptors and the lock)
            self._file.abandon()

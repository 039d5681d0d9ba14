"""A queue space, as an application uses it: the facade over the engine, and its opening and closing."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from spool import consume, interrupts, layout
from spool.arguments import check_queue, encoded
from spool.association import associated
from spool.browse import Browsed, browse
from spool.clock import Clock
from spool.disk import DIRECTORY_MODE, Disk
from spool.draft import is_large
from spool.errors import (
    CorruptedFile,
    DiskFailure,
    Empty,
    InvalidArgument,
    NotASpace,
    NotOpen,
    QueueExists,
    SpaceExists,
    SpoolError,
)  # fmt: skip
from spool.filesystem import check_kind, check_stages
from spool.gate import step
from spool.gathering import Puts
from spool.group import Group
from spool.housekeeping import Housekeeper
from spool.locks import CONFIG
from spool.message import Message, Position, attributes_of
from spool.notes import Undertaker
from spool.ranges import positions
from spool.settings import QueueConfig, queue_config, render_new, space_config, with_queue
from spool.stats import QueueStats, queue_stats
from spool.store import Store, advice, log, speaking
from spool.transaction import Transaction
from spool.visibility import catch_up, list_prepared

if TYPE_CHECKING:
    from recovery.scan import Finding, RecoveryReport


class _Join:
    """The default of ``transaction=``: join the caller's, if there is one."""

    def __repr__(self) -> str:
        return "JOIN"


JOIN = _Join()

_BROWSED_AT_ONCE = 256


class Space:
    """An open queue space. May be used from many threads; in a forked child it is closed."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        """Not for applications, which call ``spool.open``."""
        self._store = Store(disk, clock)
        self._group = self._store.group = Group(self._store, lambda: self._housekeeper.committed())
        self._store.at_end[self._group.end] = None
        self._undertaker = Undertaker(self._store)
        self.recovery: RecoveryReport = _open_files(self._store)
        self._housekeeper = Housekeeper(self._store)

    @property
    def path(self) -> str:
        return self._store.disk.root

    # -- queues ----------------------------------------------------------------------------------------------------

    @step
    def create_queue(self, name: str, **options: Any) -> QueueConfig:
        """A new queue, durable when this returns. Options: see ``QueueConfig``. QueueExists, InvalidArgument."""
        self._store.check_usable()
        with self._store.disk_errors(f"creating queue {name}"):
            return add_queue(self._store, name, **options)

    @step
    @speaking("reading the settings")
    def queues(self) -> dict[str, QueueConfig]:
        """Every queue by name."""
        self._store.check_usable()
        self._store.refresh_settings()
        return dict(self._store.config.queues)

    # -- messages --------------------------------------------------------------------------------------------------

    def put(self, queue: str, body: Any, *, transaction: Transaction | _Join | None = JOIN, **options: Any) -> str:
        """Put a message; returns its id, 32 hex digits. Durable when this returns, or when the transaction commits.

        Options: priority (1..100, higher first), not_before (seconds since the epoch) or delay (seconds, from the
        commit), correlation_id, reply_queue, failure_queue, user_code, client_id, application_key, headers,
        content_type. ``transaction``: JOIN the caller's, None for one of its own, or one by name.
        """
        return self.put_many(queue, (body,), transaction=transaction, **options)[0]

    @step
    def put_many(
        self, queue: str, bodies: Iterable[Any], *, transaction: Transaction | _Join | None = JOIN, **options: Any
    ) -> list[str]:
        """Put messages with the same options, in one commit; returns their ids."""
        joined = self._transaction_of(transaction)
        if joined is not None:
            return joined.put_many(queue, bodies, **options)
        bodies = list(bodies)
        work = self._puts(queue, bodies, **options)
        if is_large(work.messages, work.bytes):
            own = self._own_transaction()
            try:
                ids = own.put_many(queue, bodies, **options)
                own.commit()
            finally:
                own.abandon()
        else:
            with self._store.disk_errors("committing"):
                self._group.commit(work)
            ids = work.ids
        self._housekeeper.committed()
        return ids

    def _puts(self, queue: str, bodies: Sequence[Any], *, content_type: str | None = None, **options: Any) -> Puts:
        """Checked and encoded."""
        store = self._store
        line = self._group.line
        page = line.page
        if page is None or queue not in store.config.queues:
            page = store.check_usable()
            try:
                check_queue(store, queue, page)
            except OSError as error:
                raise store.spoken("reading the settings", error) from error
            line.page = page
        return Puts(page, queue, encoded(bodies, content_type, attributes_of(**options), store.config.max_body_bytes))

    @step
    def submit(
        self, queue: str, body: Any, *, transaction: Transaction | _Join | None = JOIN, **options: Any
    ) -> "Future[str]":
        """Put a message without waiting: a future of its id, done when it is durable and visible. Arguments as ``put``.

        What threads and tasks submit while the disk is busy shares the next flush. Waits only while more is under way
        than 65,536 messages or 32 MiB. In a transaction the future is done when that has committed, and fails with
        TransactionRolledBack when it rolls back. Closing the space commits what was submitted; a forked child's copies
        of futures are never done.
        """
        joined = self._transaction_of(transaction)
        if joined is not None:
            return joined.submit(queue, body, **options)
        return self._group.future(self._puts(queue, (body,), **options))

    def get(
        self,
        queue: str,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
        transaction: Transaction | _Join | None = JOIN,
    ) -> Message:
        """Take a message: the queue's next, or one by id or correlation id. Empty if there is none.

        ``timeout``: 0 does not wait, seconds wait at most, None for ever.
        """
        return self.get_many(
            queue, 1, timeout=timeout, message_id=message_id, correlation_id=correlation_id, transaction=transaction
        )[0]

    @step
    def get_many(
        self,
        queue: str,
        max_messages: int,
        *,
        timeout: float | None = 0,
        message_id: str | None = None,
        correlation_id: str | None = None,
        transaction: Transaction | _Join | None = JOIN,
    ) -> list[Message]:
        """Take up to ``max_messages`` in one commit, at least one; Empty if there is none within ``timeout``."""
        asked: dict[str, Any] = {"timeout": timeout, "message_id": message_id, "correlation_id": correlation_id}
        joined = self._transaction_of(transaction)
        if joined is not None:
            return joined.get_many(queue, max_messages, **asked)
        own = self._own_transaction()
        try:
            found = own.get_many(queue, max_messages, **asked)
            interrupts.admit()  # from here on they are gone, whether the caller hears of them or not
            own.commit()
        finally:
            own.abandon()
        self._housekeeper.committed()
        return found

    @step
    def transaction(self, timeout: float | None = 30.0) -> Transaction:
        """A transaction: ``with`` commits it on leaving and rolls it back on an exception. ``timeout`` in seconds."""
        self._store.check_usable()
        return Transaction(self._store, self._undertaker, timeout=timeout)

    def consume(self, queue: str, timeout: float | None = None) -> Iterator[tuple[Transaction, Message]]:
        """One transaction a message: commits at the end of the loop's body, rolls back if it raises or breaks.

        Ends when no message came for ``timeout`` seconds.
        """
        while True:
            with self.transaction(timeout=None) as tx:
                try:
                    message = tx.get(queue, timeout=timeout)
                except Empty:
                    return
                yield tx, message

    def browse(self, queue: str, *, correlation_id: str | None = None) -> Iterator[Message]:
        """The queue's messages in the order of delivery, delayed ones last, without claiming any."""
        self._look(queue)
        pieces = browse(self._store.index, queue, self._store.clock.now())
        while some := self._next(pieces):
            wanted = [piece[:3] for piece in some if correlation_id in (None, piece[3])]
            for position in positions(wanted):
                message = self._peek(queue, position)
                if message is not None:
                    yield message

    @step
    @speaking("reading messages")
    def _next(self, pieces: Iterator[Browsed]) -> list[Browsed]:
        with self._store.mutex:
            return list(islice(pieces, _BROWSED_AT_ONCE))

    @step
    @speaking("reading messages")
    def _peek(self, queue: str, position: Position) -> Message | None:
        store = self._store
        store.check_usable()
        with store.mutex:
            run = store.index.find(position)
            if run is None or run.queue.name != queue or position in store.prepared.held:
                return None  # taken since we looked, or in doubt
        try:
            return consume.peek(store, position)
        except CorruptedFile:
            return None  # a get sets it aside, check names it

    @step
    @speaking("looking for a message")
    def show(self, message_id: str) -> Message:
        """A message by id, in whatever queue it is, without claiming it; BadMessageId if there is none."""
        return consume.find_message(self._store, message_id)

    @overload
    def stats(self) -> dict[str, QueueStats]: ...
    @overload
    def stats(self, queue: str) -> QueueStats: ...
    @step
    @speaking("counting messages")
    def stats(self, queue: str | None = None) -> dict[str, QueueStats] | QueueStats:
        """One queue's ``QueueStats``, or all queues' by name."""
        if queue is not None:
            self._look(queue)
            return queue_stats(self._store, (queue,))[queue]
        return queue_stats(self._store, tuple(self.queues()))

    # -- what happened, and what is wrong --------------------------------------------------------------------------

    @step
    @speaking("checking the space")
    def check(self, repair: bool = False) -> "list[Finding]":
        """Read everything and name what is wrong; ``repair`` mends or quarantines it."""
        from recovery.scan import check

        return check(self._store, repair=repair)

    @step
    @speaking("looking into quarantine")
    def quarantined(self) -> "list[Finding]":
        """What lies in quarantine, with the reasons."""
        from recovery.scan import quarantined

        self._store.check_usable()
        return quarantined(self._store)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything, once the calls of other threads have ended; those that wait end at once, by NotOpen.

        A transaction that is still open is rolled back by the next who looks.
        """
        with interrupts.deferred(self._store.gate.end):
            if not self._store.closed:
                self._finish_submitted()
                self._housekeeper.tidy_up()
                self._store.gate.close()
                self._housekeeper.end()

    def _finish_submitted(self) -> None:
        with suppress(NotOpen), self._store.gate:
            self._group.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<queue space {self.path}{' (closed)' if self._store.closed else ''}>"

    # -- inside ----------------------------------------------------------------------------------------------------

    def _own_transaction(self) -> Transaction:
        """For one put or get: nobody holds its message before the commit, so no claim is noted."""
        return Transaction(self._store, self._undertaker, noted=False)

    def _transaction_of(self, transaction: Transaction | _Join | None) -> Transaction | None:
        return associated(self._store) if isinstance(transaction, _Join) else transaction

    @step
    @speaking("looking at the queue")
    def _look(self, queue: str) -> None:
        page = self._store.check_usable()
        check_queue(self._store, queue, page)
        self._store.follows = True
        catch_up(self._store, page)
        list_prepared(self._store)


# -- creating and opening -----------------------------------------------------------------------------------------


@contextmanager
def _os_errors(doing: str) -> Iterator[None]:
    """While there is no store yet that could: the operating system's errors as ours."""
    try:
        yield
    except SpoolError:
        raise
    except OSError as error:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        text = f"{doing}: {error.strerror or error}{where}: {advice(error)}"
        raise DiskFailure(error.errno or 0, text) from error


def create(
    path: str | os.PathLike[str], *, disk: Disk | None = None, clock: Clock | None = None, **options: Any
) -> Space:
    """A new, empty queue space in a directory, which is made if need be; returns it open.

    SpaceExists if one is there. Options: ``max_body_bytes``, ``flush``, ``network_file_system``, ``mirror`` (see
    ``SpaceConfig``).
    """
    config = space_config(options, {})
    disk = disk or _new_directory(os.fspath(path))
    with interrupts.deferred(disk.close_all), _os_errors("making the queue space"):
        if disk.exists(layout.SETTINGS):
            raise SpaceExists(f"{disk.root} holds a queue space already: open it, or choose another directory")
        check_kind(disk, config.network_file_system)
        check_stages(disk)
        for name in layout.DIRECTORIES:
            keep_directory(disk, name)
        if config.mirror is not None:
            _make_mirror(disk.beside(config.mirror))
        replace_file(disk, layout.SETTINGS, render_new(config).encode())
        return Space(disk, clock or Clock())


def _make_mirror(disk: Disk) -> None:
    """An empty directory. Its parent is there: it may be the place where the other disk is mounted."""
    disk.make_directory("")
    if disk.names(""):
        raise InvalidArgument(f"the mirror {disk.root} is not empty: name a directory of its own for each space")


@_os_errors("making the queue space")
def _new_directory(root: str) -> Disk:
    if os.path.exists(os.path.join(root, layout.SETTINGS)):
        raise SpaceExists(f"{root} holds a queue space already: open it, or choose another directory")
    try:
        new = not os.path.isdir(root)
        os.makedirs(root, mode=DIRECTORY_MODE, exist_ok=True)
        if new:
            os.chmod(root, DIRECTORY_MODE)  # whatever the umask
    except FileExistsError:
        raise NotASpace(f"{root} is a file: a queue space is a directory, choose another path") from None
    return Disk(root)


def open(path: str | os.PathLike[str], *, disk: Disk | None = None, clock: Clock | None = None) -> Space:
    """An existing queue space; recovers what a crash left. NotASpace, NewerFormat, UnsafeFileSystem.

    Ctrl-C waits until it is open, and closes it again; a second one does not wait.
    """
    root = os.fspath(path)
    if disk is None and not os.path.isdir(root):
        raise NotASpace(f"{root} is not a directory: make a queue space there with: spool-admin init {root}")
    with _os_errors("opening the queue space"):
        disk = disk or Disk(root)
    with interrupts.deferred(disk.close_all), _os_errors("opening the queue space"):
        return Space(disk, clock or Clock())


def _open_files(store: Store) -> "RecoveryReport":
    """DESIGN §5, "Open": who is alone recovers; who is not joins, and sets no counter."""
    from recovery import scan

    with store.disk_errors("opening the space"):
        check_kind(store.disk, store.config.network_file_system)
        check_stages(store.disk)
        alone = store.presence.enter(store.deadline())
        for name in layout.DIRECTORIES:
            if name != layout.RUN and not store.disk.exists(name):  # somebody removed it
                keep_directory(store.disk, name)
        store.open_run(make=alone)
        report = scan.scan(store, alone=alone)
        if alone:
            _stock(store)
            if store.mirror is not None:
                store.mirror.catch_up()
        store.presence.settle()
        return report


def _stock(store: Store) -> None:
    try:
        store.pool.stock()
    except OSError as error:
        log.warning("no room for the files that a full disk will need: %s", error)


def add_queue(store: Store, name: str, **options: Any) -> QueueConfig:
    """A new queue in the settings, with its directory; durable when this returns."""
    config = queue_config(name, options)
    store.control.lock(CONFIG, store.deadline(), "the lock on space.toml")
    try:
        text = store.read_settings_text()
        if name in store.read_settings().queues:
            raise QueueExists(f"queue {name!r} is there already: choose another name, or use it as it is")
        keep_directory(store.disk, f"{layout.DROP}/{name}")
        replace_file(store.disk, layout.SETTINGS, with_queue(text, config).encode())
        store.counters.bump_settings()
    finally:
        store.control.unlock(CONFIG)
    return config


def keep_directory(disk: Disk, name: str) -> None:
    """A directory that is there, whatever happens: what is put into it must not be lost with it."""
    disk.make_directory(name)
    for directory in (name, name.rpartition("/")[0]):
        disk.flush_directory(directory)


def replace_file(disk: Disk, name: str, data: bytes) -> None:
    """New content for a file that people edit, all of it or none."""
    temporary = f"{name}.tmp"
    if disk.exists(temporary):
        disk.unlink(temporary)
    handle = disk.create(temporary)
    try:
        disk.write_at(handle, 0, data)
        disk.flush(handle)
        disk.rename(temporary, name)
        disk.make_durable(handle, name.rpartition("/")[0])
    finally:
        disk.close(handle)

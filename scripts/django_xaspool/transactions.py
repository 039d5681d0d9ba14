"""``transaction``: take messages and write rows of Django's database, in one transaction.

Django's outermost ``atomic`` block does all of Django's work, e.g. savepoints and the calls of ``on_commit``. Only the
begin, the commit and the rollback of this block belong to ``xa.TransactionManager``.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache, partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.transaction import atomic
from django.db.utils import Error as DatabaseError

import spool
import xa

_preparing = threading.Lock()
_prepared: set[tuple[int, str, str, str]] = set()  # process, log directory, space and database


@contextmanager
def transaction(
    space: spool.Space | str | os.PathLike[str],
    using: str = DEFAULT_DB_ALIAS,
    *,
    timeout: float | None = 30.0,
    log_directory: str | os.PathLike[str] | None = None,
) -> Iterator[spool.Space]:
    """Begin a transaction over a space and a database: its messages and its rows are committed, or none of them.

    Yields the open space, whose puts and gets of this thread join the transaction. The block is an ``atomic`` block of
    Django: nested blocks are savepoints, and the calls of ``on_commit`` follow the commit. After a failure of the
    block, the messages return after their retry delay, with one more attempt.

    The first call of each process creates the table of decisions, if it is missing, and finishes the
    transactions of dead programs.

    Args:
        space: an open space, or its directory, which must exist.
        using: the alias of the database.
        timeout: the seconds after which the commit raises TransactionTimeout; None for no limit.
        log_directory: the directory of ``xa.TransactionManager``, the same for all programs of the machine. Default:
            the directory of the space with the suffix ``.decisions``.

    Raises:
        NotASpace: the directory has no space.
        ProtocolError: the caller is in an ``atomic`` block of the database, or in a transaction of the space.
        CommitUnknown: the connection broke during the commit. The next call learns the outcome.
        The other errors of ``xa.TransactionManager``, of the space and of the database: nothing was committed.
    """
    connection = connections[using]
    if connection.errors_occurred and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
    if connection.in_atomic_block or not connection.get_autocommit():
        raise spool.ProtocolError(
            f"a transaction of the database {using!r} is open, whose commit would be too late for the message: call "
            "django_xaspool.transaction outside of atomic. With ATOMIC_REQUESTS, decorate the view with "
            "transaction.non_atomic_requests; in tests, use TransactionTestCase"
        )
    opened = space if isinstance(space, spool.Space) else spool.shared(_checked(os.fspath(space)))
    directory = os.path.realpath(log_directory or f"{os.path.realpath(opened.path)}.decisions")
    manager, key = _manager(os.getpid(), directory), (os.getpid(), directory, opened.path, using)
    with _preparing:
        if key not in _prepared:
            connect = _connector(using)
            with closing(connect()) as new:
                manager.prepare_database(new)
            manager.recover(opened, connect)
            _prepared.add(key)
    try:
        with manager.transaction(timeout) as joint:
            joint.enlist(opened)
            with _Ends(connection, joint) as ends, atomic(using, durable=True):
                try:
                    yield opened
                except BaseException as error:
                    ends.reason = f"{type(error).__name__}: {error}"
                    raise
    except spool.CommitUnknown:
        _prepared.discard(key)
        raise


@cache
def _checked(path: str) -> str:
    """Return the directory of a space. A mistyped path must not become a space: it raises ``spool.NotASpace``."""
    spool.open(path).close()
    return path


@cache
def _manager(process: int, directory: str) -> xa.TransactionManager:
    return xa.TransactionManager(directory)


@cache
def _connector(using: str) -> Callable[[], Any]:
    """Return the function that a manager calls for a new connection of the driver."""
    return partial(_connect, using)


def _connect(using: str) -> Any:
    new = connections[using].copy()
    new.set_autocommit(False)  # (some drivers know no transactions in their autocommit mode)
    return new.connection


class _Ends:
    """Makes a global transaction begin and end the outermost ``atomic`` block of a connection.

    reason: why the block is rolled back.
    """

    def __init__(self, connection: Any, joint: xa.GlobalTransaction) -> None:
        self._connection, self._joint = connection, joint
        self._set_autocommit = connection.set_autocommit
        self._has_begun = self._has_ended = False
        self.reason = "its atomic block was rolled back"

    def __enter__(self) -> "_Ends":
        self._connection.set_autocommit = self._begin_or_end
        self._connection._commit = self._commit
        self._connection._rollback = self._rollback
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("set_autocommit", "_commit", "_rollback"):
            self._connection.__dict__.pop(name, None)

    def _begin_or_end(self, autocommit: bool, **_: Any) -> None:
        """Take the place of ``set_autocommit``, which Django calls at the begin and at the end of the block. The first
        call may connect again, and a new connection calls this, too."""
        if not autocommit:
            self._set_autocommit(False)
            self._has_begun = True
            self._joint.enlist(self._connection.connection)  # this begins the transaction
        elif not self._has_begun:
            self._set_autocommit(True)
        else:
            self.__exit__()  # the calls of on_commit may begin further transactions
            if self._connection.connection is not None:
                self._set_autocommit(True)

    def _commit(self) -> None:
        self._has_ended = True
        try:
            with self._connection.wrap_database_errors:
                self._joint.commit()
        except DatabaseError:
            raise  # (Django forgets the calls of on_commit)
        except BaseException as error:
            self._connection.run_on_commit = []
            with suppress(Exception):  # (SQLite's connection counts as usable even if it is closed)
                if isinstance(error, spool.CommitUnknown) or not self._connection.is_usable():
                    self._connection.close()
                else:
                    self._connection.connection.rollback()  # of the query with which Django looked
            raise

    def _rollback(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            with self._connection.wrap_database_errors:
                self._joint.rollback(self.reason)

"""The connections of database drivers, with the few calls that a transaction manager needs.

``database_of`` returns the ``Database`` for a connection of psycopg, of sqlite3, of SQLAlchemy (a ``Connection`` or a
``Session``), or of another driver with PEP 249. No driver is imported: a connection is recognized by its attributes.

Between ``begin`` and ``commit`` or ``rollback``, a transaction of the database is open, even for a connection in
autocommit mode.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from spool.errors import InvalidArgument, ProtocolError

_PSYCOPG_IN_TRANSACTION = (1, 2, 3)  # ACTIVE, INTRANS, INERROR; a broken connection is UNKNOWN (4)
_PSYCOPG_IDLE, _PSYCOPG_OPEN, _PSYCOPG_FAILED = 0, 2, 3  # IDLE, INTRANS, INERROR
_POSTGRESQL_DURABLE = (
    "case current_setting('synchronous_commit') when 'off' "
    "then set_config('synchronous_commit', 'on', true) is not null else true end"
)
_SQLITE_FULL = 2  # of "pragma synchronous"
_SAVEPOINT = "xaspool_begin"
NOT_DURABLE = (
    "a power cut could take the database's commits, and thereby the decision: execute `pragma synchronous = full` on "
    "the connection before the transaction"
)
_DJANGO_ADVICE = "use `with django_xaspool.transaction(space, using=…)`"
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Result(NamedTuple):
    """The result of a statement: its rows, and the number of rows that it changed."""

    rows: Sequence[Sequence[Any]]
    changed: int


class Database(ABC):
    """A connection to a database. Methods raise the driver's errors."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @property
    def key(self) -> object:
        """The object that stands for the database: connections with one key lead to the same database."""
        return self.connection

    def check_idle(self) -> None:
        """Raise ProtocolError if a transaction is open, because the manager would commit foreign work with it."""
        if _is_in_atomic_block(self.connection):
            raise ProtocolError(
                "the connection is in an atomic block of Django, which could not roll back the work of the transaction "
                f"manager: {_DJANGO_ADVICE} outside of atomic"
            )
        if self.is_in_transaction():
            raise ProtocolError(
                "the connection is in a transaction: commit it or roll it back before a transaction manager uses the "
                "connection"
            )

    @abstractmethod
    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open, as far as the driver tells."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction that ``begin`` began."""

    @abstractmethod
    def rollback(self) -> None:
        """Roll back the transaction that ``begin`` began."""

    @contextmanager
    def own(self, *, only_reads: bool = False) -> Iterator[None]:
        """A transaction of the manager itself, without the program's work."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        (self.rollback if only_reads else self.commit)()

    def close(self) -> None:
        """Close the connection, so that the database rolls back an open transaction. Raises no error."""
        with suppress(Exception):
            self.connection.close()

    @property
    def durable(self) -> str:
        """An SQL condition that is always true, and that makes the commit of the open transaction durable."""
        return "1 = 1"

    def is_broken_by(self, error: Exception) -> bool:
        """Return whether the connection broke with this error, as far as the driver, or SQLAlchemy, tells."""
        return bool(getattr(self.connection, "closed", False) or getattr(error, "connection_invalidated", False))

    def is_open(self) -> bool:
        """Return whether the transaction that ``begin`` began is still open, as far as the driver tells.

        The caller asks once, before it writes its decision.
        """
        return not _has_failed(self.connection)

    def was_ended(self) -> bool:
        """Return whether the program itself has ended the transaction that ``begin`` began, as far as the driver tells.

        The caller asks once, before it rolls back.
        """
        return False

    def run(self, statement: str, *values: object) -> Result:
        """Run a statement with a ``?`` for each value."""
        cursor = self._cursor()
        try:
            cursor.execute(*bound(statement, values, paramstyle_of(self.connection)))
            rows = cursor.fetchall() if cursor.description else ()
            return Result(rows, cursor.rowcount)
        finally:
            cursor.close()

    def _cursor(self) -> Any:
        """Return a new cursor whose rows are tuples, regardless of the program's settings."""
        return self.connection.cursor()


class _Pep249(Database):
    """A connection of any driver with PEP 249: each statement outside a transaction begins a transaction."""

    def is_in_transaction(self) -> bool:
        status = getattr(self.connection, "get_transaction_status", lambda: 0)  # of psycopg2
        return bool(status())

    def begin(self) -> None:
        autocommit = getattr(self.connection, "autocommit", False)
        if callable(autocommit):  # of PyMySQL and mysqlclient
            autocommit = bool(self.connection.get_autocommit())
        if autocommit is True:
            raise InvalidArgument(
                "the connection is in autocommit mode, in which this driver has no transactions: set its attribute "
                "autocommit to False"
            )

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


class _Psycopg(Database):
    """A connection of psycopg 3. Its ``transaction()`` works in autocommit mode, and the driver then refuses the
    program's own ``commit()`` and ``rollback()``."""

    _block: Any = None

    def _cursor(self) -> Any:
        psycopg = sys.modules["psycopg"]
        return psycopg.Cursor(self.connection, row_factory=psycopg.rows.tuple_row)

    def is_in_transaction(self) -> bool:
        return int(self.connection.info.transaction_status) in _PSYCOPG_IN_TRANSACTION

    def begin(self) -> None:
        self._check_no_pipeline()
        self._block = self.connection.transaction()
        self._block.__enter__()

    def commit(self) -> None:
        block, self._block = self._block, None
        block.__exit__(None, None, None)

    def rollback(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(_Undone, _Undone(), None)

    def is_open(self) -> bool:
        self._check_no_pipeline()
        return int(self.connection.info.transaction_status) == _PSYCOPG_OPEN

    def was_ended(self) -> bool:
        return int(self.connection.info.transaction_status) == _PSYCOPG_IDLE

    @property
    def durable(self) -> str:
        return _POSTGRESQL_DURABLE

    def _check_no_pipeline(self) -> None:
        """Raise ProtocolError in pipeline mode, in which the commit is sent before the server has answered."""
        if self.connection.pgconn.pipeline_status:
            raise ProtocolError("the connection is in pipeline mode: leave it before the transaction")


class _Undone(Exception):
    """Makes psycopg's block roll back."""


class _SQLite(Database):
    """A connection of sqlite3, in any of its modes."""

    def _cursor(self) -> Any:
        cursor = sys.modules["sqlite3"].Cursor(self.connection)
        cursor.row_factory = None
        return cursor

    def is_in_transaction(self) -> bool:
        return bool(self.connection.in_transaction) and getattr(self.connection, "autocommit", -1) is not False

    def begin(self) -> None:
        if not self.connection.in_transaction:  # (with autocommit=False, a transaction is always open)
            self.connection.execute("begin")
        try:
            self._check_durable()
            self.connection.execute(f"savepoint {_SAVEPOINT}")
        except BaseException:
            self.rollback()
            raise

    def _check_durable(self) -> None:
        [[synchronous]] = self.run("pragma synchronous").rows
        if synchronous < _SQLITE_FULL:
            raise InvalidArgument(NOT_DURABLE)

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self._end("rollback")

    def _end(self, how: str) -> None:
        if getattr(self.connection, "autocommit", -1) is True:  # its commit() would do nothing
            self.connection.execute(how)
        else:
            getattr(self.connection, how)()

    def is_open(self) -> bool:
        """Release the savepoint of ``begin``; return False if the program's own commit or rollback has removed it."""
        try:
            self.connection.execute(f"release {_SAVEPOINT}")
        except sys.modules["sqlite3"].OperationalError:
            return False
        return True

    def was_ended(self) -> bool:
        return not self.is_open()


class _SQLAlchemy(Database):
    """A ``Connection`` of SQLAlchemy."""

    _transaction: Any = None

    @property
    def key(self) -> object:
        return self.connection.engine

    def is_in_transaction(self) -> bool:
        return bool(self.connection.in_transaction())

    def begin(self) -> None:
        self._transaction = self.connection.begin()
        try:
            self._check_transactional(self._core())
        except BaseException:
            self._transaction.rollback()
            raise

    def _check_transactional(self, core: Any) -> None:
        """Raise InvalidArgument if the connection cannot undo its work, or does not make its commit durable."""
        options, driver = {**core.engine.get_execution_options(), **core.get_execution_options()}, core.connection
        is_open, detected = getattr(driver.dbapi_connection, "in_transaction", None), False  # of sqlite3
        with suppress(AttributeError, NotImplementedError):  # the dialect cannot tell
            detected = not is_open and core.dialect.detect_autocommit_setting(driver.dbapi_connection)
        if is_open is False:
            core.exec_driver_sql("begin")  # otherwise the end of the first savepoint would be a commit
        if detected or options.get("isolation_level") == "AUTOCOMMIT":
            raise InvalidArgument("the connection has the isolation level AUTOCOMMIT, which knows no transactions")
        if core.dialect.name == "sqlite" and self.run("pragma synchronous").rows[0][0] < _SQLITE_FULL:
            raise InvalidArgument(NOT_DURABLE)

    @property
    def durable(self) -> str:
        return _POSTGRESQL_DURABLE if self._core().dialect.name == "postgresql" else super().durable

    def commit(self) -> None:
        self._transaction.commit()

    def rollback(self) -> None:
        if self._transaction is not None and self.connection.get_transaction() is not None:
            self._transaction.rollback()
        # After a refused commit, SQLAlchemy has left the transaction, but e.g. SQLite has not.
        if not self.connection.invalidated and not self.connection.closed:
            self.connection.connection.dbapi_connection.rollback()

    def is_open(self) -> bool:
        return bool(self._transaction.is_active) and not _has_failed(self._core().connection.driver_connection)

    def was_ended(self) -> bool:
        return self.connection.get_transaction() is not self._transaction

    def run(self, statement: str, *values: object) -> Result:
        connection = self._core()
        found = connection.exec_driver_sql(*bound(statement, values, connection.dialect.paramstyle))
        rows = [tuple(row) for row in found] if found.returns_rows else []
        return Result(rows, found.rowcount)

    def _core(self) -> Any:
        return self.connection


class Session(_SQLAlchemy):
    """A ``Session`` of SQLAlchemy's ORM: its pending objects are written before the decision."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        if session.twophase:
            raise InvalidArgument("the session has twophase=True, so its commit cannot decide: use an ordinary session")

    @property
    def key(self) -> object:
        return self.connection.get_bind()

    def is_in_transaction(self) -> bool:
        bind = self.connection.get_bind()  # an engine or a connection
        return super().is_in_transaction() or (hasattr(bind, "in_transaction") and bool(bind.in_transaction()))

    def rollback(self) -> None:
        if self._transaction is not None and self.connection.get_transaction() is not None:
            try:
                self._transaction.rollback()  # (the pool rolls the connection back again)
            except Exception:  # e.g. after a handler of the event after_commit has failed
                self._transaction.close()

    @contextmanager
    def own(self, *, only_reads: bool = False) -> Iterator[None]:
        """See ``Database``. The program's handlers of the session's events do not run at the end of the transaction."""
        self.begin()
        try:
            yield
            if not only_reads:
                self._core().get_transaction().commit()
        finally:
            self._transaction.close()

    def is_open(self) -> bool:
        if is_open := super().is_open():
            self.write()
        return is_open

    def write(self) -> None:
        """Write the pending objects. Raises ProtocolError if the session works with several databases."""
        self.connection.flush()
        used = getattr(self.connection.get_transaction(), "_connections", ())  # each with its engine
        if sum(hasattr(one, "exec_driver_sql") for one in used) > 1:
            raise ProtocolError("the session works with several databases, which do not commit together: give it one")

    def _core(self) -> Any:
        return self.connection.connection()


_KINDS: Sequence[tuple[Callable[[Any], bool], type[Database]]] = (
    (lambda connection: hasattr(connection, "exec_driver_sql"), _SQLAlchemy),
    (lambda connection: hasattr(connection, "get_bind"), Session),
    (lambda connection: hasattr(connection, "pgconn") and hasattr(connection, "transaction"), _Psycopg),
    (lambda connection: any(kind.__module__ == "sqlite3" for kind in type(connection).__mro__), _SQLite),
    (lambda connection: all(hasattr(connection, name) for name in ("cursor", "commit", "rollback")), _Pep249),
)


def find_database(connection: Any) -> Database | None:
    """Return the ``Database`` for a connection; None if it lacks PEP 249's methods."""
    connection = getattr(connection, "driver_connection", None) or connection  # (of SQLAlchemy's pool)
    connection = connection() if hasattr(connection, "registry") else connection  # (a scoped_session)
    if any(kind.__module__.startswith("django.") for kind in type(connection).__mro__):
        raise InvalidArgument(
            "a connection of Django does not leave its transactions to a transaction manager: "
            f"{_DJANGO_ADVICE}, which also makes the calls of on_commit"
        )
    if iscoroutinefunction(getattr(connection, "commit", None)):
        raise InvalidArgument("the connection is asynchronous: use an ordinary connection, in a thread of its own")
    for recognizes, kind in _KINDS:
        if recognizes(connection):
            return kind(connection)
    return None


def _has_failed(connection: Any) -> bool:
    """Return whether a statement has failed on a connection of psycopg or psycopg2. A commit would roll back without
    an error."""
    return getattr(getattr(connection, "info", None), "transaction_status", None) == _PSYCOPG_FAILED


def _is_in_atomic_block(connection: Any) -> bool:
    """Return whether Django uses a driver's connection, and is in an atomic block."""
    django = sys.modules.get("django.db")
    wrappers = [] if django is None else django.connections.all(initialized_only=True)
    return any(wrapper.connection is connection and wrapper.in_atomic_block for wrapper in wrappers)


def database_of(connection: Any) -> Database:
    """Return the ``Database`` for a connection; raises InvalidArgument if it is no connection to a database."""
    found = find_database(connection)
    if found is not None:
        return found
    raise InvalidArgument(
        "a transaction takes open spaces and connections with PEP 249's methods (cursor, commit, rollback), "
        f"SQLAlchemy's Connection or Session, not {type(connection).__name__}"
    )


def paramstyle_of(connection: Any) -> str:
    """Return PEP 249's ``paramstyle`` of the module of a connection's class."""
    for kind in type(connection).__mro__:
        name = kind.__module__
        while name:
            with suppress(AttributeError, KeyError):
                return str(sys.modules[name].paramstyle)
            name = name.rpartition(".")[0]
    raise InvalidArgument(f"the module of {type(connection).__name__} has no paramstyle, which PEP 249 demands")


def bound(statement: str, values: Sequence[object], style: str) -> tuple[str, Sequence[object] | dict[str, object]]:
    """Return a statement with a driver's marks for the values, and the values as the driver takes them."""
    if style in _MARKS:
        return statement.replace("?", _MARKS[style]), tuple(values)
    pieces = statement.split("?")
    names = [f"p{place}" if style == "named" else str(place) for place in range(1, len(pieces))]
    text = pieces[0] + "".join(f":{name}{piece}" for name, piece in zip(names, pieces[1:], strict=True))
    return text, dict(zip(names, values, strict=True)) if style == "named" else tuple(values)

"""A queue space behind the two-phase commit methods of PEP 249, as psycopg 3 offers these methods.

``connect`` returns a ``Connection``. Outside of a two-phase transaction each put and get through ``Connection.space``
commits at once, as statements do in autocommit mode. ``tpc_begin`` starts a branch of the resource manager. Afterwards
the puts and gets of the same thread or asyncio task join the branch, until ``tpc_prepare`` votes or ``tpc_commit``
commits in one phase. A prepared branch belongs to no connection: any process can list it with ``tpc_recover`` and
decide it by its xid.

Puts and gets raise the errors of ``spool``. The methods of the connection raise the exceptions of PEP 249.

Sources: PEP 249, "Optional Two-Phase Commit Extensions"; the documentation of psycopg 3, "Two-Phase Commit support
methods".
"""

import enum
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, Self

import spool
from spool.engine import Joinable, UnknownBranch, deferred
from spool.errors import SpoolError
from spool.model.xid import Xid
from xa import codes
from xa.codes import XAError
from xa.resource_manager import ResourceManager

apilevel = "2.0"
threadsafety = 1
"""Threads may share the module and a space, but not a connection: ``tpc_begin`` binds the calling thread or task."""
paramstyle = "pyformat"
"""PEP 249 requires this name. No method takes a statement with parameters."""

_MOST_CHARACTERS = 64  # in each part of an xid (PEP 249)
_MISUSE = (codes.XAER_DUPID, codes.XAER_INVAL, codes.XAER_NOTA, codes.XAER_OUTSIDE, codes.XAER_PROTO)
_UNDECIDED = (codes.XA_RETRY, codes.XAER_RMERR, codes.XAER_RMFAIL)  # the coordinator can repeat its decision


class Warning(Exception):
    """No method raises this exception; PEP 249 requires the name."""


class Error(Exception):
    """The base class of the errors. ``code``: X/Open's return code; None if the resource manager was not called."""

    def __init__(self, text: str = "", code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class InterfaceError(Error):
    """No method raises this exception; PEP 249 requires the name."""


class DatabaseError(Error):
    """The base class of all errors that the methods raise."""


class DataError(DatabaseError):
    """No method raises this exception; PEP 249 requires the name."""


class OperationalError(DatabaseError):
    """The space cannot do the call now: the connection is closed, or a disk failed. A prepared branch remains."""


class TransactionRollback(OperationalError):
    """The space has rolled the branch back, e.g. after its timeout. The work can be repeated with another xid.

    psycopg has a subclass of OperationalError with the same name (SQLSTATE 40000).
    """


class IntegrityError(DatabaseError):
    """An administrator decided the branch, and the coordinator gave the opposite decision."""


class InternalError(DatabaseError):
    """No method raises this exception; PEP 249 requires the name."""


class ProgrammingError(DatabaseError):
    """The call does not fit the state of the connection, or no branch has the xid, or the xid was used before."""


class NotSupportedError(DatabaseError):
    """A queue space has no cursors."""


class _Parts(NamedTuple):
    format_id: int
    gtrid: str
    bqual: str


class TwoPhaseXid(_Parts):
    """The identifier of a two-phase transaction: a tuple of ``format_id``, ``gtrid`` and ``bqual``.

    Each character of ``gtrid`` and ``bqual`` is one byte of the branch's ``xa.Xid`` (latin-1). Therefore
    ``tpc_recover`` also returns the xids of other transaction managers, which may contain any bytes. ``str(xid)`` is
    the text that ``spool-admin transaction list`` shows, e.g. ``1.b3JkZXI.MQ``. Comparisons ignore ``prepared``,
    ``owner`` and ``database``; only ``tpc_recover`` sets these attributes.

    prepared: the time of the vote, in UTC.
    owner: the process that prepared the branch, e.g. ``process 4711 (python3)``.
    database: the directory of the space, as an absolute path.
    """

    prepared: datetime | None = None
    owner: str | None = None
    database: str | None = None

    def __str__(self) -> str:
        return str(_branch_xid(self))


class _State(enum.Enum):
    ACTIVE = "active"
    PREPARED = "prepared"
    EMPTY = "empty"  # the branch had no work, so it ended when it voted
    FAILED = "failed"  # the branch was rolled back when it voted


@dataclass
class _Transaction:
    """The two-phase transaction of a connection. ``work``: the transaction that the caller's puts and gets join."""

    xid: Xid
    work: Joinable | None
    state: _State = _State.ACTIVE


class Connection:
    """The two-phase commit methods for one open space.

    Within a two-phase transaction, the thread or task that called ``tpc_begin`` also makes the other calls. After
    ``tpc_prepare`` the caller's puts and gets raise ``spool.ProtocolError`` until ``tpc_commit`` or ``tpc_rollback``.

    At the end of a ``with`` block the connection is closed. If the block ends without an exception, but within a
    two-phase transaction, ProgrammingError is raised, as by psycopg.

    space: the open space.

    Raises, besides the errors that a method names:
        OperationalError: the connection is closed, or the space cannot do the call now.
    """

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, space: spool.Space, *, timeout: float | None = None, owns_space: bool = False) -> None:
        """``timeout``: see ``connect``. ``owns_space``: whether ``close`` also closes the space."""
        self.space = space
        self._engine = space.engine
        self._manager = ResourceManager(space, timeout)
        self._owns_space = owns_space
        self._transaction: _Transaction | None = None
        self._closed = False

    # -- one two-phase transaction ------------------------------------------------------------------------------------

    def xid(self, format_id: int, gtrid: str, bqual: str) -> TwoPhaseXid:
        """Return the xid of these parts.

        Args:
            format_id: 0 to 2**31-1.
            gtrid: the global transaction, 1 to 64 characters of printable ASCII. PEP 249 also allows an empty text;
                X/Open does not.
            bqual: the branch, 0 to 64 characters of printable ASCII.

        Raises:
            TypeError: a part has another type.
            ValueError: a part exceeds these limits.
        """
        if not isinstance(format_id, int):
            raise TypeError(f"format_id is an int, not {format_id!r}")
        if not 0 <= format_id < 2**31:
            raise ValueError(f"format_id is 0 to 2147483647, not {format_id}")
        _check_part("gtrid", gtrid, least=1)
        _check_part("bqual", bqual, least=0)
        return TwoPhaseXid(format_id, gtrid, bqual)

    def tpc_begin(self, xid: TwoPhaseXid | str) -> None:
        """Begin a two-phase transaction: the caller's puts and gets join it from now on.

        ``xid``: an xid that no branch of the space had before, or the text of the xid (``str(xid)``). psycopg also
        takes other texts. This method refuses such a text, because no X/Open xid can represent it.

        Raises ProgrammingError if the xid is invalid or was used, or if the caller is in a transaction.
        """
        with self._calling():
            self._check_outside("tpc_begin()")
            branch = _branch_xid(xid)
            self._manager.start(branch)
            self._transaction = _Transaction(branch, self._engine.joined())

    def tpc_prepare(self) -> None:
        """Vote: when this returns, the transaction can be committed even after a power cut.

        A transaction without puts and gets ends when it votes, so ``tpc_recover`` does not list it; ``tpc_commit`` and
        ``tpc_rollback`` without an xid succeed afterwards. After a failed vote, call ``tpc_rollback``.

        Raises:
            ProgrammingError: the connection is in no two-phase transaction, or this method was called before.
            TransactionRollback: the transaction was rolled back.
            OperationalError: a flush failed. Once the space is open again, ``tpc_recover`` may list the transaction.
        """
        with self._calling():
            current = self._current("tpc_prepare()")
            if current.state is not _State.ACTIVE:
                raise ProgrammingError("tpc_prepare() was called before: call tpc_commit() or tpc_rollback()")
            self._end_work(current)
            current.state = _State.FAILED
            try:
                has_work = self._manager.prepare(current.xid) == codes.XA_OK
                current.state = _State.PREPARED if has_work else _State.EMPTY
            finally:
                self._engine.join(current.work)  # the ended transaction refuses puts and gets

    def tpc_commit(self, xid: TwoPhaseXid | str | None = None) -> None:
        """Commit the connection's transaction (``xid`` is None), or another prepared branch.

        A transaction that is not prepared is committed in one phase. On return the transaction has ended. An error also
        ends the transaction, unless the transaction is prepared and the error is an OperationalError: then call again.
        If an administrator has committed the branch, this method makes the space forget the administrator's decision.

        ``xid``: an xid that ``tpc_recover`` or the method ``xid`` returned, or the text of the xid.

        Raises:
            ProgrammingError: without ``xid``, the connection is in no two-phase transaction. With ``xid``, the
                connection is in a two-phase transaction, or no prepared branch has the xid.
            TransactionRollback: the transaction was rolled back instead.
            IntegrityError: an administrator has rolled the branch back.
        """
        with self._calling():
            if xid is not None:
                self._check_outside("tpc_commit(xid)")
                self._decide(self._prepared(xid), commit=True)
                return
            current = self._current("tpc_commit()")
            if current.state is _State.FAILED:
                raise ProgrammingError("tpc_prepare() failed: call tpc_rollback()")
            if current.state is _State.PREPARED:
                self._decide(current.xid, commit=True)
            elif current.state is _State.ACTIVE:
                self._end_work(current)
                self._leave()
                self._manager.commit(current.xid, codes.TMONEPHASE)
            else:
                self._leave()

    def tpc_rollback(self, xid: TwoPhaseXid | str | None = None) -> None:
        """Roll back the connection's transaction (``xid`` is None), or another prepared branch.

        The transaction may be prepared or not, and any thread may call this method. For the arguments, the errors and
        the end of the transaction, see ``tpc_commit``.
        """
        with self._calling():
            if xid is not None:
                self._check_outside("tpc_rollback(xid)")
                self._decide(self._prepared(xid), commit=False)
                return
            current = self._current("tpc_rollback()")
            if current.state is _State.PREPARED:
                self._decide(current.xid, commit=False)
            else:
                self._undo(current)

    def tpc_recover(self) -> list[TwoPhaseXid]:
        """Return the branches in doubt: prepared, durable and undecided. Each xid can be passed to ``tpc_commit``."""
        with self._calling():
            found = []
            for xid in self._manager.recover():
                with suppress(UnknownBranch):  # the branch was decided meanwhile
                    found.append(self._described(xid))
            return found

    def _described(self, xid: Xid) -> TwoPhaseXid:
        branch = self._engine.describe(xid)
        found = TwoPhaseXid(xid.format_id, xid.gtrid.decode("latin-1"), xid.bqual.decode("latin-1"))
        found.prepared = datetime.fromtimestamp(branch.prepared_at, UTC)
        found.owner = f"process {branch.writer.get('pid')} ({branch.writer.get('program')})"
        found.database = self.space.path
        return found

    # -- the rest of PEP 249 ------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the connection or its space is closed."""
        return self._closed or self._engine.closed

    def commit(self) -> None:
        """Do nothing: each put and get has committed. Raises ProgrammingError within a two-phase transaction."""
        with self._calling():
            self._check_outside("commit()")

    def rollback(self) -> None:
        """Do nothing: each put and get has committed. Raises ProgrammingError within a two-phase transaction."""
        with self._calling():
            self._check_outside("rollback()")

    def cursor(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise NotSupportedError."""
        raise NotSupportedError("a queue space has no cursors: call put and get of the connection's attribute `space`")

    def close(self) -> None:
        """Close the connection, and its space if ``connect`` opened the space. A second call does nothing.

        A transaction that is not prepared is rolled back. A prepared transaction remains in doubt.
        """
        with deferred():
            current = None if self.closed else self._transaction
            self._closed = True
            if current is not None:
                with suppress(XAError):  # e.g. another thread has closed the space
                    self._undo(current)
            self._leave()
        if self._owns_space:
            self.space.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None and not self.closed:
                self.commit()
        finally:
            self.close()

    # -- the state ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Defer Ctrl-C, so that the state of the connection fits the branch, and raise the exceptions of PEP 249."""
        if self.closed:
            raise OperationalError("the connection is closed")
        try:
            with deferred():
                yield
        except XAError as error:
            raise _translated(error) from error
        except SpoolError as error:
            raise OperationalError(str(error)) from error

    def _check_outside(self, call: str) -> None:
        if self._transaction is not None:
            raise ProgrammingError(f"{call} within a two-phase transaction: call tpc_commit() or tpc_rollback() first")

    def _prepared(self, xid: TwoPhaseXid | str) -> Xid:
        """Return the resource manager's xid; raises if a live process has the branch and has not prepared the branch.

        Otherwise the resource manager would wait 30 s for the vote of that process.
        """
        branch = _branch_xid(xid)
        owner = self._engine.owner_of(branch)
        if owner is not None and not self._engine.is_prepared(branch):
            raise ProgrammingError(f"the branch {branch} belongs to {owner} until it is prepared", codes.XAER_PROTO)
        return branch

    def _current(self, call: str) -> _Transaction:
        if self._transaction is None:
            raise ProgrammingError(f"{call} outside of a two-phase transaction: call tpc_begin(xid) first")
        return self._transaction

    def _end_work(self, current: _Transaction) -> None:
        """End the caller's work. Raises if the caller's puts and gets are not part of the transaction."""
        if self._engine.joined() is not current.work:
            raise ProgrammingError(
                "the caller's puts and gets are not part of the two-phase transaction: call this method in the thread "
                "or task that called tpc_begin(), outside of other transactions of the space"
            )
        self._manager.end(current.xid)

    def _undo(self, current: _Transaction) -> None:
        """Leave the transaction, and roll it back unless it has voted."""
        if current.state is _State.ACTIVE:
            self._manager.end(current.xid, codes.TMFAIL)
            self._leave()
            self._manager.rollback(current.xid)
        self._leave()

    def _decide(self, xid: Xid, *, commit: bool) -> None:
        """Decide a prepared branch. The connection leaves its transaction unless the decision can be repeated."""
        try:
            (self._manager.commit if commit else self._manager.rollback)(xid)
        except XAError as error:
            if error.code in _UNDECIDED:
                raise
            self._leave()
            if error.code not in (codes.XA_HEURCOM, codes.XA_HEURRB):
                raise
            if commit is not (error.code == codes.XA_HEURCOM):
                decision = "rolled back" if commit else "committed"
                raise IntegrityError(
                    f"an administrator {decision} the branch {xid}: settle the difference by hand, then run "
                    f"`spool-admin transaction forget {xid}`",
                    error.code,
                ) from error
            with suppress(XAError):  # (both decisions agree, even if this one remains recorded)
                self._manager.forget(xid)
        else:
            self._leave()

    def _leave(self) -> None:
        """Leave the two-phase transaction, if any: the caller's puts and gets commit at once again."""
        current, self._transaction = self._transaction, None
        if current is not None and self._engine.joined() is current.work:
            self._engine.join(None)


def connect(path: str | os.PathLike[str], *, timeout: float | None = None) -> Connection:
    """Open an existing space, and return a connection to it.

    Args:
        path: the directory of the space.
        timeout: the seconds after which a transaction that is not prepared is rolled back; None: never.

    Raises:
        OperationalError: the space cannot be opened. ``__cause__`` is the error of ``spool.open``.
    """
    try:
        space = spool.open(path)
    except SpoolError as error:
        raise OperationalError(str(error)) from error
    return Connection(space, timeout=timeout, owns_space=True)


def _check_part(name: str, text: str, *, least: int) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} is a str, not {text!r}")
    if not (least <= len(text) <= _MOST_CHARACTERS and text.isascii() and text.isprintable()):
        raise ValueError(f"{name} is {least} to {_MOST_CHARACTERS} characters of printable ASCII, not {text!r}")


def _branch_xid(xid: TwoPhaseXid | str) -> Xid:
    """Return the resource manager's xid. Raises TypeError, or ProgrammingError if the parts or the text are invalid."""
    if not isinstance(xid, TwoPhaseXid | str):
        raise TypeError(f"an xid comes from Connection.xid() or tpc_recover(), or is the text of one, not {xid!r}")
    try:
        if isinstance(xid, str):
            return Xid.parse(xid)
        return Xid.checked(xid.format_id, xid.gtrid.encode("latin-1"), xid.bqual.encode("latin-1"))
    except ValueError as error:
        raise ProgrammingError(str(error), codes.XAER_INVAL) from error


def _translated(error: XAError) -> DatabaseError:
    """Return the exception of PEP 249 for an error of the resource manager."""
    if error.code in _MISUSE:
        kind: type[DatabaseError] = ProgrammingError
    elif codes.XA_RBBASE <= error.code <= codes.XA_RBEND:
        kind = TransactionRollback
    else:
        kind = OperationalError
    return kind(str(error), error.code)

"""The branch of a global transaction in a queue space."""

from collections.abc import Iterator
from typing import NamedTuple

from spool import Space
from spool.engine import CoordinatedTransaction, Engine, UnknownBranch, is_same_original
from spool.errors import ProtocolError
from spool.model.xid import Xid
from xa.branch import Branch
from xa.manager.branches import HeuristicMismatch
from xa.manager.ids import space_of

_KIND = "space"


def resource_of(space: Space) -> str:
    """Return the name under which a log registers a space: its id, the original of its file ``space.id``, its path."""
    return f"{_KIND} {space.id} {space.engine.original} {space.path}"


class KnownSpace(NamedTuple):
    """A space as a log has registered it.

    original: the identity of its file ``space.id``, which a move keeps, and which no copy has. path: its last known
    directory.
    """

    id: str
    original: str
    path: str

    @classmethod
    def of(cls, resource: str) -> "KnownSpace | None":
        """Return the space that was registered under this name; None for another kind of resource."""
        kind, *parts = resource.split(" ", 3)
        return cls(*parts) if kind == _KIND and len(parts) == len(cls._fields) else None

    def is_same(self, other: "KnownSpace") -> bool:
        """Return whether both are one space, which may be moved or restored at its path, but not copied elsewhere."""
        return self.id == other.id and (self.path == other.path or is_same_original(self.original, other.original))


class SpaceBranch:
    """Puts and gets of one thread or task in a space. The constructor makes the caller's puts and gets join the branch.

    is_urgent: whether other callers wait for the commit of the prepared branch.

    Args:
        timeout: the seconds after which the branch is rolled back unless it is prepared; None: never.

    Raises:
        ProtocolError: the caller is in a transaction of the space already.
        NotOpen: the space is closed.
    """

    def __init__(self, space: Space, xid: Xid, timeout: float | None) -> None:
        self.xid = xid
        self.name = resource_of(space)
        self.space = space
        self.is_urgent = True
        self._engine: Engine = space.engine
        joined = self._engine.joined()
        if joined is not None and joined.is_active:
            raise ProtocolError(f"the caller is in a transaction of {space.path} already: end it first")
        with self._engine.call:
            transaction = self._engine.begin_branch(xid, timeout)
            self._branch = Branch(self._engine, transaction)  # rolls the branch back if the program drops it
        self._engine.join(transaction)

    @property
    def _transaction(self) -> CoordinatedTransaction:
        return self._branch.transaction

    def leave(self) -> None:
        """End the work of the caller: puts and gets no longer join the branch."""
        if self._engine.joined() is self._transaction:
            self._engine.join(None)

    def prepare(self) -> bool:
        """Vote; returns False if the branch was empty and has ended."""
        self.is_urgent = self._transaction.delays_others()
        return self._transaction.prepare()

    def commit_one_phase(self) -> None:
        self._transaction.commit()

    def commit(self) -> None:
        """Commit the prepared branch. A branch that has ended already is no error."""
        DoubtfulInSpace(self._engine, self.xid, vote_known=True).finish(committed=True)

    def rollback(self, reason: str) -> None:
        """Roll back the branch, prepared or not. A branch that has ended is not touched."""
        if self._transaction.is_active:
            self._transaction.rollback(reason)
        elif self._transaction.is_prepared:
            DoubtfulInSpace(self._engine, self.xid).finish(committed=False)


class DoubtfulInSpace:
    """A prepared branch in a space, which its coordinator or a recovery decides."""

    def __init__(self, engine: Engine, xid: Xid, *, vote_known: bool = False) -> None:
        self.xid = xid
        self.is_at_home = space_of(xid) == engine.space_id
        self._engine = engine
        self._vote_known = vote_known

    def finish(self, *, committed: bool) -> None:
        """Commit the branch, or roll it back. A branch that has already ended in this way is no error.

        Raises HeuristicMismatch if an administrator decided otherwise.
        """
        try:
            if committed:
                with self._engine.call:
                    self._engine.commit_branch(self.xid, vote_known=self._vote_known)
            else:
                self._engine.roll_back_branch(self.xid)
        except UnknownBranch as error:
            self._acknowledge("committed" if committed else "rolled back", is_committed=error.committed_by is not None)

    def _acknowledge(self, wanted: str, *, is_committed: bool) -> None:
        """Forget an administrator's decision, which the coordinator now knows."""
        found = self._engine.decision(self.xid)
        if found is not None:
            self._engine.forget(self.xid)
            if found != wanted:
                raise HeuristicMismatch(self.xid, found, wanted)
        elif self._vote_known and wanted == "committed" and not is_committed:
            raise HeuristicMismatch(self.xid, "rolled back", wanted)


def doubtful_in(space: Space) -> Iterator[DoubtfulInSpace]:
    """Yield the branches of a space that wait for a coordinator, and the branches that an administrator decided."""
    engine = space.engine
    for xid in (*engine.in_doubt(), *map(Xid.parse, engine.decisions())):
        yield DoubtfulInSpace(engine, xid)

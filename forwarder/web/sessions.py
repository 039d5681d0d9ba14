"""The writes in progress of a server's clients.

A write of a DataFrame has a coordinator, whose lock the server holds. The branches of the write are undecided while the
session lives. If the server dies, the kernel releases the lock, and the branches are rolled back. If the client dies,
the session's lease ends, and the server ends the session.

A client renews the lease several times during the lease, so the network may fail for a moment. While rows arrive, the
session needs no renewal.
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import spool
from forwarder.web.transfers import check_room
from spool.client.problems import TooMany
from spool.engine.tasks import Vote
from spool.errors import InvalidArgument, SpoolError, TransactionRolledBack
from spool.model.xid import FORMAT_ROUND, Xid

MOST_SESSIONS, MOST_OF_A_TOKEN = 1024, 256

_ENDED = (
    "nothing was written: the write has ended, because its client was away for too long, or the server has started "
    "again; write the DataFrame again"
)


class Session:
    """One write. ``id``: the gtrid of its branches. ``name``: its name for clients.

    ``key``: the name of the stream that writes, or None.
    ``owner``: the token of the client; "" if the server has no tokens.
    """

    def __init__(self, space: spool.Space, key: str | None, owner: str, prefix: str) -> None:
        self._coordinator = space.engine.coordinate()
        self.id = self._coordinator.id
        self.name = prefix + self.id.hex()
        self.key = key
        self.owner = owner
        self.space = space
        self.users = 0  # open calls that use the session
        self.used = 0.0  # the monotonic time at which the last call of the session ended
        self.deciding = threading.Lock()

    def xid(self, partition: int, attempt: int) -> Xid:
        return Xid(FORMAT_ROUND, self.id, f"{partition}.{attempt}".encode())

    def check_votes(self, votes: list[Vote]) -> list[Xid]:
        """Return the xids of the votes. InvalidArgument if a branch belongs to another write or is named twice."""
        xids = [vote.xid for vote in votes]
        if any(xid.format_id != FORMAT_ROUND or xid.gtrid != self.id for xid in xids):
            raise InvalidArgument("a branch is not of this write")
        if len(set(xids)) < len(xids):
            raise InvalidArgument("a branch is named twice")
        return xids

    def end(self) -> None:
        """Release the lock, and roll back the branches that are not committed."""
        self._coordinator.close()
        with contextlib.suppress(SpoolError, OSError):
            self.space.engine.resolve_orphans()


class Sessions:
    """The sessions of a server, by the name of the space and the session's own name. ``prefix``: begins all names."""

    def __init__(self, lease_seconds: float = 30.0, prefix: str = "") -> None:
        self.lease_seconds, self._prefix = lease_seconds, prefix
        self._mutex = threading.Lock()
        self._sessions: dict[tuple[str, str], Session] = {}
        self._answers: OrderedDict[tuple[str, str], Mapping[str, bool]] = OrderedDict()  # to the last commits

    def begin(self, name: str, space: spool.Space, key: str | None, owner: str = "") -> Session:
        """Begin a write. End an earlier session of the same stream and the same token.

        TooMany if too many writes are in progress, either in total or with the token ``owner``.
        """
        if key is not None:
            self.end_stream(name, key, owner)
        session = Session(space, key, owner, self._prefix)
        session.used = time.monotonic()
        try:
            with self._mutex:
                owners = [each.owner for each in self._sessions.values()]
                check_room(owners, owner, MOST_SESSIONS, MOST_OF_A_TOKEN, "writes in progress")
                self._sessions[name, session.name] = session
        except TooMany:
            session.end()
            raise
        return session

    @contextmanager
    def using(self, name: str, id: str, owner: str = "") -> Iterator[Session]:
        """Use a session, which does not expire during the block. TransactionRolledBack if its owner has none."""
        with self._mutex:
            session = self._sessions.get((name, id))
            if session is None or session.owner != owner:
                raise TransactionRolledBack(_ENDED)
            session.users += 1
        try:
            yield session
        finally:
            with self._mutex:
                session.users -= 1
                session.used = time.monotonic()

    def check(self, name: str, id: str, owner: str) -> None:
        """Raise TransactionRolledBack if a session has ended, or is not of this owner."""
        session = self._sessions.get((name, id))
        if session is None or session.owner != owner:
            raise TransactionRolledBack(_ENDED)

    def commit(
        self, name: str, id: str, owner: str, votes: list[Vote], adopt: Callable[[list[Xid]], bool]
    ) -> Mapping[str, bool]:
        """Commit a write and end its session. A repeated call gets the same answer.

        ``adopt`` commits the branches, and returns whether the rows were written.
        """
        try:
            with self.using(name, id, owner) as session, session.deciding:
                if (name, id) not in self._answers:  # (another call may have committed it while this call waited)
                    self._answers[name, id] = {"written": adopt(session.check_votes(votes))}
        except TransactionRolledBack:
            if (name, id) not in self._answers:  # (otherwise another call has committed the write)
                raise
        answer = self._answers[name, id]
        if len(self._answers) > MOST_SESSIONS:
            self._answers.popitem(last=False)
        self.end(name, id)
        return answer

    def end(self, name: str, id: str, owner: str | None = None) -> None:
        """End a session. Do nothing if it has already ended, or is not of this owner."""
        with self._mutex:
            session = self._sessions.get((name, id))
            if session is not None and owner in (None, session.owner):
                del self._sessions[name, id]
            else:
                session = None
        if session is not None:
            session.end()

    def end_stream(self, name: str, key: str, owner: str) -> None:
        """End the sessions of a stream. A stream of another token may have the same name; its sessions go on."""
        self._end_all(lambda space, session: (space, session.key, session.owner) == (name, key, owner))

    def end_expired(self) -> list[str]:
        """End the sessions whose leases have expired; return the ids of these sessions."""
        now = time.monotonic()
        return self._end_all(lambda _, session: not session.users and now - session.used > self.lease_seconds)

    def end_all(self) -> None:
        self._end_all(lambda *_: True)

    def _end_all(self, is_meant: Callable[[str, Session], bool]) -> list[str]:
        """End the sessions for which ``is_meant`` returns True; return the ids of these sessions."""
        with self._mutex:
            found = [(name, id) for (name, id), session in self._sessions.items() if is_meant(name, session)]
        for name, id in found:
            self.end(name, id)
        return [id for _, id in found]

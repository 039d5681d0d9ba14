"""Recovery: decide the branches that dead coordinators left in doubt, and remove rows and logs that are not needed.

The order of the steps keeps a recovery correct while programs work and other recoveries run:

1. Find the dead coordinators: their locks are free. A dead coordinator decides nothing more.
2. List the branches in doubt of each given resource.
3. For each branch of a dead coordinator, find the decision: a slot in its log, or a row in a given table. Without a
   decision, abort is presumed in two cases only. Either the log exists, and each table that it names was given. Or the
   log does not exist, because all branches of its coordinator have ended; the branch was then rolled back, and a power
   cut has brought it back.
4. Commit or roll back the branch. Another recovery may have done so before.
5. If all resources of a dead coordinator were given, no branch of the coordinator is left: remove its rows and its log.

A log names a space by the space's id, by the identity of its file ``space.id``, and by its last path. So neither
another space at this path nor a copy of the space counts as the space.

A missing log proves nothing if logs may be lost (a former id of the directory: see ``spool.decisions.place``), or if
the branch voted in another space, from which this space was imported. Such a branch remains in doubt.

A coordinator that is alive decides its branches itself, even if its process is stopped for a long time. The recovering
coordinator also decides its own branches, if it could not learn their outcome before.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from spool import Space
from spool.decisions import PLACE, LogContents, LogDirectory, log_name, translated
from spool.errors import CorruptedFile, SpaceMismatch
from spool.model.text import plural
from spool.model.xid import Xid
from xa.dbapi import Connection
from xa.manager import decision_table, space_branch, two_phase_branch
from xa.manager.branches import HeuristicMismatch
from xa.manager.database_connections import Database, database_of, find_database
from xa.manager.decision_table import remove_all, remove_rows, rows_of, settle
from xa.manager.ids import TransactionId
from xa.manager.last_resource import resource_of as table_resource
from xa.manager.last_resource import table_of
from xa.manager.space_branch import KnownSpace

log = logging.getLogger("spool")


class Recovery(NamedTuple):
    """The branches that a recovery committed, rolled back, and left in doubt."""

    committed: Sequence[Xid] = ()
    rolled_back: Sequence[Xid] = ()
    left: Sequence[Xid] = ()

    def joined(self, other: "Recovery") -> "Recovery":
        """Return a recovery with the branches of both recoveries."""
        return Recovery(*([*mine, *others] for mine, others in zip(self, other, strict=True)))


class Doubtful(Protocol):
    """A branch in doubt in one of the given resources.

    is_at_home: whether the branch voted in this resource, and not in a space whose export was imported here.
    """

    xid: Xid
    is_at_home: bool

    def finish(self, *, committed: bool) -> None:
        """Commit the branch, or roll it back. A branch that has ended is no error."""


class Participants:
    """The resources that a recovery was given.

    spaces: the given spaces, as logs register them.
    tables: the databases with a table of decisions, by the id of the table.

    Raises InvalidArgument or ProtocolError for a resource that cannot take part, and the errors of spaces and drivers.
    """

    def __init__(self, resources: Iterable[Any]) -> None:
        self.spaces: list[KnownSpace] = []
        self._names: set[str] = set()  # the names of the other resources
        self.tables: dict[str, Database] = {}
        self._open_spaces: list[Space] = []
        self._two_phase: list[Any] = []
        for given in resources:
            resource = given.space if isinstance(given, Connection) else given
            if isinstance(resource, Space):
                self._open_spaces.append(resource)
                self.spaces.append(KnownSpace(resource.id, resource.engine.original, resource.path))
            else:
                self._add_connection(resource)

    def _add_connection(self, connection: Any) -> None:
        can_prepare = two_phase_branch.has_two_phases(connection)
        database = find_database(connection) if can_prepare else database_of(connection)
        if database is not None:
            database.check_idle()
            table = decision_table.identity_of(database)
            if table is not None:
                self.tables[table] = database
                self._names.add(table_resource(table))
        if can_prepare:
            self._two_phase.append(connection)
            self._names.add(two_phase_branch.resource_of(connection))

    def has(self, resource: str) -> bool:
        """Return whether the resource that a log has registered under this name was given."""
        known = KnownSpace.of(resource)
        return resource in self._names if known is None else any(map(known.is_same, self.spaces))

    def doubtful(self, directory: LogDirectory) -> list[tuple[TransactionId, Doubtful]]:
        """List the branches in doubt whose xids name this log directory, or a directory from which it was copied."""
        branches: list[Doubtful] = []
        for space in self._open_spaces:
            branches += space_branch.doubtful_in(space)
        for connection in self._two_phase:
            branches += two_phase_branch.doubtful_in(connection)
        named = [(TransactionId.of(branch.xid), branch) for branch in branches]
        return [(id, branch) for id, branch in named if id is not None and directory.knows(id.directory)]


class Verdicts:
    """The decisions of dead coordinators, from their logs and from the given tables."""

    def __init__(self, directory: LogDirectory, participants: Participants) -> None:
        self._directory = directory
        self._tables = participants.tables
        self._logs: dict[bytes, LogContents | None] = {}
        self._known: dict[tuple[TransactionId, bool], bool | None] = {}

    def log_of(self, coordinator: bytes) -> LogContents | None:
        """Return the log of a dead coordinator; None if it has none. Raises CorruptedFile."""
        if coordinator not in self._logs:
            with translated("reading a decision log", self._directory.disk.root):
                self._logs[coordinator] = self._directory.read_dead(coordinator)
        return self._logs[coordinator]

    def of(self, id: TransactionId, branch: Doubtful) -> bool | None:
        """Return whether the transaction of a branch was committed; None if the decision cannot be found now."""
        key = id, branch.is_at_home
        if key not in self._known:
            self._known[key] = self._find(id, is_at_home=branch.is_at_home)
        return self._known[key]

    def _find(self, id: TransactionId, *, is_at_home: bool) -> bool | None:
        try:
            found = self.log_of(id.coordinator)
        except CorruptedFile as error:
            log.error("%s", error)
            return self._row_of(id)
        if found is None:
            return self._without_log(id, is_at_home=is_at_home)
        if id.serial in found.committed or self._row_of(id):
            return True
        tables = [table for table in map(table_of, found.resources) if table is not None]
        given = [table for table in tables if table in self._tables]
        if any(settle(self._tables[table], table, id.decider, id.serial) for table in given):
            return True
        if len(given) < len(tables):
            log.warning(
                "the transaction %s remains in doubt, because its decision may be in a database that was not given, or "
                "whose table %s was removed: give the connection to recover, or decide with spool-admin transaction",
                id, decision_table.TABLE,
            )  # fmt: skip
            return None
        return False

    def _row_of(self, id: TransactionId) -> bool | None:
        """Return the decision that a given table has; None if no table has a row."""
        for database in self._tables.values():
            row = decision_table.find(database, id.decider, id.serial)
            if row is not None:
                return row
        return None

    def _without_log(self, id: TransactionId, *, is_at_home: bool) -> bool | None:
        """Return the decision of a transaction whose log does not exist."""
        row = self._row_of(id)
        if row is not None:
            return row
        if id.directory == self._directory.id and is_at_home:
            return False
        log.warning(
            "the transaction %s remains in doubt: %s has no log of it, and no given table has its row; give the "
            "database with its decision to recover, or decide with spool-admin transaction",
            id, self._directory.disk.root,
        )  # fmt: skip
        return None


def recover_dead(directory: LogDirectory, participants: Participants, own: bytes) -> Recovery:
    """Decide each branch of a dead coordinator in these resources. ``own``: the coordinator that recovers."""
    dead = _dead(directory, own)
    verdicts = Verdicts(directory, participants)
    committed, rolled_back, left, foreign = list[Xid](), list[Xid](), list[Xid](), list[Xid]()
    for id, branch in participants.doubtful(directory):
        if id.coordinator == own:
            continue
        verdict = None
        if not directory.decides(id.directory):
            foreign.append(branch.xid)
        elif id.coordinator in dead or not directory.is_alive(id.coordinator):
            verdict = verdicts.of(id, branch)
        if verdict is None:
            left.append(branch.xid)
            continue
        finish(branch, committed if verdict else rolled_back, committed=verdict)
    if foreign:
        log.error(
            "%s in doubt: %s was copied, or restored from a backup, since they began, and the original decides "
            "them. If no original exists any more, remove the file %s and call recover again",
            plural(len(foreign), "branch remains", "branches remain"), directory.disk.root, directory.disk.path(PLACE),
        )  # fmt: skip
    unfinished = {found for xid in left if (found := TransactionId.of(xid)) is not None}
    for coordinator in dead - {each.coordinator for each in unfinished}:
        _remove_if_ended(directory, participants, verdicts, coordinator)
    _remove_rows_of_lost_logs(directory, participants, unfinished)
    return Recovery(committed, rolled_back, left)


def finish(branch: Doubtful, finished: list[Xid], *, committed: bool) -> None:
    """Finish a branch, and note its xid."""
    try:
        branch.finish(committed=committed)
    except HeuristicMismatch as error:
        log.error("%s", error)
    finished.append(branch.xid)


def _dead(directory: LogDirectory, own: bytes) -> set[bytes]:
    with translated("looking for dead transaction managers", directory.disk.root):
        return {each for each in directory.coordinators() if each != own and not directory.is_alive(each)}


def _remove_if_ended(
    directory: LogDirectory, participants: Participants, verdicts: Verdicts, coordinator: bytes
) -> None:
    """Remove the rows and the log of a dead coordinator, if all resources that it used were given."""
    try:
        found = verdicts.log_of(coordinator)
    except CorruptedFile:
        return
    if (
        found is not None
        and directory.decides(found.directory)
        and all(map(participants.has, found.resources))
        and not any(map(two_phase_branch.is_ambiguous, found.resources))
    ):
        for resource in found.resources:
            if (table := table_of(resource)) is not None:
                remove_all(participants.tables[table], TransactionId(found.directory, coordinator, 0).decider)
        with translated("removing a decision log", directory.disk.root):
            directory.remove(coordinator)


def _remove_rows_of_lost_logs(
    directory: LogDirectory, participants: Participants, unfinished: Collection[TransactionId]
) -> None:
    """Remove rows with a former id of the directory and without a log, if each space that they name was given.

    A row with the current id and without a log is not removed: a clone of the machine may have the same id, and the
    clone's recovery needs the row.
    """
    if not directory.identity.former:
        return
    given = {space.id for space in participants.spaces}
    kept = {id.decider for id in unfinished}
    kept |= {(former + each).hex() for each in directory.coordinators() for former in directory.identity.former}
    names = tuple(former.hex() for former in directory.identity.former)
    for database in participants.tables.values():
        rows = [row for row in rows_of(database) if row.coordinator.startswith(names) and row.spaces <= given]
        remove_rows(database, [row for row in rows if row.coordinator not in kept])


def check_places(directory: LogDirectory, participants: Participants, own: bytes) -> None:
    """Raise SpaceMismatch if a given space lies at the path of another space, which a dead coordinator used.

    This is called once everything else is recovered. The log and the rows of the dead coordinator remain.
    """
    for coordinator in sorted(_dead(directory, own)):
        try:
            with translated("reading a decision log", directory.disk.root):
                found = directory.read_dead(coordinator)
        except CorruptedFile:
            continue
        if found is None or not directory.decides(found.directory):
            continue
        for known in filter(None, map(KnownSpace.of, found.resources)):
            if any(known.path == given.path and known.id != given.id for given in participants.spaces):
                raise SpaceMismatch(
                    f"{known.path} is not the space that a program used before it died: that space has the id "
                    f"{known.id}. Mount the disk with it, or give the space to recover where it is now. If the space "
                    f"was removed on purpose, remove the log {directory.disk.path(log_name(coordinator))}, too"
                )

"""Recovery: decide the branches that dead coordinators left in doubt, and remove the traces of finished ones.

The order of the steps keeps recoveries correct beside living programs and beside each other:

1. Find the dead coordinators: their locks are free. A dead coordinator decides nothing more.
2. List the branches in doubt of each given resource.
3. For each branch of a dead coordinator, find the decision: a slot in its log, or a row in a table that its log names.
   Without a slot, a row or a table, the transaction was not decided, and is rolled back (presumed abort).
4. Commit or roll back the branch. Another recovery may have done the same before.
5. If all resources of a dead coordinator were given, no branch of it is left: remove its rows and its log.

A coordinator that is alive decides its branches itself, even if its process is stopped for long. The coordinator that
recovers decides its own branches whose outcome it could not learn before.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from spool import Space
from spool.decisions import LogContents, LogDirectory, translated
from spool.errors import CorruptedFile
from spool.model.xid import Xid
from xa.dbapi import Connection
from xa.manager import decision_table, space_branch, two_phase_branch
from xa.manager.branches import HeuristicMismatch
from xa.manager.connections import Database, database_of, find_database
from xa.manager.decision_table import coordinators_of, remove_all, settle
from xa.manager.ids import TransactionId
from xa.manager.last_resource import resource_of as table_resource
from xa.manager.last_resource import table_of

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
    """A branch in doubt in one of the given resources."""

    xid: Xid

    def finish(self, *, committed: bool) -> None:
        """Commit the branch, or roll it back. A branch that has ended is no error."""


class Participants:
    """The resources that a recovery was given.

    names: the names under which logs register the resources.
    tables: the databases with a table of decisions, by the id of the table.

    Raises InvalidArgument or ProtocolError for a resource that cannot take part, and the errors of spaces and drivers.
    """

    def __init__(self, resources: Iterable[Any]) -> None:
        self.names: set[str] = set()
        self.tables: dict[str, Database] = {}
        self._spaces: list[Space] = []
        self._two_phase: list[Any] = []
        for given in resources:
            resource = given.space if isinstance(given, Connection) else given
            if isinstance(resource, Space):
                self._spaces.append(resource)
                self.names.add(space_branch.resource_of(resource))
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
                self.names.add(table_resource(table))
        if can_prepare:
            self._two_phase.append(connection)
            self.names.add(two_phase_branch.resource_of(connection))

    def doubtful(self, directory: bytes) -> list[tuple[TransactionId, Doubtful]]:
        """List the branches in doubt whose transactions belong to a directory of logs."""
        branches: list[Doubtful] = []
        for space in self._spaces:
            branches += space_branch.doubtful_in(space)
        for connection in self._two_phase:
            branches += two_phase_branch.doubtful_in(connection)
        named = [(TransactionId.of(branch.xid), branch) for branch in branches]
        return [(id, branch) for id, branch in named if id is not None and id.directory == directory]


class Verdicts:
    """The decisions of dead coordinators, from their logs and from the tables that the logs name."""

    def __init__(self, directory: LogDirectory, participants: Participants) -> None:
        self._directory = directory
        self._participants = participants
        self._logs: dict[bytes, LogContents | None] = {}
        self._known: dict[TransactionId, bool | None] = {}

    def log_of(self, coordinator: bytes) -> LogContents | None:
        """Return the log of a dead coordinator; None if it has none, because all its branches have ended."""
        if coordinator not in self._logs:
            with translated("reading a decision log", self._directory.disk.root):
                self._logs[coordinator] = self._directory.read_dead(coordinator)
        return self._logs[coordinator]

    def of(self, id: TransactionId) -> bool | None:
        """Return whether a transaction was committed; None if the decision cannot be found now."""
        if id not in self._known:
            self._known[id] = self._find(id)
        return self._known[id]

    def _find(self, id: TransactionId) -> bool | None:
        try:
            found = self.log_of(id.coordinator)
        except CorruptedFile as error:
            log.error("%s", error)
            return None
        if found is None:
            return False
        if id.serial in found.committed:
            return True
        tables = [table for table in map(table_of, found.resources) if table is not None]
        given = [table for table in tables if table in self._participants.tables]
        if any(settle(self._participants.tables[table], table, id.decider, id.serial) for table in given):
            return True
        if len(given) < len(tables):
            log.warning(
                "the transaction %s remains in doubt, because its decision may be in a database that was not given, or "
                "whose table %s was removed: give the connection to recover, or decide with spool-admin transaction",
                id, decision_table.TABLE,
            )  # fmt: skip
            return None
        return False


def recover_dead(directory: LogDirectory, participants: Participants, own: bytes) -> Recovery:
    """Decide the branches of dead coordinators in the given resources. ``own``: the coordinator that recovers."""
    with translated("looking for dead transaction managers", directory.disk.root):
        dead = {each for each in directory.coordinators() if each != own and not directory.is_alive(each)}
    verdicts = Verdicts(directory, participants)
    committed, rolled_back, left = list[Xid](), list[Xid](), list[Xid]()
    for id, branch in participants.doubtful(directory.id):
        if id.coordinator == own:
            continue
        verdict = None
        if id.coordinator in dead or not directory.is_alive(id.coordinator):
            verdict = verdicts.of(id)
        if verdict is None:
            left.append(branch.xid)
            continue
        try:
            branch.finish(committed=verdict)
        except HeuristicMismatch as error:
            log.error("%s", error)
        (committed if verdict else rolled_back).append(branch.xid)
    unfinished = {found.coordinator for xid in left if (found := TransactionId.of(xid)) is not None}
    for coordinator in dead - unfinished:
        _remove_if_ended(directory, participants, verdicts, coordinator)
    _remove_rows_without_log(directory, participants)
    return Recovery(committed, rolled_back, left)


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
        and participants.names.issuperset(found.resources)
        and not any(map(two_phase_branch.is_ambiguous, found.resources))
    ):
        for resource in found.resources:
            if (table := table_of(resource)) is not None:
                remove_all(participants.tables[table], [(directory.id + coordinator).hex()])
        with translated("removing a decision log", directory.disk.root):
            directory.remove(coordinator)


def _remove_rows_without_log(directory: LogDirectory, participants: Participants) -> None:
    """Remove the rows of coordinators that have no log any more, because all their branches have ended."""
    for database in participants.tables.values():
        rows = coordinators_of(database, directory.id.hex())
        living = {(directory.id + each).hex() for each in directory.coordinators()}  # (listed after the rows)
        if rows - living:
            remove_all(database, sorted(rows - living))

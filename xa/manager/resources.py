"""The resources that one manager uses. The manager's log names each resource before work in the resource begins.

After the death of the manager, a recovery learns two things from these names: the spaces and databases that may have a
branch in doubt, and the tables that may have a decision.
"""

import weakref
from contextlib import suppress
from typing import Any

from spool import Space
from spool.decisions import DecisionLog, translated
from xa.manager import decision_table, last_resource, space_branch, two_phase_branch
from xa.manager.database_connections import Database


class Resources:
    """The registered resources. Methods raise the errors of the log, of spaces and of drivers."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        # sqlite3's connections take no weak references, so their tables are looked up each time.
        self._tables: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def _register(self, name: str) -> None:
        with translated("naming a resource in the decision log", self._log.directory.disk.root):
            self._log.register(name)

    def register_space(self, space: Space) -> None:
        self._register(space_branch.resource_of(space))

    def register_two_phase(self, connection: Any) -> str:
        """Register the database of a connection; return its name."""
        name = _known(self._names, connection)
        if name is None:
            name = two_phase_branch.resource_of(connection)
            self._register(name)
            _remember(self._names, connection, name)
        return name

    def register_table(self, database: Database) -> str | None:
        """Register the table of decisions in a database; return its id, or None if the database has no table."""
        table = _known(self._tables, database.key)
        if table is None:
            table = decision_table.identity_of(database)
            if table is not None:
                self._register(last_resource.resource_of(table))
                _remember(self._tables, database.key, table)
        return table

    def forget_table(self, database: Database) -> None:
        """Look up the table of a database again at its next use."""
        with suppress(TypeError):
            self._tables.pop(database.key, None)


def _known(names: "weakref.WeakKeyDictionary[Any, str]", key: Any) -> str | None:
    with suppress(TypeError):
        return names.get(key)
    return None


def _remember(names: "weakref.WeakKeyDictionary[Any, str]", key: Any, name: str) -> None:
    with suppress(TypeError):
        names[key] = name

"""The table of decisions in a database: a row is a decision to commit, in the same transaction as the program's work.

The table has one row for each decision, and one row, with serial number 0, whose coordinator is the id of the table. A
decision is inserted only together with a check of this id. So decisions never go into a table that another program, or
a restored backup, has put in the place of the table.

The column ``coordinator`` has the hex ids of the log directory and of the coordinator. The column ``spaces`` has the
ids of the spaces whose branches the decision commits. No column holds a time, so the clock of the database does not
matter.
"""

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spool.errors import SystemFailure
from xa.manager.database_connections import Database

TABLE = "xaspool_decisions"
_MAX_SPACES_CHARACTERS = 1023  # 31 ids
_CREATE = (
    f"create table if not exists {TABLE} (coordinator varchar(64) not null, serial bigint not null, "
    f"committed smallint not null, spaces varchar({_MAX_SPACES_CHARACTERS}) not null, "
    "primary key (coordinator, serial))"
)
_IDENTITY = f"select coordinator from {TABLE} where serial = 0 and committed = -1"
_INSERT = (
    f"insert into {TABLE} (coordinator, serial, committed, spaces) "
    f"select ?, ?, ?, ? from {TABLE} where coordinator = ? and serial = 0 and "
)
_INSERTIONS = 3  # the most attempts to insert a decision to roll back
_FIND = f"select committed from {TABLE} where coordinator = ? and serial = ?"


class DecisionTableMissing(SystemFailure):
    """The table of decisions does not exist, or another table has its name."""

    def __init__(self) -> None:
        super().__init__(
            f"the database has no table {TABLE}, or another table than before, and the transaction was rolled back: "
            "call prepare_database(connection) of the transaction manager once, then repeat the transaction"
        )


def create(database: Database) -> str:
    """Create the table unless it exists; return its id."""
    try:
        with database.own():
            database.run(_CREATE)
            found = database.run(_IDENTITY).rows
            identity = _text(found[0][0]) if found else os.urandom(12).hex()
            if not found:
                database.run(
                    f"insert into {TABLE} (coordinator, serial, committed, spaces) values (?, 0, -1, '')", identity
                )
    except Exception:
        if (created := identity_of(database)) is not None:
            return created  # by another program, meanwhile
        raise
    return identity


def identity_of(database: Database) -> str | None:
    """Return the id of the table; None if the database has no such table."""
    try:
        return first(database, _IDENTITY)
    except Exception:
        first(database, "select 1")  # raises if the connection is the cause
        return None


def first(database: Database, statement: str) -> str | None:
    """Return the first value of a query as a text, from a transaction that is rolled back; None without a row."""
    with database.own(only_reads=True):
        rows = database.run(statement).rows
    return _text(rows[0][0]) if rows else None


def _text(value: object) -> str:
    """Return a text of the table. Some settings of connections make drivers return bytes."""
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def insert(
    database: Database, table: str, coordinator: str, serial: int, *, committed: bool, spaces: Iterable[str] = ()
) -> None:
    """Insert a decision in the open transaction, whose commit becomes durable.

    Raises DecisionTableMissing, or the driver's error for a second row.

    If an open database transaction has inserted a row for the same global transaction, the database makes this call
    wait for the end of that database transaction. ``table``: the id of the table. ``spaces``: the ids of the spaces
    with a prepared branch.
    """
    named = ",".join(sorted(set(spaces)))
    named = named if len(named) <= _MAX_SPACES_CHARACTERS else ""  # then the row is removed only with its log
    if database.run(_INSERT + database.durable, coordinator, serial, int(committed), named, table).changed != 1:
        raise DecisionTableMissing


def remove(database: Database, coordinator: str, serials: Sequence[int]) -> None:
    """Remove decisions whose branches have ended, in the open transaction."""
    marks = ", ".join("?" * len(serials))
    database.run(f"delete from {TABLE} where coordinator = ? and serial in ({marks})", coordinator, *serials)


def settle(database: Database, table: str, coordinator: str, serial: int) -> bool:
    """Return whether a transaction was committed. A transaction that was not committed cannot be committed any more.

    If the table has no row for the transaction, this function inserts the decision to roll back. A program that has
    died may have inserted its row before, in a transaction that the server has not ended yet. In this case the database
    makes the insertion wait: after a commit the insertion fails, and the program's row counts; after a rollback the
    insertion succeeds. Another recovery may insert the same row, and remove it once the branches have ended, so a
    failed insertion without a row is repeated.
    """
    left = _INSERTIONS
    while (found := find(database, coordinator, serial)) is None:
        left -= 1
        try:
            with database.own():
                insert(database, table, coordinator, serial, committed=False)
            return False
        except Exception:
            if not left:
                raise
    return found


def find(database: Database, coordinator: str, serial: int) -> bool | None:
    """Return the decision in a row of the table; None if the table has no row for the transaction."""
    with database.own(only_reads=True):
        rows = database.run(_FIND, coordinator, serial).rows
    return bool(rows[0][0]) if rows else None


def remove_all(database: Database, coordinator: str) -> None:
    """Remove all decisions of a coordinator whose branches have ended."""
    with database.own():
        database.run(f"delete from {TABLE} where coordinator = ? and serial > 0", coordinator)


class Row(NamedTuple):
    """A row of the table: a decision, and the ids of the spaces that it names."""

    coordinator: str
    serial: int
    spaces: frozenset[str]


def rows_of(database: Database) -> list[Row]:
    """Return the decisions to commit that name their spaces."""
    with database.own(only_reads=True):
        found = database.run(f"select coordinator, serial, spaces from {TABLE} where committed = 1").rows
    rows = [Row(_text(name), int(serial), frozenset(_text(spaces).split(","))) for name, serial, spaces in found]
    return [row for row in rows if "" not in row.spaces]


def remove_rows(database: Database, rows: Iterable[Row]) -> None:
    """Remove decisions whose branches have ended."""
    with database.own():
        for row in rows:
            remove(database, row.coordinator, [row.serial])

"""A space as a party to two-phase commits: its steps in a transaction, its records, and a full disk."""

from pathlib import Path
from typing import Any, Protocol

import spool
from tests.at_once import AT_ONCE
from xa import dbapi


class Party(Protocol):
    """A space or a database that takes part in a two-phase commit."""

    errors: Any

    def connect(self) -> Any: ...

    def work(self, connection: Any) -> None:
        """Write one record."""

    def records(self) -> int:
        """Return how many records another program sees."""


class Spool:
    errors: Any = dbapi

    def __init__(self, path: Path) -> None:
        self.path = path
        with spool.create(path, defaults=AT_ONCE) as space:
            space.create_queue("out")
            space.create_queue("in")
            space.put_many("in", [b"1", b"2", b"3"])

    def connect(self) -> dbapi.Connection:
        return dbapi.connect(self.path)

    def work(self, connection: Any) -> None:
        connection.space.put("out", b"record")

    def records(self) -> int:
        with spool.open(self.path) as space:
            return space.stats("out").ready


def begin(party: Party, connection: Any, gtrid: str = "gtrid") -> Any:
    """Write one record in a new two-phase transaction; returns its xid."""
    xid = connection.xid(1, gtrid, "bqual")
    connection.tpc_begin(xid)
    party.work(connection)
    return xid


def attempts(space: spool.Space) -> list[tuple[object, int]]:
    return [(message.body, message.attempts) for message in space.browse("in")]

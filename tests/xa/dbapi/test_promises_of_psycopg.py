"""The two-phase commit methods of PEP 249: ``xa.dbapi`` on spaces.

With --long, psycopg on PostgreSQL keeps the same promises, for comparison.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.branches import Mistake
from tests.forwarder.kills.destinations import postgresql
from tests.xa.dbapi.parties import Party, Spool, begin
from xa import dbapi


class PostgreSQL:
    def __init__(self, where: str) -> None:
        import psycopg

        self.errors = psycopg
        self.connect = partial(psycopg.connect, where)
        with closing(self.connect()) as database:
            for xid in database.tpc_recover():
                database.tpc_rollback(xid)
            database.execute("drop table if exists records")
            database.execute("create table records (text text)")
            database.commit()

    def work(self, connection: Any) -> None:
        connection.execute("insert into records values ('record')")

    def records(self) -> int:
        with closing(self.connect()) as database:
            return int(database.execute("select count(*) from records").fetchone()[0])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as where:
        yield where


@pytest.fixture(params=["spool", pytest.param("PostgreSQL", marks=pytest.mark.slow)])
def party(request: pytest.FixtureRequest, memory: Path) -> Party:
    if request.param == "spool":
        return Spool(memory / "space")
    pytest.importorskip("psycopg")
    return PostgreSQL(request.getfixturevalue("server"))


@pytest.fixture
def connection(party: Party) -> Iterator[Any]:
    with closing(party.connect()) as found:
        yield found


def test_x03_a_prepared_transaction_is_invisible_until_its_commit(party: Party, connection: Any) -> None:
    begin(party, connection)
    assert (len(connection.tpc_recover()), party.records()) == (0, 0)
    connection.tpc_prepare()
    with closing(party.connect()) as other:
        assert len(other.tpc_recover()) == 1
    assert party.records() == 0
    connection.tpc_commit()
    assert (len(connection.tpc_recover()), party.records()) == (0, 1)


def test_x03_a_commit_without_a_vote_takes_one_phase(party: Party, connection: Any) -> None:
    begin(party, connection)
    connection.tpc_commit()
    assert (len(connection.tpc_recover()), party.records()) == (0, 1)


@pytest.mark.parametrize("prepared", [False, True])
def test_x03_a_rollback_before_or_after_the_vote_leaves_nothing(party: Party, connection: Any, prepared: bool) -> None:
    begin(party, connection)
    if prepared:
        connection.tpc_prepare()
    connection.tpc_rollback()
    assert (len(connection.tpc_recover()), party.records()) == (0, 0)
    begin(party, connection, "next")
    connection.tpc_commit()
    assert party.records() == 1


@pytest.mark.parametrize(("decision", "recovered"), [("tpc_commit", True), ("tpc_rollback", False)])
def test_x03_another_connection_decides_a_prepared_transaction_by_its_xid(
    party: Party, connection: Any, decision: str, recovered: bool
) -> None:
    begin(party, connection)
    connection.tpc_prepare()
    connection.close()
    with closing(party.connect()) as other:
        xid = other.tpc_recover()[0] if recovered else other.xid(1, "gtrid", "bqual")
        getattr(other, decision)(xid)
        assert other.tpc_recover() == []
    assert party.records() == (decision == "tpc_commit")


def test_x03_the_text_of_an_xid_serves_as_the_xid(party: Party, connection: Any) -> None:
    text = str(connection.xid(1, "gtrid", "bqual"))
    connection.tpc_begin(text)
    party.work(connection)
    connection.tpc_prepare()
    connection.close()
    with closing(party.connect()) as other:
        [found] = other.tpc_recover()
        assert tuple(found) == (1, "gtrid", "bqual")
        assert str(found) == text
        other.tpc_commit(text)
    assert party.records() == 1


def test_x03_calls_that_do_not_fit_the_transaction_raise_programming_error_and_change_nothing(
    party: Party, connection: Any
) -> None:
    def refused(*calls: Callable[[], object]) -> None:
        for call in calls:
            with pytest.raises(party.errors.ProgrammingError):
                call()

    refused(connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback)
    connection.commit()
    connection.rollback()
    xid = begin(party, connection)
    within = (
        connection.commit,
        connection.rollback,
        partial(connection.tpc_begin, connection.xid(1, "second", "")),
        partial(connection.tpc_commit, xid),
        partial(connection.tpc_rollback, xid),
    )
    refused(*within)
    party.work(connection)
    connection.tpc_prepare()
    within_prepared = [call for call in within if getattr(call, "func", None) != connection.tpc_begin]
    refused(*within_prepared, connection.tpc_prepare)  # (psycopg does not refuse tpc_begin here)
    connection.tpc_commit()
    assert party.records() == 2
    refused(connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback)


@pytest.mark.parametrize("decision", ["tpc_commit", "tpc_rollback"])
def test_x03_an_xid_that_no_prepared_transaction_has_is_refused(party: Party, connection: Any, decision: str) -> None:
    with pytest.raises(party.errors.ProgrammingError):
        getattr(connection, decision)(connection.xid(1, "unknown", ""))


def test_x03_an_xid_in_use_is_refused(party: Party, connection: Any) -> None:
    begin(party, connection)
    connection.tpc_prepare()
    with closing(party.connect()) as other, pytest.raises(party.errors.ProgrammingError):
        begin(party, other)
        other.tpc_prepare()
    connection.tpc_commit()
    assert party.records() == 1


@pytest.mark.parametrize(
    "parts", [(0, "g", ""), (42, "gtrid", "bqual"), (2147483647, "x" * 64, "y" * 64), (1, " ~", "a b/c.d_e")]
)
def test_x03_an_xid_is_recovered_as_it_was(party: Party, connection: Any, parts: tuple[int, str, str]) -> None:
    xid = connection.xid(*parts)
    format_id, gtrid, bqual = xid
    assert (format_id, gtrid, bqual) == (xid.format_id, xid.gtrid, xid.bqual) == (xid[0], xid[1], xid[2]) == parts
    assert len(xid) == 3
    connection.tpc_begin(xid)
    party.work(connection)
    connection.tpc_prepare()
    with closing(party.connect()) as other:
        [found] = other.tpc_recover()
    assert tuple(found) == parts
    connection.tpc_rollback()


@pytest.mark.parametrize("parts", [(-1, "g", "b"), (2**31, "g", "b"), (1, "g" * 65, "b"), (1, "g", "b" * 65)], ids=repr)
def test_x03_an_xid_outside_the_limits_of_pep_249_is_refused(connection: Any, parts: tuple[int, str, str]) -> None:
    with pytest.raises(ValueError):
        connection.xid(*parts)


def test_x03_a_recovered_xid_names_the_time_and_the_owner_of_the_vote(party: Party, connection: Any) -> None:
    xid = begin(party, connection)
    assert (xid.prepared, xid.owner, xid.database) == (None, None, None)
    connection.tpc_prepare()
    with closing(party.connect()) as other:
        [found] = other.tpc_recover()
    assert abs(found.prepared - datetime.now(UTC)) < timedelta(minutes=1)
    assert isinstance(found.owner, str)
    assert isinstance(found.database, str)
    connection.tpc_rollback()


def test_x03_a_connection_that_is_closed_rolls_back_unless_it_is_prepared(party: Party) -> None:
    for prepared in (False, True):
        with closing(party.connect()) as connection:
            xid = begin(party, connection, f"prepared {prepared}")
            if prepared:
                connection.tpc_prepare()
    with closing(party.connect()) as other:
        assert [tuple(one) for one in other.tpc_recover()] == [tuple(xid)]
        other.tpc_commit(xid)
    assert party.records() == 1


def test_x03_a_closed_connection_refuses_every_call(party: Party, connection: Any) -> None:
    xid = connection.xid(1, "gtrid", "bqual")
    assert not connection.closed
    for _ in range(2):
        connection.close()
        assert connection.closed
    for call in (
        connection.commit,
        connection.rollback,
        partial(connection.tpc_begin, xid),
        partial(connection.tpc_commit, xid),
        partial(connection.tpc_rollback, xid),
        connection.tpc_recover,
    ):
        with pytest.raises((party.errors.OperationalError, party.errors.ProgrammingError)):
            call()


def test_x03_an_exception_that_leaves_the_block_of_a_connection_rolls_back(party: Party) -> None:
    with pytest.raises(Mistake), party.connect() as connection:
        begin(party, connection)
        raise Mistake
    assert connection.closed
    assert party.records() == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_x03_a_block_that_ends_within_a_transaction_raises_programming_error(party: Party, prepared: bool) -> None:
    with pytest.raises(party.errors.ProgrammingError), party.connect() as connection:
        xid = begin(party, connection)
        if prepared:
            connection.tpc_prepare()
    connection.close()
    with party.connect() as other:
        assert [tuple(one) for one in other.tpc_recover()] == [tuple(xid)][:prepared]
        if prepared:
            other.tpc_rollback(xid)
    assert other.closed
    assert party.records() == 0


def test_x03_the_exceptions_of_pep_249_are_names_of_the_module_and_of_connections(party: Party, connection: Any):
    bases = {"InterfaceError": "Error", "DatabaseError": "Error", "Error": "Exception", "Warning": "Exception"} | {
        f"{kind}Error": "DatabaseError"
        for kind in ("Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported")
    }
    for name, base in bases.items():
        found = getattr(party.errors, name)
        assert getattr(connection, name) is found
        assert found.__bases__ == (getattr(party.errors, base, Exception),)
    assert party.errors.apilevel == "2.0"
    assert isinstance(party.errors.threadsafety, int)
    assert isinstance(party.errors.paramstyle, str)


# -- a coordinator that knows only PEP 249 ----------------------------------------------------------------------------


def together(parties: Mapping[Any, Any], work: Callable[[Party, Any], None]) -> None:
    """Do the work on each party in one transaction: all of it or nothing."""
    gtrid = uuid.uuid4().hex
    begun: list[Any] = []
    try:
        for number, (party, connection) in enumerate(parties.items()):
            connection.tpc_begin(connection.xid(1, gtrid, str(number)))
            begun.append(connection)
            work(party, connection)
        for connection in begun:
            connection.tpc_prepare()
    except BaseException:
        for connection in begun:
            connection.tpc_rollback()
        raise
    for connection in begun:
        connection.tpc_commit()


def test_x03_a_coordinator_of_pep_249_commits_both_parties_or_none(party: Party, tmp_path: Path) -> None:
    other = Spool(tmp_path / "other")
    parties: list[Party] = [other, party]
    with other.connect() as first, party.connect() as second:
        connections = {other: first, party: second}
        together(connections, lambda one, connection: one.work(connection))
        assert [one.records() for one in parties] == [1, 1]

        def fail_in_second(one: Party, connection: Any) -> None:
            one.work(connection)
            if one is party:
                raise Mistake

        with pytest.raises(Mistake):
            together(connections, fail_in_second)
        assert [one.records() for one in parties] == [1, 1]
        together(connections, lambda one, connection: one.work(connection))
        assert [one.records() for one in parties] == [2, 2]
        assert first.tpc_recover() == second.tpc_recover() == []


def test_x03_a_coordinator_can_roll_back_all_parties_after_a_refused_vote(memory: Path) -> None:
    """The rollback of the party whose vote failed succeeds, too."""
    parties = {Spool(memory / name): limit for name, limit in (("first", None), ("second", 0.3), ("third", None))}
    with ExitStack() as stack:
        connections = {
            party: stack.enter_context(dbapi.connect(party.path, timeout=limit)) for party, limit in parties.items()
        }

        def work_too_long(party: Party, connection: Any) -> None:
            party.work(connection)
            time.sleep(0.4)

        with pytest.raises(dbapi.TransactionRollback):
            together(connections, work_too_long)
        assert [party.records() for party in parties] == [0, 0, 0]
        assert [connection.tpc_recover() for connection in connections.values()] == [[], [], []]

"""The program gets the true outcome of its commit, and the log names the branches that a person must decide."""

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import spool
import xa
from tests.postgresql import Server
from tests.xa.manager.desk import DECISION, Booking, Desk, engine_of, exit_program, fail_a_statement, of_kinds
from tests.xa.manager.shop import Shop, last_resource
from tests.xa.manager.steps import Step, acting
from xa.manager import decision_table
from xa.manager.database_connections import _Psycopg, database_of

_execute = psycopg.Connection._exec_command


def _lose_the_answer(self: Any, command: Any, *arguments: Any) -> Any:
    yield from _execute(self, command, *arguments)
    if command == b"COMMIT":
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


without_answers = mock.patch.object(psycopg.Connection, "_exec_command", _lose_the_answer)


def test_x03_a_commit_in_one_phase_whose_answer_is_lost_is_unknown(shop: Shop) -> None:
    with shop.manager() as manager, without_answers, pytest.raises(spool.CommitUnknown), shop.booking(manager):
        shop.database.execute("insert into bookings values ('tea')")
    assert shop.booked() == ["tea"]


@of_kinds("Connection, PostgreSQL", "Session, PostgreSQL")
def test_x03_a_lost_answer_to_sqlalchemy_is_unknown(desk: Desk) -> None:
    with desk.manager() as manager, closing(desk.connect()) as database:
        with without_answers, pytest.raises(spool.CommitUnknown), manager.transaction() as transaction:
            transaction.enlist(database)
            desk.insert(database, "tea")
    desk.check(["tea"], [])


@of_kinds("Session, SQLite")
def test_x03_a_session_with_several_databases_is_refused(desk: Desk, memory: Path) -> None:
    """SQLAlchemy commits one after the other, and the row of the decision is in the first."""
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as session:
        session.bind_table(Booking.__table__, engine_of(memory / "other.db"))
        Booking.metadata.create_all(engine_of(memory / "other.db"))
        with pytest.raises(spool.ProtocolError, match="several databases"), manager.transaction() as transaction:
            transaction.enlist(desk.space)
            transaction.enlist(session)
            session.add(Booking(text=desk.space.get("orders").body))
    desk.check([], ["tea"])


@of_kinds("Session, SQLite")
@pytest.mark.parametrize("event", ["before_commit", "after_commit"])
def test_x03_the_outcome_of_a_session_whose_event_handler_fails(desk: Desk, event: str) -> None:
    """The handler does not run when the manager settles the outcome."""
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as session, suppress(ZeroDivisionError):
        sqlalchemy.event.listen(session, event, lambda _: 1 / 0)
        desk.book(manager, session)
    desk.check(*((["tea"], []) if event == "after_commit" else ([], ["tea"])))


def test_x03_a_commit_in_one_phase_after_a_failed_statement_is_no_commit(shop: Shop) -> None:
    """Source: pgjdbc, ``raiseExceptionOnSilentRollback``."""
    with shop.manager() as manager, pytest.raises((spool.SpoolError, psycopg.Error)), shop.booking(manager):
        shop.database.execute("insert into bookings values ('tea')")
        fail_a_statement(shop)
    assert shop.booked() == []


@last_resource
def test_x03_a_commit_in_one_phase_of_a_closed_connection_is_no_commit(shop: Shop) -> None:
    """E.g. ``with closing(psycopg.connect(…))`` within the transaction."""
    with shop.manager() as manager, pytest.raises((spool.SpoolError, psycopg.Error)), shop.booking(manager):
        shop.database.execute("insert into bookings values ('tea')")
        shop.database.close()


@of_kinds("sqlite3")
def test_x03_a_rollback_by_the_program_and_a_later_row_are_noticed(desk: Desk) -> None:
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as database:
        with pytest.raises(spool.ProtocolError), manager.transaction() as transaction:
            transaction.enlist(desk.space)
            transaction.enlist(database)
            desk.insert(database, desk.space.get("orders").body)
            database.rollback()
            desk.insert(database, "later")
        desk.check([], ["tea"])


@of_kinds("Connection, PostgreSQL", "Session, PostgreSQL")
def test_x03_a_constraint_that_fails_at_the_commit_of_sqlalchemy(desk: Desk, by_default: Server) -> None:
    with closing(by_default.connect(autocommit=True)) as database:
        database.execute("alter table bookings drop constraint bookings_pkey")
        database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    desk.space.put_many("orders", ["tea", "tea"])
    with desk.manager() as manager, closing(desk.connect()) as database:
        desk.book(manager, database)
        with pytest.raises(desk.kind.failure):
            desk.book(manager, database)
        manager.recover(desk.space, database)
        desk.check(["tea"], ["tea"], manager)


IMPATIENT_CONNECTIONS: dict[str, Callable[[Path], Any]] = {
    "sqlite3": lambda place: sqlite3.connect(place, timeout=0),
    "Connection, SQLite": lambda place: engine_of(place, connect_args={"timeout": 0}).connect(),
    "Session, SQLite": lambda place: Session(engine_of(place, connect_args={"timeout": 0})),
}


@pytest.mark.parametrize(
    ("desk", "connect"), IMPATIENT_CONNECTIONS.items(), ids=IMPATIENT_CONNECTIONS, indirect=["desk"]
)
def test_x03_a_refused_commit_in_one_phase_leaves_the_connection_idle(
    desk: Desk, memory: Path, connect: Callable[[Path], Any]
) -> None:
    place = memory / "shop.db"
    with desk.manager() as manager, closing(connect(place)) as database:

        def book(text: str) -> None:
            with manager.transaction() as transaction:
                transaction.enlist(database)
                desk.insert(database, text)

        with closing(sqlite3.connect(place)) as reader:
            reader.execute("begin")
            reader.execute("select * from bookings").fetchall()
            with pytest.raises((sqlite3.Error, sqlalchemy.exc.SQLAlchemyError)):
                book("tea")
        book("milk")
        desk.check(["milk"], [])


@last_resource
def test_x03_after_an_unknown_outcome_the_connection_holds_no_row(shop: Shop) -> None:
    """The program commits within its own block, see above, and then recovers as the documentation says."""
    shop.space.put("orders", "tea")
    with shop.manager() as manager, closing(shop.server.connect(options="-c lock_timeout=100")) as other:
        with suppress(psycopg.Error), shop.booking(manager) as transaction, shop.database.transaction():
            shop.space.get("orders")
            shop.space.put("answers", "tea")
            with suppress(spool.CommitUnknown):
                transaction.commit()
        manager.recover(shop.space, other)
        shop.check_agreement(["tea"])


@last_resource
def test_x03_a_recovery_bars_the_late_decision_of_a_dead_program(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    shop.kill_program("before")
    with shop.manager() as manager, mock.patch.object(decision_table, "insert", wraps=decision_table.insert) as insert:
        manager.recover(shop.space, shop.database)
        assert [call.kwargs["committed"] for call in insert.mock_calls] == [False]
        shop.check_agreement(["tea"])


@last_resource
def test_x03_a_recovery_learns_that_a_commit_without_an_answer_was_made(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    with shop.manager() as manager, closing(shop.server.connect()) as other:
        with without_answers, pytest.raises(spool.CommitUnknown), shop.booking(manager):
            shop.space.put("answers", shop.space.get("orders").body)
            shop.database.execute("insert into bookings values ('tea')")
        manager.recover(shop.space, other)
        shop.check_agreement(["tea"])


@last_resource
def test_x03_an_exit_during_the_decision_is_raised_after_the_commit(shop: Shop) -> None:
    """E.g. a handler of SIGTERM calls ``sys.exit``."""
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(SystemExit), acting(Step("the commit", _Psycopg, "commit"), "after", exit_program):
            shop.book(manager)
    assert shop.check_agreement(["tea"]) == ["tea"]


@last_resource
def test_x03_a_branch_that_another_program_rolled_back_is_reported(shop: Shop, caplog: pytest.LogCaptureFixture):
    shop.space.put("orders", "tea")

    def roll_back_behind() -> None:
        with spool.open(shop.path) as space:
            rm = xa.ResourceManager(space)
            for xid in rm.recover():
                rm.rollback(xid)

    with shop.manager() as manager, acting(DECISION, "after", roll_back_behind):
        shop.book(manager)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_x03_a_decision_that_another_recovery_made_and_removed_is_made_again(tmp_path: Path) -> None:
    """The row of the other recovery makes the insertion fail, and is gone when this recovery looks for it."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as ours, closing(sqlite3.connect(path)) as theirs:
        mine, other = database_of(ours), database_of(theirs)
        table = decision_table.create(mine)
        inserting = decision_table.insert

        def race(*arguments: Any, committed: bool) -> None:
            decision_table.insert = inserting
            assert not decision_table.settle(other, table, "dead", 7)
            try:
                inserting(*arguments, committed=committed)
            finally:
                mine.rollback()
                decision_table.remove_all(other, "dead")

        with mock.patch.object(decision_table, "insert", race):
            assert not decision_table.settle(mine, table, "dead", 7)
        assert decision_table.find(other, "dead", 7) is False

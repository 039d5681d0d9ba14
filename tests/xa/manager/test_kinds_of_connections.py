"""Each kind of connection as the last resource: commit, rollback, refused rows, crashes, modes and settings."""

import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row, namedtuple_row, scalar_row

import spool
import xa
from spool.decisions import DecisionLog
from tests.branches import Mistake
from tests.children import let_die
from tests.clocks import until
from tests.postgresql import Server
from tests.xa.manager.desk import (
    DECISION,
    KINDS,
    ROW,
    Booking,
    Desk,
    engine_of,
    of_kinds,
    on_server,
    terminate_sessions,
)
from tests.xa.manager.shop import Shop, die, last_resource, two_phases
from tests.xa.manager.steps import Step, acting
from xa.manager import decision_table
from xa.manager.database_connections import Database
from xa.manager.two_phase_branch import TwoPhaseBranch

paramstyle = "qmark"  # of this module's ``Driver``


def test_x03_each_kind_commits_and_rolls_back_and_is_usable_afterwards(desk: Desk) -> None:
    desk.space.put_many("orders", ["milk", "tea", "water"])
    with desk.manager() as manager, closing(desk.connect()) as database:
        assert desk.book(manager, database) == "milk"
        with pytest.raises(Mistake), manager.transaction() as transaction:
            transaction.enlist(desk.space)
            transaction.enlist(database)
            desk.insert(database, desk.space.get("orders").body)
            raise Mistake
        desk.check(["milk"], ["tea", "water"], manager)
        assert [desk.book(manager, database) for _ in range(2)] == ["tea", "water"]
        desk.check(["milk", "tea", "water"], [], manager)
        with manager.transaction() as transaction:  # a single resource commits in one phase
            transaction.enlist(database)
            desk.insert(database, "alone")
        desk.check(["alone", "milk", "tea", "water"], [], manager)
        manager.recover(desk.space, database)
    assert desk.decisions() == 0


def test_x03_each_kind_can_refuse_a_row(desk: Desk) -> None:
    desk.space.put_many("orders", ["tea", "tea", "water"])
    with desk.manager() as manager, closing(desk.connect()) as database:
        desk.book(manager, database)
        with pytest.raises(desk.kind.failure):
            desk.book(manager, database)
        desk.check(["tea"], ["tea", "water"], manager)
        desk.space.get("orders")
        assert desk.book(manager, database) == "water"
        desk.check(["tea", "water"], [], manager)


@pytest.mark.every(2)
@pytest.mark.parametrize("alone", [False, True])
def test_x03_each_kind_keeps_its_promise_after_an_error_that_the_program_ignores(desk: Desk, alone: bool) -> None:
    """PostgreSQL commits nothing after a failed statement; SQLite undoes only the statement."""
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as database:
        with suppress(spool.ProtocolError, sqlalchemy.exc.SQLAlchemyError):
            with manager.transaction() as transaction:
                transaction.enlist(database)
                if not alone:
                    transaction.enlist(desk.space)
                desk.insert(database, desk.space.get("orders").body)
                with suppress(desk.kind.failure):
                    desk.insert(database, "tea")
        booked = [] if desk.kind.is_on_server else ["tea"]
        desk.check(booked, [] if booked or alone else ["tea"], manager)
        assert transaction.state.value == ("committed" if booked else "rolled back")


@of_kinds("psycopg", "Session, SQLite")
def test_x03_two_transactions_do_not_share_a_connection(desk: Desk) -> None:
    """Two threads may find the connection idle at the same moment; psycopg would begin a savepoint."""
    with desk.manager() as manager, closing(desk.connect()) as database, manager.transaction() as first:
        first.enlist(database)
        with mock.patch.object(Database, "check_idle"), manager.transaction() as second:
            with pytest.raises(spool.ProtocolError, match="another global transaction uses it"):
                second.enlist(database)
        desk.insert(database, "tea")
        first.commit()
        desk.space.put("orders", "milk")
        desk.book(manager, database)
    desk.check(["milk", "tea"], [])


@of_kinds("psycopg, autocommit")
def test_x03_programs_that_start_together_prepare_the_database(desk: Desk) -> None:
    """PostgreSQL's ``create table if not exists`` fails if another program creates the table at this moment."""
    with desk.manager() as manager, closing(desk.connect()) as database, closing(desk.connect()) as other:
        database.execute("drop table xaspool_decisions")
        with ThreadPoolExecutor(1) as pool, closing(desk.connect()) as creator:
            with creator.transaction():
                creator.execute(decision_table._CREATE)
                creator.execute("insert into xaspool_decisions values ('created', 0, -1, '')")
                prepared = pool.submit(manager.prepare_database, database)
                until(lambda: other.execute("select from pg_stat_activity where wait_event_type = 'Lock'").rowcount)
            prepared.result(60)
        desk.space.put("orders", "tea")
        assert desk.book(manager, database) == "tea"


@pytest.mark.every(9)
@pytest.mark.parametrize(
    ("step", "when", "booked"),
    [
        pytest.param(ROW, "before", [], id="between the vote and the decision"),
        pytest.param(ROW, "after", [], id="between the row and its commit"),
        pytest.param(DECISION, "after", ["tea"], id="after the decision"),
    ],
)
def test_x03_each_kind_recovers_after_the_death_of_its_program(desk: Desk, step: Step, when: str, booked: list[str]):
    desk.space.put("orders", "tea")

    def program() -> None:
        with spool.open(desk.path) as space, desk.manager() as manager, closing(desk.connect()) as database:
            with acting(step, when, die):
                desk.book(manager, database, space)

    let_die(program)
    assert len(xa.ResourceManager(desk.space).recover()) == 1
    with desk.manager() as manager, closing(desk.connect()) as database:
        manager.recover(desk.space, database)
        desk.check(booked, [] if booked else ["tea"])
        manager.recover(desk.space, database)
    assert desk.decisions() == 0


@pytest.mark.every(3, first=1)
@on_server
@pytest.mark.parametrize("when", ["before", "after"])
def test_x03_a_session_that_the_server_ends_during_the_decision(desk: Desk, when: str, by_default: Server) -> None:
    desk.space.put("orders", "tea")
    with desk.manager() as manager:
        with suppress(spool.CommitUnknown, psycopg.Error, sqlalchemy.exc.DBAPIError):
            with closing(desk.connect()) as database, acting(ROW, when, partial(terminate_sessions, by_default)):
                desk.book(manager, database)
        with closing(desk.connect()) as database:
            manager.recover(desk.space, database)
            desk.check([], ["tea"])
            desk.book(manager, database)
            desk.check(["tea"], [], manager)


# -- details of the drivers --------------------------------------------------------------------------------------------


def test_x03_the_modes_of_a_connection_are_as_before(shop: Shop) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    shop.database.autocommit = True
    with shop.manager() as manager:
        shop.book(manager)
        with pytest.raises(Mistake), shop.booking(manager):
            shop.database.execute("insert into bookings values ('none')")
            raise Mistake
        assert shop.database.autocommit
        shop.database.execute("insert into bookings values ('alone')")
    assert shop.booked() == ["alone", "milk"]


@last_resource
@pytest.mark.every(3)
@pytest.mark.parametrize("level", psycopg.IsolationLevel)
def test_x03_a_recovery_with_each_isolation_level(shop: Shop, level: psycopg.IsolationLevel) -> None:
    shop.space.put("orders", "tea")
    shop.kill_program()
    shop.database.isolation_level = level
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == ["tea"]
        assert shop.dead_logs(manager) == 0
    assert shop.decisions() == 0


@last_resource
@pytest.mark.every(2)
@pytest.mark.parametrize(
    "options",
    [
        {"prepare_threshold": None},
        {"prepare_threshold": 0},
        {"cursor_factory": psycopg.ClientCursor},
        {"row_factory": namedtuple_row},
        {"row_factory": dict_row},
        {"row_factory": scalar_row},
        {"client_encoding": "SQL_ASCII"},
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_x03_psycopg_with_options_of_statements_and_rows(shop: Shop, options: dict[str, Any]) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager() as manager, closing(shop.server.connect(**options)) as shop.database:
        for _ in range(2):
            shop.book(manager)
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["milk", "tea"]) == ["milk", "tea"]
    shop.reconnect()


@last_resource
def test_x03_a_read_only_connection_is_refused_by_the_server_and_undoes_the_space(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    shop.database.read_only = True
    with shop.manager() as manager:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), shop.booking(manager):
            shop.space.get("orders")
        assert shop.check_agreement(["tea"]) == []
        shop.database.read_only = None
        shop.book(manager)
    assert shop.check_agreement(["tea"]) == ["tea"]


@pytest.mark.parametrize("call", ["commit", "rollback"])
def test_x03_psycopg_refuses_the_programs_own_end(shop: Shop, call: str) -> None:
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(psycopg.ProgrammingError), shop.booking(manager):
            shop.database.execute("insert into bookings values (%s)", [shop.space.get("orders").body])
            getattr(shop.database, call)()
        assert shop.check_agreement(["tea"]) == []
        shop.book(manager)
    assert shop.check_agreement(["tea"]) == ["tea"]


@last_resource
def test_x03_savepoints_of_the_program(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    with shop.manager() as manager, shop.booking(manager):
        text = shop.space.get("orders").body
        shop.space.put("answers", text)
        with shop.database.transaction():
            shop.database.execute("insert into bookings values (%s)", [text])
        with pytest.raises(psycopg.errors.UniqueViolation), shop.database.transaction():
            shop.database.execute("insert into bookings values (%s)", [text])
    assert shop.check_agreement(["tea"]) == ["tea"]


@last_resource
@pytest.mark.parametrize("call", ["enlist", "commit"])
def test_x03_a_connection_in_pipeline_mode_is_refused_by_its_name(shop: Shop, call: str) -> None:
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(spool.ProtocolError, match="pipeline"), ExitStack() as stack:
            if call == "enlist":
                stack.enter_context(shop.database.pipeline())
            transaction = stack.enter_context(shop.booking(manager))
            stack.enter_context(shop.database.pipeline())
            shop.space.get("orders")
            transaction.commit()
        assert shop.check_agreement(["tea"]) == []
        with shop.booking(manager), shop.database.pipeline():  # one that ends within the transaction is no problem
            shop.work()
    assert shop.check_agreement(["tea"]) == ["tea"]


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@of_kinds("sqlite3")
@pytest.mark.parametrize(
    ("journal", "attribute", "factory"),
    [
        ("delete", "row_factory", None),
        ("wal", "row_factory", sqlite3.Row),
        ("delete", "row_factory", as_dict),
        ("wal", "row_factory", lambda cursor, row: row[0]),
        ("delete", "text_factory", bytes),
    ],
    ids=["tuple", "Row", "dict", "first column", "bytes"],
)
def test_x03_sqlite_with_another_writer_and_each_factory(desk: Desk, journal: str, attribute: str, factory: Any):
    """A writer that holds the database makes the insertion fail, and the space is undone."""
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as other:
        with closing(sqlite3.connect(desk.place, timeout=0)) as database:
            database.execute(f"pragma journal_mode = {journal}")
            setattr(database, attribute, factory)
            other.execute("begin immediate")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                desk.book(manager, database)
            desk.check([], ["tea"])
            other.rollback()
            desk.book(manager, database)
            manager.recover(desk.space, database)
            desk.check(["tea"], [], manager)


@of_kinds("Session, SQLite", "Session, PostgreSQL")
def test_x03_pending_objects_of_a_session(desk: Desk) -> None:
    desk.space.put_many("orders", ["tea", "tea", "water"])
    with desk.manager() as manager, closing(desk.connect()) as session:
        session.add(Booking(text="earlier"))
        with pytest.raises(spool.ProtocolError, match="in a transaction"):
            desk.book(manager, session)
        session.commit()

        def book() -> None:
            with manager.transaction() as transaction:
                transaction.enlist(desk.space)
                transaction.enlist(session)
                with session.begin_nested():
                    session.add(Booking(text=desk.space.get("orders").body))

        book()
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            book()
        desk.check(["earlier", "tea"], ["tea", "water"], manager)
        desk.space.get("orders")
        book()
        with pytest.raises(Mistake), manager.transaction() as transaction:
            transaction.enlist(session)
            with session.begin_nested():
                session.add(Booking(text="undone"))
            raise Mistake
        desk.check(["earlier", "tea", "water"], [], manager)


@of_kinds("Session, SQLite")
def test_x03_a_scoped_session_is_taken_and_one_with_two_phases_refused(desk: Desk) -> None:
    desk.space.put("orders", "tea")
    sessions = sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine_of(desk.place)))
    with desk.manager() as manager:
        assert desk.book(manager, sessions) == "tea"
        sessions.remove()
        with pytest.raises(spool.InvalidArgument, match="twophase=True"), manager.transaction() as transaction:
            transaction.enlist(sessions(twophase=True))
    desk.check(["tea"], [])


@pytest.mark.every(5)
@of_kinds(*(name for name in KINDS if name.startswith(("Connection", "Session"))))
@pytest.mark.parametrize("call", ["commit", "rollback", "close"])
def test_x03_a_program_that_ends_the_transaction_of_sqlalchemy_is_told(desk: Desk, call: str) -> None:
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as database:
        with pytest.raises(spool.ProtocolError, match="the program has ended"):
            with manager.transaction() as transaction:
                transaction.enlist(desk.space)
                transaction.enlist(database)
                desk.space.get("orders")
                getattr(database, call)()
        desk.check([], ["tea"])


# -- connections with other settings -----------------------------------------------------------------------------------


@two_phases
def test_x03_the_name_of_a_database_does_not_depend_on_the_factory_of_rows(shop: Shop) -> None:
    with shop.manager() as manager, mock.patch.object(DecisionLog, "register") as register:
        for factory in (namedtuple_row, dict_row):
            shop.reconnect()
            shop.database.row_factory = factory
            with shop.booking(manager):
                pass
    names = {call.args[0] for call in register.call_args_list}
    assert len([name for name in names if not name.startswith("space")]) == 1


@last_resource
def test_x03_psycopg_with_raw_cursors(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    shop.database.cursor_factory = psycopg.RawCursor
    with shop.manager() as manager, shop.booking(manager):
        text = shop.space.get("orders").body
        shop.database.execute("insert into bookings values ($1)", [text])
        shop.space.put("answers", text)
    assert shop.check_agreement(["tea"]) == ["tea"]


@last_resource
async def test_x03_an_asynchronous_connection_is_refused(shop: Shop) -> None:
    with shop.manager() as manager, manager.transaction() as transaction:
        async with await psycopg.AsyncConnection.connect(shop.server.where) as connection:
            with pytest.raises(spool.InvalidArgument):
                transaction.enlist(connection)


@two_phases
def test_x03_an_interrupt_of_enlist_leaves_the_connection_as_it_was(shop: Shop) -> None:
    shop.database.autocommit = True

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with shop.manager() as manager:
        with pytest.raises(KeyboardInterrupt), acting(Step("begin", TwoPhaseBranch, "__init__"), "after", interrupt):
            with shop.booking(manager):
                pass
        assert shop.database.autocommit
        with shop.booking(manager):
            shop.database.execute("insert into bookings values ('tea')")
    assert shop.booked() == ["tea"]


class Driver:
    """A connection as PyMySQL has it, in autocommit mode: ``autocommit`` is a method, ``get_autocommit`` tells."""

    def __init__(self, place: Path) -> None:
        self._database = sqlite3.connect(place, isolation_level=None)
        self.cursor = self._database.cursor
        self.close = self._database.close

    def autocommit(self, value: bool) -> None: ...

    def get_autocommit(self) -> bool:
        return True

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


@of_kinds("sqlite3")
def test_x03_a_driver_whose_autocommit_is_a_method_is_refused_in_that_mode(desk: Desk, memory: Path) -> None:
    with desk.manager() as manager, closing(Driver(memory / "shop.db")) as database:
        with pytest.raises(spool.InvalidArgument, match="autocommit"), manager.transaction() as transaction:
            transaction.enlist(database)

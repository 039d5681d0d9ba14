"""A review of the transaction manager: each kind of connection as the last resource, and attempts to break the promise.

The promise: a row and its message have the same outcome, nothing remains in doubt without a reason, no program decides
the branches of a coordinator that lives, and each connection is afterwards as it was before.

A test with ``xfail`` reproduces a defect. Its reason names the defect.
"""

import asyncio
import gc
import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row, namedtuple_row, scalar_row
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

import spool
import xa
from spool.decisions import DecisionLog
from tests.at_once import AT_ONCE
from tests.children import exit_code, exit_code_of, start
from tests.postgresql import Server, server
from tests.xa.manager.shop import Shop
from tests.xa.manager.steps import Step, acting
from xa.manager import decision_table
from xa.manager import manager as manager_module
from xa.manager.connections import _Psycopg
from xa.manager.last_resource import LastResource
from xa.manager.outcomes import Outcomes
from xa.manager.space_branch import SpaceBranch
from xa.manager.two_phase_branch import TwoPhaseBranch

paramstyle = "qmark"  # of this module's ``Driver``

PATIENT_SECONDS = 60
ROW = Step("the row of the decision", decision_table, "insert")
DECISION = Step("the decision", LastResource, "decide")


class Mistake(Exception):
    """An application's own."""


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"
    text: Mapped[str] = mapped_column(sqlalchemy.String, primary_key=True)


def engine_of(place: Server | Path, **options: Any) -> sqlalchemy.Engine:
    """Return an engine that closes each connection at once. ``place``: a server, or the file of a SQLite database."""
    if isinstance(place, Path):
        return sqlalchemy.create_engine(f"sqlite:///{place}", poolclass=NullPool, **options)
    url = f"postgresql+psycopg://test@/postgres?host={place.directory}"
    return sqlalchemy.create_engine(url, poolclass=NullPool, **options)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def _free_servers(by_default: Server, with_two_phases: Server) -> Iterator[None]:
    """End what a test has left on the servers, because a table in use cannot be dropped."""
    yield
    for place in (by_default, with_two_phases):
        with closing(place.connect(autocommit=True)) as database:
            database.execute(TERMINATE)
            for xid in database.tpc_recover():
                database.tpc_rollback(xid)


TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where backend_type = 'client backend' and pid <> pg_backend_pid()"
)


def terminate_sessions(place: Server) -> None:
    """End all other sessions of the server, as an administrator does."""
    with closing(place.connect(autocommit=True)) as database:
        database.execute(TERMINATE)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Let managers close at once, although transactions are open."""
    with mock.patch.object(manager_module, "_CLOSE_SECONDS", 0):
        yield


# -- each kind of connection as the last resource ----------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of connection.

    connect: opens a connection to a server or to a file.
    statement: inserts a booking.
    failure: the error for a second booking of one order.
    """

    connect: Callable[[Any], Any]
    statement: Any
    failure: type[Exception]
    is_on_server: bool = False


def psycopg_kind(**options: Any) -> Kind:
    connect: Callable[[Server], Any] = lambda place: place.connect(**options)  # noqa: E731
    return Kind(connect, "insert into bookings values (%s)", psycopg.errors.UniqueViolation, True)


def sqlite_kind(isolation_level: str | None) -> Kind:
    connect = partial(sqlite3.connect, isolation_level=isolation_level)
    return Kind(connect, "insert into bookings values (?)", sqlite3.IntegrityError)


def sqlalchemy_kind(connect: Callable[[sqlalchemy.Engine], Any], is_on_server: bool) -> Kind:
    statement = sqlalchemy.text("insert into bookings values (:text)")
    return Kind(lambda place: connect(engine_of(place)), statement, sqlalchemy.exc.IntegrityError, is_on_server)


KINDS = {
    "psycopg": psycopg_kind(),
    "psycopg, autocommit": psycopg_kind(autocommit=True),
    "sqlite3": sqlite_kind(""),
    "sqlite3, autocommit": sqlite_kind(None),
    "sqlite3, IMMEDIATE": sqlite_kind("IMMEDIATE"),
    "Connection, SQLite": sqlalchemy_kind(sqlalchemy.Engine.connect, False),
    "Connection, PostgreSQL": sqlalchemy_kind(sqlalchemy.Engine.connect, True),
    "Session, SQLite": sqlalchemy_kind(Session, False),
    "Session, PostgreSQL": sqlalchemy_kind(Session, True),
}
on_server = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items() if kind.is_on_server]
)


class Desk:
    """A space with orders, and a database with bookings."""

    def __init__(self, directory: Path, kind: Kind, by_default: Server) -> None:
        self.path, self.logs = directory / "space", directory / "decisions"
        self.kind = kind
        self.place: Server | Path = by_default if kind.is_on_server else directory / "shop.db"
        with spool.create(self.path, defaults=AT_ONCE) as space:
            space.create_queue("orders")
        engine = engine_of(self.place)
        with engine.begin() as connection:
            connection.exec_driver_sql("drop table if exists xaspool_decisions")
            connection.exec_driver_sql("drop table if exists bookings")
            connection.exec_driver_sql("create table bookings (text varchar(99) primary key)")
        with self.manager() as manager, closing(self.connect()) as database:
            manager.prepare_database(database)
        self.space = spool.open(self.path)

    def manager(self) -> xa.TransactionManager:
        return xa.TransactionManager(self.logs)

    def connect(self) -> Any:
        return self.kind.connect(self.place)

    def insert(self, database: Any, text: str) -> None:
        if isinstance(self.kind.statement, str):
            database.execute(self.kind.statement, [text])
        else:
            database.execute(self.kind.statement, {"text": text})

    def book(self, manager: xa.TransactionManager, database: Any, space: spool.Space | None = None) -> str:
        """Turn an order into a booking."""
        space = space or self.space
        with manager.transaction() as transaction:
            transaction.enlist(space)
            transaction.enlist(database)
            text = str(space.get("orders").body)
            self.insert(database, text)
        return text

    def booked(self) -> list[str]:
        with engine_of(self.place).connect() as connection:
            return sorted(text for (text,) in connection.exec_driver_sql("select text from bookings"))

    def decisions(self) -> int:
        with engine_of(self.place).connect() as connection:
            statement = "select count(*) from xaspool_decisions where serial > 0"
            return int(connection.exec_driver_sql(statement).scalar_one())

    def check(self, booked: list[str], waiting: list[str], manager: xa.TransactionManager | None = None) -> None:
        """``manager``: commits its branches in the background, so it is waited for."""
        if manager is not None:
            manager._outcomes.wait(60)
        assert self.booked() == booked
        assert sorted(message.body for message in self.space.browse("orders")) == waiting
        assert xa.ResourceManager(self.space).recover() == []


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, memory: Path, by_default: Server) -> Iterator[Desk]:
    found = Desk(memory, KINDS[request.param], by_default)
    with found.space:
        yield found


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


def test_x03_each_kind_keeps_its_promise_after_an_error_that_the_program_ignores(desk: Desk) -> None:
    """PostgreSQL commits nothing after a failed statement; SQLite undoes only the statement."""
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as database:
        with suppress(spool.ProtocolError, sqlalchemy.exc.SQLAlchemyError):
            with manager.transaction() as transaction:
                transaction.enlist(desk.space)
                transaction.enlist(database)
                desk.insert(database, desk.space.get("orders").body)
                with suppress(desk.kind.failure):
                    desk.insert(database, "tea")
        booked = [] if desk.kind.is_on_server else ["tea"]
        desk.check(booked, [] if booked else ["tea"], manager)


@pytest.mark.parametrize(
    ("step", "when", "booked"),
    [
        pytest.param(ROW, "before", [], id="between the vote and the decision"),
        pytest.param(ROW, "after", [], id="between the row and its commit"),
        pytest.param(DECISION, "after", ["tea"], id="after the decision"),
    ],
)
def test_x03_each_kind_recovers_after_the_death_of_its_program(
    desk: Desk, step: Step, when: str, booked: list[str]
) -> None:
    desk.space.put("orders", "tea")

    def program() -> None:
        with spool.open(desk.path) as space, desk.manager() as manager, closing(desk.connect()) as database:
            with acting(step, when, die):
                desk.book(manager, database, space)

    assert exit_code_of(program) == -signal.SIGKILL
    assert len(xa.ResourceManager(desk.space).recover()) == 1
    with desk.manager() as manager, closing(desk.connect()) as database:
        manager.recover(desk.space, database)
        desk.check(booked, [] if booked else ["tea"])
        manager.recover(desk.space, database)
    assert desk.decisions() == 0


@on_server
@pytest.mark.parametrize("when", ["before", "after"])
def test_x03_a_session_that_the_server_ends_during_the_decision(
    kind: Kind, when: str, memory: Path, by_default: Server
) -> None:
    desk = Desk(memory, kind, by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager:
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


@pytest.mark.parametrize("level", psycopg.IsolationLevel)
def test_x03_psycopg_with_each_isolation_level(shop: Shop, level: psycopg.IsolationLevel) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    shop.database.isolation_level = level
    with shop.manager() as manager:
        for _ in range(2):
            shop.book(manager)
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["milk", "tea"]) == ["milk", "tea"]
    assert shop.decisions() == 0


@pytest.mark.parametrize("level", psycopg.IsolationLevel)
def test_x03_a_recovery_with_each_isolation_level(last_resource_shop: Shop, level: psycopg.IsolationLevel) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")

    def program() -> None:
        with shop, shop.manager() as manager, acting(DECISION, "after", die):
            shop.book(manager)

    assert exit_code_of(program) == -signal.SIGKILL
    shop.database.isolation_level = level
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == ["tea"]
        assert shop.dead_logs(manager) == 0
    assert shop.decisions() == 0


def test_x03_a_serialization_failure_undoes_the_space(last_resource_shop: Shop) -> None:
    """Two transactions read what the other one writes, so PostgreSQL refuses one of them."""
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    shop.database.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    with shop.manager() as manager, closing(shop.server.connect()) as other:
        other.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with pytest.raises(psycopg.errors.SerializationFailure), shop.booking(manager):
            text = shop.space.get("orders").body
            shop.space.put("answers", text)
            for database, own in ((shop.database, text), (other, "milk")):
                database.execute("select count(*) from bookings").fetchall()
                database.execute("insert into bookings values (%s)", [own])
            other.commit()
        assert shop.booked() == ["milk"]
        assert shop.waiting() == ["tea"]
        shop.book(manager)
    assert shop.booked() == ["milk", "tea"]


@pytest.mark.parametrize(
    "options",
    [{"prepare_threshold": None}, {"prepare_threshold": 0}, {"cursor_factory": psycopg.ClientCursor}],
    ids=["never prepared", "always prepared", "bound by the client"],
)
def test_x03_psycopg_with_options_of_statements(last_resource_shop: Shop, options: dict[str, Any]) -> None:
    shop = last_resource_shop
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager() as manager, closing(shop.server.connect(**options)) as shop.database:
        for _ in range(2):
            shop.book(manager)
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["milk", "tea"]) == ["milk", "tea"]
    shop.reconnect()


def test_x03_a_read_only_connection_is_refused_by_the_server_and_undoes_the_space(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
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


def test_x03_savepoints_of_the_program(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager, shop.booking(manager):
        text = shop.space.get("orders").body
        shop.space.put("answers", text)
        with shop.database.transaction():
            shop.database.execute("insert into bookings values (%s)", [text])
        with pytest.raises(psycopg.errors.UniqueViolation), shop.database.transaction():
            shop.database.execute("insert into bookings values (%s)", [text])
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_a_connection_in_pipeline_mode_is_refused(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(spool.ProtocolError, match="pipeline"), shop.database.pipeline(), shop.booking(manager):
            pass
        with shop.booking(manager):  # a pipeline that ends within the transaction is no problem
            text = shop.space.get("orders").body
            shop.space.put("answers", text)
            with shop.database.pipeline():
                shop.database.execute("insert into bookings values (%s)", [text])
    assert shop.check_agreement(["tea"]) == ["tea"]


@pytest.mark.parametrize("factory", [sqlite3.Row, None], ids=["Row", "tuple"])
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_x03_sqlite_with_another_writer(memory: Path, factory: Any, journal: str, by_default: Server) -> None:
    """A writer that holds the database makes the insertion fail, and the space is undone."""
    desk = Desk(memory, KINDS["sqlite3"], by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(desk.connect()) as other:
        with closing(sqlite3.connect(desk.place, timeout=0)) as database:
            database.execute(f"pragma journal_mode = {journal}")
            database.row_factory = factory
            other.execute("begin immediate")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                desk.book(manager, database)
            desk.check([], ["tea"])
            other.rollback()
            desk.book(manager, database)
            desk.check(["tea"], [], manager)


@pytest.mark.parametrize("is_on_server", [False, True], ids=["SQLite", "PostgreSQL"])
def test_x03_pending_objects_of_a_session(memory: Path, by_default: Server, is_on_server: bool) -> None:
    desk = Desk(memory, KINDS["Session, PostgreSQL" if is_on_server else "Session, SQLite"], by_default)
    desk.space.put_many("orders", ["tea", "tea", "water"])
    with desk.space, desk.manager() as manager, closing(desk.connect()) as session:
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
        desk.check(["earlier", "tea", "water"], [], manager)


@pytest.mark.parametrize("name", [name for name in KINDS if name.startswith(("Connection", "Session"))])
@pytest.mark.parametrize("call", ["commit", "rollback", "close"])
def test_x03_a_program_that_ends_the_transaction_of_sqlalchemy_is_told(
    memory: Path, by_default: Server, name: str, call: str
) -> None:
    desk = Desk(memory, KINDS[name], by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(desk.connect()) as database:
        with pytest.raises(spool.ProtocolError, match="the program has ended"):
            with manager.transaction() as transaction:
                transaction.enlist(desk.space)
                transaction.enlist(database)
                desk.space.get("orders")
                getattr(database, call)()
        desk.check([], ["tea"])


# -- the row and the message disagree ----------------------------------------------------------------------------------


@contextmanager
def refused_by_reader(database: sqlite3.Connection, place: Path) -> Iterator[None]:
    """Read by another connection, so that a commit waits in vain."""
    with closing(sqlite3.connect(place)) as reader:
        reader.execute("begin")
        reader.execute("select * from bookings").fetchall()
        yield


@contextmanager
def refused_by_constraint(database: sqlite3.Connection, place: Path) -> Iterator[None]:
    """Let each booking break a constraint that SQLite checks at the commit."""
    database.execute("pragma foreign_keys = on")
    parent = "parent integer references lines (id) deferrable initially deferred"
    database.execute(f"create table lines (id integer primary key, {parent})")
    database.execute("create trigger late after insert on bookings begin insert into lines values (1, 7); end")
    yield


@pytest.mark.parametrize("refused", [refused_by_reader, refused_by_constraint])
def test_x03_a_commit_that_sqlite_refuses_undoes_the_space(memory: Path, by_default: Server, refused: Any) -> None:
    desk = Desk(memory, KINDS["sqlite3"], by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(sqlite3.connect(desk.place, timeout=0)) as database:
        with refused(database, desk.place), suppress(sqlite3.Error):
            desk.book(manager, database)
        desk.check([], ["tea"], manager)


def test_x03_a_commit_within_a_block_of_psycopg_commits_both_or_none(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with suppress(psycopg.Error), shop.booking(manager) as transaction, shop.database.transaction():
            text = shop.space.get("orders").body
            shop.database.execute("insert into bookings values (%s)", [text])
            shop.space.put("answers", text)
            transaction.commit()
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        shop.check_agreement(["tea"])


def fail_a_statement(shop: Shop) -> None:
    with suppress(psycopg.errors.UndefinedTable):
        shop.database.execute("select * from missing")


def roll_back_by_sql(shop: Shop) -> None:
    shop.database.execute("rollback")


@pytest.mark.parametrize("spoil", [fail_a_statement, roll_back_by_sql])
def test_x03_a_vote_for_a_transaction_that_has_failed_is_no_vote(
    two_phase_shop: Shop, spoil: Callable[[Shop], None]
) -> None:
    """Source: pgjdbc, ``PGXAConnection.prepare``, and its tests of silent rollbacks."""
    shop = two_phase_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with suppress(spool.SpoolError, psycopg.Error), shop.booking(manager):
            text = shop.space.get("orders").body
            shop.database.execute("insert into bookings values (%s)", [text])
            shop.space.put("answers", text)
            spoil(shop)
        shop.check_agreement(["tea"])


def test_x03_a_decision_is_durable_although_the_session_commits_asynchronously(memory: Path) -> None:
    """The process that writes PostgreSQL's log is stopped, so only the commit itself can make the decision durable."""
    with server(two_phase=False) as found, Shop(memory, found, False) as shop, shop.manager() as manager:
        shop.space.put("orders", "tea")
        with closing(found.connect(autocommit=True)) as database:
            database.execute("alter role test set synchronous_commit = off")
            find = "select pid from pg_stat_activity where backend_type = 'walwriter'"
            [writer] = database.execute(find).fetchone() or ()
        shop.reconnect()
        os.kill(writer, signal.SIGSTOP)

        def crash() -> None:
            os.kill(writer, signal.SIGKILL)
            found.kill()

        with acting(DECISION, "after", crash):
            shop.book(manager)
        found.start()
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == ["tea"]


AUTOCOMMIT = {
    "Connection, engine": (sqlalchemy.Engine.connect, True),
    "Session, engine": (Session, True),
    "Session, options": (Session, False),
}


@pytest.mark.parametrize("way", AUTOCOMMIT)
@pytest.mark.parametrize("is_on_server", [False, True], ids=["SQLite", "PostgreSQL"])
def test_x03_an_engine_in_autocommit_mode_is_refused(
    memory: Path, by_default: Server, way: str, is_on_server: bool
) -> None:
    desk = Desk(memory, KINDS["Session, PostgreSQL" if is_on_server else "Session, SQLite"], by_default)
    connect, is_of_engine = AUTOCOMMIT[way]
    level = "AUTOCOMMIT"
    engine = engine_of(desk.place, isolation_level=level) if is_of_engine else engine_of(desk.place)
    if not is_of_engine:
        engine = engine.execution_options(isolation_level=level)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(connect(engine)) as database:
        with suppress(Mistake, spool.InvalidArgument), manager.transaction() as transaction:
            transaction.enlist(desk.space)
            transaction.enlist(database)
            desk.insert(database, desk.space.get("orders").body)
            raise Mistake
        desk.check([], ["tea"])


@pytest.mark.parametrize("is_on_server", [False, True], ids=["SQLite", "PostgreSQL"])
def test_x03_a_connection_of_sqlalchemy_in_autocommit_mode_is_refused(
    memory: Path, by_default: Server, is_on_server: bool
) -> None:
    desk = Desk(memory, KINDS["Connection, PostgreSQL" if is_on_server else "Connection, SQLite"], by_default)
    with desk.space, desk.manager() as manager, closing(desk.connect()) as database:
        with pytest.raises(spool.InvalidArgument, match="AUTOCOMMIT"), manager.transaction() as transaction:
            transaction.enlist(database.execution_options(isolation_level="AUTOCOMMIT"))


@pytest.mark.parametrize("is_known", [False, True], ids=["first", "later"])
def test_x03_a_session_within_the_transaction_of_a_connection_is_refused(
    memory: Path, by_default: Server, is_known: bool
) -> None:
    desk = Desk(memory, KINDS["Connection, PostgreSQL"], by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(desk.connect()) as connection:
        if is_known:
            with Session(connection) as session, manager.transaction() as transaction:
                transaction.enlist(session)
        outer = connection.begin()
        desk.insert(connection, "earlier")
        with suppress(spool.SpoolError), Session(connection) as session:
            desk.book(manager, session)
        assert outer.is_active, "the program's own transaction is not touched"
        outer.rollback()
        desk.check([], ["tea"], manager)


def test_x03_a_recovery_in_a_forked_child_does_not_touch_the_branches_of_its_parent(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    begin, begun = os.pipe()
    with shop.manager() as manager:

        def recover() -> None:
            os.read(begin, 1)
            with spool.open(shop.path) as space, closing(shop.server.connect()) as database:
                manager.recover(space, database)

        child = start(recover)

        def meanwhile() -> None:
            os.write(begun, b"1")
            exit_code(child)

        with acting(ROW, "before", meanwhile):
            shop.book(manager)
        assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_the_end_of_a_transaction_in_a_forked_child_changes_nothing(last_resource_shop: Shop) -> None:
    """E.g. ``sys.exit`` in a child that was forked within the ``with`` block."""
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with suppress(spool.SpoolError, psycopg.Error), shop.booking(manager) as transaction:
            text = shop.space.get("orders").body
            shop.database.execute("insert into bookings values (%s)", [text])
            shop.space.put("answers", text)
            exit_code_of(lambda: transaction.__exit__(SystemExit, SystemExit(), None))
        shop.reconnect()
        shop.check_agreement(["tea"])


@pytest.mark.usefixtures("impatient")
def test_x03_a_transaction_does_not_commit_after_its_manager_was_closed(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    manager = shop.manager()
    with pytest.raises(spool.NotOpen), shop.booking(manager):
        text = shop.space.get("orders").body
        shop.database.execute("insert into bookings values (%s)", [text])
        shop.space.put("answers", text)
        manager.close()
    shop.check_agreement(["tea"])


def test_x03_a_transaction_does_not_decide_while_its_manager_is_closed(last_resource_shop: Shop) -> None:
    """One thread closes the manager, e.g. at the end of the program; another one commits; then a program recovers."""
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    manager = shop.manager()
    works, may_commit, decides, may_decide = (threading.Event() for _ in range(4))

    def commit() -> None:
        with suppress(spool.SpoolError, psycopg.Error), shop.booking(manager):
            text = shop.space.get("orders").body
            shop.database.execute("insert into bookings values (%s)", [text])
            shop.space.put("answers", text)
            works.set()
            may_commit.wait(PATIENT_SECONDS)
        decides.set()

    def let_it_commit() -> None:
        may_commit.set()
        decides.wait(PATIENT_SECONDS)

    def decide() -> None:
        decides.set()
        may_decide.wait(PATIENT_SECONDS)

    thread = threading.Thread(target=commit)
    with acting(ROW, "before", decide):
        thread.start()
        works.wait(PATIENT_SECONDS)
        with acting(Step("the wait", Outcomes, "close"), "after", let_it_commit):
            manager.close()
        with spool.open(shop.path) as space, closing(shop.server.connect()) as database, shop.manager() as other:
            other.recover(space, database)
        may_decide.set()
        thread.join()
    shop.check_agreement(["tea"])


@pytest.mark.usefixtures("impatient")
def test_x03_a_transaction_keeps_its_manager(last_resource_shop: Shop) -> None:
    transaction = last_resource_shop.manager().transaction()
    gc.collect()
    transaction._decisions.check()
    transaction.rollback()


def test_x03_a_closed_manager_does_not_recover(last_resource_shop: Shop) -> None:
    manager = last_resource_shop.manager()
    manager.close()
    with pytest.raises(spool.NotOpen):
        manager.recover(last_resource_shop.space)


def test_x03_the_log_remains_until_each_of_two_databases_was_recovered(with_two_phases: Server, memory: Path) -> None:
    """The user may not call ``pg_control_system``. Every driver but those of PostgreSQL has such a name, too."""
    names = ["east", "west"]
    with closing(with_two_phases.connect(autocommit=True)) as database:
        database.execute("create role clerk login")
        for name in names:
            database.execute(f"create database {name} owner clerk")

    def connect(name: str, user: str = "clerk") -> Any:
        place = with_two_phases.where.replace("dbname=postgres", f"dbname={name}")
        return psycopg.connect(place.replace("user=test", f"user={user}"))

    def program() -> None:
        with xa.TransactionManager(memory / "log") as manager, manager.transaction() as transaction:
            for name in names:
                connections[name] = connect(name)
                transaction.enlist(connections[name])
                connections[name].execute("insert into bookings values ('tea')")
            mock.patch.object(TwoPhaseBranch, "commit", side_effect=die).start()

    connections: dict[str, Any] = {}
    try:
        for name in names:
            with connect(name, "test") as database:
                database.execute("revoke execute on function pg_control_system() from public")
                database.execute("create table bookings (text text)")
                database.execute("grant all on bookings to clerk")
        assert exit_code_of(program) == -signal.SIGKILL
        booked = {}
        for name in names:
            with xa.TransactionManager(memory / "log") as manager, closing(connect(name)) as database:
                manager.recover(database)
                booked[name] = database.execute("select text from bookings").fetchall()
        assert booked == {"east": [("tea",)], "west": [("tea",)]}
    finally:
        with closing(with_two_phases.connect(autocommit=True)) as database:
            for name in names:
                database.execute(f"drop database {name}")
            database.execute("drop role clerk")


@pytest.mark.xfail(
    strict=True,
    reason="a log names a space by its path: a new space at the path passes for the space that was moved away, so the "
    "log is removed before the decision has reached the branch",
)
def test_x03_the_log_remains_until_a_space_that_was_moved_was_recovered(two_phase_shop: Shop, memory: Path) -> None:
    shop = two_phase_shop
    shop.space.put("orders", "tea")

    def program() -> None:
        with shop, shop.manager() as manager, mock.patch.object(SpaceBranch, "commit", side_effect=die):
            shop.book(manager)

    assert exit_code_of(program) == -signal.SIGKILL
    shop.space.close()
    shop.path.rename(memory / "moved")
    with spool.create(shop.path) as new, shop.manager() as manager:
        manager.recover(new, shop.database)
    shop.space = spool.open(memory / "moved")
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["tea"]) == ["tea"]


# -- the program is not told the truth ---------------------------------------------------------------------------------


def test_x03_a_commit_in_one_phase_whose_answer_is_lost_is_unknown(shop: Shop) -> None:
    execute = shop.database._exec_command

    def lose_the_answer(command: Any, *arguments: Any) -> Any:
        yield from execute(command, *arguments)
        if command == b"COMMIT":
            shop.database.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    with shop.manager() as manager, mock.patch.object(shop.database, "_exec_command", lose_the_answer):
        with pytest.raises(spool.CommitUnknown), shop.booking(manager):
            shop.database.execute("insert into bookings values ('tea')")
    assert shop.booked() == ["tea"]


def test_x03_a_commit_in_one_phase_after_a_failed_statement_is_no_commit(shop: Shop) -> None:
    """Source: pgjdbc, ``raiseExceptionOnSilentRollback``."""
    with shop.manager() as manager:
        with pytest.raises((spool.SpoolError, psycopg.Error)), shop.booking(manager):
            shop.database.execute("insert into bookings values ('tea')")
            fail_a_statement(shop)
    assert shop.booked() == []


def test_x03_a_commit_in_one_phase_of_a_closed_connection_is_no_commit(last_resource_shop: Shop) -> None:
    """E.g. ``with closing(psycopg.connect(…))`` within the transaction."""
    shop = last_resource_shop
    with shop.manager() as manager:
        with pytest.raises((spool.SpoolError, psycopg.Error)), shop.booking(manager):
            shop.database.execute("insert into bookings values ('tea')")
            shop.database.close()


def test_x03_a_rollback_by_sql_is_noticed(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(spool.ProtocolError), shop.booking(manager):
            text = shop.space.get("orders").body
            shop.database.execute("insert into bookings values (%s)", [text])
            shop.space.put("answers", text)
            roll_back_by_sql(shop)
    shop.check_agreement(["tea"])


def test_x03_a_rollback_by_the_program_and_a_later_row_are_noticed(memory: Path, by_default: Server) -> None:
    desk = Desk(memory, KINDS["sqlite3"], by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(desk.connect()) as database:
        with pytest.raises(spool.ProtocolError), manager.transaction() as transaction:
            transaction.enlist(desk.space)
            transaction.enlist(database)
            desk.insert(database, desk.space.get("orders").body)
            database.rollback()
            desk.insert(database, "later")
        desk.check([], ["tea"])


@pytest.mark.parametrize("name", ["Connection, PostgreSQL", "Session, PostgreSQL"])
def test_x03_a_constraint_that_fails_at_the_commit_of_sqlalchemy(memory: Path, by_default: Server, name: str) -> None:
    kind = KINDS[name]
    desk = Desk(memory, kind, by_default)
    with closing(by_default.connect(autocommit=True)) as database:
        database.execute("alter table bookings drop constraint bookings_pkey")
        database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    desk.space.put_many("orders", ["tea", "tea"])
    with desk.space, desk.manager() as manager, closing(desk.connect()) as database:
        desk.book(manager, database)
        with pytest.raises(kind.failure):
            desk.book(manager, database)
        manager.recover(desk.space, database)
        desk.check(["tea"], ["tea"], manager)


IMPATIENT_CONNECTIONS: dict[str, Callable[[Path], Any]] = {
    "sqlite3": lambda place: sqlite3.connect(place, timeout=0),
    "Connection, SQLite": lambda place: engine_of(place, connect_args={"timeout": 0}).connect(),
    "Session, SQLite": lambda place: Session(engine_of(place, connect_args={"timeout": 0})),
}


@pytest.mark.parametrize("name", IMPATIENT_CONNECTIONS)
def test_x03_a_refused_commit_in_one_phase_leaves_the_connection_idle(
    memory: Path, by_default: Server, name: str
) -> None:
    desk = Desk(memory, KINDS[name], by_default)
    place = memory / "shop.db"
    with desk.space, desk.manager() as manager, closing(IMPATIENT_CONNECTIONS[name](place)) as database:

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


@pytest.mark.xfail(
    strict=True,
    reason="after CommitUnknown the connection still has the undecided row, so a recovery by another connection waits "
    "until the program closes the connection",
)
def test_x03_after_an_unknown_outcome_the_connection_holds_no_row(last_resource_shop: Shop) -> None:
    """The program commits within its own block, see above, and then recovers as the documentation says."""
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager, closing(shop.server.connect(options="-c lock_timeout=100")) as other:
        with suppress(psycopg.Error), shop.booking(manager) as transaction, shop.database.transaction():
            shop.space.get("orders")
            shop.space.put("answers", "tea")
            with suppress(spool.CommitUnknown):
                transaction.commit()
        manager.recover(shop.space, other)
        shop.check_agreement(["tea"])


def test_x03_an_exit_during_the_decision_is_raised_after_the_commit(last_resource_shop: Shop) -> None:
    """E.g. a handler of SIGTERM calls ``sys.exit``."""
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(SystemExit), acting(Step("the commit", _Psycopg, "commit"), "after", exit_program):
            shop.book(manager)
    assert shop.check_agreement(["tea"]) == ["tea"]


def exit_program() -> None:
    raise SystemExit


def test_x03_a_branch_that_another_program_rolled_back_is_reported(
    last_resource_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")

    def roll_back_behind() -> None:
        with spool.open(shop.path) as space:
            rm = xa.ResourceManager(space)
            for xid in rm.recover():
                rm.rollback(xid)

    with shop.manager() as manager, acting(DECISION, "after", roll_back_behind):
        shop.book(manager)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR]


# -- branches, rows and logs that remain -------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", ["commit", "rollback"])
def test_x03_an_interrupt_of_the_second_phase_leaves_nothing_in_doubt(
    last_resource_shop: Shop, call: str, interrupt: type[BaseException]
) -> None:
    """A second Ctrl-C, or the handler of another signal."""
    shop = last_resource_shop
    shop.space.put("orders", "tea")

    def fail(error: type[BaseException]) -> None:
        raise error

    with shop.manager() as manager:
        with acting(Step(call, SpaceBranch, call), "before", partial(fail, interrupt)):
            with pytest.raises(interrupt):
                if call == "commit":
                    shop.book(manager)
                else:
                    with acting(ROW, "before", partial(fail, Mistake)):
                        shop.book(manager)
        with closing(shop.server.connect()) as database:
            manager.recover(shop.space, database)
        assert shop.check_agreement(["tea"]) == (["tea"] if call == "commit" else [])


def test_x03_a_database_that_is_away_does_not_keep_another_one_waiting(two_phase_shop: Shop) -> None:
    shop = two_phase_shop
    shop.space.put("orders", "tea")

    def away() -> Any:
        raise psycopg.OperationalError("the server is down")

    with shop.manager() as manager:
        with pytest.raises(psycopg.OperationalError):
            manager.recover(away)
        manager.recover(shop.space, shop.server.connect)
        with acting(Step("the commit", TwoPhaseBranch, "commit"), "before", partial(terminate_sessions, shop.server)):
            shop.book(manager)
        with suppress(psycopg.OperationalError):
            manager._repeat()
        assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_an_administrators_decision_does_not_end_the_recovery(two_phase_shop: Shop) -> None:
    """The recovery logs the contradiction, as it does for branches of dead coordinators, and goes on."""
    shop = two_phase_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with acting(Step("the commit", SpaceBranch, "commit"), "before", shop.space.close):
            shop.book(manager)
        shop.space = spool.open(shop.path)
        rm = xa.ResourceManager(shop.space)
        [xid] = rm.recover()
        rm.decide_heuristically(xid, commit=False)
        manager.recover(shop.space, shop.database)


def test_x03_a_connection_that_breaks_before_its_vote_leaves_nothing(two_phase_shop: Shop) -> None:
    shop = two_phase_shop
    with shop.manager() as manager:
        with pytest.raises(psycopg.OperationalError), shop.booking(manager):
            terminate_sessions(shop.server)
            shop.database.execute("select 1")
        assert manager._outcomes.is_empty
    assert shop.dead_logs() == 0


def test_x03_a_refused_commit_in_one_phase_leaves_nothing(two_phase_shop: Shop) -> None:
    shop = two_phase_shop
    shop.database.execute("alter table bookings drop constraint bookings_pkey")
    shop.database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    shop.database.commit()
    shop.database.autocommit = True
    with shop.manager() as manager:
        with pytest.raises(psycopg.errors.UniqueViolation), shop.booking(manager):
            for _ in range(2):
                shop.database.execute("insert into bookings values ('tea')")
        assert (shop.database.autocommit, manager._outcomes.is_empty) == (True, True)


@pytest.mark.usefixtures("impatient")
def test_x03_a_dropped_transaction_is_rolled_back(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        transactions = [manager.transaction()]
        for resource in (shop.space, shop.database):
            transactions[0].enlist(resource)
        shop.space.get("orders")
        transactions.clear()
        gc.collect()
        assert manager._outcomes.is_empty


def test_x03_rows_of_refused_decisions_are_removed(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.database.execute("alter table bookings drop constraint bookings_pkey")
    shop.database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    shop.database.commit()
    shop.space.put_many("orders", ["tea", "tea"])
    with shop.manager() as manager:
        shop.book(manager)
        with pytest.raises(psycopg.errors.UniqueViolation):
            shop.book(manager)
        manager.recover(shop.space, shop.database)
        assert shop.decisions() == 0


def test_x03_a_table_that_was_created_again_is_found_by_all_connections(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager() as manager, closing(shop.server.connect()) as other:
        shop.book(manager)
        other.execute("drop table xaspool_decisions")
        other.commit()
        manager.prepare_database(other)
        with suppress(decision_table.DecisionTableMissing):
            shop.book(manager)
        with suppress(spool.Empty):
            shop.book(manager)
    assert shop.check_agreement(["milk", "tea"]) == ["milk", "tea"]


@pytest.mark.parametrize("two_phase", [False, True])
def test_x03_a_connection_with_two_phases_and_without_cursors_takes_part(memory: Path, two_phase: bool) -> None:
    with spool.create(memory / "space") as space:
        space.create_queue("orders")
    with xa.TransactionManager(memory / "log") as manager, closing(xa.connect(memory / "space")) as connection:
        with manager.transaction() as transaction:
            transaction.enlist(connection, two_phase=two_phase)
            connection.space.put("orders", "tea")
        manager.recover(connection)


@pytest.mark.usefixtures("impatient")
def test_x03_a_forked_child_does_not_wait_for_its_parent(last_resource_shop: Shop) -> None:
    """The end of the child calls ``close``, too."""
    with last_resource_shop.manager() as manager, manager.transaction():

        def child() -> None:
            with mock.patch.object(Outcomes, "wait", side_effect=AssertionError):
                manager.close()

        assert exit_code_of(child) == 0


# -- connections with other settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory",
    [
        namedtuple_row,
        dict_row,
        scalar_row,
    ],
)
def test_x03_psycopg_with_each_factory_of_rows(last_resource_shop: Shop, factory: Any) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    shop.database.row_factory = factory
    with shop.manager() as manager:
        shop.book(manager)
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_the_name_of_a_database_does_not_depend_on_the_factory_of_rows(two_phase_shop: Shop) -> None:
    shop = two_phase_shop
    with shop.manager() as manager, mock.patch.object(DecisionLog, "register") as register:
        for factory in (namedtuple_row, dict_row):
            shop.reconnect()
            shop.database.row_factory = factory
            with shop.booking(manager):
                pass
    names = {call.args[0] for call in register.call_args_list}
    assert len([name for name in names if not name.startswith("space")]) == 1


def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def first_column(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> Any:
    return row[0]


@pytest.mark.parametrize(
    ("attribute", "factory"),
    [
        ("row_factory", as_dict),
        ("row_factory", first_column),
        ("text_factory", bytes),
    ],
)
def test_x03_sqlite_with_each_factory(memory: Path, by_default: Server, attribute: str, factory: Any) -> None:
    desk = Desk(memory, KINDS["sqlite3"], by_default)
    desk.space.put("orders", "tea")
    with desk.space, desk.manager() as manager, closing(desk.connect()) as database:
        setattr(database, attribute, factory)
        desk.book(manager, database)
        manager.recover(desk.space, database)
        desk.check(["tea"], [], manager)


def test_x03_psycopg_with_raw_cursors(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    shop.database.cursor_factory = psycopg.RawCursor
    with shop.manager() as manager, shop.booking(manager):
        text = shop.space.get("orders").body
        shop.database.execute("insert into bookings values ($1)", [text])
        shop.space.put("answers", text)
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_psycopg_with_a_client_encoding_of_sql_ascii(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    shop.database.close()
    shop.database = shop.server.connect(client_encoding="SQL_ASCII")
    with shop.manager() as manager:
        shop.book(manager)
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_an_asynchronous_connection_is_refused(last_resource_shop: Shop) -> None:
    async def enlist() -> None:
        with last_resource_shop.manager() as manager, manager.transaction() as transaction:
            async with await psycopg.AsyncConnection.connect(last_resource_shop.server.where) as connection:
                with pytest.raises(spool.InvalidArgument):
                    transaction.enlist(connection)

    asyncio.run(enlist())


def test_x03_an_interrupt_of_enlist_leaves_the_connection_as_it_was(two_phase_shop: Shop) -> None:
    shop = two_phase_shop
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


def test_x03_a_commit_in_pipeline_mode_is_refused_by_its_name(last_resource_shop: Shop) -> None:
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises(spool.ProtocolError, match="pipeline"):
            with shop.booking(manager) as transaction, shop.database.pipeline():
                shop.space.get("orders")
                transaction.commit()
    assert shop.check_agreement(["tea"]) == []


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


def test_x03_a_driver_whose_autocommit_is_a_method_is_refused_in_that_mode(memory: Path, by_default: Server) -> None:
    desk = Desk(memory, KINDS["sqlite3"], by_default)
    with desk.space, desk.manager() as manager, closing(Driver(memory / "shop.db")) as database:
        with pytest.raises(spool.InvalidArgument, match="autocommit"), manager.transaction() as transaction:
            transaction.enlist(database)

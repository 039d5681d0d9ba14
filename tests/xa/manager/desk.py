"""A desk: a shop whose database is any kind of connection, as the last resource of its transactions."""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

import spool
import xa
from tests import door
from tests.at_once import AT_ONCE
from tests.postgresql import Server
from tests.xa.manager.shop import Shop
from tests.xa.manager.steps import Step
from xa.manager import decision_table
from xa.manager.last_resource import LastResource

PATIENT_SECONDS = 60
ROW = Step("the row of the decision", decision_table, "insert")
DECISION = Step("the decision", LastResource, "decide")


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


TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where backend_type = 'client backend' and pid <> pg_backend_pid()"
)


def terminate_sessions(place: Server) -> None:
    """End all other sessions of the server, as an administrator does."""
    with closing(place.connect(autocommit=True)) as database:
        database.execute(TERMINATE)


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


def of_kinds(*names: str) -> pytest.MarkDecorator:
    """Let a test use a desk with each of these kinds of connections."""
    return pytest.mark.parametrize("desk", names, indirect=True)


on_server = of_kinds(*(name for name, kind in KINDS.items() if kind.is_on_server))


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
            door.settle(manager)
        assert self.booked() == booked
        assert sorted(message.body for message in self.space.browse("orders")) == waiting
        assert xa.ResourceManager(self.space).recover() == []


def exit_program() -> None:
    raise SystemExit


def fail_a_statement(shop: Shop) -> None:
    with suppress(psycopg.errors.UndefinedTable):
        shop.database.execute("select * from missing")


def roll_back_by_sql(shop: Shop) -> None:
    shop.database.execute("rollback")

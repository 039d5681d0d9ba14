"""Attempts to make the row and the message disagree: refused commits, autocommit, forks, closes, moved spaces."""

import gc
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import spool
import xa
from tests.branches import Mistake
from tests.children import exit_code, exit_code_of, let_die, start
from tests.postgresql import Server, server
from tests.xa.manager.desk import (
    DECISION,
    PATIENT_SECONDS,
    ROW,
    Desk,
    engine_of,
    fail_a_statement,
    of_kinds,
    roll_back_by_sql,
)
from tests.xa.manager.shop import Shop, die, last_resource
from tests.xa.manager.steps import Step, acting
from xa.manager.outcomes import Outcomes
from xa.manager.two_phase_branch import TwoPhaseBranch


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


@of_kinds("sqlite3")
@pytest.mark.parametrize("refused", [refused_by_reader, refused_by_constraint])
def test_x03_a_commit_that_sqlite_refuses_undoes_the_space(desk: Desk, refused: Any) -> None:
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(sqlite3.connect(desk.place, timeout=0)) as database:
        with refused(database, desk.place), suppress(sqlite3.Error):
            desk.book(manager, database)
        desk.check([], ["tea"], manager)


@last_resource
def test_x03_a_commit_within_a_block_of_psycopg_commits_both_or_none(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with suppress(spool.CommitUnknown), shop.booking(manager) as transaction, shop.database.transaction():
            shop.work()
            transaction.commit()
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        shop.check_agreement(["tea"])


@pytest.mark.parametrize("spoil", [fail_a_statement, roll_back_by_sql])
def test_x03_a_decision_about_a_transaction_that_has_failed_is_a_rollback(shop: Shop, spoil: Callable[[Shop], None]):
    """Source: pgjdbc, ``PGXAConnection.prepare``, and its tests of silent rollbacks."""
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with pytest.raises((spool.SpoolError, psycopg.Error)), shop.booking(manager):
            shop.work()
            spoil(shop)
        assert shop.check_agreement(["tea"]) == []


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
@of_kinds("Session, SQLite", "Session, PostgreSQL")
def test_x03_an_engine_in_autocommit_mode_is_refused(desk: Desk, way: str) -> None:
    connect, is_of_engine = AUTOCOMMIT[way]
    level = "AUTOCOMMIT"
    engine = engine_of(desk.place, isolation_level=level) if is_of_engine else engine_of(desk.place)
    if not is_of_engine:
        engine = engine.execution_options(isolation_level=level)
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(connect(engine)) as database:
        with suppress(Mistake, spool.InvalidArgument), manager.transaction() as transaction:
            transaction.enlist(desk.space)
            transaction.enlist(database)
            desk.insert(database, desk.space.get("orders").body)
            raise Mistake
        desk.check([], ["tea"])


@of_kinds("Connection, SQLite", "Connection, PostgreSQL")
def test_x03_a_connection_of_sqlalchemy_in_autocommit_mode_is_refused(desk: Desk) -> None:
    with desk.manager() as manager, closing(desk.connect()) as database:
        with pytest.raises(spool.InvalidArgument, match="AUTOCOMMIT"), manager.transaction() as transaction:
            transaction.enlist(database.execution_options(isolation_level="AUTOCOMMIT"))


@of_kinds("Connection, PostgreSQL")
@pytest.mark.parametrize("is_known", [False, True], ids=["first", "later"])
def test_x03_a_session_within_the_transaction_of_a_connection_is_refused(desk: Desk, is_known: bool) -> None:
    desk.space.put("orders", "tea")
    with desk.manager() as manager, closing(desk.connect()) as connection:
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


@last_resource
def test_x03_a_recovery_in_a_forked_child_does_not_touch_the_branches_of_its_parent(shop: Shop) -> None:
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


@last_resource
def test_x03_the_end_of_a_transaction_in_a_forked_child_changes_nothing(shop: Shop) -> None:
    """E.g. ``sys.exit`` in a child that was forked within the ``with`` block."""
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with suppress(spool.SpoolError, psycopg.Error), shop.booking(manager) as transaction:
            shop.work()
            exit_code_of(lambda: transaction.__exit__(SystemExit, SystemExit(), None))
        shop.reconnect()
        shop.check_agreement(["tea"])


@last_resource
def test_x03_a_transaction_does_not_decide_while_its_manager_is_closed(shop: Shop) -> None:
    """One thread closes the manager, e.g. at the end of the program; another one commits; then a program recovers."""
    shop.space.put("orders", "tea")
    manager = shop.manager()
    works, may_commit, decides, may_decide = (threading.Event() for _ in range(4))

    def commit() -> None:
        with suppress(spool.SpoolError, psycopg.Error), shop.booking(manager):
            shop.work()
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


@last_resource
@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_x03_a_transaction_keeps_its_manager(shop: Shop) -> None:
    transaction = shop.manager().transaction()
    gc.collect()
    transaction._decisions.check()
    transaction.rollback()


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
        let_die(program)
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

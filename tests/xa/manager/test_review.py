"""scratch"""

import gc
import sqlite3
from contextlib import closing
from unittest import mock

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import spool
import xa
import xa.manager.manager as mm
from tests.at_once import AT_ONCE
from tests.children import exit_code_of
from tests.xa.manager.shop import Shop
from tests.xa.manager.steps import Step, acting
from xa.manager import decision_table


def pg_engine(server, **k):
    return sa.create_engine(f"postgresql+psycopg://test@/postgres?host={server.directory}", poolclass=NullPool, **k)


def run(name, act):
    try:
        r = act()
    except BaseException as e:
        print("OUT", name, repr(e)[:300])
    else:
        print("OUT", name, r)


@pytest.mark.parametrize("how", ["Connection", "Session"])
def test_sa_commit_fails(last_resource_shop, how):
    shop = last_resource_shop
    shop.space.put_many("orders", ["tea", "tea"])
    shop.database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    shop.database.execute("alter table bookings drop constraint bookings_pkey")
    shop.database.commit()
    engine = pg_engine(shop.server)
    with shop.manager() as m, closing(engine.connect() if how == "Connection" else Session(engine)) as db:
        for n in range(2):

            def act():
                with m.transaction() as t:
                    t.enlist(shop.space)
                    t.enlist(db)
                    db.execute(sa.text("insert into bookings values(:t)"), {"t": shop.space.get("orders").body})

            run("book", act)
        run("intrans", lambda: db.in_transaction())
        run("recover", lambda: m.recover(shop.space, db))
        print("OUT", shop.booked(), shop.waiting(), shop.doubts(), shop.decisions())


def test_sa_busy(memory):
    path = memory / "db"
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=NullPool, connect_args={"timeout": 0.1})
    with (
        spool.create(memory / "space", defaults=AT_ONCE) as space,
        xa.TransactionManager(memory / "log") as m,
        closing(engine.connect()) as db,
    ):
        space.create_queue("orders")
        space.put("orders", "tea")
        db.execute(sa.text("create table bookings(text text primary key)"))
        db.commit()
        m.prepare_database(db)
        reader = sqlite3.connect(path)
        reader.execute("begin")
        reader.execute("select * from bookings").fetchall()

        def act():
            with m.transaction() as t:
                t.enlist(space)
                t.enlist(db)
                db.execute(sa.text("insert into bookings values(:t)"), {"t": space.get("orders").body})

        run("book", act)
        reader.close()
        run("recover", lambda: m.recover(space, db))
        print(
            "OUT",
            sqlite3.connect(path).execute("select * from bookings").fetchall(),
            [x.body for x in space.browse("orders")],
            xa.ResourceManager(space).recover(),
        )


@pytest.mark.parametrize("how", ["Connection", "Session"])
@pytest.mark.parametrize("server", ["sqlite", "pg"])
@pytest.mark.parametrize("opt", ["engine", "execution"])
def test_sa_autocommit(last_resource_shop, how, server, memory, opt):
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    mk = (
        (lambda **k: pg_engine(shop.server, **k))
        if server == "pg"
        else (lambda **k: sa.create_engine(f"sqlite:///{memory / 'db'}", poolclass=NullPool, **k))
    )
    plain = mk()
    with plain.begin() as c:
        c.execute(sa.text("create table if not exists bookings(text varchar primary key)"))
    with shop.manager() as m:
        with plain.connect() as c:
            m.prepare_database(c)
        engine = (
            mk(isolation_level="AUTOCOMMIT")
            if opt == "engine"
            else plain.execution_options(isolation_level="AUTOCOMMIT")
        )
        with closing(engine.connect() if how == "Connection" else Session(engine)) as db:

            def act():
                with m.transaction() as t:
                    t.enlist(shop.space)
                    t.enlist(db)
                    db.execute(sa.text("insert into bookings values(:t)"), {"t": shop.space.get("orders").body})
                    raise ZeroDivisionError

            run("book", act)
        with plain.connect() as c:
            print("OUT", c.execute(sa.text("select * from bookings")).fetchall(), shop.waiting())


def test_session_bound_to_connection(last_resource_shop):
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    engine = pg_engine(shop.server)
    with shop.manager() as m, engine.connect() as c:
        outer = c.begin()
        with Session(bind=c) as db:

            def act():
                with m.transaction() as t:
                    t.enlist(shop.space)
                    t.enlist(db)
                    db.execute(sa.text("insert into bookings values(:t)"), {"t": shop.space.get("orders").body})

            run("book", act)
        print("OUT in tx", c.in_transaction())
        c.rollback()
        m._outcomes.wait(5)
        print("OUT", shop.booked(), shop.waiting(), shop.doubts())


def test_fork_recover(last_resource_shop):
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as m:

        def child():
            with (
                Shop.__enter__(shop) if False else spool.open(shop.path) as space,
                closing(shop.server.connect()) as db,
            ):
                print("CHILD", m.recover(space, db), flush=True)

        codes = []
        with acting(Step("d", decision_table, "insert"), "before", lambda: codes.append(exit_code_of(child))):
            run("book", lambda: shop.book(m))
        print("OUT", codes, shop.booked(), shop.waiting(), shop.waiting("answers"), shop.doubts())


def test_fork_unwind(last_resource_shop):
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with shop.manager() as m:

        def act():
            with shop.booking(m) as t:
                text = shop.space.get("orders").body
                shop.database.execute("insert into bookings values(%s)", [text])
                shop.space.put("answers", text)
                print("OUT child", exit_code_of(lambda: t.rollback()))

        run("book", act)
        print("OUT", shop.booked(), shop.waiting(), shop.waiting("answers"), shop.doubts())


def test_register_fails_after_rename(memory):
    from spool.decisions import open_directory
    from spool.disk.disk import Disk, FlushFailed

    with spool.create(memory / "space", defaults=AT_ONCE) as space, xa.TransactionManager(memory / "log") as m:
        space.create_queue("orders")
        calls = []
        real = Disk.make_durable

        def broken(self, handle, directory, **k):
            if self is m._directory.disk:
                calls.append(1)
                if len(calls) == 2:
                    raise FlushFailed(5, "Input/output error")
            return real(self, handle, directory, **k)

        with mock.patch.object(Disk, "make_durable", broken):

            def act():
                with m.transaction() as t:
                    t.enlist(space)

            run("enlist", act)
        run("again", lambda: m.transaction().rollback())
        print(
            "OUT alive",
            m._directory.is_alive(m._log.coordinator),
            open_directory(str(memory / "log")).is_alive(m._log.coordinator),
        )


def test_gc(last_resource_shop):
    shop = last_resource_shop
    with mock.patch.object(mm, "_CLOSE_SECONDS", 0):
        t = shop.manager().transaction()
        gc.collect()
        run("check", t._decisions.check)
        run("alive", lambda: t._decisions.directory.is_alive(t.id.coordinator))


def test_closed(last_resource_shop):
    shop = last_resource_shop
    shop.space.put("orders", "tea")
    with mock.patch.object(mm, "_CLOSE_SECONDS", 0), shop.manager() as m2:
        m = shop.manager()

        def act():
            with shop.booking(m) as t:
                text = shop.space.get("orders").body
                shop.database.execute("insert into bookings values(%s)", [text])
                shop.space.put("answers", text)
                m.close()

        with closing(shop.server.connect()) as other, spool.open(shop.path) as space:

            def recover():
                print("OUT rec", m2.recover(space, other))

            with acting(Step("d", decision_table, "insert"), "before", recover):
                run("book", act)
        print("OUT", shop.booked(), shop.waiting(), shop.waiting("answers"), shop.doubts())
        run("recover on closed", lambda: m.recover(shop.space))


@pytest.mark.parametrize("two_phase", [0, 1])
def test_one_phase_lost_reply(request, two_phase):
    shop = request.getfixturevalue("two_phase_shop" if two_phase else "last_resource_shop")
    with shop.manager() as m:
        real = psycopg.Connection._exec_command

        def lost(self, command, *a):
            r = yield from real(self, command, *a)
            if command == b"COMMIT" and self is shop.database:
                self.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return r

        def act():
            with shop.booking(m) as t:
                shop.database.execute("insert into bookings values('new')")

        with mock.patch.object(psycopg.Connection, "_exec_command", lost):
            run("book", act)
        print("OUT", shop.booked(), len(m._outcomes.unfinished))
    shop.reconnect()


def test_sync_commit(by_default, memory):
    pass

"""scratch"""
import os, signal, sqlite3, gc
from collections.abc import Iterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
import psycopg, pytest
from psycopg.rows import dict_row, namedtuple_row, scalar_row
import sqlalchemy as sa
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
import spool, xa
from tests.at_once import AT_ONCE
from tests.children import exit_code, start, exit_code_of
from tests.xa.manager.shop import Shop
from tests.xa.manager.steps import Step, acting
from xa.manager import decision_table
from xa.manager.connections import _Psycopg, _SQLite, _SQLAlchemy, _Session
from xa.manager.two_phase_branch import TwoPhaseBranch
from xa.manager.space_branch import SpaceBranch
import xa.manager.manager as mm


def pg_engine(server, **k):
    return sa.create_engine(f"postgresql+psycopg://test@/postgres?host={server.directory}", poolclass=NullPool, **k)

def run(name, act):
    try: r=act()
    except BaseException as e: print("OUT", name, repr(e)[:300])
    else: print("OUT", name, r)

def test_same_name(with_two_phases, memory):
    """two databases whose name cannot be learned"""
    with closing(with_two_phases.connect(autocommit=True)) as c:
        c.execute("revoke execute on function pg_control_system() from public")
        with suppress(Exception): c.execute("create role app login")
        c.execute("drop database if exists east"); c.execute("drop database if exists west")
        c.execute("create database east owner app"); c.execute("create database west owner app")
    def conn(name): return psycopg.connect(with_two_phases.where.replace("user=test dbname=postgres",f"user=app dbname={name}"))
    east, west = conn("east"), conn("west")
    for c in (east, west): c.execute("create table bookings(text text)"); c.commit()
    def child():
        east, west = conn("east"), conn("west")
        with xa.TransactionManager(memory/"log") as m, acting(Step("c",TwoPhaseBranch,"commit"),"before",lambda: os.kill(os.getpid(),9)):
            with m.transaction() as t:
                t.enlist(east); t.enlist(west)
                east.execute("insert into bookings values('a')"); west.execute("insert into bookings values('a')")
    print("OUT", exit_code_of(child))
    with xa.TransactionManager(memory/"log") as m:
        print("OUT", [len(x) for x in m.recover(east)], os.listdir(memory/"log"))
        print("OUT", [len(x) for x in m.recover(west)], os.listdir(memory/"log"))
    print("OUT", east.execute("select * from bookings").fetchall(), west.execute("select * from bookings").fetchall())
    east.close(); west.close()
    with closing(with_two_phases.connect(autocommit=True)) as c:
        c.execute("drop database east"); c.execute("drop database west"); c.execute("grant execute on function pg_control_system() to public")

def test_space_replaced(two_phase_shop, memory):
    shop=two_phase_shop; shop.space.put("orders","tea")
    def child():
        with shop, shop.manager() as m, acting(Step("c",SpaceBranch,"commit"),"before",lambda: os.kill(os.getpid(),9)): shop.book(m)
    print("OUT", exit_code_of(child))
    shop.space.close()
    os.rename(shop.path, memory/"old")
    with spool.create(shop.path) as new, shop.manager() as m:
        print("OUT", [len(x) for x in m.recover(new, shop.database)], shop.dead_logs(m))
    with spool.open(memory/"old") as old, shop.manager() as m:
        print("OUT", [len(x) for x in m.recover(old, shop.database)], shop.booked(), [x.body for x in old.browse("orders")])
    shop.space=spool.open(memory/"old")

def test_behind(last_resource_shop):
    import logging
    shop=last_resource_shop; shop.space.put("orders","tea")
    with shop.manager() as m:
        def behind():
            with spool.open(shop.path) as s:
                rm=xa.ResourceManager(s)
                for x in rm.recover(): rm.rollback(x)
        with acting(Step("d",_Psycopg,"commit"),"after",behind): run("book",lambda: shop.book(m))
        print("OUT", shop.booked(), shop.waiting(), m._outcomes.is_empty)

def test_factories(two_phase_shop, memory):
    """one factory fails"""
    shop=two_phase_shop
    with shop.manager() as m:
        n=[]
        def connect(): n.append(1); return shop.server.connect()
        m.recover(shop.space, connect)
        def away(): raise psycopg.OperationalError("down")
        run("rec", lambda: m.recover(away))
        shop.space.put("orders","tea")
        def kill():
            with closing(shop.server.connect(autocommit=True)) as c: c.execute("select pg_terminate_backend(%s)",[shop.database.info.backend_pid])
        with acting(Step("c",TwoPhaseBranch,"commit"),"before",kill): run("book",lambda: shop.book(m))
        run("repeat", m._repeat)
        print("OUT", shop.booked(), shop.doubts(), len(n))

@pytest.mark.parametrize("two_phase",[0,1])
def test_enlist_interrupted(request, two_phase):
    shop=request.getfixturevalue("two_phase_shop" if two_phase else "last_resource_shop")
    shop.database.autocommit=True
    from xa.manager.last_resource import LastResource
    with shop.manager() as m:
        def raise_(): raise KeyboardInterrupt
        owner = TwoPhaseBranch if two_phase else LastResource
        def act():
            with shop.booking(m): pass
        with acting(Step("e",owner,"__init__"),"after",raise_): run("book",act)
        print("OUT", shop.database.info.transaction_status, shop.database.autocommit)
        run("rollback", shop.database.rollback)
        run("again", act)

def test_dropped(last_resource_shop):
    shop=last_resource_shop; shop.space.put("orders","tea")
    with shop.manager() as m:
        t=m.transaction(); t.enlist(shop.space); t.enlist(shop.database); shop.space.get("orders")
        del t; gc.collect()
        print("OUT", m._outcomes.is_empty, shop.database.info.transaction_status)
        m._outcomes._open.clear()

def test_heuristic_own(two_phase_shop):
    shop=two_phase_shop; shop.space.put("orders","tea")
    with shop.manager() as m:
        def close(): shop.space.close()
        with acting(Step("c",SpaceBranch,"commit"),"before",close): run("book",lambda: shop.book(m))
        shop.space=spool.open(shop.path)
        rm=xa.ResourceManager(shop.space); [x]=rm.recover(); rm.decide_heuristically(x,commit=False)
        run("rec",lambda: m.recover(shop.space, shop.database)); run("rec",lambda: m.recover(shop.space, shop.database))

@pytest.mark.parametrize("how",["commit","rollback","with","script", "last"])
def test_sqlite_program_ends(memory, how):
    path=memory/"db"; db=sqlite3.connect(path); db.execute("create table bookings(text text primary key)"); db.commit()
    with spool.create(memory/"space", defaults=AT_ONCE) as space, xa.TransactionManager(memory/"log") as m:
        space.create_queue("orders"); space.put("orders","tea"); m.prepare_database(db)
        def act():
            with m.transaction() as t:
                t.enlist(space); t.enlist(db)
                db.execute("insert into bookings values(?)",[space.get("orders").body])
                if how in("commit","rollback"): getattr(db,how)()
                elif how=="with":
                    with db: pass
                elif how=="script": db.executescript("create table if not exists x(y)")
                if how!="last": db.execute("insert into bookings values('second')")
                if how=="last": db.rollback()
        run("book",act); print("OUT",how, db.execute("select * from bookings").fetchall(), [x.body for x in space.browse("orders")])

@pytest.mark.parametrize("level",[1,2,3,4])
def test_isolation(shop, level):
    shop.space.put_many("orders",["tea","milk"])
    shop.database.isolation_level=level
    with shop.manager() as m:
        run("book",lambda: shop.book(m)); run("book",lambda: shop.book(m)); run("rec",lambda: m.recover(shop.space,shop.database)); print("OUT",shop.decisions())

def test_terminated(last_resource_shop):
    shop=last_resource_shop; shop.space.put("orders","tea")
    with shop.manager() as m:
        def kill():
            with closing(shop.server.connect(autocommit=True)) as c: c.execute("select pg_terminate_backend(%s)",[shop.database.info.backend_pid])
        with acting(Step("c",_Psycopg,"commit"),"before",kill): run("book",lambda: shop.book(m))
        shop.reconnect(); run("rec",lambda: m.recover(shop.space,shop.database)); print("OUT",shop.booked(),shop.waiting(),shop.doubts(), shop.decisions(), m._outcomes.is_empty)

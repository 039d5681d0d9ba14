"""Exactly once through zope.sqlalchemy: a message and a row of PostgreSQL, with the program killed at each step."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
import transaction
import zope.sqlalchemy
from sqlalchemy.orm import scoped_session, sessionmaker
from zope.sqlalchemy.datamanager import SessionDataManager

import spool
import xa
from tests.children import die, let_die
from tests.postgresql import Server, server
from tests.xa.manager.shop import Shop
from tests.xa.manager.steps import Step, acting
from xa.manager.foreign import ForeignTransaction
from xa.manager.outcomes import Outcomes
from xa.zope.data_manager import DataManager
from xa.zope.decision_row import DecidingDataManager

BOOKING = sqlalchemy.text("insert into bookings values (:text)")


@pytest.fixture
def shop(memory: Path, by_default: Server) -> Iterator[Shop]:
    with Shop(memory, by_default, False) as found:
        yield found


@pytest.fixture
def session(shop: Shop) -> Iterator[Any]:
    with closing_session(shop.server) as found:
        yield found


class closing_session:
    """A session that zope.sqlalchemy joins to each transaction."""

    def __init__(self, where: Server) -> None:
        self._engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=where.connect)
        self._session = scoped_session(sessionmaker(self._engine))
        zope.sqlalchemy.register(self._session)

    def __enter__(self) -> Any:
        return self._session

    def __exit__(self, *_: object) -> None:
        transaction.abort()
        self._session.remove()
        self._engine.dispose()


def book(shop: Shop, session: Any, manager: xa.TransactionManager) -> str:
    """Turn an order into a booking and an answer, without the commit."""
    transaction.begin()
    xa.zope.join(shop.space, manager=manager, session=session)
    text = str(shop.space.get("orders").body)
    session.execute(BOOKING, {"text": text})
    shop.space.put("answers", text)
    return text


def test_x03_a_row_and_a_message(shop: Shop, session: Any) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager() as manager:
        book(shop, session, manager)
        transaction.abort()
        assert shop.check_agreement(["milk", "tea"]) == []
        book(shop, session, manager)
        transaction.commit()
        assert len(shop.check_agreement(["milk", "tea"])) == 1
        manager.recover(shop.space, shop.database)
        assert shop.decisions() == 0


def test_x03_only_the_space_or_only_the_database(shop: Shop, session: Any) -> None:
    with shop.manager() as manager:
        transaction.begin()
        xa.zope.join(shop.space, manager=manager, session=session)
        shop.space.put("orders", "tea")
        transaction.commit()
        assert shop.waiting() == ["tea"]
        transaction.begin()
        xa.zope.join(shop.space, manager=manager, session=session)
        session.execute(BOOKING, {"text": "row"})
        zope.sqlalchemy.mark_changed(session())
        transaction.commit()
        assert shop.booked() == ["row"]
        assert shop.decisions() == 0
        transaction.begin()
        xa.zope.join(shop.space, manager=manager, session=session)
        transaction.commit()
        assert shop.doubts() == []


def test_x03_savepoints(shop: Shop, session: Any) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager() as manager:
        text = book(shop, session, manager)
        savepoint = transaction.savepoint()
        other = str(shop.space.get("orders").body)
        session.execute(BOOKING, {"text": other})
        shop.space.put("answers", other)
        savepoint.rollback()
        transaction.commit()
        assert shop.check_agreement(["milk", "tea"]) == [text]


def test_x03_a_row_that_is_refused_at_the_commit(shop: Shop, session: Any) -> None:
    with closing(shop.server.connect()) as database:
        database.execute("alter table bookings drop constraint bookings_pkey")
        database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
        database.commit()
    shop.space.put_many("orders", ["tea", "tea"])
    with shop.manager() as manager:
        book(shop, session, manager)
        transaction.commit()
        book(shop, session, manager)
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            transaction.commit()
        transaction.abort()
        assert shop.booked() == ["tea"] == shop.waiting() == shop.waiting("answers")
        assert shop.doubts() == []


def test_x03_a_party_that_fails_after_the_database_has_committed(shop: Shop, session: Any) -> None:
    """The decision stands: the space commits, although zope aborts the others."""

    class Late:
        transaction_manager = transaction.manager

        def tpc_vote(self, txn: object) -> None:
            raise ZeroDivisionError

        def sortKey(self) -> str:
            return "~~late"

        abort = tpc_begin = commit = tpc_abort = tpc_finish = lambda self, txn: None

    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        book(shop, session, manager)
        transaction.get().join(Late())
        with pytest.raises(ZeroDivisionError):
            transaction.commit()
        transaction.abort()
        assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_wrong_arguments(shop: Shop, session: Any) -> None:
    with shop.manager() as manager:
        with pytest.raises(spool.InvalidArgument, match="both manager and session"):
            xa.zope.join(shop.space, manager=manager)
        session().twophase = True
        with pytest.raises(spool.InvalidArgument, match="twophase"):
            xa.zope.join(shop.space, manager=manager, session=session)
        session().twophase = False
        with closing(shop.server.connect()) as database:
            database.execute("drop table xaspool_decisions")
            database.commit()
        with pytest.raises(spool.InvalidArgument, match="prepare_database"):
            xa.zope.join(shop.space, manager=manager, session=session)
    transaction.abort()
    shop.space.put("orders", "outside of any transaction")
    assert shop.waiting() == ["outside of any transaction"]


# -- the crash matrix ------------------------------------------------------------------------------------------------

STEPS = [
    Step("the begin of a branch", DataManager, "_begin_part"),
    Step("the row of the decision", ForeignTransaction, "write_decision"),
    Step("the vote of the space", DecidingDataManager, "tpc_vote"),
    Step("the decision", SessionDataManager, "tpc_vote"),
    Step("the finish of the space", DecidingDataManager, "tpc_finish"),
    Step("the commits of the branches", Outcomes, "complete"),
]
at_each_step = pytest.mark.parametrize(
    ("step", "when"),
    [pytest.param(step, when, id=f"{when} {step.text}") for step in STEPS for when in ("before", "after")],
)


@at_each_step
@pytest.mark.every(5)
def test_x03_a_program_that_is_killed(shop: Shop, step: Step, when: str) -> None:
    def program() -> None:
        with shop, shop.manager() as manager, closing_session(shop.server) as session, acting(step, when, die):
            book(shop, session, manager)
            transaction.commit()

    shop.space.put("orders", "tea")
    let_die(program)
    shop.__enter__()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        shop.check_agreement(["tea"])
        assert shop.dead_logs(manager) == shop.decisions() == 0


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with server(two_phase=False) as found:
        yield found


@at_each_step
@pytest.mark.every(5, first=1)
def test_x03_a_database_that_is_killed(own_server: Server, memory: Path, step: Step, when: str) -> None:
    with Shop(memory, own_server, False) as shop, shop.manager() as manager, closing_session(own_server) as session:
        shop.space.put("orders", "tea")
        try:
            with acting(step, when, own_server.kill):
                book(shop, session, manager)
                transaction.commit()
            told = True
        except (spool.SpoolError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
            transaction.abort()
            told = False
        finally:
            own_server.start()
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        booked = shop.check_agreement(["tea"])
        assert bool(booked) or not told

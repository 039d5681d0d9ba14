"""No branch, row, log or connection remains in a wrong state after a failure."""

from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

import spool
import xa
from tests import door
from tests.branches import Mistake
from tests.children import exit_code_of
from tests.xa.manager.desk import ROW, terminate_sessions
from tests.xa.manager.shop import Shop, last_resource, two_phases
from tests.xa.manager.steps import Step, acting
from xa.manager import decision_table
from xa.manager.outcomes import Outcomes
from xa.manager.space_branch import SpaceBranch
from xa.manager.two_phase_branch import TwoPhaseBranch


@last_resource
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", ["commit", "rollback"])
def test_x03_an_interrupt_of_the_second_phase_leaves_nothing_in_doubt(
    shop: Shop, call: str, interrupt: type[BaseException]
) -> None:
    """A second Ctrl-C, or the handler of another signal."""
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


@two_phases
def test_x03_a_database_that_is_away_does_not_keep_another_one_waiting(shop: Shop) -> None:
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


@two_phases
def test_x03_an_administrators_decision_does_not_end_the_recovery(shop: Shop) -> None:
    """The recovery logs the contradiction, as it does for branches of dead coordinators, and goes on."""
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        with acting(Step("the commit", SpaceBranch, "commit"), "before", shop.space.close):
            shop.book(manager)
        shop.space = spool.open(shop.path)
        rm = xa.ResourceManager(shop.space)
        [xid] = rm.recover()
        rm.decide_heuristically(xid, commit=False)
        manager.recover(shop.space, shop.database)


@two_phases
def test_x03_a_connection_that_breaks_before_its_vote_leaves_nothing(shop: Shop) -> None:
    with shop.manager() as manager:
        with pytest.raises(psycopg.OperationalError), shop.booking(manager):
            terminate_sessions(shop.server)
            shop.database.execute("select 1")
        assert door.outcomes(manager).is_empty
    assert shop.dead_logs() == 0


@two_phases
def test_x03_a_refused_commit_in_one_phase_leaves_nothing(shop: Shop) -> None:
    shop.database.execute("alter table bookings drop constraint bookings_pkey")
    shop.database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    shop.database.commit()
    shop.database.autocommit = True
    with shop.manager() as manager:
        with pytest.raises(psycopg.errors.UniqueViolation), shop.booking(manager):
            for _ in range(2):
                shop.database.execute("insert into bookings values ('tea')")
        assert (shop.database.autocommit, door.outcomes(manager).is_empty) == (True, True)


@last_resource
def test_x03_a_table_that_was_created_again_is_found_by_all_connections(shop: Shop) -> None:
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


@last_resource
@pytest.mark.usefixtures("impatient")
def test_x03_a_forked_child_does_not_wait_for_its_parent(shop: Shop) -> None:
    """The end of the child calls ``close``, too."""
    with shop.manager() as manager, manager.transaction():

        def child() -> None:
            with mock.patch.object(Outcomes, "wait", side_effect=AssertionError):
                manager.close()

        assert exit_code_of(child) == 0

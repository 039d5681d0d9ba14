"""One transaction over a space and PostgreSQL: all of it or nothing, in both ways to take part."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

import spool
import xa
from tests import door
from tests.children import exit_code_of
from tests.clocks import PatientClock, SimulatedClock
from tests.postgresql import Server
from tests.xa.manager.shop import Shop


@pytest.fixture
def manager(shop: Shop) -> Iterator[xa.TransactionManager]:
    with shop.manager() as found:
        yield found


def test_x03_a_message_becomes_a_row_and_an_answer(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.space.put_many("orders", ["tea", "milk"])
    assert shop.book(manager) == "tea"
    assert shop.check_agreement(["tea", "milk"]) == ["tea"]


def test_x03_an_exception_undoes_all_of_it(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.space.put("orders", "tea")
    with pytest.raises(ZeroDivisionError), shop.booking(manager):
        shop.database.execute("insert into bookings values (%s)", [shop.space.get("orders").body])
        shop.space.put("answers", "tea")
        raise ZeroDivisionError
    assert shop.check_agreement(["tea"]) == []
    assert shop.space.get("orders").attempts == 1


def test_x03_a_constraint_that_fails_at_the_commit_undoes_the_space(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.database.execute("alter table bookings add constraint once unique (text) deferrable initially deferred")
    shop.database.execute("alter table bookings drop constraint bookings_pkey")
    shop.database.commit()
    shop.space.put_many("orders", ["tea", "tea"])
    shop.book(manager)
    with pytest.raises(psycopg.errors.UniqueViolation):
        shop.book(manager)
    shop.reconnect()
    manager.recover(shop.space, shop.database)
    assert shop.booked() == ["tea"] == shop.waiting() == shop.waiting("answers")
    assert (shop.doubts(), shop.decisions()) == ([], 0)


def test_x03_a_full_queue_undoes_the_row(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.space.change_queue("answers", max_messages=1)
    shop.space.put("answers", "old")
    shop.space.put("orders", "tea")
    with pytest.raises(spool.Full):
        shop.book(manager)
    assert shop.booked() == []
    assert shop.waiting() == ["tea"]


def test_x03_rollback_only_and_explicit_ends(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.space.put("orders", "tea")
    with pytest.raises(spool.TransactionRolledBack, match="not today"), shop.booking(manager) as transaction:
        shop.space.get("orders")
        transaction.set_rollback_only("not today")
    with shop.booking(manager) as transaction:
        shop.space.get("orders")
        transaction.rollback()
        shop.space.put("answers", "outside of the transaction")
    with pytest.raises(spool.ProtocolError):
        transaction.commit()
    with shop.booking(manager) as transaction:
        shop.database.execute("insert into bookings values (%s)", [shop.space.get("orders").body])
        transaction.commit()
    assert shop.booked() == ["tea"]
    assert shop.waiting() == []


def test_x03_a_transaction_that_takes_too_long_is_rolled_back(shop: Shop) -> None:
    clock = SimulatedClock()
    shop.space.put("orders", "tea")
    with shop.manager(clock) as manager:
        with pytest.raises(spool.TransactionTimeout), manager.transaction(timeout=5) as transaction:
            transaction.enlist(shop.space)
            transaction.enlist(shop.database, two_phase=shop.two_phase)
            shop.database.execute("insert into bookings values ('tea')")
            shop.space.get("orders")
            clock.sleep(6)
    assert shop.check_agreement(["tea"]) == []


def test_x03_rows_of_decisions_are_removed(shop: Shop, manager: xa.TransactionManager) -> None:
    orders = [str(number) for number in range(70)]
    shop.space.put_many("orders", orders)
    for _ in orders:
        shop.book(manager)
    assert shop.decisions() < 50, "later transactions remove the rows of earlier ones"
    manager.recover(shop.space, shop.database)
    assert shop.decisions() == 0
    assert shop.check_agreement(orders) == sorted(orders)


def test_x03_a_closed_manager_leaves_nothing(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        shop.book(manager)
    assert shop.dead_logs() == shop.decisions(), "a log is kept for the row of the last decision"
    with shop.manager() as manager:
        manager.recover(shop.database)
    assert (shop.dead_logs(), shop.decisions()) == (0, 0)
    for call in (manager.transaction, lambda: manager.recover(shop.space)):
        with pytest.raises(spool.NotOpen):
            call()


def test_x03_a_program_without_close_leaves_nothing(memory: Path) -> None:
    program = (
        "import spool, xa\n"
        f"space = spool.create({str(memory / 'space')!r}); space.create_queue('orders')\n"
        f"manager = xa.TransactionManager({str(memory / 'log')!r})\n"
        "with manager.transaction() as transaction:\n"
        "    transaction.enlist(space); space.put('orders', 'tea')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert sorted(os.listdir(memory / "log")) == ["manager", "place"]


def test_x03_many_threads(shop: Shop, manager: xa.TransactionManager) -> None:
    orders = [str(number) for number in range(80)]
    shop.space.put_many("orders", orders)

    def work(_: int) -> None:
        with closing(shop.server.connect()) as database, suppress(spool.Empty):
            while True:
                with manager.transaction() as transaction:
                    transaction.enlist(shop.space)
                    transaction.enlist(database, two_phase=shop.two_phase)
                    text = shop.space.get("orders").body
                    database.execute("insert into bookings values (%s)", [text])
                    shop.space.put("answers", text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert shop.check_agreement(orders) == sorted(orders)


def test_x03_a_forked_child_is_no_coordinator(shop: Shop, manager: xa.TransactionManager) -> None:
    def child() -> None:
        with pytest.raises(spool.NotOpen, match="forked"):
            manager.transaction()

    assert exit_code_of(child) == 0
    shop.space.put("orders", "tea")
    shop.book(manager)
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_ctrl_c_during_the_commit_waits_for_its_end(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.space.put("orders", "tea")
    with pytest.raises(KeyboardInterrupt), shop.booking(manager) as transaction:
        shop.database.execute("insert into bookings values (%s)", [shop.space.get("orders").body])
        shop.space.put("answers", "tea")
        vote = transaction._vote

        def interrupted() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            vote()

        transaction._vote = interrupted  # type: ignore[method-assign]
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_a_dropped_transaction_is_rolled_back_and_delays_no_close(shop: Shop) -> None:
    clock = SimulatedClock()
    shop.space.put("orders", "tea")
    manager = shop.manager(clock)
    transaction = manager.transaction()
    transaction.enlist(shop.space)
    assert shop.space.get("orders").body == "tea"
    dropped = [transaction]
    del transaction
    with pytest.warns(ResourceWarning):
        dropped.clear()
    manager.close()
    shop.space.close()
    shop.space = spool.open(shop.path)
    assert shop.check_agreement(["tea"]) == []
    assert shop.dead_logs() == 0


def test_x03_a_manager_that_is_closed_in_a_transaction_rolls_it_back(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    manager = shop.manager()
    with pytest.raises(spool.NotOpen), shop.booking(manager):
        shop.database.execute("insert into bookings values (%s)", [shop.space.get("orders").body])
        shop.space.put("answers", "tea")
        manager.close()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == []
        assert shop.dead_logs(manager) == 0


# -- one branch, empty branches, several resources -----------------------------------------------------------------


def test_x03_one_resource_commits_in_one_phase(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.space.put("orders", "tea")
    flushes = door.disk(shop.space).flushes
    with manager.transaction() as transaction:
        transaction.enlist(shop.space)
        shop.space.get("orders")
    assert door.disk(shop.space).flushes - flushes <= 2, "no vote"
    with manager.transaction() as transaction:
        transaction.enlist(shop.database, two_phase=shop.two_phase)
        shop.database.execute("insert into bookings values ('alone')")
    assert shop.booked() == ["alone"]
    assert shop.decisions() == 0


def test_x03_a_branch_without_work_needs_no_decision(shop: Shop, manager: xa.TransactionManager) -> None:
    with shop.booking(manager):
        shop.database.execute("insert into bookings values ('row')")
    assert shop.booked() == ["row"]
    assert shop.decisions() == 0
    assert shop.doubts() == []


def test_x03_two_spaces_and_a_database(shop: Shop, manager: xa.TransactionManager, memory: Path) -> None:
    with spool.create(memory / "other") as other:
        other.create_queue("copies")
        shop.space.put("orders", "tea")
        for fails in (True, False):
            try:
                with shop.booking(manager) as transaction:
                    transaction.enlist(other)
                    text = shop.space.get("orders").body
                    other.put("copies", text)
                    shop.space.put("answers", text)
                    shop.database.execute("insert into bookings values (%s)", [text])
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert other.stats("copies").ready == 0
        assert other.get("copies").body == "tea"
        assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_two_spaces_without_a_database(memory: Path) -> None:
    """The example of two spaces in one transaction."""
    with (
        spool.create(memory / "east") as east,
        spool.create(memory / "west") as west,
        xa.TransactionManager(memory / "log") as manager,
    ):
        east.create_queue("in")
        west.create_queue("out")
        east.put("in", "Young")
        with manager.transaction() as transaction:
            transaction.enlist(east)
            transaction.enlist(west)
            west.put("out", east.get("in").body)
        assert west.get("out").body == "Young"
        assert east.stats("in").ready == 0


def test_x03_two_databases_need_two_phases_for_one_of_them(memory: Path, with_two_phases: Server, by_default: Server):
    with (
        Shop(memory / "one", by_default, False) as first,
        Shop(memory / "two", with_two_phases, True) as second,
        first.manager() as manager,
    ):
        first.space.put("orders", "tea")
        with first.booking(manager) as transaction:
            transaction.enlist(second.database)
            text = first.space.get("orders").body
            first.space.put("answers", text)
            first.database.execute("insert into bookings values (%s)", [text])
            second.database.execute("insert into bookings values (%s)", [text])
        assert first.check_agreement(["tea"]) == second.booked() == ["tea"]
        assert second.doubts() == []


# -- refusals --------------------------------------------------------------------------------------------------------


def test_x03_a_connection_in_a_transaction_is_refused(shop: Shop, manager: xa.TransactionManager) -> None:
    shop.database.execute("select 1")
    with pytest.raises(spool.ProtocolError, match="commit it or roll it back"), shop.booking(manager):
        pass
    with pytest.raises(spool.ProtocolError, match="commit it or roll it back"):
        manager.recover(shop.database)
    with pytest.raises(spool.ProtocolError, match="commit it or roll it back"):
        manager.prepare_database(shop.database)


def test_x03_a_caller_in_a_transaction_of_the_space_is_refused(shop: Shop, manager: xa.TransactionManager) -> None:
    with shop.space.transaction(), pytest.raises(spool.ProtocolError, match="already"), shop.booking(manager):
        pass
    with pytest.raises(spool.ProtocolError, match="already"), shop.booking(manager), shop.booking(manager):
        pass


def test_x03_a_database_without_a_table_needs_two_phases(by_default: Server, memory: Path) -> None:
    with Shop(memory, by_default, False) as shop, shop.manager() as manager:
        shop.database.execute("drop table xaspool_decisions")
        shop.database.commit()
        shop.space.put("orders", "tea")
        with pytest.raises(psycopg.NotSupportedError, match="max_prepared_transactions") as refused:
            shop.book(manager)
        assert "prepare_database(connection)" in refused.value.__notes__[0]
        assert shop.check_agreement(["tea"]) == []
        shop.reconnect()
        manager.prepare_database(shop.database)
        shop.book(manager)
        assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_things_that_are_no_resource_are_refused(shop: Shop, manager: xa.TransactionManager) -> None:
    with manager.transaction() as transaction:
        for thing in (7, "a path", None, object()):
            with pytest.raises(spool.InvalidArgument, match="open spaces and connections"):
                transaction.enlist(thing)
    with pytest.raises(spool.InvalidArgument, match="open spaces and connections"):
        manager.recover(7)


# -- the commit of a branch that only takes messages ---------------------------------------------------------------


@pytest.fixture
def patient(shop: Shop) -> Iterator[xa.TransactionManager]:
    """A manager that never commits a branch before others wait for it, because its clock stands still."""
    shop.answers = False
    with shop.manager(PatientClock()) as found:
        yield found


def test_x03_a_branch_that_only_takes_messages_is_committed_with_others(shop: Shop, patient: xa.TransactionManager):
    shop.space.put_many("orders", ["tea", "milk"])
    assert [shop.book(patient), shop.book(patient)] == ["tea", "milk"]
    assert len(shop.space.engine.in_doubt()) == 2


def test_x09_x03_the_next_message_of_a_group_does_not_wait(shop: Shop, patient: xa.TransactionManager) -> None:
    for text in ("tea", "milk"):
        shop.space.put("orders", text, group="breakfast")
    assert [shop.book(patient), shop.book(patient)] == ["tea", "milk"]
    assert shop.check_agreement(["tea", "milk"]) == ["milk", "tea"]


def test_q11_x03_a_full_queue_has_room_after_the_commit(shop: Shop, patient: xa.TransactionManager) -> None:
    shop.space.change_queue("orders", max_messages=1)
    shop.space.put("orders", "tea")
    shop.book(patient)
    shop.space.put("orders", "milk")
    assert shop.check_agreement(["tea", "milk"]) == ["tea"]

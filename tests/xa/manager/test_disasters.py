"""The database is away for an hour, its table is dropped, a clock is wrong, a backup is restored."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import spool
import xa
from spool.model.xid import FORMAT_MANAGED
from tests import door
from tests.children import exit_code, start
from tests.clocks import MovedClock, SimulatedClock
from tests.postgresql import Server, server
from tests.xa.manager.shop import Shop, last_resource
from tests.xa.manager.steps import STEPS, Step, acting


@pytest.fixture(scope="module", params=[False, True], ids=["last resource", "two phases"])
def own_server(request: pytest.FixtureRequest) -> Iterator[tuple[Server, bool]]:
    """A server that tests may stop and change, and whether its database takes part with two phases."""
    with server(two_phase=request.param) as found:
        yield found, request.param


@pytest.fixture
def own_shop(own_server: tuple[Server, bool], memory: Path) -> Iterator[Shop]:
    with Shop(memory, *own_server) as shop:
        yield shop


def step(shop: Shop, text: str) -> Step:
    [found] = [each for each in STEPS[shop.two_phase] if each.text == text]
    return found


# -- away ------------------------------------------------------------------------------------------------------------


@pytest.mark.every(2)
def test_x03_a_database_that_is_away_for_an_hour(own_shop: Shop) -> None:
    """The order in doubt waits for the database; the space takes other work meanwhile."""
    shop, clock = own_shop, SimulatedClock()
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager(clock) as manager:
        away = step(shop, "the commit of the database" if shop.two_phase else "the decision")
        try:
            with acting(away, "before", shop.server.kill):
                shop.book(manager)
            told = "committed"
        except spool.CommitUnknown:
            told = "unknown"
        assert told == ("committed" if shop.two_phase else "unknown")
        with pytest.raises(psycopg.OperationalError):
            shop.book(manager)
        clock.sleep(3600)
        shop.space.put("answers", "the space works on")
        assert len(shop.waiting()) == 1, "one order is in doubt or taken, the other waits"
        shop.server.start()
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        assert shop.doubts() == []
        while shop.waiting():
            shop.book(manager)
        door.settle(manager)
    assert shop.booked() == ["milk", "tea"]
    assert shop.decisions() <= 2
    assert sorted(shop.waiting("answers")) == ["milk", "tea", "the space works on"]


@pytest.mark.every(2)
def test_x03_a_manager_that_can_connect_again_finishes_by_itself(own_shop: Shop) -> None:
    shop = own_shop
    shop.space.put("orders", "tea")
    with shop.manager() as manager:
        manager.recover(shop.space, shop.server.connect)
        away = step(shop, "the commit of the database" if shop.two_phase else "the decision")
        with acting(away, "before", shop.server.kill):
            try:
                shop.book(manager)
            except spool.CommitUnknown:
                assert not shop.two_phase
        shop.server.start()
        with door.outcomes(manager)._changed:
            assert door.outcomes(manager)._changed.wait_for(lambda: door.outcomes(manager).is_empty, 60)
        shop.check_agreement(["tea"])


# -- the table -------------------------------------------------------------------------------------------------------


@last_resource
def test_x03_a_table_that_was_dropped_rolls_the_transaction_back(shop: Shop) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    with shop.manager() as manager:
        shop.book(manager)
        with closing(shop.server.connect()) as database:
            database.execute("drop table xaspool_decisions")
            database.commit()
        with pytest.raises(spool.SystemFailure, match="prepare_database"):
            shop.book(manager)
        assert len(shop.check_agreement(["milk", "tea"])) == 1
        manager.prepare_database(shop.database)
        shop.book(manager)
        door.settle(manager)
        assert shop.check_agreement(["milk", "tea"]) == ["milk", "tea"]


@last_resource
@pytest.mark.every(2)
@pytest.mark.parametrize("again", [False, True], ids=["dropped", "made again"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_x03_without_the_table_of_its_decision_a_branch_waits_for_an_administrator(
    shop: Shop, when: str, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A new table knows nothing of the old decisions, so no recovery guesses from it."""
    shop.space.put("orders", "tea")
    shop.kill_program(when)
    with closing(shop.server.connect()) as database:
        database.execute("drop table xaspool_decisions")
        database.commit()
    with shop.manager() as manager:
        if again:
            manager.prepare_database(shop.database)
        found = manager.recover(shop.space, shop.database)
        [doubt] = found.left
        assert (found.committed, found.rolled_back) == ([], [])
        assert "decide with spool-admin transaction" in caplog.text
        was_booked = shop.booked() == ["tea"]
        assert was_booked is (when == "after")
        xa.ResourceManager(shop.space).decide_heuristically(doubt, commit=was_booked)
        shop.check_agreement(["tea"])


# -- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wall", [0.0, 4e9], ids=["1970", "2096"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.every(5)
def test_x03_wrong_clocks_change_no_decision(shop: Shop, when: str, wall: float) -> None:
    """No rule compares times, and the table has none."""
    shop.space.put("orders", "tea")
    shop.kill_program(when)
    with shop.manager(MovedClock(wall=wall)) as manager:
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == (["tea"] if when == "after" else [])
    with closing(shop.server.connect()) as database:
        kinds = database.execute(
            "select distinct data_type from information_schema.columns where table_name = 'xaspool_decisions'"
        ).fetchall()
        assert not [kind for (kind,) in kinds if "time" in kind or "date" in kind]


# -- backups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.every(5)
def test_x03_a_restored_backup_of_the_database(own_shop: Shop, when: str, memory: Path) -> None:
    """The database has no trace of the order any more, so the order in doubt is returned to its queue."""
    shop, backup = own_shop, str(memory / "backup")
    shop.server.stop()
    shop.server.copy_to(backup)
    shop.server.start()
    shop.reconnect()
    shop.space.put("orders", "tea")
    shop.kill_program(when, "the vote of the database" if shop.two_phase else "the decision")
    shop.server.stop()
    shop.server.restore(backup)
    shop.server.start()
    shop.__enter__()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == []
        shop.book(manager)
        door.settle(manager)
        assert shop.check_agreement(["tea"]) == ["tea"]


@pytest.mark.slow
def test_x03_a_restored_backup_with_old_decisions(own_shop: Shop, memory: Path) -> None:
    """The backup has a decision, or a prepared branch, of a transaction that has ended since."""
    shop, backup = own_shop, str(memory / "backup")
    shop.space.put("orders", "tea")

    def back_up() -> None:
        shop.server.stop()
        shop.server.copy_to(backup)
        shop.server.start()

    with shop.manager() as manager:
        at = step(shop, "the decision")
        try:
            with acting(at, "after", back_up):
                shop.book(manager)
        except spool.CommitUnknown:
            assert not shop.two_phase
        shop.reconnect()
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == ["tea"]
    shop.server.stop()
    shop.server.restore(backup)
    shop.server.start()
    shop.reconnect()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.doubts() == [], "nothing remains in doubt"
        assert shop.waiting() == [], "the order was booked; a message is never put back after its commit"


# -- other managers --------------------------------------------------------------------------------------------------


@pytest.mark.every(2, first=1)
def test_x03_branches_of_another_directory_of_logs_are_not_touched(shop: Shop, memory: Path) -> None:
    shop.space.put("orders", "tea")
    shop.kill_program()
    with xa.TransactionManager(memory / "another") as other:
        assert other.recover(shop.space, shop.database) == ([], [], [])
        assert shop.doubts() != []
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["tea"]) == ["tea"]


@pytest.mark.every(2)
def test_x03_an_administrators_decision_is_acknowledged(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Against the decision of the transaction: the recovery names the branch in an error, and forgets the decision."""
    shop.space.put("orders", "tea")
    shop.kill_program()
    rm = xa.ResourceManager(shop.space)
    [doubt] = [xid for xid in rm.recover() if xid.format_id == FORMAT_MANAGED]
    rm.decide_heuristically(doubt, commit=False)
    with shop.manager() as manager, caplog.at_level(logging.ERROR):
        manager.recover(shop.space, shop.database)
        assert str(doubt) in caplog.text
        assert shop.space.engine.decisions() == {}
        assert shop.doubts() == []
        assert shop.dead_logs(manager) == 0


@pytest.mark.every(2, first=1)
def test_x03_only_the_given_resources_are_recovered(shop: Shop) -> None:
    shop.space.put("orders", "tea")
    shop.kill_program()
    steps: list[Callable[[xa.TransactionManager], xa.Recovery]] = [
        lambda manager: manager.recover(shop.space),
        lambda manager: manager.recover(shop.database),
        lambda manager: manager.recover(shop.space, shop.database),
    ]
    with shop.manager() as manager:
        for recover in steps:
            assert shop.dead_logs(manager) == 1
            recover(manager)
        assert shop.dead_logs(manager) == 0
        assert shop.check_agreement(["tea"]) == ["tea"]


@pytest.mark.every(2, first=1)
def test_x03_two_recoveries_at_once_agree(shop: Shop) -> None:
    shop.space.put_many("orders", ["milk", "tea"])
    shop.kill_program()
    shop.kill_program("before")

    def recover() -> None:
        with shop, shop.manager() as manager:
            manager.recover(shop.space, shop.database)

    children = [start(recover) for _ in range(4)]
    assert [exit_code(child) for child in children] == [0] * 4
    shop.__enter__()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert len(shop.check_agreement(["milk", "tea"])) == 1
        assert shop.dead_logs(manager) == 0

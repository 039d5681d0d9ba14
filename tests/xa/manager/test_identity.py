"""Spaces and directories of decisions that are moved, copied, restored or not mounted: no order is booked twice."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import pytest

import spool
import xa
from spool.decisions import PLACE, place
from tests.xa.manager.shop import Shop, last_resource

pytestmark = pytest.mark.every(2)  # (a shop whose database is the last resource; both with --long)


def killed(shop: Shop, when: str = "after") -> None:
    """A program books an order, and is killed before or after its decision."""
    shop.space.put("orders", "tea")
    shop.kill_program(when)


def close(shop: Shop) -> None:
    shop.space.close()
    shop.database.close()


# -- a space in another place ------------------------------------------------------------------------------------------


@contextmanager
def unmounted(shop: Shop, away: Path) -> Iterator[None]:
    """The disk with the space is not mounted: its mount point is empty."""
    close(shop)
    shop.path.rename(away)
    yield
    shutil.rmtree(shop.path)
    away.rename(shop.path)
    shop.__enter__()


def test_x03_an_order_is_not_booked_twice_if_the_disk_of_the_space_was_not_mounted_for_a_while(
    shop: Shop, memory: Path
) -> None:
    killed(shop)
    rows = shop.decisions()
    with unmounted(shop, memory / "disk"):
        with spool.create(shop.path, exist_ok=True) as empty, shop.manager() as manager:
            with closing(shop.server.connect()) as database:
                with pytest.raises(spool.SpaceMismatch, match="Mount the disk"):
                    manager.recover(empty, database)
            assert shop.dead_logs(manager) == 1
        assert shop.decisions() == rows
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert (shop.dead_logs(manager), shop.decisions()) == (0, 0)
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_the_log_remains_until_a_space_that_was_moved_was_recovered(shop: Shop, memory: Path) -> None:
    killed(shop)
    close(shop)
    shop.path.rename(memory / "moved")
    with shop.manager() as manager, closing(shop.server.connect()) as database:
        with spool.create(shop.path) as new, pytest.raises(spool.SpaceMismatch):
            manager.recover(new, database)
        with spool.open(memory / "moved") as moved:
            manager.recover(moved, database)
            assert (shop.dead_logs(manager), shop.decisions()) == (0, 0), "a moved space is the same space"
    shop.path = memory / "moved"
    shop.__enter__()
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_a_space_that_was_removed_on_purpose_is_forgotten_with_its_log(shop: Shop) -> None:
    killed(shop)
    close(shop)
    shutil.rmtree(shop.path)
    [log] = shop.logs.glob("*.log")
    with spool.create(shop.path) as new, shop.manager() as manager, closing(shop.server.connect()) as database:
        with pytest.raises(spool.SpaceMismatch, match=log.name):
            manager.recover(new, database)
        log.unlink()
        manager.recover(new, database)


def test_x03_the_recovery_of_a_copy_leaves_the_decision_for_the_original(shop: Shop, memory: Path) -> None:
    killed(shop)
    close(shop)
    shutil.copytree(shop.path, memory / "copy")
    shop.__enter__()
    with shop.manager() as manager:
        with spool.open(memory / "copy") as copy:
            assert copy.id == shop.space.id
            manager.recover(copy, shop.database)
        assert shop.dead_logs(manager) == 1
        manager.recover(shop.space, shop.database)
        assert shop.dead_logs(manager) == 0
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_in_an_import_with_a_new_id_no_branch_is_presumed_to_be_rolled_back(shop: Shop, memory: Path) -> None:
    killed(shop)
    with open(memory / "export", "wb") as file:
        shop.space.export(file)
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.check_agreement(["tea"]) == ["tea"]
        with open(memory / "export", "rb") as file:
            with spool.import_space(memory / "copy", file, new_id=True) as copy:
                found = manager.recover(copy, shop.database)
                assert (found.committed, found.rolled_back, len(found.left)) == ([], [], 1)


def test_x03_an_order_is_not_booked_twice_if_the_disk_of_the_space_dies_and_its_mirror_is_restored(
    shop: Shop, memory: Path
) -> None:
    close(shop)
    spool.mirrors.begin(shop.path, memory / "mirror").close()
    shop.__enter__()
    killed(shop)
    close(shop)
    shutil.rmtree(shop.path)
    spool.mirrors.restore(shop.path, memory / "mirror").close()
    shop.__enter__()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert (shop.dead_logs(manager), shop.decisions()) == (0, 0)
    assert shop.check_agreement(["tea"]) == ["tea"]


# -- a directory of decisions in another place -------------------------------------------------------------------------


def test_x03_a_clone_of_the_machine_takes_no_decision_from_the_original(shop: Shop, memory: Path) -> None:
    killed(shop)
    close(shop)
    rows, clone = shop.decisions(), memory / "clone"
    for path in (shop.path, shop.logs):
        shutil.copytree(path, clone / path.name)
    if not shop.two_phase:  # (otherwise the clone has a database of its own)
        with spool.open(clone / "space") as space, closing(shop.server.connect()) as database:
            with xa.TransactionManager(clone / "decisions") as manager:
                found = manager.recover(space, database)
                assert (found.committed, found.rolled_back, len(found.left)) == ([], [], 1)
    assert shop.decisions() == rows
    shop.__enter__()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["tea"]) == ["tea"]


def test_x03_another_machine_id_makes_the_directory_a_clone(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    killed(shop)
    before = xa.TransactionManager(shop.logs)
    with mock.patch("spool.disk.disk.Disk.machine_id", return_value="0" * 32), shop.manager() as manager:
        assert manager._directory.id != before._directory.id
        found = manager.recover(shop.space, shop.database)
        assert (found.committed, found.rolled_back) == ([], [])
        assert len(found.left) == len(shop.doubts())
        assert PLACE in caplog.text
        assert shop.decisions() == (0 if shop.two_phase else 1)
    before.close()


@last_resource
def test_x03_a_clone_with_the_same_machine_id_removes_no_row_without_a_log(shop: Shop, memory: Path) -> None:
    """The image was made before the program of the original began, so the clone lacks the program's log."""
    clone = memory / "clone"
    shop.manager().close()
    shutil.copytree(shop.logs, clone)
    killed(shop)
    with mock.patch.object(place, "_is_in_place", return_value=True), xa.TransactionManager(clone) as manager:
        manager.recover(shop.database)
        assert shop.decisions() == 1
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
    assert shop.check_agreement(["tea"]) == ["tea"]


def restore_the_directory(shop: Shop, backup: Path) -> None:
    shutil.rmtree(shop.logs)
    shutil.copytree(backup, shop.logs)


@pytest.mark.parametrize("when", ["before", "after"])
def test_x03_a_directory_that_was_restored_from_a_backup_decides_only_by_rows(
    shop: Shop, memory: Path, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.manager().close()
    shutil.copytree(shop.logs, memory / "backup")
    killed(shop, when)
    restore_the_directory(shop, memory / "backup")
    doubts = shop.doubts()
    with shop.manager() as manager:
        found = manager.recover(shop.space, shop.database)
        assert (found.committed, found.rolled_back, len(found.left)) == ([], [], len(doubts))
        assert f"remove the file {shop.logs / PLACE}" in caplog.text
    os.unlink(shop.logs / PLACE)
    with shop.manager() as manager:
        found = manager.recover(shop.space, shop.database)
        assert found.rolled_back == [], "without its log, no transaction is presumed to be rolled back"
        if when == "after" and not shop.two_phase:
            assert shop.check_agreement(["tea"]) == ["tea"]
            assert shop.decisions() == 0
        else:
            assert shop.doubts() == doubts
    with shop.manager() as manager:
        assert manager.recover(shop.space, shop.database).left == found.left, "the directory is remembered"


@last_resource
@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_x03_a_row_is_believed_although_the_log_is_missing_or_damaged(shop: Shop, state: str) -> None:
    killed(shop)
    [log] = shop.logs.glob("*.log")
    log.unlink() if state == "missing" else log.write_bytes(b"damaged")
    with shop.manager() as manager:
        assert len(manager.recover(shop.space, shop.database).committed) == 1
    assert shop.check_agreement(["tea"]) == ["tea"]


@last_resource
def test_x03_a_branch_that_a_power_cut_has_brought_back_is_rolled_back(shop: Shop, memory: Path) -> None:
    """The rollback of a prepared branch is not flushed, and its log was removed since."""
    killed(shop, "before")
    shutil.copytree(shop.path / "prepared", memory / "prepared")
    shop.__enter__()
    with shop.manager() as manager:
        manager.recover(shop.space, shop.database)
        assert shop.dead_logs(manager) == 0
    close(shop)
    shutil.copytree(memory / "prepared", shop.path / "prepared", dirs_exist_ok=True)
    shop.__enter__()
    with shop.manager() as manager:
        assert len(manager.recover(shop.space, shop.database).rolled_back) == 1
    assert shop.check_agreement(["tea"]) == []


# -- what names a space ------------------------------------------------------------------------------------------------


@last_resource
def test_x03_votes_rows_and_logs_name_the_space_by_its_id(shop: Shop) -> None:
    shop.space.put("orders", "tea")

    shop.kill_program("before", "the commit of the space")
    [xid] = shop.space.engine.in_doubt()
    assert xid.bqual[2:].hex() == shop.space.id
    rows = shop.database.execute("select spaces from xaspool_decisions where serial > 0").fetchall()
    shop.database.rollback()
    assert rows == [(shop.space.id,)]
    [log] = shop.logs.glob("*.log")
    assert f"space {shop.space.id} ".encode() in log.read_bytes()

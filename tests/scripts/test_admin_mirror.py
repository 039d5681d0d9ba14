"""``spool-admin mirror``: the errors lead an administrator from a restored backup to a space with every message."""

import shutil
from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import Run, one_line


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A space that is older than its mirror."""
    shop, backup = tmp_path / "shop", tmp_path / "backup"
    with spool.create(shop, mirror=str(tmp_path / "mirror")) as space:
        space.create_queue("orders")
        space.put("orders", "monday")
    shutil.copytree(shop, backup)
    with spool.open(shop) as space:
        space.put("orders", "tuesday")
        space.put("orders", "wednesday")
    shutil.rmtree(shop)
    backup.rename(shop)
    return shop


def test_a_space_older_than_its_mirror_is_restored_by_the_command_in_the_error(run: Run, shop: Path) -> None:
    mirror = shop.parent / "mirror"
    one_line(run("message", "list", "orders", space=shop), f"mirror restore {mirror}", code=1)
    done = run("mirror", "show", "--json", space=shop)
    assert done.code == 1
    assert done.objects[0]["state"] == "refused"
    assert (done.objects[0]["commits"], done.objects[0]["mirror_commits"]) == (1, 3)
    shop.rename(shop.parent / "older")
    one_line(run("mirror", "restore", mirror, space=shop), "with 3 messages; it has no mirror yet", code=0)
    assert run("mirror", "show", space=shop).code == 3
    assert run("mirror", "begin", shop.parent / "new", space=shop).code == 0
    done = run("mirror", "show", "--json", space=shop)
    assert (done.code, done.objects[0]["state"], done.objects[0]["missing"]) == (0, "fine", 0)
    assert run("mirror", "drop", space=shop).code == 0
    assert run("mirror", "drop", space=shop).code == 1
    assert run("message", "get", "orders", space=shop).out == b"monday"


def test_a_damaged_body_of_a_mirror_is_named_after_the_restore(run: Run, shop: Path) -> None:
    file = next(file for file in (shop.parent / "mirror").glob("*.msgpack") if b"tuesday" in file.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"tuesday", b"Tuesday"))
    done = run("mirror", "restore", file.parent, space=shop.parent / "restored")
    assert (done.code, "does not match its checksum" in done.err) == (4, True)


def test_a_dry_run_of_recovery_tells_of_the_refusal_and_changes_nothing(run: Run, shop: Path) -> None:
    done = run("--dry-run", program="spool-recover", space=shop)
    assert done.code == 1
    assert "older than its mirror" in done.err
    assert len(list((shop / "committed").iterdir())) == 1
    assert len(list((shop.parent / "mirror").glob("*.msgpack"))) == 3

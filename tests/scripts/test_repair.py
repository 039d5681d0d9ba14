"""check --repair: everything it finds is mended or lies in quarantine with the reason, and nothing is deleted."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import spool
import xa
from spool.admin.findings import Finding, Kind
from tests import door
from tests.branches import voting
from tests.scripts.conftest import Run, flip, newest, one_line

ROOT = Path(spool.__file__).parents[1]
NO_SETTINGS = (b"", b"\0" * 300, b"\xff\xfe", b"[" * 20_000, b"format = " + b"9" * 5000, b"a = " + b"[" * 9000)


def put(space: spool.Space, *bodies: bytes) -> Path:
    space.put_many("orders", bodies)
    return newest(Path(space.path))


def taken(space: spool.Space, queue: str = "orders") -> list[bytes]:
    found = []
    try:
        while True:
            found.append(space.get(queue).body)
    except spool.Empty:
        return found


def names(findings: list[Finding], kind: Kind = Kind.DAMAGED) -> list[str]:
    return [finding.name for finding in findings if finding.kind is kind]


def delete(file: Path) -> None:
    file.unlink()


def cut_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:50])


def flip_body(file: Path) -> None:
    flip(file, -20)


def flip_table(file: Path) -> None:
    data = file.read_bytes()
    flip(file, data.index(b"attributes"))


def flip_number(file: Path) -> None:
    flip(file, 40)


def append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"junk")


DAMAGES = (delete, cut_header, flip_body, flip_table, flip_number, append)
HARMLESS = (flip_number, append)


@pytest.mark.parametrize("damage", DAMAGES)
def test_x11_damage_is_repaired_or_left_in_quarantine_until_it_is_deleted(
    run: Run, path: Path, damage: Callable[[Path], None]
) -> None:
    with spool.open(path) as space:
        put(space, b"first" * 20)
        file = put(space, b"second" * 20)
        put(space, b"third" * 20)
    damage(file)
    assert run("check").code == 4
    done = run("check", "--repair")
    assert done.code == (1 if damage in HARMLESS else 4), done
    assert f"committed/{file.name}" in done.text
    again = run("check", "--repair")
    assert again.code == (0 if damage in HARMLESS else 4), again
    assert f"damaged: committed/{file.name}" not in again.text
    assert ("quarantine" in run("queue", "list").err) == (damage not in HARMLESS)
    with spool.open(path) as space:
        kept = taken(space)
        door.reclaim(space)
    for file in [one for one in (path / "quarantine").iterdir() if not one.name.endswith(".reason.txt")]:
        assert run("quarantine", "delete", file.name).code == 0
    assert run("check").code == 0
    assert run("queue", "list").err == ""
    second = [b"second" * 20] if damage in HARMLESS else []
    assert kept == [b"first" * 20, *second, b"third" * 20]


def test_x11_a_damaged_file_lies_in_quarantine_byte_for_byte_with_the_reason(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        file = put(space, b"whole" * 20)
        put(space, b"last")
    cut_header(file)
    damaged = file.read_bytes()
    run("check", "--repair")
    kept = path / "quarantine" / f"committed.{file.name}"
    assert kept.read_bytes() == damaged
    assert "does not begin with a header" in Path(f"{kept}.reason.txt").read_text()


def test_x11_a_file_that_is_deleted_while_the_space_is_closed_is_missed(path: Path) -> None:
    with spool.open(path) as space:
        for place in range(40):
            space.put("orders", b"gone %d" % place)
            space.get("orders")
        files = [put(space, b"%d" % place) for place in range(5)]
        assert door.reclaim(space)
    files[2].unlink()
    with spool.open(path) as space:
        assert names(space.recovery.findings) == [f"committed/{files[2].name}"]
        assert names(space.check()) == [f"committed/{files[2].name}"]
        assert door.reclaim(space) >= 0
        assert names(space.check()) == [f"committed/{files[2].name}"], "reclaim does not hide it"
        assert [finding.repaired for finding in space.check(repair=True) if finding.kind is Kind.DAMAGED] == [True]
        assert names(space.check()) == []
    with spool.open(path) as space:
        assert names(space.recovery.findings) == []
        assert taken(space) == [b"0", b"1", b"3", b"4"]


def test_x11_several_deleted_files_are_counted(path: Path) -> None:
    with spool.open(path) as space:
        files = [put(space, b"%d" % place) for place in range(6)]
    for file in files[1:4]:
        file.unlink()
    with spool.open(path) as space:
        (found,) = [finding for finding in space.check() if finding.kind is Kind.DAMAGED]
        assert found.name == "committed/"
        assert "3 files are missing" in found.detail


def reclaimed(path: Path) -> tuple[Path, bytes]:
    """Return the path of a consumed file that was removed, and its former bytes."""
    with spool.open(path) as space:
        file = put(space, b"once")
        copy = file.read_bytes()
        taken(space)
        put(space, b"newer")
        assert door.reclaim(space)
        assert not file.exists()
    return file, copy


def test_x11_a_file_that_was_consumed_and_is_put_back_at_once_means_nothing(path: Path) -> None:
    """The record of removed files still names the file, so reclaim removes it again."""
    file, copy = reclaimed(path)
    file.write_bytes(copy)
    with spool.open(path) as space:
        assert names([*space.recovery.findings, *space.check()]) == []
        assert taken(space) == [b"newer"]
        door.reclaim(space)
        assert not file.exists()


def test_x11_a_file_that_was_consumed_and_is_put_back_later_is_noticed(path: Path) -> None:
    file, copy = reclaimed(path)
    with spool.open(path) as space:
        taken(space)
        put(space, b"newest")
        assert door.reclaim(space)
    file.write_bytes(copy)
    with spool.open(path) as space:
        (found,) = [finding for finding in space.recovery.findings if finding.kind is Kind.DAMAGED]
        assert (found.name, "put back" in found.detail) == (f"committed/{file.name}", True)


def test_x11_reclaim_does_not_remove_damaged_files(path: Path) -> None:
    with spool.open(path) as space:
        unreadable, torn = put(space, b"x"), put(space, b"y")
        put(space, b"z")
    cut_header(unreadable)
    flip_table(torn)
    with spool.open(path) as space:
        assert taken(space) == [b"z"]
        door.reclaim(space)
    assert unreadable.exists()
    assert torn.exists()
    with spool.open(path) as space:
        assert sorted(names(space.check())) == [f"committed/{unreadable.name}", f"committed/{torn.name}"]
        space.check(repair=True)
        put(space, b"last")
        door.reclaim(space)
        assert names(space.check()) == []
    assert not torn.exists(), "once it lies in quarantine, it goes like any other"
    assert (path / "quarantine" / f"committed.{torn.name}").exists()


def test_x11_repair_beside_a_process_that_holds_the_damaged_message(run: Run, path: Path) -> None:
    """A message that is held is left to its holder, and named; it moves to quarantine once it is free."""
    with spool.open(path) as space:
        file = put(space, b"held" * 20)
        with spool.open(path) as other:
            holder = other.transaction()
            assert holder.get("orders").body == b"held" * 20
            flip_body(file)
            done = run("check", "--repair")
            assert done.code == 4
            assert f"damaged: committed/{file.name}" in done.text
            holder.rollback()
        assert "moved to quarantine/" in run("check", "--repair").text
        assert f"damaged: committed/{file.name}" not in run("check").text
        assert taken(space) == []
        space.put("orders", b"next")
        assert space.get("orders").body == b"next"


def test_x11_repair_beside_a_process_that_works(path: Path) -> None:
    """Another process puts and gets while this process repairs one damaged file after the other."""
    worker = """
import sys, spool
with spool.open(sys.argv[1]) as space:
    print("ready", flush=True)
    for place in range(150):
        space.put("errors", b"%d" % place)
        assert space.get("errors").body == b"%d" % place
"""
    with spool.open(path) as space:
        files = [put(space, b"body" * 20) for _ in range(12)]
        command = [sys.executable, "-c", worker, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout.readline() == b"ready\n"
            for place, file in enumerate(files):
                DAMAGES[1 + place % 5](file)
                space.check(repair=True)
            _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert names(space.check()) == []
        assert len(taken(space)) == sum(DAMAGES[1 + place % 5] in HARMLESS for place in range(12))


def test_x11_a_damaged_branch_that_voted_is_set_aside_and_its_messages_are_free(path: Path) -> None:
    xid = xa.Xid(7, b"g", b"b")
    with spool.open(path) as space:
        put(space, b"held")
        with voting(xa.ResourceManager(space), xid):
            assert space.get("orders").body == b"held"
        cut_header(path / "prepared" / f"{xid}.msgpack")
        assert names(space.check(repair=True)) == [f"prepared/{xid}.msgpack"]
        assert names(space.check()) == []
        assert taken(space) == [b"held"]
    assert (path / "quarantine" / f"prepared.{xid}.msgpack").exists()


def test_x11_strays_missing_directories_and_modes_are_mended(run: Run, path: Path) -> None:
    (path / "committed" / "notes.txt").write_text("hello")
    (path / "prepared" / "folder").mkdir()
    (path / "run" / "odd").symlink_to("/etc/passwd")
    (path / "drop" / "orders").rmdir()
    os.chmod(path / "committed", 0o755)
    done = run("check", "--repair")
    assert done.code == 1
    for name in ("committed/notes.txt", "prepared/folder", "run/odd", "drop/orders", "committed:"):
        assert name in done.text, name
    assert run("check").code == 0
    assert all(finding["kind"] == "quarantined" for finding in run("check", "--json").objects)
    assert (path / "quarantine" / "committed.notes.txt").read_text() == "hello"
    assert (path / "drop" / "orders").is_dir()
    assert (path / "committed").stat().st_mode & 0o777 == 0o700
    assert Path("/etc/passwd").exists()


def test_x11_messages_whose_queue_the_settings_have_lost_get_it_back(run: Run, path: Path) -> None:
    with spool.open(path) as space:
        space.create_queue("more")
        put(space, b"homeless")
        space.put("more", b"homeless, too")
    settings = path / "space.toml"
    settings.write_text(settings.read_text().replace("orders", "orderz").replace("more", "nomore"))
    for program in ("spool-admin", "spool-recover"):
        done = run(*(["check"] if program == "spool-admin" else []), program=program)
        assert done.code == 4
        for queue in ("orders", "more"):
            assert f"queue {queue}, in which 1 message waits, is missing from it: create the queue" in done.text
    assert run("check", "--repair").code == 1
    assert run("check").code == 0
    assert run("message", "get", "orders").out == b"homeless"
    assert run("message", "get", "more").out == b"homeless, too"


@pytest.mark.parametrize("content", NO_SETTINGS)
def test_e03_damaged_settings_are_one_clear_error(run: Run, path: Path, content: bytes) -> None:
    (path / "space.toml").write_bytes(content)
    with pytest.raises(spool.SpoolError, match=r"space\.toml"):
        spool.open(path)
    one_line(run("check", "--repair"), "space.toml", code=8)


def test_quarantine_takes_anything(path: Path) -> None:
    """Reasons that are no text, no file, or too long."""
    quarantine = path / "quarantine"
    (quarantine / "a").write_bytes(b"")
    (quarantine / "a.reason.txt").write_bytes(b"\xff\xfe" * (1 << 20))
    (quarantine / "b").mkdir()
    (quarantine / "b.reason.txt").mkdir()
    (quarantine / "c").symlink_to("nowhere")
    (quarantine / "c.reason.txt").symlink_to("/etc/passwd")
    with spool.open(path) as space:
        found = {finding.name: finding.detail for finding in space.quarantined()}
    assert len(found["quarantine/a"]) <= 1 << 18
    assert found["quarantine/b"] == found["quarantine/c"] == "its reason cannot be read"

"""spool-admin check finds and names damage, and stops no other process."""

from pathlib import Path

import pytest

import spool
import xa
from tests.scripts.conftest import Run, flip, newest, one_line, prepare


def _three_files(path: Path) -> list[Path]:
    """Three commits of one message each, as files."""
    files = []
    with spool.open(path) as space:
        for body in (b"first" * 50, b"second" * 50, b"third" * 50):
            space.put("orders", body)
            files.append(newest(path))
    return files


def _damage(file: Path, how: str) -> None:
    if how == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        flip(file, {"header": 20, "body": -20}[how])


def test_a_whole_space_is_clean(run: Run, path: Path) -> None:
    _three_files(path)
    one_line(run("check"), "clean", code=0)
    assert run("check", "--repair").code == 0


@pytest.mark.parametrize("how", ["header", "truncated"])
def test_a_damaged_file_is_named_and_every_other_message_is_served(run: Run, path: Path, how: str) -> None:
    damaged = _three_files(path)[1]
    _damage(damaged, how)
    done = run("check")
    assert done.code == 4
    assert "damaged" in done.text
    assert f"committed/{damaged.name}" in done.text
    assert "Traceback" not in done.err
    (found,) = [each for each in run("check", "--json").objects if each["kind"] == "damaged"]
    assert found["name"] == f"committed/{damaged.name}"
    assert found.keys() == {"kind", "name", "detail", "action", "reason", "position"}
    assert [run("message", "get", "orders").out[:5] for _ in range(2)] == [b"first", b"third"]
    assert run("message", "get", "orders").code == 3


def test_damage_is_told_by_every_command_that_opens_the_space(run: Run, path: Path) -> None:
    damaged = _three_files(path)[1]
    _damage(damaged, "truncated")
    done = run("queue", "list")
    assert done.code == 0
    assert f"committed/{damaged.name}" in done.err
    assert "damaged" not in done.text


def test_a_stray_file_is_named_and_is_no_damage(run: Run, path: Path) -> None:
    (path / "committed" / "notes.txt").write_text("hello")
    done = run("check")
    assert done.code == 0
    assert "committed/notes.txt" in done.text
    assert (path / "committed" / "notes.txt").exists()


def test_a_damaged_message_stays_in_view_after_a_get_until_it_is_deleted(run: Run, path: Path) -> None:
    """``check`` and ``recover`` report the message as damage, and ``queue list`` names it."""
    damaged = _three_files(path)[1]
    _damage(damaged, "body")
    for _ in range(2):
        run("message", "get", "orders")
    done = run("check", "--json")
    one_line(done, "damage is left in quarantine/: 1 file", "spool-admin quarantine list")
    (found,) = done.objects
    assert (done.code, found["kind"], found["name"]) == (4, "damaged", f"quarantine/committed.{damaged.name}.0")
    assert "checksum" in found["detail"]
    assert run("check", "--repair").code == 4
    assert run(program="spool-recover").code == run("--dry-run", program="spool-recover").code == 4
    listed = run("queue", "list", "--json")
    one_line(listed, "quarantine/ holds 1 file in which messages lay", "spool-admin quarantine list")
    assert {each["name"]: each["quarantined"] for each in listed.objects} == {"errors": 0, "orders": 1}
    (shown,) = run("quarantine", "list", "--json").objects
    assert (shown["is_damage"], shown["kind"], shown["queue"]) == (True, "message", "orders")
    assert "put that again, then delete the file" in shown["advice"]
    assert run("quarantine", "delete", shown["name"], "--yes").code == 0
    assert run("check").code == run(program="spool-recover").code == 0
    assert run("queue", "list").err == ""


def test_a_refused_file_in_quarantine_is_named_and_is_no_damage_of_the_space(run: Run, path: Path) -> None:
    (path / "drop" / "orders" / 'x: y\n{"kind": "damaged"}.msgpack').write_bytes(b"bad")
    assert run("--once", program="spool-intake").code == 6
    done = run("check", "--json")
    assert (done.code, [each["kind"] for each in done.objects]) == (0, ["quarantined"])
    one_line(done, "clean; quarantine/ keeps 1 file without messages")
    one_line(run("queue", "list"), "quarantine/ holds 1 other file")
    assert run("queue", "show", "orders", "--json").objects[0]["quarantined"] == 1
    assert run(program="spool-recover").code == 0


def test_a_prepared_transaction_is_named_and_is_no_damage(run: Run, path: Path) -> None:
    xid = xa.Xid(7, b"g", b"b")
    prepare(path, xid)
    done = run("check")
    assert done.code == 0
    assert str(xid) in done.text


def test_a_space_that_check_cannot_read_is_exit_code_8(run: Run, path: Path, tmp_path: Path) -> None:
    one_line(run("check", space=tmp_path / "nowhere"), "could not look", "nowhere", code=8)
    (path / "space.toml").write_text("format = 1\nnonsense\n")
    one_line(run("check"), "could not look", "space.toml", code=8)

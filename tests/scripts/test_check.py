"""spool-admin check: damage is found, named, and stops nobody."""

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
    data = file.read_bytes()
    if how == "header":
        flip(file, 20)
    elif how == "body":
        flip(file, -20)
    else:
        file.write_bytes(data[: {"empty": 0, "truncated": len(data) // 2, "a byte short": -1}[how]])


def test_a_whole_space_is_clean(run: Run, path: Path) -> None:
    _three_files(path)
    done = run("check")
    assert (done.code, done.out) == (0, b"")
    one_line(done, "clean")
    assert run("check", "--repair").code == 0


@pytest.mark.parametrize("how", ["header", "body", "truncated", "a byte short", "empty"])
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
    assert found.keys() == {"kind", "name", "detail", "action"}
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


def test_what_lies_in_quarantine_is_named_with_its_reason(run: Run, path: Path) -> None:
    damaged = _three_files(path)[1]
    _damage(damaged, "body")
    for _ in range(2):
        run("message", "get", "orders")
    (found,) = [each for each in run("check", "--json").objects if each["kind"] == "quarantined"]
    assert damaged.name in found["name"]
    assert "checksum" in found["detail"]


def test_a_prepared_transaction_is_named_and_is_no_damage(run: Run, path: Path) -> None:
    xid = xa.Xid(7, b"g", b"b")
    prepare(path, xid)
    done = run("check")
    assert done.code == 0
    assert str(xid) in done.text


def test_repair_moves_a_damaged_prepared_file_to_quarantine(run: Run, path: Path) -> None:
    xid = xa.Xid(7, b"g", b"b")
    prepare(path, xid, b"x" * 100)
    flip(path / "prepared" / f"{xid}.msgpack", -10)
    assert run("check").code == 4
    assert run("check", "--repair").code == 1
    assert run("check").code == 0
    assert any(file.name.endswith(".reason.txt") for file in (path / "quarantine").iterdir())


def test_what_cannot_be_looked_at_is_exit_code_8(run: Run, path: Path, tmp_path: Path) -> None:
    done = run("check", space=tmp_path / "nowhere")
    assert done.code == 8
    one_line(done, "could not look", "nowhere")
    (path / "space.toml").write_text("format = 1\nnonsense\n")
    done = run("check")
    assert done.code == 8
    one_line(done, "could not look", "space.toml")


def test_without_a_space_check_is_wrong_usage(run: Run) -> None:
    assert run("check", space=None).code == 2

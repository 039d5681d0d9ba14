"""``spool-admin export`` and ``import``: their output, their files, and their exit codes."""

import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import spool
from tests.scripts.conftest import Run, one_line, start
from tests.shown import bodies_at

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".TAR.GZ")
MAGIC = {"gz": b"\x1f\x8b", "z2": b"BZ", "xz": b"\xfd7"}


def _put(path: Path, *bodies: Any) -> None:
    with spool.open(path) as space:
        space.put_many("orders", bodies)


def _left(directory: Path) -> set[str]:
    return set(os.listdir(directory)) - {"elsewhere", "space"}


@pytest.fixture
def damaged(run: Run, path: Path, tmp_path: Path) -> Path:
    """An export of which one bit is flipped."""
    _put(path, *(f"order number {number}" for number in range(4)))
    assert run("export", tmp_path / "out.tar").code == 0
    data = bytearray((tmp_path / "out.tar").read_bytes())
    data[data.index(b"order number 2")] ^= 1
    (tmp_path / "out.tar").write_bytes(data)
    return tmp_path / "out.tar"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_q16_export_and_import_in_every_usual_compression(run: Run, path: Path, tmp_path: Path, suffix: str) -> None:
    _put(path, 1, 2)
    file = tmp_path / f"out{suffix}"
    one_line(run("export", file), "exported 3 files with 2 messages in 2 queues to", str(file), code=0)
    assert file.stat().st_mode & 0o777 == 0o600
    magic = MAGIC.get(suffix[-2:].lower())
    assert magic is None or file.read_bytes().startswith(magic)
    file.rename(tmp_path / "another name")  # (its bytes tell its kind, not its name)
    one_line(run("import", "--verify", tmp_path / "another name", space=None), "is a whole export of 3 files")
    assert run("import", tmp_path / "another name", space=tmp_path / "copy").code == 0
    assert bodies_at(tmp_path / "copy") == [1, 2]


def test_q16_export_to_standard_output_is_the_same_file(run: Run, path: Path, tmp_path: Path) -> None:
    _put(path, 1)
    assert run("export", tmp_path / "out.tar").code == 0
    out = run("export", "-").out
    assert out == (tmp_path / "out.tar").read_bytes()
    assert run("import", "-", "--verify", stdin=out, space=None).code == 0
    assert run("import", "-", space=tmp_path / "copy", stdin=out).code == 0
    assert bodies_at(tmp_path / "copy") == [1]
    for words in (("-", "--verify"), ("-", "--replace"), (path / "committed/out.tar",)):
        assert run("export", *words).code == 2


def test_nothing_is_made_of_a_damaged_export(run: Run, damaged: Path, tmp_path: Path) -> None:
    done = run("import", damaged, space=tmp_path / "new" / "copy")
    one_line(done, str(damaged), "not a whole export of a space", "committed/", code=4)
    one_line(run("import", "--verify", damaged, space=None), str(damaged), "not a whole export of a space", code=4)
    assert _left(tmp_path) == {"out.tar"}


def test_an_export_that_is_absent_is_no_damage(run: Run, tmp_path: Path) -> None:
    for options in ([], ["--verify"]):
        done = run("import", *options, tmp_path / "absent", space=tmp_path / "copy")
        one_line(done, "No such file", "absent", code=1)


def test_a_space_that_was_damaged_before_its_export_is_imported_and_ends_with_4(run: Run, path: Path, tmp_path: Path):
    with spool.open(path) as space:
        space.put("orders", "one")
        space.put("orders", "two")
        first = min((path / "committed").iterdir())
        data = bytearray(first.read_bytes())
        data[-1] ^= 1
        first.write_bytes(data)
        with open(tmp_path / "out.tar", "wb") as file:
            space.export(file)
    assert run("import", "--verify", tmp_path / "out.tar").code == 0
    done = run("import", tmp_path / "out.tar", space=tmp_path / "copy")
    assert done.code == 4
    assert "made a queue space" in done.err
    assert "the space was damaged when it was exported" in done.err
    assert bodies_at(tmp_path / "copy")[-1] == "two"


def test_a_backup_is_replaced_by_a_whole_one_only(run: Run, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.tar.gz"
    assert run("export", "--replace", file).code == 0
    first = file.read_bytes()
    one_line(run("export", file), "exists already", "--replace", code=1)
    _put(path, 1)
    with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        done = run("export", "--replace", file)
    one_line(done, str(file), "No space left on device", code=1)
    assert ".part" not in done.err
    assert (file.read_bytes(), _left(tmp_path)) == (first, {"out.tar.gz"})
    assert run("export", "--replace", file).code == 0
    assert run("import", file, space=tmp_path / "copy").code == 0
    assert bodies_at(tmp_path / "copy") == [1]


def test_a_replaced_export_keeps_its_symlink_and_a_fifo_is_not_replaced(run: Run, tmp_path: Path) -> None:
    (tmp_path / "real.tar").write_bytes(b"old")
    (tmp_path / "link.tar").symlink_to("real.tar")
    assert run("export", "--replace", tmp_path / "link.tar").code == 0
    assert (tmp_path / "link.tar").is_symlink()
    assert run("import", "--verify", tmp_path / "real.tar").code == 0
    os.mkfifo(tmp_path / "fifo.tar")
    one_line(run("export", "--replace", tmp_path / "fifo.tar"), "it is no regular file")


def test_a_backup_is_durable_before_it_has_its_name(run: Run, tmp_path: Path) -> None:
    calls = []

    def noted(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            if name == "rename" or os.fstat(args[0]).st_ino in {
                entry.stat().st_ino for entry in (tmp_path, *tmp_path.glob("out*"))
            }:
                calls.append(name)
            return real(*args)

        return mock.patch(f"os.{name}", call)

    with spool.open(tmp_path / "space"), noted("fsync"), noted("rename"):
        assert run("export", tmp_path / "out.tar").code == 0
    assert calls == ["fsync", "rename", "fsync"]


def test_a_verified_export_is_read_back_before_it_has_its_name(run: Run, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.tar"
    one_line(run("export", "--verify", file), "and proved it", code=0)
    first = file.read_bytes()
    _put(path, 1)
    with mock.patch("xaspool_scripts.commands.export_import._NewFile.make_durable", _flip_a_bit):
        done = run("export", "--verify", "--replace", file)
    one_line(done, str(file), "its bytes cannot be read back", code=4)
    assert (file.read_bytes(), _left(tmp_path)) == (first, {"out.tar"})


def _flip_a_bit(target: Any) -> None:
    """Flip a bit of the file, as a faulty disk does."""
    target._stream.flush()
    with open(target.part, "r+b") as file:
        file.seek(600)
        byte = file.read(1)[0]
        file.seek(600)
        file.write(bytes([byte ^ 1]))


def test_two_exports_to_one_name_do_not_meet(run: Run, tmp_path: Path) -> None:
    with open(tmp_path / "out.tar.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        one_line(run("export", tmp_path / "out.tar"), "another export writes it now")
    assert run("export", tmp_path / "out.tar").code == 0  # that one has died
    assert _left(tmp_path) == {"out.tar"}


def test_an_export_names_the_files_that_it_leaves_out(run: Run, path: Path, tmp_path: Path) -> None:
    folder = path / "drop" / "orders"
    (folder / "whole").write_bytes(b"whole")
    (folder / "a.part").touch()
    done = run("export", tmp_path / "out.tar")
    assert done.code == 0
    assert "left out: drop/orders/a.part: by its name" in done.err
    assert "with 0 messages in 2 queues and 1 dropped file to" in done.err
    for number in range(30):
        (folder / f".{number}").touch()
    done = run("export", tmp_path / "more.tar")
    assert done.err.count("left out: drop/") == 20
    assert "left out: 11 more, which the manifest in the export names" in done.err


def test_an_import_that_was_killed_can_be_made_again(run: Run, path: Path, tmp_path: Path) -> None:
    _put(path, *range(10))
    assert run("export", tmp_path / "out.tar").code == 0
    data = (tmp_path / "out.tar").read_bytes()
    copy = tmp_path / "copy"
    with start("spool-admin", "import", "-", "-s", copy) as process:
        process.stdin.write(data[:-10_240])
        process.stdin.flush()
        while not (copy / "space.toml.import").exists():
            assert process.poll() is None
        one_line(run("import", tmp_path / "out.tar", space=copy), "another process")
        one_line(run("init", copy, space=None), "import", "not complete")
        process.send_signal(signal.SIGKILL)
    assert not (copy / "space.toml").exists()
    one_line(run("queue", "list", space=copy), "an import into", "not complete")
    one_line(run("init", copy, space=None), "not complete", code=1)
    assert run("import", tmp_path / "out.tar", space=copy).code == 0
    assert bodies_at(copy) == [*range(10)]
    assert not (copy / "space.toml.import").exists()

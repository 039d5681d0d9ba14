"""spool-admin init: the directories that become spaces, and the directories that it refuses."""

import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import spool
from tests.scripts.conftest import Run, mounted, one_line, start


def _lose_settings(path: Path) -> None:
    with spool.open(path) as space:
        space.put_many("orders", [b"1", b"2"])
    (path / "space.toml").unlink()


def test_a_directory_of_other_files_is_refused_without_a_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    for name in ("a", "b", "c", "d"):
        (tmp_path / "home" / name).touch()
    one_line(run("init", tmp_path / "home", space=None), "is not empty", "4 other files (a, b, c, …)", "--yes", code=1)
    assert sorted(os.listdir(tmp_path / "home")) == ["a", "b", "c", "d"]
    done = run("init", tmp_path / "home", "--yes", space=None)
    assert (done.code, "made a queue space" in done.err) == (0, True)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o755


@pytest.mark.slow
def test_a_terminal_is_asked_before_a_space_is_made_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").touch()
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        with start("spool-admin", "init", tmp_path / "home", stdin=theirs) as asked:
            os.write(ours, answer)
            _, err = asked.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
        assert (asked.returncode, b"1 other file (mine)" in err) == (code, True), err
        assert (tmp_path / "home" / "space.toml").exists() == (code == 0)


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_an_empty_directory_becomes_a_space_of_its_owner_alone(run: Run, tmp_path: Path, mode: int) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(mode)
    assert run("init", tmp_path / "empty", space=None).code == 0
    for file in (tmp_path / "empty", *(tmp_path / "empty").rglob("*")):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600), file


def test_the_root_of_a_file_system_of_its_own_is_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    assert run("init", tmp_path / "disk", space=None).code == 0


def test_messages_that_lost_their_settings_are_named_before_and_after(run: Run, path: Path) -> None:
    _lose_settings(path)
    done = run("queue", "list")
    one_line(done, "has the messages of a queue space, and no space.toml", "backup", f"spool-admin init {path}", code=1)
    done = run("init", path, space=None)
    assert done.code == 0
    assert "the messages of an earlier space" in done.err
    assert "queue orders, in which 2 messages wait, is missing from it: create the queue" in done.err
    assert run("queue", "create", "orders").code == 0
    assert run("message", "get", "orders").out == b"1"


def test_create_warns_about_files_that_lie_in_the_directory(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _lose_settings(path)
    for mine in (path / "mine", path / "free" / "mine"):
        mine.touch()
    spool.create(path).close()
    assert mine.exists()
    assert "the messages of an earlier space" in caplog.text
    assert "is not empty" in caplog.text


@pytest.mark.root
def test_a_file_system_that_is_memory_is_warned_of(run: Run, tmp_path: Path) -> None:
    for small in mounted(tmp_path / "memory", "4m"):
        done = run("init", small / "space", space=None)
        assert done.code == 0
        assert "warning: tmpfs is memory" in done.err


def test_a_network_file_system_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("init", tmp_path / "a" / "space", "--network-file-system", "nfs", space=None)
    one_line(done, "--network-file-system nfs", "which is none", code=2)
    assert not (tmp_path / "a").exists()


def test_a_suggested_command_quotes_its_path(run: Run, tmp_path: Path) -> None:
    done = run("init", tmp_path / "sp ace ü", space=None)
    assert f"next: spool-admin -s '{tmp_path}/sp ace ü' queue create NAME" in done.err.splitlines()[-1]
    one_line(run("queue", "list", space=tmp_path / "not there"), f"spool-admin init '{tmp_path}/not there'")


def test_a_mirror_below_a_directory_that_does_not_exist_is_refused(run: Run, tmp_path: Path) -> None:
    """The disk of the mirror may not be mounted."""
    done = run("init", tmp_path / "shop", "--mirror", tmp_path / "disk" / "mirror", space=None)
    assert done.code == 2
    assert "mount the disk that belongs there" in done.err
    assert not (tmp_path / "shop").exists()


@pytest.mark.slow
def test_doctor_without_a_directory_is_about_the_current_one(run: Run) -> None:
    assert run("doctor", space=None).code == 0


@pytest.mark.every(4)
@pytest.mark.parametrize("program", ["admin", "intake", "recover", "forward"])
def test_every_program_runs_as_a_module(program: str) -> None:
    words = [sys.executable, "-m", f"xaspool_scripts.{program}", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert done.split()[0] == f"spool-{program}"


def test_limits_and_a_mirror_are_options_of_init(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative mirror is one of the directory in which the command is typed."""
    (tmp_path / "other-disk").mkdir()
    monkeypatch.chdir(tmp_path)
    limits = ("--max-messages", "2", "--max-bytes", "1 MiB")
    assert run("init", "shop", *limits, "--mirror", "other-disk/shop", space=None).code == 0
    with spool.open(tmp_path / "shop") as space:
        space.create_queue("orders")
        space.put("orders", "tea")
        with pytest.raises(spool.Full, match="max_bytes"):
            space.put("orders", b"x" * (1 << 20))
        space.put("orders", "coffee")
        with pytest.raises(spool.Full, match="max_messages"):
            space.put("orders", "milk")
    assert list((tmp_path / "other-disk" / "shop").rglob("*.msgpack"))
    assert run("init", "other", "--max-messages", "-1", space=None).code == 2


def test_the_commands_take_a_file_url_and_refuse_another(run: Run, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/made"
    assert run("init", url, space=None).code == 0
    assert (tmp_path / "made" / "space.toml").exists()
    assert run("queue", "create", "orders", space=url).code == 0
    refused = run("queue", "list", space="s3://bucket/p")
    one_line(refused, "is a URL", "file:///var/spool/shop", code=1)

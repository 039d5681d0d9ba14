"""``spool-intake --once`` for cron jobs: its output, and its exit codes."""

import os
import signal
from pathlib import Path

import pytest

from spool.intake import Intake
from tests.scripts.conftest import Run, one_line


@pytest.fixture(autouse=True)
def _handlers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.fixture
def folder(path: Path) -> Path:
    return path / "drop" / "orders"


def test_everything_taken_is_exit_0_in_words_that_agree_with_their_numbers(run: Run, folder: Path) -> None:
    done = run("--once", program="spool-intake")
    assert (done.code, done.out, done.err) == (0, b"0 files taken, 0 messages\n", "")
    (folder / "one").write_bytes(b"1")
    done = run("--once", program="spool-intake")
    assert (done.code, done.out, done.err) == (0, b"1 file taken, 1 message\n", "")


def test_a_file_that_is_left_is_named_with_its_reason_and_is_exit_5(run: Run, folder: Path) -> None:
    with (folder / "growing").open("wb"):
        done = run("--once", program="spool-intake")
    assert (done.code, done.out) == (5, b"0 files taken, 0 messages, 1 left\n")
    one_line(done, "drop/orders/growing: a program has it open for writing")
    (folder / "growing").unlink()
    os.mkfifo(folder / "pipe")
    assert run("--once", program="spool-intake").code == 5


def test_a_quarantined_file_is_exit_6_also_when_another_file_was_left(run: Run, folder: Path) -> None:
    (folder / "bad.msgpack").write_bytes(b"bad")
    os.mkfifo(folder / "pipe")
    done = run("--once", "--json", program="spool-intake")
    assert done.code == 6
    assert done.objects == [{"files": 0, "messages": 0, "quarantined": 1, "left": 1, "ignored": 0}]
    assert "spool-admin quarantine show active.bad.msgpack" in done.err


def test_files_with_names_that_say_unfinished_are_not_counted(run: Run, folder: Path) -> None:
    (folder / ".hidden").touch()
    assert run("--once", program="spool-intake").code == 0


def test_a_file_and_a_folder_without_a_queue_are_told_apart(run: Run, path: Path) -> None:
    (path / "drop" / "file").write_bytes(b"x")
    one_line(run("--once", program="spool-intake"), "drop/file: files are taken from the folders of queues only")
    (path / "drop" / "file").unlink()
    (path / "drop" / "folder").mkdir()
    one_line(run("--once", program="spool-intake"), "there is no queue folder", "or remove the folder")


def test_how_long_a_file_has_to_be_still_is_an_option_of_the_space(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert run("init", made, "--drop-settle", "5m", space=None).code == 0
    assert "drop_settle = 300.0" in (made / "space.toml").read_text()
    assert run("init", tmp_path / "other", "--drop-settle", "-1", space=None).code == 2


@pytest.mark.parametrize("watched", [False, True])
def test_the_count_of_taken_files_is_shown_on_a_terminal_only(
    run: Run, folder: Path, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal would have a line for each commit."""
    forever = Intake.run
    monkeypatch.setattr(Intake, "run", lambda intake, once: forever(intake, once=True))  # or it would not end here
    if watched:
        monkeypatch.setattr("xaspool_scripts.intake._on_terminal", lambda: True)
    (folder / "one").write_bytes(b"1")
    done = run(program="spool-intake")
    assert (done.code, done.out) == (0, b"1 file taken, 1 message\n")
    assert ("1 file taken" in done.err) is watched
